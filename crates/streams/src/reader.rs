//! Readers: the blocks of a stream in order, from a store of this process, a borrowed one, or from
//! elsewhere, such as a node.

use arrow_buffer::MutableBuffer;
use bytes::Bytes;
use forebay_core::streams::{BlockNumber, StreamName};
use futures::Stream;

use crate::{
    block::{Block, BlockBytes},
    block_on::block_on,
    borrowed_reader::BorrowedReader,
    error::StreamError,
    owned_reader::OwnedReader,
};

/// What a reader does when its consumer holds all slots and asks for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenHeld {
    /// Reads into memory outside the slots, which is counted.
    #[default]
    OutsideSlots,
    /// Waits until the consumer drops a block, in another thread.
    Wait,
}

/// Options of [`crate::Store::open`].
#[derive(Debug, Clone, Copy)]
pub struct OpenOptions {
    /// Slots of the reader, each for one block: how far it reads ahead.
    pub depth: u32,
    /// Reads in flight, at most `depth`. With 1, each completion starts the next read.
    pub in_flight: u32,
    /// What to do when the consumer holds all slots.
    pub when_held: WhenHeld,
    /// Whether to read a stream that is being written, up to its seal.
    pub follow: bool,
    /// Whether to destroy the stream while it is read, region by region.
    pub consume: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let when_held = WhenHeld::default();
        Self { depth: 4, in_flight: 4, when_held, follow: false, consume: false }
    }
}

/// Where blocks come from that this process does not read itself, such as a node. Calls block.
pub trait BlockSource: Send + Sync {
    /// The stream's name.
    fn name(&self) -> &StreamName;

    /// Length of the next block; `None` after the last one, if the stream is complete.
    fn next_length(&mut self) -> Result<Option<usize>, StreamError>;

    /// Reads that block, which has as many bytes.
    fn read(&mut self, into: &mut [u8]) -> Result<(), StreamError>;
}

/// A reader of a stream. Several readers have positions and slots of their own.
pub struct Reader {
    source: Source,
    has_failed: bool,
}

enum Source {
    Owned(OwnedReader),
    Borrowed(Box<BorrowedReader>),
    Remote(RemoteReader),
}

struct RemoteReader {
    source: Box<dyn BlockSource>,
    position: BlockNumber,
}

impl RemoteReader {
    fn next(&mut self) -> Result<Option<Block>, StreamError> {
        let Some(length) = self.source.next_length()? else { return Ok(None) };
        // Begins at a multiple of 64 bytes, for Arrow.
        let mut buffer = MutableBuffer::from_len_zeroed(length);
        self.source.read(buffer.as_slice_mut())?;
        let bytes = BlockBytes::Own(Bytes::from_owner(arrow_buffer::Buffer::from(buffer)));
        let number = self.position;
        self.position = BlockNumber(number.0 + 1);
        Ok(Some(Block { bytes, number, outside: true }))
    }
}

impl From<OwnedReader> for Reader {
    fn from(reader: OwnedReader) -> Self {
        Self { source: Source::Owned(reader), has_failed: false }
    }
}

impl From<BorrowedReader> for Reader {
    fn from(reader: BorrowedReader) -> Self {
        Self { source: Source::Borrowed(Box::new(reader)), has_failed: false }
    }
}

impl From<Box<dyn BlockSource>> for Reader {
    fn from(source: Box<dyn BlockSource>) -> Self {
        let remote = RemoteReader { source, position: BlockNumber(0) };
        Self { source: Source::Remote(remote), has_failed: false }
    }
}

impl Reader {
    /// The stream's name.
    pub fn name(&self) -> &StreamName {
        match &self.source {
            Source::Owned(reader) => reader.name(),
            Source::Borrowed(reader) => reader.name(),
            Source::Remote(reader) => reader.source.name(),
        }
    }

    /// Number of the block that the next call returns.
    pub fn position(&self) -> BlockNumber {
        match &self.source {
            Source::Owned(reader) => reader.position(),
            Source::Borrowed(reader) => reader.position(),
            Source::Remote(reader) => reader.position,
        }
    }

    /// The next block; `None` after the last one.
    #[expect(clippy::should_implement_trait, reason = "the iterator is `Reader::blocks`")]
    pub fn next(&mut self) -> Option<Result<Block, StreamError>> {
        block_on(self.next_async())
    }

    /// [`Reader::next`] as a future. Dropping it loses no block. The reader of a borrowed store, or
    /// of a node, has no thread that could wake the future, so it waits when it is polled.
    pub async fn next_async(&mut self) -> Option<Result<Block, StreamError>> {
        let block = match &mut self.source {
            Source::Owned(reader) => reader.next_async().await,
            Source::Borrowed(reader) => reader.next_async().await,
            Source::Remote(reader) => reader.next().transpose(),
        };
        self.has_failed |= matches!(block, Some(Err(_)));
        block
    }

    /// The blocks as an iterator.
    pub fn blocks(mut self) -> impl Iterator<Item = Result<Block, StreamError>> + Send {
        // An error ends the iterator; otherwise it would be repeated forever.
        std::iter::from_fn(move || if self.has_failed { None } else { self.next() })
    }

    /// The blocks as a stream of futures.
    pub fn into_stream(self) -> impl Stream<Item = Result<Block, StreamError>> + Send {
        futures::stream::unfold(self, |mut reader| async move {
            if reader.has_failed {
                return None;
            }
            reader.next_async().await.map(|block| (block, reader))
        })
    }
}
