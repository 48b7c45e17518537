//! Entries of an origin's listing.

/// One object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// The object's key, relative to the origin.
    pub object: String,
    /// Length in bytes.
    pub length: u64,
    /// The origin's name for the object's state, such as its `ETag`.
    pub version: String,
}
