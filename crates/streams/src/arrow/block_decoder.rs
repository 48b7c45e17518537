//! Decoding blocks: from the bytes of a block to record batches that are views of them.
//!
//! The bytes have been verified by checksums, but another program may have written them: a stream
//! of bytes can be opened as Arrow. Lengths are checked against the block. `arrow-ipc` panics on
//! other contradictions in a message, so a panic of its decoder is an error of the block.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{
    Block as IpcBlock, Message as IpcMessage, MessageHeader, MetadataVersion,
    convert::try_fb_to_schema, reader::FileDecoder, root_as_message,
};
use arrow_schema::{ArrowError, SchemaRef};

/// The first bytes of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Decodes the blocks of one stream, in order.
#[derive(Debug)]
pub struct BlockDecoder {
    schema: SchemaRef,
    decoder: FileDecoder,
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

impl BlockDecoder {
    /// Decodes the first block: its schema, and its batches. `None` if it is not Arrow.
    pub fn begin(first: &Buffer) -> Option<Result<(Self, Vec<RecordBatch>), ArrowError>> {
        let messages = split_messages(first)?;
        let Some((Message { kind: Kind::Schema(schema), .. }, rest)) = messages.split_first()
        else {
            return None;
        };
        let schema = Arc::clone(schema);
        let decoder =
            FileDecoder::new(Arc::clone(&schema), MetadataVersion::V5).with_require_alignment(true);
        let mut decoder = Self { schema, decoder };
        let batches = decoder.decode_messages(first, rest);
        Some(batches.map(|batches| (decoder, batches)))
    }

    /// The schema of all batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Decodes a later block. `None` if it is not Arrow.
    pub fn decode(&mut self, block: &Buffer) -> Option<Result<Vec<RecordBatch>, ArrowError>> {
        let messages = split_messages(block)?;
        Some(self.decode_messages(block, &messages))
    }

    fn decode_messages(
        &mut self,
        block: &Buffer,
        messages: &[Message],
    ) -> Result<Vec<RecordBatch>, ArrowError> {
        let mut batches = Vec::new();
        for message in messages {
            let bytes = block.slice_with_length(message.place.start, message.place.len());
            match message.kind {
                Kind::Schema(_) => {}
                Kind::Dictionary => {
                    // A dictionary lives until the reader is dropped. A copy leaves the slot free.
                    let bytes = Buffer::from_slice_ref(&bytes);
                    let decoder = &mut self.decoder;
                    contained(|| decoder.read_dictionary(&message.block, &bytes))?;
                }
                Kind::Batch => {
                    let decoder = &self.decoder;
                    let batch = contained(|| decoder.read_record_batch(&message.block, &bytes))?;
                    batches.extend(batch);
                }
            }
        }
        Ok(batches)
    }
}

/// The result of a call to the decoder; an error if it panics. What it was given is not used again
/// after an error.
fn contained<T>(decode: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    let invalid = || ArrowError::IpcError("the message contradicts itself".into());
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(invalid()))
}

/// Whether all buffers of a message lie in its body, which has this length.
fn buffers_fit(message: &IpcMessage<'_>, body: usize) -> bool {
    let dictionary = message.header_as_dictionary_batch().and_then(|batch| batch.data());
    let batch = message.header_as_record_batch().or(dictionary);
    let Some(buffers) = batch.and_then(|batch| batch.buffers()) else { return true };
    buffers.iter().all(|buffer| {
        let [start, length] = [buffer.offset(), buffer.length()].map(usize::try_from);
        let end = start.ok().zip(length.ok()).and_then(|(start, length)| start.checked_add(length));
        end.is_some_and(|end| end <= body)
    })
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
        if !buffers_fit(&message, body) {
            return None;
        }
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
