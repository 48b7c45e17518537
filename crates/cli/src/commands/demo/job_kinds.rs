//! Three kinds of jobs, from I/O-bound to compute-bound, as in table 3 of Quiver (FAST'20).
//!
//! A kind is the ratio of two times: the computation on a mini-batch, and the transfer of a
//! mini-batch from the origin while all jobs read. The ratios are Quiver's: the speed-up of its
//! jobs with all data cached. The demo measures how much of that a smaller cache gives.

use std::time::Duration;

use serde::Serialize;

/// A kind of job, with its figures from table 3 of Quiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Name in texts.
    pub name: &'static str,
    /// Name in JSON and in the names of jobs.
    pub key: &'static str,
    /// Model of Quiver's job.
    pub model: &'static str,
    /// Quiver's speed-up with all data cached, in hundredths.
    hit: u16,
    /// Quiver's speed-up with shared misses, in hundredths: a cold cache, or one of 10 % or 20 %.
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

/// The figures of a kind in table 3 of Quiver.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Published {
    /// Model of Quiver's job.
    pub model: &'static str,
    /// Speed-up with all data cached.
    pub hit: f64,
    /// Speed-up with shared misses.
    pub cooperative: f64,
}

impl Kind {
    /// Its figures in table 3 of Quiver.
    pub fn published(self) -> Published {
        let times = |hundredths: u16| f64::from(hundredths) / 100.0;
        Published { model: self.model, hit: times(self.hit), cooperative: times(self.cooperative) }
    }

    /// Computation time of a mini-batch, if the origin sends one to each job in `fair_share`.
    pub fn compute(self, fair_share: Duration) -> Duration {
        fair_share * 100 / u32::from(self.hit)
    }
}

/// The kind of a job. Kinds alternate: of seven jobs, three are I/O-bound.
pub fn of_job(index: usize) -> Kind {
    KINDS[index % KINDS.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 3 of Quiver has seven jobs.
    #[test]
    fn of_seven_jobs_three_are_io_bound() {
        let count = |kind| (0..7).filter(|index| of_job(*index) == kind).count();
        assert_eq!(KINDS.map(count), [3, 2, 2]);
    }

    #[test]
    fn computation_times_follow_the_published_speed_ups() {
        let fair = Duration::from_millis(388);
        assert_eq!(KINDS[0].compute(fair), Duration::from_millis(100));
        assert!(KINDS[2].compute(fair) > Duration::from_millis(290));
        assert!((KINDS[1].published().cooperative - 1.58).abs() < 1e-9);
    }
}
