//! The two ends of a region: a header that says whose it is, written before anything else, and a footer
//! that lists what is in it, written when it is sealed.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

use super::{BLOCK_SIZE, DeviceId, Generation, UNIT, crc, round_up};

/// The longest name of a group.
pub const GROUP_NAME_MAX: usize = 255;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"fbRG");
const FOOTER_MAGIC: u32 = u32::from_le_bytes(*b"fbFT");

/// Whose a region is, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionHeader {
    /// The device it belongs to.
    pub device: DeviceId,
    /// Its life.
    pub generation: Generation,
    /// What for.
    pub usage: Use,
}

/// What a region is used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    /// Nothing: whatever was in it is gone for good.
    Free,
    /// It belongs to a group.
    Group {
        /// The group's durable name.
        name: Vec<u8>,
        /// Its lifetime class.
        class: u8,
        /// Whether its keys are ordinals.
        dense: bool,
    },
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
/// What the checksum of a header covers begins here.
const HEADER_CHECKED: usize = 8;

impl RegionHeader {
    /// Writes it to the beginning of a block, and zeros behind it.
    pub fn encode(&self, block: &mut [u8]) {
        let mut raw = RawHeader::read_from_bytes(&[0; HEADER_SIZE]).expect("zeros are fine");
        raw.magic = HEADER_MAGIC.into();
        raw.generation = self.generation.0.into();
        raw.device = self.device.0.into();
        if let Use::Group { name, class, dense } = &self.usage {
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

    /// Reads one. `None` if it is not a whole header.
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
                0 => Use::Free,
                _ => Use::Group { name: name.to_vec(), class: raw.class, dense: raw.dense != 0 },
            },
        })
    }
}

/// What a sealed region says of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// What it is called.
    pub key: [u8; 32],
    /// Where it begins, in units from the region's beginning.
    pub offset: u32,
    /// Bytes of its payload.
    pub length: u32,
    /// Its writer's word.
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

/// The table at a region's end. Its last [`UNIT`] says how long it is; the descriptors stand before that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// The device it belongs to.
    pub device: DeviceId,
    /// The life that it seals.
    pub generation: Generation,
    /// Whether the group was sealed with this region: nothing comes after it.
    pub last: bool,
    /// What is in the region, in the order of writing.
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
    /// Bytes of a footer for so many entries: whole blocks, at the region's end.
    pub fn size(entries: usize) -> u64 {
        round_up((entries * DESCRIPTOR_SIZE + TRAILER_SIZE) as u64, BLOCK_SIZE as u64)
    }

    /// Writes it so that it ends where the buffer ends.
    pub fn encode(&self, buffer: &mut [u8]) {
        assert_eq!(buffer.len() as u64, Self::size(self.entries.len()), "exactly its blocks");
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

    /// How many bytes at the end of a region its footer takes, if these are its last bytes and it is the
    /// footer of this life.
    pub fn size_at(tail: &[u8], device: DeviceId, generation: Generation) -> Option<u64> {
        let (_, trailer) = RawTrailer::read_from_suffix(tail).ok()?;
        let ours = trailer.magic.get() == FOOTER_MAGIC
            && trailer.generation.get() == generation.0
            && trailer.device.get() == device.0;
        ours.then(|| Self::size(trailer.count.get() as usize))
    }

    /// Reads one from the last bytes of a region. `None` if it is damaged or not all of it is there.
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
            let raw = RawDescriptor::read_from_bytes(raw).expect("exactly one");
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
    /// Where the entry begins, in bytes from the region's beginning.
    pub fn start(&self) -> u64 {
        u64::from(self.offset) * UNIT as u64
    }

    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.start() + super::EntryShape::of(u64::from(self.length)).size()
    }
}
