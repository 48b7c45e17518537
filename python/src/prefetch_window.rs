//! Python binding of the prefetch window.

use forebay_core::agent::prefetch_window;
use pyo3::prelude::*;

/// The number of items that an epoch announces in advance.
#[pyclass(frozen, module = "forebay._native")]
pub struct PrefetchWindow(prefetch_window::PrefetchWindow);

#[pymethods]
impl PrefetchWindow {
    /// The window for a node of `node_bytes`, if any, and blobs of `blob_bytes` on average.
    #[new]
    fn new(node_bytes: Option<u64>, blob_bytes: u64) -> Self {
        Self(prefetch_window::PrefetchWindow::new(node_bytes, blob_bytes))
    }

    /// Items that may be announced and not yet read.
    #[getter]
    fn items(&self) -> usize {
        self.0.items()
    }

    /// Items to announce now, if `unread` announced ones are not yet read.
    fn more(&self, unread: usize) -> usize {
        self.0.more(unread)
    }
}
