//! Byte chain: bytes that arrive in several buffers and are needed in one.
//!
//! A single buffer is passed on without a copy. Only further buffers are joined.

use bytes::{Bytes, BytesMut};

/// Most memory that is reserved before bytes arrive: a digest may announce more than there is.
const RESERVE_MAX: usize = 64 << 20;

/// The bytes that have arrived so far.
#[derive(Debug)]
pub struct ByteChain {
    content: Content,
    expected: usize,
}

#[derive(Debug)]
enum Content {
    Empty,
    One(Bytes),
    Joined(BytesMut),
}

impl ByteChain {
    /// An empty chain. If bytes have to be joined, memory for `expected` bytes, and at most 64 MiB,
    /// is reserved.
    pub fn new(expected: usize) -> Self {
        Self { content: Content::Empty, expected }
    }

    /// Number of bytes in the chain.
    pub fn length(&self) -> usize {
        match &self.content {
            Content::Empty => 0,
            Content::One(bytes) => bytes.len(),
            Content::Joined(bytes) => bytes.len(),
        }
    }

    /// Appends bytes.
    pub fn add(&mut self, bytes: Bytes) {
        self.content = match std::mem::replace(&mut self.content, Content::Empty) {
            Content::Empty => Content::One(bytes),
            Content::One(first) => {
                let mut joined = BytesMut::with_capacity(self.expected.min(RESERVE_MAX));
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&bytes);
                Content::Joined(joined)
            }
            Content::Joined(mut joined) => {
                joined.extend_from_slice(&bytes);
                Content::Joined(joined)
            }
        };
    }

    /// Removes and returns all bytes.
    pub fn take(&mut self) -> Bytes {
        match std::mem::replace(&mut self.content, Content::Empty) {
            Content::Empty => Bytes::new(),
            Content::One(bytes) => bytes,
            Content::Joined(bytes) => bytes.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_buffer_is_not_copied_and_several_are_joined_in_order() {
        let mut chain = ByteChain::new(6);
        assert!(chain.take().is_empty());
        let whole = Bytes::from_static(b"whole");
        chain.add(whole.clone());
        assert_eq!(chain.take().as_ptr(), whole.as_ptr());
        for part in [&b"ab"[..], b"", b"cd", b"ef"] {
            chain.add(Bytes::from_static(part));
        }
        assert_eq!(chain.length(), 6);
        assert_eq!(chain.take(), "abcdef");
        assert_eq!(chain.length(), 0);
    }
}
