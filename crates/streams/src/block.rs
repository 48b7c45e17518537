//! Blocks: views of a reader's slots, or memory of their own.

use std::ops::Deref;

use bytes::Bytes;
use forebay_core::streams::BlockNumber;
use forebay_flash::buffers::View;

use crate::of_process::OfProcess;

/// A block of a stream. It is valid until it is dropped, in any thread; its slot then returns to
/// its reader. The bytes begin at a multiple of 64. A forked child has a copy of the block, and
/// never returns the slot. A block from elsewhere has memory of its own.
#[derive(Debug, Clone)]
pub struct Block {
    pub(crate) bytes: BlockBytes,
    pub(crate) number: BlockNumber,
    pub(crate) outside: bool,
}

/// Where the bytes of a block are.
#[derive(Debug, Clone)]
pub(crate) enum BlockBytes {
    /// In a slot of its reader.
    Slot(OfProcess<View>),
    /// In memory of its own, which begins at a multiple of 64.
    Own(Bytes),
}

impl Block {
    /// Its number in the stream.
    pub fn number(&self) -> BlockNumber {
        self.number
    }

    /// Whether it lies in memory outside the reader's slots, because all of them were held.
    pub fn is_outside_slots(&self) -> bool {
        self.outside
    }

    /// The block as [`Bytes`], without a copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            BlockBytes::Slot(view) => view,
            BlockBytes::Own(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
