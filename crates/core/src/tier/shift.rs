//! Shift's policies (5.1) and their baselines: admission in front of LRU or FIFO.
//!
//! Shift decides before the origin is read. A bucket is admitted while its priority exceeds the
//! threshold, and in part when it equals it. `CacheLib` decides later: every segment is fetched,
//! and when it leaves memory it is written to flash or dropped.
//!
//! Flash is evicted by the region, in LRU or FIFO order; a hit renews the region. All segments go
//! to one stream. With reinsertion, those of a region that is evicted are written again whose
//! bucket's priority exceeds the threshold by one more.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Clock, Counters, Policy, Used,
    admission_threshold::AdmissionThreshold,
    history::{History, Observation},
    invalid_event::InvalidEvent,
    jobs::Jobs,
    kind::Settings,
    memory_queue::{Eviction, InMemory, MemoryQueue},
    passes::Passes,
    region_queue::RegionQueue,
    snapshot::{self, SnapshotError},
    types::{
        Bucket, Decision, Departure, JobEvent, Place, RegionId, Request, Resident, Rewrite,
        Segment, Stream,
    },
};
use crate::{
    ByteSize,
    util::stable_hash::{StableMap, StableSet, mix},
};

/// Source of a bucket's priority, the expected reads of each of its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// Mean reads per segment in the history window.
    Historic,
    /// Number of jobs that have announced and not finished it.
    Future,
    /// The larger of both.
    Hybrid,
}

/// Admission rule.
#[derive(Debug)]
pub(super) enum Admission {
    /// Every segment.
    All,
    /// Buckets whose priority exceeds the threshold.
    Priority(Priority),
    /// Buckets that an expert has listed (Shift 6.2).
    Expert(BTreeSet<Bucket>),
    /// Every segment into memory, and a random share of them on to flash, tuned to the write limit.
    DynamicRandom {
        /// The current share.
        share: f64,
        /// Bytes written since the share was last tuned.
        written: u64,
        /// Time of the last tuning.
        since: Duration,
        /// Number of random draws, to seed the next.
        draws: u64,
    },
    /// Every segment into memory, and on to flash those that left memory before.
    RejectFirst(RecentSet),
}

impl Admission {
    pub fn dynamic_random() -> Self {
        Self::DynamicRandom { share: 1.0, written: 0, since: Duration::ZERO, draws: 0 }
    }
}

/// Recently inserted segments, in two generations. The older is dropped when the newer is full.
#[derive(Debug)]
pub(super) struct RecentSet {
    newer: StableSet<u64>,
    older: StableSet<u64>,
    each_max: usize,
}

impl RecentSet {
    pub fn new(each_max: usize) -> Self {
        Self { newer: StableSet::default(), older: StableSet::default(), each_max: each_max.max(1) }
    }

    /// Inserts a segment. Returns whether it was present.
    fn insert(&mut self, segment: Segment) -> bool {
        let was_present = self.newer.contains(&segment.0) || self.older.contains(&segment.0);
        if self.newer.len() >= self.each_max {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(segment.0);
        was_present
    }
}

/// The only stream.
const STREAM: Stream = Stream(0);

/// Admission, threshold and reinsertion in front of the queues of memory and flash.
#[derive(Debug)]
pub(super) struct Shift {
    clock: Clock,
    memory: MemoryQueue,
    regions: RegionQueue,
    admission: Admission,
    reinsertion: bool,
    threshold: AdmissionThreshold,
    history: History,
    jobs: Jobs,
    passes: Passes,
    /// Priorities, cached until the next refresh.
    priorities: StableMap<Bucket, f64>,
    not_stored: u64,
}

impl Shift {
    pub fn new(settings: &Settings, eviction: Eviction, admission: Admission) -> Self {
        Self {
            clock: Clock::default(),
            memory: MemoryQueue::new(eviction, settings.dram.0),
            regions: RegionQueue::new(eviction, settings.regions),
            admission,
            reinsertion: settings.reinsertion,
            threshold: AdmissionThreshold::new(settings.writes, settings.segment),
            history: History::new(&settings.history),
            jobs: Jobs::new(settings.lease, settings.segment, ByteSize::ZERO),
            passes: Passes::new(),
            priorities: StableMap::default(),
            not_stored: 0,
        }
    }

    fn priority(&mut self, now: Duration, bucket: Bucket) -> f64 {
        let Admission::Priority(kind) = self.admission else { return 0.0 };
        if let Some(priority) = self.priorities.get(&bucket) {
            return *priority;
        }
        let future = || f64::from(self.jobs.future_readers(now, bucket));
        let priority = match kind {
            Priority::Future => future(),
            Priority::Historic => self.history.reads_per_segment(now, bucket),
            Priority::Hybrid => {
                let future = future();
                self.history.reads_per_segment(now, bucket).max(future)
            }
        };
        self.priorities.insert(bucket, priority);
        priority
    }

    fn refresh(&mut self, now: Duration) {
        if self.threshold.tick(now) {
            self.jobs.begin_tick();
            self.priorities.clear();
        }
        self.jobs.tick_slice(now);
        if let Admission::DynamicRandom { share, written, since, .. } = &mut self.admission
            && let Some(limit) = self.threshold.limit()
            && now.saturating_sub(*since) >= self.threshold.refresh()
        {
            let rate = *written as f64 / now.saturating_sub(*since).as_secs_f64();
            let tuned = *share * limit.0.0 as f64 / rate.max(1.0);
            *share = tuned.clamp(*share / 4.0, *share * 4.0).clamp(1e-6, 1.0);
            (*written, *since) = (0, now);
        }
    }

    /// Whether a segment that was fetched without an admission decision is written to flash.
    fn is_written(&mut self, now: Duration, segment: Segment, length: u32) -> bool {
        match &mut self.admission {
            // CacheLib's own write limits are soft: no token bucket.
            Admission::DynamicRandom { share, draws, written, .. } => {
                *draws += 1;
                let draw = (mix(segment.0 ^ mix(*draws)) >> 11) as f64 / (1_u64 << 53) as f64;
                let kept = draw < *share;
                *written += if kept { u64::from(length) } else { 0 };
                kept
            }
            Admission::RejectFirst(recent) => recent.insert(segment),
            _ => self.threshold.try_write(now, length),
        }
    }

    /// Whether a segment that is not resident is kept, before it is fetched.
    fn is_admitted(&mut self, now: Duration, request: &Request) -> bool {
        match &self.admission {
            Admission::Priority(_) => {
                let priority = self.priority(now, request.bucket);
                self.threshold.admits(priority, request.segment, request.length)
                    && self.threshold.try_write(now, request.length)
            }
            Admission::Expert(listed) => {
                listed.contains(&request.bucket) && self.threshold.try_write(now, request.length)
            }
            // Decided when the segment leaves memory, if there is memory.
            _ => {
                self.memory.can_hold(request.length)
                    || self.is_written(now, request.segment, request.length)
            }
        }
    }

    /// Whether [`Self::is_admitted`] has charged the write to the limit.
    fn charges_on_request(&self) -> bool {
        matches!(self.admission, Admission::Priority(_) | Admission::Expert(_))
    }
}

impl Policy for Shift {
    fn on_request(&mut self, now: Duration, request: &Request, place: Place) -> Decision {
        let now = self.clock.advance(now);
        self.refresh(now);
        if let Admission::Priority(kind) = self.admission {
            let is_pass = self.passes.on_request(now, request);
            if is_pass && kind != Priority::Future {
                self.history.record(now, request.bucket, request.segment);
            }
            if kind != Priority::Historic {
                self.jobs.on_read(now, request, Observation::NONE, is_pass);
            }
        }
        match place {
            Place::Memory => self.memory.touch(request.segment),
            Place::Flash(region) => self.regions.touch(region),
            Place::Pending => {}
            Place::Absent if self.regions.len() == 0 && !self.memory.can_hold(request.length) => {
                return Decision::Pass;
            }
            Place::Absent if !self.is_admitted(now, request) => return Decision::Pass,
            Place::Absent if self.memory.can_hold(request.length) => return Decision::Memory,
            Place::Absent => return Decision::Flash(STREAM),
        }
        Decision::Hit
    }

    fn leave_memory(&mut self, now: Duration) -> Option<Departure> {
        let now = self.clock.advance(now);
        let InMemory { resident, write_charged } = self.memory.pop_overflow()?;
        let is_written = self.regions.len() > 0
            && (write_charged || self.is_written(now, resident.segment, resident.length));
        Some(Departure { resident, to: is_written.then_some(STREAM) })
    }

    fn on_stored(&mut self, _now: Duration, resident: &Resident, place: Place) {
        match place {
            Place::Memory => {
                let write_charged = self.charges_on_request();
                self.memory.insert(InMemory { resident: *resident, write_charged });
            }
            Place::Flash(region) => self.regions.on_stored(region),
            Place::Absent | Place::Pending => {}
        }
    }

    fn on_not_stored(&mut self, _now: Duration, resident: &Resident) {
        self.not_stored += 1;
        if self.charges_on_request() {
            self.threshold.give_back(resident.length);
        }
    }

    fn on_sealed(&mut self, _now: Duration, region: RegionId) {
        self.regions.on_sealed(region);
    }

    fn victim(&mut self, _now: Duration) -> Option<RegionId> {
        self.regions.oldest()
    }

    fn reinsert(
        &mut self,
        now: Duration,
        _region: RegionId,
        residents: &[Resident],
        rewrites: &mut Vec<Rewrite>,
    ) {
        if !self.reinsertion {
            return;
        }
        let now = self.clock.advance(now);
        for resident in residents {
            if rewrites.len() >= residents.len() * 3 / 4 {
                break;
            }
            if self.priority(now, resident.bucket) > self.threshold.value() + 1.0
                && self.threshold.try_write(now, resident.length)
            {
                rewrites.push(Rewrite { resident: *resident, to: STREAM });
            }
        }
    }

    fn on_freed(&mut self, _now: Duration, region: RegionId) {
        self.regions.on_freed(region);
    }

    fn on_invalidated(&mut self, _now: Duration, place: Place, residents: &[Resident]) {
        if place == Place::Memory {
            for resident in residents {
                self.memory.remove(resident.segment);
            }
        }
    }

    fn on_recovered(&mut self, _now: Duration, region: RegionId, _residents: &[Resident]) {
        self.regions.on_stored(region);
        self.regions.on_sealed(region);
    }

    fn on_tick(&mut self, now: Duration) -> bool {
        let now = self.clock.advance(now);
        self.refresh(now);
        self.jobs.tick_slice(now)
    }

    fn on_event(&mut self, now: Duration, event: JobEvent<'_>) -> Result<(), InvalidEvent> {
        let now = self.clock.advance(now);
        if !matches!(self.admission, Admission::Priority(Priority::Future | Priority::Hybrid)) {
            return Ok(()); // The other rules ignore jobs.
        }
        match event {
            JobEvent::Announced { job, spec } => self.jobs.on_announced(now, job, spec)?,
            JobEvent::Ended { job } => self.jobs.on_ended(job)?,
        }
        self.priorities.clear();
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        snapshot::save(&self.history, &self.jobs, &self.threshold)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        let Self { history, jobs, threshold, .. } = self;
        snapshot::restore(snapshot, history, jobs, threshold)
    }

    fn used(&self) -> Used {
        Used { memory: ByteSize(self.memory.used()), regions: self.regions.used() }
    }

    fn counters(&self) -> Counters {
        Counters {
            jobs: self.jobs.counters(),
            time_went_back: self.clock.went_back,
            history_one_in: self.history.one_in(),
            lru_takeovers: 0,
            not_stored: self.not_stored,
            unknown_regions: self.regions.unknown(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::jobs::tests::buckets_after_reannouncements;

    #[test]
    fn buckets_that_were_announced_and_never_read_are_dropped() {
        let settings = Settings::new(ByteSize(0), 10);
        let policy = Shift::new(&settings, Eviction::Lru, Admission::Priority(Priority::Future));
        assert!(buckets_after_reannouncements(policy, |policy| &policy.jobs) <= 2);
    }
}
