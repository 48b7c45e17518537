//! LRU shadow: a small LRU on a sample of segments, which takes over while LRU hits more often.
//!
//! Specifications may be false, and jobs may deviate from any estimate. The shadow gets a sample of
//! the segments and the same share of the space, so it shows what a plain cache would absorb. If it
//! has more hits than the policy on the same sample, LRU decides for a number of rounds. The number
//! doubles each time LRU wins, and halves each time it does not.

use crate::tier::types::Segment;
use crate::util::{
    slab_list::{Links, List, Slot},
    stable_hash::{StableMap, mix},
};

/// Fewest segments that the shadow must hold. With less space there is no shadow.
const RESIDENTS_MIN: u64 = 64;
/// Smallest sample: one segment in this number.
const ONE_IN_MAX: u64 = 64;
/// Sampled requests per round.
const ROUND_REQUESTS: u32 = 2048;
/// Rounds of the first takeover. Later ones last twice as long each, up to the maximum.
const TAKEOVER_ROUNDS: u32 = 1;
const TAKEOVER_ROUNDS_MAX: u32 = 64;

/// The shadow and the hit counts.
#[derive(Debug)]
pub(super) struct LruShadow {
    one_in: u64,
    capacity: u64,
    slots: StableMap<u64, Slot>,
    segments: Vec<Segment>,
    free: Vec<Slot>,
    links: Links,
    list: List,
    requests: u32,
    ours: u32,
    lru: u32,
    /// Rounds for which LRU still decides.
    rounds_left: u32,
    /// Rounds of the next takeover.
    next_rounds: u32,
    pub takeovers: u64,
}

impl LruShadow {
    pub fn new(capacity: u64, segments: u64) -> Self {
        let mut one_in = 1;
        while one_in < ONE_IN_MAX && segments / (one_in * 2) >= 16 * RESIDENTS_MIN {
            one_in *= 2;
        }
        let enough = segments / one_in >= RESIDENTS_MIN;
        Self {
            one_in,
            capacity: if enough { capacity / one_in } else { 0 },
            slots: StableMap::default(),
            segments: Vec::new(),
            free: Vec::new(),
            links: Links::default(),
            list: List::default(),
            requests: 0,
            ours: 0,
            lru: 0,
            rounds_left: 0,
            next_rounds: TAKEOVER_ROUNDS,
            takeovers: 0,
        }
    }

    /// Whether LRU decides.
    pub fn is_active(&self) -> bool {
        self.rounds_left > 0
    }

    /// Records a request; `hit` is the policy's result. Returns whether [`Self::is_active`]
    /// changed.
    #[inline]
    pub fn on_request(&mut self, segment: Segment, bytes: u32, hit: bool) -> bool {
        if self.capacity == 0 || !mix(segment.0 ^ 0x9e37).is_multiple_of(self.one_in) {
            return false;
        }
        self.sample(segment, bytes, hit)
    }

    fn sample(&mut self, segment: Segment, bytes: u32, hit: bool) -> bool {
        self.ours += u32::from(hit);
        if let Some(slot) = self.slots.get(&segment.0).copied() {
            self.lru += 1;
            self.list.remove(&mut self.links, slot);
            self.list.push_newest(&mut self.links, slot);
        } else if u64::from(bytes) <= self.capacity {
            while self.list.weight() + u64::from(bytes) > self.capacity {
                let oldest = self.list.oldest().expect("a full list has an oldest slot");
                self.list.remove(&mut self.links, oldest);
                self.slots.remove(&self.segments[oldest.0 as usize].0);
                self.free.push(oldest);
            }
            let slot = self.free.pop().unwrap_or_else(|| {
                self.segments.push(segment);
                Slot(u32::try_from(self.segments.len() - 1).expect("fewer than 2^32 slots"))
            });
            self.segments[slot.0 as usize] = segment;
            self.links.prepare(slot, bytes);
            self.list.push_newest(&mut self.links, slot);
            self.slots.insert(segment.0, slot);
        }
        self.requests += 1;
        self.requests == ROUND_REQUESTS && self.end_round()
    }

    fn end_round(&mut self) -> bool {
        let (ours, lru) = (f64::from(self.ours), f64::from(self.lru));
        (self.requests, self.ours, self.lru) = (0, 0, 0);
        if self.is_active() {
            self.rounds_left -= 1;
            return !self.is_active();
        }
        // More than 5 %, and more than three standard deviations.
        let margin = (0.05 * lru).max(3.0 * (ours + lru).sqrt());
        if lru > ours + margin {
            self.rounds_left = self.next_rounds;
            self.next_rounds = (self.next_rounds * 2).min(TAKEOVER_ROUNDS_MAX);
            self.takeovers += 1;
        } else {
            self.next_rounds = (self.next_rounds / 2).max(TAKEOVER_ROUNDS);
        }
        self.is_active()
    }
}
