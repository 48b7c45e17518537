//! Shift's policies (5.1), and those it was compared with: admission before LRU or FIFO.
//!
//! Shift decides before the origin is read: a bucket is admitted while its priority exceeds the threshold, and
//! in part when it is just there.
//! `CacheLib` decides later, when a segment leaves memory: everything is fetched, and then perhaps not kept.
//!
//! With reinsertion, a segment that is about to leave flash is written again if its bucket's priority exceeds the
//! threshold by one more.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Clock, Counters, Policy,
    contradiction::Contradiction,
    history::{History, Sight},
    jobs::Jobs,
    kind::Settings,
    shelves::{Eviction, Shelves, Tier},
    threshold::Threshold,
    words::{Answer, Bucket, Changes, Fact, Request, Segment},
};
use crate::{
    list::Slot,
    stable::{StableMap, StableSet, mix},
};

/// How a bucket's priority comes about: how often each of its segments is expected to be read soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// As often as it was in the window.
    Historic,
    /// By as many jobs as have named and not finished it.
    Future,
    /// Whichever is more.
    Hybrid,
}

/// Who is let in.
#[derive(Debug)]
pub(super) enum Admission {
    /// Everything.
    All,
    /// Buckets of a high priority.
    Priority(Priority),
    /// Buckets that an expert has listed (Shift 6.2).
    Expert(BTreeSet<Bucket>),
    /// Everything into memory, and a share of it on to flash so that a write rate is kept.
    DynamicRandom {
        /// The share.
        share: f64,
        /// What was written since the share was last tuned, and when that was.
        written: u64,
        since: Duration,
        draws: u64,
    },
    /// Everything into memory, and on to flash what was there before.
    RejectFirst(Recent),
}

impl Admission {
    pub fn dynamic_random() -> Self {
        Self::DynamicRandom { share: 1.0, written: 0, since: Duration::ZERO, draws: 0 }
    }
}

/// What was seen lately: two generations, the older of which is forgotten when the newer is full.
#[derive(Debug)]
pub(super) struct Recent {
    newer: StableSet<u64>,
    older: StableSet<u64>,
    each_max: usize,
}

impl Recent {
    pub fn new(each_max: usize) -> Self {
        Self { newer: StableSet::default(), older: StableSet::default(), each_max: each_max.max(1) }
    }

    /// Was it here before? From now on it was.
    fn seen(&mut self, segment: Segment) -> bool {
        let seen = self.newer.contains(&segment.0) || self.older.contains(&segment.0);
        if self.newer.len() >= self.each_max {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(segment.0);
        seen
    }
}

/// An eviction looks at no more candidates for reinsertion.
const REINSERTIONS_MAX: u32 = 64;

/// Admission, threshold and reinsertion above two queues.
#[derive(Debug)]
pub(super) struct Shift {
    clock: Clock,
    shelves: Shelves,
    admission: Admission,
    reinsertion: bool,
    threshold: Threshold,
    history: History,
    jobs: Jobs,
    /// Priorities, until the next refresh.
    priorities: StableMap<Bucket, f64>,
}

impl Shift {
    pub fn new(settings: &Settings, eviction: Eviction, admission: Admission) -> Self {
        Self {
            clock: Clock::default(),
            shelves: Shelves::new(eviction, settings.dram.0, settings.flash.0),
            admission,
            reinsertion: settings.reinsertion,
            threshold: Threshold::new(settings.writes, settings.segment),
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
            // Nothing here has bits.
            self.jobs.forget_unread(|_| false);
            self.jobs.reused.clear();
            self.priorities.clear();
        }
        if let Admission::DynamicRandom { share, written, since, .. } = &mut self.admission
            && let Some(limit) = self.threshold.limit()
            && now.saturating_sub(*since) >= self.threshold.refresh()
        {
            let rate = *written as f64 / now.saturating_sub(*since).as_secs_f64();
            let wished = *share * limit.0.0 as f64 / rate.max(1.0);
            *share = wished.clamp(*share / 4.0, *share * 4.0).clamp(1e-6, 1.0);
            (*written, *since) = (0, now);
        }
    }

    /// A segment leaves memory: on to flash, or away.
    fn leave_dram(&mut self, now: Duration, slot: Slot, changes: &mut Changes) {
        let (segment, bytes) = (self.shelves.segment(slot), self.shelves.bytes(slot));
        let allowed = self.shelves.fits_flash(slot)
            && match &mut self.admission {
                // CacheLib's own ways to hold writes back know no hard limit.
                Admission::DynamicRandom { share, draws, written, .. } => {
                    *draws += 1;
                    let draw = (mix(segment.0 ^ mix(*draws)) >> 11) as f64 / (1_u64 << 53) as f64;
                    let kept = draw < *share;
                    *written += if kept { u64::from(bytes) } else { 0 };
                    kept
                }
                Admission::RejectFirst(recent) => recent.seen(segment),
                _ => self.shelves.paid(slot) || self.threshold.try_write(now, bytes),
            };
        if !allowed {
            changes.dropped.push(self.shelves.drop(slot));
            return;
        }
        let mut reinsertions = 0;
        while let Some(oldest) = self.shelves.in_the_way_of(slot) {
            let bytes = self.shelves.bytes(oldest);
            let again = self.reinsertion
                && reinsertions < REINSERTIONS_MAX
                && self.priority(now, self.shelves.bucket(oldest)) > self.threshold.value() + 1.0
                && self.threshold.try_write(now, bytes);
            if again {
                reinsertions += 1;
                changes.written.push((self.shelves.segment(oldest), bytes));
                self.shelves.renew(oldest);
            } else {
                changes.dropped.push(self.shelves.drop(oldest));
            }
        }
        changes.written.push((segment, bytes));
        self.shelves.store(slot);
    }
}

impl Policy for Shift {
    fn request(&mut self, now: Duration, request: &Request, changes: &mut Changes) -> Answer {
        changes.clear();
        let now = self.clock.at(now);
        self.refresh(now);
        if let Admission::Priority(kind) = self.admission {
            let sight = match kind {
                Priority::Future => Sight { place: None, first: false, trail: 0 },
                _ => self.history.note(now, request.bucket, request.segment),
            };
            if kind != Priority::Historic {
                self.jobs.note(now, request, sight);
            }
        }
        match self.shelves.touch(request.segment) {
            Some(Tier::Dram) => return Answer::HitDram,
            Some(Tier::Flash) => return Answer::HitFlash,
            None => {}
        }
        let (admitted, paid) = match &self.admission {
            Admission::Priority(_) => {
                let priority = self.priority(now, request.bucket);
                let paid = self.threshold.admits(priority, request.segment, request.bytes)
                    && self.threshold.try_write(now, request.bytes);
                (paid, paid)
            }
            Admission::Expert(listed) => {
                let paid = listed.contains(&request.bucket)
                    && self.threshold.try_write(now, request.bytes);
                (paid, paid)
            }
            _ => (true, false),
        };
        if !admitted {
            return Answer::Passed;
        }
        self.shelves.put(request, paid);
        while let Some(slot) = self.shelves.overflow() {
            self.leave_dram(now, slot, changes);
        }
        match self.admission {
            Admission::DynamicRandom { .. } | Admission::RejectFirst(_) => Answer::Filled,
            _ => Answer::Kept,
        }
    }

    fn tell(&mut self, now: Duration, fact: Fact<'_>) -> Result<(), Contradiction> {
        let now = self.clock.at(now);
        if !matches!(self.admission, Admission::Priority(Priority::Future | Priority::Hybrid)) {
            return Ok(()); // It does not matter to the others who reads.
        }
        match fact {
            Fact::Announced { job, spec } => self.jobs.announce(now, job, spec)?,
            Fact::Ended { job } => self.jobs.end(job)?,
        }
        self.priorities.clear();
        Ok(())
    }

    fn contains(&self, segment: Segment) -> bool {
        self.shelves.contains(segment)
    }

    fn used(&self) -> (u64, u64) {
        self.shelves.used()
    }

    fn counters(&self) -> Counters {
        Counters {
            jobs: self.jobs.counters,
            time_went_back: self.clock.went_back,
            history_one_in: self.history.one_in(),
            overruled: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::jobs::tests::announced_anew, *};
    use crate::ByteSize;

    #[test]
    fn buckets_that_were_announced_and_never_read_are_forgotten() {
        let settings = Settings::new(ByteSize(0), ByteSize(100));
        let policy = Shift::new(&settings, Eviction::Lru, Admission::Priority(Priority::Future));
        assert!(announced_anew(policy, |policy| &policy.jobs) <= 2);
    }
}
