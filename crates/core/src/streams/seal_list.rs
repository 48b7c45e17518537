//! The seal list: what a store has sealed durably, in a file beside the device.
//!
//! The records on the device decide which streams are there. If a region is overwritten from
//! outside, a record can be gone with all that it describes; the list then has the name of the
//! stream, so that it is reported lost (promise 9). It also has the destructions for whose record
//! the device has no room.
//!
//! Entries are appended. Each has a checksum; the first that is torn ends the list.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use blake3::Hasher;

use super::{
    Lifetime, StreamName, StreamNumber, collection::CollectedStream, record::SealedRecord,
    runs::OrdinalRuns,
};

/// Longest file that is read. A stream takes at most 333 bytes.
pub const LIST_SIZE_MAX: u64 = 64 << 20;
/// Most blocks of a stream: the ordinals of a family.
const BLOCKS_MAX: u64 = 1 << 26;
const CHECKSUM_SIZE: usize = 8;

/// A stream, unlike any other that the store has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey {
    /// The number in the name of its family's group.
    pub family: u64,
    /// Its number in the family.
    pub stream: StreamNumber,
}

/// A sealed stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedStream {
    /// Its name.
    pub name: StreamName,
    /// The name of its family.
    pub family: StreamName,
    /// Time of the seal, in milliseconds since 1970.
    pub sealed_at_ms: u64,
    /// End of its lease, in milliseconds since 1970; `None` if it is kept.
    pub expires_at_ms: Option<u64>,
    /// Number of its blocks.
    pub blocks: u64,
    /// Bytes of its blocks.
    pub bytes: u64,
}

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealEntry {
    /// The stream is sealed.
    Sealed(StreamKey, ListedStream),
    /// The stream is destroyed.
    Destroyed(StreamKey),
}

/// The entries of a list, without those that later ones replace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SealList {
    entries: BTreeMap<StreamKey, Option<ListedStream>>,
}

impl SealEntry {
    /// Encodes the entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let (kind, key) = match self {
            Self::Sealed(key, _) => (1, key),
            Self::Destroyed(key) => (2, key),
        };
        body.push(kind);
        body.extend(key.family.to_le_bytes());
        body.extend(key.stream.0.to_le_bytes());
        if let Self::Sealed(_, listed) = self {
            let expires = listed.expires_at_ms.unwrap_or(0);
            for number in [listed.sealed_at_ms, expires, listed.blocks, listed.bytes] {
                body.extend(number.to_le_bytes());
            }
            for name in [&listed.name, &listed.family] {
                body.push(u8::try_from(name.as_str().len()).expect("at most 128"));
                body.extend(name.as_str().bytes());
            }
        }
        let length = u16::try_from(body.len()).expect("two names and a few numbers");
        [&length.to_le_bytes()[..], &checksum(&body), &body].concat()
    }

    /// Decodes the first entry, and returns the rest. `None` if it is torn, or of a later version.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (sum, rest) = rest.split_first_chunk::<CHECKSUM_SIZE>()?;
        let (body, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        if checksum(body) != *sum {
            return None;
        }
        let (kind, mut body) = body.split_first()?;
        let family = u64::from_le_bytes(take(&mut body)?);
        let key = StreamKey { family, stream: StreamNumber(u32::from_le_bytes(take(&mut body)?)) };
        let entry = match kind {
            1 => {
                let mut long = || take(&mut body).map(u64::from_le_bytes);
                let [sealed_at_ms, expires, blocks, bytes] = [long()?, long()?, long()?, long()?];
                let mut name = || {
                    let [length] = take(&mut body)?;
                    let (name, after) = body.split_at_checked(usize::from(length))?;
                    body = after;
                    StreamName::from_bytes(name).ok()
                };
                let (name, family) = (name()?, name()?);
                let expires_at_ms = Some(expires).filter(|at| *at > 0);
                let listed =
                    ListedStream { name, family, sealed_at_ms, expires_at_ms, blocks, bytes };
                (blocks <= BLOCKS_MAX).then_some(Self::Sealed(key, listed))?
            }
            2 => Self::Destroyed(key),
            _ => return None,
        };
        body.is_empty().then_some((entry, rest))
    }
}

impl SealList {
    /// Decodes a file, up to the first entry that is torn.
    pub fn decode(mut bytes: &[u8]) -> Self {
        let mut list = Self::default();
        while let Some((entry, rest)) = SealEntry::decode(bytes) {
            list.add(entry);
            bytes = rest;
        }
        list
    }

    /// Encodes all entries.
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.entries.iter().map(|(key, listed)| match listed {
            Some(listed) => SealEntry::Sealed(*key, listed.clone()),
            None => SealEntry::Destroyed(*key),
        });
        entries.flat_map(|entry| entry.encode()).collect()
    }

    /// Adds an entry. A destroyed stream stays destroyed.
    pub fn add(&mut self, entry: SealEntry) {
        match entry {
            SealEntry::Sealed(key, listed) => {
                self.entries.entry(key).or_insert(Some(listed));
            }
            SealEntry::Destroyed(key) => {
                self.entries.insert(key, None);
            }
        }
    }

    /// The streams of a family that are destroyed.
    pub fn destroyed_in(&self, family: u64) -> BTreeSet<StreamNumber> {
        let first = StreamKey { family, stream: StreamNumber(0) };
        let of_family = self.entries.range(first..).take_while(|(key, _)| key.family == family);
        of_family.filter(|(_, listed)| listed.is_none()).map(|(key, _)| key.stream).collect()
    }

    /// Removes what is no longer needed: destructions in families that are gone, and leases that
    /// have ended. `is_family` says whether the device has a family with this number.
    pub fn retain(&mut self, now_ms: u64, is_family: impl Fn(u64) -> bool) {
        self.entries.retain(|key, listed| match listed {
            Some(listed) => listed.expires_at_ms.is_none_or(|at| at > now_ms),
            None => is_family(key.family),
        });
    }

    /// The streams that the device does not have. Of two with one name, the one that was sealed
    /// later. `is_there` says whether the device has a stream, or another one of its name.
    pub fn lost(
        &self,
        is_there: impl Fn(StreamKey, &StreamName) -> bool,
    ) -> Vec<(StreamKey, ListedStream)> {
        let mut lost = BTreeMap::<&StreamName, (StreamKey, &ListedStream)>::new();
        for (key, listed) in &self.entries {
            let Some(listed) = listed else { continue };
            if is_there(*key, &listed.name) {
                continue;
            }
            let known = lost.entry(&listed.name).or_insert((*key, listed));
            if known.1.sealed_at_ms < listed.sealed_at_ms {
                *known = (*key, listed);
            }
        }
        lost.into_values().map(|(key, listed)| (key, listed.clone())).collect()
    }
}

impl ListedStream {
    /// A stream that the device does not have: all of its blocks are lost. An empty stream has lost
    /// one, so that it cannot be opened.
    pub fn into_lost(self, stream: StreamNumber) -> CollectedStream {
        let mut runs = OrdinalRuns::default();
        let lost = 0..self.blocks.max(1);
        runs.push_range(&lost);
        let Self { name, sealed_at_ms, expires_at_ms, bytes, .. } = self;
        let record = SealedRecord { stream, name, sealed_at_ms, expires_at_ms, bytes, runs };
        CollectedStream { record, record_ordinal: lost.end, lost: vec![lost] }
    }
}

impl SealedRecord {
    /// The lifetime with which the stream was created.
    pub fn lifetime(&self) -> Lifetime {
        let lease = |at: u64| Duration::from_millis(at.saturating_sub(self.sealed_at_ms));
        self.expires_at_ms.map_or(Lifetime::Kept, |at| Lifetime::Lease(lease(at)))
    }

    /// What the list has of the stream.
    pub fn listed(&self, family: StreamName) -> ListedStream {
        ListedStream {
            name: self.name.clone(),
            family,
            sealed_at_ms: self.sealed_at_ms,
            expires_at_ms: self.expires_at_ms,
            blocks: self.runs.blocks(),
            bytes: self.bytes,
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_SIZE] {
    let mut sum = [0; CHECKSUM_SIZE];
    Hasher::new_derive_key("forebay seal list 1").update(body).finalize_xof().fill(&mut sum);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> StreamName {
        StreamName::new(text).unwrap()
    }

    fn key(family: u64, stream: u32) -> StreamKey {
        StreamKey { family, stream: StreamNumber(stream) }
    }

    fn sealed(key: StreamKey, text: &str, sealed_at_ms: u64, lease: Option<u64>) -> SealEntry {
        let (name, family) = (name(text), name("family"));
        let expires_at_ms = lease.map(|lease| sealed_at_ms + lease);
        let listed =
            ListedStream { name, family, sealed_at_ms, expires_at_ms, blocks: 3, bytes: 30 };
        SealEntry::Sealed(key, listed)
    }

    fn lost(list: &SealList, there: &[StreamKey]) -> Vec<StreamKey> {
        let missing = list.lost(|key, _| there.contains(&key));
        missing.into_iter().map(|(key, _)| key).collect()
    }

    /// Promise 9: a stream that was sealed and not destroyed is there or lost.
    #[test]
    fn what_is_listed_and_not_there_is_lost_unless_it_was_destroyed() {
        let mut list = SealList::default();
        list.add(sealed(key(1, 0), "a", 1, None));
        list.add(sealed(key(1, 1), "b", 1, Some(50)));
        list.add(sealed(key(2, 0), "c", 1, None));
        list.add(SealEntry::Destroyed(key(2, 0)));
        assert_eq!(lost(&list, &[key(1, 1)]), [key(1, 0)]);
        assert_eq!(lost(&list, &[]), [key(1, 0), key(1, 1)]);
        // The seal of a stream and its destruction may be listed in either order.
        list.add(SealEntry::Destroyed(key(3, 0)));
        list.add(sealed(key(3, 0), "d", 1, None));
        let is_destroyed =
            |list: &SealList, key: StreamKey| list.destroyed_in(key.family).contains(&key.stream);
        assert!(is_destroyed(&list, key(3, 0)) && is_destroyed(&list, key(2, 0)));
        assert!(!is_destroyed(&list, key(1, 0)));
        list.retain(51, |family| family == 2);
        assert_eq!(lost(&list, &[]), [key(1, 0)], "the lease of b has ended");
        assert!(is_destroyed(&list, key(2, 0)) && !is_destroyed(&list, key(3, 0)));
        list.add(sealed(key(4, 0), "a", 2, None));
        assert_eq!(lost(&list, &[]), [key(4, 0)], "the later one of two with one name");
        let (key, listed) = list.lost(|_, _| false).remove(0);
        let adopted = listed.into_lost(key.stream);
        assert_eq!(adopted.lost, std::slice::from_ref(&(0..3)));
        assert_eq!(adopted.record.bytes, 30);
    }

    /// A file with other bytes has fewer entries, never a panic.
    #[test]
    fn torn_and_changed_files_keep_what_comes_before() {
        let mut list = SealList::default();
        for number in 0..20 {
            list.add(sealed(key(number, 1), &format!("stream {number}"), number, None));
        }
        list.add(SealEntry::Destroyed(key(5, 1)));
        let bytes = list.encode();
        assert_eq!(SealList::decode(&bytes), list);
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut changed = bytes.clone();
            let at = random.usize(..changed.len());
            changed[at] ^= 1 << random.u8(..8);
            changed.truncate(random.usize(changed.len() / 2..=changed.len()));
            let decoded = SealList::decode(&changed);
            assert!(decoded.entries.iter().all(|(key, listed)| list.entries[key] == *listed));
        }
    }
}
