//! `forebay embed inspect`: the tables of a file, read from its header.

use std::path::PathBuf;

use forebay_core::ByteSize;
use forebay_embeddings::{
    Contents, MemoryDivision, Options, Source, Tables,
    format::{Dtype, Layout},
};
use serde::Serialize;

use crate::output::{self, Format, Verdict};

pub const EXAMPLES: &str = "\
Examples:
  forebay embed inspect model.safetensors
  forebay embed inspect model.safetensors --memory 2GiB
  forebay embed inspect rows.bin --dtype float16 --dimension 64";

/// What to inspect.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .safetensors file, a .npy file, or a file of bare rows.
    file: PathBuf,
    /// Read bare rows of this type.
    ///
    /// Types: float32, float64, float16, bfloat16, int8, int4, int8-tbe, int4-tbe.
    #[arg(long, value_name = "NAME", requires = "dimension")]
    dtype: Option<Dtype>,
    /// Read bare rows of this number of values.
    #[arg(long, value_name = "N", requires = "dtype")]
    dimension: Option<u64>,
    /// Also show how this memory divides between rows and bookkeeping, for all tables of the file.
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Inspected {
    format: &'static str,
    bytes: u64,
    tensors: Vec<Inspection>,
    #[serde(skip_serializing_if = "Option::is_none")]
    division: Option<MemoryDivision>,
}

#[derive(Debug, Serialize)]
struct Inspection {
    name: Option<String>,
    dtype: String,
    shape: Vec<u64>,
    /// Whether it is a table.
    table: bool,
    bytes: Option<u64>,
    row_bytes: Option<u32>,
    offset: Option<u64>,
}

impl Inspection {
    fn table(name: Option<String>, layout: &Layout) -> Self {
        Self {
            name,
            dtype: layout.dtype.to_string(),
            shape: vec![layout.rows, u64::from(layout.dimension)],
            table: true,
            bytes: Some(layout.bytes()),
            row_bytes: Some(layout.row_bytes()),
            offset: Some(layout.offset),
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut inspected = inspect(args)?;
    if let Some(memory) = args.memory {
        inspected.division = Some(divide(args, &inspected, memory)?);
    }
    match args.format {
        Format::Json => output::json(&inspected)?,
        Format::Text => output::data(&describe(&inspected))?,
    }
    Ok(Verdict::Yes)
}

fn inspect(args: &Args) -> anyhow::Result<Inspected> {
    if let (Some(dtype), Some(dimension)) = (args.dtype, args.dimension) {
        let (layout, bytes) =
            forebay_embeddings::inspect_rows(&Source::file(&args.file).raw(dtype, dimension))?;
        let tensors = vec![Inspection::table(None, &layout)];
        return Ok(Inspected { format: "rows", bytes, tensors, division: None });
    }
    let (contents, bytes) = forebay_embeddings::inspect(&args.file)?;
    Ok(match contents {
        Contents::Npy { table } => Inspected {
            format: "npy",
            bytes,
            tensors: vec![Inspection::table(None, &table)],
            division: None,
        },
        Contents::Safetensors { tensors } => {
            let tensors = tensors.into_iter().map(|tensor| match &tensor.table {
                Some(layout) => Inspection::table(Some(tensor.name), layout),
                None => Inspection {
                    name: Some(tensor.name),
                    dtype: tensor.dtype,
                    shape: tensor.shape,
                    table: false,
                    bytes: None,
                    row_bytes: None,
                    offset: None,
                },
            });
            Inspected { format: "safetensors", bytes, tensors: tensors.collect(), division: None }
        }
    })
}

/// Opens all tables of the file with this memory, which reads headers only.
fn divide(args: &Args, inspected: &Inspected, memory: ByteSize) -> anyhow::Result<MemoryDivision> {
    let file = Source::file(&args.file);
    let tables = inspected.tensors.iter().filter(|tensor| tensor.table);
    let sources: Vec<Source> = tables
        .map(|tensor| match (&tensor.name, args.dtype, args.dimension) {
            (Some(name), ..) => file.clone().tensor(name),
            (None, Some(dtype), Some(dimension)) => file.clone().raw(dtype, dimension),
            (None, ..) => file.clone(),
        })
        .collect();
    Ok(Tables::open(&sources, &Options::new(memory))?.division())
}

/// A line per kind of bytes.
fn describe_division(division: &MemoryDivision) -> String {
    let line = |kind: &str, bytes: u64| vec![kind.to_owned(), ByteSize(bytes).to_string()];
    let books = division.directory_bytes + division.ghost_bytes;
    let rows = [
        line(&format!("{} pinned tables", division.pinned_tables), division.pinned_bytes),
        line(&format!("{} rows of the others", division.rows), division.row_bytes),
        line("directory", division.directory_bytes),
        line("ghosts", division.ghost_bytes),
        line("tuning", division.tuning_bytes),
        line("buffers, at most", division.buffer_bytes),
    ];
    let per_row = books as f64 / division.rows.max(1) as f64;
    let table = output::table(&["MEMORY", "SIZE"], &rows);
    if division.rows == 0 {
        table
    } else {
        format!("{table}{per_row:.1} bytes of bookkeeping per row\n")
    }
}

fn describe(inspected: &Inspected) -> String {
    let row = |tensor: &Inspection| {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        vec![
            tensor.name.as_ref().map_or("-".to_owned(), |name| name.escape_debug().to_string()),
            tensor.dtype.escape_debug().to_string(),
            shape.join(" x "),
            tensor.row_bytes.map_or("-".to_owned(), |bytes| format!("{bytes} B")),
            tensor.bytes.map_or("-".to_owned(), |bytes| ByteSize(bytes).to_string()),
            if tensor.table { "yes" } else { "no" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = inspected.tensors.iter().map(row).collect();
    let tables = inspected.tensors.iter().filter(|tensor| tensor.table).count() as u64;
    let header = ["TENSOR", "DTYPE", "SHAPE", "ROW", "SIZE", "TABLE"];
    format!(
        "{}, {}, {}\n{}",
        inspected.format,
        ByteSize(inspected.bytes),
        output::count(tables, "table"),
        output::table(&header, &rows)
    ) + &inspected.division.as_ref().map(describe_division).unwrap_or_default()
}
