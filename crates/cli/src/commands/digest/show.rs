//! `forebay digest show`: the summary and the first items of a digest.

use std::fmt::Write as _;

use anyhow::Context as _;
use arrow_array::{
    Array as _, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray, cast::AsArray as _,
};
use forebay_core::ByteSize;
use forebay_digest::{BlobView, Digest, Layout, Summary};
use serde::Serialize;

use crate::{
    args::digest::DigestArg,
    output::{self, Format, Verdict},
};

pub const EXAMPLES: &str = "\
Examples:
  forebay digest show train.digest
  forebay digest show s3://bucket/train
  forebay digest show train.digest --items 20 --format json | jq .first_items";

/// What to show.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The digest, or the URL of a dataset that was read before.
    #[arg(value_name = "DIGEST")]
    file: DigestArg,
    /// Show this number of items.
    #[arg(long, value_name = "N", default_value_t = 5)]
    items: u64,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    summary: Summary,
    /// Blobs with a hash tree.
    trees: u64,
    item_length: Lengths,
    blob_length: Lengths,
    columns: Vec<Column>,
    first_items: Vec<Item>,
}

#[derive(Debug, Serialize)]
struct Lengths {
    min: u64,
    mean: u64,
    max: u64,
}

#[derive(Debug, Serialize)]
struct Column {
    name: String,
    #[serde(rename = "type")]
    kind: forebay_digest::ColumnType,
}

#[derive(Debug, Serialize)]
struct Item {
    name: String,
    blob: String,
    offset: u64,
    length: u64,
    columns: serde_json::Map<String, serde_json::Value>,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let file = args.file.open()?;
    let shown = inspect(&file.digest, args.items)?;
    match args.format {
        Format::Json => output::json(&shown)?,
        Format::Text => output::data(&describe(&shown))?,
    }
    Ok(Verdict::Yes)
}

fn inspect(digest: &Digest, items: u64) -> anyhow::Result<Shown> {
    let (mut item_length, mut blob_length) = (LengthStats::default(), LengthStats::default());
    let mut trees = 0;
    for blob in digest.blobs() {
        let blob = blob?;
        trees += u64::from(blob.tree()?.is_some());
        blob_length.add(blob.length);
        for item in blob.items() {
            item_length.add(item?.1);
        }
    }
    let columns = digest.columns().iter();
    Ok(Shown {
        summary: digest.summary().clone(),
        trees,
        item_length: item_length.lengths(),
        blob_length: blob_length.lengths(),
        columns: columns.map(|(name, kind)| Column { name: name.clone(), kind: *kind }).collect(),
        first_items: first_items(digest, items)?,
    })
}

#[derive(Default)]
struct LengthStats {
    count: u64,
    sum: u128,
    min: Option<u64>,
    max: u64,
}

impl LengthStats {
    fn add(&mut self, length: u64) {
        self.count += 1;
        self.sum += u128::from(length);
        self.min = Some(self.min.map_or(length, |min| min.min(length)));
        self.max = self.max.max(length);
    }

    fn lengths(&self) -> Lengths {
        let mean = u64::try_from(self.sum / u128::from(self.count.max(1))).unwrap_or(u64::MAX);
        Lengths { min: self.min.unwrap_or(0), mean, max: self.max }
    }
}

fn first_items(digest: &Digest, count: u64) -> anyhow::Result<Vec<Item>> {
    let columns: Vec<(String, Vec<ArrayRef>)> = digest
        .columns()
        .iter()
        .map(|(name, _)| Ok((name.clone(), digest.column(name)?.unwrap_or_default())))
        .collect::<anyhow::Result<_>>()?;
    let mut items = Vec::new();
    for blob in digest.blobs() {
        let blob = blob?;
        for (at, item) in blob.items().enumerate() {
            let ordinal = items.len() as u64;
            if ordinal == count {
                return Ok(items);
            }
            let (offset, length) = item?;
            let values = columns.iter().map(|(name, all)| (name.clone(), value(all, ordinal)));
            items.push(Item {
                name: name_of(&blob, at, offset)?,
                blob: blob.address.to_string(),
                offset,
                length,
                columns: values.collect(),
            });
        }
    }
    Ok(items)
}

/// The name of an item: its object, or object and offset if the object has several items.
fn name_of(blob: &BlobView<'_>, at: usize, offset: u64) -> anyhow::Result<String> {
    if blob.parts().len() == blob.items().len() && blob.parts().len() > 1 {
        let part = blob.parts().nth(at).context("a pack has one part per item")??;
        return Ok(part.object.to_owned());
    }
    let part = blob.parts().next().context("a blob with items has parts")??;
    let whole = blob.items().len() == 1 && part.offset == 0;
    let suffix = if whole { String::new() } else { format!("@{}", part.offset + offset) };
    Ok(format!("{}{suffix}", part.object))
}

fn value(arrays: &[ArrayRef], ordinal: u64) -> serde_json::Value {
    let mut at = usize::try_from(ordinal).unwrap_or(usize::MAX);
    for array in arrays {
        if at >= array.len() {
            at -= array.len();
            continue;
        }
        if array.is_null(at) {
            break;
        }
        return if let Some(bools) = array.as_boolean_opt() {
            BooleanArray::value(bools, at).into()
        } else if let Some(ints) = array.as_any().downcast_ref::<Int64Array>() {
            ints.value(at).into()
        } else if let Some(floats) = array.as_any().downcast_ref::<Float64Array>() {
            floats.value(at).into()
        } else if let Some(texts) = array.as_any().downcast_ref::<StringArray>() {
            texts.value(at).into()
        } else {
            serde_json::Value::Null
        };
    }
    serde_json::Value::Null
}

/// A value in a table: strings without quotes, `-` for a missing value.
fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => text.escape_debug().to_string(),
        value => value.to_string(),
    }
}

/// A layout in words.
fn layout_name(layout: &str) -> String {
    match layout.parse() {
        Ok(Layout::Pack(size)) => format!("pack, up to {size}"),
        Ok(Layout::Records(records)) => format!("records of {}", records.record()),
        Ok(Layout::Tar(size)) => format!("tar, blobs of up to {size}"),
        _ => layout.to_owned(),
    }
}

fn describe(shown: &Shown) -> String {
    let Summary { dataset, namespace, origin, layout, chunking, items, blobs, bytes } =
        &shown.summary;
    let lengths = |l: &Lengths| {
        format!(
            "{} to {}, mean {}",
            ByteSize(l.min).rounded(),
            ByteSize(l.max).rounded(),
            ByteSize(l.mean).rounded()
        )
    };
    let columns: Vec<_> = shown
        .columns
        .iter()
        .map(|column| format!("{} ({})", column.name, format!("{:?}", column.kind).to_lowercase()))
        .collect();
    let mut text = format!(
        "dataset    {dataset}\norigin     {origin}\nlayout     {}\nnamespace  {namespace}\n\
         items      {items} ({})\nblobs      {blobs} ({})\nbytes      {}\n\
         trees      {}\n\
         chunks     {}, each a cross-section of the dataset\ncolumns    {}\n",
        layout_name(layout),
        lengths(&shown.item_length),
        lengths(&shown.blob_length),
        ByteSize(*bytes).rounded(),
        match shown.trees {
            0 => "none".to_owned(),
            trees => format!("{} with a hash tree", output::count(trees, "blob")),
        },
        chunking.chunks(),
        if columns.is_empty() { "none".to_owned() } else { columns.join(", ") },
    );
    if !shown.first_items.is_empty() {
        let mut header = vec!["ITEM", "LENGTH", "BLOB", "OFFSET"];
        header.extend(shown.columns.iter().map(|column| column.name.as_str()));
        let rows: Vec<_> = shown
            .first_items
            .iter()
            .map(|item| {
                let mut row = vec![
                    item.name.escape_debug().to_string(),
                    ByteSize(item.length).rounded(),
                    item.blob[..12].to_owned(),
                    item.offset.to_string(),
                ];
                row.extend(shown.columns.iter().map(|column| cell(&item.columns[&column.name])));
                row
            })
            .collect();
        let _ = write!(text, "\n{}", output::table(&header, &rows));
        let more = items - shown.first_items.len() as u64;
        if more > 0 {
            let _ = writeln!(text, "… and {more} more (--items N shows more)");
        }
    }
    text
}
