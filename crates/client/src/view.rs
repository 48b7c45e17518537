//! Views: bytes of a blob in the shm region that the node shares with this process, or in memory of
//! the process.

use std::{
    fmt,
    ops::{Deref, Range},
};

use forebay_shm::SlotView;

/// A range of a blob. In a shm region it occupies its slot until it is dropped, even if the
/// connection ends before.
///
/// A view belongs to the process that read it. A forked child must be given a copy; reading its
/// parent's view panics.
pub struct View {
    bytes: Bytes,
    /// The part that is the item.
    range: Range<usize>,
}

enum Bytes {
    Shared(SlotView),
    Own(Vec<u8>),
}

impl View {
    pub(crate) fn shared(view: SlotView) -> Self {
        Self { range: 0..view.len(), bytes: Bytes::Shared(view) }
    }

    pub(crate) fn own(bytes: Vec<u8>) -> Self {
        Self { range: 0..bytes.len(), bytes: Bytes::Own(bytes) }
    }

    /// A part of a view that is whole. Nothing is copied.
    pub(crate) fn slice(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.end, "a part of the view");
        Self { range, ..self }
    }

    /// Whether the bytes are in a shm region, so that they were not copied.
    pub fn is_shared(&self) -> bool {
        matches!(self.bytes, Bytes::Shared(_))
    }
}

impl From<Vec<u8>> for View {
    fn from(bytes: Vec<u8>) -> Self {
        Self::own(bytes)
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.bytes {
            Bytes::Shared(view) => view,
            Bytes::Own(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_shared() { "shared memory" } else { "memory" };
        write!(f, "View of {} bytes in {place}", self.len())
    }
}
