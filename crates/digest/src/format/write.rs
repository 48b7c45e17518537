//! Writing a digest, batch by batch, in little memory.
//!
//! The file writer of the Arrow crate is not used, because the footer of a digest has checksums
//! over metadata and content, which must be computed as they are written.

use std::{io::Write, sync::Arc};

use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, ListArray, RecordBatch, StructArray, UInt32Array, UInt64Array,
    builder::StringBuilder,
};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::{
    Block, FooterBuilder, MetadataVersion,
    convert::{IpcSchemaEncoder, metadata_to_fb},
    writer::{
        DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteContext, IpcWriteOptions,
        write_message,
    },
};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use flatbuffers::FlatBufferBuilder;

use super::{
    BLOB_LENGTH_MAX, Blob, ColumnType, DigestError, ITEM_LENGTH_MAX, Summary, Value,
    columns::ColumnBuilder,
    layout::{element, footer_key, item_fields, one_line, part_fields, schema, tree_node},
};
use forebay_core::{
    Address,
    dataset::{DatasetIdHasher, hash_tree::HashTree},
};

pub(crate) const METADATA_CONTEXT: &str = "forebay 2026 digest metadata v1";

pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";
/// The magic, padded to the alignment of everything that follows.
pub(crate) const PREAMBLE: [u8; 64] = {
    let mut bytes = [0; 64];
    let mut i = 0;
    while i < MAGIC.len() {
        bytes[i] = MAGIC[i];
        i += 1;
    }
    bytes
};
pub(crate) const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Blobs, items or nodes of trees of a full batch: a few megabytes.
const BATCH_BLOBS: usize = 1 << 14;
const BATCH_ITEMS: usize = 1 << 16;
const BATCH_NODES: usize = 1 << 17;

/// Metadata that precedes the rows. It depends on all rows, so a build collects them in a journal
/// first.
#[derive(Debug, Clone)]
pub struct Header {
    /// Metadata of the dataset as a whole.
    pub summary: Summary,
    /// The user's columns.
    pub columns: Vec<(String, ColumnType)>,
    /// Whether some blob has a hash tree.
    pub has_trees: bool,
}

/// Writes one digest.
pub struct DigestWriter<W> {
    sink: W,
    header: Header,
    schema: SchemaRef,
    rows: Rows,
    /// Totals of the rows pushed so far, which must match the header in the end.
    totals: Totals,
    id: DatasetIdHasher,
    position: u64,
    blocks: Vec<Block>,
    metadata_hash: blake3::Hasher,
    content_hash: blake3::Hasher,
    options: IpcWriteOptions,
    context: IpcWriteContext,
}

/// Totals of a digest's rows.
#[derive(Default, PartialEq, Eq)]
struct Totals {
    blobs: u64,
    items: u64,
    bytes: u64,
}

impl<W: Write> DigestWriter<W> {
    /// Begins a digest. The caller flushes and syncs the sink.
    pub fn new(sink: W, header: Header) -> Result<Self, DigestError> {
        let Summary { namespace, origin, layout, .. } = &header.summary;
        let names = header.columns.iter().map(|(name, _)| name);
        for text in [namespace, origin, layout].into_iter().chain(names) {
            one_line(text).map_err(DigestError::Unwritable)?;
        }
        let schema = Arc::new(schema(&header.summary, &header.columns, header.has_trees));
        let mut writer = Self {
            sink,
            rows: Rows::new(&header),
            header,
            schema,
            totals: Totals::default(),
            id: DatasetIdHasher::new(),
            position: 0,
            blocks: Vec::new(),
            metadata_hash: blake3::Hasher::new_derive_key(METADATA_CONTEXT),
            content_hash: blake3::Hasher::new(),
            options: IpcWriteOptions::try_new(64, false, MetadataVersion::V5).map_err(arrow)?,
            context: IpcWriteContext::default(),
        };
        writer.sink.write_all(&PREAMBLE)?;
        writer.position = PREAMBLE.len() as u64;
        let message = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &writer.schema,
            &mut DictionaryTracker::new(true),
            &writer.options,
        );
        writer.write_encoded(message)?;
        Ok(writer)
    }

    /// Adds a row. `values` has the user's columns of each of its items.
    pub fn push(&mut self, blob: &Blob, values: &[Vec<Value<'_>>]) -> Result<(), DigestError> {
        let length = blob.length();
        check_lengths(blob, length)?;
        check_tree(blob, length, self.header.has_trees)?;
        self.id.push(&blob.address, length);
        self.rows.push(self.totals.bytes, blob, values)?;
        self.totals.blobs += 1;
        self.totals.items += blob.items.len() as u64;
        self.totals.bytes += length;
        if self.rows.is_full() {
            self.write_batch()?;
        }
        Ok(())
    }

    /// Writes the last batch and the footer. Returns the sink, neither flushed nor synced.
    pub fn finish(mut self) -> Result<W, DigestError> {
        if !self.rows.lengths.is_empty() {
            self.write_batch()?;
        }
        let Summary { dataset, chunking, blobs, items, bytes, .. } = self.header.summary;
        let header = Totals { blobs, items, bytes };
        if self.totals != header || self.id.finish(chunking) != dataset {
            return Err(DigestError::Unwritable("its rows are not those of its header".to_owned()));
        }
        self.sink.write_all(&END_OF_STREAM)?;
        let footer = footer(&self.schema, &self.blocks, &self.metadata_hash, &self.content_hash);
        self.sink.write_all(&footer)?;
        let length = i32::try_from(footer.len())
            .map_err(|_| DigestError::Unwritable("it has too many batches".to_owned()))?;
        self.sink.write_all(&length.to_le_bytes())?;
        self.sink.write_all(MAGIC)?;
        Ok(self.sink)
    }

    fn write_batch(&mut self) -> Result<(), DigestError> {
        let batch = self.rows.take(&self.schema, &self.header.columns).map_err(arrow)?;
        let (_, message) = IpcDataGenerator::default()
            .encode(&batch, &mut DictionaryTracker::new(true), &self.options, &mut self.context)
            .map_err(arrow)?;
        self.content_hash.update(&message.arrow_data);
        let offset = self.position;
        let (header, body) = self.write_encoded(message)?;
        let narrow = |n| i64::try_from(n).expect("a file is shorter than 2^63 bytes");
        let header = i32::try_from(header).expect("a batch's header is a few hundred bytes");
        self.blocks.push(Block::new(narrow(offset), header, narrow(body)));
        hash_block(&mut self.metadata_hash, &self.blocks[self.blocks.len() - 1]);
        Ok(())
    }

    fn write_encoded(&mut self, message: EncodedData) -> Result<(u64, u64), DigestError> {
        let mut padded = message.ipc_message.clone();
        let (header, body) =
            write_message(&mut self.sink, message, &self.options).map_err(arrow)?;
        // The stored length of a message counts the padding but not its own eight bytes.
        padded.resize(header - 8, 0);
        self.metadata_hash.update(&padded);
        self.position += (header + body) as u64;
        Ok((header as u64, body as u64))
    }
}

/// Rejects a tree that no reader would accept, or that the header denies.
fn check_tree(blob: &Blob, length: u64, has_trees: bool) -> Result<(), DigestError> {
    let is_valid = |tree: &HashTree| has_trees && tree.view(length).is_some();
    if blob.tree.as_ref().is_none_or(is_valid) {
        return Ok(());
    }
    Err(DigestError::Unwritable(format!(
        "the hash tree of blob {} has too many nodes or too few, or the header denies it",
        blob.address
    )))
}

/// Rejects a row that no reader would accept.
fn check_lengths(blob: &Blob, length: u64) -> Result<(), DigestError> {
    let longest = blob.items.iter().map(|item| item.length).max().unwrap_or(0);
    let refused = |what: &str, length: u64, limit: &str| {
        Err(DigestError::Unwritable(format!(
            "{what} of {length} bytes is longer than {limit}; cut it into several"
        )))
    };
    if length > BLOB_LENGTH_MAX {
        return refused("a blob", length, "256 TiB");
    }
    if longest > ITEM_LENGTH_MAX {
        return refused("an item", longest, "64 GiB");
    }
    Ok(())
}

/// Adds the position of a batch to the metadata checksum.
pub(crate) fn hash_block(hash: &mut blake3::Hasher, block: &Block) {
    hash.update(&block.offset().to_le_bytes());
    hash.update(&block.metaDataLength().to_le_bytes());
    hash.update(&block.bodyLength().to_le_bytes());
}

/// The metadata checksum. It covers the content checksum, so that it identifies the whole file.
pub(crate) fn metadata_checksum(metadata: &blake3::Hasher, content: &str) -> String {
    let mut hash = metadata.clone();
    hash.update(content.as_bytes());
    hash.finalize().to_string()
}

pub(crate) fn footer(
    schema: &Schema,
    blocks: &[Block],
    metadata: &blake3::Hasher,
    content: &blake3::Hasher,
) -> Vec<u8> {
    let content = content.finalize().to_string();
    let checksums = [
        (footer_key::METADATA.to_owned(), metadata_checksum(metadata, &content)),
        (footer_key::CONTENT.to_owned(), content),
    ];
    let mut builder = FlatBufferBuilder::new();
    let dictionaries = builder.create_vector::<Block>(&[]);
    let blocks = builder.create_vector(blocks);
    let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, schema);
    let checksums = metadata_to_fb(&mut builder, &checksums.into_iter().collect());
    let mut footer = FooterBuilder::new(&mut builder);
    footer.add_version(MetadataVersion::V5);
    footer.add_schema(schema);
    footer.add_dictionaries(dictionaries);
    footer.add_recordBatches(blocks);
    footer.add_custom_metadata(checksums);
    let footer = footer.finish();
    builder.finish(footer, None);
    builder.finished_data().to_vec()
}

/// The columns of the current batch.
struct Rows {
    addresses: Vec<u8>,
    starts: Vec<u64>,
    lengths: Vec<u64>,
    part_counts: Vec<usize>,
    objects: StringBuilder,
    versions: StringBuilder,
    part_offsets: Vec<u64>,
    part_lengths: Vec<u64>,
    item_counts: Vec<usize>,
    item_offsets: Vec<u64>,
    item_lengths: Vec<u64>,
    columns: Vec<ColumnBuilder>,
    /// The columns of hash trees, if there are any.
    trees: Option<Trees>,
}

/// The columns of hash trees.
#[derive(Default)]
struct Trees {
    leaves: Vec<u32>,
    node_counts: Vec<usize>,
    nodes: Vec<u8>,
}

impl Rows {
    fn new(Header { columns, has_trees, .. }: &Header) -> Self {
        Self {
            addresses: Vec::new(),
            starts: Vec::new(),
            lengths: Vec::new(),
            part_counts: Vec::new(),
            objects: StringBuilder::new(),
            versions: StringBuilder::new(),
            part_offsets: Vec::new(),
            part_lengths: Vec::new(),
            item_counts: Vec::new(),
            item_offsets: Vec::new(),
            item_lengths: Vec::new(),
            columns: columns.iter().map(|(_, kind)| ColumnBuilder::new(*kind)).collect(),
            trees: has_trees.then(Trees::default),
        }
    }

    fn is_full(&self) -> bool {
        let nodes = self.trees.as_ref().map_or(0, |trees| trees.nodes.len() / Address::LEN);
        self.lengths.len() >= BATCH_BLOBS
            || self.item_lengths.len() >= BATCH_ITEMS
            || nodes >= BATCH_NODES
    }

    fn push(
        &mut self,
        start: u64,
        blob: &Blob,
        values: &[Vec<Value<'_>>],
    ) -> Result<(), DigestError> {
        self.addresses.extend_from_slice(blob.address.as_bytes());
        self.starts.push(start);
        self.lengths.push(blob.length());
        self.part_counts.push(blob.parts.len());
        for part in &blob.parts {
            self.objects.append_value(&part.object);
            self.versions.append_value(&part.version);
            self.part_offsets.push(part.offset);
            self.part_lengths.push(part.length);
        }
        self.item_counts.push(blob.items.len());
        for item in &blob.items {
            self.item_offsets.push(item.offset);
            self.item_lengths.push(item.length);
        }
        if let Some(trees) = &mut self.trees {
            let nodes = blob.tree.as_ref().map_or(&[][..], |tree| &tree.nodes);
            trees.leaves.push(blob.tree.as_ref().map_or(0, |tree| tree.leaf.bytes()));
            trees.node_counts.push(nodes.len());
            trees.nodes.extend_from_slice(nodes.as_flattened());
        }
        assert!(
            self.columns.is_empty() || values.len() == blob.items.len(),
            "each item has its values"
        );
        for item in values {
            assert_eq!(item.len(), self.columns.len(), "each item has a value for each column");
            for (column, value) in self.columns.iter_mut().zip(item) {
                column.push(*value)?;
            }
        }
        Ok(())
    }

    /// Takes all rows as a record batch.
    fn take(
        &mut self,
        schema: &SchemaRef,
        columns: &[(String, ColumnType)],
    ) -> Result<RecordBatch, ArrowError> {
        fn numbers(values: &mut Vec<u64>) -> ArrayRef {
            Arc::new(UInt64Array::from(std::mem::take(values)))
        }
        fn hashes(bytes: &mut Vec<u8>) -> Result<ArrayRef, ArrowError> {
            let length = i32::try_from(Address::LEN).expect("32");
            let bytes = std::mem::take(bytes).into();
            Ok(Arc::new(FixedSizeBinaryArray::try_new(length, bytes, None)?))
        }
        let parts = StructArray::try_new(
            part_fields(),
            vec![
                Arc::new(self.objects.finish()),
                Arc::new(self.versions.finish()),
                numbers(&mut self.part_offsets),
                numbers(&mut self.part_lengths),
            ],
            None,
        )?;
        let mut item_columns =
            vec![numbers(&mut self.item_offsets), numbers(&mut self.item_lengths)];
        item_columns.extend(self.columns.iter_mut().map(ColumnBuilder::finish));
        let items = StructArray::try_new(item_fields(columns), item_columns, None)?;
        let list = |counts: &mut Vec<usize>, of: StructArray| {
            let offsets = OffsetBuffer::from_lengths(std::mem::take(counts));
            ListArray::try_new(element(of.fields().clone()), offsets, Arc::new(of), None)
        };
        let mut all: Vec<ArrayRef> = vec![
            hashes(&mut self.addresses)?,
            numbers(&mut self.starts),
            numbers(&mut self.lengths),
            Arc::new(list(&mut self.part_counts, parts)?),
            Arc::new(list(&mut self.item_counts, items)?),
        ];
        if let Some(Trees { leaves, node_counts, nodes }) = &mut self.trees {
            all.push(Arc::new(UInt32Array::from(std::mem::take(leaves))));
            let offsets = OffsetBuffer::from_lengths(std::mem::take(node_counts));
            let trees = ListArray::try_new(tree_node(), offsets, hashes(nodes)?, None)?;
            all.push(Arc::new(trees));
        }
        RecordBatch::try_new(schema.clone(), all)
    }
}

/// Converts an Arrow error. I/O errors of the sink are unwrapped, because they have a remedy.
fn arrow(error: ArrowError) -> DigestError {
    match error {
        ArrowError::IoError(_, source) => DigestError::Io(source),
        other => DigestError::Unwritable(other.to_string()),
    }
}
