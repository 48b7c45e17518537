//! Arrow: record batches as blocks, in the layout of Arrow IPC, uncompressed and 64-byte aligned.
//!
//! A block holds whole IPC messages: the schema before the first batch, the dictionaries that a
//! batch needs, and the batch. Writing copies the batch once, into memory that the device writes
//! from. Reading slices the block: no byte is copied between the device and the consumer.
//!
//! A batch that does not fit into a block is split by rows.

use std::{fmt, ops::Range, sync::Arc};

use arrow_array::{Array, RecordBatch, RecordBatchReader};
use arrow_buffer::Buffer;
use arrow_ipc::{
    Block as IpcBlock, MessageHeader, MetadataVersion,
    convert::try_fb_to_schema,
    reader::FileDecoder,
    root_as_message,
    writer::{IpcWriteOptions, StreamEncoder},
};
use arrow_schema::{ArrowError, SchemaRef};
use forebay_core::streams::catalogue::StreamInfo;

use crate::{block_on::block_on, error::StreamError, reader::Reader, writer::Writer};

/// Alignment of messages and buffers. A block begins at a multiple of it.
const ALIGNMENT: usize = 64;
/// The first bytes of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Estimated bytes of a message beside its buffers, per column and buffer.
const OVERHEAD: usize = 256;

/// Why a call on a stream of batches failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum BatchError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
    #[error(
        "stream {stream:?} has the columns {expected}, but the batch has {found}: use one schema \
         per stream"
    )]
    Schema { stream: String, expected: String, found: String },
    #[error("block {block} of stream {stream:?} is not Arrow: read it as bytes")]
    NotArrow { stream: String, block: u64 },
}

/// Writes record batches to a stream.
pub struct BatchWriter {
    writer: Writer,
    schema: SchemaRef,
    encoder: StreamEncoder,
    blocks: u64,
}

impl BatchWriter {
    /// Writes batches of this schema.
    pub fn new(writer: Writer, schema: SchemaRef) -> Result<Self, BatchError> {
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        let encoder = StreamEncoder::try_new_with_options(&schema, options)?;
        Ok(Self { writer, schema, encoder, blocks: 0 })
    }

    /// Appends a batch, in several blocks if it is longer than one.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<(), BatchError> {
        block_on(self.append_async(batch))
    }

    /// [`BatchWriter::append`] as a future.
    pub async fn append_async(&mut self, batch: &RecordBatch) -> Result<(), BatchError> {
        if batch.schema_ref().fields() != self.schema.fields() {
            return Err(BatchError::Schema {
                stream: self.writer.name().to_string(),
                expected: columns(&self.schema),
                found: columns(batch.schema_ref()),
            });
        }
        let max = usize::try_from(self.writer.block_length()).unwrap_or(usize::MAX);
        // Parts still to be written, the next one last.
        let mut parts = vec![batch.clone()];
        while let Some(part) = parts.pop() {
            let rows = part.num_rows();
            if rows > 1 && estimated_size(&part)? > max {
                parts.push(part.slice(rows / 2, rows - rows / 2));
                parts.push(part.slice(0, rows / 2));
                continue;
            }
            let buffers = self.encoder.encode(&part)?;
            self.write(&buffers).await?;
        }
        Ok(())
    }

    /// Seals the stream. Without a batch, it has the schema alone.
    pub fn seal(self) -> Result<StreamInfo, BatchError> {
        block_on(self.seal_async())
    }

    /// [`BatchWriter::seal`] as a future.
    pub async fn seal_async(mut self) -> Result<StreamInfo, BatchError> {
        if self.blocks == 0 {
            let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
            let encoder = StreamEncoder::try_new_with_options(&self.schema, options)?;
            self.write(&encoder.finish()?).await?;
        }
        Ok(self.writer.seal_async().await?)
    }

    async fn write(&mut self, buffers: &[Buffer]) -> Result<(), BatchError> {
        let length = buffers.iter().map(Buffer::len).sum();
        let mut reservation = self.writer.reserve_async(length).await?;
        let mut rest = reservation.bytes_mut();
        for buffer in buffers {
            let (into, after) = rest.split_at_mut(buffer.len());
            into.copy_from_slice(buffer);
            rest = after;
        }
        self.writer.commit_async(reservation, length).await?;
        self.blocks += 1;
        Ok(())
    }
}

/// Reads the record batches of a stream. Their columns are views of the reader's slots.
pub struct BatchReader {
    reader: Reader,
    schema: SchemaRef,
    decoder: FileDecoder,
    /// Batches of the current block that have yet to be handed out, the next one last.
    ready: Vec<RecordBatch>,
    has_failed: bool,
}

impl BatchReader {
    /// Reads the schema of a stream that a [`BatchWriter`] wrote.
    pub fn new(reader: Reader) -> Result<Self, BatchError> {
        block_on(Self::new_async(reader))
    }

    /// [`BatchReader::new`] as a future.
    pub async fn new_async(mut reader: Reader) -> Result<Self, BatchError> {
        let not_arrow =
            |reader: &Reader| BatchError::NotArrow { stream: reader.name().to_string(), block: 0 };
        let first = match reader.next_async().await {
            Some(block) => block?,
            None => return Err(not_arrow(&reader)),
        };
        let buffer = Buffer::from(first.into_bytes());
        let messages = split_messages(&buffer).ok_or_else(|| not_arrow(&reader))?;
        let (schema, rest) = match messages.split_first() {
            Some((Message { kind: Kind::Schema(schema), .. }, rest)) => (Arc::clone(schema), rest),
            _ => return Err(not_arrow(&reader)),
        };
        let decoder =
            FileDecoder::new(Arc::clone(&schema), MetadataVersion::V5).with_require_alignment(true);
        let mut batches = Self { reader, schema, decoder, ready: Vec::new(), has_failed: false };
        batches.decode(&buffer, rest)?;
        Ok(batches)
    }

    /// The schema of all batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
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
            let outcome = match self.reader.next_async().await? {
                Ok(block) => {
                    let number = block.number().0;
                    let buffer = Buffer::from(block.into_bytes());
                    match split_messages(&buffer) {
                        Some(messages) => self.decode(&buffer, &messages),
                        None => Err(BatchError::NotArrow {
                            stream: self.reader.name().to_string(),
                            block: number,
                        }),
                    }
                }
                Err(error) => Err(error.into()),
            };
            if let Err(error) = outcome {
                self.has_failed = true;
                return Some(Err(error));
            }
        }
    }

    fn decode(&mut self, buffer: &Buffer, messages: &[Message]) -> Result<(), BatchError> {
        for message in messages {
            let bytes = buffer.slice_with_length(message.place.start, message.place.len());
            match message.kind {
                Kind::Schema(_) => {}
                Kind::Dictionary => self.decoder.read_dictionary(&message.block, &bytes)?,
                Kind::Batch => {
                    self.ready.extend(self.decoder.read_record_batch(&message.block, &bytes)?);
                }
            }
        }
        self.ready.reverse();
        Ok(())
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

/// A message in a block.
struct Message {
    place: Range<usize>,
    block: IpcBlock,
    kind: Kind,
}

enum Kind {
    Schema(SchemaRef),
    Dictionary,
    Batch,
}

/// The messages in a block. `None` if it holds something else.
fn split_messages(buffer: &Buffer) -> Option<Vec<Message>> {
    let mut messages = Vec::new();
    let mut start = 0;
    while start < buffer.len() {
        let (head, rest) = buffer[start..].split_at_checked(8)?;
        let size = usize::try_from(u32::from_le_bytes(*head[4..].first_chunk()?)).ok()?;
        if head[..4] != CONTINUATION {
            return None;
        }
        if size == 0 {
            // The mark of an end, after the schema of a stream without batches.
            return Some(messages);
        }
        let message = root_as_message(rest.get(..size)?).ok()?;
        let body = usize::try_from(message.bodyLength()).ok()?;
        let end = (start + 8 + size).checked_add(body).filter(|end| *end <= buffer.len())?;
        let kind = match message.header_type() {
            MessageHeader::Schema => {
                Kind::Schema(Arc::new(try_fb_to_schema(message.header_as_schema()?).ok()?))
            }
            MessageHeader::DictionaryBatch => Kind::Dictionary,
            MessageHeader::RecordBatch => Kind::Batch,
            _ => return None,
        };
        let block = IpcBlock::new(0, i32::try_from(8 + size).ok()?, i64::try_from(body).ok()?);
        messages.push(Message { place: start..end, block, kind });
        start = end;
    }
    Some(messages)
}

/// Bytes of a batch as a message. Dictionaries count whole.
fn estimated_size(batch: &RecordBatch) -> Result<usize, ArrowError> {
    let mut size = OVERHEAD;
    for column in batch.columns() {
        let data = column.to_data();
        size += data.get_slice_memory_size()? + OVERHEAD * (1 + data.child_data().len());
    }
    Ok(size)
}

/// The columns of a schema, for people.
fn columns(schema: &SchemaRef) -> String {
    let fields = schema.fields().iter().take(10);
    let shown: Vec<_> =
        fields.map(|field| format!("{}: {}", field.name(), field.data_type())).collect();
    let more = if schema.fields().len() > 10 { ", …" } else { "" };
    format!("({}{more})", shown.join(", "))
}
