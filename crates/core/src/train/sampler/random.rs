//! Random numbers that never change. A state has positions in a permutation, so the permutation of
//! a seed must be the same in every version of forebay, whatever its dependencies do. This
//! generator (`SplitMix64`) and its use here are part of the state's format.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a sequence of random numbers is for. Each purpose has its own sequence, so that they are
/// independent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// The order of a half-chunk's items.
    Order = 1,
    /// One batch.
    Batch = 2,
    /// The order of a half-chunk's runs of like length.
    Runs = 3,
    /// The parts of a split.
    Split = 4,
    /// How often items occur in an epoch.
    Weights = 5,
    /// The order of an epoch that does not depend on ranks.
    GlobalOrder = 6,
    /// The pack order of a half-chunk, and the order in which half-chunks join a window.
    Packs = 7,
}

/// A sequence that is determined by its key.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn keyed(purpose: Purpose, key: &[u64]) -> Self {
        let fold = |state: u64, word: &u64| mix(state.wrapping_add(STEP) ^ *word);
        Self(key.iter().fold(mix(purpose as u64), fold))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which is at least 1.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0, "the bound is at least 1");
        let scaled = (u128::from(self.next()) * u128::from(bound)) >> 64;
        u32::try_from(scaled).expect("below a u32")
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let bound = u32::try_from(at + 1).expect("fewer items than a u32 counts");
            items.swap(at, self.below(bound) as usize);
        }
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state that this version has written must mean the same to the next.
    #[test]
    fn the_order_of_a_seed_never_changes() {
        let mut items: Vec<u32> = (0..10).collect();
        Random::keyed(Purpose::Order, &[7, 0, 3]).shuffle(&mut items);
        assert_eq!(items, [3, 1, 8, 0, 5, 2, 4, 9, 7, 6]);
    }

    #[test]
    fn numbers_are_even_and_purposes_differ() {
        let mut seen = [0_u32; 7];
        let mut random = Random::keyed(Purpose::Batch, &[1]);
        (0..70_000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|times| times.abs_diff(10_000) < 400), "{seen:?}");
        let first = |purpose, key: &[u64]| Random::keyed(purpose, key).next();
        assert_ne!(first(Purpose::Batch, &[1]), first(Purpose::Order, &[1]));
        assert_ne!(first(Purpose::Batch, &[1, 0]), first(Purpose::Batch, &[0, 1]));
    }
}
