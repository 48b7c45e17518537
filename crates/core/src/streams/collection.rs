//! Collection: what a store keeps after a restart.
//!
//! Kept are sealed streams whose lease has not ended, also when blocks of them are lost: opening
//! one of those says which. Everything else a previous owner left is freed: unsealed streams,
//! destroyed ones, ended leases, families without streams. Of two streams with one name, the one
//! that was sealed later is kept.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{
    StreamName, StreamNumber,
    record::{RECORD_TAG, Record, SealedRecord},
};

/// A family as found on the device.
#[derive(Debug, Clone, Default)]
pub struct FoundFamily {
    /// Ordinals and tags of all its entries.
    pub entries: Vec<FoundEntry>,
    /// Its readable records, with their ordinals.
    pub records: Vec<(u64, Record)>,
    /// Streams that are destroyed, for whose record the device had no room.
    pub destroyed: BTreeSet<StreamNumber>,
}

/// An entry of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundEntry {
    /// Its ordinal.
    pub ordinal: u64,
    /// Its tag.
    pub tag: u32,
}

/// What becomes of a family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CollectedFamily {
    /// Its streams. Without any, the family is freed.
    pub streams: Vec<CollectedStream>,
    /// Ordinals to release.
    pub release: Vec<Range<u64>>,
}

/// A stream that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedStream {
    /// Its record.
    pub record: SealedRecord,
    /// Ordinal of the record.
    pub record_ordinal: u64,
    /// Blocks that are lost, as ranges of their numbers.
    pub lost: Vec<Range<u64>>,
}

/// Decides what becomes of the families of a store, in their order.
pub fn collect(families: &[FoundFamily], now_ms: u64) -> Vec<CollectedFamily> {
    let mut newest: BTreeMap<StreamName, (u64, usize, StreamNumber)> = BTreeMap::new();
    for (at, family) in families.iter().enumerate() {
        for (_, sealed) in family.live(now_ms) {
            let candidate = (sealed.sealed_at_ms, at, sealed.stream);
            let known = newest.entry(sealed.name.clone()).or_insert(candidate);
            *known = (*known).max(candidate);
        }
    }
    let is_newest = |at: usize, sealed: &SealedRecord| {
        newest.get(&sealed.name) == Some(&(sealed.sealed_at_ms, at, sealed.stream))
    };
    families
        .iter()
        .enumerate()
        .map(|(at, family)| family.collect(now_ms, |sealed| is_newest(at, sealed)))
        .collect()
}

impl FoundFamily {
    /// One more than the highest ordinal that is found or recorded.
    pub fn ordinals_end(&self) -> u64 {
        let entries = self.entries.iter().map(|entry| entry.ordinal + 1);
        let recorded = self.records.iter().filter_map(|(_, record)| match record {
            Record::Sealed(sealed) => sealed.runs.ranges().next_back().map(|range| range.end),
            Record::Destroyed(_) => None,
        });
        entries.chain(recorded).max().unwrap_or(0)
    }

    /// Records of streams that are neither destroyed nor expired.
    fn live(&self, now_ms: u64) -> impl Iterator<Item = (u64, &SealedRecord)> {
        let recorded = self.records.iter().filter_map(|(_, record)| match record {
            Record::Destroyed(stream) => Some(*stream),
            Record::Sealed(_) => None,
        });
        let destroyed: BTreeSet<_> = recorded.chain(self.destroyed.iter().copied()).collect();
        self.records.iter().filter_map(move |(ordinal, record)| match record {
            Record::Sealed(sealed)
                if !destroyed.contains(&sealed.stream) && !sealed.is_expired(now_ms) =>
            {
                Some((*ordinal, sealed))
            }
            _ => None,
        })
    }

    fn collect(&self, now_ms: u64, is_kept: impl Fn(&SealedRecord) -> bool) -> CollectedFamily {
        let tags: BTreeMap<u64, u32> =
            self.entries.iter().map(|entry| (entry.ordinal, entry.tag)).collect();
        let mut collected = CollectedFamily::default();
        let mut owned = BTreeSet::new();
        for (record_ordinal, sealed) in self.live(now_ms).filter(|(_, sealed)| is_kept(sealed)) {
            let is_there = |ordinal| tags.get(&ordinal) == Some(&sealed.stream.0);
            owned.extend(sealed.runs.ranges().flatten().filter(|ordinal| is_there(*ordinal)));
            owned.insert(record_ordinal);
            let lost = sealed.missing(is_there);
            let record = sealed.clone();
            collected.streams.push(CollectedStream { record, record_ordinal, lost });
        }
        // Records of destroyed streams stay until their family is freed.
        let destroyed = self.records.iter().filter_map(|(ordinal, record)| match record {
            Record::Destroyed(_) => Some(*ordinal),
            Record::Sealed(_) => None,
        });
        owned.extend(destroyed);
        for ordinal in tags.keys().filter(|ordinal| !owned.contains(ordinal)) {
            match collected.release.last_mut().filter(|last| last.end == *ordinal) {
                Some(last) => last.end += 1,
                None => collected.release.push(*ordinal..*ordinal + 1),
            }
        }
        collected
    }
}

/// Whether an entry is a record.
pub fn is_record(tag: u32) -> bool {
    tag & RECORD_TAG != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::runs::OrdinalRuns;

    fn sealed(name: &str, stream: u32, ordinals: Range<u64>, sealed_at_ms: u64) -> SealedRecord {
        let mut runs = OrdinalRuns::default();
        runs.push_range(&ordinals);
        SealedRecord {
            stream: StreamNumber(stream),
            name: StreamName::new(name).unwrap(),
            sealed_at_ms,
            expires_at_ms: None,
            bytes: 0,
            runs,
        }
    }

    fn entries(stream: u32, ordinals: Range<u64>) -> impl Iterator<Item = FoundEntry> {
        ordinals.map(move |ordinal| FoundEntry { ordinal, tag: stream })
    }

    /// Promise 9: a stream with lost blocks is kept and says which; an unsealed one is freed.
    #[test]
    fn sealed_streams_are_kept_and_the_rest_is_released() {
        let mut family = FoundFamily::default();
        family.entries.extend(entries(0, 0..3));
        family.entries.extend(entries(0, 4..5));
        family.entries.extend(entries(1, 5..8));
        family.entries.extend(entries(RECORD_TAG, 8..9));
        family.records.push((8, Record::Sealed(sealed("a", 0, 0..5, 1))));
        let collected = collect(&[family], 0);
        assert_eq!(collected[0].streams.len(), 1);
        assert_eq!(collected[0].streams[0].lost.as_slice(), std::slice::from_ref(&(3..4)));
        let unsealed = 5..8;
        assert_eq!(collected[0].release.as_slice(), std::slice::from_ref(&unsealed));
    }

    #[test]
    fn destroyed_expired_and_replaced_streams_are_freed() {
        let mut family = FoundFamily::default();
        family.entries.extend(
            (0..3).flat_map(|stream| {
                entries(stream, u64::from(stream) * 2..u64::from(stream) * 2 + 2)
            }),
        );
        family.entries.extend(entries(RECORD_TAG, 6..10));
        family.records.push((6, Record::Sealed(sealed("a", 0, 0..2, 1))));
        let expired = SealedRecord { expires_at_ms: Some(50), ..sealed("b", 1, 2..4, 1) };
        family.records.push((7, Record::Sealed(expired)));
        family.records.push((8, Record::Sealed(sealed("c", 2, 4..6, 1))));
        family.records.push((9, Record::Destroyed(StreamNumber(0))));
        let mut other = FoundFamily::default();
        other.entries.extend(entries(0, 0..1));
        other.entries.extend(entries(RECORD_TAG, 1..2));
        other.records.push((1, Record::Sealed(sealed("c", 0, 0..1, 2))));
        let collected = collect(&[family.clone(), other], 50);
        assert!(collected[0].streams.is_empty(), "the family is freed");
        assert_eq!(collected[1].streams.len(), 1, "the later one of two with one name");
        family.destroyed.insert(StreamNumber(2));
        let one = collect(std::slice::from_ref(&family), 49);
        assert_eq!(one[0].streams.len(), 1, "c is destroyed without a record");
        family.destroyed.clear();
        let collected = collect(&[family], 49);
        let names = collected[0].streams.iter().map(|stream| stream.record.name.as_str());
        assert!(names.eq(["b", "c"]));
        assert_eq!(collected[0].release, [0..2, 6..7]);
    }
}
