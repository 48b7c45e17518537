//! What samplers know of a dataset, as Python sees it.

use forebay_client::{self as client, LayoutError};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{digest::Digest, errors::DigestError as Damaged};

/// The pieces of a dataset, and what is in them.
#[pyclass(frozen, module = "forebay._native")]
pub struct Layout(pub client::Layout);

#[pymethods]
impl Layout {
    #[new]
    fn new(py: Python<'_>, digest: &Digest) -> PyResult<Self> {
        let layout = py.detach(|| client::Layout::new(&digest.digest));
        layout.map(Self).map_err(|error| match error {
            LayoutError::Digest(error) => {
                Damaged::new_err(format!("this is {error}; build the digest again"))
            }
            LayoutError::Layout(error) => PyValueError::new_err(error.to_string()),
        })
    }

    /// The same, with the length of each item: what batches of like length are made by.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn with_lengths(&self, lengths: Vec<f64>) -> PyResult<Self> {
        let layout = self.0.with_lengths(&lengths);
        layout.map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// How large a part of the dataset's bytes these pieces are.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn share(&self, pieces: Vec<usize>) -> f64 {
        self.0.share(&pieces)
    }
}
