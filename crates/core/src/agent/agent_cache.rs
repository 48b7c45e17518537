//! What an agent holds in memory because no node keeps it: a pack serves many items, and would otherwise be
//! fetched for each of them.
//!
//! What has been asked for at least once goes first, oldest first; what was fetched ahead and not yet
//! asked for stays as long as it can, and limits how much more is fetched ahead.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::ByteSize;

/// All of them together, unless somebody says otherwise.
pub const KEPT_MAX: ByteSize = ByteSize::mib(256);

/// What is kept.
#[derive(Debug)]
pub struct Kept {
    bytes_max: usize,
    blobs: BTreeMap<u64, Blob>,
    /// In the order in which they came. Those asked for are also in `asked`, and skipped here.
    fresh: VecDeque<u64>,
    asked: VecDeque<u64>,
    bytes: usize,
    bytes_fresh: usize,
}

#[derive(Debug)]
struct Blob {
    content: Bytes,
    is_fresh: bool,
}

impl Kept {
    /// Nothing yet, and never more than so much.
    pub fn new(max: ByteSize) -> Self {
        let bytes_max = usize::try_from(max.0).unwrap_or(usize::MAX);
        let (blobs, fresh, asked) = Default::default();
        Self { bytes_max, blobs, fresh, asked, bytes: 0, bytes_fresh: 0 }
    }

    /// The bytes of a blob, which has now been asked for.
    pub fn take_note_of(&mut self, blob: u64) -> Option<Bytes> {
        let kept = self.blobs.get_mut(&blob)?;
        if kept.is_fresh {
            kept.is_fresh = false;
            self.bytes_fresh -= kept.content.len();
            self.asked.push_back(blob);
        }
        Some(kept.content.clone())
    }

    /// The bytes of a blob, if they are here; nobody has asked for them.
    pub fn content(&self, blob: u64) -> Option<Bytes> {
        self.blobs.get(&blob).map(|kept| kept.content.clone())
    }

    /// Whether more may be fetched ahead: if it fits beside what nobody has asked for yet.
    pub fn has_room_ahead(&self, length: u64) -> bool {
        self.bytes_fresh as u64 + length <= self.bytes_max as u64
    }

    /// Keeps a blob; what has to go for it goes.
    pub fn insert(&mut self, blob: u64, content: Bytes) {
        if content.len() > self.bytes_max || self.blobs.contains_key(&blob) {
            return;
        }
        self.bytes += content.len();
        self.bytes_fresh += content.len();
        self.blobs.insert(blob, Blob { content, is_fresh: true });
        self.fresh.push_back(blob);
        while self.bytes > self.bytes_max {
            let oldest = self.asked.pop_front().or_else(|| self.fresh.pop_front());
            self.drop(oldest.expect("what has bytes has a place"));
        }
        // What was asked for has left gaps.
        if self.fresh.len() > 2 * self.blobs.len() + 16 {
            let blobs = &self.blobs;
            self.fresh.retain(|blob| blobs.get(blob).is_some_and(|kept| kept.is_fresh));
        }
    }

    fn drop(&mut self, blob: u64) {
        if let Some(Blob { content, is_fresh }) = self.blobs.remove(&blob) {
            self.bytes -= content.len();
            self.bytes_fresh -= if is_fresh { content.len() } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_was_used_goes_first() {
        let mut kept = Kept::new(ByteSize(1000));
        let piece = Bytes::from(vec![0; 250]);
        for blob in 0..4 {
            assert!(kept.has_room_ahead(piece.len() as u64));
            kept.insert(blob, piece.clone());
            kept.insert(blob, piece.clone());
        }
        assert!(!kept.has_room_ahead(1));
        assert!(kept.take_note_of(2).is_some() && kept.take_note_of(2).is_some());
        assert!(kept.has_room_ahead(1), "what was used makes room");
        kept.insert(4, piece.clone());
        assert!(kept.take_note_of(2).is_none() && kept.take_note_of(0).is_some());
        for blob in 5..50 {
            kept.insert(blob, piece.clone());
            kept.take_note_of(blob);
        }
        assert!(kept.bytes <= 1000 && kept.blobs.len() <= 4);
        assert!(kept.fresh.len() <= 30 && kept.asked.len() <= 5);
    }
}
