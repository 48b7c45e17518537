//! Python binding of readers.
//!
//! A reader serves one thread at a time; others wait for it without the GIL.

use arrow_array::RecordBatchReader;
use forebay_streams::{
    Block, Reader, StreamError as NativeError,
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
    interrupted, signals, stream_error,
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
    /// Every later call has this error again.
    Failed(BatchError),
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
                State::Failed(error) => return Err(batch_error(error)),
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
            state.begin_batches()?;
            let reader = match state {
                State::Batches(reader) => reader,
                State::Failed(BatchError::Empty(_)) | State::Closed => return Ok(None),
                State::Failed(error) => return Err(batch_error(error)),
                State::Blocks(_) => return Err(as_blocks()),
            };
            match block_on_unless(reader.next_async(), signals)? {
                Some(Ok(batch)) => Ok(Some(Batch(batch))),
                // The next call goes on.
                Some(Err(BatchError::Stream(NativeError::Interrupted))) => Err(interrupted()),
                Some(Err(error)) => {
                    let raised = batch_error(&error);
                    *state = State::Failed(error);
                    Err(raised)
                }
                None => {
                    *state = State::Closed;
                    Ok(None)
                }
            }
        })
    }

    /// The schema of a stream of batches.
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = self.state.with(py, |state| {
            state.begin_batches()?;
            Ok(state.batches()?.schema())
        })?;
        export_schema(py, &schema)
    }

    /// Hands the reader over to a consumer, with the batches that have not been read.
    fn arrow_stream<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let reader = self.state.with(py, |state| {
            state.begin_batches()?;
            state.batches()?;
            match std::mem::replace(state, State::Closed) {
                State::Batches(reader) => Ok(reader),
                State::Blocks(_) | State::Failed(_) | State::Closed => Err(closed()),
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

impl State {
    /// Makes a reader of which nothing has been read a reader of batches. An interrupt leaves it
    /// unchanged.
    fn begin_batches(&mut self) -> PyResult<()> {
        let Self::Blocks(reader) = self else { return Ok(()) };
        if reader.position().0 > 0 {
            return Err(as_blocks());
        }
        let first = block_on_unless(reader.next_async(), signals)?;
        if matches!(first, Some(Err(NativeError::Interrupted))) {
            return Err(interrupted());
        }
        if let Self::Blocks(reader) = std::mem::replace(self, Self::Closed) {
            *self = BatchReader::begin(reader, first).map_or_else(Self::Failed, Self::Batches);
        }
        Ok(())
    }

    fn batches(&mut self) -> PyResult<&mut BatchReader> {
        match self {
            Self::Batches(reader) => Ok(reader),
            Self::Failed(error) => Err(batch_error(error)),
            Self::Blocks(_) => Err(as_blocks()),
            Self::Closed => Err(closed()),
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
