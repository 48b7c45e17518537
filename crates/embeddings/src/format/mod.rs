//! Formats of table files: `.npy`, `.safetensors` and bare rows.
//!
//! Only headers are decoded, so opening a table of a terabyte costs one small read. Decoders are
//! pure functions of bytes and the file's length. Files are untrusted: every size is checked
//! against that length before it is used.

mod npy;
mod safetensors;

use serde::{Serialize, Serializer};

use crate::codes::Code;

pub use self::{
    npy::{Npy, npy},
    safetensors::{SAFETENSORS_HEADER_MAX, Tensor, safetensors},
};

/// Longest row, so that it always fits into one read.
pub const ROW_BYTES_MAX: u64 = 1 << 20;

/// Type of a table's numbers, always little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Eight bits with scale and bias for each row, as PyTorch packs them.
    I8,
    /// Four bits with scale and bias for each row, as PyTorch packs them.
    I4,
    /// Eight bits with scale and bias for each row, as FBGEMM's TBE has them.
    I8Tbe,
    /// Four bits with scale and bias for each row, as FBGEMM's TBE has them.
    I4Tbe,
}

impl Dtype {
    /// All types.
    pub const ALL: [Dtype; 8] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I8, Self::I4, Self::I8Tbe, Self::I4Tbe];

    /// Bytes of a row of `dimension` numbers.
    pub const fn row_bytes(self, dimension: u64) -> u64 {
        match self {
            Self::F64 => dimension.saturating_mul(8),
            Self::F32 => dimension.saturating_mul(4),
            Self::F16 | Self::Bf16 => dimension.saturating_mul(2),
            Self::I8 => Code::I8.row_bytes(dimension),
            Self::I4 => Code::I4.row_bytes(dimension),
            Self::I8Tbe => Code::I8Tbe.row_bytes(dimension),
            Self::I4Tbe => Code::I4Tbe.row_bytes(dimension),
        }
    }

    /// The code of quantised rows, which are served as float32.
    pub const fn quantised(self) -> Option<Code> {
        match self {
            Self::I8 => Some(Code::I8),
            Self::I4 => Some(Code::I4),
            Self::I8Tbe => Some(Code::I8Tbe),
            Self::I4Tbe => Some(Code::I4Tbe),
            Self::F32 | Self::F64 | Self::F16 | Self::Bf16 => None,
        }
    }

    /// The name, as in PyTorch.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::I8 => "int8",
            Self::I4 => "int4",
            Self::I8Tbe => "int8-tbe",
            Self::I4Tbe => "int4-tbe",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl std::str::FromStr for Dtype {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|dtype| dtype.name() == text);
        let known = known.or_else(|| text.parse::<Code>().ok()?.dtype());
        known.ok_or_else(|| FormatError::UnknownDtype { name: text.to_owned() })
    }
}

/// Layout of a table: its shape and its position in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// Type of the numbers.
    pub dtype: Dtype,
    /// Number of rows.
    pub rows: u64,
    /// Numbers in a row.
    pub dimension: u32,
    /// Offset of the first row.
    pub offset: u64,
}

impl Layout {
    /// A table of this shape, which must lie within a file of `file` bytes.
    pub fn new(
        dtype: Dtype,
        rows: u64,
        dimension: u64,
        offset: u64,
        file: u64,
    ) -> Result<Self, FormatError> {
        let row_bytes = dtype.row_bytes(dimension);
        if dimension == 0 || row_bytes > ROW_BYTES_MAX {
            return Err(FormatError::Dimension { dimension });
        }
        if rows > forebay_core::embeddings::Key::ROWS_MAX {
            return Err(FormatError::Rows { rows });
        }
        let needed = u128::from(offset) + u128::from(rows) * u128::from(row_bytes);
        if needed > u128::from(file) {
            return Err(FormatError::Truncated { needed, file });
        }
        let dimension = u32::try_from(dimension).expect("a row is at most a MiB");
        Ok(Self { dtype, rows, dimension, offset })
    }

    /// Bare rows that fill a file of `file` bytes from `offset` on.
    pub fn raw(dtype: Dtype, dimension: u64, offset: u64, file: u64) -> Result<Self, FormatError> {
        let row_bytes = dtype.row_bytes(dimension).max(1);
        let Some(data) = file.checked_sub(offset) else {
            return Err(FormatError::Truncated { needed: u128::from(offset), file });
        };
        if data % row_bytes != 0 {
            return Err(FormatError::Uneven { data, row_bytes });
        }
        Self::new(dtype, data / row_bytes, dimension, offset, file)
    }

    /// Bytes of one row.
    #[expect(clippy::cast_possible_truncation, reason = "a row is at most a MiB")]
    pub const fn row_bytes(&self) -> u32 {
        self.dtype.row_bytes(self.dimension as u64) as u32
    }

    /// Bytes of the answer for one row: quantised rows are answered as float32.
    pub(crate) const fn answer_bytes(&self) -> usize {
        match self.dtype.quantised() {
            Some(_) => self.dimension as usize * 4,
            None => self.row_bytes() as usize,
        }
    }

    /// Bytes of all rows.
    pub const fn bytes(&self) -> u64 {
        self.rows * self.row_bytes() as u64
    }

    /// Whether both share bytes, given that they are in the same file.
    pub(crate) const fn overlaps(&self, other: &Layout) -> bool {
        self.offset < other.offset + other.bytes() && other.offset < self.offset + self.bytes()
    }

    /// Offset of a row.
    pub(crate) const fn row_offset(&self, row: u64) -> u64 {
        self.offset + row * self.row_bytes() as u64
    }
}

/// Error of decoding a header. The texts continue the sentence "`file` …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the error texts document the variants")]
pub enum FormatError {
    #[error("is not {expected}: {problem}")]
    Malformed { expected: &'static str, problem: String },
    #[error(
        "is a table of {found}; tables are of float32, float64, float16, bfloat16 and, as bare \
         rows, of int8, int4, int8-tbe or int4-tbe"
    )]
    Dtype { found: String },
    #[error(
        "there is no dtype `{}`; there are {}",
        .name.escape_debug(),
        Dtype::ALL.map(Dtype::name).join(", ")
    )]
    UnknownDtype { name: String },
    #[error("is stored in Fortran order; save it in C order (numpy.ascontiguousarray)")]
    Fortran,
    #[error("is an array of shape {shape:?}; a table has two dimensions, rows and columns")]
    Shape { shape: Vec<u64> },
    #[error("is a table whose rows have {dimension} numbers; a row has 1 B to 1 MiB")]
    Dimension { dimension: u64 },
    #[error("is a table of {rows} rows; the maximum is 2^48")]
    Rows { rows: u64 },
    #[error(
        "is cut off: its header requires {needed} bytes, and the file has {file}; copy it again"
    )]
    Truncated { needed: u128, file: u64 },
    #[error(
        "is {data} bytes long, which is no multiple of a row's {row_bytes}; check dtype and \
         dimension"
    )]
    Uneven { data: u64, row_bytes: u64 },
    #[error(
        "is {extra} bytes longer than its header says; it was not written by a safetensors library"
    )]
    Longer { extra: u64 },
    #[error("has no tensor `{}`; it has {}", .name.escape_debug(), listed(.available))]
    NoTensor { name: String, available: Vec<String> },
    #[error(
        "holds several tables; name one with --tensor (`Table(path, tensor)`): {}",
        listed(.available)
    )]
    Ambiguous { available: Vec<String> },
    #[error("has no table: no tensor has two dimensions and a known dtype")]
    NoTable,
}

/// The first eight names.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> =
        names.iter().take(SHOWN).map(|name| format!("`{}`", name.escape_debug())).collect();
    let more = if names.len() > SHOWN {
        format!(" and {} more", names.len() - SHOWN)
    } else {
        String::new()
    };
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") + &more }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_rows_fill_their_file() {
        let layout = Layout::raw(Dtype::F32, 3, 8, 8 + 5 * 12).unwrap();
        assert_eq!((layout.rows, layout.row_bytes(), layout.row_offset(4)), (5, 12, 8 + 48));
        assert!(matches!(
            Layout::raw(Dtype::F32, 3, 0, 37),
            Err(FormatError::Uneven { data: 37, row_bytes: 12 })
        ));
        assert!(matches!(Layout::raw(Dtype::F64, 1, 9, 8), Err(FormatError::Truncated { .. })));
        assert!(matches!(Layout::raw(Dtype::F64, 0, 0, 8), Err(FormatError::Dimension { .. })));
        assert!(matches!(
            Layout::raw(Dtype::F64, u64::MAX, 0, 0),
            Err(FormatError::Dimension { .. })
        ));
    }

    /// Promise 6: sizes are checked before allocating. Sizes near the limits of integers are
    /// rejected, not wrapped.
    #[test]
    fn impossible_sizes_are_rejected() {
        let table =
            |rows, dimension, offset| Layout::new(Dtype::F32, rows, dimension, offset, 1 << 30);
        assert!(matches!(table(u64::MAX, 1, 0), Err(FormatError::Rows { .. })));
        assert!(matches!(table(1 << 48, 1 << 18, u64::MAX), Err(FormatError::Truncated { .. })));
        assert!(matches!(table(1, (1 << 18) + 1, 0), Err(FormatError::Dimension { .. })));
        assert!(table(1, 1 << 18, 0).is_ok());
        assert!(table(0, 4, 1 << 30).is_ok(), "a table without rows is a table");
    }
}
