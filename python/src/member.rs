//! A job's part in the rotation of its dataset, as Python sees it: what is reported, and what is answered.

use std::{sync::Arc, time::Duration};

use forebay_client::{self as client, Ask, Reported};
use forebay_core::manager::{Answer, Report};
use forebay_wire::Refusal;
use pyo3::prelude::*;

use crate::{errors::Fenced, layout::Layout, reader::Reader, sampler::Sampler};

/// How a job takes part.
#[pyclass(module = "forebay._native")]
pub struct Member(pub client::Member);

/// The way to the nodes, while somebody holds the GIL.
struct Way<'a, 'py> {
    reader: &'a Reader,
    py: Python<'py>,
}

impl Ask for Way<'_, '_> {
    type Error = PyErr;

    fn presence(&mut self) -> PyResult<Arc<[u8]>> {
        self.reader.recent_presence(self.py)
    }

    fn report(&mut self, report: &Report) -> PyResult<Option<Result<Answer, Refusal>>> {
        self.reader.report(self.py, report)
    }
}

#[pymethods]
impl Member {
    /// A job in one of its lives, a random number.
    #[new]
    fn new(layout: &Layout, life: u64, gpus: u32, epoch_batches: u64) -> Self {
        Self(client::Member::new(&layout.0, life, gpus, epoch_batches))
    }

    /// The job begins an epoch; every one has a number of its own.
    fn begin(&mut self, epoch: u64) {
        self.0.begin(epoch);
    }

    /// Reports, if it is time to. Whoever was replaced is told so.
    fn report(&mut self, py: Python<'_>, sampler: &Sampler, reader: &Reader) -> PyResult<()> {
        let layout = &sampler.layout.get().0;
        match self.0.report(&mut Way { reader, py }, layout, &sampler.epoch)? {
            Reported::Fenced(text) => Err(Fenced::new_err(text)),
            Reported::Nothing | Reported::Answered => Ok(()),
        }
    }

    /// Items of pieces that are on their way which this rank has yet to draw and which are not resident.
    fn needed(
        &self,
        py: Python<'_>,
        sampler: &Sampler,
        reader: &Reader,
        count: usize,
    ) -> PyResult<Vec<u64>> {
        let (layout, presence) = (&sampler.layout.get().0, reader.recent_presence(py)?);
        let needed = self.0.needed(layout, &sampler.epoch, &presence, count);
        Ok(needed.into_iter().map(|item| item.0).collect())
    }

    /// Whether the next batch would have to be completed by what is not open, though another piece may be
    /// open soon.
    fn is_short(&self, sampler: &Sampler) -> bool {
        self.0.is_short(&sampler.epoch)
    }

    /// Whether the next batch is better drawn later, since others are behind.
    fn holds_back(&self, sampler: &Sampler) -> bool {
        self.0.holds_back(&sampler.epoch)
    }

    /// The job has waited for others for so many seconds.
    fn waited(&mut self, sampler: &Sampler, took: f64) {
        let took = Duration::try_from_secs_f64(took).unwrap_or_default();
        self.0.waited(took, &sampler.epoch);
    }

    /// Whether the node has said in this epoch what to draw from.
    #[getter]
    fn is_answered(&self) -> bool {
        self.0.is_answered()
    }

    /// How many reports were answered.
    #[getter]
    fn reports(&self) -> u64 {
        self.0.reports()
    }

    /// Pieces that are kept for good, and pieces that are there for a while.
    #[getter]
    fn open(&self) -> (Vec<u32>, Vec<u32>) {
        let [held, rotating] = self.0.open().clone();
        (held, rotating)
    }
}
