//! Syncs: one at a time, shared by all regions that wait for one. A sync makes durable what was
//! written before it began.

use super::{
    Purpose, RequestError, Shard, ShardAnswer,
    region::{BarrierEnd, PendingBarrier},
};
use crate::{
    format::{Generation, RegionId},
    index::GroupId,
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
    /// A region's share in a sync request.
    Barrier(u32),
}

/// A sync request of a caller.
#[derive(Debug)]
pub struct Barrier<T> {
    token: T,
    regions_left: usize,
    durable: bool,
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
            let found = &self.regions[region.0 as usize];
            let is_same = found.generation == generation;
            if let SyncTarget::Barrier(id) = target {
                let is_there = is_same && found.holds_entries();
                self.on_barrier_part(id, is_there && result.is_ok());
            }
            // The region has been given up meanwhile.
            if !is_same {
                continue;
            }
            match target {
                SyncTarget::FreeHeader => self.on_header_cleared(region, result),
                _ if result.is_err() => self.lose_region(region),
                SyncTarget::Header => self.on_header_durable(region),
                SyncTarget::Entries => self.on_entries_durable(region),
                SyncTarget::Footer => self.on_footer_durable(region),
                SyncTarget::Barrier(_) => {}
            }
        }
    }

    /// Writes the entries of a group that have been staged so far, or makes them durable. A scan
    /// finds them after a restart, so their region need not be sealed.
    pub(super) fn begin_barrier(&mut self, token: T, group: GroupId, until: BarrierEnd) {
        let Some(group) = self.groups.get(&group) else {
            return self.answers.push((token, Err(RequestError::Gone)));
        };
        let has_entries = |id: &RegionId| {
            let open = self.regions[id.0 as usize].open();
            open.is_some_and(|open| !open.descriptors.is_empty())
        };
        let regions: Vec<RegionId> = if group.is_ephemeral() && until == BarrierEnd::Durable {
            Vec::new()
        } else {
            group.regions.iter().copied().filter(has_entries).collect()
        };
        let id = self.barriers_begun;
        self.barriers_begun = self.barriers_begun.wrapping_add(1);
        // Counts one more than the regions, so that it cannot end before all of them have begun.
        let barrier = Barrier { token, regions_left: regions.len() + 1, durable: true };
        self.barriers.insert(id, barrier);
        for region in regions {
            let open = self.region(region).open_mut().expect("just seen");
            open.flush();
            let end = open.fill;
            open.barriers.push(PendingBarrier { id, end, until });
            self.write_staged(region);
        }
        self.on_barrier_part(id, true);
    }

    /// One region less to wait for.
    pub(super) fn on_barrier_part(&mut self, id: u32, durable: bool) {
        let barrier = self.barriers.get_mut(&id).expect("kept until it is answered");
        barrier.regions_left -= 1;
        barrier.durable &= durable;
        if barrier.regions_left == 0 {
            let Barrier { token, durable, .. } = self.barriers.remove(&id).expect("just seen");
            let outcome = if durable { Ok(ShardAnswer::Done) } else { Err(RequestError::Failed) };
            self.answers.push((token, outcome));
        }
    }
}
