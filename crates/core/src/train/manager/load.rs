//! Progress of loading a chunk.
//!
//! Rotation gets an update for each sixteenth of a chunk. The last update before completion, and a
//! load of almost nothing, are left out. So rotation estimates loads as slightly longer than they
//! are, and starts them slightly early. With exact times the next chunk would arrive just when the
//! last item is drawn, and any delay would be a miss (one read in a hundred in the scenario
//! `uneven-jobs`).

use crate::ByteSize;

/// Updates that rotation gets per chunk.
const UPDATES_PER_CHUNK: u64 = 16;

/// A chunk that is being loaded.
#[derive(Debug, Default)]
pub(super) struct Load {
    arrived: u64,
    updated: u64,
}

impl Load {
    /// `bytes` more of a chunk of `size` have arrived. Returns the total, if rotation is to get an
    /// update.
    pub fn on_arrived(&mut self, bytes: ByteSize, size: ByteSize) -> Option<ByteSize> {
        self.arrived = self.arrived.saturating_add(bytes.0).min(size.0);
        let is_update = self.arrived - self.updated > size.0 / UPDATES_PER_CHUNK;
        is_update.then(|| {
            self.updated = self.arrived;
            ByteSize(self.arrived)
        })
    }

    /// Whether all of a chunk of this size has arrived. Then no job has to report that it needs no
    /// more of it; a slow job would report it late.
    pub fn is_whole(&self, size: ByteSize) -> bool {
        self.arrived >= size.0
    }
}
