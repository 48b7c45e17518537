//! What forebay keeps in local files around digests: the digests themselves, mapped; the journal of a
//! build that is under way; and the key files of namespaces.
//!
//! A crate of its own because a training job opens digests but must not link any origin, and because
//! the core touches no files.

mod file;
mod journal;

pub use file::{DigestFile, FileError, PendingDigest, open, open_unchecked};
pub use journal::{Journal, JournalError, JournalHeader, Rows};
