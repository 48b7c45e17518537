//! Errors: of opening, reading, looking up and replacing.

use std::{io, path::PathBuf};

use forebay_core::ByteSize;

use crate::format::{Dtype, FormatError, Layout};

/// Error of opening tables.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error texts document the variants")]
pub enum OpenError {
    #[error("there is no file `{}`; check its name", path.display())]
    Missing { path: PathBuf },
    #[error("`{}` is no file; give a .safetensors, a .npy or a file of bare rows", path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "`{}` is neither .npy nor .safetensors; for bare rows, give their dtype and dimension",
        path.display()
    )]
    Unknown { path: PathBuf },
    #[error(
        "`{}` has a header; leave out dtype and dimension, or give the offset of bare rows",
        path.display()
    )]
    NotBare { path: PathBuf },
    #[error("`{}` {source}", path.display())]
    Format { path: PathBuf, source: FormatError },
    #[error("cannot read `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{count} tables are too many; open {max} at most", max = u16::MAX)]
    TooMany { count: usize },
    #[error("pinned tables need {needed}, and the machine has {available}; give less `memory`")]
    Memory { needed: ByteSize, available: ByteSize },
    #[error("cannot allocate {needed} for pinned tables ({source}); give less `memory`")]
    NoMemory { needed: ByteSize, source: io::Error },
    #[error(
        "`memory` = {memory} is too little for a row and its bookkeeping; give at least {least}, \
         or 0 to keep no row"
    )]
    TooLittle { memory: u64, least: u64 },
    #[error("no tables; give at least one")]
    None,
    #[error(
        "io_uring is not available ({source}); choose `auto` or `pread`, or allow it on this system"
    )]
    NoRing { source: io::Error },
}

/// Error of reading rows.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error texts document the variants")]
pub enum ReadError {
    #[error("cannot read `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "`{}` was cut off while in use, from {was} to {now} bytes; restore and replace the table",
        path.display()
    )]
    Truncated { path: PathBuf, was: u64, now: u64 },
    #[error(
        "`{}` was changed by another process while in use; replace the table to continue",
        path.display()
    )]
    Changed { path: PathBuf },
}

/// Error of a lookup or a prefetch.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error texts document the variants")]
pub enum LookupError {
    #[error("key {key} at index {index} of table {table} is outside its {rows} rows")]
    Key { table: usize, index: usize, key: i64, rows: u64 },
    #[error("bags for {given} tables; give bags for all {tables}")]
    Tables { given: usize, tables: usize },
    #[error(
        "{given} bags for table {table}, but {expected} for table 0; give the same number for all"
    )]
    Batch { table: usize, given: usize, expected: usize },
    #[error("offsets of table {table} are invalid: {problem}")]
    Offsets { table: usize, problem: &'static str },
    #[error("an output of length {given} for bags that need {expected}")]
    Output { given: usize, expected: usize },
    #[error(
        "table {table} is of {dtype}, and only float32 and quantised tables can be pooled; use \
         `gather`"
    )]
    Dtype { table: usize, dtype: Dtype },
    #[error("there is no table {table}; there are {tables}")]
    NoTable { table: usize, tables: usize },
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Error of replacing rows or a table.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error texts document the variants")]
pub enum ReplaceError {
    #[error("there is no table {table}; there are {tables}")]
    NoTable { table: usize, tables: usize },
    #[error(
        "table {table} is of {dtype}, whose rows are not replaced one by one; write a new file \
         (forebay embed quantize) and replace the table"
    )]
    Quantised { table: usize, dtype: Dtype },
    #[error("{given} bytes are no whole number of rows of {row_bytes} bytes")]
    Uneven { given: usize, row_bytes: u32 },
    #[error("{count} rows from row {first} on are outside the table's {rows} rows")]
    Rows { first: u64, count: u64, rows: u64 },
    #[error(
        "the new table has {} rows of {} {}, the old one {} of {} {}; open the tables again",
        new.rows, new.dimension, new.dtype, old.rows, old.dimension, old.dtype
    )]
    Shape { old: Layout, new: Layout },
    #[error("cannot write `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
}
