//! Extents: where entries lie on a device, for processes that read it by themselves.
//!
//! An extent may be outdated when it is used: its region may have been freed and filled again. The
//! entry has its own key and generation, so such a read fails verification (promise 1).

use std::ops::Range;

use crate::{
    format::{BLOCK_SIZE, Generation, Geometry, round_down, round_up},
    index::{EntryKey, Location},
};

/// The place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The entry's key.
    pub key: EntryKey,
    /// Region, offset and size.
    pub location: Location,
    /// Generation of the region.
    pub generation: Generation,
}

impl Extent {
    /// The bytes of the device to read, in whole blocks.
    pub fn blocks(&self, geometry: &Geometry) -> Range<u64> {
        let region = geometry.region_offset(self.location.region());
        let (start, block) = (self.location.offset(), BLOCK_SIZE as u64);
        let end = start + self.location.size();
        region + round_down(start, block)..region + round_up(end, block)
    }
}
