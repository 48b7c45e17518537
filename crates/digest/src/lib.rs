//! Digests and the other local files of a dataset.
//!
//! - [`Digest`]: the table of a dataset, an Arrow file that is mapped and read in place.
//! - [`Layout`], [`Planner`]: how a build turns an origin's listing into blobs.
//! - [`Journal`]: finished rows of an unfinished build.
//! - [`EarlierDigest`]: rows of the last build, for objects that have not changed.
//! - [`Catalogue`]: addresses of a dataset that only its user can read (`forebay.wrap`), or of one
//!   whose objects were listed and not read yet ([`publish_listing`]).
//!
//! A crate of its own, because a training job opens digests without linking an origin, and because
//! `core` touches no files.

mod catalogue;
mod earlier;
mod file;
mod format;
mod journal;
mod listing;
mod plan;
mod possession;
mod snapshot;

pub use catalogue::{Catalogue, CatalogueEntry, CatalogueError, CatalogueKey};
pub use earlier::EarlierDigest;
pub use file::{
    DigestFile, DigestFileError, PendingDigest, open, open_unchecked, open_with_listings,
};
pub use format::{
    Blob, BlobView, ColumnGuess, ColumnType, Digest, DigestError, DigestWriter, FORMAT, Header,
    ItemLocation, ItemSpan, Part, PartView, Summary, Value,
};
pub use journal::{Journal, JournalError, JournalHeader, JournalRows};
pub use listing::{LISTED_OBJECTS_MAX, ListingError, adopt, complete, listing_id, publish_listing};
pub use plan::{BlobPlan, Cut, Layout, Planner, Records, Samples, UnevenRecords, check_name};
pub use possession::{proof_of, rows_of};
pub use snapshot::publish_snapshot;
