//! The contract of every policy, under random events, requests and reports.

use std::{collections::BTreeSet, time::Duration};

use forebay_core::{
    ByteSize,
    tier::{
        Bucket, Counters, Decision, FlashModel, Job, JobEvent, Place, Policy, PolicyKind, RegionId,
        Segment, Settings, Spec, WriteSettings, Written,
    },
    units::ByteRate,
};

use super::{request, spec, with_regions};
use crate::seeds;

/// Start time, so that time can go back.
const START: Duration = Duration::from_secs(100);

/// What a run may do besides requests and announcements.
#[derive(Clone, Copy, PartialEq)]
enum Reports {
    /// Everything that is to be kept is stored, and nothing is lost.
    None,
    /// Segments are not stored, regions are lost, objects change, the node restarts.
    Adverse,
}

/// A driver with a policy, both fed at random.
struct Drive {
    kind: PolicyKind,
    settings: Settings,
    policy: Box<dyn Policy>,
    flash: FlashModel,
    random: fastrand::Rng,
    now: Duration,
    latest: Duration,
    written: u64,
    log: Vec<Decision>,
}

impl Drive {
    fn new(kind: PolicyKind, seed: u64, limit: Option<u64>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut settings =
            with_regions(random.u64(..20), random.u32(1..40), *random.choice(&[1, 2, 9]).unwrap());
        settings.reinsertion = random.bool();
        settings.history.segments_max = random.usize(1..2000);
        settings.bitmaps = ByteSize(random.u64(..20_000));
        settings.expert = (0..3).map(Bucket).collect();
        settings.writes = WriteSettings {
            limit: limit.map(|rate| ByteRate(ByteSize(rate))),
            threshold_min: random.f64() * 2.0,
            ..WriteSettings::default()
        };
        let (policy, flash) = (kind.build(&settings), FlashModel::new(&settings));
        let (now, latest, written, log) = (START, START, 0, Vec::new());
        Self { kind, settings, policy, flash, random, now, latest, written, log }
    }

    /// Time that stands still, jumps and goes back.
    fn pass_time(&mut self) {
        let random = &mut self.random;
        self.now = match random.u32(..1000) {
            0 => self.now.saturating_sub(Duration::from_secs(random.u64(..1000))),
            1 => self.now + Duration::from_secs(random.u64(..3 * 3600)),
            2..100 => self.now,
            _ => self.now + Duration::from_millis(random.u64(..50)),
        };
        self.latest = self.latest.max(self.now);
    }

    /// Jobs that start, end, announce falsely and repeatedly.
    fn announce(&mut self) {
        let random = &mut self.random;
        let job = Job(random.u64(..80));
        let buckets: Vec<u32> = (0..random.u32(..4)).map(|_| random.u32(..8)).collect();
        let announced = Spec {
            starts: random.bool().then(|| Duration::from_secs(random.u64(..10_000))),
            lease: random.bool().then(|| Duration::from_secs(random.u64(..100))),
            rate: random.bool().then(|| ByteRate(ByteSize(random.u64(1..1_000_000)))),
            ..spec(&buckets, random.u64(..400))
        };
        let event = match random.u32(..4) {
            0 => JobEvent::Ended { job },
            _ => JobEvent::Announced { job, spec: &announced },
        };
        if let Err(error) = self.policy.on_event(self.now, event) {
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    /// A read of a whole segment or a range, of any length.
    fn read(&mut self, step: u64) {
        let random = &mut self.random;
        let (job, bucket) = (random.u64(..5), random.u32(..8));
        let number = if random.bool() { step % 300 } else { random.u64(..300) };
        let mut request = request(job, bucket, number);
        // The last segment of an object is shorter.
        request.length = if number % 7 == 0 { 333 } else { request.length };
        (request.offset, request.bytes) = (0, request.length);
        if random.u32(..4) == 0 {
            request.offset = random.u32(..request.length);
            request.bytes = random.u32(1..=request.length - request.offset);
        }
        if random.u32(..10) == 0 {
            request.job = None;
        }
        let place = self.flash.place(request.segment);
        let (decision, written) = self.flash.read(&mut *self.policy, self.now, &request);
        let context = format!("{} {place:?} {decision:?}", self.kind);
        assert_eq!(decision.is_hit(), place != Place::Absent, "{context}: a hit is a resident");
        self.written += written.bytes;
        self.log.push(decision);
    }

    fn any_region(&mut self) -> Option<RegionId> {
        let known: Vec<RegionId> = self.flash.regions().map(|(region, _)| region).collect();
        self.random.choice(known)
    }

    /// Reports of a server with faults.
    fn report(&mut self) {
        let stray = RegionId { index: self.random.u32(..50), generation: self.random.u64(..9) };
        let resident = request(1, 1, self.random.u64(..300)).resident();
        let policy = &mut *self.policy;
        match self.random.u32(..10) {
            0 => {
                if let Some(region) = self.any_region() {
                    self.flash.lose(&mut *self.policy, self.now, region);
                }
            }
            1..5 => self.flash.invalidate(policy, self.now, resident.segment),
            5 => policy.on_not_stored(self.now, &resident),
            // Late or wrong reports on regions.
            6 => {
                let index = self.settings.regions + self.random.u32(..3);
                policy.on_stored(self.now, &resident, Place::Flash(RegionId { index, ..stray }));
            }
            7 => policy.on_sealed(self.now, RegionId { generation: 1 << 40, ..stray }),
            8 => {
                // Asked for, fetched by another request, and asked for again.
                let pending = request(2, 2, self.random.u64(..300));
                if self.flash.place(pending.segment) == Place::Absent {
                    let decision = policy.on_request(self.now, &pending, Place::Pending);
                    assert_eq!(decision, Decision::Hit);
                }
            }
            _ => {
                // A restart: what is in memory is lost, what is on flash stays.
                self.policy = self.kind.build(&self.settings);
                self.flash.restart(&mut *self.policy, self.now);
            }
        }
    }

    fn check(&mut self, limit: Option<u64>) {
        let kind = self.kind;
        let used = self.policy.used();
        // Promise 6: flash, DRAM and write rate "have stated limits that hold under any load".
        assert_eq!(used.memory.0, self.flash.memory_bytes(), "{kind}");
        assert!(used.memory <= self.settings.dram, "{kind}: {} in memory", used.memory);
        assert_eq!(used.regions as usize, self.flash.regions_used(), "{kind}");
        if let Some(limit) = limit {
            let since = self.latest.saturating_sub(START).as_secs_f64();
            let allowed = limit as f64 * (since + 10.0) + 2.0 * self.settings.segment.0 as f64;
            assert!(self.written as f64 <= allowed, "{kind}: {} bytes", self.written);
        }
        if let Some(victim) = self.policy.victim(self.now) {
            let known: BTreeSet<RegionId> = self.flash.regions().map(|(id, _)| id).collect();
            assert!(known.contains(&victim), "{kind}: {victim:?}");
        }
        // Work that is due ends.
        let ticks = (0..1000).find(|_| !self.policy.on_tick(self.now));
        assert!(ticks.is_some(), "{kind}: a tick that never ends");
    }

    fn run(mut self, limit: Option<u64>, reports: Reports) -> (Vec<Decision>, Counters) {
        for step in 0..4000_u64 {
            self.pass_time();
            if self.random.u32(..100) == 0 {
                self.announce();
            }
            if reports == Reports::Adverse && self.random.u32(..50) == 0 {
                self.report();
            }
            self.read(step);
            if step % 50 == 0 {
                self.check(limit);
            }
        }
        (self.log, self.policy.counters())
    }
}

#[test]
fn decisions_and_capacity_agree_with_what_is_stored() {
    for seed in seeds(20) {
        for kind in PolicyKind::ALL {
            let (_, counters) = Drive::new(*kind, seed, None).run(None, Reports::None);
            assert_eq!(counters.unknown_regions, 0, "{kind} {seed}");
        }
    }
}

/// "Told what was stored and where, what was not stored, what was lost, invalidated, recovered."
#[test]
fn a_policy_follows_what_becomes_of_its_decisions() {
    for seed in seeds(20) {
        for kind in PolicyKind::ALL {
            Drive::new(*kind, seed, None).run(None, Reports::Adverse);
        }
    }
}

/// `CacheLib`'s policies have a soft write limit or none. They are baselines and are left out.
#[test]
fn the_write_limit_is_kept() {
    let baselines = [PolicyKind::DynamicRandom, PolicyKind::RejectFirst];
    for seed in seeds(20) {
        for kind in PolicyKind::ALL.iter().filter(|kind| !baselines.contains(kind)) {
            Drive::new(*kind, seed, Some(1000)).run(Some(1000), Reports::None);
        }
    }
}

#[test]
fn equal_requests_give_equal_decisions() {
    for kind in PolicyKind::ALL {
        let run = || Drive::new(*kind, 4, None).run(None, Reports::Adverse).0;
        assert_eq!(run(), run(), "{kind}");
    }
}

/// A write that did not happen does not count against the write limit.
#[test]
fn what_was_not_stored_is_given_back_to_the_write_limit() {
    for kind in [PolicyKind::Expert, PolicyKind::Future, PolicyKind::NextUse] {
        let mut settings = with_regions(0, 100, 1);
        settings.expert.insert(Bucket(1));
        settings.writes.limit = Some(ByteRate(ByteSize(100)));
        let mut policy = kind.build(&settings);
        for job in [1, 2, 3] {
            let spec = spec(&[1], 1000);
            policy.on_event(START, JobEvent::Announced { job: Job(job), spec: &spec }).unwrap();
            policy.on_request(START, &request(job, 1, 999), Place::Memory);
        }
        let kept = (0..50_u64).filter(|number| {
            let request = request(1, 1, *number);
            let decision = policy.on_request(START, &request, Place::Absent);
            if decision.is_kept() {
                policy.on_not_stored(START, &request.resident());
            }
            decision.is_kept()
        });
        assert_eq!(kept.count(), 50, "{kind}: two segments fit the limit's burst");
        assert_eq!(policy.counters().not_stored, 50);
    }
}

/// After a restart, what is on flash is hit, and is not admitted again.
#[test]
fn what_flash_recovered_is_known() {
    for kind in PolicyKind::ALL {
        let mut settings = with_regions(0, 20, 10);
        settings.expert.insert(Bucket(1));
        let mut world = super::World::new(*kind, &settings);
        for job in [1, 2, 3] {
            world.announce(job, &spec(&[1], 150));
            world.read(job, 1, 149);
        }
        for job in [1, 2] {
            world.scan(job, 1, 0..60);
        }
        world.now += Duration::from_secs(11);
        world.scan(1, 1, 60..100);
        let kept = world.kept(1, 0..100);
        assert!(kept > 0, "{kind}");
        world.policy = kind.build(&settings);
        world.flash.restart(&mut *world.policy, world.now);
        assert_eq!(world.policy.used().regions as usize, world.flash.regions_used(), "{kind}");
        assert_eq!(world.scan(3, 1, 0..100), kept, "{kind}: all of it is hit");
        let victim = world.policy.victim(world.now).expect("recovered regions are sealed");
        let first = world.flash.regions().map(|(region, _)| region).min_by_key(|r| r.generation);
        let is_fifo = *kind == PolicyKind::Fifo;
        assert!(!is_fifo || Some(victim) == first, "the region written first leaves first");
        let mut written = Written::default();
        world.flash.evict(&mut *world.policy, world.now, victim, &mut written);
        assert_eq!(world.flash.place(Segment(1 << 40)), Place::Absent);
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
