//! Record batches for Python: consumers take them by the `PyCapsule` interface, and columns of
//! numbers become NumPy arrays without a copy.

use arrow_array::{Array as _, RecordBatch};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, TimeUnit};
use pyo3::{
    exceptions::{PyKeyError, PyTypeError},
    prelude::*,
    types::{PyCapsule, PyDict},
};

use super::capsules::{export_batch, export_schema};

/// A record batch. Its columns are views of the reader's memory.
#[pyclass(frozen, module = "forebay.stream")]
pub struct Batch(pub RecordBatch);

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.0.num_rows()
    }

    fn __repr__(&self) -> String {
        let names: Vec<&str> =
            self.0.schema_ref().fields().iter().map(|field| field.name().as_str()).collect();
        format!("Batch({} rows; {})", self.0.num_rows(), names.join(", "))
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.0.schema_ref().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// A column of numbers without nulls as a read-only array, without a copy.
    fn __getitem__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let column = Bound::new(py, self.values(name)?)?;
        py.import("numpy")?.getattr("asarray")?.call1((column,))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        export_schema(py, self.0.schema_ref())
    }

    #[pyo3(signature = (requested_schema=None))]
    #[expect(unused_variables, reason = "a producer may ignore the schema that is requested")]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        export_batch(py, &self.0)
    }
}

impl Batch {
    /// The values of a column.
    fn values(&self, name: &str) -> PyResult<StreamColumn> {
        let column = self.0.column_by_name(name).ok_or_else(|| {
            let names = self.column_names().join(", ");
            PyKeyError::new_err(format!("no column {name:?}: the batch has {names}"))
        })?;
        let refused = |reason: &str| {
            PyTypeError::new_err(format!(
                "column {name:?} ({}) is no NumPy array {reason}: read the batch with pyarrow or \
                 Polars",
                column.data_type()
            ))
        };
        let dtype = numpy_dtype(column.data_type()).ok_or_else(|| refused("by its type"))?;
        if column.null_count() > 0 {
            return Err(refused("because it has nulls"));
        }
        let data = column.to_data();
        let width = data.data_type().primitive_width().expect("types with a dtype have a width");
        let values = &data.buffers()[0];
        let values = values.slice_with_length(data.offset() * width, data.len() * width);
        Ok(StreamColumn { values, dtype, rows: data.len() })
    }
}

/// The values of one column.
#[pyclass(frozen, module = "forebay._native")]
pub struct StreamColumn {
    values: Buffer,
    dtype: &'static str,
    rows: usize,
}

#[pymethods]
impl StreamColumn {
    /// Address, shape and type of the values, as read-only.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, self.values.as_ptr(), self.rows, self.dtype)
    }
}

/// NumPy's array interface of read-only memory.
pub fn array_interface<'py>(
    py: Python<'py>,
    address: *const u8,
    length: usize,
    dtype: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("typestr", dtype)?;
    interface.set_item("shape", (length,))?;
    interface.set_item("data", (address.addr(), true))?;
    Ok(interface)
}

/// NumPy's name of a type whose values have the same bytes in Arrow.
fn numpy_dtype(data_type: &DataType) -> Option<&'static str> {
    let unit = |unit: &TimeUnit, [s, ms, us, ns]: [&'static str; 4]| match unit {
        TimeUnit::Second => s,
        TimeUnit::Millisecond => ms,
        TimeUnit::Microsecond => us,
        TimeUnit::Nanosecond => ns,
    };
    Some(match data_type {
        DataType::Int8 => "<i1",
        DataType::Int16 => "<i2",
        DataType::Int32 => "<i4",
        DataType::Int64 => "<i8",
        DataType::UInt8 => "<u1",
        DataType::UInt16 => "<u2",
        DataType::UInt32 => "<u4",
        DataType::UInt64 => "<u8",
        DataType::Float16 => "<f2",
        DataType::Float32 => "<f4",
        DataType::Float64 => "<f8",
        DataType::Timestamp(of, None) => unit(of, ["<M8[s]", "<M8[ms]", "<M8[us]", "<M8[ns]"]),
        DataType::Duration(of) => unit(of, ["<m8[s]", "<m8[ms]", "<m8[us]", "<m8[ns]"]),
        _ => return None,
    })
}
