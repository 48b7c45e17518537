//! Forecast: how long each job's supply lasts, how much it can still read of a chunk, what loading
//! a chunk is worth, and what evicting one costs. All worths and costs are in bytes from the
//! origin, so that they can be compared.

use std::{cmp::Ordering, time::Duration};

use crate::dataset::chunking::ChunkOrdinal;
use crate::train::rotation::{
    JobNumber,
    state::{ChunkState, JobState, RotationState},
};

/// An exhausted chunk may be evicted this number of load times before the next one is needed: that
/// costs nothing.
const EARLY_LOADS: u32 = 2;
/// Jobs whose speeds differ by less than this factor count as equally fast: measured speeds vary.
const SIMILAR_SPEED: f64 = 1.1;
/// A chunk is not loaded for a job that has less than 1/4 of it unread.
const UNREAD_SHARE_MIN: u64 = 4;
/// A chunk that only slow jobs need is loaded if more than this number of them share it.
const READERS_MIN: f64 = 2.0;
/// Shortest delay of a tick: estimates are not more exact.
const WAKE_MIN: Duration = Duration::from_millis(1);

/// The forecast of one job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobForecast<'a> {
    pub number: JobNumber,
    pub progress: &'a JobState,
    /// Bytes per second that it draws from chunks that are not pinned.
    speed: f64,
    /// Time until it has drawn all rotating chunks.
    supply: Duration,
    /// Whether it has unread items outside the drawable chunks.
    wants_more: bool,
    /// How near the end of its epoch is, in turns of the fastest job: 0 as long as every chunk will
    /// return before, 1 at the end. Of what it leaves of a chunk, it loses this share.
    scarcity: f64,
}

impl<'a> JobForecast<'a> {
    fn new(
        state: &RotationState,
        pinned: &[ChunkOrdinal],
        rotating: &[ChunkOrdinal],
        number: JobNumber,
        progress: &'a JobState,
    ) -> Self {
        let unread = |chunks: &[ChunkOrdinal]| -> u64 {
            chunks.iter().map(|chunk| progress.unread_of(*chunk)).sum()
        };
        let (pinned, open) = (unread(pinned), unread(rotating));
        let rest = progress.unread_total - pinned;
        let speed = match progress.unread_total {
            0 => 0.0,
            total => progress.pace as f64 * (rest as f64 / total as f64),
        };
        let wants_more = rest > open;
        // What is drawable at the end of an epoch is drawable, and unread, at the start of the
        // next.
        let again: u64 = rotating.iter().map(|chunk| state.chunk(*chunk).size).sum();
        let open = if wants_more { open } else { open.saturating_add(again) };
        let lasts = Duration::try_from_secs_f64(open as f64 / speed).unwrap_or(Duration::MAX);
        let since = state.now.saturating_sub(progress.reported_at);
        // Until the job reports it, it has not drawn the last item.
        let supply = lasts.saturating_sub(since).max(WAKE_MIN);
        let supply = if open == 0 { Duration::ZERO } else { supply };
        Self { number, progress, speed, supply, wants_more, scarcity: 0.0 }
    }

    fn is_faster_than(&self, other: &JobForecast<'_>) -> bool {
        self.speed > other.speed * SIMILAR_SPEED
    }

    fn unread_of(&self, chunk: ChunkOrdinal) -> f64 {
        self.progress.unread_of(chunk) as f64
    }

    fn supply_s(&self) -> f64 {
        self.supply.as_secs_f64()
    }
}

/// The forecasts of all active jobs of a dataset.
#[derive(Debug)]
pub(super) struct Forecast<'a> {
    state: &'a RotationState,
    jobs: Vec<JobForecast<'a>>,
    /// Speed of the fastest job, and the time that it takes for a chunk.
    speed_max: f64,
    period_s: f64,
}

impl<'a> Forecast<'a> {
    pub fn new(state: &'a RotationState) -> Self {
        let (pinned, rotating): (Vec<_>, Vec<_>) =
            (state.pinned().collect(), state.rotating().collect());
        let job =
            |(number, progress)| JobForecast::new(state, &pinned, &rotating, number, progress);
        let mut jobs: Vec<JobForecast<'a>> = state.active_jobs().map(job).collect();
        let speed_max = jobs.iter().map(|job| job.speed).fold(0.0, f64::max);
        let size_max = state.chunks.iter().map(|chunk| chunk.size).max().unwrap_or(0);
        let period_s = size_max as f64 / speed_max.max(1.0);
        let turn_s = period_s * (state.chunks.len() - pinned.len()) as f64;
        for job in &mut jobs {
            let epoch_s = job.progress.unread_total as f64 / job.progress.pace.max(1) as f64;
            job.scarcity = (1.0 - epoch_s / turn_s).clamp(0.0, 1.0);
        }
        Self { state, jobs, speed_max, period_s }
    }

    /// All jobs, by number.
    pub fn jobs(&self) -> impl Iterator<Item = &JobForecast<'a>> {
        self.jobs.iter()
    }

    /// Jobs that will soon have nothing to draw, the most urgent first.
    pub fn starving(&self) -> impl Iterator<Item = &JobForecast<'a>> {
        let is_starving = |job: &&JobForecast<'a>| job.wants_more && job.supply < self.early_time();
        let mut starving: Vec<&JobForecast<'a>> = self.jobs().filter(is_starving).collect();
        starving.sort_by_key(|job| (job.supply, job.number));
        starving.into_iter()
    }

    /// When the next job starves, or a threshold towards that is passed.
    pub fn next_need_at(&self) -> Option<Duration> {
        let thresholds = [self.early_time(), self.state.load_time, WAKE_MIN];
        let waits = self.jobs().filter(|job| job.wants_more).flat_map(|job| {
            thresholds.into_iter().filter_map(|threshold| job.supply.checked_sub(threshold))
        });
        let wait = waits.filter(|wait| !wait.is_zero()).min()?;
        self.state.now.checked_add(wait.max(WAKE_MIN))
    }

    fn early_time(&self) -> Duration {
        self.state.load_time.saturating_mul(EARLY_LOADS)
    }

    /// Whether a job is among the fastest.
    fn is_fast(&self, job: &JobForecast<'_>) -> bool {
        job.speed * SIMILAR_SPEED >= self.speed_max
    }

    /// The chunk that is best loaded for a job, if any is worth it. Of equals, the one that was
    /// loaded longest ago: then equally fast jobs read all chunks in the same order, wherever they
    /// started.
    pub fn next(&self, need: &JobForecast<'_>) -> Option<ChunkOrdinal> {
        let is_wanted = |chunk: &ChunkOrdinal| {
            self.state.chunk(*chunk).state == ChunkState::Absent
                && need.progress.unread_of(*chunk) > 0
        };
        let absent = self.state.ordinals().filter(is_wanted);
        let worth = absent.map(|chunk| (self.worth(need, chunk), chunk));
        let (worth, chunk) = worth.reduce(|best, other| {
            let load_number = |chunk| self.state.chunk(chunk).load_number;
            let is_better = match f64::total_cmp(&other.0, &best.0) {
                Ordering::Equal => load_number(other.1) < load_number(best.1),
                order => order.is_gt(),
            };
            if is_better { other } else { best }
        })?;
        let is_too_little =
            need.progress.unread_of(chunk) < self.state.chunk(chunk).size / UNREAD_SHARE_MIN;
        (worth > 0.0 || (self.is_fast(need) && !is_too_little)).then_some(chunk)
    }

    /// Bytes that jobs would read of a chunk if it were loaded now, minus the bytes that jobs leave
    /// unread and will not meet again in time. If no fast job needs the chunk anyway, fetching it
    /// costs extra.
    fn worth(&self, need: &JobForecast<'_>, chunk: ChunkOrdinal) -> f64 {
        let load_s = self.state.load_time.as_secs_f64().min(self.period_s);
        let stays_s = need.supply_s() + 2.0 * self.period_s - load_s;
        let size = self.state.chunk(chunk).size as f64;
        let (mut worth, mut fetched, mut is_due) = (0.0, 0.0, false);
        for job in self.jobs() {
            let unread = job.unread_of(chunk);
            let read = unread.min(job.speed * (stays_s - job.supply_s()).max(0.0));
            worth += read - (unread - read) * job.scarcity;
            fetched = unread.max(fetched);
            is_due |= self.is_fast(job) && unread * 2.0 > size;
        }
        if is_due { worth } else { worth - fetched * READERS_MIN }
    }

    /// Whether a chunk that a starving job is done with may be evicted for `next`: if no other job
    /// needs it, or if waiting would cost the starving job more than the readers lose.
    pub fn may_evict(
        &self,
        need: &JobForecast<'_>,
        chunk: ChunkOrdinal,
        next: ChunkOrdinal,
    ) -> bool {
        let mut readers = self.jobs().filter(|job| job.progress.unread_of(chunk) > 0).peekable();
        if readers.peek().is_none() {
            return true;
        }
        let is_loaded = self.state.chunk(chunk).state == ChunkState::Loaded;
        if need.supply >= self.state.load_time || !is_loaded {
            return false;
        }
        let mut loss_total = 0.0;
        readers.all(|reader| {
            let unread = reader.unread_of(chunk);
            let is_begun = reader.progress.focus == Some(chunk);
            let done_s = if is_begun { unread / reader.speed.max(1.0) } else { reader.supply_s() };
            let starved_s = (done_s - need.supply_s()).max(0.0);
            let loss = self.loss(need, reader, chunk);
            loss_total += loss;
            loss < need.speed * starved_s && loss_total < need.unread_of(next)
        })
    }

    /// Bytes that a reader loses if a chunk is evicted for a starving job. A faster reader has to
    /// have it fetched again. A slower one meets it again, if its epoch lasts. An equally fast one
    /// does so, too, but then it no longer needs what it has read by now, while the others do.
    fn loss(&self, need: &JobForecast<'_>, reader: &JobForecast<'_>, chunk: ChunkOrdinal) -> f64 {
        let unread = reader.unread_of(chunk);
        if reader.is_faster_than(need) {
            unread
        } else if need.is_faster_than(reader) {
            unread * reader.scarcity
        } else {
            unread * reader.scarcity + (self.state.chunk(chunk).size as f64 - unread)
        }
    }

    /// Bytes of a chunk that a job can read before other jobs need its space.
    pub fn readable(&self, job: &JobForecast<'_>, chunk: ChunkOrdinal) -> f64 {
        let is_rival =
            |other: &&JobForecast<'_>| other.number != job.number && !job.is_faster_than(other);
        let stays_s = self.jobs().filter(is_rival).map(|other| {
            let reads_on_s = if other.progress.unread_of(chunk) > 0 { self.period_s } else { 0.0 };
            let before =
                if other.is_faster_than(job) { self.state.load_time } else { Duration::ZERO };
            other.supply.saturating_sub(before).as_secs_f64() + reads_on_s
        });
        let stays_s = stays_s.fold(f64::INFINITY, f64::min);
        job.unread_of(chunk).min(job.speed * stays_s)
    }
}
