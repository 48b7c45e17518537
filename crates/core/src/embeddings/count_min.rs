//! Count-min sketch: approximate recent access counts of all keys, in constant memory.
//!
//! Each key has four counters, of which the smallest is the estimate. Only the smallest ones are
//! incremented (conservative update). All counters are halved every `halve_at` counts, so that old
//! accesses lose weight.

use super::key::Key;

/// Approximate counts with periodic halving.
#[derive(Debug, Clone)]
pub(super) struct CountMin {
    /// The four counters of a key share a block of 64 bytes: one cache miss per key.
    counters: Vec<[u8; BLOCK]>,
    counted: u64,
    halve_at: u64,
    count_max: u8,
}

const BLOCK: usize = 64;
const DEPTH: u32 = 4;

impl CountMin {
    /// A sketch for about `keys` different keys, halved every `halve_at` counts.
    pub fn new(keys: u64, halve_at: u64, count_max: u8) -> Self {
        let blocks = (keys / 8).clamp(1, 1 << 26).next_power_of_two();
        let blocks = usize::try_from(blocks).expect("at most 2^26 blocks");
        Self {
            counters: vec![[0; BLOCK]; blocks],
            counted: 0,
            halve_at: halve_at.max(1),
            count_max,
        }
    }

    fn counter_indices(&self, key: Key) -> (usize, [usize; DEPTH as usize]) {
        let hash = key.mixed();
        let block = (hash >> 32) as usize & (self.counters.len() - 1);
        let within = |row: u32| (row * 16 + (hash as u32 >> (row * 4)) % 16) as usize;
        (block, [within(0), within(1), within(2), within(3)])
    }

    pub fn estimate(&self, key: Key) -> u8 {
        let (block, counter_indices) = self.counter_indices(key);
        let counters = &self.counters[block];
        counter_indices.into_iter().map(|index| counters[index]).min().expect("a key has counters")
    }

    pub fn count(&mut self, key: Key) {
        let estimate = self.estimate(key);
        if estimate < self.count_max {
            let (block, counter_indices) = self.counter_indices(key);
            for index in counter_indices {
                let counter = &mut self.counters[block][index];
                *counter = (*counter).max(estimate + 1);
            }
        }
        self.counted += 1;
        if self.counted >= self.halve_at {
            self.counted = 0;
            self.counters.as_flattened_mut().iter_mut().for_each(|counter| *counter /= 2);
        }
    }
}
