//! Policies that evict the lowest score: LFU, EV-LFU, and the score rules that the dissertation
//! tried and rejected.
//!
//! EV-LFU replaces LFU's counter by the group score: the number of keys of the request that hit.
//! The dissertation is ambiguous or wrong in four points, decided here as follows:
//!
//! - Of equal scores, the key that reached its score first is evicted. The pseudo-code says "least
//!   recently used", the text "least recently inserted".
//! - Perfect keys are recounted when one leaves. The printed counter only grows, and then flushes
//!   for ever.
//! - A key that the request itself hit is spared.
//! - The flushing settings are arguments, because text (20 %) and pseudo-code (0.9 and 0.1)
//!   disagree.

use crate::embeddings::{
    bucket_queue::BucketQueue,
    entries::{Entries, UNLISTED},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::Slot,
};

/// How a key's score follows from the group scores of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::embeddings) enum ScoreRule {
    /// LFU: the number of accesses.
    Count,
    /// EV-LFU: the highest group score so far.
    Max,
    /// Rejected: the mean of all group scores, in 64ths.
    Average,
    /// Rejected: the sum of all group scores.
    Sum,
    /// Rejected: the median group score, approximated in steps of 1 (the exact median needs the
    /// whole history).
    Median,
    /// Rejected: one more for every access, starting from the group score at insertion.
    Incremental,
}

/// Flushing: when too many keys have the highest score, the oldest of them are evicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::embeddings) struct Flushing {
    /// Share of the capacity that perfect keys may use.
    pub perfect_share_max: f64,
    /// Share of the perfect keys that is evicted at a flush.
    pub rate: f64,
}

impl Flushing {
    /// The settings of EV-LFU's pseudo-code.
    pub const PSEUDO_CODE: Self = Self { perfect_share_max: 0.9, rate: 0.1 };
    /// The setting of the text ("e.g. 20 %"), which gives no rate.
    pub const TEXT: Self = Self { perfect_share_max: 0.2, rate: 0.1 };
}

/// A key's score, and the sums from which its rule updates it.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::embeddings) struct Score {
    pub value: u32,
    sum: u32,
    count: u32,
}

/// Resolution of mean scores: 1/64.
const AVERAGE_STEPS: u32 = 64;

impl Score {
    pub fn first(rule: ScoreRule, group: u32) -> Self {
        let value = match rule {
            ScoreRule::Count => 1,
            ScoreRule::Average => group * AVERAGE_STEPS,
            ScoreRule::Max | ScoreRule::Sum | ScoreRule::Median | ScoreRule::Incremental => group,
        };
        Self { value, sum: group, count: 1 }
    }

    pub fn next(self, rule: ScoreRule, group: u32) -> Self {
        let sum = self.sum.saturating_add(group);
        let count = self.count.saturating_add(1);
        let value = match rule {
            ScoreRule::Count | ScoreRule::Incremental => self.value.saturating_add(1),
            ScoreRule::Max => self.value.max(group),
            ScoreRule::Sum => sum,
            ScoreRule::Median => match group.cmp(&self.value) {
                std::cmp::Ordering::Less => self.value - 1,
                std::cmp::Ordering::Equal => self.value,
                std::cmp::Ordering::Greater => self.value + 1,
            },
            ScoreRule::Average => {
                let average = u64::from(sum) * u64::from(AVERAGE_STEPS) / u64::from(count);
                u32::try_from(average).unwrap_or(u32::MAX)
            }
        };
        Self { value, sum, count }
    }
}

/// LFU, EV-LFU and variants: residents ordered by score.
#[derive(Debug)]
pub(in crate::embeddings) struct ByScore {
    entries: Entries<Score>,
    queue: BucketQueue,
    rule: ScoreRule,
    tables: u32,
    flushing: Option<Flushing>,
}

impl ByScore {
    pub fn lfu(capacity: u64) -> Self {
        Self::new(capacity, ScoreRule::Count, 0, None)
    }

    /// EV-LFU or a variant, for requests with one key in each of `tables` tables. Only the rule
    /// with a highest score, [`ScoreRule::Max`], can flush.
    pub fn ev_lfu(capacity: u64, rule: ScoreRule, tables: u32, flushing: Flushing) -> Self {
        Self::new(capacity, rule, tables, (rule == ScoreRule::Max).then_some(flushing))
    }

    fn new(capacity: u64, rule: ScoreRule, tables: u32, flushing: Option<Flushing>) -> Self {
        Self {
            entries: Entries::new(0, capacity),
            queue: BucketQueue::default(),
            rule,
            tables,
            flushing,
        }
    }

    fn evict(&mut self, slot: Slot, request: &mut RequestState) {
        let score = self.entries.meta(slot).value;
        self.queue.remove(&mut self.entries.links, score, slot);
        self.entries.forget(slot, request);
    }

    /// The oldest key of the lowest score that this request did not hit.
    fn victim(&mut self, request: &RequestState) -> Option<Slot> {
        self.queue.first_not(&self.entries.links, |slot| self.entries.is_protected(slot, request))
    }

    fn flush(&mut self, request: &mut RequestState) {
        let Some(flushing) = self.flushing else { return };
        let mut left = flushing.due(&self.queue, self.tables, self.entries.capacity());
        while left > 0.0 {
            let Some(slot) = oldest_perfect(&mut self.queue, self.tables, &self.entries, request)
            else {
                return;
            };
            left -= self.entries.links.weight(slot) as f64;
            self.evict(slot, request);
        }
    }
}

impl Flushing {
    /// Weight of the perfect keys to evict now: 0 until they exceed their share.
    pub fn due(self, queue: &BucketQueue, perfect: u32, capacity: u64) -> f64 {
        let weight = queue.list(perfect).weight() as f64;
        if weight < self.perfect_share_max * capacity as f64 { 0.0 } else { weight * self.rate }
    }
}

/// The oldest perfect key that the current request did not hit.
pub(in crate::embeddings) fn oldest_perfect<Meta>(
    queue: &mut BucketQueue,
    perfect: u32,
    entries: &Entries<Meta>,
    request: &RequestState,
) -> Option<Slot> {
    queue.oldest_not(&entries.links, perfect, |slot| entries.is_protected(slot, request))
}

impl Replacement for ByScore {
    impl_entries!(Score);

    fn end(&mut self) {
        self.queue.reset_passed();
    }

    fn hit(&mut self, slot: Slot, request: &mut RequestState) {
        let score = *self.entries.meta(slot);
        let next = score.next(self.rule, request.group_score(self.tables));
        *self.entries.meta_mut(slot) = next;
        if next.value != score.value {
            self.queue.remove(&mut self.entries.links, score.value, slot);
            self.queue.push_newest(&mut self.entries.links, next.value, slot);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        self.flush(request);
        while !self.entries.fits(weight) {
            let Some(victim) = self.victim(request) else { return };
            self.evict(victim, request);
        }
        let score = Score::first(self.rule, request.group_score(self.tables));
        let slot = self.entries.admit(UNLISTED, key, weight, score, request);
        self.queue.push_newest(&mut self.entries.links, score.value, slot);
    }
}
