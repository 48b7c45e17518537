//! Forged digests with correct checksums, which an attacker can compute.

use arrow_ipc::{
    Block, BodyCompression, BodyCompressionArgs, Buffer, FieldNode, Message, MessageArgs,
    MessageHeader, MetadataVersion, RecordBatch, RecordBatchArgs, root_as_message,
    writer::{DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteOptions, write_message},
};
use arrow_schema::{DataType, Field, Fields, Schema};
use flatbuffers::FlatBufferBuilder;
use proptest::prelude::*;

use super::{
    Blob, ColumnType, Digest, DigestError, DigestWriter, Header, exercise, header, read_back, rows,
    rows_with_trees, written,
};
use crate::format::{
    BLOB_LENGTH_MAX, ITEM_LENGTH_MAX,
    layout::{ITEM_FIELDS, ITEMS_COLUMN, buffer, element, node},
    read::message_at,
    write::{END_OF_STREAM, MAGIC, METADATA_CONTEXT, PREAMBLE, footer, hash_block},
};

/// Blobs of 11 + 0, 30 + 7, 7 + 7, 99 and 1 + 0 bytes.
const LENGTHS: [u64; 9] = [11, 0, 30, 7, 7, 7, 99, 1, 0];
const BYTES: u64 = 162;
/// The same with one long blob.
const LENGTHS_WITH_TREE: [u64; 9] = [11, 0, 30, 7, 7, 7, 5000, 1, 0];
/// The last row, and the first buffers of the user's columns.
const LAST: usize = 4;
const LABEL: usize = buffer::COUNT;
const FRAMES: usize = LABEL + 3;
const SCORE: usize = FRAMES + 4;
/// The first buffer and the first node of the columns of trees.
const TREES: usize = SCORE + 2;
const TREES_NODE: usize = node::COUNT + 4;

/// A digest of one batch, decoded: each field can be falsified before the file is sealed again.
#[derive(Clone)]
struct Forgery {
    schema: Schema,
    footer_schema: Option<Schema>,
    nodes: Vec<(i64, i64)>,
    buffers: Vec<(i64, i64)>,
    compressed: bool,
    body: Vec<u8>,
    /// Added to the correct block: offset, header length, body length.
    block: (i64, i32, i64),
}

impl Forgery {
    fn new() -> Self {
        Self::of(&rows(Some(40), &LENGTHS))
    }

    /// The same with a hash tree of five nodes, of the blob in row 3.
    fn with_trees() -> Self {
        Self::of(&rows_with_trees(Some(40), &LENGTHS_WITH_TREE))
    }

    fn of(rows: &[Blob]) -> Self {
        let bytes = written(rows);
        let digest = Digest::open(bytes.into()).unwrap();
        let [batch] = &digest.batches[..] else { panic!("one batch") };
        let offset = u64::try_from(batch.block.offset()).unwrap();
        let message = message_at(&digest.bytes, offset).unwrap();
        let header = root_as_message(&message).unwrap().header_as_record_batch().unwrap();
        let nodes = header.nodes().unwrap().iter();
        let buffers = header.buffers().unwrap().iter();
        Self {
            schema: digest.schema.as_ref().clone(),
            footer_schema: None,
            nodes: nodes.map(|node| (node.length(), node.null_count())).collect(),
            buffers: buffers.map(|buffer| (buffer.offset(), buffer.length())).collect(),
            compressed: false,
            body: digest.bytes[batch.body.clone()].to_vec(),
            block: (0, 0, 0),
        }
    }

    /// A file with this content and matching checksums.
    fn seal(&self) -> Vec<u8> {
        let mut file = PREAMBLE.to_vec();
        let mut hash = blake3::Hasher::new_derive_key(METADATA_CONTEXT);
        let options = IpcWriteOptions::try_new(64, false, MetadataVersion::V5).unwrap();
        let schema = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &self.schema,
            &mut DictionaryTracker::new(true),
            &options,
        );
        let batch = EncodedData { ipc_message: self.message(), arrow_data: self.body.clone() };
        let mut block = Block::default();
        for message in [schema, batch] {
            let start = file.len();
            let (header, body) = write_message(&mut file, message, &options).unwrap();
            hash.update(&file[start + 8..start + header]);
            block = Block::new(
                i64::try_from(start).unwrap() + self.block.0,
                i32::try_from(header).unwrap() + self.block.1,
                i64::try_from(body).unwrap() + self.block.2,
            );
        }
        hash_block(&mut hash, &block);
        let mut content = blake3::Hasher::new();
        content.update(&self.body);
        file.extend(END_OF_STREAM);
        let footer_schema = self.footer_schema.as_ref().unwrap_or(&self.schema);
        let footer = footer(footer_schema, &[block], &hash, &content);
        file.extend(&footer);
        file.extend(u32::try_from(footer.len()).unwrap().to_le_bytes());
        file.extend(MAGIC);
        file
    }

    fn message(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let nodes: Vec<_> = self.nodes.iter().map(|node| FieldNode::new(node.0, node.1)).collect();
        let buffers: Vec<_> = self.buffers.iter().map(|at| Buffer::new(at.0, at.1)).collect();
        let batch = RecordBatchArgs {
            length: self.nodes[node::BLOBS].0,
            nodes: Some(builder.create_vector(&nodes)),
            buffers: Some(builder.create_vector(&buffers)),
            compression: self
                .compressed
                .then(|| BodyCompression::create(&mut builder, &BodyCompressionArgs::default())),
            variadicBufferCounts: None,
        };
        let batch = RecordBatch::create(&mut builder, &batch);
        let message = MessageArgs {
            version: MetadataVersion::V5,
            header_type: MessageHeader::RecordBatch,
            header: Some(batch.as_union_value()),
            bodyLength: self.length(),
            custom_metadata: None,
        };
        let message = Message::create(&mut builder, &message);
        builder.finish(message, None);
        builder.finished_data().to_vec()
    }

    fn length(&self) -> i64 {
        i64::try_from(self.body.len()).unwrap()
    }

    fn put<const N: usize>(&mut self, buffer: usize, row: usize, value: [u8; N]) {
        let at = usize::try_from(self.buffers[buffer].0).unwrap() + row * N;
        self.body[at..at + N].copy_from_slice(&value);
    }

    fn number(&mut self, buffer: usize, row: usize, value: u64) {
        self.put(buffer, row, value.to_le_bytes());
    }

    fn end(&mut self, buffer: usize, row: usize, value: u32) {
        self.put(buffer, row, value.to_le_bytes());
    }

    fn says(&mut self, key: &str, value: &str) {
        self.schema.metadata.insert(format!("forebay.{key}"), value.to_owned()).unwrap();
    }

    fn column(&mut self, name: &str, kind: DataType) {
        let mut fields = self.schema.fields().to_vec();
        let DataType::List(items) = fields[ITEMS_COLUMN].data_type() else { panic!("a list") };
        let DataType::Struct(items) = items.data_type() else { panic!("of structures") };
        let mut items = items.to_vec();
        items[ITEM_FIELDS] = Field::new(name, kind, true).into();
        let items = DataType::List(element(Fields::from(items)));
        fields[ITEMS_COLUMN] = Field::new("items", items, false).into();
        self.schema.fields = fields.into();
    }
}

/// A name, the edit of a digest, and a phrase of the expected error.
type Case = (&'static str, fn(&mut Forgery), &'static str);

const HEADERS: &[Case] = &[
    (
        "schemas differ",
        |f| {
            f.footer_schema = Some(f.schema.clone());
            f.says("origin", "s3://elsewhere");
        },
        "its two schemas differ",
    ),
    ("blobs announced", |f| f.says("blobs", "6"), "the rows it announces"),
    ("items announced", |f| f.says("items", "8"), "the rows it announces"),
    ("bytes beyond the limit", |f| f.says("bytes", &(1_u64 << 61).to_string()), "than 1 EiB"),
    ("control in origin", |f| f.says("origin", "s3://a\x1b[2Jb"), "has a control character"),
    ("control in layout", |f| f.says("layout", "files\n"), "has a control character"),
    ("control in namespace", |f| f.says("namespace", "pub\rlic"), "has a control character"),
    ("control in column", |f| f.column("la\x07bel", DataType::Utf8), "has a control character"),
    ("control in odd column", |f| f.column("\x07", DataType::Date32), "has a control character"),
    ("unknown type", |f| f.column("label", DataType::Date32), "has an unknown type"),
    ("compression", |f| f.compressed = true, "header of a batch is unreadable"),
    ("node missing", |f| f.nodes.truncate(16), "lacks columns or has too many"),
    ("node too many", |f| f.nodes.push((9, 0)), "lacks columns or has too many"),
    ("buffer missing", |f| f.buffers.truncate(SCORE + 1), "lacks columns or has too many"),
    ("buffer too many", |f| f.buffers.push((0, 0)), "lacks columns or has too many"),
    ("nulls of ours", |f| f.nodes[node::COUNT - 1].1 = 1, "has missing values"),
    ("no rows", |f| f.nodes[node::BLOBS].0 = 0, "impossible number of rows"),
    ("negative rows", |f| f.nodes[node::ITEMS].0 = -1, "impossible number of rows"),
    ("rows of starts", |f| f.nodes[1].0 = 4, "differ in their rows"),
    ("rows of the list", |f| f.nodes[node::ITEMS_LIST].0 = 9, "differ in their rows"),
    ("rows of objects", |f| f.nodes[node::PARTS + 1].0 = -1, "differ in their rows"),
    ("rows of item lengths", |f| f.nodes[node::COUNT - 1].0 = i64::MAX, "differ in their rows"),
    ("rows of a column", |f| f.nodes[node::COUNT].0 = 8, "differ in their rows"),
    ("nulls of a column", |f| f.nodes[node::COUNT + 1].1 = 10, "differ in their rows"),
    ("negative nulls", |f| f.nodes[node::COUNT].1 = -1, "differ in their rows"),
    ("batch begins elsewhere", |f| f.block.0 = 1 << 40, "leaves the file"),
    ("batch begins before", |f| f.block.0 = i64::MIN, "leaves the file"),
    ("header is shorter", |f| f.block.1 = -64, "a batch leaves the file"),
    ("header is longer", |f| f.block.1 = 64, "a batch leaves the file"),
    // The end of the stream takes eight bytes, then the footer begins.
    ("body is longer", |f| f.block.2 = 9, "a batch leaves the file"),
    ("body is negative", |f| f.block.2 = -1 << 40, "a batch leaves the file"),
    ("ours far away", |f| f.buffers[buffer::START].0 = 1 << 40, "leaves its batch"),
    ("column far away", |f| f.buffers[LABEL].0 = 1 << 40, "leaves its batch"),
    ("column long", |f| f.buffers[LABEL + 2].1 = 1 << 40, "leaves its batch"),
    ("column before", |f| f.buffers[FRAMES + 1].0 = -8, "leaves its batch"),
    ("column negative", |f| f.buffers[SCORE + 1].1 = -1, "leaves its batch"),
    ("column by a byte", |f| f.buffers[SCORE] = (f.length(), 1), "leaves its batch"),
    ("sum overflows", |f| f.buffers[SCORE] = (i64::MAX, i64::MAX), "leaves its batch"),
    ("too few starts", |f| f.buffers[buffer::START].1 -= 8, "not as long as its rows"),
    ("too few ends", |f| f.buffers[LABEL + 1].1 -= 4, "not as long as its rows"),
    ("half an end", |f| f.buffers[LABEL + 1].1 += 1, "not as long as its rows"),
    ("half an end of ours", |f| f.buffers[buffer::ITEMS].1 += 1, "not as long as its rows"),
    ("too few numbers", |f| f.buffers[FRAMES + 1].1 -= 8, "not as long as its rows"),
    ("too few bits", |f| f.buffers[FRAMES + 3].1 = 1, "not as long as its rows"),
];

const ROWS: &[Case] = &[
    ("layout", |f| f.says("layout", "tar"), "`tar` is not a known layout"),
    ("no item", |f| f.end(buffer::ITEMS, 1, 0), "row 0 overlaps its neighbour or has no item"),
    ("items overlap", |f| f.end(buffer::ITEMS, 0, 1), "row 0 overlaps its neighbour"),
    ("parts overlap", |f| f.end(buffer::PARTS, 0, 1), "row 0 overlaps its neighbour"),
    ("ends descend", |f| f.end(buffer::ITEMS, LAST + 1, 6), "leaves its column"),
    ("end by one", |f| f.end(buffer::PARTS, LAST + 1, 10), "leaves its column"),
    ("items of no blob", |f| f.end(buffer::ITEMS, LAST + 1, 8), "parts or items of no blob"),
    ("parts of no blob", |f| f.end(buffer::PARTS, LAST + 1, 8), "parts or items of no blob"),
    ("start", |f| f.number(buffer::START, 2, 47), "row 2 does not begin where the last one ends"),
    ("order", |f| f.put(buffer::OBJECT_ENDS + 1, 0, *b"d"), "row 0 is out of order"),
    ("`..`", |f| f.put(buffer::OBJECT_ENDS + 1, 0, *b"../../."), "row 0 names `../../."),
    ("control in name", |f| f.put(buffer::OBJECT_ENDS + 1, 0, [7]), "has a control character"),
    ("name not UTF-8", |f| f.put(buffer::OBJECT_ENDS + 1, 0, [0xff]), "a name is not UTF-8"),
    ("length", |f| f.number(buffer::PART_LENGTH, 0, 12), "row 0 is not as long as its parts"),
    ("part's end", |f| f.number(buffer::PART_OFFSET, 0, u64::MAX), "ends past byte 2^48"),
    ("part's length", |f| f.number(buffer::PART_LENGTH, 1, u64::MAX), "ends past byte 2^48"),
    (
        "part ends late",
        |f| f.number(buffer::PART_OFFSET, 0, BLOB_LENGTH_MAX - 10),
        "ends past byte 2^48",
    ),
    ("sum of rows", |f| f.number(buffer::LENGTH, 0, u64::MAX), "is longer than its dataset"),
    ("length by a byte", |f| f.number(buffer::LENGTH, LAST, 2), "is longer than its dataset"),
    (
        "long blob",
        |f| {
            f.says("bytes", &(BYTES + BLOB_LENGTH_MAX).to_string());
            f.number(buffer::LENGTH, LAST, 1 + BLOB_LENGTH_MAX);
        },
        "is longer than its dataset, or than 2^48",
    ),
    (
        "long item",
        |f| {
            f.says("bytes", &(BYTES + ITEM_LENGTH_MAX).to_string());
            f.number(buffer::LENGTH, LAST, 1 + ITEM_LENGTH_MAX);
            f.number(buffer::PART_LENGTH, 7, 1 + ITEM_LENGTH_MAX);
            f.number(buffer::ITEM_LENGTH, 7, 1 + ITEM_LENGTH_MAX);
        },
        "is longer than 64 GiB",
    ),
    ("item by a byte", |f| f.number(buffer::ITEM_LENGTH, 0, 12), "leaves its blob"),
    ("item's end", |f| f.number(buffer::ITEM_OFFSET, 0, u64::MAX), "leaves its blob"),
    (
        "bytes announced",
        |f| f.says("bytes", &(BYTES + 1).to_string()),
        "not as long as it announces",
    ),
    ("dataset", |f| f.says("dataset", &"ab".repeat(32)), "do not hash to its dataset id"),
    ("address", |f| f.put(buffer::ADDRESS, 0, [7; 32]), "do not hash to its dataset id"),
    ("label not UTF-8", |f| f.put(LABEL + 2, 0, [0xff]), "Invalid UTF8"),
    ("labels descend", |f| f.end(LABEL + 1, 1, 15), "non-monotonic"),
    ("label leaves", |f| f.end(LABEL + 1, 9, 1 << 20), "larger than values length"),
    ("label before", |f| f.end(LABEL + 1, 0, u32::MAX), "to usize"),
    ("nulls miscounted", |f| f.nodes[node::COUNT + 1].1 = 1, "actual number of nulls"),
    ("no validity", |f| f.buffers[FRAMES].1 = 0, "null_bit_buffer size too small"),
];

const TREE_HEADERS: &[Case] = &[
    ("node missing", |f| f.nodes.truncate(TREES_NODE + 2), "lacks columns or has too many"),
    ("buffer missing", |f| f.buffers.truncate(TREES + 5), "lacks columns or has too many"),
    ("nulls of leaves", |f| f.nodes[TREES_NODE].1 = 1, "has missing values"),
    ("nulls of nodes", |f| f.nodes[TREES_NODE + 2].1 = 1, "has missing values"),
    ("negative nodes", |f| f.nodes[TREES_NODE + 2].0 = -1, "impossible number of rows"),
    ("rows of leaves", |f| f.nodes[TREES_NODE].0 = 4, "differ in their rows"),
    ("rows of trees", |f| f.nodes[TREES_NODE + 1].0 = 6, "differ in their rows"),
    ("more nodes", |f| f.nodes[TREES_NODE + 2].0 = 6, "not as long as its rows"),
    ("too few leaves", |f| f.buffers[TREES + buffer::TREE_LEAF].1 -= 4, "as long as its rows"),
    ("too few ends", |f| f.buffers[TREES + buffer::TREE].1 -= 4, "not as long as its rows"),
    ("too few nodes", |f| f.buffers[TREES + buffer::TREE_NODE].1 -= 32, "as long as its rows"),
    ("half a node", |f| f.buffers[TREES + buffer::TREE_NODE].1 += 1, "as long as its rows"),
    ("nodes far away", |f| f.buffers[TREES + 5].0 = 1 << 40, "leaves its batch"),
    ("format 1", |f| f.says("format", "1"), "columns are not those of a digest"),
    ("format 0", |f| f.says("format", "0"), "columns are not those of a digest"),
];

const TREE_ROWS: &[Case] = &[
    ("no power of two", |f| f.end(TREES + buffer::TREE_LEAF, 3, 1025), "does not fit its blob"),
    ("leaf of zero", |f| f.end(TREES + buffer::TREE_LEAF, 3, 0), "does not fit its blob"),
    ("long leaf", |f| f.end(TREES + buffer::TREE_LEAF, 3, 1 << 21), "does not fit its blob"),
    ("other leaf", |f| f.end(TREES + buffer::TREE_LEAF, 3, 2048), "does not fit its blob"),
    ("leaf without nodes", |f| f.end(TREES + buffer::TREE_LEAF, 0, 1024), "does not fit"),
    ("nodes overlap", |f| f.end(TREES + buffer::TREE, 0, 1), "leaves its column"),
    ("nodes descend", |f| f.end(TREES + buffer::TREE, 5, 4), "leaves its column"),
    ("end by one", |f| f.end(TREES + buffer::TREE, 5, 6), "leaves its column"),
    ("nodes of another", |f| f.end(TREES + buffer::TREE, 3, 1), "does not fit its blob"),
    (
        "nodes of no blob",
        |f| (4..6).for_each(|row| f.end(TREES + buffer::TREE, row, 4)),
        "does not fit its blob",
    ),
    (
        "nodes before the first blob",
        |f| (0..4).for_each(|row| f.end(TREES + buffer::TREE, row, 1)),
        "row 0 has nodes of another blob's hash tree",
    ),
];

#[test]
fn an_unchanged_digest_passes() {
    let honest = Digest::open(Forgery::new().seal().into()).unwrap();
    exercise(&honest).unwrap();
    assert_eq!(read_back(&honest), rows(Some(40), &LENGTHS));
    assert_eq!((honest.summary().bytes, honest.summary().blobs), (BYTES, LAST as u64 + 1));
    let honest = Digest::open(Forgery::with_trees().seal().into()).unwrap();
    exercise(&honest).unwrap();
    assert_eq!(read_back(&honest), rows_with_trees(Some(40), &LENGTHS_WITH_TREE));
}

#[test]
fn each_forgery_has_its_own_error() {
    let mut wrong = Vec::new();
    let all: [(_, _, fn() -> Forgery); 4] = [
        (HEADERS, false, Forgery::new),
        (ROWS, true, Forgery::new),
        (TREE_HEADERS, false, Forgery::with_trees),
        (TREE_ROWS, true, Forgery::with_trees),
    ];
    for (cases, opens, honest) in all {
        for (name, edit, phrase) in cases {
            let mut forgery = honest();
            edit(&mut forgery);
            let opened = Digest::open(forgery.seal().into());
            let result =
                if opens { opened.and_then(|digest| digest.check()) } else { opened.map(drop) };
            match result {
                Err(DigestError::Damaged(text)) if text.contains(phrase) => {}
                other => wrong.push(format!("{name}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A digest that could not be opened must not be written.
#[test]
fn control_characters_are_not_written() {
    let mut header = header(&rows(None, &[1]), &[("la\nbel", ColumnType::Int)]);
    let refused = |header: &Header| {
        matches!(DigestWriter::new(Vec::new(), header.clone()), Err(DigestError::Unwritable(_)))
    };
    assert!(refused(&header));
    header.columns.clear();
    assert!(!refused(&header));
    header.summary.origin.push('\r');
    assert!(refused(&header));
}

/// A digest that could not be read must not be written.
#[test]
fn lengths_beyond_the_limits_are_not_written() {
    for (item, is_written) in [(ITEM_LENGTH_MAX, true), (ITEM_LENGTH_MAX + 1, false)] {
        let rows = rows(None, &[item]);
        let mut writer = DigestWriter::new(Vec::new(), header(&rows, &[])).unwrap();
        let pushed = writer.push(&rows[0], &[vec![]]);
        assert_eq!(pushed.is_ok(), is_written, "{pushed:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Behind correct checksums, no metadata or content causes a panic.
    #[test]
    fn sealed_forgeries_never_panic(
        edits in proptest::collection::vec(
            (0..7, any::<prop::sample::Index>(), prop_oneof![-9_i64..200, any::<i64>()]),
            1..5,
        ),
        has_trees in any::<bool>(),
    ) {
        let mut forgery = if has_trees { Forgery::with_trees() } else { Forgery::new() };
        for (kind, at, value) in edits {
            let (node, buffer) = (at.index(forgery.nodes.len()), at.index(forgery.buffers.len()));
            match kind {
                0 => forgery.nodes[node].0 = value,
                1 => forgery.nodes[node].1 = value,
                2 => forgery.buffers[buffer].0 = value,
                3 => forgery.buffers[buffer].1 = value,
                4 => forgery.block.1 = i32::try_from(value % 4096).unwrap(),
                5 => forgery.block.2 = value % 4096,
                _ => {
                    let at = at.index(forgery.body.len() / 4) * 4;
                    forgery.body[at..at + 4].copy_from_slice(&value.to_le_bytes()[..4]);
                }
            }
        }
        if let Ok(digest) = Digest::open(forgery.seal().into()) {
            let _ = exercise(&digest);
        }
    }
}
