//! The item map of a dataset, for Python.

use std::sync::Arc;

use forebay_client::{self as client, ItemMapError};
use forebay_core::HalfChunk;
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{digest::Digest, errors::DigestError as Damaged};

/// The blob and the half-chunk of every item.
#[pyclass(frozen, module = "forebay._native")]
pub struct ItemMap(pub Arc<client::ItemMap>);

#[pymethods]
impl ItemMap {
    #[new]
    fn new(py: Python<'_>, digest: &Digest) -> PyResult<Self> {
        let items = py.detach(|| client::ItemMap::new(&digest.digest));
        items.map(|items| Self(items.into())).map_err(|error| match error {
            ItemMapError::Digest(error) => {
                Damaged::new_err(format!("this is {error}; build the digest again"))
            }
            ItemMapError::HalfChunks(error) => PyValueError::new_err(error.to_string()),
        })
    }

    /// The same dataset with the length of each item, for batches of like length.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn with_lengths(&self, lengths: Vec<f64>) -> PyResult<Self> {
        let items = self.0.with_lengths(&lengths);
        let items = items.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(items.into()))
    }

    /// Share of the dataset's bytes in these half-chunks.
    fn share(&self, half_chunks: Vec<u32>) -> f64 {
        let half_chunks: Vec<HalfChunk> = half_chunks.into_iter().map(HalfChunk).collect();
        self.0.share(&half_chunks)
    }
}
