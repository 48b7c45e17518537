//! The Arrow schema of a digest, and the positions of its buffers in a record batch.
//!
//! One row is one blob. Its parts and items are nested lists; the user's columns are fields of the
//! items. forebay's own columns come first, so the positions of their buffers are fixed and a
//! reader finds a value by arithmetic. The columns of hash trees, which format 1 does not have,
//! come last, at positions that are fixed from the end.

use std::{collections::HashMap, sync::Arc};

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};

use super::{ColumnType, DigestError, FORMAT, FORMAT_WITHOUT_TREES, Summary, damaged};
use forebay_core::{Address, dataset::chunking::Chunking};

/// Keys of the schema's metadata.
mod key {
    pub const FORMAT: &str = "forebay.format";
    pub const DATASET: &str = "forebay.dataset";
    pub const NAMESPACE: &str = "forebay.namespace";
    pub const ORIGIN: &str = "forebay.origin";
    pub const LAYOUT: &str = "forebay.layout";
    pub const CHUNKS: &str = "forebay.chunks";
    pub const PARTITIONS: &str = "forebay.partitions";
    pub const ITEMS: &str = "forebay.items";
    pub const BLOBS: &str = "forebay.blobs";
    pub const BYTES: &str = "forebay.bytes";
}

/// Keys of the footer's metadata, which is written last.
pub mod footer_key {
    /// BLAKE3 over the bodies of all record batches, in order.
    pub const CONTENT: &str = "forebay.content";
    /// BLAKE3 over everything that locates the content: schema, batch headers, blocks.
    pub const METADATA: &str = "forebay.metadata";
}

/// Positions of the field nodes of a record batch whose lengths a reader needs.
pub mod node {
    pub const BLOBS: usize = 0;
    pub const PARTS: usize = 4;
    /// The list of items. It and all nodes before the parts have a row for each blob.
    pub const ITEMS_LIST: usize = 9;
    pub const ITEMS: usize = 10;
    /// Nodes of forebay's columns without trees; the user's follow.
    pub const COUNT: usize = 13;
    /// Nodes of the columns of trees, after the user's: the leaf, the list, and its elements. The
    /// first two have a row for each blob.
    pub const TREES_COUNT: usize = 3;
}

/// Positions of the buffers of a record batch. Each field has a validity buffer before its data.
pub mod buffer {
    pub const ADDRESS: usize = 1;
    pub const START: usize = 3;
    pub const LENGTH: usize = 5;
    pub const PARTS: usize = 7;
    /// Offsets of the text, which is in the next buffer.
    pub const OBJECT_ENDS: usize = 10;
    pub const VERSION_ENDS: usize = 13;
    pub const PART_OFFSET: usize = 16;
    pub const PART_LENGTH: usize = 18;
    pub const ITEMS: usize = 20;
    pub const ITEM_OFFSET: usize = 23;
    pub const ITEM_LENGTH: usize = 25;
    /// Buffers of forebay's columns without trees; the user's follow.
    pub const COUNT: usize = 26;
    /// Buffers of the columns of trees, after the user's.
    pub const TREES_COUNT: usize = 6;
    /// Positions among those.
    pub const TREE_LEAF: usize = 1;
    pub const TREE: usize = 3;
    pub const TREE_NODE: usize = 5;
}

/// Position of the column of items, which contains the user's columns.
pub const ITEMS_COLUMN: usize = 4;
/// Number of forebay's fields of an item.
pub const ITEM_FIELDS: usize = 2;

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, false)
}

pub fn part_fields() -> Fields {
    Fields::from(vec![
        field("object", DataType::Utf8),
        field("version", DataType::Utf8),
        field("offset", DataType::UInt64),
        field("length", DataType::UInt64),
    ])
}

pub fn item_fields(columns: &[(String, ColumnType)]) -> Fields {
    let ours = [field("offset", DataType::UInt64), field("length", DataType::UInt64)];
    let users = columns.iter().map(|(name, kind)| Field::new(name, kind.data_type(), true));
    ours.into_iter().chain(users).collect()
}

/// The element of a list column.
pub fn element(fields: Fields) -> FieldRef {
    Arc::new(field("item", DataType::Struct(fields)))
}

/// The type of addresses and of the nodes of trees.
fn hash_type() -> DataType {
    DataType::FixedSizeBinary(i32::try_from(Address::LEN).expect("32"))
}

/// The element of the list of a tree's nodes.
pub fn tree_node() -> FieldRef {
    Arc::new(field("item", hash_type()))
}

fn fields(columns: &[(String, ColumnType)], has_trees: bool) -> Vec<Field> {
    let mut fields = vec![
        field("address", hash_type()),
        field("start", DataType::UInt64),
        field("length", DataType::UInt64),
        field("parts", DataType::List(element(part_fields()))),
        field("items", DataType::List(element(item_fields(columns)))),
    ];
    if has_trees {
        fields.push(field("leaf", DataType::UInt32));
        fields.push(field("tree", DataType::List(tree_node())));
    }
    fields
}

pub fn schema(summary: &Summary, columns: &[(String, ColumnType)], has_trees: bool) -> Schema {
    let format = if has_trees { FORMAT } else { FORMAT_WITHOUT_TREES };
    let metadata = [
        (key::FORMAT, format.to_string()),
        (key::DATASET, summary.dataset.to_string()),
        (key::NAMESPACE, summary.namespace.clone()),
        (key::ORIGIN, summary.origin.clone()),
        (key::LAYOUT, summary.layout.clone()),
        (key::CHUNKS, summary.chunking.chunks().to_string()),
        (key::PARTITIONS, summary.chunking.partitions().to_string()),
        (key::ITEMS, summary.items.to_string()),
        (key::BLOBS, summary.blobs.to_string()),
        (key::BYTES, summary.bytes.to_string()),
    ];
    let metadata: HashMap<_, _> = metadata.map(|(key, value)| (key.to_owned(), value)).into();
    Schema::new_with_metadata(fields(columns, has_trees), metadata)
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, DigestError> {
    text.parse().map_err(|_| damaged(format!("`{}` is not a count", text.escape_debug())))
}

/// Checks that a text has no control characters. Texts of a digest are printed on terminals.
pub fn one_line(text: &str) -> Result<&str, String> {
    if text.chars().any(char::is_control) {
        return Err(format!("`{}` has a control character", text.escape_debug()));
    }
    Ok(text)
}

/// What a schema says.
pub struct ReadSchema {
    pub summary: Summary,
    /// The user's columns.
    pub columns: Vec<(String, ColumnType)>,
    /// Whether blobs may have hash trees.
    pub has_trees: bool,
}

/// Parses a schema.
pub fn read_schema(schema: &Schema) -> Result<ReadSchema, DigestError> {
    let text = |key: &'static str| {
        schema.metadata.get(key).ok_or_else(|| damaged(format!("its `{key}` is missing")))
    };
    let line = |key| one_line(text(key)?).map(str::to_owned).map_err(damaged);

    let format = schema
        .metadata
        .get(key::FORMAT)
        .ok_or(DigestError::Foreign("an Arrow file, but not one that forebay wrote"))?;
    let has_trees = match number::<u64>(format)? {
        newer if newer > u64::from(FORMAT) => return Err(DigestError::Newer(format.clone())),
        number => number > u64::from(FORMAT_WITHOUT_TREES),
    };

    let item_type = schema.fields().get(ITEMS_COLUMN).map(|field| field.data_type());
    let columns = match item_type {
        Some(DataType::List(element)) => match element.data_type() {
            DataType::Struct(fields) => fields.iter().skip(ITEM_FIELDS),
            _ => return Err(damaged("its items are no structures")),
        },
        _ => return Err(damaged("it has no items")),
    };
    let columns = columns
        .map(|field| {
            let name = one_line(field.name()).map_err(damaged)?;
            let kind = ColumnType::from_data_type(field.data_type())
                .ok_or_else(|| damaged(format!("column `{name}` has an unknown type")))?;
            Ok((name.to_owned(), kind))
        })
        .collect::<Result<Vec<_>, DigestError>>()?;
    if schema.fields() != &Fields::from(fields(&columns, has_trees)) {
        return Err(damaged("its columns are not those of a digest"));
    }

    let chunking =
        Chunking::from_parts(number(text(key::CHUNKS)?)?, number(text(key::PARTITIONS)?)?)
            .ok_or_else(|| damaged("its chunking is impossible"))?;
    let summary = Summary {
        dataset: text(key::DATASET)?.parse().map_err(|error| damaged(format!("{error}")))?,
        namespace: line(key::NAMESPACE)?,
        origin: line(key::ORIGIN)?,
        layout: line(key::LAYOUT)?,
        chunking,
        items: number(text(key::ITEMS)?)?,
        blobs: number(text(key::BLOBS)?)?,
        bytes: number(text(key::BYTES)?)?,
    };
    Ok(ReadSchema { summary, columns, has_trees })
}
