//! Places in a dataset: dense, counted from nought, in the digest's order.

use std::{
    fmt,
    hash::{Hash, Hasher},
    marker::PhantomData,
};

/// The place of an `Of` in its dataset. An item's ordinal cannot be passed where a blob's is wanted.
pub struct Ordinal<Of>(pub u64, PhantomData<fn() -> Of>);

/// Marks ordinals of items.
pub enum Item {}
/// Marks ordinals of blobs.
pub enum Blob {}

/// Which item of a dataset.
pub type ItemOrdinal = Ordinal<Item>;
/// Which blob of a dataset.
pub type BlobOrdinal = Ordinal<Blob>;

impl<Of> Ordinal<Of> {
    /// The place `index`, counted from nought.
    pub const fn new(index: u64) -> Self {
        Self(index, PhantomData)
    }
}

// Derives would ask the same of the marker, which has no values.
impl<Of> Clone for Ordinal<Of> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<Of> Copy for Ordinal<Of> {}
impl<Of> PartialEq for Ordinal<Of> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<Of> Eq for Ordinal<Of> {}
impl<Of> PartialOrd for Ordinal<Of> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<Of> Ord for Ordinal<Of> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}
impl<Of> Hash for Ordinal<Of> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<Of> fmt::Debug for Ordinal<Of> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
impl<Of> fmt::Display for Ordinal<Of> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
