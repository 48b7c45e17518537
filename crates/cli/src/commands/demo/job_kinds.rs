//! Three kinds of jobs, from one that mostly waits for data to one that mostly computes, as Quiver's table 3
//! has them (FAST'20).
//!
//! What makes a kind is how long it computes on a mini-batch, compared with how long the origin takes to send
//! one when all jobs want theirs at once. That ratio is Quiver's: its jobs became so much faster when all of
//! their data was cached. How much of that a cache of a fifth gives is for the demonstration to find out.

use std::time::Duration;

use serde::Serialize;

/// One kind of job, and what Quiver's table 3 says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// For people.
    pub name: &'static str,
    /// For scripts, and in names of jobs.
    pub key: &'static str,
    /// The model that Quiver's authors trained.
    pub model: &'static str,
    /// How much faster Quiver made it, in hundredths: with all of the data in the cache,
    hit: u16,
    /// and with a cache that is cold, or holds a tenth or a fifth (misses are shared).
    cooperative: u16,
}

/// From I/O-bound to compute-bound.
pub const KINDS: [Kind; 3] = [
    Kind { name: "I/O-bound", key: "io-bound", model: "ResNet50", hit: 388, cooperative: 235 },
    Kind { name: "in between", key: "between", model: "Inception", hit: 226, cooperative: 158 },
    Kind {
        name: "compute-bound",
        key: "compute-bound",
        model: "DeepSpeech2",
        hit: 131,
        cooperative: 128,
    },
];

/// What Quiver's table 3 says of a kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Published {
    /// Quiver's model.
    pub model: &'static str,
    /// The speed-up when everything is cached.
    pub hit: f64,
    /// The speed-up when misses are shared.
    pub cooperative: f64,
}

impl Kind {
    /// What Quiver's table 3 says of it.
    pub fn published(self) -> Published {
        let times = |hundredths: u16| f64::from(hundredths) / 100.0;
        Published { model: self.model, hit: times(self.hit), cooperative: times(self.cooperative) }
    }

    /// How long it computes on a mini-batch, if the origin takes so long to send one to each job.
    pub fn compute(self, fair_share: Duration) -> Duration {
        fair_share * 100 / u32::from(self.hit)
    }
}

/// The kind of each of so many jobs, in turn: of seven, three are I/O-bound.
pub fn of_job(index: usize) -> Kind {
    KINDS[index % KINDS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quiver's figure 3 has seven jobs.
    #[test]
    fn of_seven_jobs_three_are_io_bound() {
        let count = |kind| (0..7).filter(|index| of_job(*index) == kind).count();
        assert_eq!(KINDS.map(count), [3, 2, 2]);
    }

    #[test]
    fn computing_takes_what_makes_hits_as_fast_as_published() {
        let fair = Duration::from_millis(388);
        assert_eq!(KINDS[0].compute(fair), Duration::from_millis(100));
        assert!(KINDS[2].compute(fair) > Duration::from_millis(290));
        assert!((KINDS[1].published().cooperative - 1.58).abs() < 1e-9);
    }
}
