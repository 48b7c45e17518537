//! One epoch's order, as Python sees it.

use forebay_core::sampler;
use pyo3::prelude::*;

use crate::reader::Reader;

/// Draws batches from a seeded permutation, resident items first.
#[pyclass(module = "forebay._native")]
pub struct Sampler {
    epoch: sampler::Sampler,
    items: usize,
    /// How much of the permutation [`Sampler::upcoming`] has told of.
    told: usize,
}

#[pymethods]
impl Sampler {
    #[new]
    fn new(items: u64, seed: u64) -> Self {
        let epoch = sampler::Sampler::new(items, seed);
        Self { items: epoch.left(), epoch, told: 0 }
    }

    /// The next batch; empty at the end of the epoch.
    #[pyo3(signature = (batch, reader = None))]
    fn draw(
        &mut self,
        py: Python<'_>,
        batch: usize,
        reader: Option<PyRef<'_, Reader>>,
    ) -> PyResult<Vec<u64>> {
        let drawn = match reader {
            Some(reader) => {
                let resident = reader.residents(py)?;
                self.epoch.draw(batch, resident)
            }
            None => self.epoch.draw(batch, |_| false),
        };
        Ok(drawn.iter().map(|item| item.0).collect())
    }

    /// Items that come within the next `count` and have not been told of before. Batches only reorder
    /// what lies near, so each item is told of once.
    fn upcoming(&mut self, count: usize) -> Vec<u64> {
        let drawn = self.items - self.epoch.left();
        let known = self.told.saturating_sub(drawn);
        let news: Vec<u64> =
            self.epoch.window(count).take(count).skip(known).map(|item| item.0).collect();
        self.told = self.told.max(drawn) + news.len();
        news
    }
}
