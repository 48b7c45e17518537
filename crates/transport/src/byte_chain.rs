//! Bytes that come in pieces, and are wanted as one: what came whole is passed on as it came.

use bytes::{Bytes, BytesMut};

/// What has come so far.
#[derive(Debug)]
pub struct Gathered {
    come: Come,
    expected: usize,
}

#[derive(Debug)]
enum Come {
    Nothing,
    One(Bytes),
    Several(BytesMut),
}

impl Gathered {
    /// Nothing has come yet, and most likely so much will.
    pub fn new(expected: usize) -> Self {
        Self { come: Come::Nothing, expected }
    }

    /// How much has come.
    pub fn length(&self) -> usize {
        match &self.come {
            Come::Nothing => 0,
            Come::One(bytes) => bytes.len(),
            Come::Several(bytes) => bytes.len(),
        }
    }

    /// Adds what has come next.
    pub fn add(&mut self, bytes: Bytes) {
        self.come = match std::mem::replace(&mut self.come, Come::Nothing) {
            Come::Nothing => Come::One(bytes),
            Come::One(first) => {
                let mut both = BytesMut::with_capacity(self.expected);
                both.extend_from_slice(&first);
                both.extend_from_slice(&bytes);
                Come::Several(both)
            }
            Come::Several(mut all) => {
                all.extend_from_slice(&bytes);
                Come::Several(all)
            }
        };
    }

    /// Takes all that has come.
    pub fn take(&mut self) -> Bytes {
        match std::mem::replace(&mut self.come, Come::Nothing) {
            Come::Nothing => Bytes::new(),
            Come::One(bytes) => bytes,
            Come::Several(bytes) => bytes.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_whole_is_not_copied_and_pieces_are_joined_in_order() {
        let mut gathered = Gathered::new(6);
        assert!(gathered.take().is_empty());
        let whole = Bytes::from_static(b"whole");
        gathered.add(whole.clone());
        assert_eq!(gathered.take().as_ptr(), whole.as_ptr());
        for piece in [&b"ab"[..], b"", b"cd", b"ef"] {
            gathered.add(Bytes::from_static(piece));
        }
        assert_eq!(gathered.length(), 6);
        assert_eq!(gathered.take(), "abcdef");
        assert_eq!(gathered.length(), 0);
    }
}
