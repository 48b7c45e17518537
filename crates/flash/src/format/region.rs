//! Region header and footer. The header names the region's group and is written before any entry.
//! The footer lists the entries and is written when the region is sealed.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

use super::{BLOCK_SIZE, CLASS_EPHEMERAL, DeviceId, Generation, UNIT, crc, round_up};

/// Longest name of a group, in bytes.
pub const GROUP_NAME_MAX: usize = 255;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"fbRG");
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"fbFT");

/// Header of a region: its current use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionHeader {
    /// The device that the region belongs to.
    pub device: DeviceId,
    /// The generation that the header begins.
    pub generation: Generation,
    /// What the region is used for.
    pub usage: RegionUse,
}

/// What a region is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionUse {
    /// Free. Earlier contents are gone for good.
    Free,
    /// The region belongs to a group.
    Group {
        /// The group's durable name.
        name: Vec<u8>,
        /// The group's lifetime class.
        class: u8,
        /// Whether the group's entries are named by ordinals.
        dense: bool,
    },
}

impl RegionUse {
    /// Whether a restart looks for entries in the region.
    pub fn survives_restart(&self) -> bool {
        matches!(self, Self::Group { class, .. } if *class != CLASS_EPHEMERAL)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    crc: U32,
    generation: U64,
    device: U64,
    in_use: u8,
    class: u8,
    dense: u8,
    reserved: u8,
    name_length: U16,
    name: [u8; GROUP_NAME_MAX + 1],
    padding: [u8; 6],
}

const HEADER_SIZE: usize = size_of::<RawHeader>();
const _: () = assert!(HEADER_SIZE <= BLOCK_SIZE);
/// Offset of the bytes that the header's checksum covers.
const HEADER_CHECKED: usize = 8;

impl RegionHeader {
    /// Encodes into the beginning of a block, and zeros the rest.
    pub fn encode(&self, block: &mut [u8]) {
        let mut raw = RawHeader::read_from_bytes(&[0; HEADER_SIZE]).expect("any bytes are valid");
        raw.magic = HEADER_MAGIC.into();
        raw.generation = self.generation.0.into();
        raw.device = self.device.0.into();
        if let RegionUse::Group { name, class, dense } = &self.usage {
            raw.in_use = 1;
            raw.class = *class;
            raw.dense = u8::from(*dense);
            raw.name_length = u16::try_from(name.len()).expect("at most GROUP_NAME_MAX").into();
            raw.name[..name.len()].copy_from_slice(name);
        }
        raw.crc = crc(&raw.as_bytes()[HEADER_CHECKED..]).into();
        block.fill(0);
        block[..HEADER_SIZE].copy_from_slice(raw.as_bytes());
    }

    /// Decodes a header. `None` if it is invalid.
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (raw, _) = RawHeader::read_from_prefix(block).ok()?;
        let name = raw.name.get(..usize::from(raw.name_length.get()))?;
        let whole = raw.magic.get() == HEADER_MAGIC
            && name.len() <= GROUP_NAME_MAX
            && raw.crc.get() == crc(&raw.as_bytes()[HEADER_CHECKED..]);
        whole.then(|| Self {
            device: DeviceId(raw.device.get()),
            generation: Generation(raw.generation.get()),
            usage: match raw.in_use {
                0 => RegionUse::Free,
                _ => RegionUse::Group {
                    name: name.to_vec(),
                    class: raw.class,
                    dense: raw.dense != 0,
                },
            },
        })
    }
}

/// One entry as listed in a footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// The entry's key.
    pub key: [u8; 32],
    /// Offset of the entry in the region, in units.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub length: u32,
    /// The writer's tag.
    pub tag: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawDescriptor {
    key: [u8; 32],
    offset: U32,
    length: U32,
    tag: U32,
    reserved: U32,
}

const DESCRIPTOR_SIZE: usize = size_of::<RawDescriptor>();
const _: () = assert!(DESCRIPTOR_SIZE == 48);

/// Table of a sealed region's entries, at the region's end. Its last [`UNIT`] holds the number of
/// descriptors, which precede it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// The device that the region belongs to.
    pub device: DeviceId,
    /// The generation that the footer seals.
    pub generation: Generation,
    /// Whether the group ends with this region.
    pub last: bool,
    /// The region's entries, in the order of writing.
    pub entries: Vec<Descriptor>,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RawTrailer {
    magic: U32,
    count: U32,
    generation: U64,
    device: U64,
    last: U32,
    reserved: [u8; 32],
    crc: U32,
}

const TRAILER_SIZE: usize = size_of::<RawTrailer>();
const _: () = assert!(TRAILER_SIZE == UNIT);

impl Footer {
    /// Size of a footer with this number of entries, in whole blocks.
    pub fn size(entries: usize) -> u64 {
        round_up((entries * DESCRIPTOR_SIZE + TRAILER_SIZE) as u64, BLOCK_SIZE as u64)
    }

    /// Encodes so that the footer ends at the end of the buffer.
    pub fn encode(&self, buffer: &mut [u8]) {
        assert_eq!(
            buffer.len() as u64,
            Self::size(self.entries.len()),
            "the buffer has the footer's size"
        );
        buffer.fill(0);
        let first = buffer.len() - TRAILER_SIZE - self.entries.len() * DESCRIPTOR_SIZE;
        let end = buffer.len() - TRAILER_SIZE;
        for (entry, into) in self.entries.iter().zip(buffer[first..end].chunks_mut(DESCRIPTOR_SIZE))
        {
            let raw = RawDescriptor {
                key: entry.key,
                offset: entry.offset.into(),
                length: entry.length.into(),
                tag: entry.tag.into(),
                reserved: 0.into(),
            };
            into.copy_from_slice(raw.as_bytes());
        }
        let trailer = RawTrailer {
            magic: FOOTER_MAGIC.into(),
            count: u32::try_from(self.entries.len()).expect("a region has fewer").into(),
            generation: self.generation.0.into(),
            device: self.device.0.into(),
            last: u32::from(self.last).into(),
            reserved: [0; 32],
            crc: 0.into(),
        };
        buffer[end..].copy_from_slice(trailer.as_bytes());
        let checksum = crc(&buffer[first..buffer.len() - 4]);
        let at = buffer.len() - 4;
        buffer[at..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Size of the footer in the last bytes of a region, if it belongs to this generation.
    pub fn size_at(tail: &[u8], device: DeviceId, generation: Generation) -> Option<u64> {
        let (_, trailer) = RawTrailer::read_from_suffix(tail).ok()?;
        let is_match = trailer.magic.get() == FOOTER_MAGIC
            && trailer.generation.get() == generation.0
            && trailer.device.get() == device.0;
        is_match.then(|| Self::size(trailer.count.get() as usize))
    }

    /// Decodes the footer in the last bytes of a region. `None` if it is invalid or incomplete.
    pub fn decode(tail: &[u8], region_size: u64) -> Option<Self> {
        let (_, trailer) = RawTrailer::read_from_suffix(tail).ok()?;
        let count = trailer.count.get() as usize;
        let length = count.checked_mul(DESCRIPTOR_SIZE)?.checked_add(TRAILER_SIZE)?;
        let whole = &tail[tail.len().checked_sub(length)?..];
        let (checked, stated) = whole.split_at(length - 4);
        if trailer.magic.get() != FOOTER_MAGIC || crc(checked).to_le_bytes() != *stated {
            return None;
        }
        let (descriptors, _) = whole.as_chunks::<DESCRIPTOR_SIZE>();
        let entries = descriptors[..count].iter().map(|raw| {
            let raw = RawDescriptor::read_from_bytes(raw).expect("the size of one descriptor");
            let entry = Descriptor {
                key: raw.key,
                offset: raw.offset.get(),
                length: raw.length.get(),
                tag: raw.tag.get(),
            };
            (entry.end() <= region_size && entry.start() >= BLOCK_SIZE as u64).then_some(entry)
        });
        Some(Self {
            device: DeviceId(trailer.device.get()),
            generation: Generation(trailer.generation.get()),
            last: trailer.last.get() != 0,
            entries: entries.collect::<Option<_>>()?,
        })
    }
}

impl Descriptor {
    /// Offset of the entry in the region, in bytes.
    pub fn start(&self) -> u64 {
        u64::from(self.offset) * UNIT as u64
    }

    /// Offset of the entry's end.
    pub fn end(&self) -> u64 {
        self.start() + super::EntryShape::of(u64::from(self.length)).size()
    }
}
