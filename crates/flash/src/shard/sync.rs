//! Syncs: one at a time, shared by all regions that wait for one. A sync makes durable what was
//! written before it began.

use super::{Purpose, Shard};
use crate::{
    format::{Generation, RegionId},
    io::{IoCommand, IoFault},
};

/// What a sync makes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncTarget {
    /// A region's header, so that entries may be written.
    Header,
    /// A region's entries, so that the footer may be written.
    Entries,
    /// A region's footer, which seals it.
    Footer,
    /// The header that says that a region is free.
    FreeHeader,
}

/// A region that waits for a sync.
#[derive(Debug, Clone, Copy)]
struct SyncWaiter {
    target: SyncTarget,
    region: RegionId,
    generation: Generation,
}

/// Regions covered by the running sync, and those that wait for the next.
#[derive(Debug, Default)]
pub struct SyncQueue {
    is_running: bool,
    covered: Vec<SyncWaiter>,
    waiting: Vec<SyncWaiter>,
}

impl<T> Shard<T> {
    /// Requests a sync that begins after this call.
    pub(super) fn request_sync(&mut self, target: SyncTarget, region: RegionId) {
        let generation = self.regions[region.0 as usize].generation;
        self.syncs.waiting.push(SyncWaiter { target, region, generation });
    }

    pub(super) fn pump_syncs(&mut self) {
        if !self.syncs.is_running && !self.syncs.waiting.is_empty() {
            self.syncs.is_running = true;
            self.syncs.covered = std::mem::take(&mut self.syncs.waiting);
            let id = self.begin(Purpose::Sync);
            self.commands.push(IoCommand::Sync { id });
        }
    }

    pub(super) fn on_synced(&mut self, result: Result<(), IoFault>) {
        self.syncs.is_running = false;
        for SyncWaiter { target, region, generation } in std::mem::take(&mut self.syncs.covered) {
            // The region has been given up meanwhile.
            if self.regions[region.0 as usize].generation != generation {
                continue;
            }
            match target {
                SyncTarget::FreeHeader => self.on_header_cleared(region, result),
                _ if result.is_err() => self.lose_region(region),
                SyncTarget::Header => self.on_header_durable(region),
                SyncTarget::Entries => self.on_entries_durable(region),
                SyncTarget::Footer => self.on_footer_durable(region),
            }
        }
    }
}
