//! Rotation: which chunks of one dataset are in the cache, and which of them a job draws from
//! (Quiver 5.1).
//!
//! A dataset is often larger than its share of the cache. Jobs can read it in any order, so all of
//! them read the same few chunks at the same time. A chunk is fetched once for all of them, and is
//! evicted when they are done with it. Rotation decides which chunk is loaded next and when one is
//! evicted.
//!
//! Events and the time go in ([`Rotation::on_event`]), orders come out: load this chunk, mark that
//! one, evict it. The caller carries them out and reports back. To load a chunk means that every
//! job with unread items in it fetches these, each item once (`claims`). Items that no job needs
//! are not fetched. Jobs draw from a chunk while it is loading: a job that needs a missing item
//! claims it.
//!
//! There is one interface and two policies: Quiver's ([`RotationPolicy::Quiver`], `quiver.rs`), for
//! comparison, and ours by demand ([`RotationPolicy::Demand`], `demand/`). Their common state is in
//! `state.rs`.
//!
//! An event that contradicts the state changes nothing. It is returned as an error, and counted.
//!
//! Not here: how much space a dataset gets (`placement`), which items are drawn from a chunk
//! (`sampler`).

use std::time::Duration;

use crate::{ByteSize, dataset::chunking::ChunkOrdinal, units::ByteRate};

mod demand;
mod invalid_event;
mod quiver;
mod state;

pub use invalid_event::InvalidEvent;
use state::RotationState;

/// The number of a job at its manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobNumber(pub u64);

/// The rule by which chunks are loaded and evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotationPolicy {
    /// Quiver's: two chunks, in a fixed order. The older is marked when the newer is loaded. It is
    /// evicted when all jobs that were reading it have exhausted it, or `deadline` after the first
    /// of them has.
    Quiver {
        /// Time from the first job's completion to the forced eviction of a chunk.
        deadline: Duration,
    },
    /// Ours: pinned chunks stay, and two rotate through the rest as jobs need them.
    Demand,
}

/// What does not change while a dataset rotates.
#[derive(Debug, Clone)]
pub struct RotationSettings {
    /// The policy.
    pub policy: RotationPolicy,
    /// Time after which a job without events is forgotten.
    pub lease: Duration,
    /// Time to load a chunk, until it is measured.
    pub load_time: Duration,
    /// Sizes of all chunks of the dataset.
    pub chunk_sizes: Vec<ByteSize>,
}

/// Unread bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkBytes {
    /// The chunk.
    pub chunk: ChunkOrdinal,
    /// Bytes that a job has not read.
    pub bytes: ByteSize,
}

/// An event of a dataset.
#[derive(Debug, Clone, Copy)]
pub enum RotationEvent<'a> {
    /// A job starts to read the dataset, with everything unread. A job that resumes sends its
    /// progress next.
    Joined {
        /// The job.
        job: JobNumber,
    },
    /// A job is alive. All other events of a job say so, too.
    Renewed {
        /// The job.
        job: JobNumber,
    },
    /// Progress of a job.
    Progress {
        /// The job.
        job: JobNumber,
        /// What is unread of some chunks: those of its draw set, and those that it read uncached.
        /// The others are unchanged.
        unread: &'a [ChunkBytes],
        /// Rate at which the job draws, without its stalls. Zero: not known yet.
        pace: ByteRate,
    },
    /// A job starts to draw from a chunk of its draw set (`ref_chunk`).
    Referenced {
        /// The job.
        job: JobNumber,
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// A job has drawn the last item of a chunk that it had referenced (`unref_chunk`).
    Exhausted {
        /// The job.
        job: JobNumber,
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// A job starts its next epoch: everything is unread again.
    NextEpoch {
        /// The job.
        job: JobNumber,
    },
    /// A job has ended, or uses no cache any more.
    Left {
        /// The job.
        job: JobNumber,
    },
    /// Some of a loading chunk has arrived.
    Loading {
        /// The chunk.
        chunk: ChunkOrdinal,
        /// Bytes that have arrived in all.
        bytes: ByteSize,
    },
    /// All that any job needs of a chunk has arrived.
    Loaded {
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// The space of a chunk that was to be evicted is free.
    Evicted {
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// A chunk is present without an order: after a takeover.
    Found {
        /// The chunk.
        chunk: ChunkOrdinal,
    },
    /// The number of chunks that the dataset may have in the cache.
    Budget {
        /// Number of chunks.
        chunks: u32,
    },
    /// Time has passed.
    Tick,
}

/// An order about a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkOrder {
    /// Fetch what jobs have unread in this chunk. It is in draw sets from now on.
    Load(ChunkOrdinal),
    /// This chunk takes no new readers.
    Mark(ChunkOrdinal),
    /// Free this chunk. It is in no draw set any more.
    Evict {
        /// The chunk.
        chunk: ChunkOrdinal,
        /// The rule that evicted it.
        cause: EvictionCause,
    },
}

/// Why a chunk is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionCause {
    /// No active job has unread items in it (Quiver: no job that referenced it).
    Exhausted,
    /// This job would have nothing to draw before another chunk is loaded. Others may have
    /// leftovers.
    Needed(JobNumber),
    /// Quiver's deadline after the first job's completion.
    Deadline,
    /// The budget is smaller than before.
    Budget,
}

/// The chunks that a job draws from.
///
/// Pinned chunks get the share of draws that lets them last until the epoch ends. All other draws
/// are from `first`, and when it has nothing unread left, from `then`, in order. When that has
/// nothing either, the job reads uncached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkDrawSet {
    /// Chunks that stay in the cache.
    pub pinned: Vec<ChunkOrdinal>,
    /// Rotating chunks to draw from now, as one.
    pub first: Vec<ChunkOrdinal>,
    /// Rotating chunks to go on with, one after the other.
    pub then: Vec<ChunkOrdinal>,
}

/// Counts since the rotation started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RotationCounters {
    /// Orders to load a chunk.
    pub loads: u64,
    /// Evictions of chunks that no job needed.
    pub evicted_exhausted: u64,
    /// Evictions because a job needed another chunk.
    pub evicted_needed: u64,
    /// Evictions at Quiver's deadline.
    pub evicted_deadline: u64,
    /// Evictions because the budget shrank.
    pub evicted_budget: u64,
    /// Jobs that were forgotten without leaving.
    pub leases_expired: u64,
    /// Events that contradicted the state.
    pub invalid_events: u64,
}

impl std::ops::Add for RotationCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            loads: self.loads + other.loads,
            evicted_exhausted: self.evicted_exhausted + other.evicted_exhausted,
            evicted_needed: self.evicted_needed + other.evicted_needed,
            evicted_deadline: self.evicted_deadline + other.evicted_deadline,
            evicted_budget: self.evicted_budget + other.evicted_budget,
            leases_expired: self.leases_expired + other.leases_expired,
            invalid_events: self.invalid_events + other.invalid_events,
        }
    }
}

/// The rotation of one dataset.
#[derive(Debug)]
pub struct Rotation {
    policy: RotationPolicy,
    state: RotationState,
    counters: RotationCounters,
}

impl Rotation {
    /// A dataset without jobs and without space.
    pub fn new(settings: &RotationSettings) -> Self {
        Self {
            policy: settings.policy,
            state: RotationState::new(settings),
            counters: RotationCounters::default(),
        }
    }

    /// Applies an event. Returns the orders that follow. An invalid event changes nothing.
    pub fn on_event(
        &mut self,
        now: Duration,
        event: RotationEvent<'_>,
    ) -> Result<Vec<ChunkOrder>, InvalidEvent> {
        match self.state.on_event(now, event) {
            Ok(expired) => self.counters.leases_expired += expired,
            Err(invalid) => {
                self.counters.invalid_events += 1;
                return Err(invalid);
            }
        }
        let mut orders = Vec::new();
        while let Some(order) = match self.policy {
            RotationPolicy::Quiver { deadline } => quiver::decide(&self.state, deadline),
            RotationPolicy::Demand => demand::decide(&mut self.state),
        } {
            self.count(order);
            self.state.apply_order(order);
            orders.push(order);
        }
        if self.policy == RotationPolicy::Demand {
            demand::set_focuses(&mut self.state);
        }
        Ok(orders)
    }

    /// When [`RotationEvent::Tick`] is due, if no event comes before.
    pub fn next_deadline(&self) -> Option<Duration> {
        let policy = match self.policy {
            RotationPolicy::Quiver { deadline } => quiver::next_deadline(&self.state, deadline),
            RotationPolicy::Demand => demand::next_deadline(&self.state),
        };
        [self.state.next_expiry(), policy].into_iter().flatten().min()
    }

    /// The chunks that a job draws from.
    pub fn draw_set(&self, job: JobNumber) -> Result<ChunkDrawSet, InvalidEvent> {
        match self.policy {
            RotationPolicy::Quiver { .. } => quiver::draw_set(&self.state, job),
            RotationPolicy::Demand => demand::draw_set(&self.state, job),
        }
    }

    /// Chunks that take up space: loading, loaded, or not yet freed.
    pub fn occupied(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.state.occupied()
    }

    /// Chunks that stay in the cache.
    pub fn pinned(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.state.pinned()
    }

    /// Chunks that jobs may draw from: loading or loaded.
    pub fn drawable_chunks(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.state.drawable()
    }

    /// Whether a job's lease has not ended.
    pub fn is_alive(&self, now: Duration, job: JobNumber) -> bool {
        self.state.is_alive(now, job)
    }

    /// When a job becomes inactive, if it has no event before. Its lease may end later.
    pub fn inactive_at(&self, job: JobNumber) -> Option<Duration> {
        self.state.jobs.get(&job).map(|job_state| self.state.inactive_at(job_state))
    }

    /// Jobs whose leases have not ended.
    pub fn jobs(&self) -> impl Iterator<Item = JobNumber> {
        self.state.jobs.keys().copied()
    }

    /// Estimated time to load a chunk.
    pub fn load_time(&self) -> Duration {
        self.state.load_time
    }

    /// Counts since the rotation started.
    pub fn counters(&self) -> RotationCounters {
        self.counters
    }

    fn count(&mut self, order: ChunkOrder) {
        let counters = &mut self.counters;
        match order {
            ChunkOrder::Load(_) => counters.loads += 1,
            ChunkOrder::Mark(_) => {}
            ChunkOrder::Evict { cause: EvictionCause::Exhausted, .. } => {
                counters.evicted_exhausted += 1;
            }
            ChunkOrder::Evict { cause: EvictionCause::Needed(_), .. } => {
                counters.evicted_needed += 1;
            }
            ChunkOrder::Evict { cause: EvictionCause::Deadline, .. } => {
                counters.evicted_deadline += 1;
            }
            ChunkOrder::Evict { cause: EvictionCause::Budget, .. } => counters.evicted_budget += 1,
        }
    }
}
