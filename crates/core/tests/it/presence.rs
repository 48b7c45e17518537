//! The cost of presence over whole epochs.

use std::time::Duration;

use forebay_core::{
    DatasetId, ItemOrdinal,
    node::presence::{KnownPresence, PresenceBudget, PresenceLog},
    train::sampler::{EpochPlan, HalfChunkMap, Sampler},
};

use crate::seeds;

const ITEMS: u32 = 100_000;
const BATCH: u32 = 64;
/// Headers and fields of a request and its reply (`docs/reference/wire.md`).
const FRAMES: u64 = 40 + 25;

/// A node whose resident blobs change, and one job.
struct World {
    resident: Vec<bool>,
    log: PresenceLog,
    known: KnownPresence,
    budget: PresenceBudget,
    requests: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            resident: vec![false; ITEMS as usize],
            log: PresenceLog::new(ITEMS, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            known: KnownPresence::new(ITEMS),
            budget: PresenceBudget::new(ITEMS.into()),
            requests: 0,
        }
    }

    /// Requests presence, if a request is due.
    fn request(&mut self, now: Duration) {
        if !self.budget.is_due(now) {
            return;
        }
        let mut bits = vec![0; self.resident.len().div_ceil(8)];
        for at in (0..self.resident.len()).filter(|at| self.resident[*at]) {
            bits[at / 8] |= 1 << (at % 8);
        }
        self.log.set(bits);
        let update = self.log.update_since(self.known.version(), 0, ITEMS);
        self.budget.on_request(now, Duration::ZERO, FRAMES + update.len() as u64);
        self.known.apply(self.log.version(), &update).unwrap();
        self.requests += 1;
    }

    /// One epoch. `meanwhile` changes the resident blobs while a batch is computed.
    fn epoch(&mut self, seed: u64, mut meanwhile: impl FnMut(&mut [bool], &[ItemOrdinal])) {
        let layout = HalfChunkMap::undivided(DatasetId::from_bytes([7; 32]), ITEMS.into()).unwrap();
        let mut sampler = Sampler::new(&layout, EpochPlan::new(seed, 0, BATCH)).unwrap();
        let mut now = Duration::ZERO;
        loop {
            self.request(now);
            let bits = self.known.bits().to_vec();
            let resident = |item: ItemOrdinal| {
                let at = usize::try_from(item.0).unwrap();
                bits[at / 8] >> (at % 8) & 1 == 1
            };
            let Some(batch) = sampler.draw(resident) else { break };
            sampler.on_yielded(batch.number()).unwrap();
            self.budget.on_drawn(batch.items().len() as u64);
            meanwhile(&mut self.resident, batch.items());
            now += Duration::from_millis(60);
        }
    }

    /// Bytes per drawn item.
    fn cost(&self) -> f64 {
        let (spent, drawn) = self.budget.totals();
        spent as f64 / drawn as f64
    }
}

/// Presence costs at most 2 bytes per drawn item, amortised, although the sampler looks
/// at ten candidates per item.
#[test]
#[expect(clippy::print_stdout, reason = "prints the measured cost")]
fn presence_costs_at_most_2_bytes_per_drawn_item() {
    for seed in seeds(3) {
        let mut random = fastrand::Rng::with_seed(seed);
        // Cold: drawn and prefetched blobs become resident.
        let mut cold = World::new(seed);
        cold.epoch(seed, |resident, drawn| {
            for item in drawn {
                resident[usize::try_from(item.0).unwrap()] = true;
            }
            for _ in 0..BATCH {
                resident[random.usize(..resident.len())] = true;
            }
        });
        let (cost, requests) = (cold.cost(), cold.requests);
        println!("cold: {cost:.2} bytes per item, {requests} requests");
        assert!(cost <= 2.0, "{cost}");
        assert!(requests >= 300, "{requests} requests in 1563 batches");

        // Warm: all bits once, then small updates.
        cold.resident.fill(true);
        let (spent, drawn) = cold.budget.totals();
        cold.epoch(seed + 1, |_, _| {});
        let (both, all) = cold.budget.totals();
        let cost = (both - spent) as f64 / (all - drawn) as f64;
        println!("warm: {cost:.2} bytes per item");
        assert!(cost <= 2.0, "{cost}");

        // Half of the blobs are resident and change at random: updates do not compress, so requests
        // are fewer.
        let mut churning = World::new(seed);
        churning.resident.iter_mut().for_each(|bit| *bit = random.bool());
        churning.epoch(seed, |resident, _| {
            for _ in 0..4 * BATCH {
                let at = random.usize(..resident.len());
                resident[at] = !resident[at];
            }
        });
        let (cost, requests) = (churning.cost(), churning.requests);
        println!("churning: {cost:.2} bytes per item, {requests} requests");
        assert!(cost <= 2.0, "{cost}");
        assert!(requests >= 10, "{requests}");
    }
}
