//! Tests of the format: round trips, detection of any damage, and golden bytes of version 1.

use proptest::{collection::vec, prelude::*};

use super::*;

fn device() -> impl Strategy<Value = DeviceId> {
    any::<u64>().prop_map(DeviceId)
}

fn generation() -> impl Strategy<Value = Generation> {
    any::<u64>().prop_map(Generation)
}

fn superblock() -> impl Strategy<Value = Superblock> {
    let shape = (20_u32..=26, REGIONS_MIN..=REGIONS_MAX);
    (device(), shape, any::<[u8; 16]>(), any::<u32>()).prop_map(
        |(device, (bits, regions), owner, epoch)| {
            let geometry = Geometry { device, region_size: 1 << bits, regions };
            Superblock { geometry, owner, epoch }
        },
    )
}

fn usage() -> impl Strategy<Value = RegionUse> {
    let group = (vec(any::<u8>(), 0..=GROUP_NAME_MAX), any::<u8>(), any::<bool>());
    prop_oneof![
        Just(RegionUse::Free),
        group.prop_map(|(name, class, dense)| RegionUse::Group { name, class, dense }),
    ]
}

fn region_header() -> impl Strategy<Value = RegionHeader> {
    (device(), generation(), usage()).prop_map(|(device, generation, usage)| RegionHeader {
        device,
        generation,
        usage,
    })
}

/// A header and a payload of random length.
fn entry(lengths: std::ops::Range<usize>) -> impl Strategy<Value = (EntryHeader, Vec<u8>)> {
    let names = (device(), generation(), any::<[u8; 32]>(), any::<u32>());
    (names, lengths, any::<u64>()).prop_map(|((device, generation, key, tag), length, seed)| {
        let mut payload = vec![0; length];
        fastrand::Rng::with_seed(seed).fill(&mut payload);
        let length = u32::try_from(length).unwrap();
        (EntryHeader { device, generation, key, length, tag }, payload)
    })
}

fn footer() -> impl Strategy<Value = Footer> {
    let descriptor = (any::<[u8; 32]>(), 64_u32..8000, 0_u32..400_000, any::<u32>())
        .prop_map(|(key, offset, length, tag)| Descriptor { key, offset, length, tag });
    (device(), generation(), any::<bool>(), vec(descriptor, 0..200)).prop_map(
        |(device, generation, last, entries)| Footer { device, generation, last, entries },
    )
}

/// Larger than any descriptor here reaches.
const REGION: u64 = 1 << 20;

fn encode_superblock(superblock: &Superblock) -> Vec<u8> {
    let mut block = vec![0xaa; BLOCK_SIZE];
    superblock.encode(&mut block);
    block
}

fn encode_region(header: &RegionHeader) -> Vec<u8> {
    let mut block = vec![0xaa; BLOCK_SIZE];
    header.encode(&mut block);
    block
}

fn encode_footer(footer: &Footer) -> Vec<u8> {
    let mut buffer = vec![0xaa; usize::try_from(Footer::size(footer.entries.len())).unwrap()];
    footer.encode(&mut buffer);
    buffer
}

fn encode_entry(header: &EntryHeader, payload: &[u8]) -> Vec<u8> {
    header.encode(&frame_checksums(payload))
}

/// Whether a reader that expects `wanted` accepts these bytes.
fn is_entry(head: &[u8], payload: &[u8], wanted: &EntryHeader) -> bool {
    EntryHeader::decode(head).is_some_and(|(header, checksums)| {
        header == *wanted
            && payload.len() == header.length as usize
            && EntryHeader::frames_match(checksums, 0, payload)
    })
}

proptest! {
    #[test]
    fn everything_round_trips(
        superblock in superblock(),
        region in region_header(),
        (entry, payload) in entry(0..100_000),
        footer in footer(),
    ) {
        prop_assert_eq!(Superblock::decode(&encode_superblock(&superblock)), Ok(superblock));
        prop_assert_eq!(RegionHeader::decode(&encode_region(&region)), Some(region));

        let head = encode_entry(&entry, &payload);
        prop_assert_eq!(EntryHeader::peek(&head), Some(entry));
        prop_assert!(is_entry(&head, &payload, &entry));

        let tail = encode_footer(&footer);
        let size = Footer::size_at(&tail, footer.device, footer.generation);
        prop_assert_eq!(size, Some(tail.len() as u64));
        let longer = [vec![7; BLOCK_SIZE], tail.clone()].concat();
        prop_assert_eq!(Footer::decode(&longer, REGION), Some(footer.clone()), "prefix ignored");
        prop_assert_eq!(Footer::decode(&tail, REGION), Some(footer));
    }

    /// Decoders see arbitrary bytes from disks.
    #[test]
    fn no_bytes_make_a_decoder_panic(
        mut bytes in vec(any::<u8>(), 0..2 * BLOCK_SIZE),
        at in 0_usize..5,
    ) {
        let magics: [&[u8]; 5] = [b"forebay\x1f", b"fbRG", b"fbEN", b"fbFT", b""];
        let magic = magics[at];
        let offsets = [0, bytes.len().saturating_sub(UNIT)];
        for offset in offsets {
            if let Some(into) = bytes.get_mut(offset..offset + magic.len()) {
                into.copy_from_slice(magic);
            }
        }
        if bytes.len() >= BLOCK_SIZE {
            let _ = Superblock::decode(&bytes);
        }
        prop_assert_eq!(RegionHeader::decode(&bytes), None);
        prop_assert_eq!(EntryHeader::decode(&bytes), None);
        prop_assert_eq!(Footer::decode(&bytes, REGION), None);
        let _ = Footer::size_at(&bytes, DeviceId(0), Generation(0));
        let _ = EntryHeader::peek(&bytes);
    }

    /// A block of which the disk has written the first sectors only.
    #[test]
    fn a_torn_write_is_the_old_the_new_or_nothing(
        old in (superblock(), region_header(), footer()),
        new in (superblock(), region_header(), footer()),
        sectors in 0_usize..=8,
    ) {
        let tear = |old: &[u8], new: &[u8]| [&new[..sectors * 512], &old[sectors * 512..]].concat();
        let torn = tear(&encode_superblock(&old.0), &encode_superblock(&new.0));
        let found = Superblock::decode(&torn);
        prop_assert!(found == Ok(old.0) || found == Ok(new.0) || found.is_err());

        let found = RegionHeader::decode(&tear(&encode_region(&old.1), &encode_region(&new.1)));
        prop_assert!(found.as_ref() == Some(&old.1) || found.as_ref() == Some(&new.1));

        let (mut ahead, mut behind) = (encode_footer(&new.2), encode_footer(&old.2));
        let length = ahead.len().max(behind.len());
        for bytes in [&mut ahead, &mut behind] {
            let gap = length - bytes.len();
            bytes.splice(..0, vec![0; gap]);
        }
        let found = Footer::decode(&tear(&behind, &ahead), REGION);
        prop_assert!(found.is_none() || found == Some(old.2) || found == Some(new.2));
    }

    #[test]
    fn truncated_bytes_are_rejected((entry, payload) in entry(0..40_000), footer in footer()) {
        let head = encode_entry(&entry, &payload);
        for end in 0..head.len() {
            prop_assert!(EntryHeader::decode(&head[..end]).is_none());
        }
        for end in (0..payload.len()).rev().step_by(4001) {
            prop_assert!(!is_entry(&head, &payload[..end], &entry));
        }
        let tail = encode_footer(&footer);
        let whole = footer.entries.len() * 48 + UNIT;
        for start in (0..tail.len()).step_by(47) {
            let found = Footer::decode(&tail[start..], REGION);
            prop_assert_eq!(found.is_some(), tail.len() - start >= whole);
        }
        for end in 0..600 {
            let block = encode_region(&RegionHeader {
                device: footer.device,
                generation: footer.generation,
                usage: RegionUse::Free,
            });
            prop_assert_eq!(RegionHeader::decode(&block[..end]).is_some(), end >= 292);
        }
    }

    /// Frames verify against their own checksums only.
    #[test]
    fn frames_verify_a_range(
        (entry, payload) in entry(1..100_000),
        (from, to) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let head = encode_entry(&entry, &payload);
        let (_, checksums) = EntryHeader::decode(&head).unwrap();
        let shape = EntryShape::of(payload.len() as u64);
        let (from, to) = (from.index(payload.len()), to.index(payload.len()));
        let range = from.min(to) as u64..from.max(to) as u64 + 1;
        let covering = shape.covering(&range);
        let (start, end) = (covering.start - shape.payload(), covering.end - shape.payload());
        prop_assert!(start <= range.start && range.end <= end && end <= payload.len() as u64);
        let frame = FRAME_SIZE as u64;
        prop_assert!(range.start - start < frame && end - range.end < frame);
        let frames = &payload[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()];
        let first = usize::try_from(start).unwrap() / FRAME_SIZE;
        prop_assert!(EntryHeader::frames_match(checksums, first, frames));
        let other = if first == 0 { checksums.len() } else { first - 1 };
        prop_assert!(!EntryHeader::frames_match(checksums, other, frames), "frame {}", other);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// With one byte changed anywhere, the bytes are rejected or decode to the same value.
    #[test]
    fn a_changed_byte_never_changes_the_meaning(
        superblock in superblock(),
        region in region_header(),
        (entry, payload) in entry(0..40_000),
        footer in footer(),
        change in 1_u8..,
    ) {
        every_change(encode_superblock(&superblock), change, |bytes| {
            Superblock::decode(bytes).is_ok_and(|found| found != superblock)
        })?;
        every_change(encode_region(&region), change, |bytes| {
            RegionHeader::decode(bytes).is_some_and(|found| found != region)
        })?;
        every_change(encode_footer(&footer), change, |bytes| {
            Footer::decode(bytes, REGION).is_some_and(|found| found != footer)
        })?;
        let head = encode_entry(&entry, &payload);
        every_change(head.clone(), change, |bytes| EntryHeader::decode(bytes).is_some())?;
        let last_frame = payload.len().saturating_sub(1) / FRAME_SIZE;
        let (_, checksums) = EntryHeader::decode(&head).unwrap();
        every_change(payload[last_frame * FRAME_SIZE..].to_vec(), change, |bytes| {
            EntryHeader::frames_match(checksums, last_frame, bytes)
        })?;
    }
}

/// Changes each byte in turn.
fn every_change(
    mut bytes: Vec<u8>,
    change: u8,
    is_wrong: impl Fn(&[u8]) -> bool,
) -> Result<(), TestCaseError> {
    for at in 0..bytes.len() {
        bytes[at] ^= change;
        prop_assert!(!is_wrong(&bytes), "byte {} changed by {:02x}", at, change);
        bytes[at] ^= change;
    }
    Ok(())
}

/// Tries all lengths around each whole number of frames.
#[test]
fn the_size_of_an_entry_determines_its_frames() {
    let (frame, unit) = (FRAME_SIZE as u64, UNIT as u64);
    for frames in 0..=REGION_SIZE_MAX / frame {
        for length in (frames * frame).saturating_sub(unit + 1)..frames * frame + unit + 2 {
            let shape = EntryShape::of(length);
            let known = EntryShape::of_size(shape.size());
            assert_eq!((known.frames(), known.payload()), (shape.frames(), shape.payload()));
            assert!((length..length + unit).contains(&known.length()), "{length}: {known:?}");
            assert!(shape.size().is_multiple_of(unit));
        }
    }
}

/// The longest entry fits into a region with header and footer; one unit more does not.
#[test]
fn the_longest_entry_just_fits() {
    for bits in 20..=26 {
        let geometry = Geometry { device: DeviceId(1), region_size: 1 << bits, regions: 4 };
        let longest = geometry.entry_length_max();
        let needed = |length| BLOCK_SIZE as u64 + EntryShape::of(length).size() + Footer::size(1);
        assert!(needed(longest) <= geometry.region_size);
        assert!(needed(longest + UNIT as u64) > geometry.region_size, "{longest}");
        assert_eq!(
            geometry.region_offset(RegionId(3)) + geometry.region_size,
            geometry.device_size()
        );
    }
}

/// Values that are out of range although their checksum is right.
#[test]
fn values_out_of_range_are_rejected_despite_a_valid_checksum() {
    let geometry = Geometry { device: DeviceId(1), region_size: 1 << 20, regions: 4 };
    let good = Superblock { geometry, owner: [1; 16], epoch: 1 };
    for (region_size, regions) in
        [(3 << 20, 4), (1 << 19, 4), (1 << 27, 4), (1 << 20, 3), (1 << 20, REGIONS_MAX + 1)]
    {
        let geometry = Geometry { region_size, regions, ..geometry };
        let found = Superblock::decode(&encode_superblock(&Superblock { geometry, ..good }));
        assert_eq!(found, Err(SuperblockError::Damaged), "{region_size} x {regions}");
    }
    assert_eq!(Superblock::decode(&[0; BLOCK_SIZE]), Err(SuperblockError::Blank));
    assert_eq!(Superblock::decode(&[1; BLOCK_SIZE]), Err(SuperblockError::Foreign));

    let descriptor = |offset, length| Descriptor { key: [1; 32], offset, length, tag: 0 };
    let inside = descriptor(64, 0);
    for impossible in [
        descriptor(0, 10),
        descriptor(63, 10),
        descriptor(64, 1 << 20),
        descriptor(u32::MAX, u32::MAX),
    ] {
        let (device, generation) = (DeviceId(1), Generation(1));
        let entries = vec![inside, impossible];
        let tail = encode_footer(&Footer { device, generation, last: false, entries });
        assert_eq!(Footer::decode(&tail, REGION), None, "{impossible:?}");
    }

    // A count for which there is not enough memory. The reader rejects it by size.
    let mut tail = encode_footer(&Footer {
        device: DeviceId(1),
        generation: Generation(1),
        last: false,
        entries: vec![],
    });
    let at = tail.len() - UNIT + 4;
    tail[at..at + 4].fill(0xff);
    assert_eq!(Footer::decode(&tail, REGION), None);
    assert!(Footer::size_at(&tail, DeviceId(1), Generation(1)).is_some_and(|size| size > REGION));
}

/// Version 1, generated by another program from `docs/reference/flash-format.md`. If these bytes
/// change, the version must change.
mod golden {
    use super::*;

    const DEVICE: DeviceId = DeviceId(0x0123_4567_89ab_cdef);
    const GENERATION: Generation = Generation(3 << 32 | 7);
    const SUPERBLOCK: &str = "
        666f72656261791f0100000000000004a000000003000000efcdab8967452301
        a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0000000000000000000000004f3bf3dd";
    const SUPERBLOCK_OF_VERSION_2: &str = "
        666f72656261791f0200000000000004a000000003000000efcdab8967452301
        a0a1a2a3a4a5a6a7a8a9aaabacadaeaf0000000000000000000000004050ac34";
    const REGION_HEADER: &str = "
        6662524702432d390700000003000000efcdab8967452301010201000d00696d
        6167656e65742f30303431";
    const FREE_REGION: &str = "6662524786ae7dd50700000003000000efcdab8967452301";
    const ENTRY_HEAD: &str = "
        6662454e204e00000700000003000000efcdab89674523010001020304050607
        08090a0b0c0d0e0f101112131415161718191a1b1c1d1e1ffeca0000eba56566
        4ec7bb685e00daf4000000000000000000000000000000000000000000000000
        0000000000000000000000000000000000000000000000000000000000000000";
    const FOOTER: &str = "
        000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
        40000000204e0000feca0000000000001f1e1d1c1b1a19181716151413121110
        0f0e0d0c0b0a0908070605040302010090010000000000000000000000000000
        66624654020000000700000003000000efcdab89674523010100000000000000
        00000000000000000000000000000000000000000000000000000000e9e4e225";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
        let (pairs, _) = digits.as_chunks::<2>();
        pairs.iter().map(|[high, low]| u8::try_from(high << 4 | low).unwrap()).collect()
    }

    fn in_a_block(hex: &str) -> Vec<u8> {
        let mut block = bytes(hex);
        block.resize(BLOCK_SIZE, 0);
        block
    }

    #[test]
    fn superblock() {
        let geometry = Geometry { device: DEVICE, region_size: 64 << 20, regions: 160 };
        let owner = std::array::from_fn(|at| 0xa0 + u8::try_from(at).unwrap());
        let superblock = Superblock { geometry, owner, epoch: 3 };
        assert_eq!(encode_superblock(&superblock), in_a_block(SUPERBLOCK));
        assert_eq!(Superblock::decode(&in_a_block(SUPERBLOCK)), Ok(superblock));
        let newer = Superblock::decode(&in_a_block(SUPERBLOCK_OF_VERSION_2));
        assert_eq!(newer, Err(SuperblockError::Version(2)));
        assert_eq!(SUPERBLOCK_OFFSETS, [0, 512 << 10]);
        assert_eq!(geometry.region_offset(RegionId(2)), (1 << 20) + (128 << 20));
    }

    #[test]
    fn region_header() {
        let name = b"imagenet/0041".to_vec();
        let usage = RegionUse::Group { name, class: 2, dense: true };
        let header = RegionHeader { device: DEVICE, generation: GENERATION, usage };
        assert_eq!(encode_region(&header), in_a_block(REGION_HEADER));
        assert_eq!(RegionHeader::decode(&in_a_block(REGION_HEADER)), Some(header.clone()));
        let free = RegionHeader { usage: RegionUse::Free, ..header };
        assert_eq!(encode_region(&free), in_a_block(FREE_REGION));
        assert_eq!(RegionHeader::decode(&in_a_block(FREE_REGION)), Some(free));
    }

    #[test]
    fn entry() {
        let payload: Vec<u8> = (0..20_000_u32).map(|at| (at * 7).to_le_bytes()[0]).collect();
        let key = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let (length, tag) = (20_000, 0xcafe);
        let header = EntryHeader { device: DEVICE, generation: GENERATION, key, length, tag };
        assert_eq!(encode_entry(&header, &payload), bytes(ENTRY_HEAD));
        assert!(is_entry(&bytes(ENTRY_HEAD), &payload, &header));
        assert_eq!(EntryShape::of(20_000).size(), 20_160);
    }

    #[test]
    fn footer() {
        let up: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let mut down = up;
        down.reverse();
        let entries = vec![
            Descriptor { key: up, offset: 64, length: 20_000, tag: 0xcafe },
            Descriptor { key: down, offset: 400, length: 0, tag: 0 },
        ];
        let footer = Footer { device: DEVICE, generation: GENERATION, last: true, entries };
        let mut block = vec![0; BLOCK_SIZE - bytes(FOOTER).len()];
        block.extend(bytes(FOOTER));
        assert_eq!(encode_footer(&footer), block);
        assert_eq!(Footer::decode(&block, REGION), Some(footer));
    }
}
