//! What forebay keeps in local files around digests: the digests themselves, mapped; the journal of a
//! build that is under way; and catalogues of what was seen of datasets that only their users can read.
//!
//! A crate of its own because a training job opens digests but must not link any origin, and because
//! the core touches no files.

mod catalogue;
mod file;
mod journal;
mod snapshot;

pub use catalogue::{Catalogue, CatalogueError, Key, Seen};
pub use file::{DigestFile, FileError, PendingDigest, open, open_unchecked};
pub use journal::{Journal, JournalError, JournalHeader, Rows};
pub use snapshot::publish_snapshot;
