//! What was read, and the proof that it is what was written (promise 1). Proving costs more than anything
//! else a read does, so whoever wants the bytes does it, not the thread that owns the device.

use std::ops::Range;

use super::Name;
use crate::{
    arena::View,
    index::{Key, Location},
    layout::{DeviceId, EntryHeader, EntryShape, FRAME_SIZE, Generation},
};

/// Bytes that are not proved yet.
#[derive(Debug)]
pub struct Fetched {
    /// What they are said to be.
    pub name: Name,
    /// Where they were read.
    pub location: Location,
    /// In which life of the region.
    pub generation: Generation,
    pub(super) device: DeviceId,
    pub(super) key: Key,
    pub(super) range: Option<Range<u64>>,
    pub(super) parts: Vec<Part>,
}

/// Some bytes of a region.
#[derive(Debug)]
pub(super) struct Part {
    /// Where in the region they begin.
    pub offset: u64,
    pub bytes: View,
}

/// Bytes that are what was written under this name.
#[derive(Debug, Clone)]
pub struct Proved {
    /// The bytes that were asked for.
    pub bytes: View,
    /// How long the whole entry is.
    pub length: u32,
    /// The word of its writer.
    pub tag: u32,
}

/// Why bytes are not given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// They are not what was written here.
    Damaged,
    /// They are another key's that shares its place in the index.
    OtherKey,
    /// The entry is shorter.
    Range,
}

impl Fetched {
    /// Which bytes of the entry were asked for, if not all.
    pub fn range(&self) -> Option<Range<u64>> {
        self.range.clone()
    }

    /// Checks everything there is to check.
    pub fn prove(&self) -> Result<Proved, Mismatch> {
        let start = self.location.offset();
        let head = self.bytes_from(start).ok_or(Mismatch::Damaged)?;
        let (header, checksums) = EntryHeader::decode(&head).ok_or(Mismatch::Damaged)?;
        let shape = EntryShape::of(u64::from(header.length));
        let is_ours = header.device == self.device
            && header.generation == self.generation
            && shape.size() == self.location.size();
        if !is_ours {
            return Err(Mismatch::Damaged);
        }
        if header.key != self.key.0 {
            return Err(match self.name {
                Name::Key(_) => Mismatch::OtherKey,
                Name::Ordinal(..) => Mismatch::Damaged,
            });
        }
        let whole = 0..u64::from(header.length);
        let range = self.range.clone().unwrap_or(whole.clone());
        if range.end > whole.end || range.start > range.end {
            return Err(Mismatch::Range);
        }
        let covering = shape.covering(&range);
        let frames = self.bytes_from(start + covering.start).ok_or(Mismatch::Damaged)?;
        let length = usize::try_from(covering.end - covering.start).expect("in memory");
        if frames.len() < length {
            return Err(Mismatch::Damaged);
        }
        let frames = frames.slice(0..length);
        let first = usize::try_from(range.start).expect("in memory") / FRAME_SIZE;
        if !EntryHeader::proves(checksums, first, &frames) {
            return Err(Mismatch::Damaged);
        }
        let skip = usize::try_from(range.start).expect("in memory") % FRAME_SIZE;
        let wanted = usize::try_from(range.end - range.start).expect("in memory");
        let bytes =
            if wanted == 0 { frames.slice(0..0) } else { frames.slice(skip..skip + wanted) };
        Ok(Proved { bytes, length: header.length, tag: header.tag })
    }

    fn bytes_from(&self, offset: u64) -> Option<View> {
        self.parts.iter().find_map(|part| {
            let skip = usize::try_from(offset.checked_sub(part.offset)?).ok()?;
            (skip <= part.bytes.len()).then(|| part.bytes.slice(skip..part.bytes.len()))
        })
    }
}
