//! Entries: a header that identifies the bytes, a checksum for each frame, and the payload.
//!
//! With one checksum per frame, a range can be verified without reading the rest.

use std::ops::Range;

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{DeviceId, Generation, REGION_SIZE_MAX, UNIT, crc, crc_of_all, round_up};

/// Size of a header without the frame checksums.
pub const HEADER_SIZE: usize = 64;
/// Bytes of payload covered by one checksum.
pub const FRAME_SIZE: usize = 16 << 10;

const MAGIC: u32 = u32::from_le_bytes(*b"fbEN");

/// Header of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// The device that the entry was written to.
    pub device: DeviceId,
    /// The generation of the region that the entry was written to.
    pub generation: Generation,
    /// The entry's key.
    pub key: [u8; 32],
    /// Length of the payload in bytes.
    pub length: u32,
    /// The writer's tag. The engine stores it without interpreting it.
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

/// Offsets of an entry's parts, relative to its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryShape {
    length: u64,
}

impl EntryShape {
    /// Shape of an entry with a payload of `length` bytes.
    pub fn of(length: u64) -> Self {
        Self { length }
    }

    /// Number of frames.
    pub fn frames(self) -> usize {
        usize::try_from(self.length.div_ceil(FRAME_SIZE as u64)).expect("a region fits into memory")
    }

    /// Offset of the payload.
    pub fn payload(self) -> u64 {
        HEADER_SIZE as u64 + round_up(4 * self.frames() as u64, UNIT as u64)
    }

    /// Size of the whole entry: a multiple of [`UNIT`].
    pub fn size(self) -> u64 {
        round_up(self.payload() + self.length, UNIT as u64)
    }

    /// Offsets of the frames that cover a range of the payload.
    pub fn covering(self, range: &Range<u64>) -> Range<u64> {
        let frame = FRAME_SIZE as u64;
        let start = range.start / frame * frame;
        let end = range.end.div_ceil(frame).saturating_mul(frame).min(self.length);
        self.payload() + start..self.payload() + end.max(start)
    }

    /// Shape of an entry whose total size alone is known. The payload is assumed to be as long as
    /// possible, which is less than one [`UNIT`] too long. The number of frames is exact, because a
    /// frame is a whole number of units.
    pub fn of_size(size: u64) -> Self {
        let unit = UNIT as u64;
        let mut shape = Self::of(size.saturating_sub(HEADER_SIZE as u64) / unit * unit);
        while shape.size() > size && shape.length > 0 {
            shape.length -= (shape.size() - size).min(shape.length);
        }
        // A shorter payload may need fewer checksums, which leaves room again.
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

/// Copies one frame. Returns its checksum.
pub fn copy_frame(to: &mut [u8], from: &[u8]) -> u32 {
    to.copy_from_slice(from);
    crc(to)
}

impl EntryHeader {
    /// Encodes header and frame checksums: everything before the payload.
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

    /// Decodes header and frame checksums. `None` if they are invalid or incomplete.
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

    /// Decodes a header without its checksum, to learn how many bytes the checksum covers.
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

    /// Whether these whole frames, beginning with frame `first`, match their checksums.
    pub fn frames_match(checksums: &[[u8; 4]], first: usize, frames: &[u8]) -> bool {
        let expected = checksums.get(first..).unwrap_or_default();
        frames.len().div_ceil(FRAME_SIZE) <= expected.len()
            && frames
                .chunks(FRAME_SIZE)
                .zip(expected)
                .all(|(frame, stated)| crc(frame).to_le_bytes() == *stated)
    }
}
