//! An urn of chunks: draws one after another, each in proportion to what is left in it.
//!
//! That is how the random orders of several chunks are merged into a random order of all their items. A
//! tree of sums makes it as good as independent of how many chunks there are.

use super::random::Random;

/// What is left in each place.
#[derive(Debug, Clone, Default)]
pub(super) struct Urn {
    /// Node `n` is the sum of `2n` and `2n + 1`; the second half are the places. Node 0 is unused.
    sums: Vec<u32>,
}

impl Urn {
    pub(super) fn fill(&mut self, counts: impl ExactSizeIterator<Item = u32>) {
        let places = counts.len().next_power_of_two();
        self.sums.clear();
        self.sums.resize(places, 0);
        self.sums.extend(counts);
        self.sums.resize(2 * places, 0);
        for node in (1..places).rev() {
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1];
        }
    }

    pub(super) fn left(&self) -> u32 {
        self.sums[1]
    }

    /// Takes one out of a random place that is not empty.
    pub(super) fn draw(&mut self, random: &mut Random) -> usize {
        let mut at = if self.sums.len() == 2 { 0 } else { random.below(self.left()) };
        let places = self.sums.len() / 2;
        let mut node = 1;
        while node < places {
            self.sums[node] -= 1;
            let left = self.sums[2 * node];
            let right = at >= left;
            at -= if right { left } else { 0 };
            node = 2 * node + usize::from(right);
        }
        self.sums[node] -= 1;
        node - places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::random::Purpose;

    #[test]
    fn it_draws_in_proportion_and_each_but_once() {
        let counts = [300_u32, 0, 100, 500, 100];
        let mut random = Random::keyed(Purpose::Batch, &[5]);
        let mut early = [0_u32; 5];
        let mut urn = Urn::default();
        for _ in 0..100 {
            urn.fill(counts.iter().copied());
            let mut drawn = [0_u32; 5];
            for draw in 0..1000 {
                let place = urn.draw(&mut random);
                drawn[place] += 1;
                early[place] += u32::from(draw < 100);
            }
            assert_eq!((drawn, urn.left()), (counts, 0));
        }
        for (early, count) in early.iter().zip(counts) {
            assert!(early.abs_diff(count * 10) < 250, "{early} of {}", count * 10);
        }
    }

    #[test]
    fn a_single_place_needs_no_luck() {
        let mut urn = Urn::default();
        urn.fill([3].into_iter());
        let mut random = Random::keyed(Purpose::Batch, &[5]);
        assert_eq!([urn.draw(&mut random), urn.draw(&mut random)], [0, 0]);
        assert_eq!(urn.left(), 1);
    }
}
