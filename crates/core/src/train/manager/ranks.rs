//! Ranks: the processes among which a job divides its epochs, merged into one job.
//!
//! Each rank reports about its own share of every half-chunk. As separate jobs, ranks would seem to
//! share what they never share, and chunks would rotate for a job that is alone. So the manager
//! gets one report for all ranks:
//!
//! - **Unread** is the sum over ranks. The first rank that begins an epoch begins it for the job. A
//!   rank that has not begun it yet counts with an equal share of everything.
//! - A half-chunk is **released** or **filled** when it is so for every rank.
//! - **Times** are those of the lowest rank: ranks compute in step, so one of them measures the
//!   job. A probe is for all ranks at once, or those that hit would wait for those that miss.
//!
//! A rank that joins or comes back changes the incarnation of the job, which then joins again with
//! what all its ranks have not read. A rank without a report for a lease is forgotten.
//!
//! A rank states which one it is in the name under which it reports ([`JobRank::of_name`]), so no
//! message differs: an older node sees a job per rank, and ranks of older clients are jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{HalfChunkBytes, Report};
use crate::{
    ByteSize, HalfChunk,
    dataset::chunking::ChunkOrdinal,
    train::rotation::{InvalidEvent, JobNumber},
    units::ByteRate,
    util::stable_hash::mix,
};

/// One of the ranks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobRank {
    /// Its number, from 0.
    pub rank: u32,
    /// Number of ranks of the job: at least two.
    pub ranks: u32,
}

impl JobRank {
    /// Rank `rank` of `ranks`; `None` if a job of one process needs no rank, or has no such rank.
    pub fn new(rank: u32, ranks: u32) -> Option<Self> {
        (ranks >= 2 && rank < ranks).then_some(Self { rank, ranks })
    }

    /// The job and the rank of a name such as `training.3of8`; `None` for the name of a job of one
    /// process.
    pub fn of_name(name: &str) -> Option<(&str, Self)> {
        let (job, rank) = name.rsplit_once('.')?;
        let (rank, ranks) = rank.split_once("of")?;
        let number = |text: &str| -> Option<u32> {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let rank = Self::new(number(rank)?, number(ranks)?)?;
        (!job.is_empty()).then_some((job, rank))
    }
}

/// The ranks of one job.
#[derive(Debug, Default)]
pub(super) struct JobRanks {
    ranks: BTreeMap<u32, RankState>,
    /// Epochs that the job has begun.
    epoch: u64,
    /// Number of times that a rank has joined.
    joined: u64,
    /// What is unread of each half-chunk, as last merged.
    merged: Vec<u64>,
    /// Ranks that have nothing left to fetch of a half-chunk that is being loaded.
    filled: BTreeMap<HalfChunk, BTreeSet<u32>>,
}

#[derive(Debug)]
struct RankState {
    incarnation: u64,
    /// Its number of the epoch, and the epoch of the job that it has begun.
    epoch: u64,
    job_epoch: u64,
    /// Unread bytes of each half-chunk.
    unread: Vec<u64>,
    /// Half-chunks of which it has yet to yield items.
    unyielded: BTreeSet<HalfChunk>,
    pace: ByteRate,
    gpus: u32,
    reported_at: Duration,
    /// Mini-batches that are to miss, which no answer to the rank has named.
    probe_batches: u32,
}

/// A report of a rank, merged with those of the others.
#[derive(Debug)]
pub(super) struct MergedReport {
    pub report: Report,
    /// The incarnation of the rank that this one replaces.
    pub replaced: Option<u64>,
}

impl JobRanks {
    /// Merges the report of a rank. `None` if the rank has to send a full report first.
    pub fn merge(
        &mut self,
        now: Duration,
        lease: Duration,
        sizes: &[ByteSize],
        rank: JobRank,
        report: &Report,
        is_loading: impl Fn(HalfChunk) -> bool,
    ) -> Result<Option<MergedReport>, InvalidEvent> {
        let JobRank { rank, ranks } = rank;
        self.ranks.retain(|number, state| {
            *number < ranks && state.reported_at.saturating_add(lease) > now
        });
        let known = self.ranks.get(&rank).filter(|known| known.incarnation == report.incarnation);
        let is_same_epoch = known.is_some_and(|known| known.epoch == report.epoch);
        if !is_same_epoch && !report.is_full {
            return Ok(None);
        }
        let replaced = self.ranks.get(&rank).map(|state| state.incarnation);
        let replaced = replaced.filter(|incarnation| *incarnation != report.incarnation);
        let is_known = known.is_some();
        let unread = match known.filter(|_| is_same_epoch) {
            Some(known) => changed(rank, &known.unread, report)?,
            None => changed(rank, &sizes.iter().map(|size| size.0).collect::<Vec<_>>(), report)?,
        };
        if !is_same_epoch {
            let job_epoch = match self.ranks.get(&rank) {
                // The first rank to begin its next epoch begins that of the job.
                Some(known) if is_known => known.job_epoch + 1,
                _ => self.epoch,
            };
            let unyielded = HalfChunk::all(u32::try_from(unread.len()).expect("half-chunks"))
                .into_iter()
                .zip(&unread)
                .filter(|(_, unread)| **unread > 0)
                .map(|(half_chunk, _)| half_chunk)
                .collect();
            let probe_batches = self.ranks.get(&rank).map_or(0, |known| known.probe_batches);
            self.ranks.insert(
                rank,
                RankState {
                    incarnation: report.incarnation,
                    epoch: report.epoch,
                    job_epoch,
                    unread: Vec::new(),
                    unyielded,
                    pace: report.pace,
                    gpus: report.gpus,
                    reported_at: now,
                    probe_batches,
                },
            );
        }
        let state = self.ranks.get_mut(&rank).expect("known or inserted");
        (state.unread, state.pace, state.reported_at) = (unread, report.pace, now);
        for half_chunk in &report.released {
            state.unyielded.remove(half_chunk);
        }
        let begins = state.job_epoch > self.epoch;
        self.epoch = self.epoch.max(state.job_epoch);
        // What a job has not read grows when it joins, and when it begins an epoch.
        self.joined += u64::from(!is_known);
        if begins || !is_known {
            self.merged = sizes.iter().map(|size| size.0).collect();
        }
        let is_full = report.is_full && (begins || !is_known || is_same_epoch);
        self.filled.retain(|half_chunk, _| is_loading(*half_chunk));
        for half_chunk in &report.filled {
            self.filled.entry(*half_chunk).or_default().insert(rank);
        }
        let unread = self.merge_unread(sizes, ranks, is_full);
        let lead = self.ranks.keys().next().copied();
        let pace = self.ranks.values().map(|state| state.pace.0.0).fold(0, u64::saturating_add);
        let merged = Report {
            incarnation: self.incarnation(),
            gpus: self.ranks.values().map(|state| state.gpus).max().unwrap_or(report.gpus),
            epoch_batches: report.epoch_batches,
            epoch: self.epoch,
            pace: ByteRate(ByteSize(pace)),
            is_full,
            unread,
            released: self.released_by_all(&report.released),
            filled: self.filled_by_all(),
            batches: if lead == Some(rank) { report.batches.clone() } else { Vec::new() },
        };
        Ok(Some(MergedReport { report: merged, replaced }))
    }

    /// A probe of this number of mini-batches begins. Returns the number that `rank` is to miss
    /// now.
    pub fn take_probe(&mut self, rank: u32, batches: u32) -> u32 {
        for state in self.ranks.values_mut() {
            state.probe_batches = state.probe_batches.saturating_add(batches);
        }
        self.ranks.get_mut(&rank).map_or(0, |state| std::mem::take(&mut state.probe_batches))
    }

    /// A rank has ended. Returns whether it was the last one.
    pub fn leave(&mut self, rank: u32) -> bool {
        self.ranks.remove(&rank);
        self.ranks.is_empty()
    }

    pub fn contains(&self, rank: u32) -> bool {
        self.ranks.contains_key(&rank)
    }

    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The incarnation of the job: another one if a rank has joined or was started again.
    fn incarnation(&self) -> u64 {
        let of_rank = |hash, (rank, state): (&u32, &RankState)| {
            mix(mix(hash ^ u64::from(*rank)) ^ state.incarnation)
        };
        self.ranks.iter().fold(self.joined, of_rank)
    }

    /// What all ranks together have not read: of every half-chunk that differs from its size if
    /// `is_full`, else of those that have changed. Within an epoch it never grows.
    fn merge_unread(
        &mut self,
        sizes: &[ByteSize],
        ranks: u32,
        is_full: bool,
    ) -> Vec<HalfChunkBytes> {
        let mut unread = Vec::new();
        let half_chunks = (0..).map(HalfChunk).zip(sizes).zip(&mut self.merged);
        for ((half_chunk, size), merged) in half_chunks {
            let of_rank = |state: &RankState| match state.job_epoch {
                epoch if epoch == self.epoch => state.unread[half_chunk.index()],
                _ => size.0 / u64::from(ranks),
            };
            let sum = self.ranks.values().map(of_rank).fold(0, u64::saturating_add).min(*merged);
            if sum != if is_full { size.0 } else { *merged } {
                unread.push(HalfChunkBytes { half_chunk, bytes: ByteSize(sum) });
            }
            *merged = sum;
        }
        unread
    }

    /// Those of the half-chunks whose last items were yielded on every rank in this epoch.
    fn released_by_all(&self, half_chunks: &[HalfChunk]) -> Vec<HalfChunk> {
        let by_all = |half_chunk: &HalfChunk| {
            let is_released = |state: &RankState| {
                state.job_epoch == self.epoch && !state.unyielded.contains(half_chunk)
            };
            self.ranks.values().all(is_released)
        };
        half_chunks.iter().copied().filter(by_all).collect()
    }

    /// Half-chunks of which no rank has anything left to fetch.
    fn filled_by_all(&self) -> Vec<HalfChunk> {
        let by_all = |(half_chunk, filled): &(&HalfChunk, &BTreeSet<u32>)| {
            self.ranks
                .iter()
                .all(|(rank, state)| filled.contains(rank) || state.unread[half_chunk.index()] == 0)
        };
        self.filled.iter().filter(by_all).map(|(half_chunk, _)| *half_chunk).collect()
    }
}

/// What a rank has not read after its report. It can only become less.
fn changed(rank: u32, known: &[u64], report: &Report) -> Result<Vec<u64>, InvalidEvent> {
    let mut unread = known.to_vec();
    for HalfChunkBytes { half_chunk, bytes } in &report.unread {
        let chunk = ChunkOrdinal(half_chunk.0);
        let slot = unread.get_mut(half_chunk.index());
        let slot = slot.ok_or(InvalidEvent::UnknownChunk { chunk, chunks: known.len() })?;
        if bytes.0 > known[half_chunk.index()] {
            let (job, known) = (JobNumber(rank.into()), ByteSize(known[half_chunk.index()]));
            return Err(InvalidEvent::UnreadGrew { job, chunk, unread: *bytes, known });
        }
        *slot = bytes.0;
    }
    Ok(unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_rank_reports() {
        let of = |name| JobRank::of_name(name).map(|(job, rank)| (job, rank.rank, rank.ranks));
        assert_eq!(of("training.3of8"), Some(("training", 3, 8)));
        assert_eq!(of("a.b.copy2.0of2"), Some(("a.b.copy2", 0, 2)));
        for other in ["training", "training.3", "training.8of8", "training.0of1", ".0of2", "x.of"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of("x.+1of4"), None);
        assert_eq!(of("x.1of99999999999"), None);
    }
}
