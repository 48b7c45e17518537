//! `forebay embed inspect`: the tables in a file, from its header alone.

use std::path::PathBuf;

use forebay_core::ByteSize;
use forebay_embed::{
    Contents, Source,
    format::{Dtype, Layout},
};
use serde::Serialize;

use crate::output::{self, Format, Verdict};

/// What to look at.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .safetensors, a .npy or a file of nothing but rows.
    file: PathBuf,
    /// For bare rows: what their numbers are (float32, float64, float16 or bfloat16).
    #[arg(long, value_name = "NAME", requires = "dimension")]
    dtype: Option<Dtype>,
    /// For bare rows: how many numbers a row has.
    #[arg(long, value_name = "N", requires = "dtype")]
    dimension: Option<u64>,
    /// How to report.
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
    /// Whether it can be looked up.
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
            forebay_embed::inspect_rows(&Source::file(&args.file).raw(dtype, dimension))?;
        let tensors = vec![Inspection::table(None, &layout)];
        return Ok(Inspected { format: "rows", bytes, tensors });
    }
    let (contents, bytes) = forebay_embed::inspect(&args.file)?;
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
