//! Next use: keep the segments with the earliest next read.
//!
//! Belady's rule needs the future, and jobs announce most of it. `estimate.rs` estimates when a
//! segment is read next, from specifications and from how jobs read. `rank_index.rs` keeps
//! residents in that order. A segment is admitted, before the origin is read, if its next use is
//! earlier than that of the segment it would replace. The segment with the latest next use is
//! evicted first.
//!
//! - A segment that every announced reader has read is **spent**. It is evicted first. It is
//!   admitted only into free space, and only if several jobs have read its bucket lately or a trial
//!   has paid off (`unannounced.rs`).
//! - A segment that no job has announced is **unknown**. Unknown segments share the space that
//!   segments with a next use leave, by LRU. If the history has seen repeated reads of the bucket,
//!   these give a next use. Of jobs whose segments were evicted unread, only a few segments are
//!   tried (`unannounced.rs`).
//! - Under a write limit, only segments with enough expected reads are written. Of those at the
//!   threshold a part is written, always the same part.
//! - `lru_shadow.rs` lets LRU decide while LRU hits more often.

mod estimate;
mod lru_shadow;
mod rank_index;
mod residents;
mod unannounced;

use std::time::Duration;

use self::{
    estimate::{NextUseEstimate, Target},
    lru_shadow::LruShadow,
    rank_index::{CellKey, Rank},
    residents::{Entry, Residents},
    unannounced::{Expectation, SpentTrials},
};
use super::{
    Clock, Counters, Policy,
    admission_threshold::{AdmissionThreshold, WriteSettings},
    history::History,
    invalid_event::InvalidEvent,
    jobs::Jobs,
    kind::Settings,
    two_tier_lru::Tier,
    types::{Answer, Bucket, Changes, Job, JobEvent, Request, Segment},
};
use crate::util::stable_hash::StableMap;

/// Ranks of segments without a next use lie beyond all times: a hundred years, in seconds.
const FAR: f64 = 3.2e9;
/// Rank of a segment that is spent on arrival, beyond all others.
const SPENT: f64 = 3.0 * FAR;
/// Factor by which a newcomer's next use must be sooner than the victim's. Without it, segments of
/// nearly equal rank would keep replacing each other.
const SOONER: f64 = 0.98;
/// Mean reads per segment above which a bucket is expected to be read again (the paper's minimum).
const POPULAR: f64 = 1.1;
/// Most segments per cell: a region of 64 MiB.
const BLOCK_MAX: u64 = 256;
/// Cells aimed at when the tier is full.
const CELLS: u64 = 512;

/// Evaluation of a segment that may be kept.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    rank: Rank,
    /// Expected reads.
    expected: f64,
    /// Mean recent reads per segment of its bucket.
    reads: f64,
    /// Whether a reader is expected.
    expectation: Expectation,
}

/// The policy.
#[derive(Debug)]
pub(super) struct NextUse {
    clock: Clock,
    history: History,
    threshold: AdmissionThreshold,
    residents: Residents,
    model: ReadModel,
    lru_shadow: LruShadow,
    trials: SpentTrials,
}

/// Everything that ranks are computed from.
#[derive(Debug)]
struct ReadModel {
    jobs: Jobs,
    /// Trail length and mean reads per segment of each bucket, as of the last refresh.
    buckets: StableMap<Bucket, (u32, f64)>,
    /// Trail positions per cell.
    block: u32,
    unknown_start: Duration,
    window: Duration,
    /// Whether LRU decides.
    is_lru: bool,
}

impl ReadModel {
    /// Estimate for a trail position, and the mean reads per segment of its bucket.
    fn estimate(
        &self,
        now: Duration,
        bucket: Bucket,
        position: f64,
        read_by: u64,
    ) -> (NextUseEstimate, f64) {
        let (trail_len, reads) = self.buckets.get(&bucket).copied().unwrap_or((1, 1.0));
        let target = Target { bucket, position, trail_len, read_by };
        (estimate::estimate(&self.jobs, now, target, self.unknown_start), reads)
    }

    /// Evaluates a block of a trail that the readers `read_by` have read, last at `touched`.
    fn candidate(
        &self,
        now: Duration,
        (bucket, block): (Bucket, u32),
        read_by: u64,
        touched: Duration,
    ) -> Candidate {
        // LRU order: the older, the later the rank.
        let by_age = Rank::at(FAR + (FAR - touched.as_secs_f64()).max(0.0));
        let unknown = Candidate {
            rank: by_age,
            expected: 0.0,
            reads: 1.0,
            expectation: Expectation::Unknown,
        };
        if self.is_lru {
            return Candidate { expected: 1.0, expectation: Expectation::Read, ..unknown };
        }
        let middle = (f64::from(block) + 0.5) * f64::from(self.block);
        let (estimate, reads) = self.estimate(now, bucket, middle, read_by);
        let unknown = Candidate { reads, ..unknown };
        if estimate.readers > 0 {
            let at = now.as_secs_f64() + estimate.seconds.min(FAR / 2.0);
            let (rank, expected) = (Rank::at(at), f64::from(estimate.readers));
            return Candidate { rank, expected, expectation: Expectation::Read, ..unknown };
        }
        if estimate.is_announced {
            return unknown;
        }
        // Followers are expected with the lag seen so far.
        if let Some(follower) = estimate.follower {
            let at = touched.as_secs_f64() + follower.lag;
            if at >= now.as_secs_f64() {
                return Candidate { rank: Rank::at(at), expected: follower.share, ..unknown };
            }
        }
        if reads > POPULAR {
            let window = self.window.min(now).as_secs_f64().max(1.0);
            let at = (touched.as_secs_f64() + window / (reads - 1.0)).max(now.as_secs_f64());
            let (rank, expected) = (Rank::at(at), reads - 1.0);
            return Candidate { rank, expected, expectation: Expectation::Read, ..unknown };
        }
        unknown
    }
}

impl NextUse {
    pub fn new(settings: &Settings) -> Self {
        let history = History::new(&settings.history);
        // Without a write limit, one expected reader is enough.
        let writes = WriteSettings { threshold_min: 0.0, ..settings.writes };
        let block = (settings.segments() / CELLS).clamp(1, BLOCK_MAX);
        let capacity = settings.dram.0.saturating_add(settings.flash.0);
        let limited = settings.writes.limit.is_some();
        Self {
            clock: Clock::default(),
            threshold: AdmissionThreshold::new(writes, settings.segment),
            residents: Residents::new(settings.dram.0, settings.flash.0),
            model: ReadModel {
                jobs: Jobs::new(settings.lease, settings.segment),
                buckets: StableMap::default(),
                block: u32::try_from(block).expect("at most 256"),
                unknown_start: settings.unknown_start,
                window: history.window(),
                is_lru: false,
            },
            // No shadow under a write limit, which a plain LRU would exceed.
            lru_shadow: LruShadow::new(if limited { 0 } else { capacity }, settings.segments()),
            history,
            trials: SpentTrials::default(),
        }
    }

    /// Recomputes all ranks, after rates or jobs have changed.
    fn rank_all(&mut self, now: Duration) {
        let Self { model, residents, .. } = self;
        let Residents { entries, dram, flash, .. } = residents;
        for index in [dram, flash] {
            index.rank_all(|key, oldest| {
                let touched = entries[oldest.0 as usize].touched;
                model.candidate(now, (key.bucket, key.block), key.read_by, touched).rank
            });
        }
    }

    fn refresh(&mut self, now: Duration) {
        if !self.threshold.tick(now) {
            return;
        }
        let (history, ReadModel { jobs, buckets, .. }) = (&mut self.history, &mut self.model);
        jobs.tick(now);
        buckets.retain(|bucket, (_, reads)| {
            *reads = history.reads_per_segment(now, *bucket);
            history.trail_len(*bucket) > 0 || jobs.retain_readers(*bucket)
        });
        jobs.drop_unread_buckets(|bucket| buckets.contains_key(&bucket));
        self.clear_recycled_bits(now);
        self.rank_all(now);
    }

    /// Clears reader bits of residents that have a new owner.
    fn clear_recycled_bits(&mut self, now: Duration) {
        while let Some((bucket, bit)) = self.model.jobs.recycled_bits.pop() {
            for tier in [Tier::Dram, Tier::Flash] {
                let Residents { links, dram, flash, .. } = &self.residents;
                let index = if tier == Tier::Dram { dram } else { flash };
                let slots = index.read_by(links, bucket, bit);
                for slot in slots {
                    let read_by = self.residents.entries[slot.0 as usize].read_by & !(1 << bit);
                    self.residents.set_read_by(slot, read_by, |entry| {
                        let at = (entry.bucket, entry.position / self.model.block);
                        self.model.candidate(now, at, read_by, entry.touched).rank
                    });
                }
            }
        }
    }

    /// Decides whether a segment is written to flash. If so, makes room and records the write.
    fn admit_to_flash(
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
            let (last, _) = flash.last().expect("a full tier has a last segment");
            if !is_sooner(now, candidate.rank, last) {
                return false;
            }
        }
        // Limited writes are for segments with expected reads.
        let limited = self.threshold.limit().is_some();
        if limited && !self.threshold.admits(candidate.expected, segment, bytes) {
            return false;
        }
        let popular = candidate.reads > POPULAR;
        let follower_lag = brought_by.and_then(|job| self.model.jobs.follower_lag(job)).copied();
        if !popular && !self.trials.allows(candidate.expectation, follower_lag.as_ref(), segment) {
            return false;
        }
        if !self.threshold.try_write(now, bytes) {
            return false;
        }
        if candidate.expectation == Expectation::Spent {
            self.trials.on_tried();
        }
        while !self.residents.flash.has_room(bytes) {
            let (_, slot) = self.residents.flash.last().expect("a full tier has a last segment");
            let evicted = self.residents.remove(slot);
            if evicted.expectation == Expectation::Unknown
                && let Some(job) = evicted.brought_by
                && let Some(follower_lag) = self.model.jobs.follower_lag(job)
            {
                follower_lag.on_evicted_unread();
            }
            changes.dropped.push(evicted.segment);
        }
        changes.written.push((segment, bytes));
        true
    }

    /// Brings memory back under its limit: the last segments move to flash or out of the tier.
    fn shrink_dram(&mut self, now: Duration, changes: &mut Changes) {
        while !self.residents.dram.has_room(0) {
            let (_, slot) = self.residents.dram.last().expect("a full tier has a last segment");
            let entry = self.residents.entries[slot.0 as usize];
            let bytes = self.residents.bytes(slot);
            let at = (entry.bucket, entry.position / self.model.block);
            let mut candidate = self.model.candidate(now, at, entry.read_by, entry.touched);
            if candidate.expected <= 0.0 && self.model.is_spent(now, &entry) {
                (candidate.rank, candidate.expectation) = (Rank::at(SPENT), Expectation::Spent);
            }
            let segment = (entry.segment, bytes);
            if self.admit_to_flash(now, candidate, segment, entry.brought_by, changes) {
                self.residents.entries[slot.0 as usize].expectation = candidate.expectation;
                self.residents.move_to_flash(slot, |_| candidate.rank);
            } else {
                changes.dropped.push(self.residents.remove(slot).segment);
            }
        }
    }
}

impl ReadModel {
    /// Whether a segment without expected readers was announced, so that all its readers have read
    /// it.
    fn is_spent(&self, now: Duration, entry: &Entry) -> bool {
        let position = f64::from(entry.position);
        !self.is_lru && self.estimate(now, entry.bucket, position, entry.read_by).0.is_announced
    }
}

/// Whether a rank is sooner than the last one by the factor [`SOONER`].
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
        let now = self.clock.advance(now);
        self.refresh(now);
        let Request { segment, bucket, bytes, .. } = *request;
        let observed = self.history.record(now, bucket, segment);
        self.model.buckets.entry(bucket).or_insert((1, 1.0)).0 = observed.trail_len;
        let reading = self.model.jobs.on_read(now, request, observed);
        if !self.model.jobs.recycled_bits.is_empty() {
            self.clear_recycled_bits(now);
        }
        let reading = reading.map(|index| self.model.jobs.reading(index));
        let bit = reading.map_or(0, |reading| 1_u64 << reading.bit);
        let reader = request.job.filter(|_| reading.is_some());
        let is_announced = reading.is_some_and(|reading| reading.stage.is_some());
        // A segment outside the history's sample is assumed to be at the reader's position.
        let head = reading.map(|reading| truncated(reading.head));
        let position = observed.position.or(head).unwrap_or(0);

        let slot = self.residents.slots.get(&segment.0).copied();
        if self.lru_shadow.on_request(segment, bytes, slot.is_some()) {
            self.model.is_lru = self.lru_shadow.is_active();
            self.rank_all(now);
        }
        if let Some(slot) = slot {
            let entry = &mut self.residents.entries[slot.0 as usize];
            let expectation = std::mem::replace(&mut entry.expectation, Expectation::Read);
            if expectation == Expectation::Spent {
                self.trials.on_read();
            }
            if entry.brought_by != reader
                && let Some(job) = entry.brought_by.take()
                && let Some(follower_lag) = self.model.jobs.follower_lag(job)
            {
                follower_lag.on_read(now.saturating_sub(entry.touched));
            }
            entry.touched = now;
            let (tier, read_by) = (entry.tier, entry.read_by | bit);
            if read_by != entry.read_by || self.model.is_lru {
                let Self { residents, model, .. } = self;
                residents.set_read_by(slot, read_by, |entry| {
                    let at = (entry.bucket, entry.position / model.block);
                    model.candidate(now, at, read_by, now).rank
                });
            }
            return if tier == Tier::Dram { Answer::HitDram } else { Answer::HitFlash };
        }

        let read_by = bit | self.model.jobs.readers_of(bucket, position);
        let block = position / self.model.block;
        let mut candidate = self.model.candidate(now, (bucket, block), read_by, now);
        if candidate.expected <= 0.0 && is_announced {
            (candidate.rank, candidate.expectation) = (Rank::at(SPENT), Expectation::Spent);
        }
        let key = CellKey { bucket, block, read_by };
        let entry = |tier, cell, expectation| Entry {
            segment,
            bucket,
            position,
            read_by,
            tier,
            cell,
            touched: now,
            brought_by: reader,
            expectation,
        };
        let dram = &mut self.residents.dram;
        let in_dram = dram.can_hold(bytes)
            && (dram.has_room(bytes)
                || dram.last().is_some_and(|(last, _)| is_sooner(now, candidate.rank, last)));
        if in_dram {
            let cell = dram.cell(key, || candidate.rank);
            self.residents.insert(entry(Tier::Dram, cell, Expectation::Read), bytes);
            self.shrink_dram(now, changes);
            return Answer::Kept;
        }
        if self.admit_to_flash(now, candidate, (segment, bytes), reader, changes) {
            let cell = self.residents.flash.cell(key, || candidate.rank);
            self.residents.insert(entry(Tier::Flash, cell, candidate.expectation), bytes);
            return Answer::Kept;
        }
        Answer::Passed
    }

    fn on_event(&mut self, now: Duration, event: JobEvent<'_>) -> Result<(), InvalidEvent> {
        let now = self.clock.advance(now);
        match event {
            JobEvent::Announced { job, spec } => self.model.jobs.on_announced(now, job, spec)?,
            JobEvent::Ended { job } => self.model.jobs.on_ended(job)?,
        }
        self.clear_recycled_bits(now);
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
            jobs: self.model.jobs.counters,
            time_went_back: self.clock.went_back,
            history_one_in: self.history.one_in(),
            lru_takeovers: self.lru_shadow.takeovers,
        }
    }
}

/// Whole trail position.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions are positive; the cast saturates"
)]
fn truncated(position: f64) -> u32 {
    position as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteSize;
    use crate::tier::jobs::tests::buckets_after_reannouncements;

    #[test]
    fn buckets_that_were_announced_and_never_read_are_dropped() {
        let policy = NextUse::new(&Settings::new(ByteSize(0), ByteSize(100)));
        assert!(buckets_after_reannouncements(policy, |policy| &policy.model.jobs) <= 2);
    }
}
