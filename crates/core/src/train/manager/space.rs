//! Space: the capacity that all datasets share, and the rule that splits it.

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
        shares.sort_by_key(|(at, share)| {
            let demand = &demands[*at];
            share.space.0.saturating_sub(demand.space(demand.allocated).0)
        });
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
