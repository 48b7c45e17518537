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
    /// Nothing, or blocks of bytes, have been appended. `unfinished` appends have their first
    /// block but not their last one: another thread appends, or Ctrl-C ended one between two calls.
    Bytes {
        writer: Writer,
        unfinished: u32,
    },
    Batches(Box<BatchWriter>),
    /// An append failed after its first block. The stream is dropped: it has a part of the data,
    /// and appending the data again would duplicate that part.
    Torn,
    /// Sealed, or abandoned.
    Closed,
}

impl StreamWriter {
    pub fn new(writer: Writer) -> Self {
        let block_length = writer.block_length();
        Self { state: Guarded::new(State::Bytes { writer, unfinished: 0 }), block_length }
    }
}

#[pymethods]
impl StreamWriter {
    /// Longest block.
    #[getter]
    fn block_length(&self) -> u64 {
        self.block_length
    }

    /// Appends one block, the bytes of all parts: the first, the last, both, or neither of one
    /// append.
    #[expect(clippy::needless_pass_by_value, reason = "arguments come from Python by value")]
    fn append_block(
        &self,
        py: Python<'_>,
        parts: Vec<PyReadonlyArray1<'_, u8>>,
        is_first: bool,
        is_last: bool,
    ) -> PyResult<()> {
        let parts = parts.iter().map(|part| part.as_slice()).collect::<Result<Vec<_>, _>>()?;
        self.state.with(py, |state| {
            let (writer, unfinished) = match state {
                State::Bytes { writer, unfinished } => (writer, unfinished),
                State::Batches(_) => {
                    return Err(StreamError::new_err(
                        "the stream has tables: write arrays and bytes to another stream",
                    ));
                }
                State::Torn => return Err(torn()),
                State::Closed => return Err(closed()),
            };
            let appended = append_parts(writer, &parts);
            match (&appended, is_first, is_last) {
                (Ok(()), true, false) => *unfinished += 1,
                (Ok(()), false, true) => *unfinished -= 1,
                (Err(_), false, _) => *state = State::Torn,
                _ => {}
            }
            appended
        })
    }

    /// Appends the batches of a stream of another library.
    fn append_stream(&self, py: Python<'_>, capsule: &Bound<'_, PyCapsule>) -> PyResult<()> {
        let mut stream = import_stream(capsule)?;
        self.state.with(py, |state| {
            state.append_batches(stream.schema(), |writer| {
                writer.check_schema(&stream.schema()).map_err(|error| batch_error(&error))?;
                stream.try_for_each(|batch| {
                    let batch = batch.map_err(|error| StreamError::new_err(shown(&error)))?;
                    append_batch(writer, &batch)
                })
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
        self.state.with(py, |state| {
            state.append_batches(batch.schema(), |writer| append_batch(writer, &batch))
        })
    }

    /// Seals the stream.
    fn seal(&self, py: Python<'_>) -> PyResult<InfoTuple> {
        self.state.with(py, |state| {
            let info = match std::mem::replace(state, State::Closed) {
                State::Bytes { writer, unfinished: 0 } => {
                    block_on_unless(writer.seal_async(), signals)?
                        .map_err(|error| stream_error(&error))?
                }
                State::Batches(writer) => block_on_unless(writer.seal_async(), signals)?
                    .map_err(|error| batch_error(&error))?,
                State::Bytes { .. } | State::Torn => {
                    *state = State::Torn;
                    return Err(torn());
                }
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
    /// Runs `append` on the writer of batches. The stream is torn if it fails after a block.
    fn append_batches(
        &mut self,
        schema: SchemaRef,
        append: impl FnOnce(&mut BatchWriter) -> PyResult<()>,
    ) -> PyResult<()> {
        let writer = self.batches(schema)?;
        let before = writer.blocks();
        let appended = append(writer);
        if appended.is_err() && writer.blocks() > before {
            *self = Self::Torn;
        }
        appended
    }

    /// The writer of batches; the first batch decides that it is one.
    fn batches(&mut self, schema: SchemaRef) -> PyResult<&mut BatchWriter> {
        if let Self::Bytes { unfinished, .. } = self {
            let after = if *unfinished > 0 { Self::Torn } else { Self::Closed };
            let Self::Bytes { writer, unfinished: 0 } = std::mem::replace(self, after) else {
                return Err(torn());
            };
            let writer = BatchWriter::new(writer, schema).map_err(|error| batch_error(&error))?;
            *self = Self::Batches(Box::new(writer));
        }
        match self {
            Self::Batches(writer) => Ok(writer),
            Self::Torn => Err(torn()),
            Self::Bytes { .. } | Self::Closed => Err(closed()),
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

fn torn() -> PyErr {
    StreamError::new_err(
        "an append failed half-way, so the stream was dropped: create it and write it again",
    )
}

fn closed() -> PyErr {
    StreamError::new_err("the stream is sealed or abandoned: create another one")
}
