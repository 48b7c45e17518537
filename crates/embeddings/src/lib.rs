//! Embedding tables larger than memory: rows are read from their files, hot rows kept in DRAM.
//!
//! [`Tables`] is the entry point.
//!
//! - `lookup.rs`: the five steps of a lookup; `prefetch.rs` and `replace.rs`: the other operations
//! - `bags.rs`, `output.rs`: what a lookup is given, and where its rows go
//! - `resident.rs`, `slab.rs`: rows in memory
//! - `fetch.rs`, `io/`: rows that a lookup reads, and how
//! - `file.rs`, [`mod@format`]: the files, and the decoders of their headers
//!
//! - [`codes`], `quantize.rs`: rows in fewer bits, and the conversion of whole tables
//!
//! Results are exact, unless the caller opens a quantised table.
//!
//! Not here: replacement policies (`forebay_core::embeddings`).
//!
//! ```
//! use forebay_core::ByteSize;
//! use forebay_embeddings::{Bags, Options, Pooling, Source, Tables, format::Dtype};
//!
//! let file = tempfile::NamedTempFile::new()?;
//! std::fs::write(&file, [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).as_flattened())?;
//! let source = Source::file(file.path()).raw(Dtype::F32, 2);
//! let tables = Tables::open(&[source], &Options::new(ByteSize::mib(1)))?;
//! let mut out = [0.0; 4];
//! tables.lookup(&[Bags::from_starts(&[1, 0, 1], &[0, 1])], Pooling::Sum, &mut out)?;
//! assert_eq!(out, [3.0, 4.0, 4.0, 6.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod lookup;
mod prefetch;
mod replace;
mod tables;

mod bags;
mod output;

mod fetch;
mod file;
mod io;
mod resident;
mod slab;

pub mod codes;
mod error;
pub mod format;
mod quantize;
mod stats;

use std::path::Path;

pub use bags::Bags;
pub use error::{LookupError, OpenError, ReadError, ReplaceError};
pub use file::{Contents, RawRows, Source};
pub use io::Io;
pub use output::Pooling;
pub use quantize::{QuantizeError, Quantized, quantize};
pub use stats::Stats;
pub use tables::{MemoryDivision, Options, Tables, memory_without_buffers};

/// The contents of a table file by its header, and its length in bytes.
pub fn inspect(path: &Path) -> Result<(Contents, u64), OpenError> {
    let file = file::DataFile::open(path, false)?;
    Ok((file.contents()?, file.length()))
}

/// The layout of a file of bare rows, and its length in bytes.
pub fn inspect_rows(source: &Source) -> Result<(format::Layout, u64), OpenError> {
    let file = file::DataFile::open(&source.path, false)?;
    Ok((file.layout(source)?, file.length()))
}
