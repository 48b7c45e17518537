//! Ours: keep what is read soonest.
//!
//! Belady's rule needs the future; jobs tell most of it. `outlook.rs` says when a segment is due, from what
//! jobs have announced and from how they read; `cells.rs` keeps residents in that order. A segment is admitted, before
//! the origin is read, if it is due before whatever would have to go; the latest goes first.
//!
//! - What every announced reader has read is **spent**: it goes first, and comes in only where there is room, and only
//!   if several have read its bucket lately, or as far as that has paid (`speculation.rs`).
//! - What no job has announced is **unknown**: it shares the room that nothing due takes, by LRU; where the
//!   history has seen its bucket read again and again, that says when it is due. Of jobs whose segments were
//!   not read again while they stayed, a few are tried (`speculation.rs`).
//! - Under a write limit only segments with enough readers to come are written; of those at the threshold
//!   a part, always the same.
//! - `guard.rs` lets LRU decide while LRU does better.

mod cells;
mod guard;
mod outlook;
mod residents;
mod speculation;

use std::time::Duration;

use self::{
    cells::{CellKey, Rank},
    guard::Guard,
    outlook::Outlook,
    residents::{Entry, Residents},
    speculation::{Chance, Speculation},
};
use super::{
    Clock, Counters, Policy,
    contradiction::Contradiction,
    history::History,
    jobs::Jobs,
    kind::Settings,
    shelves::Tier,
    threshold::{Threshold, WriteSettings},
    words::{Answer, Bucket, Changes, Fact, Job, Request, Segment},
};
use crate::stable::StableMap;

/// Ranks of what is not due lie beyond all moments: a hundred years.
const FAR: f64 = 3.2e9;
/// Ranks of what is spent when it arrives lie beyond all others.
const SPENT: f64 = 3.0 * FAR;
/// A newcomer must be due so much sooner than who would have to go, or they would go on taking turns.
const SOONER: f64 = 0.98;
/// A bucket whose segments were read more often than this lately will be read again (the paper's minimum).
const POPULAR: f64 = 1.1;
/// Cells are at most so many segments long: a region of 64 MiB.
const BLOCK_MAX: u64 = 256;
/// There should be so many cells when all room is taken.
const CELLS: u64 = 512;

/// What is known about a segment that is about to be placed.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    rank: Rank,
    /// How many reads are expected of it.
    expected: f64,
    /// How often the segments of its bucket were read lately.
    reads: f64,
    /// Why it would be kept although nobody is known to read it.
    chance: Chance,
}

/// The policy.
#[derive(Debug)]
pub(super) struct NextUse {
    clock: Clock,
    history: History,
    threshold: Threshold,
    residents: Residents,
    known: Known,
    guard: Guard,
    speculation: Speculation,
}

/// What ranks are made of.
#[derive(Debug)]
struct Known {
    jobs: Jobs,
    /// How long buckets' trails are, and how often the history saw their segments read, as of the last look.
    buckets: StableMap<Bucket, (u32, f64)>,
    block: u32,
    unknown_start: Duration,
    window: Duration,
    lru: bool,
}

impl Known {
    fn look(&self, now: Duration, bucket: Bucket, place: f64, read_by: u64) -> (Outlook, f64) {
        let (trail, reads) = self.buckets.get(&bucket).copied().unwrap_or((1, 1.0));
        let at = (bucket, place, trail);
        (outlook::look(&self.jobs, now, at, read_by, self.unknown_start), reads)
    }

    /// What to think of a place that these have read, last at `touched`.
    fn candidate(
        &self,
        now: Duration,
        (bucket, block): (Bucket, u32),
        read_by: u64,
        touched: Duration,
    ) -> Candidate {
        // The older, the later.
        let by_age = Rank::at(FAR + (FAR - touched.as_secs_f64()).max(0.0));
        let unknown =
            Candidate { rank: by_age, expected: 0.0, reads: 1.0, chance: Chance::Unknown };
        if self.lru {
            return Candidate { expected: 1.0, chance: Chance::None, ..unknown };
        }
        let middle = (f64::from(block) + 0.5) * f64::from(self.block);
        let (outlook, reads) = self.look(now, bucket, middle, read_by);
        let unknown = Candidate { reads, ..unknown };
        if outlook.readers > 0 {
            let at = now.as_secs_f64() + outlook.seconds.min(FAR / 2.0);
            let (rank, expected) = (Rank::at(at), f64::from(outlook.readers));
            return Candidate { rank, expected, chance: Chance::None, ..unknown };
        }
        if outlook.named {
            return unknown;
        }
        // Whoever follows a job comes as long after it as before.
        if let Some((lag, share)) = outlook.followed {
            let at = touched.as_secs_f64() + lag;
            if at >= now.as_secs_f64() {
                return Candidate { rank: Rank::at(at), expected: share, ..unknown };
            }
        }
        if reads > POPULAR {
            let window = self.window.min(now).as_secs_f64().max(1.0);
            let at = (touched.as_secs_f64() + window / (reads - 1.0)).max(now.as_secs_f64());
            let (rank, expected) = (Rank::at(at), reads - 1.0);
            return Candidate { rank, expected, chance: Chance::None, ..unknown };
        }
        unknown
    }
}

impl NextUse {
    pub fn new(settings: &Settings) -> Self {
        let history = History::new(&settings.history);
        // One reader to come is enough, unless writes are scarce.
        let writes = WriteSettings { threshold_min: 0.0, ..settings.writes };
        let block = (settings.segments() / CELLS).clamp(1, BLOCK_MAX);
        let capacity = settings.dram.0.saturating_add(settings.flash.0);
        let limited = settings.writes.limit.is_some();
        Self {
            clock: Clock::default(),
            threshold: Threshold::new(writes, settings.segment),
            residents: Residents::new(settings.dram.0, settings.flash.0),
            known: Known {
                jobs: Jobs::new(settings.lease, settings.segment),
                buckets: StableMap::default(),
                block: u32::try_from(block).expect("at most 256"),
                unknown_start: settings.unknown_start,
                window: history.window(),
                lru: false,
            },
            // A plain LRU would not keep to a write limit either.
            guard: Guard::new(if limited { 0 } else { capacity }, settings.segments()),
            history,
            speculation: Speculation::default(),
        }
    }

    /// Everything is looked at anew: rates have changed, jobs have come or gone.
    fn rank_all(&mut self, now: Duration) {
        let Self { known, residents, .. } = self;
        let Residents { entries, dram, flash, .. } = residents;
        for cells in [dram, flash] {
            cells.rank_all(|key, oldest| {
                let touched = entries[oldest.0 as usize].touched;
                known.candidate(now, (key.bucket, key.block), key.read_by, touched).rank
            });
        }
    }

    fn refresh(&mut self, now: Duration) {
        if !self.threshold.tick(now) {
            return;
        }
        let (history, Known { jobs, buckets, .. }) = (&mut self.history, &mut self.known);
        jobs.tick(now);
        buckets.retain(|bucket, (_, reads)| {
            *reads = history.reads_per_segment(now, *bucket);
            history.trail(*bucket) > 0 || jobs.is_read(*bucket)
        });
        jobs.forget_unread(|bucket| buckets.contains_key(&bucket));
        self.clear_reused(now);
        self.rank_all(now);
    }

    /// Clears bits that belong to another reader from now on.
    fn clear_reused(&mut self, now: Duration) {
        while let Some((bucket, bit)) = self.known.jobs.reused.pop() {
            for tier in [Tier::Dram, Tier::Flash] {
                let Residents { links, dram, flash, .. } = &self.residents;
                let cells = if tier == Tier::Dram { dram } else { flash };
                let slots = cells.read_by(links, bucket, bit);
                for slot in slots {
                    let read_by = self.residents.entries[slot.0 as usize].read_by & !(1 << bit);
                    self.residents.rehome(slot, read_by, |entry| {
                        let at = (entry.bucket, entry.place / self.known.block);
                        self.known.candidate(now, at, read_by, entry.touched).rank
                    });
                }
            }
        }
    }

    /// Is this worth a place on flash? If so it is written, and there is room for it.
    fn make_room(
        &mut self,
        now: Duration,
        candidate: Candidate,
        (segment, bytes): (Segment, u32),
        brought_by: Option<Job>,
        changes: &mut Changes,
    ) -> bool {
        let flash = &mut self.residents.flash;
        if !flash.can_hold(bytes) {
            return false;
        }
        if !flash.has_room(bytes) {
            let (last, _) = flash.last().expect("what is full has a last");
            if !is_sooner(now, candidate.rank, last) {
                return false;
            }
        }
        // Where writes are scarce, they are for what is known to be read again.
        let limited = self.threshold.limit().is_some();
        if limited && !self.threshold.admits(candidate.expected, segment, bytes) {
            return false;
        }
        let popular = candidate.reads > POPULAR;
        let judged = brought_by.and_then(|job| self.known.jobs.followed(job)).copied();
        if !popular && !self.speculation.allows(candidate.chance, judged.as_ref(), segment) {
            return false;
        }
        if !self.threshold.try_write(now, bytes) {
            return false;
        }
        if candidate.chance == Chance::Spent {
            self.speculation.tried();
        }
        while !self.residents.flash.has_room(bytes) {
            let (_, slot) = self.residents.flash.last().expect("what is full has a last");
            let gone = self.residents.drop(slot);
            if gone.chance == Chance::Unknown
                && let Some(job) = gone.brought_by
                && let Some(followed) = self.known.jobs.followed(job)
            {
                followed.lost();
            }
            changes.dropped.push(gone.segment);
        }
        changes.written.push((segment, bytes));
        true
    }

    /// Makes memory small enough: the latest goes on to flash, or away.
    fn relieve_dram(&mut self, now: Duration, changes: &mut Changes) {
        while !self.residents.dram.has_room(0) {
            let (_, slot) = self.residents.dram.last().expect("what is full has a last");
            let entry = self.residents.entries[slot.0 as usize];
            let bytes = self.residents.bytes(slot);
            let at = (entry.bucket, entry.place / self.known.block);
            let mut candidate = self.known.candidate(now, at, entry.read_by, entry.touched);
            if candidate.expected <= 0.0 && self.known.is_spent(now, &entry) {
                (candidate.rank, candidate.chance) = (Rank::at(SPENT), Chance::Spent);
            }
            let it = (entry.segment, bytes);
            if self.make_room(now, candidate, it, entry.brought_by, changes) {
                self.residents.entries[slot.0 as usize].chance = candidate.chance;
                self.residents.move_to_flash(slot, |_| candidate.rank);
            } else {
                changes.dropped.push(self.residents.drop(slot).segment);
            }
        }
    }
}

impl Known {
    /// Named by jobs all of which have read it.
    fn is_spent(&self, now: Duration, entry: &Entry) -> bool {
        !self.lru && self.look(now, entry.bucket, f64::from(entry.place), entry.read_by).0.named
    }
}

/// Is this due before that, and not only just?
fn is_sooner(now: Duration, rank: Rank, last: Rank) -> bool {
    if last.seconds() >= FAR {
        return rank < last;
    }
    let now = now.as_secs_f64();
    rank.seconds() - now < SOONER * (last.seconds() - now)
}

impl Policy for NextUse {
    fn request(&mut self, now: Duration, request: &Request, changes: &mut Changes) -> Answer {
        changes.clear();
        let now = self.clock.at(now);
        self.refresh(now);
        let Request { segment, bucket, bytes, .. } = *request;
        let sight = self.history.note(now, bucket, segment);
        self.known.buckets.entry(bucket).or_insert((1, 1.0)).0 = sight.trail;
        let reading = self.known.jobs.note(now, request, sight);
        if !self.known.jobs.reused.is_empty() {
            self.clear_reused(now);
        }
        let reading = reading.map(|index| self.known.jobs.reading(index));
        let bit = reading.map_or(0, |reading| 1_u64 << reading.bit);
        let reader = request.job.filter(|_| reading.is_some());
        let planned = reading.is_some_and(|reading| reading.stage.is_some());
        // What is not in the history's sample is where whoever reads it is.
        let place = sight.place.or(reading.map(|reading| rounded(reading.head))).unwrap_or(0);

        let slot = self.residents.slots.get(&segment.0).copied();
        if self.guard.note(segment, bytes, slot.is_some()) {
            self.known.lru = self.guard.overrules();
            self.rank_all(now);
        }
        if let Some(slot) = slot {
            let entry = &mut self.residents.entries[slot.0 as usize];
            if std::mem::replace(&mut entry.chance, Chance::None) == Chance::Spent {
                self.speculation.paid();
            }
            if entry.brought_by != reader
                && let Some(job) = entry.brought_by.take()
                && let Some(followed) = self.known.jobs.followed(job)
            {
                followed.read(now.saturating_sub(entry.touched));
            }
            entry.touched = now;
            let (tier, read_by) = (entry.tier, entry.read_by | bit);
            if read_by != entry.read_by || self.known.lru {
                let Self { residents, known, .. } = self;
                residents.rehome(slot, read_by, |entry| {
                    let at = (entry.bucket, entry.place / known.block);
                    known.candidate(now, at, read_by, now).rank
                });
            }
            return if tier == Tier::Dram { Answer::HitDram } else { Answer::HitFlash };
        }

        let read_by = bit | self.known.jobs.readers_of(bucket, place);
        let block = place / self.known.block;
        let mut candidate = self.known.candidate(now, (bucket, block), read_by, now);
        if candidate.expected <= 0.0 && planned {
            (candidate.rank, candidate.chance) = (Rank::at(SPENT), Chance::Spent);
        }
        let key = CellKey { bucket, block, read_by };
        let entry = |tier, cell, chance| Entry {
            segment,
            bucket,
            place,
            read_by,
            tier,
            cell,
            touched: now,
            brought_by: reader,
            chance,
        };
        let dram = &mut self.residents.dram;
        let in_dram = dram.can_hold(bytes)
            && (dram.has_room(bytes)
                || dram.last().is_some_and(|(last, _)| is_sooner(now, candidate.rank, last)));
        if in_dram {
            let cell = dram.cell(key, || candidate.rank);
            self.residents.insert(entry(Tier::Dram, cell, Chance::None), bytes);
            self.relieve_dram(now, changes);
            return Answer::Kept;
        }
        if self.make_room(now, candidate, (segment, bytes), reader, changes) {
            let cell = self.residents.flash.cell(key, || candidate.rank);
            self.residents.insert(entry(Tier::Flash, cell, candidate.chance), bytes);
            return Answer::Kept;
        }
        Answer::Passed
    }

    fn tell(&mut self, now: Duration, fact: Fact<'_>) -> Result<(), Contradiction> {
        let now = self.clock.at(now);
        match fact {
            Fact::Announced { job, spec } => self.known.jobs.announce(now, job, spec)?,
            Fact::Ended { job } => self.known.jobs.end(job)?,
        }
        self.clear_reused(now);
        self.rank_all(now);
        Ok(())
    }

    fn contains(&self, segment: Segment) -> bool {
        self.residents.slots.contains_key(&segment.0)
    }

    fn used(&self) -> (u64, u64) {
        (self.residents.dram.used(), self.residents.flash.used())
    }

    fn counters(&self) -> Counters {
        Counters {
            jobs: self.known.jobs.counters,
            time_went_back: self.clock.went_back,
            history_one_in: self.history.one_in(),
            overruled: self.guard.overruled,
        }
    }
}

/// A place on the trail.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "places are positive and few; the cast saturates"
)]
fn rounded(place: f64) -> u32 {
    place as u32
}

#[cfg(test)]
mod tests {
    use super::{super::jobs::tests::announced_anew, *};
    use crate::ByteSize;

    #[test]
    fn buckets_that_were_announced_and_never_read_are_forgotten() {
        let policy = NextUse::new(&Settings::new(ByteSize(0), ByteSize(100)));
        assert!(announced_anew(policy, |policy| &policy.known.jobs) <= 2);
    }
}
