//! The agent's cache: blobs that no node keeps.
//!
//! A pack serves many items, and would otherwise be fetched for each of them. Blobs that the job
//! has read are evicted first, oldest first. Prefetched blobs that it has not read yet stay as long
//! as possible, and limit further prefetching.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::{BlobOrdinal, ByteSize};

/// Default size.
pub const AGENT_CACHE_SIZE_MAX: ByteSize = ByteSize::mib(256);

/// Blobs in the agent's memory.
#[derive(Debug)]
pub struct AgentCache {
    bytes_max: usize,
    blobs: BTreeMap<BlobOrdinal, Blob>,
    /// In order of insertion. A blob that was read is in `read` as well, and is skipped here.
    unread: VecDeque<BlobOrdinal>,
    read: VecDeque<BlobOrdinal>,
    bytes: usize,
    bytes_unread: usize,
}

#[derive(Debug)]
struct Blob {
    content: Bytes,
    is_unread: bool,
}

impl AgentCache {
    /// An empty cache of at most `max` bytes.
    pub fn new(max: ByteSize) -> Self {
        let bytes_max = usize::try_from(max.0).unwrap_or(usize::MAX);
        let (blobs, unread, read) = Default::default();
        Self { bytes_max, blobs, unread, read, bytes: 0, bytes_unread: 0 }
    }

    /// The bytes of a blob for the job. Marks the blob as read.
    pub fn read(&mut self, blob: BlobOrdinal) -> Option<Bytes> {
        let kept = self.blobs.get_mut(&blob)?;
        if kept.is_unread {
            kept.is_unread = false;
            self.bytes_unread -= kept.content.len();
            self.read.push_back(blob);
        }
        Some(kept.content.clone())
    }

    /// The bytes of a blob, without marking it as read.
    pub fn peek(&self, blob: BlobOrdinal) -> Option<Bytes> {
        self.blobs.get(&blob).map(|kept| kept.content.clone())
    }

    /// Whether a blob of this length may be prefetched: whether it fits beside the unread blobs.
    pub fn has_prefetch_space(&self, length: u64) -> bool {
        self.bytes_unread as u64 + length <= self.bytes_max as u64
    }

    /// Inserts a blob, and evicts others to make space.
    pub fn insert(&mut self, blob: BlobOrdinal, content: Bytes) {
        if content.len() > self.bytes_max || self.blobs.contains_key(&blob) {
            return;
        }
        self.bytes += content.len();
        self.bytes_unread += content.len();
        self.blobs.insert(blob, Blob { content, is_unread: true });
        self.unread.push_back(blob);
        while self.bytes > self.bytes_max {
            let oldest = self.read.pop_front().or_else(|| self.unread.pop_front());
            self.drop(oldest.expect("every blob is in a queue"));
        }
        // Blobs that were read leave stale entries behind.
        if self.unread.len() > 2 * self.blobs.len() + 16 {
            let blobs = &self.blobs;
            self.unread.retain(|blob| blobs.get(blob).is_some_and(|kept| kept.is_unread));
        }
    }

    /// Removes a blob.
    pub fn remove(&mut self, blob: BlobOrdinal) {
        self.read.retain(|other| *other != blob);
        self.unread.retain(|other| *other != blob);
        self.drop(blob);
    }

    fn drop(&mut self, blob: BlobOrdinal) {
        if let Some(Blob { content, is_unread }) = self.blobs.remove(&blob) {
            self.bytes -= content.len();
            self.bytes_unread -= if is_unread { content.len() } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_read_blobs_are_evicted_first() {
        let mut cache = AgentCache::new(ByteSize(1000));
        let content = Bytes::from(vec![0; 250]);
        for blob in (0..4).map(BlobOrdinal::new) {
            assert!(cache.has_prefetch_space(content.len() as u64));
            cache.insert(blob, content.clone());
            cache.insert(blob, content.clone());
        }
        assert!(!cache.has_prefetch_space(1));
        assert!(
            cache.read(BlobOrdinal::new(2)).is_some() && cache.read(BlobOrdinal::new(2)).is_some()
        );
        assert!(cache.has_prefetch_space(1), "a blob that was read makes space");
        cache.insert(BlobOrdinal::new(4), content.clone());
        assert!(
            cache.read(BlobOrdinal::new(2)).is_none() && cache.read(BlobOrdinal::new(0)).is_some()
        );
        for blob in (5..50).map(BlobOrdinal::new) {
            cache.insert(blob, content.clone());
            cache.read(blob);
        }
        assert!(cache.bytes <= 1000 && cache.blobs.len() <= 4);
        assert!(cache.unread.len() <= 30 && cache.read.len() <= 5);
    }
}
