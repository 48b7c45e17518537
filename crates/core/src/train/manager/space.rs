//! Space: the capacity that all datasets share, and the rule that splits it.
//!
//! Space moves in two steps. A dataset that shrinks keeps the bytes of an evicted chunk until the
//! last items of it have reached their jobs. A dataset that grows gets only what is free by then,
//! and the rest at the next split, which the freed chunk causes.
//!
//! **Invariant:** what datasets occupy or may load is never more than the capacity (promise 6).

use std::time::Duration;

use crate::{
    ByteSize,
    train::placement::{DatasetDemand, Placement, Share, greedy},
};

/// Interval between splits. Space is also split when jobs join or leave.
const SPLIT_EVERY: Duration = Duration::from_secs(30);

/// The rule that splits the space.
#[derive(Debug, Clone)]
pub enum PlacementRule {
    /// Quiver's rule (5.3).
    Greedy,
    /// Ours: an exact knapsack.
    Knapsack(Placement),
}

/// The capacity for all datasets.
#[derive(Debug)]
pub struct Space {
    rule: PlacementRule,
    capacity: ByteSize,
    split_at: Duration,
}

impl Space {
    /// `capacity` of space, none of it allocated.
    pub fn new(rule: PlacementRule, capacity: ByteSize) -> Self {
        Self { rule, capacity, split_at: Duration::ZERO }
    }

    /// Splits the space. Returns each dataset's share with its index in `demands`, in the order in
    /// which shares are applied: datasets that shrink come before those that grow.
    pub fn split(&mut self, now: Duration, demands: &[DatasetDemand]) -> Vec<(usize, Share)> {
        self.split_at = now.saturating_add(SPLIT_EVERY);
        let shares = match &self.rule {
            PlacementRule::Greedy => greedy(self.capacity, demands),
            PlacementRule::Knapsack(placement) => placement.split(self.capacity, demands),
        };
        let mut shares: Vec<(usize, Share)> = shares.into_iter().enumerate().collect();
        let growth = |(at, share): &(usize, Share)| {
            share.space.0.saturating_sub(demands[*at].space_held().0)
        };
        shares.sort_by_key(growth);
        let held = demands.iter().map(|demand| demand.space_held().0);
        let mut free = self.capacity.0.saturating_sub(held.fold(0, u64::saturating_add));
        for (at, share) in &mut shares {
            let demand = &demands[*at];
            let held = demand.space_held();
            if share.space.0 > held.0.saturating_add(free) {
                let within = ByteSize(held.0.saturating_add(free));
                *share = demand.share(demand.part_within(within, share.allocation), self.capacity);
            }
            free -= share.space.0.saturating_sub(held.0);
        }
        shares
    }

    /// Time of the next split, if nothing causes one before.
    pub fn next_deadline(&self) -> Duration {
        self.split_at
    }

    /// Changes the capacity. Returns whether it is another than before.
    pub fn set_capacity(&mut self, capacity: ByteSize) -> bool {
        std::mem::replace(&mut self.capacity, capacity) != capacity
    }

    /// The capacity.
    pub fn capacity(&self) -> ByteSize {
        self.capacity
    }
}
