//! One rank's part in one epoch, as Python sees it.
//!
//! A loader draws ahead of what its user is given; only what was yielded counts, for checkpoints, for
//! recordings and for the node.

use std::{collections::BTreeMap, time::Duration};

use forebay_client::{Drawn, Epoch};
use forebay_core::{
    ItemOrdinal,
    sampler::{self, Ending, OVER_ASK, Plan, Recording, State},
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{errors::StateError, layout::Layout, member::Member, reader::Reader};

/// Draws batches, resident items first.
#[pyclass(module = "forebay._native")]
pub struct Sampler {
    pub layout: Py<Layout>,
    pub epoch: Epoch,
    /// What was yielded, if it is known from the beginning.
    recording: Option<Recording>,
}

/// The items of a batch, those of them that were not resident, and whether it is to miss.
type DrawnItems = (Vec<u64>, Vec<u64>, bool);

#[pymethods]
impl Sampler {
    /// The beginning of an epoch. A batch looks at `over_ask` candidates for each place; batches of like
    /// length need a layout that knows the lengths.
    #[new]
    #[pyo3(signature = (
        layout, seed, epoch, batch, rank = 0, world = 1, drop_last = false, over_ask = OVER_ASK,
        like_length = false,
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        layout: Py<Layout>,
        seed: u64,
        epoch: u64,
        batch: u32,
        rank: u32,
        world: u32,
        drop_last: bool,
        over_ask: u32,
        like_length: bool,
    ) -> PyResult<Self> {
        let plan =
            Plan { over_ask, like_length, ..plan(seed, epoch, batch, rank, world, drop_last) };
        let epoch = sampler::Sampler::new(layout.get().0.pieces(), plan);
        let epoch = epoch.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self::from_the_beginning(layout, epoch))
    }

    /// What comes after a state.
    #[staticmethod]
    fn resume(layout: Py<Layout>, state: &[u8]) -> PyResult<Self> {
        let epoch = sampler::Sampler::resume(layout.get().0.pieces(), &decode(state)?);
        Ok(Self::from_the_middle(layout, epoch.map_err(|error| refused(&error))?))
    }

    /// The rest of an epoch, dealt to another number of ranks.
    #[staticmethod]
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn resize(
        layout: Py<Layout>,
        states: Vec<Vec<u8>>,
        batch: u32,
        rank: u32,
        world: u32,
        drop_last: bool,
    ) -> PyResult<Self> {
        let states = states.iter().map(|state| decode(state)).collect::<PyResult<Vec<_>>>()?;
        let (seed, epoch, like_length) = states.first().map_or((0, 0, false), |state| {
            let Plan { seed, epoch, like_length, .. } = state.plan();
            (seed, epoch, like_length)
        });
        let plan = Plan { like_length, ..plan(seed, epoch, batch, rank, world, drop_last) };
        let epoch = sampler::Sampler::resize(layout.get().0.pieces(), &states, plan);
        Ok(Self::from_the_middle(layout, epoch.map_err(|error| refused(&error))?))
    }

    /// What was recorded, once more; after a state of such a replay, if there is one.
    #[staticmethod]
    #[pyo3(signature = (layout, recording, state = None))]
    fn replay(layout: Py<Layout>, recording: &[u8], state: Option<&[u8]>) -> PyResult<Self> {
        let recording = Recording::decode(recording).map_err(|error| refused(&error))?;
        let state = state.map(decode).transpose()?;
        let epoch = sampler::Sampler::replay(layout.get().0.pieces(), &recording, state.as_ref());
        let epoch = epoch.map_err(|error| refused(&error))?;
        if epoch.batches_yielded() > 0 {
            return Ok(Self::from_the_middle(layout, epoch));
        }
        Ok(Self::from_the_beginning(layout, epoch))
    }

    /// How many items a recording has, padding and all.
    #[staticmethod]
    fn recorded_items(recording: &[u8]) -> PyResult<u64> {
        Ok(Recording::decode(recording).map_err(|error| refused(&error))?.items())
    }

    /// The next batch; nothing at the end of the epoch.
    #[pyo3(signature = (reader = None, member = None))]
    fn draw(
        &mut self,
        py: Python<'_>,
        reader: Option<PyRef<'_, Reader>>,
        mut member: Option<PyRefMut<'_, Member>>,
    ) -> PyResult<Option<DrawnItems>> {
        let presence = match &reader {
            Some(reader) => reader.recent_presence(py)?,
            None => [].into(),
        };
        let member = member.as_mut().map(|member| &mut member.0);
        let layout = &self.layout.get().0;
        let Some(drawn) = self.epoch.draw(layout, &presence, member) else { return Ok(None) };
        if let Some(reader) = reader {
            reader.drew(drawn.items.len());
        }
        let Drawn { items, missing, is_forced } = drawn;
        Ok(Some((ordinals(&items), ordinals(&missing), is_forced)))
    }

    /// The job was given the oldest batch that was drawn.
    #[pyo3(signature = (member = None))]
    fn yielded(&mut self, mut member: Option<PyRefMut<'_, Member>>) -> PyResult<()> {
        let member = member.as_mut().map(|member| &mut member.0);
        let Some(batch) = self.epoch.yielded(&self.layout.get().0, member) else {
            return Err(PyValueError::new_err("nothing was drawn that has not been yielded"));
        };
        if let Some(recording) = &mut self.recording {
            recording.push(&batch).expect("the next of those from the beginning");
        }
        Ok(())
    }

    /// What was yielded since this was last said took so many seconds, of which the job waited `stalled` for it.
    fn computed(&mut self, mut member: PyRefMut<'_, Member>, took: f64, stalled: f64) {
        let seconds = |time: f64| Duration::try_from_secs_f64(time).unwrap_or_default();
        self.epoch.computed(&mut member.0, seconds(took), seconds(stalled));
    }

    /// Items that come within the next `count` and have not been told of before.
    fn upcoming(&mut self, count: usize) -> Vec<u64> {
        ordinals(&self.epoch.upcoming(count))
    }

    /// What a checkpoint keeps: exactly what was yielded counts.
    fn state<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.epoch.sampler().state().encode())
    }

    /// What was yielded, to be replayed; nothing if the epoch was resumed, so that its beginning is not known.
    fn recording<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.recording.as_ref().map(|recording| PyBytes::new(py, &recording.encode()))
    }

    /// How many batches there are, and how many of them were yielded.
    #[getter]
    fn batches(&self) -> (u64, u64) {
        (self.epoch.sampler().batches(), self.epoch.sampler().batches_yielded())
    }

    /// Seed, epoch, rank, world and batch.
    #[getter]
    fn plan(&self) -> (u64, u64, u32, u32, u32) {
        let Plan { seed, epoch, rank, world, batch, .. } = self.epoch.sampler().plan();
        (seed, epoch, rank, world, batch)
    }

    /// What was yielded since this sampler was made.
    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.epoch.sampler().counts();
        BTreeMap::from([
            ("batches", counts.batches),
            ("items", counts.items),
            ("resident", counts.resident),
            ("claimed", counts.claimed),
            ("outside", counts.outside),
            ("padding", counts.padding),
        ])
    }

    /// How well mixed that was.
    fn mixing(&self) -> BTreeMap<&'static str, f64> {
        let mixed = self.epoch.sampler().mixed();
        BTreeMap::from([
            ("neighbours", mixed.neighbours),
            ("displacement", mixed.displacement),
            ("held_lead", mixed.held_lead),
            ("distance", mixed.distance()),
        ])
    }
}

impl Sampler {
    fn from_the_beginning(layout: Py<Layout>, epoch: sampler::Sampler) -> Self {
        let recording = Some(Recording::new(&epoch));
        Self { recording, ..Self::from_the_middle(layout, epoch) }
    }

    fn from_the_middle(layout: Py<Layout>, epoch: sampler::Sampler) -> Self {
        Self { layout, epoch: Epoch::new(epoch), recording: None }
    }
}

fn plan(seed: u64, epoch: u64, batch: u32, rank: u32, world: u32, drop_last: bool) -> Plan {
    let ending = if drop_last { Ending::DropLast } else { Ending::Pad };
    Plan { ending, ..Plan::new(seed, epoch, batch).on(rank, world) }
}

fn decode(state: &[u8]) -> PyResult<State> {
    State::decode(state).map_err(|error| refused(&error))
}

/// A state or a recording that cannot be used.
fn refused(error: &dyn std::error::Error) -> PyErr {
    StateError::new_err(error.to_string())
}

fn ordinals(items: &[ItemOrdinal]) -> Vec<u64> {
    items.iter().map(|item| item.0).collect()
}
