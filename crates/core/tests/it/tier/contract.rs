//! What every policy promises, whatever it is told and asked.

use std::{collections::BTreeSet, time::Duration};

use forebay_core::{
    ByteSize,
    tier::{Answer, Bucket, Changes, Fact, Job, PolicyKind, Segment, Spec, WriteSettings},
    units::ByteRate,
};

use super::{request, settings, spec};
use crate::seeds;

/// What a driver knows from answers and changes alone.
#[derive(Default)]
struct Books {
    resident: BTreeSet<Segment>,
    written: u64,
}

/// So that time can go back.
const START: Duration = Duration::from_secs(100);

/// Tells and asks at random: jobs that come, go, lie and repeat, time that stands still, jumps and goes back, segments of odd lengths.
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
    let mut books = Books::default();
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
            let said = Spec {
                starts: random.bool().then(|| Duration::from_secs(random.u64(..10_000))),
                lease: random.bool().then(|| Duration::from_secs(random.u64(..100))),
                rate: random.bool().then(|| ByteRate(ByteSize(random.u64(1..1_000_000)))),
                ..spec(&buckets, random.u64(..400))
            };
            let told = match random.u32(..4) {
                0 => policy.tell(now, Fact::Ended { job }),
                _ => policy.tell(now, Fact::Announced { job, spec: &said }),
            };
            if let Err(contradiction) = told {
                assert_eq!(contradiction.to_string().lines().count(), 1);
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
        // A segment's length is its own: the last of an object is shorter.
        request.bytes = if number % 7 == 0 { 333 } else { request.bytes };
        if random.u32(..10) == 0 {
            request.job = None;
        }

        let answer = policy.request(now, &request, &mut changes);
        let was_there = books.resident.contains(&request.segment);
        assert_eq!(answer.is_hit(), was_there, "{kind} {seed}: a hit is what was kept");
        if matches!(answer, Answer::Kept | Answer::Filled) {
            books.resident.insert(request.segment);
        }
        for segment in &changes.dropped {
            assert!(books.resident.remove(segment), "{kind} {seed}: only what is there can go");
        }
        books.written += changes.written.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        // Promise 6: "Flash used, DRAM used, […] write rate […] each have a stated limit that holds under any load."
        let (dram_used, flash_used) = policy.used();
        assert!(dram_used <= settings.dram.0, "{kind} {seed}: {dram_used} bytes in memory");
        assert!(flash_used <= settings.flash.0, "{kind} {seed}: {flash_used} bytes on flash");
        if let Some(limit) = limit {
            let since = latest.saturating_sub(START).as_secs_f64();
            let allowed = limit as f64 * (since + 10.0);
            assert!(books.written as f64 <= allowed, "{kind} {seed}: {} bytes", books.written);
        }
        if step % 100 == 0 {
            assert!(books.resident.iter().all(|segment| policy.contains(*segment)));
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

/// `CacheLib`'s own ways to hold writes back keep a rate on average, or none: they are yardsticks.
#[test]
fn no_more_is_written_than_the_limit() {
    let yardsticks = [PolicyKind::DynamicRandom, PolicyKind::RejectFirst];
    for seed in seeds(20) {
        for kind in PolicyKind::ALL.iter().filter(|kind| !yardsticks.contains(kind)) {
            drive(*kind, seed, Some(1000));
        }
    }
}

#[test]
fn the_same_requests_give_the_same_answers() {
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
fn policies_are_known_by_their_names() {
    for kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(*kind));
        assert!(!kind.about().is_empty());
    }
    let error = "lfu".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(error.contains("`lfu`") && error.contains("hybrid, next-use"), "{error}");
}
