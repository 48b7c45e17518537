//! Weighted merge: draws half-chunks one after the other, each in proportion to what is left in it.
//!
//! So the random orders of several half-chunks are merged into a random order of all their items. A
//! tree of sums makes a draw nearly independent of the number of half-chunks.

use super::random::Random;

/// Items that are left of each half-chunk.
#[derive(Debug, Clone, Default)]
pub(super) struct WeightedMerge {
    /// Node `n` is the sum of `2n` and `2n + 1`. The second half are the half-chunks. Node 0 is
    /// unused.
    sums: Vec<u32>,
}

impl WeightedMerge {
    pub(super) fn fill(&mut self, counts: impl ExactSizeIterator<Item = u32>) {
        let positions = counts.len().next_power_of_two();
        self.sums.clear();
        self.sums.resize(positions, 0);
        self.sums.extend(counts);
        self.sums.resize(2 * positions, 0);
        for node in (1..positions).rev() {
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
        }
    }

    pub(super) fn left(&self) -> u32 {
        self.sums[1]
    }

    /// Takes one item of a random half-chunk that is not empty.
    pub(super) fn draw(&mut self, random: &mut Random) -> usize {
        let mut at = if self.sums.len() == 2 { 0 } else { random.below(self.left()) };
        let positions = self.sums.len() / 2;
        let mut node = 1;
        while node < positions {
            self.sums[node] -= 1;
            let left = self.sums[2 * node];
            let right = at >= left;
            at -= if right { left } else { 0 };
            node = 2 * node + usize::from(right);
        }
        self.sums[node] -= 1;
        node - positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::sampler::random::Purpose;

    #[test]
    fn it_draws_in_proportion_and_each_but_once() {
        let counts = [300_u32, 0, 100, 500, 100];
        let mut random = Random::keyed(Purpose::Batch, &[5]);
        let mut early = [0_u32; 5];
        let mut merge = WeightedMerge::default();
        for _ in 0..100 {
            merge.fill(counts.iter().copied());
            let mut drawn = [0_u32; 5];
            for draw in 0..1000 {
                let position = merge.draw(&mut random);
                drawn[position] += 1;
                early[position] += u32::from(draw < 100);
            }
            assert_eq!((drawn, merge.left()), (counts, 0));
        }
        for (early, count) in early.iter().zip(counts) {
            assert!(early.abs_diff(count * 10) < 250, "{early} of {}", count * 10);
        }
    }

    #[test]
    fn a_single_place_needs_no_luck() {
        let mut merge = WeightedMerge::default();
        merge.fill([3].into_iter());
        let mut random = Random::keyed(Purpose::Batch, &[5]);
        assert_eq!([merge.draw(&mut random), merge.draw(&mut random)], [0, 0]);
        assert_eq!(merge.left(), 1);
    }
}
