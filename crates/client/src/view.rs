//! Bytes of a blob where they lie: in the segment that the node shares with this process, or in memory of
//! one's own.

use std::{fmt, ops::Deref};

use forebay_segment::SlotView;

/// Some bytes of a blob. In a segment they keep their place until this is dropped, whatever becomes of the
/// connection that they came over.
///
/// A view belongs to the process that read it: a child of that process has to be given a copy, and reading
/// its parent's view there is a panic.
pub struct View(Bytes);

enum Bytes {
    Shared(SlotView),
    Own(Vec<u8>),
}

impl View {
    pub(crate) fn shared(view: SlotView) -> Self {
        Self(Bytes::Shared(view))
    }

    pub(crate) fn own(bytes: Vec<u8>) -> Self {
        Self(Bytes::Own(bytes))
    }

    /// Whether the bytes lie in a segment, so that nothing was copied on their way here.
    pub fn is_shared(&self) -> bool {
        matches!(self.0, Bytes::Shared(_))
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
        match &self.0 {
            Bytes::Shared(view) => view,
            Bytes::Own(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.is_shared() { "a segment" } else { "memory" };
        write!(f, "View of {} bytes in {place}", self.len())
    }
}
