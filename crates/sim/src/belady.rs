//! Belady's MIN with bypass: the optimum for policies that fetch only requested items.
//!
//! It is given the future accesses. Of the resident items and the requested one it keeps those with
//! the earliest next use, which is optimal for items of one size.

use std::collections::BinaryHeap;

use hashbrown::HashMap;

/// No next use.
pub(crate) const NEVER: u32 = u32::MAX;

/// For each access, the index of the next access to the same item.
pub(crate) fn next_uses(accesses: &[u32]) -> Vec<u32> {
    let keys = accesses.iter().max().map_or(0, |key| *key as usize + 1);
    let mut upcoming = vec![NEVER; keys];
    let mut next = vec![NEVER; accesses.len()];
    for (index, key) in accesses.iter().enumerate().rev() {
        let index_32 = u32::try_from(index).expect("fewer than 2^32 accesses");
        next[index] = std::mem::replace(&mut upcoming[*key as usize], index_32);
    }
    next
}

/// The optimal cache.
#[derive(Debug)]
pub(crate) struct Belady {
    capacity: u64,
    resident: HashMap<u32, u32>,
    farthest: BinaryHeap<(u32, u32)>,
}

impl Belady {
    pub fn new(capacity: u64) -> Self {
        Self { capacity, resident: HashMap::new(), farthest: BinaryHeap::new() }
    }

    /// Accesses an item whose next use is `next`. Returns whether it was resident.
    pub fn access(&mut self, key: u32, next: u32) -> bool {
        let hit = self.resident.remove(&key).is_some();
        if next == NEVER {
            return hit;
        }
        self.resident.insert(key, next);
        self.farthest.push((next, key));
        while self.resident.len() as u64 > self.capacity {
            let (next, key) = self.farthest.pop().expect("residents are in the heap");
            if self.resident.get(&key) == Some(&next) {
                self.resident.remove(&key);
            }
        }
        hit
    }
}

/// Most hits that any policy can have.
pub(crate) fn hits(accesses: &[u32], capacity: u64) -> u64 {
    let mut belady = Belady::new(capacity);
    let next = next_uses(accesses);
    let hits = accesses.iter().zip(next).filter(|(key, next)| belady.access(**key, *next));
    hits.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exhaustive search: after each access, every subset that fits.
    fn best(accesses: &[u32], capacity: usize, resident: &[u32]) -> u64 {
        let Some((key, rest)) = accesses.split_first() else { return 0 };
        let hit = u64::from(resident.contains(key));
        let mut pool = resident.to_vec();
        if hit == 0 {
            pool.push(*key);
        }
        if pool.len() <= capacity {
            return hit + best(rest, capacity, &pool);
        }
        let without = |evicted: usize| {
            let kept: Vec<u32> = pool
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != evicted)
                .map(|(_, key)| *key)
                .collect();
            best(rest, capacity, &kept)
        };
        hit + (0..pool.len()).map(without).max().unwrap_or(0)
    }

    #[test]
    fn it_equals_an_exhaustive_search() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let keys = random.u32(2..6);
            let accesses: Vec<u32> = (0..random.usize(1..11)).map(|_| random.u32(..keys)).collect();
            for capacity in 0..4 {
                let tried = best(&accesses, capacity, &[]);
                assert_eq!(hits(&accesses, capacity as u64), tried, "{accesses:?}, {capacity}");
            }
        }
    }
}
