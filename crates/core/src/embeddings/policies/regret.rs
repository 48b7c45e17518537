//! The policies that let two experts compete and learn from regret: `LeCaR` and CACHEUS.
//!
//! Whoever evicted a key that comes back was wrong, and loses weight. Chance comes from a seed.

use super::{
    key::Key,
    list::{Links, Slot},
    policy::{Replacement, Turn, keeps_books},
    ranked::Ranked,
    store::{Place, Store},
};

/// The trust in two experts; together always 1.
#[derive(Debug, Clone, Copy)]
struct Trust {
    recency: f64,
}

impl Trust {
    /// Nobody is trusted more than this, or they could never be proved wrong.
    const MAX: f64 = 0.99;

    /// Expert `wrong` erred, by so much.
    fn blame(&mut self, wrong: Place, amount: f64) {
        let recency = self.recency * (if wrong == RECENCY_GHOSTS { -amount } else { 0.0 }).exp();
        let frequency =
            (1.0 - self.recency) * (if wrong == FREQUENCY_GHOSTS { -amount } else { 0.0 }).exp();
        self.recency = (recency / (recency + frequency)).clamp(1.0 - Self::MAX, Self::MAX);
    }
}

const RECENT: Place = 0;
const RECENCY_GHOSTS: Place = 1;
const FREQUENCY_GHOSTS: Place = 2;
/// CACHEUS's list of keys seen again, apart from those just come or about to go.
const REUSED: Place = 3;

/// What both policies note about a key.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Note {
    frequency: u32,
    evicted_at: u64,
    /// CACHEUS: seen once only.
    is_new: bool,
    /// CACHEUS: was pushed out of the reused list.
    demoted: bool,
}

/// Residents in order of frequency, beside the order that the store keeps.
#[derive(Debug, Default)]
struct Frequencies {
    ranked: Ranked,
    links: Links,
}

impl Frequencies {
    fn enter(&mut self, slot: Slot, frequency: u32) {
        self.links.prepare(slot, 0);
        self.ranked.push_newest(&mut self.links, frequency, slot);
    }

    /// CACHEUS: of the lowest frequency the *newest* goes first, so that a churning set does not chase itself.
    fn enter_first(&mut self, slot: Slot, frequency: u32) {
        self.links.prepare(slot, 0);
        self.ranked.push_oldest(&mut self.links, frequency, slot);
    }

    fn leave(&mut self, slot: Slot, frequency: u32) {
        self.ranked.remove(&mut self.links, frequency, slot);
    }

    /// The key of the lowest frequency whose turn it is.
    fn victim(&mut self, store: &Store<Note>, turn: &Turn) -> Option<Slot> {
        self.ranked.first_not(&self.links, |slot| store.protected(slot, turn))
    }
}

/// `LeCaR` (Vietri et al., 2018): LRU and LFU, chosen at random by trust.
#[derive(Debug)]
pub(super) struct LeCaR {
    store: Store<Note>,
    frequencies: Frequencies,
    trust: Trust,
    random: fastrand::Rng,
    now: u64,
    discount: f64,
}

impl LeCaR {
    const LEARNING_RATE: f64 = 0.45;

    /// `rows` is how many rows the capacity holds at most.
    pub fn new(capacity: u64, rows: u64, seed: u64) -> Self {
        Self {
            store: Store::new(3, capacity),
            frequencies: Frequencies::default(),
            trust: Trust { recency: 0.5 },
            random: fastrand::Rng::with_seed(seed),
            now: 0,
            discount: 0.005_f64.powf(1.0 / rows.max(1) as f64),
        }
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            let recency = self.random.f64() < self.trust.recency;
            let oldest = self.store.oldest_free(RECENT, turn);
            let rarest = self.frequencies.victim(&self.store, turn);
            let (Some(oldest), Some(rarest)) = (oldest, rarest) else { return false };
            let victim = if recency { oldest } else { rarest };
            let note = self.store.meta_mut(victim);
            note.evicted_at = self.now;
            self.frequencies.leave(victim, note.frequency);
            if oldest == rarest {
                self.store.forget(victim, turn); // both experts agreed: nobody is to blame
            } else {
                let ghosts = if recency { RECENCY_GHOSTS } else { FREQUENCY_GHOSTS };
                self.store.evict_to(victim, ghosts, turn);
                self.store.trim(ghosts, self.store.capacity() / 2, turn);
            }
        }
        true
    }
}

impl Replacement for LeCaR {
    keeps_books!(Note);

    fn end(&mut self) {
        self.frequencies.ranked.look_anew();
    }

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        self.now += 1;
        let note = self.store.meta_mut(slot);
        self.frequencies.leave(slot, note.frequency);
        note.frequency = note.frequency.saturating_add(1);
        self.frequencies.enter(slot, note.frequency);
        self.store.move_newest(slot, RECENT);
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        self.now += 1;
        let mut note = Note { frequency: 1, ..Note::default() };
        if let Some(ghost) = self.store.find(key) {
            let known = *self.store.meta(ghost);
            note.frequency = known.frequency.saturating_add(1);
            let age = (self.now - known.evicted_at) as f64;
            let regret = self.discount.powf(age);
            self.trust.blame(self.store.place(ghost), Self::LEARNING_RATE * regret);
            self.store.forget(ghost, turn);
        }
        if self.make_room(weight, turn) {
            let slot = self.store.admit(RECENT, key, weight, note, turn);
            self.frequencies.enter(slot, note.frequency);
        }
    }
}

/// CACHEUS (Rodriguez et al., FAST'21): scan-resistant LRU and churn-resistant LFU, with a learning rate
/// that adapts to the hit rate.
#[derive(Debug)]
pub(super) struct Cacheus {
    store: Store<Note>,
    frequencies: Frequencies,
    trust: Trust,
    random: fastrand::Rng,
    /// What the list of reused keys may weigh.
    reused_max: u64,
    /// Weight of demoted residents, and of new keys among the recency expert's ghosts.
    demoted: u64,
    new_ghosts: u64,
    pace: Pace,
}

/// CACHEUS's learning rate: keeps going the way that raised the hit rate.
#[derive(Debug)]
struct Pace {
    rate: f64,
    rate_before: f64,
    hit_rate_before: f64,
    hits: u64,
    accesses: u64,
    period: u64,
    idle_periods: u32,
    rate_initial: f64,
}

impl Pace {
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

    fn note(&mut self, hit: bool) {
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
    /// `rows` is how many rows the capacity holds at most.
    pub fn new(capacity: u64, rows: u64, seed: u64) -> Self {
        Self {
            store: Store::new(4, capacity),
            frequencies: Frequencies::default(),
            trust: Trust { recency: 0.5 },
            random: fastrand::Rng::with_seed(seed),
            reused_max: capacity - (capacity / 100).max(1).min(capacity),
            demoted: 0,
            new_ghosts: 0,
            pace: Pace::new(rows),
        }
    }

    /// A demoted key was needed: reused keys get more room, in the measure that new ones did not.
    fn grow_reused(&mut self, weight: u64) {
        let step = weight.max(self.new_ghosts * weight / self.demoted.max(1));
        self.reused_max = (self.reused_max + step).min(self.store.capacity().saturating_sub(1));
    }

    /// A new key came back after it had gone: reused keys get less room.
    fn shrink_reused(&mut self, weight: u64) {
        let step = weight.max(self.demoted * weight / self.new_ghosts.max(1));
        self.reused_max = self.reused_max.saturating_sub(step).max(1);
    }

    /// Demotes the oldest reused keys until another of this weight fits.
    fn limit_reused(&mut self, weight: u64) {
        while self.store.list(REUSED).weight() + weight > self.reused_max {
            let Some(oldest) = self.store.oldest(REUSED) else { return };
            self.store.meta_mut(oldest).demoted = true;
            self.demoted += self.store.links.weight(oldest);
            self.store.move_newest(oldest, RECENT);
        }
    }

    fn forget_ghost(&mut self, ghost: Slot, turn: &mut Turn) {
        if self.store.place(ghost) == RECENCY_GHOSTS && self.store.meta(ghost).is_new {
            self.new_ghosts -= self.store.links.weight(ghost);
        }
        self.store.forget(ghost, turn);
    }

    fn evict(&mut self, victim: Slot, ghosts: Option<Place>, turn: &mut Turn) {
        let weight = self.store.links.weight(victim);
        let note = *self.store.meta(victim);
        self.frequencies.leave(victim, note.frequency);
        if note.demoted {
            self.store.meta_mut(victim).demoted = false;
            self.demoted -= weight;
        }
        let Some(ghosts) = ghosts else { return self.store.forget(victim, turn) };
        self.store.evict_to(victim, ghosts, turn);
        if ghosts == RECENCY_GHOSTS && note.is_new {
            self.new_ghosts += weight;
        }
        while self.store.list(ghosts).weight() > self.store.capacity() / 2 {
            let oldest = self.store.oldest(ghosts).expect("it weighs something");
            self.forget_ghost(oldest, turn);
        }
    }

    fn make_room(&mut self, weight: u32, turn: &mut Turn) -> bool {
        while !self.store.fits(weight) {
            let recent = self.store.oldest_free(RECENT, turn);
            let oldest = recent.or_else(|| self.store.oldest_free(REUSED, turn));
            let rarest = self.frequencies.victim(&self.store, turn);
            let (Some(oldest), Some(rarest)) = (oldest, rarest) else { return false };
            let recency = self.random.f64() < self.trust.recency;
            if oldest == rarest {
                self.evict(oldest, None, turn);
            } else if recency {
                self.evict(oldest, Some(RECENCY_GHOSTS), turn);
            } else {
                self.evict(rarest, Some(FREQUENCY_GHOSTS), turn);
            }
        }
        true
    }
}

impl Replacement for Cacheus {
    keeps_books!(Note);

    fn end(&mut self) {
        self.frequencies.ranked.look_anew();
    }

    fn hit(&mut self, slot: Slot, _: &mut Turn) {
        self.pace.note(true);
        let weight = self.store.links.weight(slot);
        let note = self.store.meta_mut(slot);
        self.frequencies.leave(slot, note.frequency);
        note.frequency = note.frequency.saturating_add(1);
        note.is_new = false;
        let was_demoted = std::mem::take(&mut note.demoted);
        self.frequencies.enter_first(slot, note.frequency);
        if was_demoted {
            self.grow_reused(weight);
            self.demoted -= weight;
        }
        if self.store.place(slot) == RECENT {
            self.limit_reused(weight);
        }
        self.store.move_newest(slot, REUSED);
    }

    fn miss(&mut self, key: Key, weight: u32, turn: &mut Turn) {
        self.pace.note(false);
        let mut note = Note { frequency: 1, is_new: true, ..Note::default() };
        let ghost = self.store.find(key);
        if let Some(ghost) = ghost {
            let known = *self.store.meta(ghost);
            note = Note { frequency: known.frequency.saturating_add(1), ..Note::default() };
            if known.is_new && self.store.place(ghost) == RECENCY_GHOSTS {
                self.shrink_reused(u64::from(weight));
            }
            self.trust.blame(self.store.place(ghost), self.pace.rate);
            self.forget_ghost(ghost, turn);
        }
        if !self.make_room(weight, turn) {
            return;
        }
        let reused = ghost.is_some();
        if reused {
            self.limit_reused(u64::from(weight));
        }
        let slot = self.store.admit(if reused { REUSED } else { RECENT }, key, weight, note, turn);
        self.frequencies.enter_first(slot, note.frequency);
    }
}
