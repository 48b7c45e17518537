//! Placement: how much of the cache each dataset gets (Quiver 5.3).
//!
//! What counts is the GPU time that caching saves. A job on n GPUs whose mini-batch takes `t`
//! instead of `t_miss` saves `n·(1 − t/t_miss)` GPUs. A dataset saves what its jobs save, and all
//! datasets share the space. Quiver sums `n·t_miss/t_hit` instead, which also rewards jobs that
//! gain nothing (their ratio is 1, not 0), and has three allocations for a dataset: nothing, two
//! chunks, all. But each pinned chunk is one that is not fetched again in every turn, so sizes in
//! between are worth something, too.
//!
//! [`greedy`] is Quiver's rule, for comparison. [`Placement`] is ours: a knapsack, exact for up to
//! 64 chunks of a dataset, that moves space only when a move pays for its loading. Both give the
//! rest to datasets that no job reads (`idle.rs`), and explain each share in one line.
//!
//! Not here: how the times are measured (`benefit`), which chunks fill the space (`rotation`).

mod explain;
mod idle;
mod knapsack;
mod quiver;

pub use knapsack::{Placement, PlacementSettings};
pub use quiver::greedy;

use std::time::Duration;

use crate::ByteSize;

/// Two chunks are the least that can rotate.
pub(crate) const ROTATING: u32 = 2;

/// Time of a job's mini-batch in each mode, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModeTimes {
    /// All items from pinned chunks.
    pub hit: f64,
    /// Items from rotating chunks.
    pub rotating: f64,
    /// All items from the origin.
    pub miss: f64,
}

impl ModeTimes {
    /// Assumed gain of a job that has not been measured, so that it gets a cache at first.
    pub const UNKNOWN: Self = Self { hit: 0.5, rotating: 0.7, miss: 1.0 };
}

/// A job's demand for its dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct JobDemand {
    /// The job's name.
    pub name: String,
    /// GPUs that wait when the job waits.
    pub gpus: u32,
    /// Times of its mini-batches; `None` until they are measured.
    pub times: Option<ModeTimes>,
}

/// A dataset's demand for space.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetDemand {
    /// Number of chunks.
    pub chunks: u32,
    /// Size of the largest chunk.
    pub chunk_size: ByteSize,
    /// Size of the largest half-chunk.
    pub half_size: ByteSize,
    /// Size of the dataset.
    pub total: ByteSize,
    /// Jobs that read it and may gain.
    pub jobs: Vec<JobDemand>,
    /// Names of jobs that read it and gain nothing.
    pub compute_bound: Vec<String>,
    /// The current allocation.
    pub allocated: Allocation,
    /// Number of chunks (half-chunks under [`Allocation::Halves`]) that take space: loading,
    /// present, or evicted and not yet free.
    pub chunks_present: u32,
    /// Time since a job last read it.
    pub idle_for: Duration,
}

/// The space of a dataset, in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Allocation {
    /// None: its jobs read from the origin.
    Nothing,
    /// Two half-chunks, because two chunks do not fit.
    Halves,
    /// This number of chunks.
    Chunks(u32),
}

/// The share of a dataset: its allocation, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// The allocation.
    pub allocation: Allocation,
    /// Bytes of the allocation.
    pub space: ByteSize,
    /// GPUs that it saves, all the time.
    pub gpus_saved: f64,
    /// Why, in one line.
    pub why: String,
}

impl DatasetDemand {
    /// A dataset with chunks of one size, and nothing allocated.
    pub fn even(chunks: u32, chunk_size: ByteSize, jobs: Vec<JobDemand>) -> Self {
        let half_size = ByteSize(chunk_size.0.div_ceil(2));
        let total = ByteSize(chunk_size.0.saturating_mul(u64::from(chunks)));
        let (compute_bound, allocated) = (Vec::new(), Allocation::Nothing);
        let (chunks_present, idle_for) = (0, Duration::ZERO);
        Self {
            chunks,
            chunk_size,
            half_size,
            total,
            jobs,
            compute_bound,
            allocated,
            chunks_present,
            idle_for,
        }
    }

    /// Whether two demands are the same, apart from their idle times.
    pub fn is_same(&self, other: &Self) -> bool {
        *self == Self { idle_for: self.idle_for, ..other.clone() }
    }

    /// The most bytes that an allocation takes.
    pub fn space(&self, allocation: Allocation) -> ByteSize {
        let most = |size: ByteSize, count: u32| {
            ByteSize(size.0.saturating_mul(u64::from(count))).min(self.total)
        };
        match allocation {
            Allocation::Nothing => ByteSize(0),
            Allocation::Halves => most(self.half_size, 2),
            Allocation::Chunks(chunks) if chunks >= self.chunks => self.total,
            Allocation::Chunks(chunks) => most(self.chunk_size, chunks),
        }
    }

    /// The most bytes that it takes now, or may take under its current allocation.
    pub fn space_held(&self) -> ByteSize {
        let size =
            if self.allocated == Allocation::Halves { self.half_size } else { self.chunk_size };
        let present = ByteSize(size.0.saturating_mul(u64::from(self.chunks_present)));
        present.min(self.total).max(self.space(self.allocated))
    }

    /// The largest part of a growing allocation that fits into `space`, but no less than the
    /// current one.
    pub(crate) fn part_within(&self, space: ByteSize, allocation: Allocation) -> Allocation {
        let chunks_min = if self.jobs.len() >= 2 { ROTATING } else { 1 };
        match (allocation, space.0.checked_div(self.chunk_size.0)) {
            (Allocation::Chunks(wanted), Some(chunks)) if chunks >= u64::from(chunks_min) => {
                let chunks = u32::try_from(chunks).unwrap_or(u32::MAX).min(wanted);
                Allocation::Chunks(chunks.min(self.chunks.saturating_sub(1))).max(self.allocated)
            }
            _ => self.allocated,
        }
    }

    /// GPUs that an allocation saves.
    pub fn gpus_saved(&self, allocation: Allocation) -> f64 {
        let saved = self.jobs.iter().map(|job| {
            let times = job.times.unwrap_or(ModeTimes::UNKNOWN);
            let share = 1.0 - self.time_under(times, allocation) / times.miss;
            // A measured loss is an error or noise, and counts as no gain.
            if share > 0.0 { f64::from(job.gpus) * share.min(1.0) } else { 0.0 }
        });
        saved.sum()
    }

    /// Time of a mini-batch under an allocation. Pinned, rotating and uncached items are drawn in
    /// proportion. Since waiting overlaps with computing, the time is at most the mean of the
    /// three.
    fn time_under(&self, times: ModeTimes, allocation: Allocation) -> f64 {
        let Allocation::Chunks(allocated) = allocation else {
            return if allocation == Allocation::Halves { times.rotating } else { times.miss };
        };
        let share = |chunks: u32| f64::from(chunks) / f64::from(self.chunks.max(1));
        if allocated >= self.chunks {
            times.hit
        } else if self.rotates(allocated) {
            let pinned = share(allocated - ROTATING);
            pinned * times.hit + (1.0 - pinned) * times.rotating
        } else {
            let pinned = share(allocated);
            pinned * times.hit + (1.0 - pinned) * times.miss
        }
    }

    /// Whether two of these chunks rotate: a job alone shares with no other.
    fn rotates(&self, allocated: u32) -> bool {
        self.jobs.len() >= 2 && (ROTATING..self.chunks).contains(&allocated)
    }

    /// The smallest useful space: one chunk for a job alone, two half-chunks for several.
    fn space_min(&self) -> ByteSize {
        let allocation =
            if self.jobs.len() >= 2 { Allocation::Halves } else { Allocation::Chunks(1) };
        self.space(allocation)
    }

    pub(crate) fn share(&self, allocation: Allocation, space: ByteSize) -> Share {
        Share {
            allocation,
            space: self.space(allocation),
            gpus_saved: self.gpus_saved(allocation),
            why: explain::explain(self, allocation, space),
        }
    }
}
