//! The job's side of Train, for one epoch of one rank: which items come next, what was yielded, and
//! what the manager of the dataset learns of it.
//!
//! A [`Job`] owns the sampler and, while it reports, the reporter. Loaders draw ahead of what the
//! training loop gets, so a batch waits here between [`Job::next_batch`] and [`Job::on_yielded`];
//! only then it counts (promise 2). The next epoch takes the reporter over
//! ([`Job::start_reporting`]), and the former one goes on drawing without it: one epoch of a job
//! reports at a time.
//!
//! Not here: reading items ([`crate::Reader`]), and when a report is sent (`reporter.rs`).

use std::{collections::VecDeque, mem, sync::Arc, time::Duration};

use forebay_core::{
    ItemOrdinal,
    train::{
        benefit::{BatchTime, Mode},
        manager::DrawSet,
        sampler::{
            Batch, DrawCounts, EpochPlan, ItemSource, Recording, Sampler, SamplerError,
            SamplerState, ShuffleQuality,
        },
    },
};

use crate::{
    ClientEnvironment, ThisMachine,
    train::{item_map::ItemMap, reporter::Reporter},
};

/// Yielded batches that wait for their time. More are not timed: a loader that never calls
/// [`Job::on_computed`] must not fill the memory.
const UNTIMED_MAX: usize = 1 << 10;

/// One rank's part in one epoch of a job.
#[derive(Debug)]
pub struct Job {
    environment: Arc<dyn ClientEnvironment>,
    pub(super) items: Arc<ItemMap>,
    pub(super) sampler: Sampler,
    /// Batches that are drawn and not yielded, oldest first.
    drawn: VecDeque<Drawn>,
    /// Batches that were yielded since the time was last taken.
    untimed: Vec<Untimed>,
    /// What was yielded, if that is known from the beginning of the epoch.
    recording: Option<Recording>,
    probes: u64,
    pub(super) reporter: Option<Reporter>,
    /// Whether the reporter counts: not after another epoch of the job has begun.
    pub(super) is_reporting: bool,
}

#[derive(Debug)]
struct Drawn {
    batch: Batch,
    mode: Option<Mode>,
}

#[derive(Debug)]
struct Untimed {
    mode: Option<Mode>,
    bytes: u64,
}

/// What identifies one run of a job to managers.
#[derive(Debug, Clone, Copy)]
pub struct JobRun {
    /// Random number that tells this run from others under the same job name.
    pub incarnation: u64,
    /// GPUs that wait when the job waits.
    pub gpus: u32,
    /// Mini-batches of an epoch.
    pub epoch_batches: u64,
}

/// A batch to be read.
#[derive(Debug)]
pub struct NextBatch {
    /// All items.
    pub items: Vec<ItemOrdinal>,
    /// Those that were not resident, for the agent to prefetch. Not those from a window of packs:
    /// [`Job::upcoming`] has returned their packs.
    pub missing: Vec<ItemOrdinal>,
    /// The batch is part of a probe: it is read from the origin, whatever is resident.
    pub is_probe: bool,
}

/// Shares of the dataset's bytes, as of the manager's last answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CachedShares {
    /// Pinned half-chunks.
    pub pinned: f64,
    /// Half-chunks of the draw set, pinned or rotating.
    pub drawable: f64,
}

impl Job {
    /// The beginning of an epoch.
    pub fn new(items: &Arc<ItemMap>, plan: EpochPlan) -> Result<Self, SamplerError> {
        Ok(Self::from_beginning(items, Sampler::new(items.half_chunks(), plan)?))
    }

    /// What follows a state: see [`Sampler::resume`].
    pub fn resume(items: &Arc<ItemMap>, state: &SamplerState) -> Result<Self, SamplerError> {
        Ok(Self::from_middle(items, Sampler::resume(items.half_chunks(), state)?))
    }

    /// The rest of an epoch, divided among another number of ranks: see [`Sampler::reshard`].
    pub fn reshard(
        items: &Arc<ItemMap>,
        states: &[SamplerState],
        plan: EpochPlan,
    ) -> Result<Self, SamplerError> {
        Ok(Self::from_middle(items, Sampler::reshard(items.half_chunks(), states, plan)?))
    }

    /// A recorded epoch, from its beginning or after a state of the same replay.
    pub fn replay(
        items: &Arc<ItemMap>,
        recording: &Recording,
        state: Option<&SamplerState>,
    ) -> Result<Self, SamplerError> {
        let sampler = Sampler::replay(items.half_chunks(), recording, state)?;
        Ok(match sampler.batches_yielded() {
            0 => Self::from_beginning(items, sampler),
            _ => Self::from_middle(items, sampler),
        })
    }

    fn from_beginning(items: &Arc<ItemMap>, sampler: Sampler) -> Self {
        let recording = Some(Recording::new(&sampler));
        Self { recording, ..Self::from_middle(items, sampler) }
    }

    fn from_middle(items: &Arc<ItemMap>, sampler: Sampler) -> Self {
        Self {
            environment: ThisMachine::shared(),
            items: Arc::clone(items),
            sampler,
            drawn: VecDeque::new(),
            untimed: Vec::new(),
            recording: None,
            probes: 0,
            reporter: None,
            is_reporting: false,
        }
    }

    /// Times of reports are those of this environment.
    #[must_use]
    pub fn with_environment(self, environment: Arc<dyn ClientEnvironment>) -> Self {
        Self { environment, ..self }
    }

    /// Reports from now on, as epoch `epoch` of this run; no two epochs of a run have the same
    /// number. If `previous` is an epoch of the same run, it reports no more, and what was measured
    /// and answered there is kept.
    pub fn start_reporting(&mut self, run: JobRun, epoch: u64, previous: Option<&mut Self>) {
        let known = previous.and_then(|previous| {
            previous.reporter.take_if(|reporter| reporter.incarnation() == run.incarnation)
        });
        let mut reporter =
            known.unwrap_or_else(|| Reporter::new(&self.environment, run, &self.items));
        reporter.begin_epoch(epoch);
        (self.reporter, self.is_reporting) = (Some(reporter), true);
    }

    /// Reports no more: another epoch does, or the job was fenced. It goes on without a draw set.
    pub fn stop_reporting(&mut self) {
        self.is_reporting = false;
    }

    /// Whether the manager has answered in this epoch, so that batches follow its draw set.
    pub fn is_managed(&self) -> bool {
        self.answered().is_some()
    }

    /// The reporter, if it has an answer to go by.
    fn answered(&self) -> Option<&Reporter> {
        self.reporter.as_ref().filter(|reporter| self.is_reporting && reporter.is_answered)
    }

    /// Draws a batch: resident items first, from the manager's draw set if it has answered. `None`
    /// when all batches are drawn. `presence` has a bit for each blob, lowest first; empty if
    /// unknown.
    pub fn next_batch(&mut self, presence: &[u8]) -> Option<NextBatch> {
        let is_managed = self.is_managed();
        let Self { items, sampler, reporter, .. } = self;
        let resident = items.residents(presence);
        let mut is_probe = false;
        let mut reporter = reporter.as_mut().filter(|_| is_managed);
        if let Some(reporter) = &mut reporter {
            // An invalid draw set is counted, and the former one stays.
            let _ = sampler.set_draw_set(&reporter.batch_draw_set(sampler));
            is_probe = reporter.take_probe_batch(sampler.plan().batch.into());
        }
        let batch = sampler.draw(|item| !is_probe && resident(item))?;
        let mode = match reporter {
            _ if is_probe => Some(Mode::Miss),
            Some(reporter) => {
                let half_chunks = batch.items().iter().map(|item| items.half_chunk_of(*item));
                reporter.mode(half_chunks, batch.items().iter().all(|item| resident(*item)))
            }
            None => None,
        };
        let mut missing: Vec<ItemOrdinal> = batch.of(ItemSource::Claimed).collect();
        if sampler.plan().pack_window == 0 {
            missing.extend(batch.of(ItemSource::Uncached));
        }
        let all = items.indices(batch.items().to_vec());
        let next = NextBatch { items: all, missing: items.indices(missing), is_probe };
        self.probes += u64::from(is_probe);
        self.drawn.push_back(Drawn { batch, mode });
        Some(next)
    }

    /// The training loop got the oldest batch that was drawn. Returns whether there was one.
    pub fn on_yielded(&mut self) -> bool {
        let Some(Drawn { batch, mode }) = self.drawn.pop_front() else { return false };
        let released = self.sampler.on_yielded(batch.number()).expect("the oldest drawn batch");
        if let Some(reporter) = self.reporter.as_mut().filter(|_| self.is_reporting) {
            reporter.on_released(released);
        }
        if self.untimed.len() < UNTIMED_MAX {
            self.untimed.push(Untimed { mode, bytes: self.items.bytes_of(batch.items()) });
        }
        if let Some(recording) = &mut self.recording {
            recording.push(&batch).expect("the next batch since the beginning");
        }
        true
    }

    /// The batches that were yielded since the last call took this time together: mostly one. Of a
    /// mixture each item is a batch by itself, and several are computed on at once.
    pub fn on_computed(&mut self, BatchTime { took, stalled }: BatchTime) {
        let Some(reporter) = self.reporter.as_mut().filter(|_| self.is_reporting) else { return };
        let batches = mem::take(&mut self.untimed);
        let Ok(count @ 1..) = u32::try_from(batches.len()) else { return };
        let time = BatchTime { took: took / count, stalled: stalled / count };
        for Untimed { mode, bytes } in batches {
            reporter.on_computed(mode, bytes, time);
        }
    }

    /// Whether the next batch is better drawn later, because slower jobs are behind: see
    /// [`forebay_core::train::job::JobReporter::should_wait`]. A loader that has nothing else
    /// to do waits, reports, and calls [`Job::on_waited`]. A replay never waits: its items are
    /// fixed.
    pub fn should_wait(&self) -> bool {
        !self.sampler.is_replay()
            && self.answered().is_some_and(|reporter| reporter.should_wait(&self.sampler))
    }

    /// The loader has waited for this time.
    pub fn on_waited(&mut self, took: Duration) {
        if let Some(reporter) = &mut self.reporter {
            reporter.on_waited(took, &self.sampler);
        }
    }

    /// Whether the next batch would need items outside the draw set, though another half-chunk may
    /// join it soon.
    pub fn is_short(&self) -> bool {
        self.answered().is_some_and(|reporter| reporter.is_short(&self.sampler))
    }

    /// Whether a batch is drawn and not yielded.
    pub fn has_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// Items that come within the next `count` and were not returned before, for the agent to
    /// prefetch. Batches only reorder what is near, so each item is returned once.
    pub fn upcoming(&mut self, count: usize) -> Vec<ItemOrdinal> {
        self.items.indices(self.sampler.upcoming(count))
    }

    /// At most `count` items of loading half-chunks that this rank has yet to draw and that are not
    /// resident, for the agent to prefetch.
    pub fn loading_items(&self, presence: &[u8], count: usize) -> Vec<ItemOrdinal> {
        let Some(reporter) = self.reporter.as_ref().filter(|reporter| !reporter.is_refused) else {
            return Vec::new();
        };
        let resident = self.items.residents(presence);
        let loading = reporter.loading().iter();
        let missing = loading.flat_map(|half_chunk| self.sampler.missing(*half_chunk, &resident));
        self.items.indices(missing.take(count).collect())
    }

    /// State for a checkpoint. Only what was yielded counts.
    pub fn state(&self) -> SamplerState {
        self.sampler.state()
    }

    /// What was yielded, to be replayed; `None` if the epoch was resumed, so that its beginning is
    /// unknown.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_ref()
    }

    /// The plan of the epoch.
    pub fn plan(&self) -> EpochPlan {
        self.sampler.plan()
    }

    /// Batches of the epoch.
    pub fn batches(&self) -> u64 {
        self.sampler.batches()
    }

    /// Batches that were yielded.
    pub fn batches_yielded(&self) -> u64 {
        self.sampler.batches_yielded()
    }

    /// What was yielded since this object was made, by source.
    pub fn counts(&self) -> DrawCounts {
        self.sampler.counts()
    }

    /// How random that was.
    pub fn shuffle_quality(&self) -> ShuffleQuality {
        self.sampler.shuffle_quality()
    }

    /// Batches that were drawn as part of a probe.
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Reports that were answered, in all epochs of the run.
    pub fn reports(&self) -> u64 {
        self.reporter.as_ref().map_or(0, |reporter| reporter.answers)
    }

    /// How much of the dataset is cached.
    pub fn shares(&self) -> CachedShares {
        let Some(reporter) = &self.reporter else {
            return CachedShares { pinned: 0.0, drawable: 0.0 };
        };
        let DrawSet { pinned, .. } = &reporter.draw_set;
        let all: Vec<_> = pinned.iter().copied().chain(reporter.draw_set.rotating()).collect();
        CachedShares { pinned: self.items.share(pinned), drawable: self.items.share(&all) }
    }
}
