//! An entry: a header that proves whose bytes follow, a checksum for each frame of them, and the bytes.
//!
//! With a checksum for each frame, a range can be proved without reading the rest.

use std::ops::Range;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{DeviceId, Generation, REGION_SIZE_MAX, UNIT, crc, crc_of_all, round_up};

/// Bytes of a header without its checksums.
pub const HEADER_SIZE: usize = 64;
/// What has one checksum.
pub const FRAME_SIZE: usize = 16 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"fbEN");

/// Says what an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// The device it was written to.
    pub device: DeviceId,
    /// The life of the region it was written to.
    pub generation: Generation,
    /// What it is called.
    pub key: [u8; 32],
    /// Bytes of its payload.
    pub length: u32,
    /// A word for whoever wrote it; the engine only keeps it.
    pub tag: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    magic: U32,
    length: U32,
    generation: U64,
    device: U64,
    key: [u8; 32],
    tag: U32,
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER_SIZE);

/// Where the parts of an entry lie, counted from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryShape {
    length: u64,
}

impl EntryShape {
    /// The shape of an entry with so many bytes of payload.
    pub fn of(length: u64) -> Self {
        Self { length }
    }

    /// How many frames there are.
    pub fn frames(self) -> usize {
        usize::try_from(self.length.div_ceil(FRAME_SIZE as u64)).expect("a region fits into memory")
    }

    /// Where the payload begins.
    pub fn payload(self) -> u64 {
        HEADER_SIZE as u64 + round_up(4 * self.frames() as u64, UNIT as u64)
    }

    /// The whole, in bytes: a multiple of [`UNIT`].
    pub fn size(self) -> u64 {
        round_up(self.payload() + self.length, UNIT as u64)
    }

    /// Where the frames that hold these bytes of the payload lie, counted from the entry's beginning.
    pub fn covering(self, range: &Range<u64>) -> Range<u64> {
        let frame = FRAME_SIZE as u64;
        let start = range.start / frame * frame;
        let end = range.end.div_ceil(frame).saturating_mul(frame).min(self.length);
        self.payload() + start..self.payload() + end.max(start)
    }

    /// The shape of an entry of which only the size of the whole is known. Its payload is taken to be as long
    /// as it can be, which is less than a [`UNIT`] too long; the frames are right in any case, because a
    /// frame is a whole number of units.
    pub fn of_size(size: u64) -> Self {
        let unit = UNIT as u64;
        let mut shape = Self::of(size.saturating_sub(HEADER_SIZE as u64) / unit * unit);
        while shape.size() > size && shape.length > 0 {
            shape.length -= (shape.size() - size).min(shape.length);
        }
        // A shorter payload may have fewer checksums, which leaves room again.
        while Self::of(shape.length + unit).size() <= size {
            shape.length += unit;
        }
        shape
    }

    /// The longest payload of this shape.
    pub fn length(self) -> u64 {
        self.length
    }
}

/// The checksums of a payload's frames.
pub fn frame_checksums(payload: &[u8]) -> Vec<u32> {
    payload.chunks(FRAME_SIZE).map(crc).collect()
}

impl EntryHeader {
    /// The bytes before the payload.
    pub fn encode(&self, checksums: &[u32]) -> Vec<u8> {
        let shape = EntryShape::of(u64::from(self.length));
        assert_eq!(checksums.len(), shape.frames(), "a checksum for each frame");
        let mut raw = Raw {
            magic: MAGIC.into(),
            length: self.length.into(),
            generation: self.generation.0.into(),
            device: self.device.0.into(),
            key: self.key,
            tag: self.tag.into(),
            crc: 0.into(),
        };
        let mut head = vec![0; usize::try_from(shape.payload()).expect("fits into memory")];
        for (at, checksum) in checksums.iter().enumerate() {
            let at = HEADER_SIZE + 4 * at;
            head[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        raw.crc = crc_of_all(&[&raw.as_bytes()[..HEADER_SIZE - 4], &head[HEADER_SIZE..]]).into();
        head[..HEADER_SIZE].copy_from_slice(raw.as_bytes());
        head
    }

    /// Reads what stands before a payload. `None` if it is not the whole of a header and its checksums.
    pub fn decode(head: &[u8]) -> Option<(Self, &[[u8; 4]])> {
        let header = Self::peek(head)?;
        let shape = EntryShape::of(u64::from(header.length));
        let end = usize::try_from(shape.payload()).ok()?;
        let table = head.get(HEADER_SIZE..end)?;
        let stated = &head[HEADER_SIZE - 4..HEADER_SIZE];
        if crc_of_all(&[&head[..HEADER_SIZE - 4], table]).to_le_bytes() != *stated {
            return None;
        }
        let (checksums, _) = table.as_chunks::<4>();
        Some((header, &checksums[..shape.frames()]))
    }

    /// Reads a header that is not proved yet, to know how much has to be read to prove it.
    pub fn peek(head: &[u8]) -> Option<Self> {
        let (raw, _) = Raw::read_from_prefix(head).ok()?;
        let plausible = raw.magic.get() == MAGIC && u64::from(raw.length.get()) < REGION_SIZE_MAX;
        plausible.then(|| Self {
            device: DeviceId(raw.device.get()),
            generation: Generation(raw.generation.get()),
            key: raw.key,
            length: raw.length.get(),
            tag: raw.tag.get(),
        })
    }

    /// Whether these whole frames, the first of which has number `first`, are those that were written.
    pub fn proves(checksums: &[[u8; 4]], first: usize, frames: &[u8]) -> bool {
        let expected = checksums.get(first..).unwrap_or_default();
        frames.len().div_ceil(FRAME_SIZE) <= expected.len()
            && frames
                .chunks(FRAME_SIZE)
                .zip(expected)
                .all(|(frame, stated)| crc(frame).to_le_bytes() == *stated)
    }
}
