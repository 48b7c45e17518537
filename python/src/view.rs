//! Python binding of views: an item's bytes in shared memory, for NumPy.
//!
//! A view implements `__array_interface__`. An array made of it keeps the view, and with it the
//! slot in the shm region, until the array and everything derived from it are gone. The buffer
//! protocol would need a newer Python than the oldest supported one.

use forebay_client as client;
use pyo3::{prelude::*, types::PyDict};

/// Read-only bytes of an item.
#[pyclass(frozen, module = "forebay._native")]
pub struct View(pub client::View);

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Whether the bytes are in shared memory, without a copy.
    #[getter]
    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    /// Address, shape and type of the bytes, as read-only.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.0.len(),))?;
        interface.set_item("data", (self.0.as_ptr().addr(), true))?;
        Ok(interface)
    }
}
