//! The contract of every policy, under random events and requests.

use std::{collections::BTreeSet, time::Duration};

use forebay_core::{
    ByteSize,
    tier::{Answer, Bucket, Changes, Job, JobEvent, PolicyKind, Segment, Spec, WriteSettings},
    units::ByteRate,
};

use super::{request, settings, spec};
use crate::seeds;

/// State of the tier as derived from answers and changes.
#[derive(Default)]
struct Mirror {
    resident: BTreeSet<Segment>,
    written: u64,
}

/// Start time, so that time can go back.
const START: Duration = Duration::from_secs(100);

/// Drives a policy at random: jobs that start, end, announce falsely and repeatedly; time that
/// stands still, jumps and goes back; segments of different lengths.
fn drive(kind: PolicyKind, seed: u64, limit: Option<u64>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (dram, flash) = (random.u64(..20), random.u64(1..200));
    let mut settings = settings(dram, flash);
    settings.reinsertion = random.bool();
    settings.history.segments_max = random.usize(1..2000);
    settings.expert = (0..3).map(Bucket).collect();
    settings.writes = WriteSettings {
        limit: limit.map(|rate| ByteRate(ByteSize(rate))),
        threshold_min: random.f64() * 2.0,
        ..WriteSettings::default()
    };
    let mut policy = kind.build(&settings);
    let mut mirror = Mirror::default();
    let mut changes = Changes::default();
    let (mut now, mut latest) = (START, START);
    let mut positions = [0_u64; 5];
    for step in 0..4000_u64 {
        now = match random.u32(..1000) {
            0 => now.saturating_sub(Duration::from_secs(random.u64(..1000))),
            1 => now + Duration::from_secs(random.u64(..3 * 3600)),
            2..100 => now,
            _ => now + Duration::from_millis(random.u64(..50)),
        };
        latest = latest.max(now);
        if random.u32(..100) == 0 {
            let job = Job(random.u64(..80));
            let buckets: Vec<u32> = (0..random.u32(..4)).map(|_| random.u32(..8)).collect();
            let announced = Spec {
                starts: random.bool().then(|| Duration::from_secs(random.u64(..10_000))),
                lease: random.bool().then(|| Duration::from_secs(random.u64(..100))),
                rate: random.bool().then(|| ByteRate(ByteSize(random.u64(1..1_000_000)))),
                ..spec(&buckets, random.u64(..400))
            };
            let result = match random.u32(..4) {
                0 => policy.on_event(now, JobEvent::Ended { job }),
                _ => policy.on_event(now, JobEvent::Announced { job, spec: &announced }),
            };
            if let Err(error) = result {
                assert_eq!(error.to_string().lines().count(), 1);
            }
        }
        let (job, bucket) = (random.u64(..5), random.u32(..8));
        let number = if random.bool() {
            positions[usize::try_from(job).unwrap()] = step % 300;
            step % 300
        } else {
            random.u64(..300)
        };
        let mut request = request(job, bucket, number);
        // The last segment of an object is shorter.
        request.bytes = if number % 7 == 0 { 333 } else { request.bytes };
        if random.u32(..10) == 0 {
            request.job = None;
        }

        let answer = policy.request(now, &request, &mut changes);
        let was_resident = mirror.resident.contains(&request.segment);
        assert_eq!(answer.is_hit(), was_resident, "{kind} {seed}: a hit is a resident");
        if matches!(answer, Answer::Kept | Answer::Filled) {
            mirror.resident.insert(request.segment);
        }
        for segment in &changes.dropped {
            assert!(mirror.resident.remove(segment), "{kind} {seed}: only residents are dropped");
        }
        mirror.written += changes.written.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        // Promise 6: flash, DRAM and write rate "have stated limits that hold under any load".
        let (dram_used, flash_used) = policy.used();
        assert!(dram_used <= settings.dram.0, "{kind} {seed}: {dram_used} bytes in memory");
        assert!(flash_used <= settings.flash.0, "{kind} {seed}: {flash_used} bytes on flash");
        if let Some(limit) = limit {
            let since = latest.saturating_sub(START).as_secs_f64();
            let allowed = limit as f64 * (since + 10.0);
            assert!(mirror.written as f64 <= allowed, "{kind} {seed}: {} bytes", mirror.written);
        }
        if step % 100 == 0 {
            assert!(mirror.resident.iter().all(|segment| policy.contains(*segment)));
        }
    }
}

#[test]
fn answers_changes_and_capacity_agree() {
    for seed in seeds(20) {
        for kind in PolicyKind::ALL {
            drive(*kind, seed, None);
        }
    }
}

/// `CacheLib`'s policies have a soft write limit or none. They are baselines and are left out.
#[test]
fn the_write_limit_is_kept() {
    let baselines = [PolicyKind::DynamicRandom, PolicyKind::RejectFirst];
    for seed in seeds(20) {
        for kind in PolicyKind::ALL.iter().filter(|kind| !baselines.contains(kind)) {
            drive(*kind, seed, Some(1000));
        }
    }
}

#[test]
fn equal_requests_give_equal_answers() {
    for kind in PolicyKind::ALL {
        let run = || {
            let mut world = super::World::new(kind.build(&settings(5, 50)));
            let mut random = fastrand::Rng::with_seed(4);
            world.announce(1, &spec(&[1, 2], 200));
            (0..5000)
                .map(|_| world.read(random.u64(..3), random.u32(..3), random.u64(..200)))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(), run(), "{kind}");
    }
}

#[test]
fn every_policy_can_be_parsed_from_its_name() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(*kind));
        assert!(!kind.about().is_empty());
    }
    let error = "lfu".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(error.contains("`lfu`") && error.contains("hybrid, next-use"), "{error}");
}
