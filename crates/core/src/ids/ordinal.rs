//! Ordinals: positions of items and blobs in a dataset, dense, from 0, in the digest's order.

use std::{
    fmt,
    hash::{Hash, Hasher},
    marker::PhantomData,
};

/// Position of an `Of` in its dataset. An item's ordinal cannot be passed in place of a blob's.
pub struct Ordinal<Of>(pub u64, PhantomData<fn() -> Of>);

/// Marks ordinals of items.
pub enum Item {}
/// Marks ordinals of blobs.
pub enum Blob {}

/// Position of an item in its dataset.
pub type ItemOrdinal = Ordinal<Item>;
/// Position of a blob in its dataset.
pub type BlobOrdinal = Ordinal<Blob>;

impl<Of> Ordinal<Of> {
    /// The position `index`, counted from 0.
    pub const fn new(index: u64) -> Self {
        Self(index, PhantomData)
    }
}

// Derived implementations would require the same traits of the marker.
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
