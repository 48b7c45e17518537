//! The agent's cache: blobs that no node keeps.
//!
//! A pack serves many items, and would otherwise be fetched for each of them. Blobs whose last byte
//! the job has read are evicted first; then blobs that it has read a part of, and last prefetched
//! blobs that it has not read; of equals, the oldest. Prefetched blobs limit further prefetching.
//! The packs that the job draws from at a time take a third of the memory
//! ([`crate::train::sampler::packs_open_max`]).

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{BlobOrdinal, ByteSize};

/// Default size.
pub const AGENT_CACHE_SIZE_MAX: ByteSize = ByteSize::mib(256);

/// Blobs in the agent's memory.
#[derive(Debug)]
pub struct AgentCache {
    bytes_max: usize,
    blobs: BTreeMap<BlobOrdinal, Blob>,
    /// The order of eviction.
    order: BTreeMap<EvictionKey, BlobOrdinal>,
    /// Number of the next key.
    next: u64,
    bytes: usize,
    bytes_unread: usize,
    /// Bytes of prefetches in flight.
    bytes_expected: u64,
}

#[derive(Debug)]
struct Blob {
    content: Bytes,
    /// Bytes that the job has not read, if it reads each once.
    unserved: usize,
    key: EvictionKey,
}

/// The smallest key is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionKey {
    stage: Stage,
    number: u64,
}

/// What the job has read of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Whole,
    Part,
    Unread,
}

impl AgentCache {
    /// An empty cache of at most `max` bytes.
    pub fn new(max: ByteSize) -> Self {
        let bytes_max = usize::try_from(max.0).unwrap_or(usize::MAX);
        let (blobs, order) = Default::default();
        Self { bytes_max, blobs, order, next: 0, bytes: 0, bytes_unread: 0, bytes_expected: 0 }
    }

    /// The bytes of a blob. [`AgentCache::on_served`] says what the job has read of it.
    pub fn get(&self, blob: BlobOrdinal) -> Option<Bytes> {
        self.blobs.get(&blob).map(|kept| kept.content.clone())
    }

    /// The job has read this number of bytes of a blob.
    pub fn on_served(&mut self, blob: BlobOrdinal, bytes: usize) {
        if let Some(kept) = self.blobs.get_mut(&blob) {
            kept.unserved = kept.unserved.saturating_sub(bytes);
            let stage = if kept.unserved == 0 { Stage::Whole } else { Stage::Part };
            self.move_to(blob, stage);
        }
    }

    /// A node has the blob now, so that it may be evicted.
    pub fn on_put(&mut self, blob: BlobOrdinal) {
        self.move_to(blob, Stage::Whole);
    }

    /// Reserves space for a prefetch of this length. Returns whether it fits beside the unread
    /// blobs and other prefetches; if so, [`AgentCache::end_prefetch`] must follow.
    pub fn begin_prefetch(&mut self, length: u64) -> bool {
        let expected = self.bytes_expected.saturating_add(length);
        let fits = expected.saturating_add(self.bytes_unread as u64) <= self.bytes_max as u64;
        if fits {
            self.bytes_expected = expected;
        }
        fits
    }

    /// A prefetch has ended: its blob was inserted, or it failed.
    pub fn end_prefetch(&mut self, length: u64) {
        self.bytes_expected -= length;
    }

    /// Inserts a blob that the job will read, and evicts others to make space.
    pub fn insert(&mut self, blob: BlobOrdinal, content: Bytes) {
        self.insert_at(blob, content, Stage::Unread);
    }

    /// Inserts a blob that the job reads whole at this moment. It takes free space, and that of
    /// blobs that were read whole before it, and never that of blobs that are still needed:
    /// otherwise each read of a job that waits would evict what was prefetched for it.
    pub fn insert_read(&mut self, blob: BlobOrdinal, content: Bytes) {
        self.insert_at(blob, content, Stage::Whole);
    }

    fn insert_at(&mut self, blob: BlobOrdinal, content: Bytes, stage: Stage) {
        if content.len() > self.bytes_max || self.blobs.contains_key(&blob) {
            return;
        }
        let key = self.key(stage);
        self.bytes += content.len();
        self.bytes_unread += if stage == Stage::Unread { content.len() } else { 0 };
        self.order.insert(key, blob);
        self.blobs.insert(blob, Blob { unserved: content.len(), content, key });
        while self.bytes > self.bytes_max {
            let (_, first) = self.order.first_key_value().expect("every blob is in the order");
            self.remove(*first);
        }
    }

    /// Removes a blob.
    pub fn remove(&mut self, blob: BlobOrdinal) {
        if let Some(Blob { content, key, .. }) = self.blobs.remove(&blob) {
            self.order.remove(&key);
            self.bytes -= content.len();
            self.bytes_unread -= if key.stage == Stage::Unread { content.len() } else { 0 };
        }
    }

    fn key(&mut self, stage: Stage) -> EvictionKey {
        self.next += 1;
        EvictionKey { stage, number: self.next }
    }

    /// Moves a blob to a stage, as its youngest, unless it is there.
    fn move_to(&mut self, blob: BlobOrdinal, stage: Stage) {
        let key = self.key(stage);
        let Some(kept) = self.blobs.get_mut(&blob).filter(|kept| kept.key.stage > stage) else {
            return;
        };
        let former = std::mem::replace(&mut kept.key, key);
        self.bytes_unread -= if former.stage == Stage::Unread { kept.content.len() } else { 0 };
        self.order.remove(&former);
        self.order.insert(key, blob);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(number: u64) -> BlobOrdinal {
        BlobOrdinal::new(number)
    }

    #[test]
    fn memory_is_bounded_and_read_blobs_are_evicted_first() {
        let mut cache = AgentCache::new(ByteSize(1000));
        let content = Bytes::from(vec![0; 250]);
        for number in 0..4 {
            assert!(cache.begin_prefetch(content.len() as u64));
            cache.end_prefetch(content.len() as u64);
            cache.insert(blob(number), content.clone());
            cache.insert(blob(number), content.clone());
        }
        assert!(!cache.begin_prefetch(1));
        cache.on_served(blob(2), 250);
        assert!(cache.get(blob(2)).is_some());
        assert!(cache.begin_prefetch(1), "a blob that was read makes space");
        cache.insert(blob(4), content.clone());
        assert!(cache.get(blob(2)).is_none() && cache.get(blob(0)).is_some());
        for number in 5..50 {
            cache.insert(blob(number), content.clone());
            cache.on_served(blob(number), 250);
        }
        assert!(cache.bytes <= 1000 && cache.blobs.len() <= 4 && cache.order.len() <= 4);
        cache.remove(blob(49));
        assert_eq!(cache.blobs.len(), cache.order.len());
    }

    /// A pack is kept until its last item is read, however old it is.
    #[test]
    fn a_pack_stays_until_its_last_byte_is_read() {
        let mut cache = AgentCache::new(ByteSize(1000));
        let content = Bytes::from(vec![0; 250]);
        cache.insert(blob(0), content.clone());
        cache.on_served(blob(0), 100);
        for number in 1..50 {
            cache.insert(blob(number), content.clone());
            cache.on_served(blob(number), 100);
            cache.on_served(blob(number), 150);
            assert!(cache.get(blob(0)).is_some(), "{number} packs later");
        }
        cache.on_served(blob(0), 150);
        (50..54).for_each(|number| cache.insert(blob(number), content.clone()));
        assert!(cache.get(blob(0)).is_none());
        assert!(cache.get(blob(50)).is_some(), "prefetched blobs stay longest");
    }

    /// A demand fetch does not evict what was prefetched: with little memory, the prefetched blobs
    /// would be fetched twice.
    #[test]
    fn a_blob_that_is_read_at_once_evicts_no_blob_that_is_needed() {
        let mut cache = AgentCache::new(ByteSize(1000));
        let content = Bytes::from(vec![0; 250]);
        (0..3).for_each(|number| cache.insert(blob(number), content.clone()));
        cache.insert_read(blob(10), content.clone());
        cache.insert_read(blob(11), content.clone());
        assert!(cache.get(blob(10)).is_none() && cache.get(blob(11)).is_some());
        assert!(cache.begin_prefetch(250), "it is no obstacle for a prefetch");
        cache.end_prefetch(250);
        cache.insert(blob(3), content.clone());
        cache.insert_read(blob(12), content);
        assert!((0..4).all(|number| cache.get(blob(number)).is_some()));
        assert!(cache.bytes == 1000 && cache.blobs.len() == cache.order.len());
    }

    #[test]
    fn a_blob_that_a_node_keeps_may_go() {
        let mut cache = AgentCache::new(ByteSize(500));
        let content = Bytes::from(vec![0; 250]);
        cache.insert(blob(0), content.clone());
        cache.insert(blob(1), content.clone());
        cache.on_put(blob(1));
        cache.insert(blob(2), content);
        assert!(cache.get(blob(1)).is_none() && cache.get(blob(0)).is_some());
    }

    /// Read-ahead never exceeds the memory, although many fetches are in flight.
    #[test]
    fn prefetches_in_flight_count_against_the_memory() {
        let mut cache = AgentCache::new(ByteSize(1000));
        cache.insert(blob(0), Bytes::from(vec![0; 250]));
        let begun = (0..48).filter(|_| cache.begin_prefetch(250)).count();
        assert_eq!(begun, 3);
        cache.end_prefetch(250);
        assert!(cache.begin_prefetch(250) && !cache.begin_prefetch(1));
        assert!(!cache.begin_prefetch(u64::MAX), "a length from a digest does not overflow");
    }
}
