//! Replays: the batches of a recording again, with the same items in the same order.

use super::{
    Batch, BatchOrder, DrawCounts, HalfChunkMap, ItemSource, PinnedShare, Recording,
    RecordingError, Sampler, SamplerError, SamplerState,
    draw::Pick,
    draw_set::{DrawClass, DrawSet},
    in_flight::{DrawnBatch, InFlight},
    state::Progress,
};
use crate::ItemOrdinal;

#[derive(Debug, Clone)]
pub(super) struct Replay {
    /// Fingerprint of the recording.
    pub(super) recording: u64,
    /// The items of all batches, with their half-chunks. Positions are not used.
    picks: Vec<Pick>,
    /// Start of each batch in `picks`, and the end of the last; and the padding at the end of each.
    starts: Vec<usize>,
    padding: Vec<u32>,
    /// Entries of `picks` that were announced.
    announced: usize,
}

impl Sampler {
    /// Yields what was recorded, bit for bit, from the beginning or from a state of the same
    /// replay.
    pub fn replay(
        map: &HalfChunkMap,
        recording: &Recording,
        state: Option<&SamplerState>,
    ) -> Result<Self, SamplerError> {
        recording.of.check(map, &recording.plan)?;
        let replay = Replay::new(map, recording)?;
        let mut unyielded = vec![0; map.half_chunks() as usize];
        let yielded = match state.map(|state| (&state.progress, state.yielded)) {
            None => 0,
            Some((Progress::Replayed { recording: of }, yielded)) if *of == replay.recording => {
                yielded
            }
            Some(_) => return Err(SamplerError::WrongRecording),
        };
        if yielded > recording.batches() {
            return Err(SamplerError::Inconsistent);
        }
        for batch in yielded..recording.batches() {
            replay.own(batch).iter().for_each(|pick| unyielded[pick.half_chunk as usize] += 1);
        }
        let items = u32::try_from(map.items()).expect("items are 32 bits wide");
        let mut in_flight = InFlight::new(recording.batches(), unyielded, items);
        in_flight.yielded = yielded;
        Ok(Self {
            of: recording.of,
            plan: recording.plan,
            items,
            draw_set: DrawSet::all(map.half_chunks()),
            order: BatchOrder::Replayed(replay),
            in_flight,
            sharded_at: 0.0,
        })
    }
}

impl Replay {
    fn new(map: &HalfChunkMap, recording: &Recording) -> Result<Self, RecordingError> {
        let half_chunk_of = map.half_chunk_of_items();
        let mut seen = vec![false; half_chunk_of.len()];
        let mut replay = Self {
            recording: recording.fingerprint(),
            picks: Vec::new(),
            starts: vec![0],
            padding: Vec::new(),
            announced: 0,
        };
        for (items, padding) in recording.iter() {
            for (at, item) in items.iter().enumerate() {
                let Some(half_chunk) = half_chunk_of.get(*item as usize) else {
                    return Err(RecordingError::NoSuchItem { item: *item, items: map.items() });
                };
                let own = at < items.len() - padding as usize;
                if own && std::mem::replace(&mut seen[*item as usize], true) {
                    return Err(RecordingError::ItemTwice { item: *item });
                }
                replay.picks.push(Pick { item: *item, half_chunk: *half_chunk, position: 0 });
            }
            replay.starts.push(replay.picks.len());
            replay.padding.push(padding);
        }
        Ok(replay)
    }

    fn batch(&self, number: u64) -> &[Pick] {
        let number = usize::try_from(number).expect("an existing batch");
        &self.picks[self.starts[number]..self.starts[number + 1]]
    }

    /// A batch without its padding.
    fn own(&self, number: u64) -> &[Pick] {
        let padding = self.padding[usize::try_from(number).expect("an existing batch")];
        let batch = self.batch(number);
        &batch[..batch.len() - padding as usize]
    }

    /// Items of a half-chunk, from a batch on.
    pub(super) fn items_of(&self, next: Option<u64>, half_chunk: u32) -> impl Iterator<Item = u32> {
        let left = next.map_or(self.starts.len() as u64, |next| next)..self.padding.len() as u64;
        let picks = left.flat_map(|batch| self.own(batch));
        picks.filter(move |pick| pick.half_chunk == half_chunk).map(|pick| pick.item)
    }

    pub(super) fn draw(
        &self,
        draw_set: &DrawSet,
        number: u64,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> (Batch, DrawnBatch) {
        let picks = self.batch(number);
        let own = self.own(number);
        let mut batch = Batch::new(number, picks.len());
        for (at, pick) in picks.iter().enumerate() {
            let source = if at >= own.len() {
                ItemSource::Padding
            } else if resident(ItemOrdinal::new(pick.item.into())) {
                ItemSource::Resident
            } else if draw_set.class(pick.half_chunk) == DrawClass::Uncached {
                ItemSource::Uncached
            } else {
                ItemSource::Claimed
            };
            batch.push(pick.item, source);
        }
        let counts = DrawCounts::of(&batch);
        (batch, DrawnBatch { picks: own.to_vec(), counts, pinned: PinnedShare::default() })
    }

    pub(super) fn upcoming(&mut self, next: Option<u64>, count: usize) -> Vec<ItemOrdinal> {
        let Some(next) = next else { return Vec::new() };
        let start = self.starts[usize::try_from(next).expect("an existing batch")];
        let end = start.saturating_add(count).min(self.picks.len());
        let news = self.announced.max(start)..end.max(self.announced.max(start));
        self.announced = news.end;
        self.picks[news].iter().map(|pick| ItemOrdinal::new(pick.item.into())).collect()
    }
}
