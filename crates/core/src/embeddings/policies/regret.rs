//! Policies with two experts weighted by regret: `LeCaR` and CACHEUS.
//!
//! Each eviction follows one expert, chosen at random by weight. When an evicted key returns, the
//! expert that evicted it loses weight. The random numbers come from a seed.

use crate::embeddings::{
    bucket_queue::BucketQueue,
    entries::{Entries, ListId},
    key::Key,
    policy::{Replacement, RequestState, impl_entries},
    slab_list::{Links, Slot},
};

/// Weights of the two experts; their sum is 1.
#[derive(Debug, Clone, Copy)]
struct ExpertWeights {
    recency: f64,
}

impl ExpertWeights {
    /// Largest weight of an expert: the other one must still be chosen at times.
    const MAX: f64 = 0.99;

    /// Reduces the weight of the expert whose ghosts are `wrong` by a factor of e^-`amount`.
    fn penalise(&mut self, wrong: ListId, amount: f64) {
        let recency = self.recency * (if wrong == RECENCY_GHOSTS { -amount } else { 0.0 }).exp();
        let frequency =
            (1.0 - self.recency) * (if wrong == FREQUENCY_GHOSTS { -amount } else { 0.0 }).exp();
        self.recency = (recency / (recency + frequency)).clamp(1.0 - Self::MAX, Self::MAX);
    }
}

const RECENT: ListId = 0;
const RECENCY_GHOSTS: ListId = 1;
const FREQUENCY_GHOSTS: ListId = 2;
/// CACHEUS: keys seen again.
const REUSED: ListId = 3;

/// What both policies store about a key.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::embeddings) struct KeyMeta {
    frequency: u32,
    evicted_at: u64,
    /// CACHEUS: seen once only.
    is_new: bool,
    /// CACHEUS: moved from the reused list to the recent one.
    demoted: bool,
}

/// Residents ordered by frequency, beside their order in the lists of `entries`.
#[derive(Debug, Default)]
struct FrequencyOrder {
    queue: BucketQueue,
    links: Links,
}

impl FrequencyOrder {
    fn enter(&mut self, slot: Slot, frequency: u32) {
        self.links.prepare(slot, 0);
        self.queue.push_newest(&mut self.links, frequency, slot);
    }

    /// CACHEUS: of equal frequencies the *newest* is evicted first, which makes it churn-resistant.
    fn enter_first(&mut self, slot: Slot, frequency: u32) {
        self.links.prepare(slot, 0);
        self.queue.push_oldest(&mut self.links, frequency, slot);
    }

    fn leave(&mut self, slot: Slot, frequency: u32) {
        self.queue.remove(&mut self.links, frequency, slot);
    }

    /// The first key of the lowest frequency that the request did not hit.
    fn victim(&mut self, entries: &Entries<KeyMeta>, request: &RequestState) -> Option<Slot> {
        self.queue.first_not(&self.links, |slot| entries.is_protected(slot, request))
    }
}

/// `LeCaR` (Vietri et al., 2018): LRU and LFU, chosen at random by weight.
#[derive(Debug)]
pub(in crate::embeddings) struct LeCaR {
    entries: Entries<KeyMeta>,
    frequencies: FrequencyOrder,
    weights: ExpertWeights,
    random: fastrand::Rng,
    now: u64,
    discount: f64,
}

impl LeCaR {
    const LEARNING_RATE: f64 = 0.45;

    /// `rows` is the largest number of rows that fit.
    pub fn new(capacity: u64, rows: u64, seed: u64) -> Self {
        Self {
            entries: Entries::new(3, capacity),
            frequencies: FrequencyOrder::default(),
            weights: ExpertWeights { recency: 0.5 },
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            discount: 0.005_f64.powf(1.0 / rows.max(1) as f64),
        }
    }

    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            let recency = self.random.f64() < self.weights.recency;
            let oldest = self.entries.oldest_free(RECENT, request);
            let rarest = self.frequencies.victim(&self.entries, request);
            let (Some(oldest), Some(rarest)) = (oldest, rarest) else { return false };
            let victim = if recency { oldest } else { rarest };
            let meta = self.entries.meta_mut(victim);
            meta.evicted_at = self.now;
            self.frequencies.leave(victim, meta.frequency);
            if oldest == rarest {
                self.entries.forget(victim, request); // both experts agree: no regret
            } else {
                let ghosts = if recency { RECENCY_GHOSTS } else { FREQUENCY_GHOSTS };
                self.entries.evict_to(victim, ghosts, request);
                self.entries.trim(ghosts, self.entries.capacity() / 2, request);
            }
        }
        true
    }
}

impl Replacement for LeCaR {
    impl_entries!(KeyMeta);

    fn end(&mut self) {
        self.frequencies.queue.reset_passed();
    }

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        self.now += 1;
        let meta = self.entries.meta_mut(slot);
        self.frequencies.leave(slot, meta.frequency);
        meta.frequency = meta.frequency.saturating_add(1);
        self.frequencies.enter(slot, meta.frequency);
        self.entries.move_newest(slot, RECENT);
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        self.now += 1;
        let mut meta = KeyMeta { frequency: 1, ..KeyMeta::default() };
        if let Some(ghost) = self.entries.find(key) {
            let known = *self.entries.meta(ghost);
            meta.frequency = known.frequency.saturating_add(1);
            let age = (self.now - known.evicted_at) as f64;
            let regret = self.discount.powf(age);
            self.weights.penalise(self.entries.list_of(ghost), Self::LEARNING_RATE * regret);
            self.entries.forget(ghost, request);
        }
        if self.make_room(weight, request) {
            let slot = self.entries.admit(RECENT, key, weight, meta, request);
            self.frequencies.enter(slot, meta.frequency);
        }
    }
}

/// CACHEUS (Rodriguez et al., FAST'21): scan-resistant LRU and churn-resistant LFU, with a learning
/// rate that adapts to the hit rate.
#[derive(Debug)]
pub(in crate::embeddings) struct Cacheus {
    entries: Entries<KeyMeta>,
    frequencies: FrequencyOrder,
    weights: ExpertWeights,
    random: fastrand::Rng,
    /// Limit on the weight of reused keys.
    reused_max: u64,
    /// Weight of demoted residents.
    demoted: u64,
    /// Weight of new keys among the recency expert's ghosts.
    new_ghosts: u64,
    learning_rate: LearningRate,
}

/// CACHEUS's learning rate: changes in the direction that raised the hit rate.
#[derive(Debug)]
struct LearningRate {
    rate: f64,
    rate_before: f64,
    hit_rate_before: f64,
    hits: u64,
    accesses: u64,
    period: u64,
    idle_periods: u32,
    rate_initial: f64,
}

impl LearningRate {
    fn new(period: u64) -> Self {
        let rate = (2.0 * 2.0_f64.ln() / period.max(1) as f64).sqrt();
        Self {
            rate,
            rate_before: 0.0,
            hit_rate_before: 0.0,
            hits: 0,
            accesses: 0,
            period: period.max(1),
            idle_periods: 0,
            rate_initial: rate,
        }
    }

    fn record(&mut self, hit: bool) {
        self.accesses += 1;
        self.hits += u64::from(hit);
        if self.accesses < self.period {
            return;
        }
        let hit_rate = self.hits as f64 / self.accesses as f64;
        let rate_change = self.rate - self.rate_before;
        let hit_change = hit_rate - self.hit_rate_before;
        self.rate_before = self.rate;
        self.hit_rate_before = hit_rate;
        (self.hits, self.accesses) = (0, 0);
        if rate_change.abs() > f64::EPSILON && hit_change.abs() > f64::EPSILON {
            let direction = (rate_change * hit_change).signum();
            let step = (self.rate * rate_change).abs();
            self.rate = (self.rate + direction * step).clamp(0.001, 1.0);
            self.idle_periods = 0;
        } else if hit_rate == 0.0 || hit_change <= 0.0 {
            self.idle_periods += 1;
            if self.idle_periods >= 10 {
                self.rate = self.rate_initial;
                self.idle_periods = 0;
            }
        }
    }
}

impl Cacheus {
    /// `rows` is the largest number of rows that fit.
    pub fn new(capacity: u64, rows: u64, seed: u64) -> Self {
        Self {
            entries: Entries::new(4, capacity),
            frequencies: FrequencyOrder::default(),
            weights: ExpertWeights { recency: 0.5 },
            random: fastrand::Rng::with_seed(seed),
            reused_max: capacity - (capacity / 100).max(1).min(capacity),
            demoted: 0,
            new_ghosts: 0,
            learning_rate: LearningRate::new(rows),
        }
    }

    /// Raises the limit on reused keys after a hit of a demoted key.
    fn grow_reused(&mut self, weight: u64) {
        let step = weight.max(self.new_ghosts * weight / self.demoted.max(1));
        self.reused_max = (self.reused_max + step).min(self.entries.capacity().saturating_sub(1));
    }

    /// Lowers the limit on reused keys after the return of an evicted new key.
    fn shrink_reused(&mut self, weight: u64) {
        let step = weight.max(self.demoted * weight / self.new_ghosts.max(1));
        self.reused_max = self.reused_max.saturating_sub(step).max(1);
    }

    /// Demotes the oldest reused keys until another of this weight fits.
    fn limit_reused(&mut self, weight: u64) {
        while self.entries.list(REUSED).weight() + weight > self.reused_max {
            let Some(oldest) = self.entries.oldest(REUSED) else { return };
            self.entries.meta_mut(oldest).demoted = true;
            self.demoted += self.entries.links.weight(oldest);
            self.entries.move_newest(oldest, RECENT);
        }
    }

    fn forget_ghost(&mut self, ghost: Slot, request: &mut RequestState) {
        if self.entries.list_of(ghost) == RECENCY_GHOSTS && self.entries.meta(ghost).is_new {
            self.new_ghosts -= self.entries.links.weight(ghost);
        }
        self.entries.forget(ghost, request);
    }

    fn evict(&mut self, victim: Slot, ghosts: Option<ListId>, request: &mut RequestState) {
        let weight = self.entries.links.weight(victim);
        let meta = *self.entries.meta(victim);
        self.frequencies.leave(victim, meta.frequency);
        if meta.demoted {
            self.entries.meta_mut(victim).demoted = false;
            self.demoted -= weight;
        }
        let Some(ghosts) = ghosts else { return self.entries.forget(victim, request) };
        self.entries.evict_to(victim, ghosts, request);
        if ghosts == RECENCY_GHOSTS && meta.is_new {
            self.new_ghosts += weight;
        }
        while self.entries.list(ghosts).weight() > self.entries.capacity() / 2 {
            let oldest = self.entries.oldest(ghosts).expect("it weighs something");
            self.forget_ghost(oldest, request);
        }
    }

    fn make_room(&mut self, weight: u32, request: &mut RequestState) -> bool {
        while !self.entries.fits(weight) {
            let recent = self.entries.oldest_free(RECENT, request);
            let oldest = recent.or_else(|| self.entries.oldest_free(REUSED, request));
            let rarest = self.frequencies.victim(&self.entries, request);
            let (Some(oldest), Some(rarest)) = (oldest, rarest) else { return false };
            let recency = self.random.f64() < self.weights.recency;
            if oldest == rarest {
                self.evict(oldest, None, request);
            } else if recency {
                self.evict(oldest, Some(RECENCY_GHOSTS), request);
            } else {
                self.evict(rarest, Some(FREQUENCY_GHOSTS), request);
            }
        }
        true
    }
}

impl Replacement for Cacheus {
    impl_entries!(KeyMeta);

    fn end(&mut self) {
        self.frequencies.queue.reset_passed();
    }

    fn hit(&mut self, slot: Slot, _: &mut RequestState) {
        self.learning_rate.record(true);
        let weight = self.entries.links.weight(slot);
        let meta = self.entries.meta_mut(slot);
        self.frequencies.leave(slot, meta.frequency);
        meta.frequency = meta.frequency.saturating_add(1);
        meta.is_new = false;
        let was_demoted = std::mem::take(&mut meta.demoted);
        self.frequencies.enter_first(slot, meta.frequency);
        if was_demoted {
            self.grow_reused(weight);
            self.demoted -= weight;
        }
        if self.entries.list_of(slot) == RECENT {
            self.limit_reused(weight);
        }
        self.entries.move_newest(slot, REUSED);
    }

    fn miss(&mut self, key: Key, weight: u32, request: &mut RequestState) {
        self.learning_rate.record(false);
        let mut meta = KeyMeta { frequency: 1, is_new: true, ..KeyMeta::default() };
        let ghost = self.entries.find(key);
        if let Some(ghost) = ghost {
            let known = *self.entries.meta(ghost);
            meta = KeyMeta { frequency: known.frequency.saturating_add(1), ..KeyMeta::default() };
            if known.is_new && self.entries.list_of(ghost) == RECENCY_GHOSTS {
                self.shrink_reused(u64::from(weight));
            }
            self.weights.penalise(self.entries.list_of(ghost), self.learning_rate.rate);
            self.forget_ghost(ghost, request);
        }
        if !self.make_room(weight, request) {
            return;
        }
        let reused = ghost.is_some();
        if reused {
            self.limit_reused(u64::from(weight));
        }
        let slot =
            self.entries.admit(if reused { REUSED } else { RECENT }, key, weight, meta, request);
        self.frequencies.enter_first(slot, meta.frequency);
    }
}
