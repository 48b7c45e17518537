//! A reader: the manager's state of one job that reads the dataset.

use std::{collections::BTreeSet, time::Duration};

use super::{HalfChunkBytes, half_chunks::HalfChunks};
use crate::{
    ByteSize, HalfChunk, HalfChunkRange,
    dataset::chunking::ChunkOrdinal,
    train::{benefit::Benefit, placement},
    units::ByteRate,
};

/// What a job states when it joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobProfile {
    /// The job's name.
    pub name: String,
    /// GPUs that wait when the job waits.
    pub gpus: u32,
    /// Mini-batches of an epoch.
    pub epoch_batches: u64,
}

#[derive(Debug)]
pub(super) struct DatasetReader {
    pub profile: JobProfile,
    pub benefit: Benefit,
    pub pace: ByteRate,
    /// Time of the last event of the job.
    pub last_event_at: Duration,
    /// Bytes that the job has yet to draw of each half-chunk.
    unread: Vec<ByteSize>,
    /// Half-chunks of which it has yet to yield items.
    unyielded: BTreeSet<HalfChunk>,
    /// Half-chunks of which it has nothing left to fetch.
    pub filled: BTreeSet<HalfChunk>,
    /// Chunks of its draw set, and those of them that it has drawn from.
    pub offered: BTreeSet<ChunkOrdinal>,
    pub referenced: BTreeSet<ChunkOrdinal>,
}

impl DatasetReader {
    pub fn new(profile: JobProfile, half_chunks: &HalfChunks) -> Self {
        let mut reader = Self {
            benefit: Benefit::new(profile.epoch_batches),
            profile,
            pace: ByteRate(ByteSize(0)),
            last_event_at: Duration::ZERO,
            unread: Vec::new(),
            unyielded: BTreeSet::new(),
            filled: BTreeSet::new(),
            offered: BTreeSet::new(),
            referenced: BTreeSet::new(),
        };
        reader.begin_epoch(half_chunks, &[]);
        reader
    }

    /// Starts an epoch: everything is unread, except as `unread` states.
    pub fn begin_epoch(&mut self, half_chunks: &HalfChunks, unread: &[HalfChunkBytes]) {
        self.unread = half_chunks.sizes().to_vec();
        self.referenced.clear();
        self.filled.clear();
        self.drawn(unread);
        let unread = half_chunks.all().into_iter().zip(&self.unread);
        self.unyielded =
            unread.filter(|(_, unread)| unread.0 > 0).map(|(half_chunk, _)| half_chunk).collect();
    }

    /// Sets what is unread of some half-chunks.
    pub fn drawn(&mut self, unread: &[HalfChunkBytes]) {
        for HalfChunkBytes { half_chunk, bytes } in unread {
            self.unread[half_chunk.index()] = *bytes;
        }
    }

    pub fn unread_of(&self, half_chunk: HalfChunk) -> ByteSize {
        self.unread[half_chunk.index()]
    }

    /// Bytes that are unread of a chunk.
    pub fn unread(&self, half_chunks: &HalfChunks, chunk: ChunkOrdinal) -> ByteSize {
        let unread =
            half_chunks.of(chunk).into_iter().map(|half_chunk| self.unread_of(half_chunk).0);
        ByteSize(unread.fold(0, u64::saturating_add))
    }

    /// The last item of a half-chunk was yielded. Returns its chunk, if that was the last of a
    /// chunk that the job has drawn from.
    pub fn on_half_chunk_done(
        &mut self,
        half_chunks: &HalfChunks,
        half_chunk: HalfChunk,
    ) -> Option<ChunkOrdinal> {
        self.unyielded.remove(&half_chunk);
        let chunk = half_chunks.chunk_of(half_chunk);
        let of = half_chunks.of(chunk);
        let is_over = self.unyielded.range(of.start..of.end).next().is_none();
        (is_over && self.referenced.remove(&chunk)).then_some(chunk)
    }

    /// Half-chunks are grouped into other chunks from now on.
    pub fn on_regrouped(&mut self) {
        self.offered.clear();
        self.referenced.clear();
        self.filled.clear();
    }

    /// A chunk was evicted, or is loaded again.
    pub fn on_chunk_lost(&mut self, chunk: ChunkOrdinal, half_chunks: HalfChunkRange) {
        self.offered.remove(&chunk);
        self.referenced.remove(&chunk);
        for half_chunk in half_chunks {
            self.filled.remove(&half_chunk);
        }
    }

    /// Whether nothing of a half-chunk has to be fetched for this job.
    pub fn needs_nothing_of(&self, half_chunk: HalfChunk) -> bool {
        self.unread_of(half_chunk).0 == 0 || self.filled.contains(&half_chunk)
    }

    /// Whether the job has drawn all of a half-chunk and not yielded all of it.
    pub fn has_in_flight(&self, half_chunk: HalfChunk) -> bool {
        self.unread_of(half_chunk).0 == 0 && self.unyielded.contains(&half_chunk)
    }

    /// The job, as placement weighs it.
    pub fn demand(&self) -> placement::JobDemand {
        placement::JobDemand {
            name: self.profile.name.clone(),
            gpus: self.profile.gpus,
            times: self.benefit.times(),
        }
    }
}
