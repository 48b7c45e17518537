//! Quantize: writes a table again, in a code with fewer bits.
//!
//! The result is a file of bare rows, one after the other, which PyTorch, FBGEMM and
//! `Table(..., dtype="int4")` read as they are. It appears under its name when it is complete.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use serde::Serialize;

use crate::{
    codes::{Code, RangeChoice},
    error::OpenError,
    file::{DataFile, Source},
    format::{Dtype, Layout},
};

/// Bytes that are read at a time, or one row if that is longer.
const READ_BYTES: u64 = 1 << 20;

/// Result of quantizing a table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Quantized {
    /// Rows written.
    pub rows: u64,
    /// Numbers in a row.
    pub dimension: u32,
    /// Bytes of a row before and after.
    pub row_bytes_before: u32,
    /// See `row_bytes_before`.
    pub row_bytes: u64,
    /// Mean of the row errors: the norm of the difference divided by the norm of the row.
    pub mean_error: f64,
    /// The largest row error.
    pub max_error: f32,
}

/// Error of quantizing a table.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error texts document the variants")]
pub enum QuantizeError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("`{}` is of {dtype}; quantize a table of float32, float16 or bfloat16", path.display())]
    Dtype { path: PathBuf, dtype: Dtype },
    #[error(
        "row {row} of `{}` has NaN, infinity, or a range that {code} cannot hold; \
         choose another code, or replace the row",
        path.display()
    )]
    Row { path: PathBuf, row: u64, code: Code },
    #[error("`{}` is the table itself; write to another file", path.display())]
    Same { path: PathBuf },
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Writes the table of `source` to `out`, in this code.
pub fn quantize(
    source: &Source,
    out: &Path,
    code: Code,
    range: RangeChoice,
) -> Result<Quantized, QuantizeError> {
    let file = DataFile::open(&source.path, false)?;
    let layout = file.layout(source)?;
    let convert: fn(&[u8], &mut [f32]) = match layout.dtype {
        Dtype::F32 => singles,
        Dtype::F16 => |bytes, row| Code::F16.decode(bytes, row),
        Dtype::Bf16 => |bytes, row| Code::Bf16.decode(bytes, row),
        dtype => return Err(QuantizeError::Dtype { path: source.path.clone(), dtype }),
    };
    if DataFile::open(out, false).is_ok_and(|other| other.is_same_file(&file)) {
        return Err(QuantizeError::Same { path: out.to_owned() });
    }
    // Beside the result, so that it can be renamed.
    let mut unfinished = out.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let written = write(source, &layout, convert, &unfinished, code, range);
    let renamed = written.and_then(|written| {
        fs::rename(&unfinished, out).map_err(|source| QuantizeError::Io {
            action: "write",
            path: out.to_owned(),
            source,
        })?;
        Ok(written)
    });
    if renamed.is_err() {
        // A file that was never created is no further problem.
        let _ = fs::remove_file(&unfinished);
    }
    renamed
}

fn write(
    source: &Source,
    layout: &Layout,
    convert: fn(&[u8], &mut [f32]),
    out: &Path,
    code: Code,
    range: RangeChoice,
) -> Result<Quantized, QuantizeError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| QuantizeError::Io { action, path, source }
    };
    let input = File::open(&source.path).map_err(failed("read", &source.path))?;
    let mut output = BufWriter::new(File::create(out).map_err(failed("write", out))?);
    let width = layout.row_bytes() as usize;
    let rows_per_read = (READ_BYTES / width as u64).max(1);
    let row_bytes = code.row_bytes(layout.dimension.into());
    let mut bytes = Vec::new();
    let mut row = vec![0.0; layout.dimension as usize];
    let mut coded = vec![0; usize::try_from(row_bytes).expect("a row is at most a MiB")];
    let (mut sum, mut max_error, mut first) = (0.0, 0.0_f32, 0);
    while first < layout.rows {
        let count = rows_per_read.min(layout.rows - first);
        bytes.resize(usize::try_from(count).expect("a MiB of rows") * width, 0);
        input
            .read_exact_at(&mut bytes, layout.row_offset(first))
            .map_err(failed("read", &source.path))?;
        for (number, exact) in (first..).zip(bytes.chunks_exact(width)) {
            convert(exact, &mut row);
            let error = code.encode(&row, range, &mut coded);
            if error == f32::INFINITY {
                return Err(QuantizeError::Row { path: source.path.clone(), row: number, code });
            }
            sum += f64::from(error);
            max_error = max_error.max(error);
            output.write_all(&coded).map_err(failed("write", out))?;
        }
        first += count;
    }
    let file = output.into_inner().map_err(|error| failed("write", out)(error.into_error()))?;
    file.sync_all().map_err(failed("write", out))?;
    Ok(Quantized {
        rows: layout.rows,
        dimension: layout.dimension,
        row_bytes_before: layout.row_bytes(),
        row_bytes,
        mean_error: sum / layout.rows.max(1) as f64,
        max_error,
    })
}

fn singles(bytes: &[u8], row: &mut [f32]) {
    for (number, bytes) in row.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *number = f32::from_le_bytes(*bytes);
    }
}
