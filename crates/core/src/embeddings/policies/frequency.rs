//! The policies that evict the lowest score: LFU, EV-LFU, and the score rules that the dissertation
//! tried and rejected.
//!
//! EV-LFU replaces LFU's counter by the group score: how many keys of the request hit. Mended here: ties
//! go to the key that entered its score first (the pseudo-code says "least recently used", the text
//! "least recently inserted"); what counts as perfect is recounted when a perfect key leaves (the
//! printed counter only grows, and then flushes for ever); a key that the request itself hit is spared.
//! The flushing knobs are arguments, because text (20 %) and pseudo-code (0.9 and 0.1) disagree.

use super::{
    key::Key,
    list::Slot,
    policy::{Replacement, Turn, keeps_books},
    ranked::Ranked,
    store::{Store, UNLISTED},
};

/// How a key's score follows from the requests it was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScoreRule {
    /// LFU: one more for every access.
    Count,
    /// EV-LFU: the highest group score so far.
    Max,
    /// Rejected: the mean of all group scores, in 64ths.
    Average,
    /// Rejected: the sum of all group scores.
    Sum,
    /// Rejected: the median group score, followed one step at a time (the exact one needs all of them).
    Median,
    /// Rejected: one more for every access, starting from the group score at insertion.
    Incremental,
}

/// When too many keys have the highest score, the oldest of them go ("flushing").
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Flushing {
    /// Share of the capacity that perfect keys may take.
    pub perfect_share_max: f64,
    /// Share of the perfect keys that then go.
    pub rate: f64,
}

impl Flushing {
    /// As in EV-LFU's pseudo-code.
    pub const PSEUDO_CODE: Self = Self { perfect_share_max: 0.9, rate: 0.1 };
    /// As in the text beside it ("e.g. 20 %"; it gives no rate).
    pub const TEXT: Self = Self { perfect_share_max: 0.2, rate: 0.1 };
}

/// A key's score, and what its rule needs to update it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Score {
    pub value: u32,
    sum: u32,
    count: u32,
}

/// Mean scores are kept in fractions of this.
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

/// Residents in order of their score.
#[derive(Debug)]
pub(super) struct ByScore {
    store: Store<Score>,
    ranked: Ranked,
    rule: ScoreRule,
    tables: u32,
    flushing: Option<Flushing>,
}

impl ByScore {
    pub fn lfu(capacity: u64) -> Self {
        Self::new(capacity, ScoreRule::Count, 0, None)
    }

    /// EV-LFU or a variant, for requests of one key in each of so many tables. Only the rule with a
    /// highest score can flush.
    pub fn ev_lfu(capacity: u64, rule: ScoreRule, tables: u32, flushing: Flushing) -> Self {
        Self::new(capacity, rule, tables, (rule == ScoreRule::Max).then_some(flushing))
    }

    fn new(capacity: u64, rule: ScoreRule, tables: u32, flushing: Option<Flushing>) -> Self {
        Self { store: Store::new(0, capacity), ranked: Ranked::default(), rule, tables, flushing }
    }

    fn evict(&mut self, slot: Slot, turn: &mut Turn) {
        let score = self.store.meta(slot).value;
        self.ranked.remove(&mut self.store.links, score, slot);
        self.store.forget(slot, turn);
    }

    /// The oldest key of the lowest score; those that this request hit are passed over.
    fn victim(&mut self, turn: &Turn) -> Option<Slot> {
        self.ranked.first_not(&self.store.links, |slot| self.store.protected(slot, turn))
    }

    fn flush(&mut self, turn: &mut Turn) {
        let Some(flushing) = self.flushing else { return };
        let mut left = flushing.due(&self.ranked, self.tables, self.store.capacity());
        while left > 0.0 {
            let Some(slot) = oldest_perfect(&mut self.ranked, self.tables, &self.store, turn)
            else {
                return;
            };
            left -= self.store.links.weight(slot) as f64;
            self.evict(slot, turn);
        }
    }
}

impl Flushing {
    /// How much of the perfect keys must go now: nothing until they take more than their share.
    pub fn due(self, ranked: &Ranked, perfect: u32, capacity: u64) -> f64 {
        let weight = ranked.list(perfect).weight() as f64;
        if weight < self.perfect_share_max * capacity as f64 { 0.0 } else { weight * self.rate }
    }
}

/// The perfect key that goes first; those that the current request hit stay.
pub(super) fn oldest_perfect<Meta>(
    ranked: &mut Ranked,
    perfect: u32,
    store: &Store<Meta>,
    turn: &Turn,
) -> Option<Slot> {
    ranked.oldest_not(&store.links, perfect, |slot| store.protected(slot, turn))
}

impl Replacement for ByScore {
    keeps_books!(Score);

    fn end(&mut self) {
        self.ranked.look_anew();
    }

    fn hit(&mut self, slot: Slot, turn: &mut Turn) {
        let score = *self.store.meta(slot);
        let next = score.next(self.rule, turn.group_score(self.tables));
        *self.store.meta_mut(slot) = next;
        if next.value != score.value {
            self.ranked.remove(&mut self.store.links, score.value, slot);
            self.ranked.push_newest(&mut self.store.links, next.value, slot);
        }
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        self.flush(turn);
        while !self.store.fits(weight) {
            let Some(victim) = self.victim(turn) else { return };
            self.evict(victim, turn);
        }
        let score = Score::first(self.rule, turn.group_score(self.tables));
        let slot = self.store.admit(UNLISTED, key, weight, score, turn);
        self.ranked.push_newest(&mut self.store.links, score.value, slot);
    }
}
