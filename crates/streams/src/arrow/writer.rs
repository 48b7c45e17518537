//! Writing record batches.
//!
//! The length of a batch in a block is measured by encoding it once more, which copies no values.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{
    MetadataVersion,
    writer::{IpcWriteOptions, StreamEncoder},
};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use forebay_core::streams::catalogue::StreamInfo;

use super::{ALIGNMENT, BatchError, compaction::compact};
use crate::{block_on::block_on, writer::Writer};

/// Writes record batches to a stream.
pub struct BatchWriter {
    writer: Writer,
    schema: SchemaRef,
    encoder: StreamEncoder,
    /// Whether the encoder has returned a schema or dictionaries that were not written.
    is_ahead: bool,
    blocks: u64,
}

impl BatchWriter {
    /// Writes batches of this schema.
    pub fn new(writer: Writer, schema: SchemaRef) -> Result<Self, BatchError> {
        let encoder = encoder(&schema)?;
        Ok(Self { writer, schema, encoder, is_ahead: false, blocks: 0 })
    }

    /// The schema of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Number of blocks that have been appended.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Appends a batch, in several blocks if it is longer than one. If it fails, the blocks before
    /// the failure stay appended, see [`BatchWriter::blocks`].
    pub fn append(&mut self, batch: &RecordBatch) -> Result<(), BatchError> {
        block_on(self.append_async(batch))
    }

    /// [`BatchWriter::append`] as a future.
    pub async fn append_async(&mut self, batch: &RecordBatch) -> Result<(), BatchError> {
        self.check_schema(batch.schema_ref())?;
        let max = usize::try_from(self.writer.block_length()).unwrap_or(usize::MAX);
        let (mut first, rows) = (0, batch.num_rows());
        // Rows of a part: as in the part before, unless their length says otherwise.
        let mut guess = rows;
        loop {
            let mut part = compact(&batch.slice(first, guess.min(rows - first)))?;
            let mut length = encoded_length(&part)?;
            while length > max && part.num_rows() > 1 {
                let fewer = rows_within(max, &part, length).min(part.num_rows() - 1);
                part = compact(&batch.slice(first, fewer))?;
                length = encoded_length(&part)?;
            }
            if length > max {
                return Err(BatchError::RowTooLong {
                    stream: self.writer.name().to_string(),
                    length: length as u64,
                    max: max as u64,
                });
            }
            guess = rows_within(max, &part, length);
            first += part.num_rows();
            if std::mem::replace(&mut self.is_ahead, true) {
                // A new encoder repeats the schema, which a reader skips, and the dictionaries.
                self.encoder = encoder(&self.schema)?;
            }
            let buffers = self.encoder.encode(&part)?;
            self.write(&buffers).await?;
            self.is_ahead = false;
            if first == rows {
                return Ok(());
            }
        }
    }

    /// Checks that batches have the columns of the stream.
    pub fn check_schema(&self, schema: &Schema) -> Result<(), BatchError> {
        if schema.fields() == self.schema.fields() {
            return Ok(());
        }
        Err(BatchError::Schema {
            stream: self.writer.name().to_string(),
            expected: columns(&self.schema),
            found: columns(schema),
        })
    }

    /// Seals the stream. Without a batch, it has the schema alone.
    pub fn seal(self) -> Result<StreamInfo, BatchError> {
        block_on(self.seal_async())
    }

    /// [`BatchWriter::seal`] as a future.
    pub async fn seal_async(mut self) -> Result<StreamInfo, BatchError> {
        if self.blocks == 0 {
            let encoder = encoder(&self.schema)?;
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

fn encoder(schema: &Schema) -> Result<StreamEncoder, ArrowError> {
    let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
    StreamEncoder::try_new_with_options(schema, options)
}

/// Longest block that a batch may become: with the schema and with all its dictionaries.
fn encoded_length(batch: &RecordBatch) -> Result<usize, ArrowError> {
    let buffers = encoder(batch.schema_ref())?.encode(batch)?;
    Ok(buffers.iter().map(Buffer::len).sum())
}

/// The rows that fit into `max` bytes, if all are as long as those of this part.
fn rows_within(max: usize, part: &RecordBatch, length: usize) -> usize {
    let rows = part.num_rows() as u128 * max as u128 / length.max(1) as u128;
    usize::try_from(rows).unwrap_or(usize::MAX).max(1)
}

/// The columns of a schema, for people.
fn columns(schema: &Schema) -> String {
    let fields = schema.fields().iter().take(10);
    let null = |field: &Field| if field.is_nullable() { "" } else { " not null" };
    let shown =
        fields.map(|field| format!("{}: {}{}", field.name(), field.data_type(), null(field)));
    let shown: Vec<_> = shown.collect();
    let more = if schema.fields().len() > 10 { ", …" } else { "" };
    format!("({}{more})", shown.join(", "))
}
