//! Benefit: what a job gains from the cache, measured, not modelled (Quiver 5.3).
//!
//! Whether a job gains depends on its model, its GPUs, its pipelining and the load on the origin. But its
//! mini-batches are all alike, so it is enough to take the time of some of them with the cache and of
//! some without: a **probe** forces a job to miss for a hundred mini-batches, though never for more than
//! one in a hundred of its epoch. A job whose epochs are so short that this would tell nothing saves up
//! over several of them. A job that is about as fast without a cache gets none, so that its
//! space is free for others.
//!
//! A probe costs the job time and the origin bytes, so there is one when a job is new, seldom after that,
//! and when its **stalls** (the time that it waits for data) say that something has changed. A job that
//! gets no cache probes itself with every mini-batch: should it begin to stall, it gets another chance.
//!
//! Verdicts need confidence, and one is only overturned by clearly different times.
//!
//! Not here: what space follows from it (`placement`), how a miss is forced (the node's `mode`).

mod estimate;

use std::time::Duration;

pub use estimate::Estimate;
use estimate::Samples;

use crate::placement::Times;

/// A probe of so many mini-batches, as in the paper,
const PROBE_BATCHES: u32 = 100;
/// but never more than one in so many of an epoch,
const EPOCH_PER_PROBE: u64 = 100;
/// and none at all if so few would tell nothing.
const PROBE_BATCHES_MIN: u32 = estimate::SAMPLES_MIN;
/// The origin's load changes; after so long it is time for another look.
const PROBE_EVERY: Duration = Duration::from_mins(30);
/// But not sooner than this, whatever the stalls say.
const PROBE_PAUSE: Duration = Duration::from_mins(2);
/// A job whose share of stalled time differs by so much from that at its last probe has changed.
const STALL_CHANGE: f64 = 0.1;
/// A job that gains less is as well off without,
const GAIN_MIN: f64 = 0.05;
/// and one that is without has to be expected to gain more before it is given another chance.
const GAIN_AGAIN: f64 = 0.1;

/// A job without a cache that stalls at so many looks in a row gets another chance.
const STALLING_MAX: u32 = 10;
/// Verdicts are looked at again after so many mini-batches.
const JUDGE_EVERY: u64 = 10;

/// Where a mini-batch's items came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All from held chunks.
    Hit,
    /// At least some from chunks that rotate.
    Rotating,
    /// From the origin: in a probe, or because nothing is cached.
    Miss,
}

/// Whether a job gains from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Too little is known: it is cached, to find out.
    Unknown,
    /// It gains.
    Gains,
    /// It does not: it reads through.
    GainsNothing,
}

/// A job's next mini-batches are to be forced misses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// So many of them.
    pub batches: u32,
    /// Why.
    pub reason: Reason,
}

/// Why a job is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It has never been.
    New,
    /// It was long ago.
    Periodic,
    /// It stalls more, or less, than when it last was.
    StallsChanged,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Probes begun.
    pub probes: u64,
    /// Mini-batches that were forced to miss.
    pub probe_batches: u64,
    /// Times that make no sense, and were ignored.
    pub nonsense: u64,
}

/// What one job gains.
#[derive(Debug)]
pub struct Benefit {
    epoch_batches: u64,
    hit: Samples,
    rotating: Samples,
    miss: Samples,
    /// What a mini-batch takes without stalling, whatever the mode.
    busy: Samples,
    /// The same with the cache, or without while there is none: whose stalls are watched.
    stalls: Stalls,
    verdict: Verdict,
    /// At how many looks in a row a job without a cache has been stalling.
    stalling: u32,
    /// How many forced misses are to come, and how many this epoch may still see.
    forced: u32,
    allowance: u64,
    /// Mini-batches of former epochs that did not make up a hundred.
    saved: u64,
    probed: Option<Probed>,
    batches: u64,
    counters: Counters,
}

#[derive(Debug, Clone, Copy)]
struct Probed {
    at: Duration,
    stall_share: Option<f64>,
}

/// The share of recent time that a job spent waiting for data.
#[derive(Debug, Default)]
struct Stalls {
    share: f64,
    batches: u32,
}

impl Stalls {
    fn add(&mut self, share: f64) {
        self.batches = self.batches.saturating_add(1).min(PROBE_BATCHES);
        self.share += (share - self.share) / f64::from(self.batches);
    }

    /// Known after as many mini-batches as a probe has.
    fn share(&self) -> Option<f64> {
        (self.batches >= PROBE_BATCHES).then_some(self.share)
    }
}

impl Benefit {
    /// A new job with so many mini-batches in an epoch.
    pub fn new(epoch_batches: u64) -> Self {
        Self {
            epoch_batches,
            hit: Samples::default(),
            rotating: Samples::default(),
            miss: Samples::default(),
            busy: Samples::default(),
            stalls: Stalls::default(),
            verdict: Verdict::Unknown,
            stalling: 0,
            forced: 0,
            allowance: epoch_batches / EPOCH_PER_PROBE,
            saved: epoch_batches % EPOCH_PER_PROBE,
            probed: None,
            batches: 0,
            counters: Counters::default(),
        }
    }

    /// The job starts its next epoch.
    pub fn next_epoch(&mut self) {
        let fresh = self.epoch_batches / EPOCH_PER_PROBE;
        if fresh >= PROBE_BATCHES_MIN.into() {
            // What a probe that is under way has yet to use is of this epoch now.
            self.allowance = fresh.saturating_sub(self.forced.into());
            return;
        }
        self.saved += self.epoch_batches;
        let saved = self.saved / EPOCH_PER_PROBE;
        self.saved %= EPOCH_PER_PROBE;
        self.allowance = (self.allowance + saved).min(PROBE_BATCHES_MIN.into());
    }

    /// Whether the job's next mini-batch is to be a forced miss.
    pub fn is_forced(&self) -> bool {
        self.forced > 0
    }

    /// Begins a probe, if it is time for one. The job's next mini-batches are then forced misses, until
    /// [`Benefit::is_forced`] says otherwise.
    pub fn probe(&mut self, now: Duration) -> Option<Probe> {
        // A job without a cache misses all the time: there is nothing to force.
        if self.is_forced() || !self.is_cached() {
            return None;
        }
        let reason = match self.probed {
            None => Reason::New,
            Some(last) if now >= last.at.saturating_add(PROBE_EVERY) => Reason::Periodic,
            Some(last) if now >= last.at.saturating_add(PROBE_PAUSE) => {
                let change = (self.stalls.share()? - last.stall_share?).abs();
                (change > STALL_CHANGE).then_some(Reason::StallsChanged)?
            }
            Some(_) => return None,
        };
        let batches = u32::try_from(self.allowance).unwrap_or(u32::MAX).min(PROBE_BATCHES);
        if batches < PROBE_BATCHES_MIN {
            return None;
        }
        self.forced = batches;
        self.allowance -= u64::from(batches);
        self.probed = Some(Probed { at: now, stall_share: None });
        self.miss.clear();
        self.stalls = Stalls::default();
        self.counters.probes += 1;
        Some(Probe { batches, reason })
    }

    /// When [`Benefit::probe`] has something to do, if stalls do not change until then.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.probed.filter(|_| self.is_cached()).map(|last| last.at.saturating_add(PROBE_EVERY))
    }

    /// A mini-batch took so long, of which the job waited `stalled` for its data.
    pub fn batch(&mut self, mode: Mode, took: Duration, stalled: Duration) {
        if took.is_zero() || stalled > took {
            self.counters.nonsense += 1;
            return;
        }
        let (took_s, stalled_s) = (took.as_secs_f64(), stalled.as_secs_f64());
        self.busy.add(took_s - stalled_s);
        match mode {
            Mode::Hit => self.hit.add(took_s),
            Mode::Rotating => self.rotating.add(took_s),
            Mode::Miss => self.miss.add(took_s),
        }
        if self.forced > 0 && mode == Mode::Miss {
            self.forced -= 1;
            self.counters.probe_batches += 1;
        } else {
            self.stalls.add(stalled_s / took_s);
            if let (Some(probed), Some(share)) = (&mut self.probed, self.stalls.share()) {
                probed.stall_share.get_or_insert(share);
            }
        }
        self.batches += 1;
        if self.batches.is_multiple_of(JUDGE_EVERY) && !self.is_forced() {
            self.judge();
        }
    }

    /// Whether the job is to be cached.
    pub fn is_cached(&self) -> bool {
        self.verdict != Verdict::GainsNothing
    }

    /// Whether it gains.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How long a mini-batch takes in a mode, if that has been measured.
    pub fn time(&self, mode: Mode) -> Option<Estimate> {
        match mode {
            Mode::Hit => self.hit.estimate(),
            Mode::Rotating => self.rotating.estimate(),
            Mode::Miss => self.miss.estimate(),
        }
    }

    /// What placement wants to know, if misses and any one other time have been measured. A job that has
    /// never had all its items in the cache will then hardly wait; one whose items have never rotated
    /// will wait half as long as when it misses.
    pub fn times(&self) -> Option<Times> {
        let mean = |samples: &Samples| samples.estimate().map(|estimate| estimate.mean_s);
        let miss = mean(&self.miss)?;
        let rotating = mean(&self.rotating);
        let hit = mean(&self.hit).or(mean(&self.busy))?.min(rotating.unwrap_or(miss));
        let rotating = rotating.unwrap_or(f64::midpoint(hit, miss));
        Some(Times { hit, rotating, miss })
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn judge(&mut self) {
        if self.verdict == Verdict::GainsNothing {
            let stalls = self.stalls.share().is_some_and(|share| share > GAIN_AGAIN);
            self.stalling = if stalls { self.stalling + 1 } else { 0 };
            if self.stalling > STALLING_MAX {
                self.try_again();
            }
            return;
        }
        let cached = self.hit.estimate().or(self.rotating.estimate());
        let (Some(cached), Some(miss)) = (cached, self.miss.estimate()) else { return };
        // Neighbours are alike, so that a few of them seem surer than they are.
        if cached.samples < miss.samples.min(PROBE_BATCHES as usize) {
            return;
        }
        let gain = cached.gain_over(miss);
        if gain.low > GAIN_MIN {
            self.verdict = Verdict::Gains;
        } else if gain.high < GAIN_MIN {
            self.verdict = Verdict::GainsNothing;
            self.stalls = Stalls::default();
        }
    }

    /// A job without a cache gets another chance. Its misses of late count, what was before does not.
    fn try_again(&mut self) {
        self.verdict = Verdict::Unknown;
        self.miss.keep(PROBE_BATCHES as usize);
        for samples in [&mut self.hit, &mut self.rotating, &mut self.busy] {
            samples.clear();
        }
        (self.stalls, self.stalling) = (Stalls::default(), 0);
    }
}
