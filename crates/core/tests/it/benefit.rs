//! Benefit of synthetic jobs whose times are as noisy as real ones.

use std::time::Duration;

use forebay_core::train::benefit::{BatchTime, Benefit, BenefitVerdict, Mode, ProbeReason};

use crate::seeds;

/// The times of a job: it computes, and waits for data that arrives in bursts.
struct Clock {
    rng: fastrand::Rng,
    now: Duration,
    compute_s: f64,
    /// Time in which the data of a mini-batch arrives.
    miss_s: f64,
    cached_s: f64,
    /// Mini-batches that arrive at once; the next waits for all of them.
    burst: u64,
    batches: u64,
    /// The part of the data's time that computing has not hidden.
    late_s: f64,
}

impl Clock {
    fn new(seed: u64, compute_s: f64, miss_s: f64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let burst = rng.u64(1..5);
        Self {
            rng,
            now: Duration::ZERO,
            compute_s,
            miss_s,
            cached_s: 0.02,
            burst,
            batches: 0,
            late_s: 0.0,
        }
    }

    /// One mini-batch, read as the probe requires.
    fn batch(&mut self, benefit: &mut Benefit) {
        benefit.start_probe(self.now);
        let misses = benefit.is_probing() || !benefit.is_cached();
        let mode = if misses { Mode::Miss } else { Mode::Rotating };
        let data_s = if mode == Mode::Miss { self.miss_s } else { self.cached_s };
        let noise = |rng: &mut fastrand::Rng| 0.9 + 0.2 * rng.f64();
        let compute_s = self.compute_s * noise(&mut self.rng);
        self.late_s += data_s * noise(&mut self.rng) - compute_s;
        self.late_s = self.late_s.max(-self.compute_s);
        self.batches += 1;
        let mut stalled_s = 0.0;
        if self.batches.is_multiple_of(self.burst) && self.late_s > 0.0 {
            stalled_s = std::mem::take(&mut self.late_s);
        }
        // The job writes a checkpoint now and then.
        let pause_s = if self.rng.u32(0..500) == 0 { 20.0 * self.compute_s } else { 0.0 };
        let took = Duration::from_secs_f64(compute_s + stalled_s + pause_s);
        let stalled = Duration::from_secs_f64(stalled_s);
        benefit.on_batch(mode, BatchTime { took, stalled });
        self.now += took;
    }
}

#[test]
fn jobs_that_wait_gain_and_jobs_that_compute_do_not() {
    let mut wrong = 0;
    let all = seeds(500);
    for seed in all.clone() {
        let waits = seed % 2 == 0;
        let mut rng = fastrand::Rng::with_seed(!seed);
        let compute_s = 0.05 + rng.f64();
        let miss_s = compute_s * if waits { 1.3 + 3.0 * rng.f64() } else { 0.9 * rng.f64() };
        let mut clock = Clock::new(seed, compute_s, miss_s);
        let mut benefit = Benefit::new(10_000);
        for _ in 0..1000 {
            clock.batch(&mut benefit);
        }
        let right = if waits { BenefitVerdict::Gains } else { BenefitVerdict::GainsNothing };
        let times = benefit.times().expect("measured");
        let ratio = times.miss / times.rotating;
        let truth = (miss_s / compute_s).max(1.0);
        let is_right = benefit.verdict() == right && (0.75..1.3).contains(&(ratio / truth));
        wrong += u64::from(!is_right);
    }
    assert!(wrong * 100 <= all.end - all.start, "{wrong} wrong verdicts");
}

/// Where times vary more than they differ, there is no verdict.
#[test]
fn noise_gives_no_verdict() {
    let all = seeds(200);
    let mut verdicts = 0;
    for seed in all.clone() {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut benefit = Benefit::new(10_000);
        benefit.start_probe(Duration::ZERO);
        for mode in [Mode::Miss, Mode::Rotating] {
            let mut took = Duration::ZERO;
            for batch in 0..100 {
                if batch % 10 == 0 {
                    took = Duration::from_secs_f64(0.5 + rng.f64());
                }
                benefit.on_batch(mode, BatchTime { took, stalled: Duration::ZERO });
            }
        }
        verdicts += u64::from(benefit.verdict() != BenefitVerdict::Unknown);
    }
    assert!(verdicts * 5 <= all.end - all.start, "{verdicts} verdicts");
}

/// Never more than one mini-batch in a hundred of an epoch; for epochs too short for a probe, never
/// more than one in a hundred of all epochs.
#[test]
fn probing_is_bounded() {
    for seed in seeds(50) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let epoch = rng.u64(1..30_000);
        let mut clock = Clock::new(seed, 1.0, 3.0);
        let mut benefit = Benefit::new(epoch);
        for epochs in 1..=4 {
            let before = benefit.counters().probe_batches;
            for batch in 0..epoch {
                if batch.is_multiple_of(500) {
                    clock.miss_s = 4.0 * rng.f64();
                    clock.cached_s = clock.miss_s * rng.f64();
                }
                clock.batch(&mut benefit);
            }
            let forced = benefit.counters().probe_batches - before;
            let in_all = benefit.counters().probe_batches;
            assert!(
                in_all * 100 <= epoch * epochs,
                "seed {seed}: {in_all} of {epoch}, {epochs} times"
            );
            assert!(epoch < 2000 || forced * 100 <= epoch, "seed {seed}: {forced} of {epoch}");
            benefit.on_next_epoch();
        }
        assert!(epoch < 700 || benefit.counters().probes > 0, "seed {seed}: it probes at all");
        assert!(benefit.counters().probe_batches <= benefit.counters().probes * 100);
    }
}

/// A probe that goes on in the next epoch counts for that epoch, too.
#[test]
fn a_probe_across_epochs_is_counted_in_both() {
    let mut benefit = Benefit::new(10_000);
    let second = BatchTime { took: Duration::from_secs(1), stalled: Duration::ZERO };
    assert_eq!(benefit.start_probe(Duration::ZERO).map(|probe| probe.batches), Some(100));
    benefit.on_batch(Mode::Miss, second);
    benefit.on_next_epoch();
    (0..99).for_each(|_| benefit.on_batch(Mode::Miss, second));
    assert_eq!(benefit.start_probe(Duration::from_hours(1)), None, "99 of this epoch were forced");
    benefit.on_next_epoch();
    assert!(benefit.start_probe(Duration::from_hours(2)).is_some());
}

/// A job with short epochs is probed in the end.
#[test]
fn short_epochs_save_up() {
    for epoch in [30, 150, 1961] {
        let mut benefit = Benefit::new(epoch);
        let epochs = (0..1000).take_while(|_| {
            let is_probed = benefit.start_probe(Duration::ZERO).is_some();
            benefit.on_next_epoch();
            !is_probed
        });
        let epochs = epochs.count() as u64;
        assert!((2000_u64.div_ceil(epoch) - 1..1000).contains(&epochs), "{epochs} of {epoch}");
    }
}

#[test]
fn a_probe_has_its_reason() {
    let mut clock = Clock::new(1, 1.0, 3.0);
    let mut benefit = Benefit::new(100_000);
    let first = benefit.start_probe(Duration::ZERO).expect("a new job");
    assert_eq!((first.batches, first.reason), (100, ProbeReason::New));
    for _ in 0..300 {
        clock.batch(&mut benefit);
    }
    let soon = clock.now + Duration::from_secs(1);
    assert_eq!(benefit.start_probe(soon), None, "nothing has changed");
    clock.cached_s = 2.0;
    let mut reasons = Vec::new();
    for _ in 0..4000 {
        if let Some(probe) = benefit.start_probe(clock.now) {
            reasons.push(probe.reason);
        }
        clock.batch(&mut benefit);
    }
    assert_eq!(reasons[..2], [ProbeReason::StallsChanged, ProbeReason::Periodic], "{reasons:?}");
}

/// Near the threshold the verdict does not alternate.
#[test]
fn verdicts_are_steady() {
    for seed in seeds(50) {
        let mut clock = Clock::new(seed, 1.0, 0.95 + 0.15 * (seed % 10) as f64 / 10.0);
        let mut benefit = Benefit::new(50_000);
        let (mut changes, mut before) = (0, benefit.verdict());
        for _ in 0..10_000 {
            clock.batch(&mut benefit);
            changes += u32::from(benefit.verdict() != before);
            before = benefit.verdict();
        }
        assert!(changes <= 6, "seed {seed}: {changes} changes");
    }
}

/// A job without a cache gets another chance when the origin becomes slow.
#[test]
fn a_job_that_starts_to_stall_is_cached_again() {
    let mut clock = Clock::new(3, 1.0, 0.5);
    let mut benefit = Benefit::new(10_000);
    for _ in 0..1000 {
        clock.batch(&mut benefit);
    }
    assert_eq!(benefit.verdict(), BenefitVerdict::GainsNothing);
    let probes = benefit.counters().probes;
    clock.miss_s = 3.0;
    for _ in 0..1000 {
        clock.batch(&mut benefit);
    }
    assert_eq!(benefit.verdict(), BenefitVerdict::Gains);
    assert_eq!(benefit.counters().probes, probes, "its own misses were enough");
}

#[test]
fn impossible_times_are_counted_and_ignored() {
    let mut benefit = Benefit::new(10_000);
    let time = |took, stalled| {
        let (took, stalled) = (Duration::from_secs(took), Duration::from_secs(stalled));
        BatchTime { took, stalled }
    };
    benefit.on_batch(Mode::Hit, time(0, 0));
    benefit.on_batch(Mode::Hit, time(1, 2));
    assert_eq!(benefit.counters().invalid_times, 2);
    assert_eq!((benefit.time(Mode::Hit), benefit.times()), (None, None));
}
