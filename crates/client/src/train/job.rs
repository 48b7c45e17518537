//! One rank's part in one epoch: batches are drawn ahead of what the job is given, so what was drawn waits
//! here until it is yielded; only then does it count.

use std::{collections::VecDeque, mem, time::Duration};

use forebay_core::{
    ItemOrdinal,
    benefit::Mode,
    sampler::{Batch, Sampler, Source},
};

use crate::{layout::Layout, member::Member};

/// Batches that were yielded since the time was last taken are remembered up to so many.
const UNTIMED_MAX: usize = 1 << 10;

/// One rank's part in one epoch.
#[derive(Debug)]
pub struct Epoch {
    sampler: Sampler,
    drawn: VecDeque<(Batch, Option<Mode>)>,
    /// Where batches came from that were yielded since the time was last taken, and how long they are.
    untimed: Vec<(Option<Mode>, u64)>,
}

/// A batch to be read.
#[derive(Debug)]
pub struct Drawn {
    /// Its items.
    pub items: Vec<ItemOrdinal>,
    /// Those of them that were not resident.
    pub missing: Vec<ItemOrdinal>,
    /// It is a probe: to be read from the origin, whatever is resident.
    pub is_forced: bool,
}

impl Epoch {
    /// Of which nothing has been drawn yet.
    pub fn new(sampler: Sampler) -> Self {
        Self { sampler, drawn: VecDeque::new(), untimed: Vec::new() }
    }

    /// What draws.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Draws a batch: resident items first, from what the manager of the dataset has opened, if it has
    /// answered. `None` when all have been drawn.
    pub fn draw(
        &mut self,
        layout: &Layout,
        presence: &[u8],
        mut member: Option<&mut Member>,
    ) -> Option<Drawn> {
        let resident = layout.residents(presence);
        let mut is_forced = false;
        if let Some(member) = member.as_mut().filter(|member| member.is_answered()) {
            let directions = member.directions(&self.sampler);
            // What cannot be is counted, and drawn without.
            if self.sampler.open(&directions.held, &directions.rotating).is_ok() {
                let _ = self.sampler.leaving(directions.leaving);
            }
            is_forced = member.forces_miss();
        }
        let batch = self.sampler.draw(|item| !is_forced && resident(item))?;
        let mode = match member {
            _ if is_forced => Some(Mode::Miss),
            Some(member) if member.is_answered() => {
                let pieces = batch.items().iter().map(|item| layout.piece_of(*item));
                member.mode(pieces, batch.items().iter().all(|item| resident(*item)))
            }
            _ => None,
        };
        let missing = batch.of(Source::Claimed).chain(batch.of(Source::Outside)).collect();
        let drawn = Drawn { items: batch.items().to_vec(), missing, is_forced };
        self.drawn.push_back((batch, mode));
        Some(drawn)
    }

    /// Whether the job has yet to be given something that was drawn.
    pub fn is_awaited(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// The job was given the oldest batch that was drawn, which is returned; `None` if there is none.
    pub fn yielded(&mut self, layout: &Layout, member: Option<&mut Member>) -> Option<Batch> {
        let (batch, mode) = self.drawn.pop_front()?;
        let released = self.sampler.yielded(batch.number()).expect("the oldest that was drawn");
        if let Some(member) = member {
            member.released(released);
        }
        if self.untimed.len() < UNTIMED_MAX {
            self.untimed.push((mode, layout.bytes_of(batch.items())));
        }
        Some(batch)
    }

    /// What was yielded since this was last said, mostly one batch, took so long together, of which the job
    /// waited `stalled` for it. Of a mixture each item is a batch by itself, and several are computed on at once.
    pub fn computed(&mut self, member: &mut Member, took: Duration, stalled: Duration) {
        let batches = mem::take(&mut self.untimed);
        let Ok(count @ 1..) = u32::try_from(batches.len()) else { return };
        for (mode, bytes) in batches {
            member.computed(mode, bytes, [took / count, stalled / count]);
        }
    }

    /// Items that come within the next `count` and have not been told of before. Batches only reorder
    /// what lies near, so each item is told of once.
    pub fn upcoming(&mut self, count: usize) -> Vec<ItemOrdinal> {
        self.sampler.upcoming(count)
    }
}
