//! Bytes of an item where they lie, for NumPy and whatever else understands it.
//!
//! A view is handed out through `__array_interface__`: an array that is made of it holds on to it, and so to its
//! place in the segment, until the array and all that was made of that are gone. It works with every Python that
//! is supported, where the buffer protocol does not.

use forebay_client as client;
use pyo3::{prelude::*, types::PyDict};

/// Some bytes that nobody writes to.
#[pyclass(frozen, module = "forebay._native")]
pub struct View(pub client::View);

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was copied on the way here.
    #[getter]
    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// Where the bytes lie; they may be read, not written.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let told = PyDict::new(py);
        told.set_item("version", 3)?;
        told.set_item("typestr", "|u1")?;
        told.set_item("shape", (self.0.len(),))?;
        told.set_item("data", (self.0.as_ptr().addr(), true))?;
        Ok(told)
    }
}
