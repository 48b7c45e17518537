//! The batches of a recording, once more: the same items in the same order, wherever they are now.

use super::{
    Batch, Counts, HeldShare, Layout, Order, Recording, RecordingError, Refusal, Sampler, Source,
    State,
    draw::Pick,
    ledger::{InFlight, Ledger},
    open::{Open, Standing},
    state::Progress,
};
use crate::ItemOrdinal;

#[derive(Debug, Clone)]
pub(super) struct Replay {
    /// Fingerprint of the recording.
    pub(super) recording: u64,
    /// The items of all batches, with their chunks; the place means nothing.
    picks: Vec<Pick>,
    /// Where each batch begins in `picks`, and where the last ends; and how many at its end are padding.
    starts: Vec<usize>,
    padding: Vec<u32>,
    /// How much of `picks` was told of.
    told: usize,
}

impl Sampler {
    /// Yields what was recorded, bit for bit, from the beginning or from a state of the same replay.
    pub fn replay(
        layout: &Layout,
        recording: &Recording,
        state: Option<&State>,
    ) -> Result<Self, Refusal> {
        recording.of.check(layout)?;
        let replay = Replay::new(layout, recording)?;
        let mut unyielded = vec![0; layout.chunks() as usize];
        let yielded = match state.map(|state| (&state.progress, state.yielded)) {
            None => 0,
            Some((Progress::Replayed { recording: of }, yielded)) if *of == replay.recording => {
                yielded
            }
            Some(_) => return Err(Refusal::OtherRecording),
        };
        if yielded > recording.batches() {
            return Err(Refusal::Inconsistent);
        }
        for batch in yielded..recording.batches() {
            replay.own(batch).iter().for_each(|pick| unyielded[pick.chunk as usize] += 1);
        }
        let items = u32::try_from(layout.items()).expect("a layout counts in 32 bits");
        let mut ledger = Ledger::new(recording.batches(), unyielded, items);
        ledger.yielded = yielded;
        Ok(Self {
            of: recording.of,
            plan: recording.plan,
            items,
            open: Open::all(layout.chunks()),
            order: Order::Replayed(replay),
            ledger,
            dealt_at: 0.0,
        })
    }
}

impl Replay {
    fn new(layout: &Layout, recording: &Recording) -> Result<Self, RecordingError> {
        let chunk_of = layout.chunk_of_items();
        let mut seen = vec![false; chunk_of.len()];
        let mut replay = Self {
            recording: recording.fingerprint(),
            picks: Vec::new(),
            starts: vec![0],
            padding: Vec::new(),
            told: 0,
        };
        for (items, padding) in recording.iter() {
            for (at, item) in items.iter().enumerate() {
                let Some(chunk) = chunk_of.get(*item as usize) else {
                    return Err(RecordingError::NoSuchItem { item: *item, items: layout.items() });
                };
                let own = at < items.len() - padding as usize;
                if own && std::mem::replace(&mut seen[*item as usize], true) {
                    return Err(RecordingError::ItemTwice { item: *item });
                }
                replay.picks.push(Pick { item: *item, chunk: *chunk, place: 0 });
            }
            replay.starts.push(replay.picks.len());
            replay.padding.push(padding);
        }
        Ok(replay)
    }

    fn batch(&self, number: u64) -> &[Pick] {
        let number = usize::try_from(number).expect("a batch that there is");
        &self.picks[self.starts[number]..self.starts[number + 1]]
    }

    /// A batch without its padding.
    fn own(&self, number: u64) -> &[Pick] {
        let padding = self.padding[usize::try_from(number).expect("a batch that there is")];
        let batch = self.batch(number);
        &batch[..batch.len() - padding as usize]
    }

    /// Items of a chunk from a batch on.
    pub(super) fn items_of(&self, next: Option<u64>, chunk: u32) -> impl Iterator<Item = u32> {
        let left = next.map_or(self.starts.len() as u64, |next| next)..self.padding.len() as u64;
        let picks = left.flat_map(|batch| self.own(batch));
        picks.filter(move |pick| pick.chunk == chunk).map(|pick| pick.item)
    }

    pub(super) fn draw(
        &self,
        open: &Open,
        number: u64,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> (Batch, InFlight) {
        let picks = self.batch(number);
        let own = self.own(number);
        let mut batch = Batch::new(number, picks.len());
        for (at, pick) in picks.iter().enumerate() {
            let source = if at >= own.len() {
                Source::Padding
            } else if resident(ItemOrdinal::new(pick.item.into())) {
                Source::Resident
            } else if open.standing(pick.chunk) == Standing::Outside {
                Source::Outside
            } else {
                Source::Claimed
            };
            batch.push(pick.item, source);
        }
        let counts = Counts::of(&batch);
        (batch, InFlight { picks: own.to_vec(), counts, held: HeldShare::default() })
    }

    pub(super) fn upcoming(&mut self, next: Option<u64>, count: usize) -> Vec<ItemOrdinal> {
        let Some(next) = next else { return Vec::new() };
        let start = self.starts[usize::try_from(next).expect("a batch that there is")];
        let end = start.saturating_add(count).min(self.picks.len());
        let news = self.told.max(start)..end.max(self.told.max(start));
        self.told = news.end;
        self.picks[news].iter().map(|pick| ItemOrdinal::new(pick.item.into())).collect()
    }
}
