//! What presence costs a job, over whole epochs.

use std::time::Duration;

use forebay_core::{
    DatasetId, ItemOrdinal,
    presence::{Known, Stock, Thrift},
    sampler::{Layout, Plan, Sampler},
};

use crate::seeds;

const ITEMS: u32 = 100_000;
const BATCH: u32 = 64;
/// Headers and fields of a request and its reply (`docs/wire.md`).
const FRAMES: u64 = 40 + 25;

/// A node on which blobs come and go.
struct World {
    there: Vec<bool>,
    stock: Stock,
    known: Known,
    thrift: Thrift,
    asked: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            there: vec![false; ITEMS as usize],
            stock: Stock::new(ITEMS, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            known: Known::new(ITEMS),
            thrift: Thrift::new(ITEMS.into()),
            asked: 0,
        }
    }

    /// Asks the node, if that is due.
    fn look(&mut self, now: Duration) {
        if !self.thrift.is_due(now) {
            return;
        }
        let mut bits = vec![0; self.there.len().div_ceil(8)];
        for at in (0..self.there.len()).filter(|at| self.there[*at]) {
            bits[at / 8] |= 1 << (at % 8);
        }
        self.stock.take(bits);
        let told = self.stock.told(self.known.version(), 0, ITEMS);
        self.thrift.asked(now, now, FRAMES + told.len() as u64);
        self.known.hear(self.stock.version(), &told).unwrap();
        self.asked += 1;
    }

    /// One epoch. `meanwhile` is what happens while a batch is computed.
    fn epoch(&mut self, seed: u64, mut meanwhile: impl FnMut(&mut [bool], &[ItemOrdinal])) {
        let layout = Layout::in_one_chunk(DatasetId::from_bytes([7; 32]), ITEMS.into()).unwrap();
        let mut sampler = Sampler::new(&layout, Plan::new(seed, 0, BATCH)).unwrap();
        let mut now = Duration::ZERO;
        loop {
            self.look(now);
            let bits = self.known.bits().to_vec();
            let resident = |item: ItemOrdinal| {
                let at = usize::try_from(item.0).unwrap();
                bits[at / 8] >> (at % 8) & 1 == 1
            };
            let Some(batch) = sampler.draw(resident) else { break };
            sampler.yielded(batch.number()).unwrap();
            self.thrift.drew(batch.items().len() as u64);
            meanwhile(&mut self.there, batch.items());
            now += Duration::from_millis(60);
        }
    }

    /// Bytes for each item drawn.
    fn cost(&self) -> f64 {
        let (spent, drawn) = self.thrift.account();
        spent as f64 / drawn as f64
    }
}

/// DESIGN 4.3: presence costs at most 2 bytes per item drawn, amortised. The sampler looks at ten times as
/// many candidates as a batch has, and asks for none of them by name.
#[test]
#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn presence_costs_at_most_two_bytes_for_each_item_drawn() {
    for seed in seeds(3) {
        let mut random = fastrand::Rng::with_seed(seed);
        // Cold: what is drawn arrives, and what is fetched ahead.
        let mut cold = World::new(seed);
        cold.epoch(seed, |there, drawn| {
            for item in drawn {
                there[usize::try_from(item.0).unwrap()] = true;
            }
            for _ in 0..BATCH {
                there[random.usize(..there.len())] = true;
            }
        });
        let (cost, asked) = (cold.cost(), cold.asked);
        println!("cold: {cost:.2} bytes for each item, asked {asked} times");
        assert!(cost <= 2.0, "{cost}");
        assert!(asked >= 300, "and yet often: {asked} times in 1563 batches");

        // Warm: all bits once, and then almost nothing.
        cold.there.fill(true);
        let (spent, drawn) = cold.thrift.account();
        cold.epoch(seed + 1, |_, _| {});
        let (both, all) = cold.thrift.account();
        let cost = (both - spent) as f64 / (all - drawn) as f64;
        println!("warm: {cost:.2} bytes for each item");
        assert!(cost <= 2.0, "{cost}");

        // Half of it is there, and as much goes as comes: nothing compresses that, so it is asked less often.
        let mut churning = World::new(seed);
        churning.there.iter_mut().for_each(|there| *there = random.bool());
        churning.epoch(seed, |there, _| {
            for _ in 0..4 * BATCH {
                let at = random.usize(..there.len());
                there[at] = !there[at];
            }
        });
        let (cost, asked) = (churning.cost(), churning.asked);
        println!("churning: {cost:.2} bytes for each item, asked {asked} times");
        assert!(cost <= 2.0, "{cost}");
        assert!(asked >= 10, "{asked}");
    }
}
