//! Reading a digest in place, without touching its rows at open time.
//!
//! A digest of ten million items must open in milliseconds, and may come from an untrusted source.
//! Opening reads the metadata only: its checksum, and that every buffer lies within the file and
//! has the length that its rows need. Rows are read in place, by arithmetic on bounds-checked
//! slices. A damaged row is an error when it is read, never a panic or another row's bytes.

use std::ops::Range;

use arrow_array::{Array, ArrayRef, ListArray, StructArray};
use arrow_buffer::Buffer;
use arrow_ipc::{
    Block, MetadataVersion, convert::try_fb_to_schema, reader::FileDecoder, root_as_footer,
    root_as_message,
};
use arrow_schema::SchemaRef;
use bytes::Bytes;

use super::{
    BLOB_LENGTH_MAX, ColumnType, DATASET_LENGTH_MAX, DigestError, ITEM_LENGTH_MAX, Summary,
    damaged,
    layout::{ITEM_FIELDS, ITEMS_COLUMN, ReadSchema, buffer, footer_key, node, read_schema},
    write::{MAGIC, METADATA_CONTEXT, hash_block, metadata_checksum},
};
use forebay_core::{
    Address, BlobOrdinal, ByteSize, ItemOrdinal, Namespace, NamespaceId,
    dataset::{
        chunking::{ChunkOrdinal, Chunking},
        hash_tree::{HashTreeView, LeafLength},
    },
};

/// Offset of the schema's message, after the padded magic.
const SCHEMA_OFFSET: u64 = 64;
/// Bytes of the footer's length and the closing magic.
const TRAILER: usize = 4 + MAGIC.len();
/// Largest message or footer, which is copied once for alignment.
const HEADER_SIZE_MAX: u64 = 64 << 20;

/// An open digest: a view of its bytes.
#[derive(Debug, Clone)]
pub struct Digest {
    pub(crate) bytes: Bytes,
    pub(crate) schema: SchemaRef,
    summary: Summary,
    columns: Vec<(String, ColumnType)>,
    has_trees: bool,
    checksum: String,
    pub(crate) content: String,
    pub(crate) batches: Vec<Batch>,
}

/// One record batch: the rows in it, and the positions of its buffers.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) block: Block,
    pub(crate) body: Range<usize>,
    pub(crate) first_blob: u64,
    pub(crate) first_item: u64,
    pub(crate) blobs: u64,
    pub(crate) parts: u64,
    pub(crate) items: u64,
    /// Nodes of all trees of the batch.
    pub(crate) nodes: u64,
    buffers: Vec<Range<usize>>,
}

/// The rows before a batch.
#[derive(Debug, Clone, Copy)]
struct RowsBefore {
    blobs: u64,
    items: u64,
}

impl Digest {
    /// Opens a digest by its metadata, every part of which is checked.
    pub fn open(bytes: Bytes) -> Result<Self, DigestError> {
        if !bytes.starts_with(MAGIC) {
            return Err(DigestError::Foreign("it is no Arrow file"));
        }
        if bytes.len() < 64 + TRAILER || !bytes.ends_with(MAGIC) {
            return Err(damaged("it is cut short"));
        }
        let trailer = bytes.len() - TRAILER;
        let footer_length = u32_at(&bytes, trailer).expect("the trailer is there");
        let footer_start = trailer
            .checked_sub(footer_length as usize)
            .filter(|_| u64::from(footer_length) <= HEADER_SIZE_MAX)
            .ok_or_else(|| damaged("its footer is longer than itself"))?;
        let footer_bytes = bytes[footer_start..trailer].to_vec();
        let footer = root_as_footer(&footer_bytes)
            .map_err(|_| DigestError::Foreign("its footer is unreadable"))?;

        // The footer's copy first: in a foreign file or a later format the schema may be elsewhere.
        let schema = footer.schema().ok_or_else(|| damaged("its schema is missing"))?;
        let schema = try_fb_to_schema(schema).map_err(|error| damaged(error.to_string()))?;
        let ReadSchema { summary, columns, has_trees } = read_schema(&schema)?;
        let schema_message = message_at(&bytes[..footer_start], SCHEMA_OFFSET)?;
        let same = root_as_message(&schema_message)
            .ok()
            .and_then(|message| message.header_as_schema())
            .map(try_fb_to_schema);
        if !matches!(same, Some(Ok(at_start)) if at_start == schema) {
            return Err(damaged("its two schemas differ"));
        }

        let footer_text = |key: &str| {
            footer
                .custom_metadata()
                .and_then(|pairs| pairs.iter().find(|pair| pair.key() == Some(key)))
                .and_then(|pair| pair.value())
                .ok_or_else(|| damaged(format!("its `{key}` is missing")))
        };
        let checksum = footer_text(footer_key::METADATA)?.to_owned();
        let content = footer_text(footer_key::CONTENT)?.to_owned();
        let mut hash = blake3::Hasher::new_derive_key(METADATA_CONTEXT);
        hash.update(&schema_message);
        let (mut batches, mut blobs, mut items) = (Vec::new(), 0, 0);
        for block in footer.recordBatches().into_iter().flatten() {
            let offset = u64::try_from(block.offset()).unwrap_or(u64::MAX);
            let message = message_at(&bytes[..footer_start], offset)?;
            hash.update(&message);
            hash_block(&mut hash, block);
            let before = RowsBefore { blobs, items };
            let batch = Batch::read(&message, *block, footer_start, &columns, has_trees, before)?;
            blobs += batch.blobs;
            items += batch.items;
            batches.push(batch);
        }
        // A fuzzer cannot guess a hash, and the code below must be safe without it.
        if !cfg!(fuzzing) && metadata_checksum(&hash, &content) != checksum {
            return Err(damaged("its metadata does not match its checksum"));
        }
        if (blobs, items) != (summary.blobs, summary.items) {
            return Err(damaged("its batches do not hold the rows it announces"));
        }
        if summary.bytes > DATASET_LENGTH_MAX {
            return Err(damaged("it is longer than 1 EiB"));
        }
        let schema = schema.into();
        Ok(Self { bytes, schema, summary, columns, has_trees, checksum, content, batches })
    }

    /// Metadata of the dataset as a whole.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The namespace of the addresses. `None` if the digest's text is not a namespace id.
    pub fn namespace(&self) -> Option<NamespaceId> {
        match self.summary.namespace.as_str() {
            "public" => Some(Namespace::public().id()),
            id => id.parse().ok(),
        }
    }

    /// Whether this is a listing: its addresses are stand-ins.
    pub fn is_listing(&self) -> bool {
        self.summary().layout == crate::listing::LAYOUT
    }

    /// The user's columns.
    pub fn columns(&self) -> &[(String, ColumnType)] {
        &self.columns
    }

    /// Whether blobs may have hash trees: whether the format is 2.
    pub fn has_trees(&self) -> bool {
        self.has_trees
    }

    /// A checksum that covers every byte of the digest.
    pub fn checksum(&self) -> &str {
        &self.checksum
    }

    /// The dataset's chunking.
    pub fn chunking(&self) -> Chunking {
        self.summary.chunking
    }

    /// One row.
    pub fn blob(&self, blob: BlobOrdinal) -> Result<BlobView<'_>, DigestError> {
        assert!(blob.0 < self.summary.blobs, "blob {blob} of {}", self.summary.blobs);
        let at = self.batches.partition_point(|batch| batch.first_blob <= blob.0) - 1;
        self.row(&self.batches[at], blob.0 - self.batches[at].first_blob)
    }

    /// All rows, in order.
    pub fn blobs(&self) -> impl Iterator<Item = Result<BlobView<'_>, DigestError>> {
        self.batches.iter().flat_map(|batch| (0..batch.blobs).map(|row| self.row(batch, row)))
    }

    /// The location of an item's bytes.
    pub fn item(&self, item: ItemOrdinal) -> Result<ItemLocation, DigestError> {
        let (blob, row, wanted) = self.row_of(item)?;
        let (offset, length) = row.item_at(wanted)?;
        Ok(ItemLocation { blob, offset, length })
    }

    /// The object that holds an item.
    pub fn object(&self, item: ItemOrdinal) -> Result<&str, DigestError> {
        let (_, row, wanted) = self.row_of(item)?;
        // With several parts each is one item. With one part all items are in it.
        let mut parts = row.parts();
        let at = index(wanted - row.items.start).min(parts.len().saturating_sub(1));
        let part = parts.nth(at);
        part.unwrap_or_else(|| Err(damaged(format!("item {item} is of no object"))))
            .map(|part| part.object)
    }

    /// The blob that holds an item, its row, and the item's number in the row's batch.
    fn row_of(&self, item: ItemOrdinal) -> Result<(BlobOrdinal, BlobView<'_>, u64), DigestError> {
        assert!(item.0 < self.summary.items, "item {item} of {}", self.summary.items);
        let at = self.batches.partition_point(|batch| batch.first_item <= item.0) - 1;
        let batch = &self.batches[at];
        let wanted = item.0 - batch.first_item;
        // The list's offsets ascend, so bisection finds the row. If a damaged list does not ascend,
        // the check below rejects the row that was found.
        let (mut low, mut high) = (0, batch.blobs);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if self.u32_in(batch, buffer::ITEMS, middle)? <= wanted {
                low = middle;
            } else {
                high = middle;
            }
        }
        let row = self.row(batch, low)?;
        if !row.items.contains(&wanted) {
            return Err(damaged(format!("item {item} is in no blob")));
        }
        Ok((BlobOrdinal::new(batch.first_blob + low), row, wanted))
    }

    /// The blobs of a chunk: one range for each of its stripe units that is not empty.
    pub fn chunk(&self, chunk: ChunkOrdinal) -> Vec<Range<u64>> {
        let total = ByteSize(self.summary.bytes);
        let mut ranges = Vec::new();
        for unit in self.chunking().units_of(chunk, total) {
            let range = self.first_blob_at(unit.start)..self.first_blob_at(unit.end);
            if !range.is_empty() {
                ranges.push(range);
            }
        }
        ranges
    }

    /// The first blob that begins at or after this byte of the dataset.
    fn first_blob_at(&self, start: u64) -> u64 {
        let (mut low, mut high) = (0, self.summary.blobs);
        while low < high {
            let middle = low.midpoint(high);
            let at = self.batches.partition_point(|batch| batch.first_blob <= middle) - 1;
            let batch = &self.batches[at];
            if self.u64_in(batch, buffer::START, middle - batch.first_blob) < start {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// One of the user's columns, fully validated: an array for each record batch.
    pub fn column(&self, name: &str) -> Result<Option<Vec<ArrayRef>>, DigestError> {
        let Some(at) = self.columns.iter().position(|(column, _)| column == name) else {
            return Ok(None);
        };
        let decoder = FileDecoder::new(self.schema.clone(), MetadataVersion::V5)
            .with_projection(vec![ITEMS_COLUMN]);
        let arrays = self.batches.iter().map(|batch| {
            let end = batch.body.end;
            let start = usize::try_from(batch.block.offset()).expect("checked when opened");
            let block = Buffer::from(self.bytes.slice(start..end));
            let rows = decoder
                .read_record_batch(&batch.block, &block)
                .map_err(|error| damaged(error.to_string()))?
                .ok_or_else(|| damaged("a batch is missing"))?;
            let lists = rows.column(0).as_any().downcast_ref::<ListArray>();
            let items =
                lists.and_then(|lists| lists.values().as_any().downcast_ref::<StructArray>());
            let items = items.ok_or_else(|| damaged("its items are no structures"))?;
            Ok(items.column(ITEM_FIELDS + at).clone())
        });
        arrays.collect::<Result<_, DigestError>>().map(Some)
    }

    fn row<'a>(&'a self, batch: &'a Batch, row: u64) -> Result<BlobView<'a>, DigestError> {
        let at = batch.buffers[buffer::ADDRESS].start + index(row) * Address::LEN;
        let address = self.bytes[at..at + Address::LEN].try_into().expect("32 bytes");
        let start = self.u64_in(batch, buffer::START, row);
        let length = self.u64_in(batch, buffer::LENGTH, row);
        let end = start.checked_add(length).filter(|_| length <= BLOB_LENGTH_MAX);
        if end.is_none_or(|end| end > self.summary.bytes) {
            return Err(damaged(format!(
                "a blob of {length} bytes is longer than its dataset, or than 2^48"
            )));
        }
        Ok(BlobView {
            digest: self,
            batch,
            row,
            address: Address::from_bytes(address),
            start,
            length,
            parts: self.range_in(batch, buffer::PARTS, row, batch.parts)?,
            items: self.range_in(batch, buffer::ITEMS, row, batch.items)?,
        })
    }

    /// The hash tree of a row.
    fn tree_in(
        &self,
        batch: &Batch,
        row: u64,
        length: u64,
    ) -> Result<Option<HashTreeView<'_>>, DigestError> {
        let Some(first) = self.has_trees.then(|| batch.buffers.len() - buffer::TREES_COUNT) else {
            return Ok(None);
        };
        let range = self.range_in(batch, first + buffer::TREE, row, batch.nodes)?;
        let leaf =
            u32_at(&self.bytes, batch.buffers[first + buffer::TREE_LEAF].start + index(row) * 4);
        let leaf = leaf.ok_or_else(|| damaged("a leaf leaves the file"))?;
        if leaf == 0 && range.is_empty() {
            return Ok(None);
        }
        let start = batch.buffers[first + buffer::TREE_NODE].start;
        let at = |node: u64| start + index(node) * Address::LEN;
        let (nodes, _) = self.bytes[at(range.start)..at(range.end)].as_chunks();
        let tree = LeafLength::new(leaf).and_then(|leaf| HashTreeView::new(leaf, length, nodes));
        tree.map(Some).ok_or_else(|| {
            damaged(format!("the hash tree of row {row} of a batch does not fit its blob"))
        })
    }

    fn u64_in(&self, batch: &Batch, buffer: usize, row: u64) -> u64 {
        let at = batch.buffers[buffer].start + index(row) * 8;
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    fn u32_in(&self, batch: &Batch, buffer: usize, row: u64) -> Result<u64, DigestError> {
        u32_at(&self.bytes, batch.buffers[buffer].start + index(row) * 4)
            .map(u64::from)
            .ok_or_else(|| damaged("a list leaves the file"))
    }

    /// The range of row `row` of a list or text column in the column's child.
    fn range_in(
        &self,
        batch: &Batch,
        buffer: usize,
        row: u64,
        child: u64,
    ) -> Result<Range<u64>, DigestError> {
        let range = self.u32_in(batch, buffer, row)?..self.u32_in(batch, buffer, row + 1)?;
        if range.start > range.end || range.end > child {
            return Err(damaged(format!("row {row} of a batch leaves its column")));
        }
        Ok(range)
    }

    fn text_in(&self, batch: &Batch, ends: usize, row: u64) -> Result<&str, DigestError> {
        let values = &batch.buffers[ends + 1];
        let range = self.range_in(batch, ends, row, values.len() as u64)?;
        let text = values.start + index(range.start)..values.start + index(range.end);
        std::str::from_utf8(&self.bytes[text]).map_err(|_| damaged("a name is not UTF-8"))
    }
}

/// The location of an item's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemLocation {
    /// The blob that holds the item.
    pub blob: BlobOrdinal,
    /// First byte within the blob.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// One row, read in place.
#[derive(Debug, Clone)]
pub struct BlobView<'a> {
    digest: &'a Digest,
    batch: &'a Batch,
    /// Number in the batch.
    row: u64,
    /// The blob's address.
    pub address: Address,
    /// Total length of all blobs before it.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    parts: Range<u64>,
    pub(crate) items: Range<u64>,
}

impl<'a> BlobView<'a> {
    /// Number of items in the blob.
    pub fn item_count(&self) -> u64 {
        self.items.end - self.items.start
    }

    /// Where the blob's bytes are stored.
    pub fn parts(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<PartView<'a>, DigestError>> + use<'a> {
        let (digest, batch) = (self.digest, self.batch);
        narrow(&self.parts).map(move |row| {
            let row = u64::from(row);
            let part = PartView {
                object: digest.text_in(batch, buffer::OBJECT_ENDS, row)?,
                version: digest.text_in(batch, buffer::VERSION_ENDS, row)?,
                offset: digest.u64_in(batch, buffer::PART_OFFSET, row),
                length: digest.u64_in(batch, buffer::PART_LENGTH, row),
            };
            let end = part.offset.checked_add(part.length);
            match end.filter(|end| *end <= BLOB_LENGTH_MAX) {
                Some(_) => Ok(part),
                None => Err(damaged("a part ends past byte 2^48 of its object")),
            }
        })
    }

    /// The items in the blob: first byte within the blob, and length.
    pub fn items(
        &self,
    ) -> impl ExactSizeIterator<Item = Result<(u64, u64), DigestError>> + use<'_, 'a> {
        narrow(&self.items).map(|row| self.item_at(u64::from(row)))
    }

    /// The hash tree of the blob, if the digest has one. Its nodes may be wrong.
    pub fn tree(&self) -> Result<Option<HashTreeView<'a>>, DigestError> {
        self.digest.tree_in(self.batch, self.row, self.length)
    }

    pub(crate) fn tree_range(&self) -> Result<Range<u64>, DigestError> {
        let first = self.batch.buffers.len() - buffer::TREES_COUNT;
        self.digest.range_in(self.batch, first + buffer::TREE, self.row, self.batch.nodes)
    }

    fn item_at(&self, row: u64) -> Result<(u64, u64), DigestError> {
        let offset = self.digest.u64_in(self.batch, buffer::ITEM_OFFSET, row);
        let length = self.digest.u64_in(self.batch, buffer::ITEM_LENGTH, row);
        match offset.checked_add(length) {
            Some(end) if end <= self.length && length <= ITEM_LENGTH_MAX => Ok((offset, length)),
            Some(end) if end <= self.length => {
                Err(damaged(format!("an item of {length} bytes is longer than 64 GiB")))
            }
            _ => Err(damaged(format!("an item of blob {} leaves its blob", self.address))),
        }
    }

    /// The blob's chunk.
    pub fn chunk(&self) -> ChunkOrdinal {
        let summary = &self.digest.summary;
        summary.chunking.chunk_of(self.start, ByteSize(summary.bytes))
    }

    pub(crate) fn child_ranges(&self) -> (Range<u64>, Range<u64>) {
        (self.parts.clone(), self.items.clone())
    }
}

/// A byte range of an object, read in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartView<'a> {
    /// The object's key, relative to the digest's origin.
    pub object: &'a str,
    /// The origin's name for this state of the object.
    pub version: &'a str,
    /// First byte within the object.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Batch {
    fn read(
        message: &[u8],
        block: Block,
        file_end: usize,
        columns: &[(String, ColumnType)],
        has_trees: bool,
        before: RowsBefore,
    ) -> Result<Self, DigestError> {
        let batch = root_as_message(message)
            .ok()
            .and_then(|message| message.header_as_record_batch())
            .filter(|batch| batch.compression().is_none())
            .ok_or_else(|| damaged("the header of a batch is unreadable"))?;
        let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
            return Err(damaged("a batch has no columns"));
        };
        let users = columns.iter().map(|(_, kind)| kind.buffers());
        let (trees_node, trees_buffer) =
            (node::COUNT + columns.len(), buffer::COUNT + users.sum::<usize>());
        let (tree_nodes, tree_buffers) =
            if has_trees { (node::TREES_COUNT, buffer::TREES_COUNT) } else { (0, 0) };
        if nodes.len() != trees_node + tree_nodes || buffers.len() != trees_buffer + tree_buffers {
            return Err(damaged("a batch lacks columns or has too many"));
        }
        let mut ours = (0..node::COUNT).chain(trees_node..nodes.len());
        if ours.any(|at| nodes.get(at).null_count() != 0) {
            return Err(damaged("a batch has missing values"));
        }
        // The lists of a batch are indexed with 32 bits.
        let count = |at: usize| u32::try_from(nodes.get(at).length()).map(u64::from).ok();
        let tree_count = if has_trees { count(nodes.len() - 1) } else { Some(0) };
        let counts = (count(node::BLOBS), count(node::PARTS), count(node::ITEMS), tree_count);
        let (Some(blobs @ 1..), Some(parts), Some(items), Some(tree_count)) = counts else {
            return Err(damaged("a batch has an impossible number of rows"));
        };
        // Rows are read by the counts above; the decoder of the user's columns uses each node's.
        let uneven = (0..nodes.len()).any(|at| {
            let rows = match at {
                ..node::PARTS | node::ITEMS_LIST => blobs,
                ..node::ITEMS => parts,
                at if at < trees_node => items,
                at if at + 1 < nodes.len() => blobs,
                _ => tree_count,
            };
            let nulls = u64::try_from(nodes.get(at).null_count());
            count(at) != Some(rows) || nulls.is_err() || nulls.is_ok_and(|nulls| nulls > rows)
        });
        if uneven {
            return Err(damaged("the columns of a batch differ in their rows"));
        }

        let body = (|| {
            // The decoder uses both lengths: one for the header, one for the body.
            let header = u64::try_from(block.metaDataLength()).ok()?;
            (header == message.len() as u64 + 8).then_some(())?;
            let start = u64::try_from(block.offset()).ok()?.checked_add(header)?;
            let end = start.checked_add(u64::try_from(block.bodyLength()).ok()?)?;
            (end <= file_end as u64).then_some(index(start)..index(end))
        })();
        let body = body.ok_or_else(|| damaged("a batch leaves the file"))?;
        let ranges: Option<Vec<Range<usize>>> = (0..buffers.len())
            .map(|at| {
                let start = u64::try_from(buffers.get(at).offset()).ok()?;
                let end = start.checked_add(u64::try_from(buffers.get(at).length()).ok()?)?;
                let start = (end <= body.len() as u64).then_some(start)?;
                Some(body.start + index(start)..body.start + index(end))
            })
            .collect();
        let buffers = ranges.ok_or_else(|| damaged("a column leaves its batch"))?;

        let mut needs = vec![
            (buffer::ADDRESS, blobs, Address::LEN),
            (buffer::START, blobs, 8),
            (buffer::LENGTH, blobs, 8),
            (buffer::PARTS, blobs + 1, 4),
            (buffer::OBJECT_ENDS, parts + 1, 4),
            (buffer::VERSION_ENDS, parts + 1, 4),
            (buffer::PART_OFFSET, parts, 8),
            (buffer::PART_LENGTH, parts, 8),
            (buffer::ITEMS, blobs + 1, 4),
            (buffer::ITEM_OFFSET, items, 8),
            (buffer::ITEM_LENGTH, items, 8),
        ];
        let mut at = buffer::COUNT;
        for (_, kind) in columns {
            needs.push(match kind {
                ColumnType::Bool => (at + 1, items.div_ceil(8), 1),
                ColumnType::Int | ColumnType::Float => (at + 1, items, 8),
                ColumnType::Text => (at + 1, items + 1, 4),
            });
            at += kind.buffers();
        }
        if has_trees {
            needs.extend([
                (trees_buffer + buffer::TREE_LEAF, blobs, 4),
                (trees_buffer + buffer::TREE, blobs + 1, 4),
                (trees_buffer + buffer::TREE_NODE, tree_count, Address::LEN),
            ]);
        }
        // The decoder panics at half a value.
        let fits = |(at, count, width): &(usize, u64, usize)| {
            let length = buffers[*at].len();
            length as u64 >= count * *width as u64 && length.is_multiple_of(*width)
        };
        if !needs.iter().all(fits) {
            return Err(damaged("a column is not as long as its rows"));
        }
        let RowsBefore { blobs: first_blob, items: first_item } = before;
        let nodes = tree_count;
        Ok(Self { block, body, first_blob, first_item, blobs, parts, items, nodes, buffers })
    }
}

/// The flatbuffer of the message at `offset`, copied so that it is aligned.
pub(crate) fn message_at(bytes: &[u8], offset: u64) -> Result<Vec<u8>, DigestError> {
    let message = (|| {
        let at = usize::try_from(offset).ok()?;
        let marker = u32_at(bytes, at)?;
        let length = u32_at(bytes, at.checked_add(4)?)?;
        let start = at.checked_add(8)?;
        let end = start.checked_add(length as usize)?;
        (marker == u32::MAX && u64::from(length) <= HEADER_SIZE_MAX).then_some(())?;
        bytes.get(start..end).map(<[u8]>::to_vec)
    })();
    message.ok_or_else(|| damaged("the header of a batch leaves the file"))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
}

/// Offsets within a mapped file fit the address space.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("64-bit addresses")
}

/// Rows of a batch as 32-bit numbers, whose range is an `ExactSizeIterator`.
fn narrow(rows: &Range<u64>) -> Range<u32> {
    let narrow = |row| u32::try_from(row).expect("a batch's rows are counted in 32 bits");
    narrow(rows.start)..narrow(rows.end)
}
