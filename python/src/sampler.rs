//! One epoch's order, as Python sees it.

use forebay_core::{
    ItemOrdinal,
    sampler::{self, Layout, Plan},
};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{digest::Digest, reader::Reader};

/// Draws batches from a seeded permutation, resident items first.
#[pyclass(module = "forebay._native")]
pub struct Sampler {
    epoch: sampler::Sampler,
}

#[pymethods]
impl Sampler {
    #[new]
    fn new(digest: &Digest, seed: u64, batch: u32) -> PyResult<Self> {
        let refused = |error: &dyn std::error::Error| PyValueError::new_err(error.to_string());
        let summary = digest.digest.summary();
        // Nothing rotates yet, so chunks make no difference.
        let layout = Layout::in_one_chunk(summary.dataset, summary.items);
        let layout = layout.map_err(|error| refused(&error))?;
        let epoch = sampler::Sampler::new(&layout, Plan::new(seed, 0, batch));
        Ok(Self { epoch: epoch.map_err(|error| refused(&error))? })
    }

    /// The next batch; empty at the end of the epoch.
    #[pyo3(signature = (reader = None))]
    fn draw(&mut self, py: Python<'_>, reader: Option<PyRef<'_, Reader>>) -> PyResult<Vec<u64>> {
        let batch = match &reader {
            Some(reader) => {
                let resident = reader.residents(py)?;
                self.epoch.draw(resident)
            }
            None => self.epoch.draw(|_| false),
        };
        let Some(batch) = batch else { return Ok(Vec::new()) };
        if let Some(reader) = reader {
            reader.drew(batch.items().len());
        }
        // Nothing resumes an epoch yet, so nobody asks what was drawn and not yielded.
        self.epoch.yielded(batch.number()).expect("just drawn");
        Ok(ordinals(batch.items()))
    }

    /// Items that come within the next `count` and have not been told of before. Batches only reorder
    /// what lies near, so each item is told of once.
    fn upcoming(&mut self, count: usize) -> Vec<u64> {
        ordinals(&self.epoch.upcoming(count))
    }
}

fn ordinals(items: &[ItemOrdinal]) -> Vec<u64> {
    items.iter().map(|item| item.0).collect()
}
