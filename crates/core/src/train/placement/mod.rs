//! Placement: how much of the cache each dataset gets (Quiver 5.3).
//!
//! What matters is the GPU time that caching saves. A job on n GPUs whose mini-batch takes `t` instead of
//! `t_miss` saves `n·(1 − t/t_miss)` of them; a dataset saves what its jobs do, and all share the space.
//! The paper sums `n·t_miss/t_hit` instead, which also rewards jobs that gain nothing (their ratio is one,
//! not nought), and knows three choices for a dataset: nothing, two chunks, all. But each chunk that is
//! held is one that is not fetched again at every turn, so sizes in between are worth something, too.
//!
//! [`greedy`] is the paper's rule, for comparison; [`Placement`] is ours: a knapsack, exact for up to 64
//! chunks of a dataset, that moves only when a move pays for its loading. Both leave what is left to datasets that
//! nobody reads (`idle.rs`), and explain each choice in words.
//!
//! Not here: how the times are measured (`benefit`), what becomes of the space (`rotation`).

mod greedy;
mod idle;
mod knapsack;
mod words;

pub use greedy::greedy;
pub use knapsack::{Placement, Settings};

use std::time::Duration;

use crate::ByteSize;

/// Two chunks are the least that can rotate.
pub(crate) const ROTATING: u32 = 2;

/// How long a mini-batch of a job takes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// When everything is in the cache,
    pub hit: f64,
    /// when it comes from chunks that rotate,
    pub rotating: f64,
    /// and when it comes from the origin.
    pub miss: f64,
}

impl Times {
    /// What a job is thought to gain before it has been measured, so that it gets its chance.
    pub const UNKNOWN: Self = Self { hit: 0.5, rotating: 0.7, miss: 1.0 };
}

/// A job that wants a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// What people call it.
    pub name: String,
    /// How many GPUs it keeps waiting.
    pub gpus: u32,
    /// How long its mini-batches take; not known before they have been measured.
    pub times: Option<Times>,
}

/// A dataset that jobs read.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// How many chunks it has,
    pub chunks: u32,
    /// the size of the largest of them,
    pub chunk_size: ByteSize,
    /// that of the largest half of one,
    pub half_size: ByteSize,
    /// and of all together.
    pub total: ByteSize,
    /// Who reads it and may gain from that,
    pub jobs: Vec<Job>,
    /// and the names of those who gain nothing.
    pub others: Vec<String>,
    /// What it may have now.
    pub placed: Choice,
    /// Of how many chunks something is there,
    pub here: u32,
    /// and for how long nobody has read it.
    pub idle_for: Duration,
}

/// What a dataset gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// Nothing: its jobs read through.
    Nothing,
    /// Room for two half-chunks, because two chunks fit nowhere.
    Halves,
    /// Room for so many chunks.
    Chunks(u32),
}

/// What a dataset gets, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// What it gets.
    pub choice: Choice,
    /// The space that takes.
    pub space: ByteSize,
    /// How many GPUs it saves, all the time.
    pub gpus_saved: f64,
    /// Why, in words.
    pub why: String,
}

impl Dataset {
    /// Chunks that are all of one size, of which none has a place.
    pub fn even(chunks: u32, chunk_size: ByteSize, jobs: Vec<Job>) -> Self {
        let half_size = ByteSize(chunk_size.0.div_ceil(2));
        let total = ByteSize(chunk_size.0.saturating_mul(u64::from(chunks)));
        let (others, placed) = (Vec::new(), Choice::Nothing);
        let (here, idle_for) = (0, Duration::ZERO);
        Self { chunks, chunk_size, half_size, total, jobs, others, placed, here, idle_for }
    }

    /// Whether another wish is for the same, however long nobody has read either.
    pub fn is_like(&self, other: &Self) -> bool {
        *self == Self { idle_for: self.idle_for, ..other.clone() }
    }

    /// The most space that a choice takes.
    pub fn space(&self, choice: Choice) -> ByteSize {
        let most = |size: ByteSize, count: u32| {
            ByteSize(size.0.saturating_mul(u64::from(count))).min(self.total)
        };
        match choice {
            Choice::Nothing => ByteSize(0),
            Choice::Halves => most(self.half_size, 2),
            Choice::Chunks(chunks) if chunks >= self.chunks => self.total,
            Choice::Chunks(chunks) => most(self.chunk_size, chunks),
        }
    }

    /// How many GPUs a choice saves.
    pub fn gpus_saved(&self, choice: Choice) -> f64 {
        let saved = self.jobs.iter().map(|job| {
            let times = job.times.unwrap_or(Times::UNKNOWN);
            let share = 1.0 - self.time_under(times, choice) / times.miss;
            // What was measured may be nonsense, or noise; neither is a gain.
            if share > 0.0 { f64::from(job.gpus) * share.min(1.0) } else { 0.0 }
        });
        saved.sum()
    }

    /// How long a mini-batch takes under a choice. What is held, what rotates and what is read through
    /// are drawn in proportion; as waiting hides behind computing, that is at most the mean of the three.
    fn time_under(&self, times: Times, choice: Choice) -> f64 {
        let Choice::Chunks(placed) = choice else {
            return if choice == Choice::Halves { times.rotating } else { times.miss };
        };
        let share = |chunks: u32| f64::from(chunks) / f64::from(self.chunks.max(1));
        if placed >= self.chunks {
            times.hit
        } else if self.rotates(placed) {
            let held = share(placed - ROTATING);
            held * times.hit + (1.0 - held) * times.rotating
        } else {
            let held = share(placed);
            held * times.hit + (1.0 - held) * times.miss
        }
    }

    /// Whether two of so many chunks rotate: one job alone shares with nobody.
    fn rotates(&self, placed: u32) -> bool {
        self.jobs.len() >= 2 && (ROTATING..self.chunks).contains(&placed)
    }

    /// The least space that is of any use: one chunk for a job alone, two halves for several.
    fn least(&self) -> ByteSize {
        let choice = if self.jobs.len() >= 2 { Choice::Halves } else { Choice::Chunks(1) };
        self.space(choice)
    }

    fn share(&self, choice: Choice, space: ByteSize) -> Share {
        Share {
            choice,
            space: self.space(choice),
            gpus_saved: self.gpus_saved(choice),
            why: words::explain(self, choice, space),
        }
    }
}
