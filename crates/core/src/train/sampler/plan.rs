//! The plan of an epoch: what is fixed before it begins, alike on every rank.

/// Candidates per item of a batch (Quiver 4.7).
pub const OVER_ASK: u32 = 10;
/// Candidates of a batch at most, or its own length if that is more (Quiver 5.2).
pub const WINDOW: u32 = 2048;

/// The plan of one rank's part in one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochPlan {
    /// Seed of all randomness, the same on all ranks.
    pub seed: u64,
    /// Number of the epoch. Each epoch has its own order.
    pub epoch: u64,
    /// The rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub world: u32,
    /// Items of a batch, on each rank.
    pub batch: u32,
    /// What happens to items that do not divide evenly.
    pub ending: Ending,
    /// Candidates per item of a batch.
    pub over_ask: u32,
    /// Candidates of a batch at most, or its own length if that is more.
    pub window: u32,
    /// Batches of like length, as far as possible: less random, at the user's request (promise 8).
    pub like_length: bool,
    /// Packs that are open at a time when items outside the cache are drawn; 0 if items are drawn
    /// from all packs at once. The map must have packs. Batches of like length have no window.
    pub pack_window: u32,
}

/// What happens to items that do not divide evenly among ranks and batches. In both cases all ranks
/// yield equally many batches; otherwise ranks that are done would wait for the others forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The last batch is short, and ranks with one item less repeat one.
    Pad,
    /// Only full batches. The epoch leaves out the rest.
    DropLast,
}

/// Why a plan is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EpochPlanError {
    /// A size is zero.
    #[error("`{0}` is 0; use 1 or more")]
    Zero(&'static str),
    /// The rank does not exist.
    #[error("rank {rank} of {world}: ranks count from 0 to {}", world - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// Number of ranks.
        world: u32,
    },
}

impl EpochPlan {
    /// A single rank, with all defaults.
    pub fn new(seed: u64, epoch: u64, batch: u32) -> Self {
        Self {
            seed,
            epoch,
            rank: 0,
            world: 1,
            batch,
            ending: Ending::Pad,
            over_ask: OVER_ASK,
            window: WINDOW,
            like_length: false,
            pack_window: 0,
        }
    }

    /// Whether what is not cached is drawn from a window of packs.
    pub(super) fn has_pack_window(&self) -> bool {
        self.pack_window > 0 && !self.like_length
    }

    /// The same plan for one of several ranks.
    #[must_use]
    pub fn on(self, rank: u32, world: u32) -> Self {
        Self { rank, world, ..self }
    }

    pub(super) fn check(&self) -> Result<(), EpochPlanError> {
        let Self { batch, world, over_ask, window, rank, .. } = *self;
        let sizes =
            [("batch", batch), ("world", world), ("over_ask", over_ask), ("window", window)];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(EpochPlanError::Zero(name));
        }
        if rank >= world {
            return Err(EpochPlanError::Rank { rank, world });
        }
        Ok(())
    }

    /// Candidates of a batch.
    pub(super) fn candidates(&self) -> u32 {
        self.batch.saturating_mul(self.over_ask).min(self.window).max(self.batch)
    }

    /// Of `left` items, those that each rank yields, with padding, and its number of batches.
    pub(super) fn length(&self, left: u32) -> (u32, u32) {
        match self.ending {
            Ending::Pad => {
                let each = left.div_ceil(self.world);
                (each, each.div_ceil(self.batch))
            }
            Ending::DropLast => {
                let batches = left / self.world / self.batch;
                (batches * self.batch, batches)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_plans_are_refused() {
        let plan = EpochPlan::new(1, 0, 8);
        assert_eq!(plan.check(), Ok(()));
        let refusal = |plan: EpochPlan| plan.check().unwrap_err().to_string();
        assert_eq!(refusal(EpochPlan { batch: 0, ..plan }), "`batch` is 0; use 1 or more");
        assert_eq!(refusal(EpochPlan { window: 0, ..plan }), "`window` is 0; use 1 or more");
        assert_eq!(refusal(plan.on(0, 0)), "`world` is 0; use 1 or more");
        assert_eq!(refusal(plan.on(2, 2)), "rank 2 of 2: ranks count from 0 to 1");
    }

    #[test]
    fn a_batch_looks_ten_times_as_far_as_it_is_long_but_not_too_far() {
        let look = |batch| EpochPlan::new(1, 0, batch).candidates();
        assert_eq!([look(1), look(32), look(512), look(4096)], [10, 320, 2048, 4096]);
        assert_eq!(look(u32::MAX), u32::MAX);
    }

    #[test]
    fn every_rank_yields_as_much() {
        let plan = EpochPlan::new(1, 0, 8).on(0, 3);
        assert_eq!(plan.length(100), (34, 5));
        assert_eq!(plan.length(0), (0, 0));
        assert_eq!(plan.length(1), (1, 1));
        let plan = EpochPlan { ending: Ending::DropLast, ..plan };
        assert_eq!(plan.length(100), (32, 4));
        assert_eq!(plan.length(23), (0, 0));
    }
}
