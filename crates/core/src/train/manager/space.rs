//! Who splits the space between datasets, and when.

use std::time::Duration;

use crate::{
    ByteSize,
    placement::{Dataset, Placement, Share, greedy},
};

/// Space is split anew when jobs come and go, and so often.
const SPLIT_EVERY: Duration = Duration::from_secs(30);

/// By which rule space is split.
#[derive(Debug, Clone)]
pub enum Rule {
    /// The paper's.
    Greedy,
    /// Ours.
    Knapsack(Placement),
}

/// The space of all datasets.
#[derive(Debug)]
pub struct Space {
    rule: Rule,
    capacity: ByteSize,
    split_at: Duration,
}

impl Space {
    /// So much space, for nobody yet.
    pub fn new(rule: Rule, capacity: ByteSize) -> Self {
        Self { rule, capacity, split_at: Duration::ZERO }
    }

    /// Splits the space. Returns what each dataset gets, by its place among the wishes, in the order in
    /// which that is to be carried out: those that get less make room for those that get more.
    pub fn split(&mut self, now: Duration, wishes: &[Dataset]) -> Vec<(usize, Share)> {
        self.split_at = now.saturating_add(SPLIT_EVERY);
        let shares = match &self.rule {
            Rule::Greedy => greedy(self.capacity, wishes),
            Rule::Knapsack(placement) => placement.split(self.capacity, wishes),
        };
        let mut shares: Vec<(usize, Share)> = shares.into_iter().enumerate().collect();
        shares.sort_by_key(|(at, share)| {
            let wish = &wishes[*at];
            share.space.0.saturating_sub(wish.space(wish.placed).0)
        });
        shares
    }

    /// When it is split again, if there is no reason before.
    pub fn next_deadline(&self) -> Duration {
        self.split_at
    }

    /// There is so much from now on. Says whether that is another than before.
    pub fn set_capacity(&mut self, capacity: ByteSize) -> bool {
        std::mem::replace(&mut self.capacity, capacity) != capacity
    }

    /// How much there is.
    pub fn capacity(&self) -> ByteSize {
        self.capacity
    }
}
