//! Writers: blocks are appended, or filled in place, and the stream is sealed. The stream is in a
//! store of this process, or elsewhere, such as on a node.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::streams::{Lifetime, StreamName, catalogue::StreamInfo};
use forebay_flash::{buffers::BufferPool, reservation::Reservation};

use crate::{block_on::block_on, error::StreamError, owned_writer::OwnedWriter};

/// What a writer does when the store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullPolicy {
    /// The append fails, and can be tried again.
    #[default]
    Error,
    /// The append waits until a consumer frees a region.
    Wait,
}

/// Options of [`crate::Store::create`].
#[derive(Debug, Clone, Copy)]
pub struct CreateOptions {
    /// How long the stream lives.
    pub lifetime: Lifetime,
    /// What the writer does when the store is full.
    pub full: FullPolicy,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { lifetime: Lifetime::Process, full: FullPolicy::Error }
    }
}

/// Where blocks go that are not written by this process, such as to a node. Calls block. A sink
/// that is dropped drops its stream, unless that is sealed.
pub trait BlockSink: Send + Sync {
    /// The stream's name.
    fn name(&self) -> &StreamName;

    /// Longest block.
    fn block_length(&self) -> u64;

    /// Appends a block. After an error, the stream can only be dropped.
    fn append(&mut self, block: Bytes) -> Result<(), StreamError>;

    /// Seals the stream.
    fn seal(self: Box<Self>) -> Result<StreamInfo, StreamError>;
}

/// The writer of a stream. A stream whose writer is dropped before the seal is gone.
pub struct Writer(Destination);

enum Destination {
    Owned(OwnedWriter),
    Remote(Box<dyn BlockSink>),
}

impl From<OwnedWriter> for Writer {
    fn from(writer: OwnedWriter) -> Self {
        Self(Destination::Owned(writer))
    }
}

impl From<Box<dyn BlockSink>> for Writer {
    fn from(sink: Box<dyn BlockSink>) -> Self {
        Self(Destination::Remote(sink))
    }
}

impl Writer {
    /// The stream's name.
    pub fn name(&self) -> &StreamName {
        match &self.0 {
            Destination::Owned(writer) => writer.name(),
            Destination::Remote(sink) => sink.name(),
        }
    }

    /// Longest block of the store.
    pub fn block_length(&self) -> u64 {
        match &self.0 {
            Destination::Owned(writer) => writer.block_length(),
            Destination::Remote(sink) => sink.block_length(),
        }
    }

    /// Appends a block. The bytes are copied once.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        block_on(self.append_async(bytes))
    }

    /// [`Writer::append`] as a future.
    pub async fn append_async(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        match &mut self.0 {
            Destination::Owned(writer) => writer.append_async(bytes).await,
            Destination::Remote(sink) => {
                check_length(sink.as_ref(), bytes.len())?;
                sink.append(Bytes::copy_from_slice(bytes))
            }
        }
    }

    /// Reserves memory for a block of up to `length` bytes, to be filled in place. Waits for memory
    /// that other writers hold. A reservation that is dropped leaves nothing behind.
    pub fn reserve(&self, length: usize) -> Result<Reservation, StreamError> {
        block_on(self.reserve_async(length))
    }

    /// [`Writer::reserve`] as a future.
    pub async fn reserve_async(&self, length: usize) -> Result<Reservation, StreamError> {
        match &self.0 {
            Destination::Owned(writer) => writer.reserve_async(length).await,
            Destination::Remote(sink) => reserve_own(sink.as_ref(), length),
        }
    }

    /// Reserves memory without waiting. `None` if there is none now.
    pub fn try_reserve(&self, length: usize) -> Result<Option<Reservation>, StreamError> {
        match &self.0 {
            Destination::Owned(writer) => writer.try_reserve(length),
            Destination::Remote(sink) => reserve_own(sink.as_ref(), length).map(Some),
        }
    }

    /// Appends the first `length` bytes of a reservation as a block, without a copy.
    pub fn commit(&mut self, reservation: Reservation, length: usize) -> Result<(), StreamError> {
        block_on(self.commit_async(reservation, length))
    }

    /// [`Writer::commit`] as a future.
    pub async fn commit_async(
        &mut self,
        reservation: Reservation,
        length: usize,
    ) -> Result<(), StreamError> {
        match &mut self.0 {
            Destination::Owned(writer) => writer.commit_async(reservation, length).await,
            Destination::Remote(sink) => sink.append(Bytes::from_owner(reservation.finish(length))),
        }
    }

    /// Seals the stream: it is complete, and can be opened. A stream that survives the process is
    /// durable when this returns.
    pub fn seal(self) -> Result<StreamInfo, StreamError> {
        block_on(self.seal_async())
    }

    /// [`Writer::seal`] as a future.
    pub async fn seal_async(self) -> Result<StreamInfo, StreamError> {
        match self.0 {
            Destination::Owned(writer) => writer.seal_async().await,
            Destination::Remote(sink) => sink.seal(),
        }
    }
}

fn check_length(sink: &dyn BlockSink, length: usize) -> Result<(), StreamError> {
    let (length, max) = (length as u64, sink.block_length());
    if length > max { Err(StreamError::TooLong { length, max }) } else { Ok(()) }
}

/// Memory of its own for one block: a store's memory is where the store is.
fn reserve_own(sink: &dyn BlockSink, length: usize) -> Result<Reservation, StreamError> {
    check_length(sink, length)?;
    let pool = BufferPool::new(Reservation::memory(length)).ok();
    let reservation = pool.and_then(|pool: Arc<BufferPool>| Reservation::new(&pool, length));
    let no_memory = || StreamError::Refused(format!("no memory for a block of {length} bytes"));
    reservation.ok_or_else(no_memory)
}
