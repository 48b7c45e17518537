//! What the world outside can do to us: files that are no tables, keys that no table has.

use std::{io, path::PathBuf};

use forebay_core::ByteSize;

use crate::format::{Dtype, FormatError, Layout};

/// Why tables cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum OpenError {
    #[error("there is no file `{}`; check its name", path.display())]
    Missing { path: PathBuf },
    #[error("`{}` is no file; name a .safetensors, a .npy or a file of rows", path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "`{}` is neither .npy nor .safetensors; for bare rows, say their dtype and dimension",
        path.display()
    )]
    Unknown { path: PathBuf },
    #[error(
        "`{}` says itself what its rows are; leave out dtype and dimension, or say where bare rows begin",
        path.display()
    )]
    NotBare { path: PathBuf },
    #[error("`{}` is {source}", path.display())]
    Format { path: PathBuf, source: FormatError },
    #[error("cannot read `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{count} tables; there can be {max} at most", max = u16::MAX)]
    TooMany { count: usize },
    #[error(
        "tables of {needed} are to be kept whole, and this machine has {there} of memory; give less `memory`"
    )]
    Memory { needed: ByteSize, there: ByteSize },
    #[error(
        "{needed} for tables that are to be kept whole cannot be had ({source}); give less `memory`"
    )]
    NoMemory { needed: ByteSize, source: io::Error },
    #[error("no tables; name at least one")]
    None,
    #[error(
        "io_uring is not available ({source}); choose `pread` or `auto`, or let the system allow it"
    )]
    NoRing { source: io::Error },
}

/// Why rows cannot be had although the keys are right.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum ReadError {
    #[error("cannot read `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "`{}` was cut off while in use, from {was} to {now} bytes; put the table back and replace it",
        path.display()
    )]
    Truncated { path: PathBuf, was: u64, now: u64 },
    #[error(
        "`{}` was changed by somebody else while in use; replace the table to read it as it is now",
        path.display()
    )]
    Changed { path: PathBuf },
}

/// Why a lookup gives no rows.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum LookupError {
    #[error("key {key} at place {place} of table {table} is outside its {rows} rows")]
    Key { table: usize, place: usize, key: i64, rows: u64 },
    #[error("bags for {given} tables; there are {tables}")]
    Tables { given: usize, tables: usize },
    #[error("{given} bags for table {table}, and {expected} for the one before it")]
    Batch { table: usize, given: usize, expected: usize },
    #[error("offsets of table {table}: {problem}")]
    Offsets { table: usize, problem: &'static str },
    #[error("an output of {given}; these bags fill {expected}")]
    Output { given: usize, expected: usize },
    #[error("table {table} is of {dtype}; only float32 is pooled here, other tables are gathered")]
    Dtype { table: usize, dtype: Dtype },
    #[error("there is no table {table}; there are {tables}")]
    NoTable { table: usize, tables: usize },
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why rows or a table cannot be replaced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum ReplaceError {
    #[error("there is no table {table}; there are {tables}")]
    NoTable { table: usize, tables: usize },
    #[error("{given} bytes are no whole number of rows of {row_bytes}")]
    Uneven { given: usize, row_bytes: u32 },
    #[error("rows {first} and {count} more are not all among the table's {rows}")]
    Rows { first: u64, count: u64, rows: u64 },
    #[error(
        "the new table has {} rows of {} {}, the old one {} of {} {}; open all tables anew instead",
        new.rows, new.dimension, new.dtype, old.rows, old.dimension, old.dtype
    )]
    Shape { old: Layout, new: Layout },
    #[error("cannot write `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
}
