//! Blobs that no node keeps, held in memory for a while: a pack serves many items, and would otherwise be
//! fetched for each of them.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

/// All of them together.
const BYTES_MAX: usize = 256 << 20;

/// The most recent ones, oldest out first.
#[derive(Default)]
pub(crate) struct Kept {
    blobs: HashMap<u64, Bytes>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl Kept {
    pub fn get(&self, blob: u64) -> Option<Bytes> {
        self.blobs.get(&blob).cloned()
    }

    /// Whether more could be kept without dropping anything.
    pub fn has_room_for(&self, length: u64) -> bool {
        self.bytes as u64 + length <= BYTES_MAX as u64
    }

    pub fn insert(&mut self, blob: u64, content: Bytes) {
        if content.len() > BYTES_MAX || self.blobs.contains_key(&blob) {
            return;
        }
        self.bytes += content.len();
        self.blobs.insert(blob, content);
        self.order.push_back(blob);
        while self.bytes > BYTES_MAX {
            let oldest = self.order.pop_front().expect("what has bytes has a place");
            self.bytes -= self.blobs.remove(&oldest).map_or(0, |content| content.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut kept = Kept::default();
        let piece = Bytes::from(vec![0; BYTES_MAX / 4]);
        for blob in 0..6 {
            kept.insert(blob, piece.clone());
            kept.insert(blob, piece.clone());
        }
        assert!(kept.bytes <= BYTES_MAX && !kept.has_room_for(1));
        assert!(kept.get(1).is_none() && kept.get(2).is_some() && kept.get(5).is_some());
    }
}
