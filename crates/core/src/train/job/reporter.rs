//! The job's side: what it reports to the manager of its dataset, and what it makes of the answers.
//!
//! A job draws batches, is given them, and computes; here all of that is gathered until the next report, and
//! the last answer is kept until the next. Should no answer come, the job goes on with what was open, and
//! tells all as soon as somebody answers: a lost manager costs hits, and nothing else.

use std::{collections::BTreeSet, time::Duration};

use super::{Answer, Directions, Open, Place, Report, courtesy::Courtesy, mode};
use crate::{
    ByteSize, ItemOrdinal, benefit::Mode, chunking::ChunkOrdinal, sampler::Sampler, units::ByteRate,
};

/// A job reports so often, unless it has something urgent to say,
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// and even then not more often than this.
const REPORT_PAUSE: Duration = Duration::from_millis(5);
/// Reports take at most one part in so many of the job's time: large pieces take long to look through.
const REPORT_SHARE: u32 = 20;
/// Those that others wait for may take more.
const REPORT_SHARE_URGENT: u32 = 4;
/// Times of mini-batches that are kept for one report.
const TIMES_MAX: usize = 1 << 10;

/// How a job takes part in the rotation of its dataset.
#[derive(Debug)]
pub struct Membership {
    life: u64,
    gpus: u32,
    epoch_batches: u64,
    epoch: u64,
    /// Bytes and items of each piece.
    pieces: Vec<(ByteSize, u64)>,
    /// What was said to be unread of each, in items.
    told: Vec<u64>,
    tells_all: bool,
    released: BTreeSet<u32>,
    filled: BTreeSet<u32>,
    times: Vec<(Mode, Duration, Duration)>,
    pace: Pace,
    courtesy: Courtesy,
    open: Open,
    loading: Vec<u32>,
    places: Vec<Place>,
    forced: u32,
    reported_at: Option<Duration>,
    /// How long the last report took.
    report_took: Duration,
    /// When it was over, and how long reports take of late.
    last_report: (Duration, Duration),
}

/// How fast a job draws, or would if nothing held it up.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    busy: Duration,
}

impl Membership {
    /// A job in one of its lives, a random number; `pieces` are the bytes and items of each piece.
    pub fn new(life: u64, gpus: u32, epoch_batches: u64, pieces: Vec<(ByteSize, u64)>) -> Self {
        let places = vec![Place::None; pieces.len()];
        Self {
            life,
            gpus,
            epoch_batches,
            epoch: 0,
            told: vec![u64::MAX; pieces.len()],
            pieces,
            tells_all: true,
            released: BTreeSet::new(),
            filled: BTreeSet::new(),
            times: Vec::new(),
            pace: Pace::default(),
            courtesy: Courtesy::default(),
            open: Open::default(),
            loading: Vec::new(),
            places,
            forced: 0,
            reported_at: None,
            report_took: Duration::ZERO,
            last_report: (Duration::ZERO, Duration::ZERO),
        }
    }

    /// The job begins an epoch.
    pub fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.tells_all = true;
        self.released.clear();
        // However long the last report took: without an answer the epoch would be drawn without directions.
        self.reported_at = None;
    }

    /// Whether it is time for a report.
    pub fn is_due(&self, now: Duration, sampler: &Sampler) -> bool {
        self.may_report(now, self.is_urgent(sampler))
    }

    fn may_report(&self, now: Duration, is_urgent: bool) -> bool {
        let (pause, share) = if is_urgent {
            (REPORT_PAUSE, REPORT_SHARE_URGENT)
        } else {
            (REPORT_EVERY, REPORT_SHARE)
        };
        let Some(last) = self.reported_at else { return true };
        let (over, took) = self.last_report;
        now >= last.saturating_add(pause) && now >= over.saturating_add(took.saturating_mul(share))
    }

    /// Whether others wait for what there is to say, or this job does for an answer: without it the last of
    /// a chunk would be noticed late, and the next one, however soon it is there, read through meanwhile.
    pub fn is_urgent(&self, sampler: &Sampler) -> bool {
        self.tells_all
            || !self.released.is_empty()
            || self.has_drawn_the_last(sampler)
            || self.is_short(sampler)
    }

    /// Whether there is a rotating piece of which nothing is unread any more, and nobody was told.
    fn has_drawn_the_last(&self, sampler: &Sampler) -> bool {
        let told = |piece: ChunkOrdinal| self.told.get(piece.0 as usize).copied().unwrap_or(0);
        self.open.rotating().any(|piece| told(piece) > 0 && sampler.unread(piece) == 0)
    }

    /// Whether the next batch would have to be completed by what is not open, though pieces rotate: it is
    /// better drawn when it is needed than ahead, for another piece may be open by then. As long as nobody answers,
    /// none will.
    pub fn is_short(&self, sampler: &Sampler) -> bool {
        if self.tells_all || self.open.rotating().next().is_none() {
            return false;
        }
        let left: u64 = self.open.rotating().map(|piece| sampler.unread(piece)).sum();
        left < sampler.plan().batch.into() && self.has_unread_outside(sampler)
    }

    /// Whether the next batch is better drawn later, though the job may have to wait for it: others are behind,
    /// and the next piece is open when they have come along. Asked before a batch is drawn; whoever has nothing
    /// else to do until then waits, reports, and says so ([`Self::waited`]).
    pub fn holds_back(&self, sampler: &Sampler) -> bool {
        self.courtesy.is_enough() && self.is_short(sampler)
    }

    /// The job has waited for others for so long.
    pub fn waited(&mut self, took: Duration, sampler: &Sampler) {
        let in_vain = self.is_short(sampler);
        self.courtesy.waited(took, in_vain);
    }

    fn has_unread_outside(&self, sampler: &Sampler) -> bool {
        let outside = (0..).zip(&self.places).filter(|(_, place)| **place == Place::None);
        outside.map(|(piece, _)| ChunkOrdinal(piece)).any(|piece| sampler.unread(piece) > 0)
    }

    /// What to report now. It counts as said: whoever is not answered says so.
    pub fn report(
        &mut self,
        now: Duration,
        sampler: &Sampler,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> Report {
        self.reported_at = Some(now);
        let is_all = std::mem::take(&mut self.tells_all);
        if is_all {
            self.filled.clear();
        }
        let mut unread = Vec::new();
        for (piece, told) in (0..).zip(&mut self.told) {
            let left = sampler.unread(ChunkOrdinal(piece));
            let (bytes, items) = self.pieces[piece as usize];
            let is_news = if is_all { left != items } else { left != *told };
            *told = left;
            if is_news {
                let left = u128::from(bytes.0) * u128::from(left) / u128::from(items.max(1));
                unread.push((piece, ByteSize(u64::try_from(left).unwrap_or(bytes.0))));
            }
        }
        let mut filled = Vec::new();
        for piece in &self.loading {
            let has_all = || sampler.has_all(ChunkOrdinal(*piece), &resident);
            if !self.filled.contains(piece) && has_all() {
                filled.push(*piece);
            }
        }
        self.filled.extend(&filled);
        Report {
            life: self.life,
            gpus: self.gpus,
            epoch_batches: self.epoch_batches,
            epoch: self.epoch,
            pace: self.pace.rate(),
            is_all,
            unread,
            released: std::mem::take(&mut self.released).into_iter().collect(),
            filled,
            batches: std::mem::take(&mut self.times),
        }
    }

    /// The manager's answer to the last report.
    pub fn answered(&mut self, answer: Answer) {
        let Answer::Draw { open, loading, forced } = answer else {
            self.tells_all = true;
            return;
        };
        // What comes anew has to be filled anew.
        self.filled.retain(|piece| loading.contains(piece));
        self.places.fill(Place::None);
        for (pieces, place) in [
            (open.held.clone(), Place::Held),
            (open.rotating().collect::<Vec<_>>(), Place::Rotating),
        ] {
            for piece in pieces {
                // What is no piece of the dataset is not believed.
                if let Some(slot) = self.places.get_mut(piece.0 as usize) {
                    *slot = place;
                }
            }
        }
        (self.open, self.loading) = (open, loading);
        self.forced = self.forced.saturating_add(forced);
    }

    /// Nobody answered the last report.
    pub fn unanswered(&mut self) {
        self.tells_all = true;
    }

    /// The last report took so long, with its answer. One that took long says nothing: something else may have
    /// kept the machine busy, and others wait for what this job has to say. Two in a row do.
    pub fn report_took(&mut self, now: Duration, took: Duration) {
        let lesser = took.min(std::mem::replace(&mut self.report_took, took));
        self.last_report = (now, lesser);
    }

    /// What to draw the next batch from.
    pub fn directions(&self, batch: u64, sampler: &Sampler) -> Directions {
        self.open.directions(batch, |piece| sampler.unread(piece))
    }

    /// Whether the next mini-batch is to miss, whatever is resident. Asked once for each.
    pub fn forces_miss(&mut self) -> bool {
        let is_forced = self.forced > 0;
        self.forced -= u32::from(is_forced);
        is_forced
    }

    /// Where a mini-batch comes from, given the pieces of its items: see [`mode`].
    pub fn mode(&self, pieces: impl IntoIterator<Item = u32>, all_resident: bool) -> Option<Mode> {
        let place = |piece: u32| self.places.get(piece as usize).copied().unwrap_or_default();
        mode(pieces.into_iter().map(place), all_resident)
    }

    /// Pieces that are on their way: what the job needs of these is fetched ahead.
    pub fn loading(&self) -> &[u32] {
        &self.loading
    }

    /// The job was given the last items of these pieces.
    pub fn released(&mut self, pieces: impl IntoIterator<Item = ChunkOrdinal>) {
        self.released.extend(pieces.into_iter().map(|piece| piece.0));
    }

    /// A mini-batch of so many bytes took so long, of which the job waited `stalled` for it.
    pub fn computed(&mut self, mode: Option<Mode>, bytes: u64, [took, stalled]: [Duration; 2]) {
        self.pace.add(bytes, took.saturating_sub(stalled));
        self.courtesy.held_up(stalled);
        if let Some(mode) = mode.filter(|_| self.times.len() < TIMES_MAX) {
            self.times.push((mode, took, stalled));
        }
    }
}

impl Pace {
    /// What was long ago counts less and less.
    const FADES_AFTER: Duration = Duration::from_secs(10);

    fn add(&mut self, bytes: u64, busy: Duration) {
        if self.busy > Self::FADES_AFTER {
            (self.bytes, self.busy) = (self.bytes / 2, self.busy / 2);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.busy = self.busy.saturating_add(busy);
    }

    fn rate(&self) -> ByteRate {
        let nanos = self.busy.as_nanos();
        let rate = (u128::from(self.bytes) * 1_000_000_000).checked_div(nanos).unwrap_or(0);
        ByteRate(ByteSize(u64::try_from(rate).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DatasetId,
        sampler::{Layout, Plan},
    };

    /// A chunk is not full before all who read it have said so: a job that was held up once must not keep the
    /// others waiting for long.
    #[test]
    fn one_slow_report_does_not_silence_a_job() {
        let at = Duration::from_millis;
        let mut member = Membership::new(1, 1, 10, Vec::new());
        member.reported_at = Some(at(100));
        member.report_took(at(300), at(200));
        assert!(member.may_report(at(300), false), "the first");
        member.report_took(at(400), at(1));
        assert!(!member.may_report(at(419), false) && member.may_report(at(420), false));
        assert!(!member.may_report(at(403), true) && member.may_report(at(404), true), "urgent");
        member.report_took(at(700), at(200));
        assert!(member.may_report(at(720), false), "one of many");
        member.report_took(at(1000), at(100));
        assert!(!member.may_report(at(2999), false) && member.may_report(at(3000), false), "slow");
        member.begin(2);
        assert!(member.may_report(at(1001), false), "an epoch begins with directions");
    }

    /// Others come along, or the next piece is opened, only if there is a node to say so.
    #[test]
    fn nobody_is_waited_for_without_a_node() {
        let halves = (0..100).map(|item| ChunkOrdinal(item / 50));
        let layout = Layout::new(DatasetId::from_bytes([1; 32]), 2, halves).unwrap();
        let sampler = Sampler::new(&layout, Plan::new(1, 0, 64)).unwrap();
        let second = Duration::from_secs(1);
        let mut member = Membership::new(1, 1, 2, vec![(ByteSize(500), 50); 2]);
        member.begin(0);
        member.computed(None, 640, [second, second]);
        let answer = || Answer::Draw {
            open: Open { first: vec![ChunkOrdinal(0)], ..Open::default() },
            loading: Vec::new(),
            forced: 0,
        };
        member.report(second, &sampler, |_| false);
        member.answered(answer());
        assert!(member.holds_back(&sampler), "what is open is less than a batch");
        member.report(second * 2, &sampler, |_| false);
        member.unanswered();
        assert!(!member.holds_back(&sampler) && !member.is_short(&sampler));
        member.report(second * 3, &sampler, |_| false);
        member.answered(answer());
        assert!(member.holds_back(&sampler), "it is back");
    }
}
