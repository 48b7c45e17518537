//! Estimates: the time of a mini-batch, with its standard error.
//!
//! Single mini-batches say little: with a loader's workers, three of four take no time and the
//! fourth waits for all. So times are grouped into ten blocks of neighbours, whose means are
//! similar. The two fastest and the two slowest blocks do not count: the job may have written a
//! checkpoint. The rest gives a mean and a standard error (of a trimmed mean, after Yuen).

use std::collections::VecDeque;

/// Samples that are kept. Older ones are dropped, because a job changes.
const SAMPLES_MAX: usize = 200;
/// Samples that an estimate needs.
pub(super) const SAMPLES_MIN: u32 = 20;
/// Blocks of neighbours, and those on either side that do not count.
const BLOCKS: usize = 10;
const TRIMMED: usize = 2;
/// Standard errors of the confidence interval: 95 % of Student's t with five degrees of freedom.
const ERRORS: f64 = 2.571;

/// A time, with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Mean, in seconds.
    pub mean_s: f64,
    /// Standard error, in seconds.
    pub error_s: f64,
    /// Mini-batches that were measured.
    pub samples: usize,
}

/// A confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub low: f64,
    pub high: f64,
}

impl Estimate {
    /// The share by which this is faster than another estimate.
    pub(super) fn gain_over(self, slow: Estimate) -> Range {
        let ratio = self.mean_s / slow.mean_s;
        let relative = |estimate: Estimate| estimate.error_s / estimate.mean_s;
        let error = ratio * relative(self).hypot(relative(slow)) * ERRORS;
        Range { low: 1.0 - ratio - error, high: 1.0 - ratio + error }
    }
}

/// The latest times of one mode.
#[derive(Debug, Default)]
pub(super) struct Samples {
    times_s: VecDeque<f64>,
}

impl Samples {
    pub fn add(&mut self, time_s: f64) {
        if self.times_s.len() == SAMPLES_MAX {
            self.times_s.pop_front();
        }
        self.times_s.push_back(time_s);
    }

    /// Drops all but the latest.
    pub fn keep(&mut self, latest: usize) {
        let old = self.times_s.len().saturating_sub(latest);
        self.times_s.drain(..old);
    }

    pub fn clear(&mut self) {
        self.times_s.clear();
    }

    pub fn estimate(&self) -> Option<Estimate> {
        let samples = self.times_s.len();
        if samples < SAMPLES_MIN as usize {
            return None;
        }
        let mut blocks = [0.0; BLOCKS];
        for (block, mean) in blocks.iter_mut().enumerate() {
            let span = samples * block / BLOCKS..samples * (block + 1) / BLOCKS;
            let length = span.len() as f64;
            *mean = self.times_s.range(span).sum::<f64>() / length;
        }
        blocks.sort_by(f64::total_cmp);
        let kept = &blocks[TRIMMED..BLOCKS - TRIMMED];
        let mean_s = kept.iter().sum::<f64>() / kept.len() as f64;
        // Winsorised: a trimmed block counts as its nearest neighbour that is not trimmed.
        let clamp = |time: f64| time.clamp(kept[0], kept[kept.len() - 1]);
        let centre = blocks.iter().map(|time| clamp(*time)).sum::<f64>() / BLOCKS as f64;
        let squares: f64 = blocks.iter().map(|time| (clamp(*time) - centre).powi(2)).sum();
        let deviation = (squares / (BLOCKS - 1) as f64).sqrt();
        let share = kept.len() as f64 / BLOCKS as f64;
        let error_s = deviation / (share * (BLOCKS as f64).sqrt());
        Some(Estimate { mean_s, error_s, samples })
    }
}
