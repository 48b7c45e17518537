//! `forebay embed quantize`: writes a table again in fewer bits.

use std::path::PathBuf;

use forebay_core::ByteSize;
use forebay_embeddings::{
    Source,
    codes::{Code, RangeChoice},
    format::Dtype,
};

use crate::output::{self, Format, Verdict};

pub const EXAMPLES: &str = "\
Examples:
  forebay embed quantize items.npy items.i4 --code i4
  forebay embed quantize model.safetensors users.i8 --tensor emb.0.weight --code i8-tbe
  forebay embed quantize rows.bin rows.i4 --code i4 --dtype float32 --dimension 64 --range full";

/// What to quantize.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .safetensors file, a .npy file, or a file of bare rows.
    input: PathBuf,
    /// Write the rows to this file, one after the other.
    output: PathBuf,
    /// Use this code: f16, bf16, i8, i4, i8-tbe, i4-tbe, ev16, ev8 or ev4.
    ///
    /// `i8` and `i4` have PyTorch's layout (codes, then scale and bias), `i8-tbe` and `i4-tbe`
    /// FBGEMM's (scale and bias first). The `ev` codes are EVStore's, to compare with.
    #[arg(long, value_name = "NAME")]
    code: Code,
    /// Choose the range of a row of four bits: `searched` for a small error, `full` for the bytes
    /// that PyTorch writes.
    #[arg(long, value_enum, default_value_t)]
    range: Range,
    /// Read this tensor of a .safetensors file with several tables.
    #[arg(long, value_name = "NAME", conflicts_with = "dtype")]
    tensor: Option<String>,
    /// Read bare rows of this type: float32, float16 or bfloat16.
    #[arg(long, value_name = "NAME", requires = "dimension")]
    dtype: Option<Dtype>,
    /// Read bare rows of this number of values.
    #[arg(long, value_name = "N", requires = "dtype")]
    dimension: Option<u64>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// How the range of a row is chosen.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Range {
    /// The best of 25 ranges.
    #[default]
    Searched,
    /// From the smallest to the largest number.
    Full,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let mut source = Source::file(&args.input);
    if let (Some(dtype), Some(dimension)) = (args.dtype, args.dimension) {
        source = source.raw(dtype, dimension);
    }
    if let Some(tensor) = &args.tensor {
        source = source.tensor(tensor);
    }
    let range = match args.range {
        Range::Searched => RangeChoice::Searched,
        Range::Full => RangeChoice::Full,
    };
    let quantized = forebay_embeddings::quantize(&source, &args.output, args.code, range)?;
    match args.format {
        Format::Json => output::json(&quantized)?,
        Format::Text => output::data(&format!(
            "{}: {} of {} numbers, {} instead of {} B a row, {}\nrow error: {:.5} on average, \
             {:.5} at most\n",
            args.code,
            output::count(quantized.rows, "row"),
            quantized.dimension,
            quantized.row_bytes,
            quantized.row_bytes_before,
            ByteSize(quantized.rows * quantized.row_bytes),
            quantized.mean_error,
            quantized.max_error
        ))?,
    }
    Ok(Verdict::Yes)
}
