//! How far ahead an agent is told, as Python sees it.

use forebay_core::look_ahead;
use pyo3::prelude::*;

/// How far ahead one epoch looks.
#[pyclass(frozen, module = "forebay._native")]
pub struct LookAhead(look_ahead::LookAhead);

#[pymethods]
impl LookAhead {
    /// For blobs that are about so long, and a node of that capacity, if there is one.
    #[new]
    fn new(node_bytes: Option<u64>, blob_bytes: u64) -> Self {
        Self(look_ahead::LookAhead::new(node_bytes, blob_bytes))
    }

    /// Items that may have been told of and not been read yet.
    #[getter]
    fn items(&self) -> usize {
        self.0.items()
    }

    /// How many more to tell of now, if so many of those told of are unread.
    fn more(&self, unread: usize) -> usize {
        self.0.more(unread)
    }
}
