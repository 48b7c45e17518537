//! The job reporter: what a job reports to the manager of its dataset, and the last answer.
//!
//! Between two reports it collects what the job has drawn, yielded and computed. Without an answer
//! the job keeps the last draw set, and sends a full report when a manager answers again. A lost
//! manager costs hits, and nothing else.

use std::{collections::BTreeSet, time::Duration};

use super::pacing::Pacing;
use crate::train::manager::{
    CacheClass, DrawSet, HalfChunkBytes, MeasuredBatch, Report, ReportAnswer, batch_mode,
};
use crate::{
    ByteSize, HalfChunk, ItemOrdinal,
    train::{
        benefit::{BatchTime, Mode},
        sampler::{BatchDrawSet, Sampler},
    },
    units::ByteRate,
};

/// Interval between reports.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// Shortest interval between urgent reports.
const REPORT_PAUSE: Duration = Duration::from_millis(5);
/// Reports take at most 1/20 of the job's time: checking large half-chunks takes long.
const REPORT_SHARE: u32 = 20;
/// Urgent reports, which other jobs wait for, take at most 1/4.
const REPORT_SHARE_URGENT: u32 = 4;
/// Probes read at most 1/100 of the dataset, and 1/100 of what the job reads: a batch of small
/// items may lie in as many packs.
const PROBE_SHARE: u64 = 100;
/// Mini-batches that are kept for one report.
const MEASURED_MAX: usize = 1 << 10;

/// Size of a half-chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HalfChunkSize {
    /// Bytes.
    pub bytes: ByteSize,
    /// Items.
    pub items: u64,
}

/// What does not change while one incarnation of a job reports.
#[derive(Debug, Clone)]
pub struct ReporterSettings {
    /// Random number that tells this run of the job from others under its name.
    pub incarnation: u64,
    /// GPUs that wait when the job waits.
    pub gpus: u32,
    /// Mini-batches of an epoch.
    pub epoch_batches: u64,
    /// Size of each half-chunk of the dataset.
    pub half_chunks: Vec<HalfChunkSize>,
    /// Bytes that a probe reads for an item, on average.
    pub probe_item: ByteSize,
}

/// Time of a report with its answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReportTime {
    /// When the answer came.
    pub ended_at: Duration,
    /// From the report to its answer.
    pub took: Duration,
}

/// The job's side of its dataset's rotation.
#[derive(Debug)]
pub struct JobReporter {
    incarnation: u64,
    gpus: u32,
    epoch_batches: u64,
    epoch: u64,
    /// Size of each half-chunk.
    half_chunks: Vec<HalfChunkSize>,
    /// Unread items of each half-chunk, as last reported.
    reported: Vec<u64>,
    sends_full: bool,
    released: BTreeSet<HalfChunk>,
    filled: BTreeSet<HalfChunk>,
    times: Vec<MeasuredBatch>,
    pace: Pace,
    pacing: Pacing,
    draw_set: DrawSet,
    loading: Vec<HalfChunk>,
    classes: Vec<CacheClass>,
    probe_batches: u32,
    probe_item: ByteSize,
    /// Bytes of the dataset and of mini-batches for which no probe has read its share.
    probe_credit: u64,
    reported_at: Option<Duration>,
    /// Duration of the last report.
    report_took: Duration,
    /// End of the last report, with the shorter duration of the last two.
    last_report: ReportTime,
}

/// Rate at which a job draws, without its stalls.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    busy: Duration,
}

impl JobReporter {
    /// A reporter that has reported nothing.
    pub fn new(settings: ReporterSettings) -> Self {
        let ReporterSettings { incarnation, gpus, epoch_batches, half_chunks, probe_item } =
            settings;
        let probe_credit = half_chunks.iter().map(|size| size.bytes.0).sum();
        let classes = vec![CacheClass::Uncached; half_chunks.len()];
        Self {
            incarnation,
            gpus,
            epoch_batches,
            epoch: 0,
            reported: vec![u64::MAX; half_chunks.len()],
            half_chunks,
            sends_full: true,
            released: BTreeSet::new(),
            filled: BTreeSet::new(),
            times: Vec::new(),
            pace: Pace::default(),
            pacing: Pacing::default(),
            draw_set: DrawSet::default(),
            loading: Vec::new(),
            classes,
            probe_batches: 0,
            probe_item,
            probe_credit,
            reported_at: None,
            report_took: Duration::ZERO,
            last_report: ReportTime::default(),
        }
    }

    /// Starts an epoch.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.sends_full = true;
        self.released.clear();
        // Whatever the last report took: without an answer the epoch would have no draw set.
        self.reported_at = None;
    }

    /// Whether a report is due.
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
        let ReportTime { ended_at, took } = self.last_report;
        now >= last.saturating_add(pause)
            && now >= ended_at.saturating_add(took.saturating_mul(share))
    }

    /// Whether other jobs wait for this report, or this job for its answer. If it came late, the
    /// end of a chunk would be noticed late, and the next chunk would be read uncached meanwhile.
    pub fn is_urgent(&self, sampler: &Sampler) -> bool {
        self.sends_full
            || !self.released.is_empty()
            || self.has_drawn_last(sampler)
            || self.is_short(sampler)
    }

    /// Whether the last item of a rotating half-chunk is drawn and not reported.
    fn has_drawn_last(&self, sampler: &Sampler) -> bool {
        let reported =
            |half_chunk: HalfChunk| self.reported.get(half_chunk.index()).copied().unwrap_or(0);
        self.draw_set
            .rotating()
            .any(|half_chunk| reported(half_chunk) > 0 && sampler.unread(half_chunk) == 0)
    }

    /// Whether the next batch would need items outside the draw set, though half-chunks rotate.
    /// Such a batch is better drawn when it is needed than ahead: another half-chunk may join the
    /// draw set by then. Without answers none will.
    pub fn is_short(&self, sampler: &Sampler) -> bool {
        if self.sends_full || self.draw_set.rotating().next().is_none() {
            return false;
        }
        let left: u64 = self.draw_set.rotating().map(|half_chunk| sampler.unread(half_chunk)).sum();
        left < sampler.plan().batch.into() && self.has_unread_uncached(sampler)
    }

    /// Whether the next batch is better drawn later, though the job has to wait for it: slower jobs
    /// are behind, and the next half-chunk joins the draw set when they have caught up. Checked
    /// before a batch is drawn. If the loader has nothing else to do until then, it waits, reports,
    /// and calls [`Self::on_waited`].
    pub fn should_wait(&self, sampler: &Sampler) -> bool {
        self.pacing.may_wait() && self.is_short(sampler)
    }

    /// The job has waited for other jobs.
    pub fn on_waited(&mut self, took: Duration, sampler: &Sampler) {
        let timed_out = self.is_short(sampler);
        self.pacing.on_waited(took, timed_out);
    }

    fn has_unread_uncached(&self, sampler: &Sampler) -> bool {
        let outside = (0..)
            .map(HalfChunk)
            .zip(&self.classes)
            .filter(|(_, class)| **class == CacheClass::Uncached);
        outside.map(|(half_chunk, _)| half_chunk).any(|half_chunk| sampler.unread(half_chunk) > 0)
    }

    /// The next report. It counts as received; [`Self::on_no_answer`] corrects that.
    pub fn report(
        &mut self,
        now: Duration,
        sampler: &Sampler,
        resident: impl Fn(ItemOrdinal) -> bool,
    ) -> Report {
        self.reported_at = Some(now);
        let is_full = std::mem::take(&mut self.sends_full);
        if is_full {
            self.filled.clear();
        }
        let mut unread = Vec::new();
        for (half_chunk, reported) in (0..).map(HalfChunk).zip(&mut self.reported) {
            let left = sampler.unread(half_chunk);
            let HalfChunkSize { bytes, items } = self.half_chunks[half_chunk.index()];
            let has_changed = if is_full { left != items } else { left != *reported };
            *reported = left;
            if has_changed {
                let left = u128::from(bytes.0) * u128::from(left) / u128::from(items.max(1));
                // An epoch may read some items twice.
                let left = u64::try_from(left).unwrap_or(bytes.0).min(bytes.0);
                let bytes = ByteSize(left);
                unread.push(HalfChunkBytes { half_chunk, bytes });
            }
        }
        let mut filled = Vec::new();
        for half_chunk in &self.loading {
            let is_filled = || sampler.is_all_resident(*half_chunk, &resident);
            if !self.filled.contains(half_chunk) && is_filled() {
                filled.push(*half_chunk);
            }
        }
        self.filled.extend(&filled);
        Report {
            incarnation: self.incarnation,
            gpus: self.gpus,
            epoch_batches: self.epoch_batches,
            epoch: self.epoch,
            pace: self.pace.rate(),
            is_full,
            unread,
            released: std::mem::take(&mut self.released).into_iter().collect(),
            filled,
            batches: std::mem::take(&mut self.times),
        }
    }

    /// The manager's answer to the last report.
    pub fn on_answer(&mut self, answer: ReportAnswer) {
        let ReportAnswer::Draw { draw_set: open, loading, probe_batches } = answer else {
            self.sends_full = true;
            return;
        };
        // What is loaded again has to be filled again.
        self.filled.retain(|half_chunk| loading.contains(half_chunk));
        self.classes.fill(CacheClass::Uncached);
        for (half_chunks, class) in [
            (open.pinned.clone(), CacheClass::Pinned),
            (open.rotating().collect::<Vec<_>>(), CacheClass::Rotating),
        ] {
            for half_chunk in half_chunks {
                // An unknown half-chunk is ignored.
                if let Some(slot) = self.classes.get_mut(half_chunk.index()) {
                    *slot = class;
                }
            }
        }
        (self.draw_set, self.loading) = (open, loading);
        self.probe_batches = self.probe_batches.saturating_add(probe_batches);
    }

    /// The last report has no answer.
    pub fn on_no_answer(&mut self) {
        self.sends_full = true;
    }

    /// The last report is complete. The shorter of the last two durations counts: a single long
    /// report may be due to a busy machine, and other jobs wait for this one's reports.
    pub fn on_report_done(&mut self, ReportTime { ended_at, took }: ReportTime) {
        let took = took.min(std::mem::replace(&mut self.report_took, took));
        self.last_report = ReportTime { ended_at, took };
    }

    /// The draw set of the next batch, which has `batch` items.
    pub fn batch_draw_set(&self, batch: u64, sampler: &Sampler) -> BatchDrawSet {
        self.draw_set.for_batch(batch, |half_chunk| sampler.unread(half_chunk))
    }

    /// Whether the next mini-batch, of `items`, is part of a probe. Call once for each. A probe
    /// that would read too many bytes waits until the job has read more.
    pub fn take_probe_batch(&mut self, items: u64) -> bool {
        let cost = self.probe_item.0.saturating_mul(items).saturating_mul(PROBE_SHARE);
        let is_probe = self.probe_batches > 0 && cost <= self.probe_credit;
        if is_probe {
            self.probe_batches -= 1;
            self.probe_credit -= cost;
        }
        is_probe
    }

    /// The mode of a mini-batch, given the half-chunks of its items: see [`batch_mode`].
    pub fn mode(
        &self,
        half_chunks: impl IntoIterator<Item = HalfChunk>,
        all_resident: bool,
    ) -> Option<Mode> {
        let class = |half_chunk: HalfChunk| {
            self.classes.get(half_chunk.index()).copied().unwrap_or_default()
        };
        batch_mode(half_chunks.into_iter().map(class), all_resident)
    }

    /// Half-chunks that are being loaded: the job prefetches what it needs of them.
    pub fn loading(&self) -> &[HalfChunk] {
        &self.loading
    }

    /// The last items of these half-chunks were yielded.
    pub fn on_released(&mut self, half_chunks: impl IntoIterator<Item = HalfChunk>) {
        self.released.extend(half_chunks);
    }

    /// A mini-batch of `bytes` was computed.
    pub fn on_computed(&mut self, mode: Option<Mode>, bytes: u64, time: BatchTime) {
        self.pace.add(bytes, time.took.saturating_sub(time.stalled));
        self.probe_credit = self.probe_credit.saturating_add(bytes);
        self.pacing.on_stalled(time.stalled);
        if let Some(mode) = mode.filter(|_| self.times.len() < MEASURED_MAX) {
            self.times.push(MeasuredBatch { mode, time });
        }
    }
}

impl Pace {
    /// Bytes and time are halved when they cover more than this: old mini-batches count less.
    const HALVED_AFTER: Duration = Duration::from_secs(10);

    fn add(&mut self, bytes: u64, busy: Duration) {
        if self.busy > Self::HALVED_AFTER {
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
        train::sampler::{EpochPlan, HalfChunkMap},
    };

    fn new_reporter(epoch_batches: u64, half_chunks: Vec<HalfChunkSize>) -> JobReporter {
        let (incarnation, gpus, probe_item) = (1, 1, ByteSize(10));
        let settings =
            ReporterSettings { incarnation, gpus, epoch_batches, half_chunks, probe_item };
        JobReporter::new(settings)
    }

    /// Without a limit, a probe of 20 batches of 256 items in packs of 1 MiB reads 5 GiB.
    #[test]
    fn probes_are_bounded_by_bytes() {
        let size = HalfChunkSize { bytes: ByteSize(20_000), items: 2000 };
        let mut reporter = new_reporter(20, vec![size; 2]);
        let answer = ReportAnswer::Draw {
            draw_set: DrawSet::default(),
            loading: Vec::new(),
            probe_batches: 20,
        };
        reporter.on_answer(answer);
        let take = |reporter: &mut JobReporter, items| {
            (0..100).filter(|_| reporter.take_probe_batch(items)).count()
        };
        assert_eq!(take(&mut reporter, 100), 0, "a batch reads 1000 bytes of 40,000");
        assert_eq!(take(&mut reporter, 4), 10, "1 % of the dataset");
        let time = BatchTime { took: Duration::from_secs(1), stalled: Duration::ZERO };
        reporter.on_computed(None, 12_000, time);
        assert_eq!(take(&mut reporter, 4), 3, "1 % of what the job reads");
        reporter.on_computed(None, 1_000_000, time);
        assert_eq!(take(&mut reporter, 4), 7, "the rest of the probe");
    }

    /// A chunk is not loaded before all its readers have said so: one stall of a job must not keep
    /// the others waiting.
    #[test]
    fn one_slow_report_does_not_silence_a_job() {
        let at = Duration::from_millis;
        let mut reporter = new_reporter(10, Vec::new());
        reporter.reported_at = Some(at(100));
        reporter.on_report_done(ReportTime { ended_at: at(300), took: at(200) });
        assert!(reporter.may_report(at(300), false), "the first");
        reporter.on_report_done(ReportTime { ended_at: at(400), took: at(1) });
        assert!(!reporter.may_report(at(419), false) && reporter.may_report(at(420), false));
        assert!(
            !reporter.may_report(at(403), true) && reporter.may_report(at(404), true),
            "urgent"
        );
        reporter.on_report_done(ReportTime { ended_at: at(700), took: at(200) });
        assert!(reporter.may_report(at(720), false), "one of many");
        reporter.on_report_done(ReportTime { ended_at: at(1000), took: at(100) });
        assert!(
            !reporter.may_report(at(2999), false) && reporter.may_report(at(3000), false),
            "slow"
        );
        reporter.begin_epoch(2);
        assert!(reporter.may_report(at(1001), false), "an epoch starts with a report");
    }

    /// Slower jobs catch up, or the next half-chunk joins the draw set, only if a node says so.
    #[test]
    fn a_job_without_a_manager_never_waits() {
        let halves = (0..100).map(|item| HalfChunk(item / 50));
        let map = HalfChunkMap::new(DatasetId::from_bytes([1; 32]), 2, halves).unwrap();
        let sampler = Sampler::new(&map, EpochPlan::new(1, 0, 64)).unwrap();
        let second = Duration::from_secs(1);
        let mut reporter =
            new_reporter(2, vec![HalfChunkSize { bytes: ByteSize(500), items: 50 }; 2]);
        reporter.begin_epoch(0);
        reporter.on_computed(None, 640, BatchTime { took: second, stalled: second });
        let answer = || ReportAnswer::Draw {
            draw_set: DrawSet { first: vec![HalfChunk(0)], ..DrawSet::default() },
            loading: Vec::new(),
            probe_batches: 0,
        };
        reporter.report(second, &sampler, |_| false);
        reporter.on_answer(answer());
        assert!(reporter.should_wait(&sampler), "the draw set has less than a batch");
        reporter.report(second * 2, &sampler, |_| false);
        reporter.on_no_answer();
        assert!(!reporter.should_wait(&sampler) && !reporter.is_short(&sampler));
        reporter.report(second * 3, &sampler, |_| false);
        reporter.on_answer(answer());
        assert!(reporter.should_wait(&sampler), "the manager answers again");
    }
}
