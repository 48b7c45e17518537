//! What becomes of datasets that nobody gains from: they keep what they have, as long as nobody needs the room.
//!
//! They save no GPU time now, so those that do come first, and what is left is for these: their next jobs find
//! what the last ones fetched. To begin with, each keeps what is there of it, the one that was read last first,
//! so that the least recently used goes when room is needed, chunk by chunk. Where there is room even then, each
//! may have as much as before, for whatever else is put.

use super::{Choice, Dataset};
use crate::ByteSize;

/// Leaves to those that nobody gains from, which have been given nothing yet, what the others have not.
pub(super) fn leave_the_rest(space: ByteSize, datasets: &[Dataset], choices: &mut [Choice]) {
    let mut idle: Vec<usize> =
        (0..datasets.len()).filter(|at| datasets[*at].jobs.is_empty()).collect();
    idle.sort_by_key(|at| datasets[*at].idle_for);
    let taken = datasets.iter().zip(&*choices).map(|(dataset, choice)| dataset.space(*choice).0);
    let mut free = space.0.saturating_sub(taken.fold(0, u64::saturating_add));
    for wanted in [Dataset::kept, Dataset::present] {
        for at in &idle {
            let (dataset, choice) = (&datasets[*at], &mut choices[*at]);
            let has = dataset.space(*choice).0;
            *choice = dataset.most_within(ByteSize(free + has), wanted(dataset)).max(*choice);
            free -= dataset.space(*choice).0 - has;
        }
    }
}

impl Dataset {
    /// What is there, as a choice.
    pub(super) fn kept(&self) -> Choice {
        match self.present() {
            Choice::Chunks(placed) if self.here > 0 => Choice::Chunks(placed.min(self.here)),
            Choice::Halves if self.here > 0 => Choice::Halves,
            _ => Choice::Nothing,
        }
    }

    /// The most of a choice that fits.
    fn most_within(&self, space: ByteSize, choice: Choice) -> Choice {
        if self.space(choice) <= space {
            return choice;
        }
        // No more fit than do of the largest, and not all of them.
        match (choice, space.0.checked_div(self.chunk_size.0)) {
            (Choice::Chunks(_), Some(chunks)) if chunks > 0 && self.chunks > 1 => {
                let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
                Choice::Chunks(chunks.min(self.chunks - 1))
            }
            _ => Choice::Nothing,
        }
    }
}
