//! Next use: keep what is read next.
//!
//! Belady's rule needs the future, and jobs announce most of it. `estimate.rs` estimates when a
//! segment is read next, from specifications and from how jobs read. A segment is admitted, before
//! the origin is read, if its next use is earlier than that of the region that would be evicted:
//! the one with the latest rank (`rank.rs`, `region.rs`). `streams.rs` puts segments into the same
//! region that are read at about the same time.
//!
//! - A segment that every announced reader has read is **spent**. It is admitted only into free
//!   regions, and only if several jobs have read its bucket lately or a trial has paid off
//!   (`unannounced.rs`).
//! - A segment that no job has announced is **unknown**. Unknown segments share the space that
//!   segments with a next use leave, by LRU. If the history has seen repeated reads of the bucket,
//!   these give a next use. Of jobs whose segments were evicted unread, only a few segments are
//!   tried (`unannounced.rs`).
//! - Under a write limit, only segments with enough expected reads are written. Of those at the
//!   threshold a part is written, always the same part.
//! - `lru_shadow.rs` lets LRU decide while LRU hits more often.
//!
//! Ranks are recomputed in **sweeps**, a few regions with each request: after every refresh, after
//! every announcement, and when LRU takes over. A region is also ranked again when an eighth of it
//! was read since the last time, and before it is evicted.

mod estimate;
mod lru_shadow;
mod memory;
mod model;
mod rank;
mod region;
mod streams;
mod unannounced;

use std::time::Duration;

use self::{
    lru_shadow::LruShadow,
    memory::{InMemory, Memory},
    model::{Candidate, ReadModel},
    rank::{Rank, RankOrder},
    region::Content,
    streams::Streams,
    unannounced::{Expectation, SpentTrials},
};
use super::{
    Clock, Counters, Policy, Used,
    admission_threshold::{AdmissionThreshold, WriteSettings},
    history::History,
    invalid_event::InvalidEvent,
    jobs::Jobs,
    kind::Settings,
    passes::Passes,
    region_table::RegionTable,
    snapshot::{self, SnapshotError},
    types::{
        Decision, Departure, Job, JobEvent, Place, RegionId, Request, Resident, Rewrite, Stream,
    },
};
use crate::ByteSize;

/// Regions, and segments in memory, that one tick ranks.
const TICK_RANKS: u32 = 256;
/// Regions that one request ranks while a sweep is under way: this share of them, within bounds.
const REQUEST_SHARE: u32 = 4096;
const REQUEST_RANKS_MIN: u32 = 4;
const REQUEST_RANKS_MAX: u32 = 64;
/// Age of a rank at which it is recomputed before it decides.
const RANK_AGE: Duration = Duration::from_secs(1);
/// Regions that are ranked again before one is evicted.
const VERIFIED_MAX: u32 = 4;
/// A region is ranked again when one in this number of its segments was read.
const READ_SHARE: u32 = 8;

/// The policy.
#[derive(Debug)]
pub(super) struct NextUse {
    clock: Clock,
    passes: Passes,
    model: ReadModel,
    threshold: AdmissionThreshold,
    memory: Memory,
    regions: RegionTable<Content>,
    /// Regions that may be evicted.
    order: RankOrder,
    streams: Streams,
    sweep: Sweep,
    lru_shadow: LruShadow,
    trials: SpentTrials,
    reinsertion: bool,
    not_stored: u64,
}

/// The sweep that is under way.
#[derive(Debug, Default)]
struct Sweep {
    region: u32,
    regions_left: u32,
    slot: u32,
    slots_left: u32,
    per_request: u32,
}

impl NextUse {
    pub fn new(settings: &Settings) -> Self {
        // Without a write limit, one expected reader is enough.
        let writes = WriteSettings { threshold_min: 0.0, ..settings.writes };
        let capacity = settings.dram.0.saturating_add(settings.flash().0);
        let limited = settings.writes.limit.is_some();
        let per_request = settings.regions / REQUEST_SHARE;
        Self {
            clock: Clock::default(),
            passes: Passes::new(),
            threshold: AdmissionThreshold::new(writes, settings.segment),
            memory: Memory::new(settings.dram.0),
            regions: RegionTable::new(settings.regions),
            order: RankOrder::default(),
            streams: Streams::new(settings.regions),
            sweep: Sweep {
                per_request: per_request.clamp(REQUEST_RANKS_MIN, REQUEST_RANKS_MAX),
                ..Sweep::default()
            },
            model: ReadModel {
                jobs: Jobs::new(settings.lease, settings.segment, settings.bitmaps),
                history: History::new(&settings.history),
                unknown_start: settings.unknown_start,
                is_lru: false,
            },
            // No shadow under a write limit, which a plain LRU would exceed.
            lru_shadow: LruShadow::new(if limited { 0 } else { capacity }, settings.segments()),
            trials: SpentTrials::default(),
            reinsertion: settings.reinsertion,
            not_stored: 0,
        }
    }

    /// Begins what is due, and does a slice of it: `ranks` regions and segments in memory.
    fn work(&mut self, now: Duration, ranks: u32) -> bool {
        if self.threshold.tick(now) {
            self.model.jobs.begin_tick();
            self.begin_sweep();
        }
        let ticking = self.model.jobs.tick_slice(now);
        for _ in 0..ranks.min(self.sweep.regions_left) {
            self.sweep.regions_left -= 1;
            self.sweep.region = (self.sweep.region + 1) % self.regions.len();
            self.rank_region(now, self.sweep.region);
        }
        for _ in 0..ranks.min(self.sweep.slots_left) {
            self.sweep.slots_left -= 1;
            self.sweep.slot = (self.sweep.slot + 1) % self.memory.slots();
            self.rank_slot(now, self.sweep.slot);
        }
        ticking || self.sweep.regions_left > 0 || self.sweep.slots_left > 0
    }

    fn begin_sweep(&mut self) {
        self.sweep.regions_left = self.regions.len();
        self.sweep.slots_left = self.memory.slots();
    }

    /// Ranks a region that may be evicted: sealed, or open and idle.
    fn rank_region(&mut self, now: Duration, index: u32) {
        let Some((_, content, is_sealed)) = self.regions.at(index) else { return };
        if !is_sealed && !content.is_idle(now) {
            return self.order.remove(index);
        }
        let rank = self.model.rank(now, content);
        self.order.set(index, rank);
        let content = self.regions.at_mut(index).expect("looked up above");
        (content.ranked, content.reads) = (now, 0);
    }

    fn rank_slot(&mut self, now: Duration, slot: u32) {
        if let Some(InMemory { resident, position, touched }) = self.memory.at(slot) {
            let candidate = self.model.candidate(now, resident.bucket, position, touched);
            self.memory.set_rank(slot, candidate.rank);
        }
    }

    /// The region with the latest rank of those that may be evicted. Ranks that are not recent are
    /// recomputed first.
    fn last_region(&mut self, now: Duration) -> Option<(Rank, u32)> {
        for _ in 0..VERIFIED_MAX {
            let (rank, index) = self.order.last()?;
            let content = self.regions.at_mut(index).expect("ranked regions are known");
            if now.saturating_sub(content.ranked) < RANK_AGE {
                return Some((rank, index));
            }
            self.rank_region(now, index);
        }
        self.order.last()
    }

    /// Decides whether a segment is written to flash, and charges the write if so.
    fn admits_to_flash(
        &mut self,
        now: Duration,
        candidate: Candidate,
        resident: &Resident,
    ) -> bool {
        if self.regions.len() == 0 {
            return false;
        }
        let is_full = self.regions.used() >= self.regions.len();
        if is_full
            && let Some((last, _)) = self.last_region(now)
            && !candidate.rank.is_sooner(now, last)
        {
            return false;
        }
        // Limited writes are for segments with expected reads.
        let Resident { segment, bucket, length, brought_by } = *resident;
        let limited = self.threshold.limit().is_some();
        if limited && !self.threshold.admits(candidate.expected, segment, length) {
            return false;
        }
        if candidate.expectation != Expectation::Read && !self.model.is_popular(bucket) {
            let follower_lag =
                brought_by.and_then(|job| self.model.jobs.follower_lag(job)).copied();
            if !self.trials.allows(candidate.expectation, follower_lag.as_ref(), segment) {
                return false;
            }
        }
        self.threshold.try_write(now, length)
    }

    /// Records a read of a segment on flash.
    fn on_flash_read(&mut self, now: Duration, region: RegionId, reader: Option<Job>) {
        let Some(content) = self.regions.get_mut(region) else { return };
        if content.take_spent() {
            self.trials.on_read();
        }
        if let Some((job, lag)) = content.on_read(now, reader)
            && let Some(follower_lag) = self.model.jobs.follower_lag(job)
        {
            follower_lag.on_read(lag);
        }
        if self.model.is_lru || content.reads * READ_SHARE >= content.stored {
            self.rank_region(now, region.index);
        }
    }

    /// Adds a segment to what is known of a region.
    fn add_to_region(
        &mut self,
        now: Duration,
        resident: &Resident,
        region: RegionId,
        expectation: Expectation,
        position: u32,
    ) {
        // A newer generation stands for a region that was freed without a report.
        if self.regions.at(region.index).is_some_and(|(known, ..)| known != region) {
            self.order.remove(region.index);
        }
        let Some(content) = self.regions.stored(region, || Content::new(now)) else { return };
        let Resident { bucket, brought_by, .. } = *resident;
        content.add(now, bucket, position, brought_by, expectation);
        // A region that receives segments is not idle.
        if self.regions.at(region.index).is_some_and(|(.., is_sealed)| !is_sealed) {
            self.order.remove(region.index);
        }
    }

    fn stream(&mut self, now: Duration, resident: &Resident, candidate: &Candidate) -> Stream {
        let seconds = candidate.rank.seconds() - now.as_secs_f64();
        self.streams.choose(now, resident, candidate.expectation, seconds)
    }
}

impl Policy for NextUse {
    fn on_request(&mut self, now: Duration, request: &Request, place: Place) -> Decision {
        let now = self.clock.advance(now);
        self.work(now, self.sweep.per_request);
        let Request { segment, bucket, length, .. } = *request;
        let is_pass = self.passes.on_request(now, request);
        let observed = if is_pass {
            self.model.history.record(now, bucket, segment)
        } else {
            self.model.history.observe(bucket, segment)
        };
        let read = self.model.jobs.on_read(now, request, observed, is_pass);
        let reader = request.job.filter(|_| read.is_some());
        let is_hit = place != Place::Absent;
        if is_pass && self.lru_shadow.on_request(segment, length, is_hit) {
            self.model.is_lru = self.lru_shadow.is_active();
            self.begin_sweep();
        }
        match place {
            Place::Flash(region) if is_pass => self.on_flash_read(now, region, reader),
            Place::Memory => {
                if let Some(slot) = self.memory.touch(now, segment) {
                    self.rank_slot(now, slot);
                }
            }
            Place::Flash(_) | Place::Pending | Place::Absent => {}
        }
        if is_hit {
            return Decision::Hit;
        }
        let position = read.map_or(observed.position.unwrap_or(0), |read| read.position);
        let resident = Resident { brought_by: reader, ..request.resident() };
        let candidate = self.model.newcomer(now, &resident, position, now);
        if self.memory.admits(now, length, candidate.rank) {
            return Decision::Memory;
        }
        if self.admits_to_flash(now, candidate, &resident) {
            Decision::Flash(self.stream(now, &resident, &candidate))
        } else {
            Decision::Pass
        }
    }

    fn leave_memory(&mut self, now: Duration) -> Option<Departure> {
        let now = self.clock.advance(now);
        let InMemory { resident, position, touched } = self.memory.pop_overflow()?;
        let candidate = self.model.newcomer(now, &resident, position, touched);
        let is_written = self.admits_to_flash(now, candidate, &resident);
        let to = is_written.then(|| self.stream(now, &resident, &candidate));
        Some(Departure { resident, to })
    }

    fn on_stored(&mut self, now: Duration, resident: &Resident, place: Place) {
        let now = self.clock.advance(now);
        let position = self.model.position(resident);
        match place {
            Place::Absent | Place::Pending => {}
            Place::Memory => {
                let rank = self.model.candidate(now, resident.bucket, position, now).rank;
                self.memory.insert(InMemory { resident: *resident, position, touched: now }, rank);
            }
            Place::Flash(region) => {
                let candidate = self.model.newcomer(now, resident, position, now);
                if candidate.expectation == Expectation::Spent {
                    self.trials.on_tried();
                }
                self.add_to_region(now, resident, region, candidate.expectation, position);
            }
        }
    }

    fn on_not_stored(&mut self, _now: Duration, resident: &Resident) {
        self.not_stored += 1;
        self.threshold.give_back(resident.length);
    }

    fn on_sealed(&mut self, now: Duration, region: RegionId) {
        let now = self.clock.advance(now);
        if self.regions.seal(region).is_some() {
            self.rank_region(now, region.index);
        }
    }

    fn victim(&mut self, now: Duration) -> Option<RegionId> {
        let now = self.clock.advance(now);
        let (_, index) = self.last_region(now)?;
        self.regions.at(index).map(|(region, ..)| region)
    }

    fn reinsert(
        &mut self,
        now: Duration,
        _region: RegionId,
        residents: &[Resident],
        rewrites: &mut Vec<Rewrite>,
    ) {
        if !self.reinsertion {
            return;
        }
        let now = self.clock.advance(now);
        for resident in residents {
            if rewrites.len() >= residents.len() * 3 / 4 {
                break;
            }
            let position = self.model.position(resident);
            let candidate = self.model.candidate(now, resident.bucket, position, now);
            if candidate.expectation == Expectation::Read
                && self.admits_to_flash(now, candidate, resident)
            {
                let to = self.stream(now, resident, &candidate);
                rewrites.push(Rewrite { resident: *resident, to });
            }
        }
    }

    fn on_freed(&mut self, _now: Duration, region: RegionId) {
        let Some((content, _)) = self.regions.free(region) else { return };
        self.order.remove(region.index);
        if let Some((job, unread)) = content.unread()
            && let Some(follower_lag) = self.model.jobs.follower_lag(job)
        {
            follower_lag.on_evicted_unread(unread);
        }
    }

    fn on_invalidated(&mut self, _now: Duration, place: Place, residents: &[Resident]) {
        match place {
            Place::Memory => {
                for resident in residents {
                    self.memory.remove(resident.segment);
                }
            }
            Place::Flash(region) => {
                if let Some(content) = self.regions.get_mut(region) {
                    content.remove(u32::try_from(residents.len()).unwrap_or(u32::MAX));
                }
            }
            Place::Absent | Place::Pending => {}
        }
    }

    fn on_recovered(&mut self, now: Duration, region: RegionId, residents: &[Resident]) {
        let now = self.clock.advance(now);
        for resident in residents {
            let position = self.model.history.adopt(now, resident.bucket, resident.segment);
            self.add_to_region(now, resident, region, Expectation::Read, position);
        }
        self.on_sealed(now, region);
    }

    fn on_tick(&mut self, now: Duration) -> bool {
        let now = self.clock.advance(now);
        self.work(now, TICK_RANKS)
    }

    fn on_event(&mut self, now: Duration, event: JobEvent<'_>) -> Result<(), InvalidEvent> {
        let now = self.clock.advance(now);
        match event {
            JobEvent::Announced { job, spec } => self.model.jobs.on_announced(now, job, spec)?,
            JobEvent::Ended { job } => self.model.jobs.on_ended(job)?,
        }
        self.begin_sweep();
        self.work(now, TICK_RANKS);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        snapshot::save(&self.model.history, &self.model.jobs, &self.threshold)
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), SnapshotError> {
        let Self { model, threshold, .. } = self;
        snapshot::restore(snapshot, &mut model.history, &mut model.jobs, threshold)
    }

    fn used(&self) -> Used {
        Used { memory: ByteSize(self.memory.used()), regions: self.regions.used() }
    }

    fn counters(&self) -> Counters {
        Counters {
            jobs: self.model.jobs.counters(),
            time_went_back: self.clock.went_back,
            history_one_in: self.model.history.one_in(),
            lru_takeovers: self.lru_shadow.takeovers,
            not_stored: self.not_stored,
            unknown_regions: self.regions.unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::jobs::tests::buckets_after_reannouncements;

    #[test]
    fn buckets_that_were_announced_and_never_read_are_dropped() {
        let policy = NextUse::new(&Settings::new(ByteSize(0), 100));
        assert!(buckets_after_reannouncements(policy, |policy| &policy.model.jobs) <= 2);
    }
}
