//! One sync at a time, for all who wait for one: what is durable is what was written before it began.

use super::{Purpose, Shard};
use crate::{
    io::{Command, Fault},
    layout::{Generation, RegionId},
};

/// What becomes durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// A region's header: entries may be written.
    Header,
    /// Its entries: the footer may be written.
    Entries,
    /// Its footer: it is sealed.
    Footer,
    /// The header that says it is free.
    Freed,
}

/// Who waits for which sync.
#[derive(Debug, Default)]
pub struct Syncs {
    is_running: bool,
    covered: Vec<(Durable, RegionId, Generation)>,
    waiting: Vec<(Durable, RegionId, Generation)>,
}

impl<T> Shard<T> {
    /// Asks for a sync that begins from now on.
    pub(super) fn make_durable(&mut self, what: Durable, region: RegionId) {
        let generation = self.regions[region.0 as usize].generation;
        self.syncs.waiting.push((what, region, generation));
    }

    pub(super) fn pump_syncs(&mut self) {
        if !self.syncs.is_running && !self.syncs.waiting.is_empty() {
            self.syncs.is_running = true;
            self.syncs.covered = std::mem::take(&mut self.syncs.waiting);
            let id = self.begin(Purpose::Sync);
            self.commands.push(Command::Sync { id });
        }
    }

    pub(super) fn synced(&mut self, result: Result<(), Fault>) {
        self.syncs.is_running = false;
        for (what, id, generation) in std::mem::take(&mut self.syncs.covered) {
            // Given up meanwhile: nobody waits for it.
            if self.regions[id.0 as usize].generation != generation {
                continue;
            }
            match what {
                Durable::Freed => self.freed(id, result),
                _ if result.is_err() => self.lose_region(id),
                Durable::Header => self.header_durable(id),
                Durable::Entries => self.entries_durable(id),
                Durable::Footer => self.footer_durable(id),
            }
        }
    }
}
