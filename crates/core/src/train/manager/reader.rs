//! A job that reads the dataset, as its manager knows it.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use super::pieces::Pieces;
use crate::{ByteSize, benefit::Benefit, chunking::ChunkOrdinal, placement, units::ByteRate};

/// What a job says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// What people call it.
    pub name: String,
    /// How many GPUs it keeps waiting.
    pub gpus: u32,
    /// How many mini-batches an epoch has.
    pub epoch_batches: u64,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub who: Who,
    pub benefit: Benefit,
    pub pace: ByteRate,
    /// When it was last heard of.
    pub heard_at: Duration,
    /// What it has yet to draw of each piece,
    unread: Vec<ByteSize>,
    /// and the pieces of which it has yet to yield something.
    unyielded: BTreeSet<u32>,
    /// Pieces of which it has nothing left to fetch.
    pub filled: BTreeSet<u32>,
    /// Chunks that it was told to draw from, and those that it does.
    pub told: BTreeSet<ChunkOrdinal>,
    pub referenced: BTreeSet<ChunkOrdinal>,
}

impl Reader {
    pub fn new(who: Who, pieces: &Pieces) -> Self {
        let mut reader = Self {
            benefit: Benefit::new(who.epoch_batches),
            who,
            pace: ByteRate(ByteSize(0)),
            heard_at: Duration::ZERO,
            unread: Vec::new(),
            unyielded: BTreeSet::new(),
            filled: BTreeSet::new(),
            told: BTreeSet::new(),
            referenced: BTreeSet::new(),
        };
        reader.begin(pieces, &[]);
        reader
    }

    /// Everything is unread, but for what is said.
    pub fn begin(&mut self, pieces: &Pieces, unread: &[(u32, ByteSize)]) {
        self.unread = (0..pieces.count()).filter_map(|piece| pieces.size(piece)).collect();
        self.referenced.clear();
        self.filled.clear();
        self.drawn(unread);
        let unread = (0_u32..).zip(&self.unread);
        self.unyielded =
            unread.filter(|(_, unread)| unread.0 > 0).map(|(piece, _)| piece).collect();
    }

    /// What is unread of some pieces now.
    pub fn drawn(&mut self, unread: &[(u32, ByteSize)]) {
        for (piece, unread) in unread {
            self.unread[*piece as usize] = *unread;
        }
    }

    pub fn unread_of(&self, piece: u32) -> ByteSize {
        self.unread[piece as usize]
    }

    /// What is unread of all pieces of a chunk.
    pub fn unread(&self, pieces: &Pieces, chunk: ChunkOrdinal) -> ByteSize {
        let unread = pieces.of(chunk).map(|piece| self.unread_of(piece).0);
        ByteSize(unread.fold(0, u64::saturating_add))
    }

    /// The last item of a piece was yielded. Says whether that was the last of its chunk, which it drew
    /// from.
    pub fn finish(&mut self, pieces: &Pieces, piece: u32) -> Option<ChunkOrdinal> {
        self.unyielded.remove(&piece);
        let chunk = pieces.holder_of(piece);
        let is_over = self.unyielded.range(pieces.of(chunk)).next().is_none();
        (is_over && self.referenced.remove(&chunk)).then_some(chunk)
    }

    /// Chunks are cut otherwise from now on.
    pub fn recut(&mut self) {
        self.told.clear();
        self.referenced.clear();
        self.filled.clear();
    }

    /// A chunk is there no more, or comes anew.
    pub fn lose(&mut self, chunk: ChunkOrdinal, pieces: Range<u32>) {
        self.told.remove(&chunk);
        self.referenced.remove(&chunk);
        pieces.for_each(|piece| {
            self.filled.remove(&piece);
        });
    }

    /// Whether nothing has to be fetched of a piece for it.
    pub fn needs_nothing_of(&self, piece: u32) -> bool {
        self.unread_of(piece).0 == 0 || self.filled.contains(&piece)
    }

    /// Whether it has drawn all of a piece, and was not given all of it.
    pub fn awaits(&self, piece: u32) -> bool {
        self.unread_of(piece).0 == 0 && self.unyielded.contains(&piece)
    }

    /// As placement sees it.
    pub fn wish(&self) -> placement::Job {
        placement::Job {
            name: self.who.name.clone(),
            gpus: self.who.gpus,
            times: self.benefit.times(),
        }
    }
}
