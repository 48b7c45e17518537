//! `forebay embed inspect`: the tables of a file, read from its header.

use std::path::PathBuf;

use forebay_core::ByteSize;
use forebay_embeddings::{
    Contents, Source,
    format::{Dtype, Layout},
};
use serde::Serialize;

use crate::output::{self, Format, Verdict};

pub const EXAMPLES: &str = "\
Examples:
  forebay embed inspect model.safetensors
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
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

#[derive(Debug, Serialize)]
struct Inspected {
    format: &'static str,
    bytes: u64,
    tensors: Vec<Inspection>,
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
    let inspected = inspect(args)?;
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
        return Ok(Inspected { format: "rows", bytes, tensors });
    }
    let (contents, bytes) = forebay_embeddings::inspect(&args.file)?;
    Ok(match contents {
        Contents::Npy { table } => {
            Inspected { format: "npy", bytes, tensors: vec![Inspection::table(None, &table)] }
        }
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
            Inspected { format: "safetensors", bytes, tensors: tensors.collect() }
        }
    })
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
    )
}
