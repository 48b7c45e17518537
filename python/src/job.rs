//! One epoch of one rank of a job, for Python: what comes next, what was yielded, and the reports
//! to the node.
//!
//! A loader draws ahead of what its user gets. Only what was yielded counts: for checkpoints, for
//! recordings and for the node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use forebay_client::{self as client, JobRun, ManagerLink, NextBatch, ReportOutcome};
use forebay_core::{
    ByteSize, ItemOrdinal,
    agent::agent_cache::AGENT_CACHE_SIZE_MAX,
    train::{
        benefit::BatchTime,
        manager::{Report, ReportAnswer},
        sampler::{Ending, EpochPlan, OVER_ASK, Recording, SamplerError, SamplerState},
    },
};
use forebay_wire::Refusal;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{
    errors::{Fenced, StateError, shown},
    item_map::ItemMap,
    reader::Reader,
};

/// One rank's part in one epoch of a job.
#[pyclass(module = "forebay._native")]
pub struct Job(client::Job);

/// The items of a batch, those of them that were not resident, and whether it is part of a probe.
type NextItems = (Vec<u64>, Vec<u64>, bool);

/// The connection to the nodes, while this thread holds the GIL.
struct Link<'a, 'py> {
    reader: &'a Reader,
    py: Python<'py>,
}

impl ManagerLink for Link<'_, '_> {
    type Error = PyErr;

    fn presence(&mut self) -> PyResult<Arc<[u8]>> {
        self.reader.recent_presence(self.py)
    }

    fn report(&mut self, report: &Report) -> PyResult<Option<Result<ReportAnswer, Refusal>>> {
        self.reader.report(self.py, report)
    }
}

/// The memory of the job's agent, which reads the same variable. An invalid size is the agent's to
/// refuse.
fn agent_memory() -> ByteSize {
    let given = std::env::var("FOREBAY_AGENT_MEMORY").ok();
    given.and_then(|size| size.parse().ok()).unwrap_or(AGENT_CACHE_SIZE_MAX)
}

#[pymethods]
impl Job {
    /// The beginning of an epoch. A batch looks at `over_ask` candidates per item; batches of like
    /// length need an item map with lengths.
    #[new]
    #[pyo3(signature = (
        items, seed, epoch, batch, rank = 0, world = 1, drop_last = false, over_ask = OVER_ASK,
        like_length = false,
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        items: &ItemMap,
        seed: u64,
        epoch: u64,
        batch: u32,
        rank: u32,
        world: u32,
        drop_last: bool,
        over_ask: u32,
        like_length: bool,
    ) -> PyResult<Self> {
        let plan = EpochPlan {
            ending: ending(drop_last),
            over_ask,
            like_length,
            pack_window: items.0.pack_window(agent_memory()),
            ..EpochPlan::new(seed, epoch, batch).on(rank, world)
        };
        let job = client::Job::new(&items.0, plan);
        job.map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// What follows a state.
    #[staticmethod]
    fn resume(items: &ItemMap, state: &[u8]) -> PyResult<Self> {
        made(client::Job::resume(&items.0, &decode(state)?))
    }

    /// The rest of an epoch, divided among another number of ranks.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn reshard(
        items: &ItemMap,
        states: Vec<Vec<u8>>,
        batch: u32,
        rank: u32,
        world: u32,
        drop_last: bool,
    ) -> PyResult<Self> {
        let states = states.iter().map(|state| decode(state)).collect::<PyResult<Vec<_>>>()?;
        let former = states.first().map_or(EpochPlan::new(0, 0, batch), SamplerState::plan);
        let plan = EpochPlan {
            ending: ending(drop_last),
            like_length: former.like_length,
            pack_window: items.0.pack_window(agent_memory()),
            ..EpochPlan::new(former.seed, former.epoch, batch).on(rank, world)
        };
        made(client::Job::reshard(&items.0, &states, plan))
    }

    /// A recorded epoch, from its beginning or after a state of such a replay.
    #[staticmethod]
    #[pyo3(signature = (items, recording, state = None))]
    fn replay(items: &ItemMap, recording: &[u8], state: Option<&[u8]>) -> PyResult<Self> {
        let recording = Recording::decode(recording).map_err(|error| state_error(&error))?;
        let state = state.map(decode).transpose()?;
        made(client::Job::replay(&items.0, &recording, state.as_ref()))
    }

    /// Items of a recording, with padding.
    #[staticmethod]
    fn recorded_items(recording: &[u8]) -> PyResult<u64> {
        Ok(Recording::decode(recording).map_err(|error| state_error(&error))?.items())
    }

    /// Reports from now on, as epoch `number` of this run on `gpus` GPUs, instead of `previous`.
    #[pyo3(signature = (incarnation, number, epoch_batches, gpus, previous = None))]
    fn start_reporting(
        &mut self,
        incarnation: u64,
        number: u64,
        epoch_batches: u64,
        gpus: u32,
        mut previous: Option<PyRefMut<'_, Self>>,
    ) {
        let run = JobRun { incarnation, gpus, epoch_batches };
        let previous = previous.as_mut().map(|previous| &mut previous.0);
        self.0.start_reporting(run, number, previous);
    }

    /// Reports no more: another epoch does, or the job was fenced.
    fn stop_reporting(&mut self) {
        self.0.stop_reporting();
    }

    /// Whether the manager has answered in this epoch, so that batches follow its draw set.
    #[getter]
    fn is_managed(&self) -> bool {
        self.0.is_managed()
    }

    /// The next batch; `None` at the end of the epoch.
    #[pyo3(signature = (reader = None))]
    fn next_batch(
        &mut self,
        py: Python<'_>,
        reader: Option<PyRef<'_, Reader>>,
    ) -> PyResult<Option<NextItems>> {
        let presence = match &reader {
            Some(reader) => reader.recent_presence(py)?,
            None => [].into(),
        };
        let Some(next) = self.0.next_batch(&presence) else { return Ok(None) };
        if let Some(reader) = reader {
            reader.drew(next.items.len());
        }
        let NextBatch { items, missing, is_probe } = next;
        Ok(Some((ordinals(&items), ordinals(&missing), is_probe)))
    }

    /// The user got the oldest batch that was drawn.
    fn on_yielded(&mut self) -> PyResult<()> {
        if self.0.on_yielded() {
            Ok(())
        } else {
            Err(PyValueError::new_err("nothing was drawn that has not been yielded"))
        }
    }

    /// The batches that were yielded since the last call took `took` seconds, of which the job
    /// waited `stalled` for them.
    fn on_computed(&mut self, took: f64, stalled: f64) {
        self.0.on_computed(BatchTime { took: seconds(took), stalled: seconds(stalled) });
    }

    /// Whether the next batch is better drawn later, because slower jobs are behind.
    fn should_wait(&self) -> bool {
        self.0.should_wait()
    }

    /// The loader has waited for slower jobs for `took` seconds.
    fn on_waited(&mut self, took: f64) {
        self.0.on_waited(seconds(took));
    }

    /// Whether the next batch would need items outside the draw set, though another half-chunk may
    /// join it soon.
    fn is_short(&self) -> bool {
        self.0.is_short()
    }

    /// Sends a report, if one is due. Returns whether it was answered; raises `Fenced` if another
    /// process reports under the job's name.
    fn report(&mut self, py: Python<'_>, reader: &Reader) -> PyResult<bool> {
        match self.0.report(&mut Link { reader, py })? {
            ReportOutcome::Fenced(text) => Err(Fenced::new_err(shown(&text))),
            ReportOutcome::Nothing => Ok(false),
            ReportOutcome::Answered => Ok(true),
        }
    }

    /// At most `count` items of loading half-chunks that this rank has yet to draw and that are not
    /// resident.
    fn loading_items(&self, py: Python<'_>, reader: &Reader, count: usize) -> PyResult<Vec<u64>> {
        Ok(ordinals(&self.0.loading_items(&reader.recent_presence(py)?, count)))
    }

    /// Items that come within the next `count` and were not returned before.
    fn upcoming(&mut self, count: usize) -> Vec<u64> {
        ordinals(&self.0.upcoming(count))
    }

    /// State for a checkpoint. Only what was yielded counts.
    fn state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.state().encode())
    }

    /// What was yielded, to be replayed; `None` if the epoch was resumed, so that its beginning is
    /// unknown.
    fn recording<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.recording().map(|recording| PyBytes::new(py, &recording.encode()))
    }

    /// Batches of the epoch, and those that were yielded.
    #[getter]
    fn batches(&self) -> (u64, u64) {
        (self.0.batches(), self.0.batches_yielded())
    }

    /// Seed, epoch, rank, world and batch.
    #[getter]
    fn plan(&self) -> (u64, u64, u32, u32, u32) {
        let EpochPlan { seed, epoch, rank, world, batch, .. } = self.0.plan();
        (seed, epoch, rank, world, batch)
    }

    /// Reports that were answered, in all epochs of the run.
    #[getter]
    fn reports(&self) -> u64 {
        self.0.reports()
    }

    /// What was yielded since this object was made, by source; and batches of probes.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.0.counts();
        BTreeMap::from([
            ("batches", counts.batches),
            ("items", counts.items),
            ("resident", counts.resident),
            ("claimed", counts.claimed),
            ("uncached", counts.uncached),
            ("padding", counts.padding),
            ("probes", self.0.probes()),
        ])
    }

    /// How random that was.
    fn shuffle_quality(&self) -> BTreeMap<&'static str, f64> {
        let quality = self.0.shuffle_quality();
        BTreeMap::from([
            ("neighbours", quality.neighbours),
            ("displacement", quality.displacement),
            ("pinned_lead", quality.pinned_lead),
            ("distance", quality.distance()),
        ])
    }

    /// Shares of the dataset's bytes that are pinned, and that are in the draw set.
    fn shares(&self) -> (f64, f64) {
        let shares = self.0.shares();
        (shares.pinned, shares.drawable)
    }
}

fn made(job: Result<client::Job, SamplerError>) -> PyResult<Job> {
    job.map(Job).map_err(|error| state_error(&error))
}

fn ending(drop_last: bool) -> Ending {
    if drop_last { Ending::DropLast } else { Ending::Pad }
}

fn decode(state: &[u8]) -> PyResult<SamplerState> {
    SamplerState::decode(state).map_err(|error| state_error(&error))
}

/// A state or a recording that cannot be used.
fn state_error(error: &dyn std::error::Error) -> PyErr {
    StateError::new_err(error.to_string())
}

fn seconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time).unwrap_or_default()
}

fn ordinals(items: &[ItemOrdinal]) -> Vec<u64> {
    items.iter().map(|item| item.0).collect()
}
