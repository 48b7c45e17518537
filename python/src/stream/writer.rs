//! Python binding of writers.
//!
//! A writer serves one thread at a time; others wait for it without the GIL.

use arrow_array::{RecordBatch, RecordBatchReader as _};
use arrow_schema::SchemaRef;
use forebay_streams::{Writer, arrow::BatchWriter, block_on_unless};
use numpy::PyReadonlyArray1;
use pyo3::{prelude::*, types::PyCapsule};

use super::{
    InfoTuple, batch_error,
    capsules::{import_batch, import_stream},
    guarded::Guarded,
    info_tuple, signals, stream_error,
};
use crate::errors::{StreamError, shown};

/// The writer of a stream.
#[pyclass(frozen, module = "forebay._native")]
pub struct StreamWriter {
    state: Guarded<State>,
    block_length: u64,
}

enum State {
    /// Nothing, or blocks of bytes, have been appended.
    Bytes(Writer),
    Batches(Box<BatchWriter>),
    /// Sealed, abandoned, or failed.
    Closed,
}

impl StreamWriter {
    pub fn new(writer: Writer) -> Self {
        let block_length = writer.block_length();
        Self { state: Guarded::new(State::Bytes(writer)), block_length }
    }
}

#[pymethods]
impl StreamWriter {
    /// Longest block.
    #[getter]
    fn block_length(&self) -> u64 {
        self.block_length
    }

    /// Appends one block: the bytes of all parts.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn append_block(&self, py: Python<'_>, parts: Vec<PyReadonlyArray1<'_, u8>>) -> PyResult<()> {
        let parts = parts.iter().map(|part| part.as_slice()).collect::<Result<Vec<_>, _>>()?;
        self.state.with(py, |state| match state {
            State::Bytes(writer) => append_parts(writer, &parts),
            State::Batches(_) => Err(StreamError::new_err(
                "the stream has tables: write arrays and bytes to another stream",
            )),
            State::Closed => Err(closed()),
        })
    }

    /// Appends the batches of a stream of another library.
    fn append_stream(&self, py: Python<'_>, capsule: &Bound<'_, PyCapsule>) -> PyResult<()> {
        let mut stream = import_stream(capsule)?;
        self.state.with(py, |state| {
            let writer = state.batches(stream.schema())?;
            writer.check_schema(&stream.schema()).map_err(|error| batch_error(&error))?;
            stream.try_for_each(|batch| {
                let batch = batch.map_err(|error| StreamError::new_err(shown(&error)))?;
                append_batch(writer, &batch)
            })
        })
    }

    /// Appends a batch of another library.
    fn append_array(
        &self,
        py: Python<'_>,
        schema: &Bound<'_, PyCapsule>,
        array: &Bound<'_, PyCapsule>,
    ) -> PyResult<()> {
        let batch = import_batch(schema, array)?;
        self.state.with(py, |state| append_batch(state.batches(batch.schema())?, &batch))
    }

    /// Seals the stream.
    fn seal(&self, py: Python<'_>) -> PyResult<InfoTuple> {
        self.state.with(py, |state| {
            let info = match std::mem::replace(state, State::Closed) {
                State::Bytes(writer) => block_on_unless(writer.seal_async(), signals)?
                    .map_err(|error| stream_error(&error))?,
                State::Batches(writer) => block_on_unless(writer.seal_async(), signals)?
                    .map_err(|error| batch_error(&error))?,
                State::Closed => return Err(closed()),
            };
            Ok(info_tuple(&info))
        })
    }

    /// Drops what was appended, unless the stream is sealed.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        self.state.with(py, |state| {
            *state = State::Closed;
            Ok(())
        })
    }
}

impl State {
    /// The writer of batches; the first batch decides that it is one.
    fn batches(&mut self, schema: SchemaRef) -> PyResult<&mut BatchWriter> {
        if let Self::Bytes(_) = self {
            let Self::Bytes(writer) = std::mem::replace(self, Self::Closed) else {
                unreachable!("just seen")
            };
            let writer = BatchWriter::new(writer, schema).map_err(|error| batch_error(&error))?;
            *self = Self::Batches(Box::new(writer));
        }
        match self {
            Self::Batches(writer) => Ok(writer),
            Self::Bytes(_) | Self::Closed => Err(closed()),
        }
    }
}

fn append_batch(writer: &mut BatchWriter, batch: &RecordBatch) -> PyResult<()> {
    block_on_unless(writer.append_async(batch), signals)?.map_err(|error| batch_error(&error))
}

fn append_parts(writer: &mut Writer, parts: &[&[u8]]) -> PyResult<()> {
    let length = parts.iter().map(|part| part.len()).sum();
    let append = async {
        let mut reservation = writer.reserve_async(length).await?;
        let mut rest = reservation.bytes_mut();
        for part in parts {
            let (into, after) = rest.split_at_mut(part.len());
            into.copy_from_slice(part);
            rest = after;
        }
        writer.commit_async(reservation, length).await
    };
    block_on_unless(append, signals)?.map_err(|error| stream_error(&error))
}

fn closed() -> PyErr {
    StreamError::new_err("the stream is sealed or abandoned: create another one")
}
