//! What is known of a region.

use std::{collections::VecDeque, time::Duration};

use crate::{
    arena::{Buffer, View},
    index::GroupId,
    layout::{BLOCK_SIZE, Descriptor, Generation, round_up},
};

/// A region.
#[derive(Debug)]
pub struct Region {
    /// Its life.
    pub generation: Generation,
    /// Whose it is.
    pub group: Option<GroupId>,
    /// Where in its life it is.
    pub state: RegionState,
    /// Whose its header on the device may still say it is.
    pub former: Former,
    /// Reads under way.
    pub readers: u32,
    /// Writes under way.
    pub writes: u32,
    /// Halves of the fingerprints that were written to it (see `index`).
    pub lows: Vec<u32>,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Entries that its footer lists.
    pub written: u64,
    /// How many of them turned out to be damaged.
    pub damaged: u32,
    /// Who else waits until it is free for good.
    pub also: Vec<u32>,
}

/// What a crash would bring back. Nobody minds, unless that group has been freed meanwhile: so whoever frees
/// a group waits until no header names it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// Nothing.
    Nobody,
    /// A part of this group.
    Group(GroupId),
    /// Anything: its header could not be read.
    Unknown,
}

/// Where in its life a region is.
#[derive(Debug)]
pub enum RegionState {
    /// Nobody's.
    Free,
    /// It takes entries.
    Filling(Box<Open>),
    /// It takes no more; its footer is not durable yet.
    Sealing(Box<Open>),
    /// All of it is durable.
    Sealed,
    /// It is given up; reads and writes that were under way end.
    Leaving {
        /// The request that waits until it is free for good.
        drain: Option<u32>,
    },
    /// It is not trusted.
    Quarantined {
        /// For so long.
        until: Duration,
    },
}

/// What a region has in memory while it is not sealed.
#[derive(Debug)]
pub struct Open {
    /// Where the next entry begins.
    pub fill: u64,
    /// What is in it.
    pub descriptors: Vec<Descriptor>,
    /// Whether its header is durable, so that entries may be written.
    pub header_is_durable: bool,
    /// Who waits for that, because the header before it named a group that is being freed.
    pub awaited: Vec<u32>,
    /// What is not written yet: without gaps, and the last of them ends where the next entry begins.
    pub pieces: VecDeque<Piece>,
    /// Whether nothing of its group comes after it.
    pub last: bool,
    /// Whether the sync of its entries has been asked for.
    pub syncing: bool,
    /// When it was last appended to, counted in appends.
    pub used: u64,
    /// Since when bytes wait in a piece that is not full.
    pub waits_since: Duration,
}

/// Some bytes of a region on their way to the device.
#[derive(Debug)]
pub struct Piece {
    /// Where in the region.
    pub offset: u64,
    /// The bytes.
    pub stage: Stage,
}

/// How far a piece is.
#[derive(Debug)]
pub enum Stage {
    /// So many of its bytes are there.
    Filling(Buffer, usize),
    /// It can be written.
    Ready(View),
    /// It is being written.
    Writing(View),
    /// It has been; kept for as long as one before it has not.
    Written(View),
}

impl Region {
    /// Whether its footer is on its way.
    pub(super) fn is_sealing(&self) -> bool {
        matches!(self.state, RegionState::Sealing(_))
    }

    /// One that is nobody's.
    pub fn free() -> Self {
        Self {
            generation: Generation::default(),
            group: None,
            former: Former::Nobody,
            state: RegionState::Free,
            readers: 0,
            writes: 0,
            lows: Vec::new(),
            entries: 0,
            bytes: 0,
            written: 0,
            damaged: 0,
            also: Vec::new(),
        }
    }

    /// What it has in memory, if it is not sealed yet.
    pub fn open(&self) -> Option<&Open> {
        match &self.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => Some(open),
            _ => None,
        }
    }

    pub(super) fn open_mut(&mut self) -> Option<&mut Open> {
        match &mut self.state {
            RegionState::Filling(open) | RegionState::Sealing(open) => Some(open),
            _ => None,
        }
    }
}

impl Default for Open {
    /// What a region has when it begins.
    fn default() -> Self {
        Self {
            fill: BLOCK_SIZE as u64,
            descriptors: Vec::new(),
            header_is_durable: false,
            awaited: Vec::new(),
            pieces: VecDeque::new(),
            last: false,
            syncing: false,
            used: 0,
            waits_since: Duration::ZERO,
        }
    }
}

impl Open {
    /// Where the bytes begin that are in memory only, or also.
    pub fn staged_from(&self) -> u64 {
        self.pieces.front().map_or(self.fill, |piece| piece.offset)
    }

    /// Makes what is in the last piece ready to be written, up to the end of its block.
    pub fn flush(&mut self) {
        let filling = |piece: &Piece| matches!(piece.stage, Stage::Filling(..));
        if !self.pieces.back().is_some_and(filling) {
            return;
        }
        let Some(Piece { offset, stage: Stage::Filling(mut buffer, filled) }) =
            self.pieces.pop_back()
        else {
            unreachable!("just seen")
        };
        let end = usize::try_from(round_up(filled as u64, BLOCK_SIZE as u64)).expect("in memory");
        if end > 0 {
            buffer[filled..end].fill(0);
            self.fill = offset + end as u64;
            let stage = Stage::Ready(buffer.freeze().slice(0..end));
            self.pieces.push_back(Piece { offset, stage });
        }
    }
}
