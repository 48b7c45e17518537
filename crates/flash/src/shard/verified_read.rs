//! Verification of reads: the check that bytes are what was written (promise 1). Checksums are the
//! largest cost of a read, so the caller verifies on its own thread, not on the device's.

use std::ops::Range;

use super::EntryName;
use crate::{
    buffers::View,
    extent::Extent,
    format::{BLOCK_SIZE, DeviceId, EntryHeader, EntryShape, FRAME_SIZE, Generation, round_down},
    index::{EntryKey, Location},
};

/// A completed read that has not been verified.
#[derive(Debug)]
pub struct UnverifiedRead {
    /// The requested entry.
    pub name: EntryName,
    /// Location that was read.
    pub location: Location,
    /// Generation of the region when the read began.
    pub generation: Generation,
    pub(super) device: DeviceId,
    pub(super) key: EntryKey,
    pub(super) range: Option<Range<u64>>,
    pub(super) parts: Vec<Part>,
}

/// Bytes of a region.
#[derive(Debug)]
pub(super) struct Part {
    /// Offset in the region.
    pub offset: u64,
    pub bytes: View,
}

/// A verified read: the bytes that were written under this name.
#[derive(Debug, Clone)]
pub struct VerifiedRead {
    /// The requested bytes.
    pub bytes: View,
    /// Length of the whole payload.
    pub length: u32,
    /// The writer's tag.
    pub tag: u32,
}

/// Why a read failed verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// The bytes differ from what was written.
    Damaged,
    /// The bytes belong to another key with the same fingerprint.
    OtherKey,
    /// The range exceeds the entry.
    Range,
}

impl UnverifiedRead {
    /// The requested range; `None` for the whole entry.
    pub fn range(&self) -> Option<Range<u64>> {
        self.range.clone()
    }

    /// A whole entry that another process has read: the blocks of `extent`.
    pub fn of_extent(extent: &Extent, device: DeviceId, blocks: View) -> Self {
        let Extent { key, location, generation } = *extent;
        let offset = round_down(location.offset(), BLOCK_SIZE as u64);
        let parts = vec![Part { offset, bytes: blocks }];
        let name = EntryName::Key(key);
        Self { name, location, generation, device, key, range: None, parts }
    }

    /// Checks device, generation, key, size and frame checksums.
    pub fn verify(&self) -> Result<VerifiedRead, Mismatch> {
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
                EntryName::Key(_) => Mismatch::OtherKey,
                EntryName::Ordinal(..) => Mismatch::Damaged,
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
        if !EntryHeader::frames_match(checksums, first, &frames) {
            return Err(Mismatch::Damaged);
        }
        let skip = usize::try_from(range.start).expect("in memory") % FRAME_SIZE;
        let wanted = usize::try_from(range.end - range.start).expect("in memory");
        let bytes =
            if wanted == 0 { frames.slice(0..0) } else { frames.slice(skip..skip + wanted) };
        Ok(VerifiedRead { bytes, length: header.length, tag: header.tag })
    }

    fn bytes_from(&self, offset: u64) -> Option<View> {
        self.parts.iter().find_map(|part| {
            let skip = usize::try_from(offset.checked_sub(part.offset)?).ok()?;
            (skip <= part.bytes.len()).then(|| part.bytes.slice(skip..part.bytes.len()))
        })
    }
}
