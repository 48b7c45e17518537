//! Regions: a shard's record of each region of the device.

use std::{collections::VecDeque, time::Duration};

use crate::{
    buffers::{Buffer, View},
    format::{BLOCK_SIZE, Descriptor, Generation, round_up},
    index::GroupId,
};

/// A region.
#[derive(Debug)]
pub struct Region {
    /// Number of its current use.
    pub generation: Generation,
    /// The group that owns it.
    pub group: Option<GroupId>,
    /// Its state.
    pub state: RegionState,
    /// The group that its header on the device may still name.
    pub header_owner: HeaderOwner,
    /// Reads in progress.
    pub readers: u32,
    /// Writes in progress.
    pub writes: u32,
    /// Lower fingerprint halves of the keys that were written to it (see `index`).
    pub lows: Vec<u32>,
    /// Entries that are indexed.
    pub entries: u64,
    /// Payload bytes of these entries.
    pub bytes: u64,
    /// Entries listed in its footer.
    pub footer_entries: u64,
    /// Damaged entries found so far.
    pub damaged: u32,
    /// Whether its group has released entries of it, so that it is freed when none is left.
    pub released: bool,
    /// Further drains that wait until it is durably free.
    pub more_drains: Vec<u32>,
}

/// The group that a crash would restore to this region. That is harmless unless the group has been
/// freed, so freeing a group waits until no header names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderOwner {
    /// No group.
    None,
    /// This group.
    Group(GroupId),
    /// Any group: the header could not be read.
    Unknown,
}

/// State of a region.
#[derive(Debug)]
pub enum RegionState {
    /// Owned by no group.
    Free,
    /// Accepts entries.
    Filling(Box<OpenRegion>),
    /// Accepts no entries; its footer is not durable yet.
    Sealing(Box<OpenRegion>),
    /// Durable and immutable.
    Sealed,
    /// Given up; waits for reads and writes in progress.
    Freeing {
        /// The drain that waits until the region is durably free.
        drain: Option<u32>,
    },
    /// Not used for a while, because of damage.
    Quarantined {
        /// End of the quarantine.
        until: Duration,
    },
}

/// In-memory state of a region that is not sealed.
#[derive(Debug)]
pub struct OpenRegion {
    /// Offset of the next entry.
    pub fill: u64,
    /// The region's entries.
    pub descriptors: Vec<Descriptor>,
    /// Whether the header is durable, so that entries may be written.
    pub header_is_durable: bool,
    /// Drains that wait for that, because the previous header names their group.
    pub header_waiters: Vec<u32>,
    /// Bytes that are not written yet, without gaps. The last write ends at `fill`.
    pub staged_writes: VecDeque<StagedWrite>,
    /// Whether the group ends with this region.
    pub last: bool,
    /// Whether the sync of its entries has been requested.
    pub sync_requested: bool,
    /// Number of the last append to it.
    pub last_append: u64,
    /// Time since which a partly filled write waits.
    pub waiting_since: Duration,
    /// Sync requests that wait until the bytes before them are written.
    pub barriers: Vec<PendingBarrier>,
}

/// A sync request's share in one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingBarrier {
    /// The request.
    pub id: u32,
    /// End of the bytes that it covers.
    pub end: u64,
    /// What it waits for.
    pub until: BarrierEnd,
}

/// What a sync request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarrierEnd {
    /// The bytes are on the device.
    Written,
    /// They survive a loss of power.
    Durable,
}

/// Bytes of a region on their way to the device.
#[derive(Debug)]
pub struct StagedWrite {
    /// Offset in the region.
    pub offset: u64,
    /// The bytes and their state.
    pub state: WriteState,
}

/// State of a staged write.
#[derive(Debug)]
pub enum WriteState {
    /// Partly filled; the number is the bytes filled.
    Filling(Buffer, usize),
    /// Ready to be written.
    Ready(View),
    /// Being written.
    Writing(View),
    /// Written; kept until all writes before it are written too.
    Written(View),
}

impl Region {
    /// Whether its footer is not durable yet.
    pub(super) fn is_sealing(&self) -> bool {
        matches!(self.state, RegionState::Sealing(_))
    }

    /// Whether it belongs to a group that has not given it up.
    pub(super) fn holds_entries(&self) -> bool {
        self.open().is_some() || matches!(self.state, RegionState::Sealed)
    }

    /// A free region.
    pub fn free() -> Self {
        Self {
            generation: Generation::default(),
            group: None,
            header_owner: HeaderOwner::None,
            state: RegionState::Free,
            readers: 0,
            writes: 0,
            lows: Vec::new(),
            entries: 0,
            bytes: 0,
            footer_entries: 0,
            damaged: 0,
            released: false,
            more_drains: Vec::new(),
        }
    }

    /// Its in-memory state, if it is not sealed.
    pub fn open(&self) -> Option<&OpenRegion> {
        match &self.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => Some(open),
            _ => None,
        }
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut OpenRegion> {
        match &mut self.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => Some(open),
            _ => None,
        }
    }
}

impl Default for OpenRegion {
    /// State of a new region.
    fn default() -> Self {
        Self {
            fill: BLOCK_SIZE as u64,
            descriptors: Vec::new(),
            header_is_durable: false,
            header_waiters: Vec::new(),
            staged_writes: VecDeque::new(),
            last: false,
            sync_requested: false,
            last_append: 0,
            waiting_since: Duration::ZERO,
            barriers: Vec::new(),
        }
    }
}

impl OpenRegion {
    /// Offset from which all bytes are in memory.
    pub fn staged_from(&self) -> u64 {
        self.staged_writes.front().map_or(self.fill, |staged| staged.offset)
    }

    /// Makes the last, partly filled write ready, padded to a whole block.
    pub fn flush(&mut self) {
        let filling = |staged: &StagedWrite| matches!(staged.state, WriteState::Filling(..));
        if !self.staged_writes.back().is_some_and(filling) {
            return;
        }
        let Some(StagedWrite { offset, state: WriteState::Filling(mut buffer, filled) }) =
            self.staged_writes.pop_back()
        else {
            unreachable!("just seen")
        };
        let end = usize::try_from(round_up(filled as u64, BLOCK_SIZE as u64)).expect("in memory");
        if end > 0 {
            buffer[filled..end].fill(0);
            self.fill = offset + end as u64;
            let state = WriteState::Ready(buffer.freeze().slice(0..end));
            self.staged_writes.push_back(StagedWrite { offset, state });
        }
    }
}
