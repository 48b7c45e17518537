//! How an epoch is drawn: what a job decides before it begins, and every rank alike.

/// Candidates for each place in a batch (Quiver 4.7).
pub const OVER_ASK: u32 = 10;
/// No batch looks further ahead, however long it is, but for its own length (Quiver 5.2).
pub const WINDOW: u32 = 2048;

/// One rank's part in one epoch of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// What all randomness comes from; the same on all ranks.
    pub seed: u64,
    /// Each epoch has an order of its own.
    pub epoch: u64,
    /// Which of the job's ranks this is.
    pub rank: u32,
    /// How many ranks there are.
    pub world: u32,
    /// Items of a batch, on each rank.
    pub batch: u32,
    /// What becomes of items that do not divide evenly.
    pub ending: Ending,
    /// Candidates for each place in a batch.
    pub over_ask: u32,
    /// Candidates for a batch at most, but for its own length.
    pub window: u32,
    /// Batches of like length, as far as possible: less random, by wish (promise 8).
    pub like_length: bool,
}

/// What becomes of items that do not divide evenly among ranks and batches. All ranks yield equally many
/// batches in either case, or those that are done would wait for the others for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The last batch is short, and ranks that have an item less repeat one.
    Pad,
    /// Only full batches; the rest is left out of this epoch.
    DropLast,
}

/// Why nothing can be drawn like that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing would ever be yielded.
    #[error("`{0}` is nought; ask for 1 or more")]
    Nought(&'static str),
    /// No such rank.
    #[error("rank {rank} of {world}: ranks count from 0 to {}", world - 1)]
    Rank {
        /// The rank.
        rank: u32,
        /// How many there are.
        world: u32,
    },
}

impl Plan {
    /// One rank alone, with all defaults.
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
        }
    }

    /// The same for one of several ranks.
    #[must_use]
    pub fn on(self, rank: u32, world: u32) -> Self {
        Self { rank, world, ..self }
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        let Self { batch, world, over_ask, window, rank, .. } = *self;
        let sizes =
            [("batch", batch), ("world", world), ("over_ask", over_ask), ("window", window)];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(PlanError::Nought(name));
        }
        if rank >= world {
            return Err(PlanError::Rank { rank, world });
        }
        Ok(())
    }

    /// How many candidates there are for a batch.
    pub(super) fn look(&self) -> u32 {
        self.batch.saturating_mul(self.over_ask).min(self.window).max(self.batch)
    }

    /// How many items each rank yields of `left`, padding and all, and in how many batches.
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
        let plan = Plan::new(1, 0, 8);
        assert_eq!(plan.check(), Ok(()));
        let refusal = |plan: Plan| plan.check().unwrap_err().to_string();
        assert_eq!(refusal(Plan { batch: 0, ..plan }), "`batch` is nought; ask for 1 or more");
        assert_eq!(refusal(Plan { window: 0, ..plan }), "`window` is nought; ask for 1 or more");
        assert_eq!(refusal(plan.on(0, 0)), "`world` is nought; ask for 1 or more");
        assert_eq!(refusal(plan.on(2, 2)), "rank 2 of 2: ranks count from 0 to 1");
    }

    #[test]
    fn a_batch_looks_ten_times_as_far_as_it_is_long_but_not_too_far() {
        let look = |batch| Plan::new(1, 0, batch).look();
        assert_eq!([look(1), look(32), look(512), look(4096)], [10, 320, 2048, 4096]);
        assert_eq!(look(u32::MAX), u32::MAX);
    }

    #[test]
    fn every_rank_yields_as_much() {
        let plan = Plan::new(1, 0, 8).on(0, 3);
        assert_eq!(plan.length(100), (34, 5));
        assert_eq!(plan.length(0), (0, 0));
        assert_eq!(plan.length(1), (1, 1));
        let plan = Plan { ending: Ending::DropLast, ..plan };
        assert_eq!(plan.length(100), (32, 4));
        assert_eq!(plan.length(23), (0, 0));
    }
}
