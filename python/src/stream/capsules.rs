//! Capsules of Arrow's `PyCapsule` interface: schemas, arrays and streams as C structures.
//!
//! An exported structure is moved out by its consumer, or released with its capsule. An imported
//! one is moved out here, which leaves a released one in the capsule.

#![expect(unsafe_code, reason = "structures of other libraries are reached by pointers")]

use std::ffi::CStr;

use arrow_array::Array as _;
use arrow_array::{
    RecordBatch, RecordBatchOptions, RecordBatchReader, StructArray,
    ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi},
    ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader},
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyCapsule};

use crate::errors::{StreamError, shown};

const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// A reader of batches as a capsule.
pub fn export_stream(
    py: Python<'_>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), STREAM)
}

/// A schema as a capsule.
pub fn export_schema<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|error| arrow_error(&error))?;
    PyCapsule::new_with_value(py, schema, SCHEMA)
}

/// A batch as capsules of its schema and of a struct array.
pub fn export_batch<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let array = StructArray::from(batch.clone());
    let (array, _) = to_ffi(&array.to_data()).map_err(|error| arrow_error(&error))?;
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    // The schema of the batch has metadata, which the type of a struct array has not.
    Ok((export_schema(py, batch.schema_ref())?, array))
}

/// The batches of a stream that another library exports.
pub fn import_stream(capsule: &Bound<'_, PyCapsule>) -> PyResult<RecordBatchStreamReader> {
    let pointer = capsule.pointer_checked(Some(STREAM))?;
    // SAFETY: the name of the capsule says that it points to a stream, and the capsule lives while
    // it is borrowed. The stream is moved out.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr().cast()) };
    // Without a struct of columns there is no schema, and the error of Arrow says no more.
    RecordBatchStreamReader::try_new(stream).map_err(|_| not_a_table(&"a column without a name"))
}

/// The batch that another library exports as a struct array.
pub fn import_batch(
    schema: &Bound<'_, PyCapsule>,
    array: &Bound<'_, PyCapsule>,
) -> PyResult<RecordBatch> {
    let schema = schema.pointer_checked(Some(SCHEMA))?;
    let array = array.pointer_checked(Some(ARRAY))?;
    // SAFETY: the names of the capsules say what they point to, and the capsules live while they
    // are borrowed. Both structures are moved out.
    let (schema, array) = unsafe {
        (
            FFI_ArrowSchema::from_raw(schema.as_ptr().cast()),
            FFI_ArrowArray::from_raw(array.as_ptr().cast()),
        )
    };
    let field = Field::try_from(&schema).map_err(|error| arrow_error(&error))?;
    let DataType::Struct(fields) = field.data_type() else {
        let text = format!("an array of {}", field.data_type());
        return Err(not_a_table(&text));
    };
    // SAFETY: the producer guarantees that the array has the type of the schema beside it.
    let data = unsafe { from_ffi(array, &schema) }.map_err(|error| arrow_error(&error))?;
    if data.null_count() > 0 {
        return Err(not_a_table(&"a struct array with nulls"));
    }
    let rows = RecordBatchOptions::new().with_row_count(Some(data.len()));
    let schema = Schema::new(fields.clone()).with_metadata(field.metadata().clone());
    let columns = StructArray::from(data).into_parts().1;
    RecordBatch::try_new_with_options(schema.into(), columns, &rows)
        .map_err(|error| arrow_error(&error))
}

fn arrow_error(error: &ArrowError) -> PyErr {
    StreamError::new_err(shown(error))
}

fn not_a_table(found: &impl ToString) -> PyErr {
    let found = shown(found);
    PyTypeError::new_err(format!(
        "this Arrow data is not a table ({found}): make a table of it, such as \
         pyarrow.table({{\"x\": data}}) or series.to_frame(), or append its values as a NumPy array"
    ))
}
