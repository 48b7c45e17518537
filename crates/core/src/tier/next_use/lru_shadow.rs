//! Whether LRU would do better.
//!
//! Specifications may be false, and jobs may do what nobody foresees. A small LRU, on a sample of the
//! segments and with as small a share of the room, shows what a plain cache would absorb. Where that is more than what
//! we absorb of the same segments, LRU decides for a while; each time for longer, as long as it stays right.

use super::super::words::Segment;
use crate::{
    list::{Links, List, Slot},
    stable::{StableMap, mix},
};

/// The small LRU has room for at least so many, or there is none.
const RESIDENTS_MIN: u64 = 64;
const ONE_IN_MAX: u64 = 64;
/// So many requests of the sample make a verdict.
const REQUESTS: u32 = 2048;
/// LRU decides for so many verdicts, then for twice as many, up to a limit.
const TERM: u32 = 1;
const TERM_MAX: u32 = 64;

/// The small LRU, and the score.
#[derive(Debug)]
pub(super) struct Guard {
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
    /// For how many more verdicts LRU decides.
    term: u32,
    next_term: u32,
    pub overruled: u64,
}

impl Guard {
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
            term: 0,
            next_term: TERM,
            overruled: 0,
        }
    }

    /// Does LRU decide?
    pub fn overrules(&self) -> bool {
        self.term > 0
    }

    /// A segment was wanted, and we had it or not. Says whether it has changed who decides.
    #[inline]
    pub fn note(&mut self, segment: Segment, bytes: u32, hit: bool) -> bool {
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
                let oldest = self.list.oldest().expect("what is used is listed");
                self.list.remove(&mut self.links, oldest);
                self.slots.remove(&self.segments[oldest.0 as usize].0);
                self.free.push(oldest);
            }
            let slot = self.free.pop().unwrap_or_else(|| {
                self.segments.push(segment);
                Slot(u32::try_from(self.segments.len() - 1).expect("a small LRU"))
            });
            self.segments[slot.0 as usize] = segment;
            self.links.prepare(slot, bytes);
            self.list.push_newest(&mut self.links, slot);
            self.slots.insert(segment.0, slot);
        }
        self.requests += 1;
        self.requests == REQUESTS && self.verdict()
    }

    fn verdict(&mut self) -> bool {
        let (ours, lru) = (f64::from(self.ours), f64::from(self.lru));
        (self.requests, self.ours, self.lru) = (0, 0, 0);
        let before = self.overrules();
        if before {
            self.term -= 1;
            return !self.overrules();
        }
        // More than a twentieth, and more than chance.
        let margin = (0.05 * lru).max(3.0 * (ours + lru).sqrt());
        if lru > ours + margin {
            self.term = self.next_term;
            self.next_term = (self.next_term * 2).min(TERM_MAX);
            self.overruled += 1;
        } else {
            self.next_term = (self.next_term / 2).max(TERM);
        }
        before != self.overrules()
    }
}
