//! Benefit: what a job gains from the cache, measured instead of modelled (Quiver 5.3).
//!
//! Whether a job gains depends on its model, its GPUs, its pipelining and the load of the origin.
//! But its mini-batches are alike, so it is enough to time some with the cache and some without. A
//! **probe** makes a job miss for 100 mini-batches, but for at most 1 % of its epoch. A job with
//! epochs too short for that saves up over several of them. A job that is about as fast without a
//! cache gets none, so that its space is free for others.
//!
//! A probe costs the job time and the origin bytes. So there is one when a job is new, then every
//! 30 minutes, and when its **stalls** (the time that it waits for data) show that something has
//! changed. A job without a cache measures misses with every mini-batch. If it starts to stall, it
//! gets another chance.
//!
//! A verdict needs confidence, and only clearly different times overturn it.
//!
//! Not here: how much space follows (`placement`), how a miss is forced (the agent's `probe_mode`).

mod estimate;

use std::time::Duration;

pub use estimate::Estimate;
use estimate::Samples;

use crate::train::placement::ModeTimes;

/// Mini-batches of a probe, as in Quiver.
const PROBE_BATCHES: u32 = 100;
/// At most one mini-batch in 100 of an epoch is part of a probe.
const EPOCH_PER_PROBE: u64 = 100;
/// Smallest probe: fewer mini-batches give no estimate.
const PROBE_BATCHES_MIN: u32 = estimate::SAMPLES_MIN;
/// Interval between probes: the origin's load changes.
const PROBE_EVERY: Duration = Duration::from_mins(30);
/// Shortest interval between probes, whatever the stalls.
const PROBE_PAUSE: Duration = Duration::from_mins(2);
/// A job has changed if its share of stalled time differs by this much from that at its last probe.
const STALL_CHANGE: f64 = 0.1;
/// A job that gains less gets no cache.
const GAIN_MIN: f64 = 0.05;
/// Expected gain at which a job without a cache gets another chance.
const GAIN_AGAIN: f64 = 0.1;

/// A job without a cache that stalls at more than this number of checks in a row gets another
/// chance.
const STALLED_LOOKS_MAX: u32 = 10;
/// Mini-batches between two checks of the verdict.
const JUDGE_EVERY: u64 = 10;

/// Where the items of a mini-batch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// All from pinned chunks.
    Hit,
    /// At least some from rotating chunks.
    Rotating,
    /// From the origin: in a probe, or because nothing is cached.
    Miss,
}

/// Time of a mini-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchTime {
    /// From one mini-batch to the next.
    pub took: Duration,
    /// The part of `took` in which the job waited for its data.
    pub stalled: Duration,
}

/// Whether a job gains from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenefitVerdict {
    /// Not measured: the job gets a cache, to find out.
    Unknown,
    /// It gains.
    Gains,
    /// It gains nothing, and reads from the origin.
    GainsNothing,
}

/// A probe: the job's next mini-batches are to miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Number of mini-batches.
    pub batches: u32,
    /// Why it is done.
    pub reason: ProbeReason,
}

/// Why a job is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeReason {
    /// It was never probed.
    New,
    /// The last probe is 30 minutes old.
    Periodic,
    /// It stalls more, or less, than at its last probe.
    StallsChanged,
}

/// Counts since the job joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BenefitCounters {
    /// Probes that were started.
    pub probes: u64,
    /// Mini-batches that were forced to miss.
    pub probe_batches: u64,
    /// Impossible times, which were ignored.
    pub invalid_times: u64,
}

/// The benefit of one job.
#[derive(Debug)]
pub struct Benefit {
    epoch_batches: u64,
    hit: Samples,
    rotating: Samples,
    miss: Samples,
    /// Time of a mini-batch without its stalls, in any mode.
    busy: Samples,
    /// Stalls in the job's usual mode: with the cache, or without if it has none.
    stalls: Stalls,
    verdict: BenefitVerdict,
    /// Checks in a row at which a job without a cache was stalling.
    stalled_looks: u32,
    /// Mini-batches that are left of the current probe, and those that further probes may use in
    /// this epoch.
    probe_left: u32,
    allowance: u64,
    /// Mini-batches of former epochs that did not add up to 100.
    saved: u64,
    last_probe: Option<LastProbe>,
    batches: u64,
    counters: BenefitCounters,
}

#[derive(Debug, Clone, Copy)]
struct LastProbe {
    at: Duration,
    stall_share: Option<f64>,
}

/// The share of recent time that a job waited for data.
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

    /// Known after 100 mini-batches, the length of a probe.
    fn share(&self) -> Option<f64> {
        (self.batches >= PROBE_BATCHES).then_some(self.share)
    }
}

impl Benefit {
    /// A new job with `epoch_batches` mini-batches in an epoch.
    pub fn new(epoch_batches: u64) -> Self {
        Self {
            epoch_batches,
            hit: Samples::default(),
            rotating: Samples::default(),
            miss: Samples::default(),
            busy: Samples::default(),
            stalls: Stalls::default(),
            verdict: BenefitVerdict::Unknown,
            stalled_looks: 0,
            probe_left: 0,
            allowance: epoch_batches / EPOCH_PER_PROBE,
            saved: epoch_batches % EPOCH_PER_PROBE,
            last_probe: None,
            batches: 0,
            counters: BenefitCounters::default(),
        }
    }

    /// The job starts its next epoch.
    pub fn on_next_epoch(&mut self) {
        let fresh = self.epoch_batches / EPOCH_PER_PROBE;
        if fresh >= PROBE_BATCHES_MIN.into() {
            // The rest of a running probe counts for this epoch.
            self.allowance = fresh.saturating_sub(self.probe_left.into());
            return;
        }
        self.saved += self.epoch_batches;
        let saved = self.saved / EPOCH_PER_PROBE;
        self.saved %= EPOCH_PER_PROBE;
        self.allowance = (self.allowance + saved).min(PROBE_BATCHES_MIN.into());
    }

    /// Whether the job's next mini-batch is part of a probe.
    pub fn is_probing(&self) -> bool {
        self.probe_left > 0
    }

    /// Starts a probe, if one is due. The job's next mini-batches miss until
    /// [`Benefit::is_probing`] is false.
    pub fn start_probe(&mut self, now: Duration) -> Option<Probe> {
        // A job without a cache misses all the time.
        if self.is_probing() || !self.is_cached() {
            return None;
        }
        let reason = match self.last_probe {
            None => ProbeReason::New,
            Some(last) if now >= last.at.saturating_add(PROBE_EVERY) => ProbeReason::Periodic,
            Some(last) if now >= last.at.saturating_add(PROBE_PAUSE) => {
                let change = (self.stalls.share()? - last.stall_share?).abs();
                (change > STALL_CHANGE).then_some(ProbeReason::StallsChanged)?
            }
            Some(_) => return None,
        };
        let batches = u32::try_from(self.allowance).unwrap_or(u32::MAX).min(PROBE_BATCHES);
        if batches < PROBE_BATCHES_MIN {
            return None;
        }
        self.probe_left = batches;
        self.allowance -= u64::from(batches);
        self.last_probe = Some(LastProbe { at: now, stall_share: None });
        self.miss.clear();
        self.stalls = Stalls::default();
        self.counters.probes += 1;
        Some(Probe { batches, reason })
    }

    /// When [`Benefit::start_probe`] is due, if stalls do not change before.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.last_probe.filter(|_| self.is_cached()).map(|last| last.at.saturating_add(PROBE_EVERY))
    }

    /// A mini-batch is complete.
    pub fn on_batch(&mut self, mode: Mode, BatchTime { took, stalled }: BatchTime) {
        if took.is_zero() || stalled > took {
            self.counters.invalid_times += 1;
            return;
        }
        let (took_s, stalled_s) = (took.as_secs_f64(), stalled.as_secs_f64());
        self.busy.add(took_s - stalled_s);
        match mode {
            Mode::Hit => self.hit.add(took_s),
            Mode::Rotating => self.rotating.add(took_s),
            Mode::Miss => self.miss.add(took_s),
        }
        if self.probe_left > 0 && mode == Mode::Miss {
            self.probe_left -= 1;
            self.counters.probe_batches += 1;
        } else {
            self.stalls.add(stalled_s / took_s);
            if let (Some(last_probe), Some(share)) = (&mut self.last_probe, self.stalls.share()) {
                last_probe.stall_share.get_or_insert(share);
            }
        }
        self.batches += 1;
        if self.batches.is_multiple_of(JUDGE_EVERY) && !self.is_probing() {
            self.judge();
        }
    }

    /// Whether the job gets a cache.
    pub fn is_cached(&self) -> bool {
        self.verdict != BenefitVerdict::GainsNothing
    }

    /// Whether the job gains.
    pub fn verdict(&self) -> BenefitVerdict {
        self.verdict
    }

    /// Time of a mini-batch in a mode, if measured.
    pub fn time(&self, mode: Mode) -> Option<Estimate> {
        match mode {
            Mode::Hit => self.hit.estimate(),
            Mode::Rotating => self.rotating.estimate(),
            Mode::Miss => self.miss.estimate(),
        }
    }

    /// The times for placement, if misses and one other mode are measured. A job that never had all
    /// its items in the cache is assumed to stall hardly at all then. A job whose items never
    /// rotated is assumed to take the mean of its hit and miss times.
    pub fn times(&self) -> Option<ModeTimes> {
        let mean = |samples: &Samples| samples.estimate().map(|estimate| estimate.mean_s);
        let miss = mean(&self.miss)?;
        let rotating = mean(&self.rotating);
        let hit = mean(&self.hit).or(mean(&self.busy))?.min(rotating.unwrap_or(miss));
        let rotating = rotating.unwrap_or(f64::midpoint(hit, miss));
        Some(ModeTimes { hit, rotating, miss })
    }

    /// Counts since the job joined.
    pub fn counters(&self) -> BenefitCounters {
        self.counters
    }

    fn judge(&mut self) {
        if self.verdict == BenefitVerdict::GainsNothing {
            let stalls = self.stalls.share().is_some_and(|share| share > GAIN_AGAIN);
            self.stalled_looks = if stalls { self.stalled_looks + 1 } else { 0 };
            if self.stalled_looks > STALLED_LOOKS_MAX {
                self.retry();
            }
            return;
        }
        let cached = self.hit.estimate().or(self.rotating.estimate());
        let (Some(cached), Some(miss)) = (cached, self.miss.estimate()) else { return };
        // Neighbouring mini-batches are similar, so that a few of them give too small an error.
        if cached.samples < miss.samples.min(PROBE_BATCHES as usize) {
            return;
        }
        let gain = cached.gain_over(miss);
        if gain.low > GAIN_MIN {
            self.verdict = BenefitVerdict::Gains;
        } else if gain.high < GAIN_MIN {
            self.verdict = BenefitVerdict::GainsNothing;
            self.stalls = Stalls::default();
        }
    }

    /// Gives a job without a cache another chance. Its latest misses count; older samples do not.
    fn retry(&mut self) {
        self.verdict = BenefitVerdict::Unknown;
        self.miss.keep(PROBE_BATCHES as usize);
        for samples in [&mut self.hit, &mut self.rotating, &mut self.busy] {
            samples.clear();
        }
        (self.stalls, self.stalled_looks) = (Stalls::default(), 0);
    }
}
