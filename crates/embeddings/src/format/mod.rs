//! What the bytes of a table file mean: `.npy`, `.safetensors` or bare rows.
//!
//! Only headers are looked at, so opening a table of a terabyte costs one small read. Decoders are given
//! bytes and the file's length and are pure; every size is checked against that length before it is
//! believed, for a file may come from anywhere.

mod npy;
mod safetensors;

use serde::{Serialize, Serializer};

pub use self::{
    npy::{Npy, npy},
    safetensors::{SAFETENSORS_HEADER_MAX, Tensor, safetensors},
};

/// The longest row, so that one read always has room for it.
pub const ROW_BYTES_MAX: u64 = 1 << 20;

/// What a table's numbers are, always little-endian.
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
}

impl Dtype {
    /// Every one.
    pub const ALL: [Dtype; 4] = [Self::F32, Self::F64, Self::F16, Self::Bf16];

    /// Bytes of one number.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// As people and PyTorch write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
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
        known.ok_or_else(|| FormatError::Dtype { found: text.to_owned() })
    }
}

/// Where a table's rows lie in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// What its numbers are.
    pub dtype: Dtype,
    /// How many rows it has.
    pub rows: u64,
    /// Numbers in a row.
    pub dimension: u32,
    /// Where the first row begins.
    pub offset: u64,
}

impl Layout {
    /// A table of this shape, whose rows must lie within a file of so many bytes.
    pub fn new(
        dtype: Dtype,
        rows: u64,
        dimension: u64,
        offset: u64,
        file: u64,
    ) -> Result<Self, FormatError> {
        let row_bytes = dimension.saturating_mul(u64::from(dtype.bytes()));
        if row_bytes == 0 || row_bytes > ROW_BYTES_MAX {
            return Err(FormatError::Dimension { dimension });
        }
        if rows > forebay_core::embedding::Key::ROWS_MAX {
            return Err(FormatError::Rows { rows });
        }
        let needed = u128::from(offset) + u128::from(rows) * u128::from(row_bytes);
        if needed > u128::from(file) {
            return Err(FormatError::Truncated { needed, file });
        }
        let dimension = u32::try_from(dimension).expect("a row is at most a MiB");
        Ok(Self { dtype, rows, dimension, offset })
    }

    /// Rows of this shape that fill a file, behind `offset` bytes of something else.
    pub fn raw(dtype: Dtype, dimension: u64, offset: u64, file: u64) -> Result<Self, FormatError> {
        let row_bytes = dimension.saturating_mul(u64::from(dtype.bytes())).max(1);
        let Some(data) = file.checked_sub(offset) else {
            return Err(FormatError::Truncated { needed: u128::from(offset), file });
        };
        if data % row_bytes != 0 {
            return Err(FormatError::Uneven { data, row_bytes });
        }
        Self::new(dtype, data / row_bytes, dimension, offset, file)
    }

    /// Bytes of one row.
    pub const fn row_bytes(&self) -> u32 {
        self.dimension * self.dtype.bytes()
    }

    /// Bytes of all rows.
    pub const fn bytes(&self) -> u64 {
        self.rows * self.row_bytes() as u64
    }

    /// Whether some bytes belong to both, if both are of one file.
    pub(crate) const fn overlaps(&self, other: &Layout) -> bool {
        self.offset < other.offset + other.bytes() && other.offset < self.offset + self.bytes()
    }

    /// Where a row begins.
    pub(crate) const fn row_offset(&self, row: u64) -> u64 {
        self.offset + row * self.row_bytes() as u64
    }
}

/// Why bytes are no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum FormatError {
    #[error("not {expected}: {problem}")]
    Malformed { expected: &'static str, problem: String },
    #[error("a table of {found}; tables are of float32, float64, float16 or bfloat16")]
    Dtype { found: String },
    #[error(
        "stored in the order of Fortran; rows must lie together (numpy.ascontiguousarray before saving)"
    )]
    Fortran,
    #[error("an array of shape {shape:?}; a table has two dimensions, rows and columns")]
    Shape { shape: Vec<u64> },
    #[error("a table whose rows have {dimension} numbers; rows have between 1 B and 1 MiB")]
    Dimension { dimension: u64 },
    #[error("a table of {rows} rows; more than 2^48 cannot be named")]
    Rows { rows: u64 },
    #[error("cut off: its header speaks of {needed} bytes, and the file has {file}; copy it again")]
    Truncated { needed: u128, file: u64 },
    #[error(
        "{data} bytes long, which is no multiple of its rows' {row_bytes}; check dtype and dimension"
    )]
    Uneven { data: u64, row_bytes: u64 },
    #[error(
        "{extra} bytes longer than its header says; it was not written by a safetensors library"
    )]
    Longer { extra: u64 },
    #[error("without a tensor `{}`; it has {}", .name.escape_debug(), listed(.there))]
    NoTensor { name: String, there: Vec<String> },
    #[error("of several tables; name one of {}", listed(.there))]
    Ambiguous { there: Vec<String> },
    #[error("without a table: no tensor has two dimensions and a known dtype")]
    NoTable,
}

/// The first few names.
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

    /// Promise 6: bounds before allocating; sizes near the edge of integers are refused, not wrapped.
    #[test]
    fn absurd_sizes_are_refused() {
        let table =
            |rows, dimension, offset| Layout::new(Dtype::F32, rows, dimension, offset, 1 << 30);
        assert!(matches!(table(u64::MAX, 1, 0), Err(FormatError::Rows { .. })));
        assert!(matches!(table(1 << 48, 1 << 18, u64::MAX), Err(FormatError::Truncated { .. })));
        assert!(matches!(table(1, (1 << 18) + 1, 0), Err(FormatError::Dimension { .. })));
        assert!(table(1, 1 << 18, 0).is_ok());
        assert!(table(0, 4, 1 << 30).is_ok(), "a table without rows is a table");
    }
}
