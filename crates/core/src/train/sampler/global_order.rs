//! The global order: one random order of an epoch, whatever the number of ranks.
//!
//! A step of training takes `world * batch` items from the front: one batch per rank, in the order
//! of ranks. So with the same product, each step sees the same items on 1 rank or on 8, and a job
//! continues with another number of ranks where it stopped. The order ignores what is cached: the
//! price of being reproducible.

use super::{
    Ending, EpochPlan, EpochPlanError,
    random::{Purpose, Random},
};

/// The items of one epoch, in the order in which all ranks together yield them.
#[derive(Debug, Clone)]
pub struct GlobalOrder {
    items: Vec<u32>,
}

impl GlobalOrder {
    /// A random order of these items, which may repeat.
    pub fn new(items: impl IntoIterator<Item = u32>, seed: u64, epoch: u64) -> Self {
        let mut items: Vec<u32> = items.into_iter().collect();
        Random::keyed(Purpose::GlobalOrder, &[seed, epoch]).shuffle(&mut items);
        Self { items }
    }

    /// One rank's items after the first `start` of the epoch: its batches, one after the other. If
    /// the last items do not divide evenly, ranks repeat some of these to have equally many, or all
    /// leave them out.
    pub fn share(&self, plan: &EpochPlan, start: u64) -> Result<Vec<u32>, EpochPlanError> {
        plan.check()?;
        let (batch, world) = (plan.batch as usize, plan.world as usize);
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(self.items.len());
        let step = batch.saturating_mul(world);
        let mut own = Vec::new();
        for of_step in self.items[start..].chunks(step) {
            if of_step.len() == step {
                let first = plan.rank as usize * batch;
                own.extend_from_slice(&of_step[first..first + batch]);
            } else if plan.ending == Ending::Pad {
                let each = of_step.len().div_ceil(world);
                let first = plan.rank as usize * each;
                own.extend((first..first + each).map(|at| of_step[at % of_step.len()]));
            }
        }
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The items of each step, of all ranks together.
    fn steps(order: &GlobalOrder, plan: EpochPlan, start: u64) -> Vec<BTreeSet<u32>> {
        let mut steps = Vec::new();
        for rank in 0..plan.world {
            let share = order.share(&plan.on(rank, plan.world), start).unwrap();
            for (step, batch) in share.chunks(plan.batch as usize).enumerate() {
                steps.resize(steps.len().max(step + 1), BTreeSet::new());
                steps[step].extend(batch);
            }
        }
        steps
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promise 2, with any number of ranks: each step has the same items.
        #[test]
        fn every_step_has_the_same_items_whatever_the_number_of_ranks(
            items in 0_u32..400,
            (worlds, step) in prop_oneof![
                Just(([1_u32, 2, 4], 8_u32)), Just(([1, 3, 6], 12)), Just(([1, 5, 10], 10)),
            ],
            seed in any::<u64>(),
        ) {
            let order = GlobalOrder::new(0..items, seed, 2);
            let of = |world: u32| {
                steps(&order, EpochPlan::new(seed, 2, step / world).on(0, world), 0)
            };
            let alone = of(1);
            let all: BTreeSet<u32> = alone.iter().flatten().copied().collect();
            prop_assert!(all.into_iter().eq(0..items), "every item");
            for world in worlds {
                prop_assert_eq!(&of(world), &alone);
            }
        }

        #[test]
        fn ranks_have_equally_many_batches_and_repeat_less_than_one_item_each(
            items in 0_u32..400,
            world in 1_u32..9,
            batch in 1_u32..9,
            drops in any::<bool>(),
        ) {
            let ending = if drops { Ending::DropLast } else { Ending::Pad };
            let plan = EpochPlan { ending, ..EpochPlan::new(1, 0, batch) };
            let order = GlobalOrder::new(0..items, 1, 0);
            let shares: Vec<Vec<u32>> =
                (0..world).map(|rank| order.share(&plan.on(rank, world), 0).unwrap()).collect();
            let (length, _) = plan.on(0, world).length(items);
            prop_assert!(shares.iter().all(|share| share.len() == length as usize));
            let distinct: BTreeSet<u32> = shares.iter().flatten().copied().collect();
            let given = length * world;
            prop_assert!(given - u32::try_from(distinct.len()).unwrap() < world);
        }

        #[test]
        fn an_epoch_continues_with_another_number_of_ranks(
            items in 1_u32..400,
            before in 1_u32..5,
            after in 1_u32..5,
            taken in 0_u32..20,
        ) {
            let order = GlobalOrder::new(0..items, 9, 1);
            let plan = EpochPlan::new(9, 1, 3);
            let first: Vec<BTreeSet<u32>> = steps(&order, plan.on(0, before), 0);
            let taken = taken.min(items / (before * 3));
            let seen = first.iter().take(taken as usize).flatten();
            let rest = steps(&order, plan.on(0, after), u64::from(taken * before * 3));
            let mut all: Vec<u32> = seen.chain(rest.iter().flatten()).copied().collect();
            all.sort_unstable();
            all.dedup();
            prop_assert!(all.into_iter().eq(0..items));
        }
    }

    #[test]
    fn seeds_and_epochs_have_orders_of_their_own() {
        let order = |seed, epoch| GlobalOrder::new(0..50, seed, epoch).items;
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    /// A state that this version has written must mean the same to the next.
    #[test]
    fn the_order_of_a_seed_never_changes() {
        assert_eq!(GlobalOrder::new(0..8, 7, 0).items, [0, 2, 4, 6, 7, 5, 1, 3]);
    }
}
