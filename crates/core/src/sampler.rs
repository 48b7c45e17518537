//! Which items make the next batch: any unread ones will do, so those that are resident go first.
//!
//! Quiver's observation: a batch needs random items, not particular ones. An epoch is a seeded
//! permutation; each batch looks ten times as far ahead in it as it is long, and takes what is resident
//! from there, in the permutation's order, completed by what is not. What was passed over stays at the
//! front, so nothing is put off for longer than the window has resident items (promises 2 and 8).

use crate::ItemOrdinal;

/// How many candidates there are for each place in a batch.
const CANDIDATES: usize = 10;
/// No batch looks further ahead, however long it is, but for its own length.
const WINDOW_MAX: usize = 2048;

/// One epoch of one job.
#[derive(Debug, Clone)]
pub struct Sampler {
    /// A permutation of all items; what has been drawn lies before `drawn`.
    order: Vec<u64>,
    drawn: usize,
}

impl Sampler {
    /// An epoch over `items` items, in an order that only `seed` decides.
    pub fn new(items: u64, seed: u64) -> Self {
        let mut order: Vec<u64> = (0..items).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        Self { order, drawn: 0 }
    }

    /// How many items are left.
    pub fn left(&self) -> usize {
        self.order.len() - self.drawn
    }

    /// Where the next batch is drawn from, nearest first.
    pub fn window(&self, batch: usize) -> impl ExactSizeIterator<Item = ItemOrdinal> {
        let reach = (batch.saturating_mul(CANDIDATES)).min(WINDOW_MAX).max(batch);
        self.order[self.drawn..].iter().take(reach).map(|item| ItemOrdinal::new(*item))
    }

    /// Draws a batch; it is short only when the epoch ends with it.
    pub fn draw(
        &mut self,
        batch: usize,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> Vec<ItemOrdinal> {
        let window: Vec<u64> = self.window(batch).map(|item| item.0).collect();
        let mut taken = 0;
        let (first, rest): (Vec<u64>, Vec<u64>) = window.iter().partition(|item| {
            let take = taken < batch && resident(ItemOrdinal::new(**item));
            taken += usize::from(take);
            take
        });
        let span = self.drawn..self.drawn + window.len();
        for (slot, item) in self.order[span].iter_mut().zip(first.iter().chain(&rest)) {
            *slot = *item;
        }
        let drawn = self.drawn..self.drawn + batch.min(window.len());
        self.drawn = drawn.end;
        self.order[drawn].iter().map(|item| ItemOrdinal::new(*item)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promise 2: in one epoch a job is given every item exactly once, whatever is resident when.
        #[test]
        fn every_item_exactly_once(items in 0_u64..500, seed in any::<u64>(), sizes in proptest::collection::vec(1_usize..40, 1..20)) {
            let mut sampler = Sampler::new(items, seed);
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut seen = vec![0; usize::try_from(items).unwrap()];
            for size in sizes.iter().cycle() {
                let left = sampler.left();
                let share = rng.f64();
                let bits: Vec<bool> = (0..items).map(|_| rng.f64() < share).collect();
                let batch = sampler.draw(*size, |item| bits[usize::try_from(item.0).unwrap()]);
                prop_assert_eq!(batch.len(), left.min(*size), "short only at the end");
                for item in &batch {
                    seen[usize::try_from(item.0).unwrap()] += 1;
                }
                if batch.is_empty() {
                    break;
                }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }
    }

    #[test]
    fn resident_items_go_first_and_the_rest_completes_the_batch() {
        let mut sampler = Sampler::new(100, 7);
        let window: Vec<u64> = sampler.window(4).map(|item| item.0).collect();
        let resident = [window[3], window[39]];
        let batch: Vec<u64> =
            sampler.draw(4, |item| resident.contains(&item.0)).iter().map(|item| item.0).collect();
        assert_eq!(batch, [window[3], window[39], window[0], window[1]]);
        assert_eq!(sampler.window(4).next().unwrap().0, window[2], "passed over, but next");
    }

    /// With everything resident, or nothing, it is the plain permutation.
    #[test]
    fn without_a_reason_nothing_is_reordered() {
        let order = Sampler::new(50, 3).order.clone();
        for resident in [true, false] {
            let mut sampler = Sampler::new(50, 3);
            let mut drawn = Vec::new();
            while sampler.left() > 0 {
                drawn.extend(sampler.draw(8, |_| resident).iter().map(|item| item.0));
            }
            assert_eq!(drawn, order);
        }
        assert_ne!(order, Sampler::new(50, 4).order, "another seed, another order");
    }
}
