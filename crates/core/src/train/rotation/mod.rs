//! Rotation: which chunks of one dataset are in the cache, and which of them a job draws from (Quiver 5.1).
//!
//! A dataset is often larger than its share of the cache. Jobs do not mind in which order they read it,
//! so all of them are led through the same few chunks at the same time: a chunk is fetched once for all
//! of them, and goes when it has served them. That works as long as somebody says which chunk comes next
//! and when one may go; this is who says it.
//!
//! Facts and the time go in ([`Rotation::on`]), orders come out: load this chunk, mark that one, evict it.
//! Whoever drives this carries them out and reports. To load a chunk means that every job with unread
//! items in it fetches those, each once (`claims`); what nobody needs is not fetched. While a chunk is
//! loading it is open already: a job that wants an item of it claims it.
//!
//! There is one interface and two policies: the paper's ([`Policy::Paper`], `paper.rs`), for comparison,
//! and ours by need ([`Policy::ByNeed`], `need/`). What both know is in `books.rs`.
//!
//! Facts that contradict what is known change nothing: they are an error in the caller's hands, and counted.
//!
//! Not here: how much space a dataset gets (`placement`), what is drawn from an open chunk (`sampler`).

use std::time::Duration;

use crate::{ByteSize, chunking::ChunkOrdinal, units::ByteRate};

mod books;
mod contradiction;
mod need;
mod paper;

use books::Books;
pub use contradiction::Contradiction;

/// A job, by the number under which its manager knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Job(pub u64);

/// By which rule chunks come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Quiver's: two chunks, in a fixed order. The older is marked when the newer is loaded, and goes when
    /// all who were reading it have exhausted it, or so long after the first of them has.
    Paper {
        /// How long after a first job's completion a chunk is evicted by force.
        deadline: Duration,
    },
    /// Ours: held chunks stay for good, two rotate through the rest, as the jobs need them.
    ByNeed,
}

/// What does not change while a dataset rotates.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The rule.
    pub policy: Policy,
    /// How long a job is believed to live without being heard of.
    pub lease: Duration,
    /// How long loading a chunk takes, until it has been measured.
    pub load_time: Duration,
    /// The sizes of all chunks of the dataset.
    pub chunk_sizes: Vec<ByteSize>,
}

/// What happens to a dataset.
#[derive(Debug, Clone, Copy)]
pub enum Fact<'a> {
    /// A job begins to read the dataset, with everything unread; one that resumes says at once how much is.
    Joined {
        /// Which.
        job: Job,
    },
    /// A job lives. All other facts about a job say so, too.
    Renewed {
        /// Which.
        job: Job,
    },
    /// How far a job is.
    Progress {
        /// Which.
        job: Job,
        /// What is unread of some chunks, those that are open to it and those that it read outside; of
        /// the others it is what it was.
        unread: &'a [(ChunkOrdinal, ByteSize)],
        /// How fast it draws, or would draw if nothing held it up. Nought: not known yet.
        pace: ByteRate,
    },
    /// A job begins to draw from a chunk that is open to it (`ref_chunk`).
    Referenced {
        /// Which.
        job: Job,
        /// What it draws from.
        chunk: ChunkOrdinal,
    },
    /// A job has drawn the last item of a chunk that it had referenced (`unref_chunk`).
    Exhausted {
        /// Which.
        job: Job,
        /// What has nothing more for it in this epoch.
        chunk: ChunkOrdinal,
    },
    /// A job starts its next epoch: everything is unread again.
    NextEpoch {
        /// Which.
        job: Job,
    },
    /// A job has ended, or wants no cache any more.
    Left {
        /// Which.
        job: Job,
    },
    /// So much of a chunk that is being loaded has arrived.
    Loading {
        /// Which.
        chunk: ChunkOrdinal,
        /// How much, in all.
        bytes: ByteSize,
    },
    /// All that anybody needs of a chunk has arrived.
    Loaded {
        /// Which.
        chunk: ChunkOrdinal,
    },
    /// The space of a chunk that was to be evicted is free.
    Evicted {
        /// Which.
        chunk: ChunkOrdinal,
    },
    /// A chunk that nobody ordered is there: what a manager finds when it takes over.
    Found {
        /// Which.
        chunk: ChunkOrdinal,
    },
    /// The dataset may have so many chunks in the cache.
    Budget {
        /// How many.
        chunks: u32,
    },
    /// Nothing but that time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Fetch what jobs have unread in this chunk. It is open from now on.
    Load(ChunkOrdinal),
    /// This chunk takes no new readers.
    Mark(ChunkOrdinal),
    /// Free this chunk. Nobody is told to draw from it any more.
    Evict {
        /// Which.
        chunk: ChunkOrdinal,
        /// By which rule.
        why: Eviction,
    },
}

/// Why a chunk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// No job that is reckoned with has unread items in it (paper: none of those who referenced it).
    Exhausted,
    /// This job would have nothing to draw before another chunk is loaded. Others may have leftovers.
    Needed(Job),
    /// The paper's deadline after the first job's completion.
    Forced,
    /// There is less room than before.
    Budget,
}

/// What a job draws from.
///
/// Held chunks are drawn from in proportion: a share of the draws that lets them last until the epoch
/// ends. All other draws are from `first`, and where it has nothing unread left, from `then`, in order.
/// Where that has nothing either, the job reads through, which is counted as outside.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Open {
    /// Chunks that stay for good.
    pub held: Vec<ChunkOrdinal>,
    /// Rotating chunks to draw from, as one.
    pub first: Vec<ChunkOrdinal>,
    /// Rotating chunks to go on with, one after the other.
    pub then: Vec<ChunkOrdinal>,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Orders to load a chunk.
    pub loads: u64,
    /// Orders to evict one that nobody needed any more,
    pub evicted_exhausted: u64,
    /// because a job needed another,
    pub evicted_needed: u64,
    /// after the paper's deadline,
    pub evicted_forced: u64,
    /// or for want of room.
    pub evicted_budget: u64,
    /// Jobs that were not heard of in time.
    pub leases_expired: u64,
    /// Facts that contradicted what was known.
    pub contradictions: u64,
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            loads: self.loads + other.loads,
            evicted_exhausted: self.evicted_exhausted + other.evicted_exhausted,
            evicted_needed: self.evicted_needed + other.evicted_needed,
            evicted_forced: self.evicted_forced + other.evicted_forced,
            evicted_budget: self.evicted_budget + other.evicted_budget,
            leases_expired: self.leases_expired + other.leases_expired,
            contradictions: self.contradictions + other.contradictions,
        }
    }
}

/// The rotation of one dataset.
#[derive(Debug)]
pub struct Rotation {
    policy: Policy,
    books: Books,
    counters: Counters,
}

impl Rotation {
    /// A dataset that nobody reads, with no space yet.
    pub fn new(settings: &Settings) -> Self {
        Self {
            policy: settings.policy,
            books: Books::new(settings.lease, settings.load_time, &settings.chunk_sizes),
            counters: Counters::default(),
        }
    }

    /// Something has happened. Returns what is to be done about it; after a contradiction nothing is, and
    /// nothing has changed.
    pub fn on(&mut self, now: Duration, fact: Fact<'_>) -> Result<Vec<Order>, Contradiction> {
        match self.books.note(now, fact) {
            Ok(expired) => self.counters.leases_expired += expired,
            Err(contradiction) => {
                self.counters.contradictions += 1;
                return Err(contradiction);
            }
        }
        let mut orders = Vec::new();
        while let Some(order) = match self.policy {
            Policy::Paper { deadline } => paper::decide(&self.books, deadline),
            Policy::ByNeed => need::decide(&mut self.books),
        } {
            self.count(order);
            self.books.obey(order);
            orders.push(order);
        }
        if self.policy == Policy::ByNeed {
            need::direct(&mut self.books);
        }
        Ok(orders)
    }

    /// When [`Fact::Tick`] has something to do, if nothing happens until then.
    pub fn next_deadline(&self) -> Option<Duration> {
        let policy = match self.policy {
            Policy::Paper { deadline } => paper::next_deadline(&self.books, deadline),
            Policy::ByNeed => need::next_deadline(&self.books),
        };
        [self.books.next_expiry(), policy].into_iter().flatten().min()
    }

    /// What a job draws from.
    pub fn open(&self, job: Job) -> Result<Open, Contradiction> {
        match self.policy {
            Policy::Paper { .. } => paper::open(&self.books, job),
            Policy::ByNeed => need::open(&self.books, job),
        }
    }

    /// The chunks that take up space: loading, loaded, or not yet freed.
    pub fn resident(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.books.resident()
    }

    /// The chunks that stay for good.
    pub fn held(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.books.held()
    }

    /// The chunks that jobs may draw from: loading or loaded.
    pub fn open_chunks(&self) -> impl Iterator<Item = ChunkOrdinal> {
        self.books.open()
    }

    /// Whether a job is believed to live.
    pub fn knows(&self, now: Duration, job: Job) -> bool {
        self.books.is_alive(now, job)
    }

    /// When a job that is not heard of until then is not reckoned with any more, though it may live.
    pub fn silent_at(&self, job: Job) -> Option<Duration> {
        self.books.jobs.get(&job).map(|member| self.books.silent_at(member))
    }

    /// The jobs that are believed to live.
    pub fn jobs(&self) -> impl Iterator<Item = Job> {
        self.books.jobs.keys().copied()
    }

    /// How long loading a chunk is expected to take.
    pub fn load_time(&self) -> Duration {
        self.books.load_time
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn count(&mut self, order: Order) {
        let counters = &mut self.counters;
        match order {
            Order::Load(_) => counters.loads += 1,
            Order::Mark(_) => {}
            Order::Evict { why: Eviction::Exhausted, .. } => counters.evicted_exhausted += 1,
            Order::Evict { why: Eviction::Needed(_), .. } => counters.evicted_needed += 1,
            Order::Evict { why: Eviction::Forced, .. } => counters.evicted_forced += 1,
            Order::Evict { why: Eviction::Budget, .. } => counters.evicted_budget += 1,
        }
    }
}
