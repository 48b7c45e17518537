//! Reading record batches.

use std::fmt;

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, SchemaRef};

use super::{BatchError, BlockDecoder};
use crate::{block::Block, block_on::block_on, error::StreamError, reader::Reader};

/// Reads the record batches of a stream. Their columns are views of the reader's slots.
pub struct BatchReader {
    reader: Reader,
    decoder: BlockDecoder,
    /// Batches of the current block that have yet to be handed out, the next one last.
    ready: Vec<RecordBatch>,
    has_failed: bool,
}

impl BatchReader {
    /// Reads the schema of a stream that a [`super::BatchWriter`] wrote.
    pub fn new(reader: Reader) -> Result<Self, BatchError> {
        block_on(Self::new_async(reader))
    }

    /// [`BatchReader::new`] as a future.
    pub async fn new_async(mut reader: Reader) -> Result<Self, BatchError> {
        let first = reader.next_async().await;
        Self::begin(reader, first)
    }

    /// Reads the schema in the first block, which `reader` has just returned.
    pub fn begin(
        reader: Reader,
        first: Option<Result<Block, StreamError>>,
    ) -> Result<Self, BatchError> {
        let stream = || reader.name().to_string();
        let first = first.ok_or_else(|| BatchError::Empty(stream()))??;
        let begun = BlockDecoder::begin(&Buffer::from(first.into_bytes()));
        let not_arrow = || BatchError::NotArrow { stream: stream(), block: 0 };
        let (decoder, mut ready) = begun.ok_or_else(not_arrow)??;
        ready.reverse();
        Ok(Self { reader, decoder, ready, has_failed: false })
    }

    /// The schema of all batches.
    pub fn schema(&self) -> SchemaRef {
        self.decoder.schema()
    }

    /// The next batch; `None` after the last one.
    pub async fn next_async(&mut self) -> Option<Result<RecordBatch, BatchError>> {
        loop {
            if let Some(batch) = self.ready.pop() {
                return Some(Ok(batch));
            }
            if self.has_failed {
                return None;
            }
            let decoded = match self.reader.next_async().await? {
                Ok(block) => {
                    let (stream, number) = (self.reader.name().to_string(), block.number().0);
                    match self.decoder.decode(&Buffer::from(block.into_bytes())) {
                        Some(batches) => batches.map_err(BatchError::from),
                        None => Err(BatchError::NotArrow { stream, block: number }),
                    }
                }
                Err(error) => Err(error.into()),
            };
            match decoded {
                Ok(mut batches) => {
                    batches.reverse();
                    self.ready = batches;
                }
                Err(error) => {
                    self.has_failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Iterator for BatchReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = block_on(self.next_async())?;
        Some(batch.map_err(|error| ArrowError::ExternalError(Box::new(error))))
    }
}

impl RecordBatchReader for BatchReader {
    fn schema(&self) -> SchemaRef {
        self.schema()
    }
}

impl fmt::Debug for BatchReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = self.reader.name().as_str();
        f.debug_struct("BatchReader").field("stream", &stream).finish_non_exhaustive()
    }
}
