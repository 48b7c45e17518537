//! Embedding tables larger than memory: read where they are, hot rows in DRAM.
//!
//! [`Tables`] is what others use; `tables.rs` tells how a lookup goes. Which rows stay is decided by a policy
//! of `forebay-core`; [`mod@format`] is what files say about themselves, `file.rs` the files, `io/` how missing
//! rows are read, `resident.rs` and `slab.rs` what is in memory. All of it is exact: tiers of reduced
//! precision would lie between `resident.rs` and the files.
//!
//! ```
//! use forebay_core::ByteSize;
//! use forebay_embed::{Bags, Options, Pooling, Source, Tables, format::Dtype};
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

mod tables;

mod bags;
mod output;

mod fetch;
mod file;
mod io;
mod resident;
mod slab;

mod error;
pub mod format;
mod stats;

use std::path::Path;

pub use bags::Bags;
pub use error::{LookupError, OpenError, ReadError, ReplaceError};
pub use file::{Contents, RawRows, Source};
pub use io::Io;
pub use output::Pooling;
pub use stats::Stats;
pub use tables::{BOOK_BYTES_PER_ROW, Options, Tables};

/// What a file says about itself, and how long it is.
pub fn inspect(path: &Path) -> Result<(Contents, u64), OpenError> {
    let file = file::DataFile::open(path, false)?;
    Ok((file.contents()?, file.length()))
}

/// Where the bare rows of a file lie, and how long it is.
pub fn inspect_rows(source: &Source) -> Result<(format::Layout, u64), OpenError> {
    let file = file::DataFile::open(&source.path, false)?;
    Ok((file.layout(source)?, file.length()))
}
