//! Shift's policies (5.1) and their baselines: admission in front of LRU or FIFO.
//!
//! Shift decides before the origin is read. A bucket is admitted while its priority exceeds the
//! threshold, and in part when it equals it. `CacheLib` decides later: every segment is fetched,
//! and when it leaves memory it is written to flash or dropped.
//!
//! With reinsertion, a segment that is about to leave flash is written again if its bucket's
//! priority exceeds the threshold by one more.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Clock, Counters, Policy,
    admission_threshold::AdmissionThreshold,
    history::{History, Observation},
    invalid_event::InvalidEvent,
    jobs::Jobs,
    kind::Settings,
    two_tier_lru::{Eviction, Tier, TwoTierLru},
    types::{Answer, Bucket, Changes, JobEvent, Request, Segment},
};
use crate::util::{
    slab_list::Slot,
    stable_hash::{StableMap, StableSet, mix},
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

/// Most reinsertions per eviction, which bounds the cost of a request.
const REINSERTIONS_MAX: u32 = 64;

/// Admission, threshold and reinsertion in front of two queues.
#[derive(Debug)]
pub(super) struct Shift {
    clock: Clock,
    residents: TwoTierLru,
    admission: Admission,
    reinsertion: bool,
    threshold: AdmissionThreshold,
    history: History,
    jobs: Jobs,
    /// Priorities, cached until the next refresh.
    priorities: StableMap<Bucket, f64>,
}

impl Shift {
    pub fn new(settings: &Settings, eviction: Eviction, admission: Admission) -> Self {
        Self {
            clock: Clock::default(),
            residents: TwoTierLru::new(eviction, settings.dram.0, settings.flash.0),
            admission,
            reinsertion: settings.reinsertion,
            threshold: AdmissionThreshold::new(settings.writes, settings.segment),
            history: History::new(&settings.history),
            jobs: Jobs::new(settings.lease, settings.segment),
            priorities: StableMap::default(),
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
            self.jobs.tick(now);
            // Residents here carry no reader bits, so recycled bits need no clearing.
            self.jobs.drop_unread_buckets(|_| false);
            self.jobs.recycled_bits.clear();
            self.priorities.clear();
        }
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

    /// Moves a segment out of memory: to flash, or out of the tier.
    fn leave_dram(&mut self, now: Duration, slot: Slot, changes: &mut Changes) {
        let (segment, bytes) = (self.residents.segment(slot), self.residents.bytes(slot));
        let allowed = self.residents.fits_flash(slot)
            && match &mut self.admission {
                // CacheLib's own write limits are soft: no token bucket.
                Admission::DynamicRandom { share, draws, written, .. } => {
                    *draws += 1;
                    let draw = (mix(segment.0 ^ mix(*draws)) >> 11) as f64 / (1_u64 << 53) as f64;
                    let kept = draw < *share;
                    *written += if kept { u64::from(bytes) } else { 0 };
                    kept
                }
                Admission::RejectFirst(recent) => recent.insert(segment),
                _ => self.residents.is_write_charged(slot) || self.threshold.try_write(now, bytes),
            };
        if !allowed {
            changes.dropped.push(self.residents.remove(slot));
            return;
        }
        let mut reinsertions = 0;
        while let Some(oldest) = self.residents.flash_victim_for(slot) {
            let bytes = self.residents.bytes(oldest);
            let reinsert = self.reinsertion
                && reinsertions < REINSERTIONS_MAX
                && self.priority(now, self.residents.bucket(oldest)) > self.threshold.value() + 1.0
                && self.threshold.try_write(now, bytes);
            if reinsert {
                reinsertions += 1;
                changes.written.push((self.residents.segment(oldest), bytes));
                self.residents.reinsert(oldest);
            } else {
                changes.dropped.push(self.residents.remove(oldest));
            }
        }
        changes.written.push((segment, bytes));
        self.residents.move_to_flash(slot);
    }
}

impl Policy for Shift {
    fn request(&mut self, now: Duration, request: &Request, changes: &mut Changes) -> Answer {
        changes.clear();
        let now = self.clock.advance(now);
        self.refresh(now);
        if let Admission::Priority(kind) = self.admission {
            let observed = match kind {
                Priority::Future => Observation { position: None, is_first: false, trail_len: 0 },
                _ => self.history.record(now, request.bucket, request.segment),
            };
            if kind != Priority::Historic {
                self.jobs.on_read(now, request, observed);
            }
        }
        match self.residents.touch(request.segment) {
            Some(Tier::Dram) => return Answer::HitDram,
            Some(Tier::Flash) => return Answer::HitFlash,
            None => {}
        }
        let (admitted, write_charged) = match &self.admission {
            Admission::Priority(_) => {
                let priority = self.priority(now, request.bucket);
                let admitted = self.threshold.admits(priority, request.segment, request.bytes)
                    && self.threshold.try_write(now, request.bytes);
                (admitted, admitted)
            }
            Admission::Expert(listed) => {
                let admitted = listed.contains(&request.bucket)
                    && self.threshold.try_write(now, request.bytes);
                (admitted, admitted)
            }
            _ => (true, false),
        };
        if !admitted {
            return Answer::Passed;
        }
        self.residents.insert(request, write_charged);
        while let Some(slot) = self.residents.overflow() {
            self.leave_dram(now, slot, changes);
        }
        match self.admission {
            Admission::DynamicRandom { .. } | Admission::RejectFirst(_) => Answer::Filled,
            _ => Answer::Kept,
        }
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

    fn contains(&self, segment: Segment) -> bool {
        self.residents.contains(segment)
    }

    fn used(&self) -> (u64, u64) {
        self.residents.used()
    }

    fn counters(&self) -> Counters {
        Counters {
            jobs: self.jobs.counters,
            time_went_back: self.clock.went_back,
            history_one_in: self.history.one_in(),
            lru_takeovers: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;
    use crate::tier::jobs::tests::buckets_after_reannouncements;

    #[test]
    fn buckets_that_were_announced_and_never_read_are_dropped() {
        let settings = Settings::new(ByteSize(0), ByteSize(100));
        let policy = Shift::new(&settings, Eviction::Lru, Admission::Priority(Priority::Future));
        assert!(buckets_after_reannouncements(policy, |policy| &policy.jobs) <= 2);
    }
}
