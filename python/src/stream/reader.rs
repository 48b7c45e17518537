//! Python binding of readers.
//!
//! A reader serves one thread at a time; others wait for it without the GIL.

use arrow_array::RecordBatchReader;
use forebay_streams::{
    Block, Reader,
    arrow::{BatchError, BatchReader},
    block_on_unless,
};
use pyo3::{
    prelude::*,
    types::{PyCapsule, PyDict},
};

use super::{
    batch::{Batch, array_interface},
    batch_error,
    capsules::{export_schema, export_stream},
    guarded::Guarded,
    signals, stream_error,
};
use crate::errors::StreamError;

/// The reader of a stream.
#[pyclass(frozen, module = "forebay._native")]
pub struct StreamReader {
    state: Guarded<State>,
}

enum State {
    /// Nothing has been read, or blocks have.
    Blocks(Reader),
    Batches(BatchReader),
    /// At the end, closed, or handed over to a consumer.
    Closed,
}

impl StreamReader {
    pub fn new(reader: Reader) -> Self {
        Self { state: Guarded::new(State::Blocks(reader)) }
    }
}

#[pymethods]
impl StreamReader {
    /// The next block; `None` after the last one.
    fn next_block(&self, py: Python<'_>) -> PyResult<Option<StreamBlock>> {
        self.state.with(py, |state| {
            let reader = match state {
                State::Blocks(reader) => reader,
                State::Batches(_) => return Err(as_batches()),
                State::Closed => return Ok(None),
            };
            let block = block_on_unless(reader.next_async(), signals)?;
            if block.is_none() {
                *state = State::Closed;
            }
            let block = block.transpose().map_err(|error| stream_error(&error))?;
            Ok(block.map(StreamBlock))
        })
    }

    /// The next batch; `None` after the last one, and if the stream has no blocks.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        self.state.with(py, |state| {
            let reader = match state.batches() {
                Ok(Some(reader)) => reader,
                Ok(None) | Err(Failure::Stream(BatchError::Empty(_))) => return Ok(None),
                Err(failure) => return Err(failure.into()),
            };
            let batch = block_on_unless(reader.next_async(), signals)?;
            if batch.is_none() {
                *state = State::Closed;
            }
            Ok(batch.transpose().map_err(|error| batch_error(&error))?.map(Batch))
        })
    }

    /// The schema of a stream of batches.
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = self.state.with(py, |state| {
            let reader = state.batches()?.ok_or_else(closed)?;
            Ok(reader.schema())
        })?;
        export_schema(py, &schema)
    }

    /// Hands the reader over to a consumer, with the batches that have not been read.
    fn arrow_stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let reader = self.state.with(py, |state| {
            state.batches()?.ok_or_else(closed)?;
            match std::mem::replace(state, State::Closed) {
                State::Batches(reader) => Ok(reader),
                State::Blocks(_) | State::Closed => Err(closed()),
            }
        })?;
        let reader: Box<dyn RecordBatchReader + Send> = Box::new(reader);
        export_stream(py, reader)
    }

    /// Ends reading. Blocks that are held stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.state.with(py, |state| {
            *state = State::Closed;
            Ok(())
        })
    }
}

/// Why a reader of batches did not begin.
enum Failure {
    Stream(BatchError),
    Python(PyErr),
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Stream(error) => batch_error(&error),
            Failure::Python(error) => error,
        }
    }
}

impl State {
    /// The reader of batches, which begins with the first call; `None` if it is closed.
    fn batches(&mut self) -> Result<Option<&mut BatchReader>, Failure> {
        if let Self::Blocks(reader) = self {
            if reader.position().0 > 0 {
                return Err(Failure::Python(as_blocks()));
            }
            let Self::Blocks(reader) = std::mem::replace(self, Self::Closed) else {
                unreachable!("just seen")
            };
            let begun = block_on_unless(BatchReader::new_async(reader), signals);
            let begun = begun.map_err(Failure::Python)?.map_err(Failure::Stream)?;
            *self = Self::Batches(begun);
        }
        match self {
            Self::Batches(reader) => Ok(Some(reader)),
            Self::Blocks(_) | Self::Closed => Ok(None),
        }
    }
}

fn as_batches() -> PyErr {
    StreamError::new_err("the reader reads batches: open the stream again to read blocks")
}

fn as_blocks() -> PyErr {
    StreamError::new_err("the reader reads blocks: open the stream again to read batches")
}

fn closed() -> PyErr {
    StreamError::new_err(
        "the reader is at its end, closed, or handed over to a consumer: open the stream again",
    )
}

/// A block, for `numpy.asarray`.
#[pyclass(frozen, module = "forebay._native")]
pub struct StreamBlock(Block);

#[pymethods]
impl StreamBlock {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Number of the block in its stream.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number().0
    }

    /// Address, shape and type of the bytes, as read-only.
    #[getter(__array_interface__)]
    fn array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        array_interface(py, self.0.as_ptr(), self.0.len(), "|u1")
    }
}
