//! Stream records: entries of a family that say that a stream is sealed, or destroyed.
//!
//! A record of a sealed stream is written after all its blocks are durable. It has the number of
//! its blocks and bytes and their ordinals, so that a lost region is noticed (promise 9). A family
//! is a group of the flash engine; the group's name has the family's name and a number that no
//! other family of the store has had, so that no ordinal is ever used twice.

use super::{BlockNumber, StreamName, StreamNumber, runs::OrdinalRuns};

/// In the tag of an entry: the entry is a record, not a block.
pub const RECORD_TAG: u32 = 1 << 31;
/// Most runs of one stream. Their record takes at most 0.5 MiB, which fits into any region.
pub const RUNS_MAX: usize = 1 << 16;

const MAGIC: [u8; 4] = *b"fbSR";
const VERSION: u8 = 1;
const HEADER_SIZE: usize = 48;
const FAMILY_PREFIX: [u8; 4] = *b"fbs1";
/// Limit of the ordinals of a family: the flash engine's, for a dense group.
const NUMBER_MAX: u64 = 1 << 26;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The stream is complete.
    Sealed(SealedRecord),
    /// The stream is gone, whatever else is found.
    Destroyed(StreamNumber),
}

/// What is known about a sealed stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRecord {
    /// Its number in the family: the tag of its blocks.
    pub stream: StreamNumber,
    /// Its name.
    pub name: StreamName,
    /// Time of the seal, in milliseconds since 1970.
    pub sealed_at_ms: u64,
    /// End of its lease, in milliseconds since 1970; `None` if it is kept.
    pub expires_at_ms: Option<u64>,
    /// Bytes of all its blocks.
    pub bytes: u64,
    /// The ordinals of its blocks.
    pub runs: OrdinalRuns,
}

impl Record {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_SIZE);
        out.extend(MAGIC);
        match self {
            Self::Destroyed(StreamNumber(stream)) => {
                out.extend([VERSION, 2, 0, 0]);
                out.extend(stream.to_le_bytes());
                out.resize(HEADER_SIZE, 0);
            }
            Self::Sealed(sealed) => {
                let name = sealed.name.as_str().as_bytes();
                out.extend([VERSION, 1, u8::try_from(name.len()).expect("at most 128"), 0]);
                out.extend(sealed.stream.0.to_le_bytes());
                let runs = u32::try_from(sealed.runs.len()).expect("at most RUNS_MAX");
                out.extend(runs.to_le_bytes());
                let expires = sealed.expires_at_ms.unwrap_or(0);
                for number in [sealed.runs.blocks(), sealed.bytes, sealed.sealed_at_ms, expires] {
                    out.extend(number.to_le_bytes());
                }
                out.extend(name);
                let mut end = 0;
                for range in sealed.runs.ranges() {
                    put_varint(&mut out, range.start - end);
                    put_varint(&mut out, range.end - range.start);
                    end = range.end;
                }
            }
        }
        out
    }

    /// Decodes a record. `None` if it is not one, or of a later version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_SIZE)?;
        if header[..4] != MAGIC || header[4] != VERSION {
            return None;
        }
        let word = |at: usize| header[at..].first_chunk().map(|word| u32::from_le_bytes(*word));
        let long = |at: usize| header[at..].first_chunk().map(|long| u64::from_le_bytes(*long));
        let stream = StreamNumber(word(8).filter(|stream| *stream < RECORD_TAG)?);
        match header[5] {
            1 => {}
            2 => return Some(Self::Destroyed(stream)),
            _ => return None,
        }
        let (name, after) = rest.split_at_checked(usize::from(header[6]))?;
        let name = StreamName::from_bytes(name).ok()?;
        rest = after;
        let count = usize::try_from(word(12)?).ok().filter(|count| *count <= RUNS_MAX)?;
        let (mut runs, mut end) = (OrdinalRuns::default(), 0_u64);
        for number in 0..count {
            let (gap, length) = (take_varint(&mut rest)?, take_varint(&mut rest)?);
            // Adjacent runs would be one.
            if length == 0 || (number > 0 && gap == 0) {
                return None;
            }
            let start = end + gap;
            end = start + length;
            if end > NUMBER_MAX {
                return None;
            }
            runs.push_range(&(start..end));
        }
        if !rest.is_empty() || runs.blocks() != long(16)? {
            return None;
        }
        Some(Self::Sealed(SealedRecord {
            stream,
            name,
            bytes: long(24)?,
            sealed_at_ms: long(32)?,
            expires_at_ms: Some(long(40)?).filter(|at| *at > 0),
            runs,
        }))
    }
}

impl SealedRecord {
    /// Whether its lease has ended.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at| at <= now_ms)
    }

    /// Ranges of block numbers for which `is_there` is false.
    pub fn missing(&self, is_there: impl Fn(u64) -> bool) -> Vec<std::ops::Range<u64>> {
        missing(&self.runs, is_there)
    }
}

/// Ranges of block numbers whose ordinals are not there.
pub fn missing(runs: &OrdinalRuns, is_there: impl Fn(u64) -> bool) -> Vec<std::ops::Range<u64>> {
    let mut missing: Vec<std::ops::Range<u64>> = Vec::new();
    for (block, ordinal) in (0..).zip(runs.ranges().flatten()) {
        if is_there(ordinal) {
            continue;
        }
        match missing.last_mut().filter(|last| last.end == block) {
            Some(last) => last.end += 1,
            None => missing.push(block..block + 1),
        }
    }
    debug_assert!(missing.iter().all(|range| runs.ordinal(BlockNumber(range.start)).is_some()));
    missing
}

/// Name of the group of a family.
pub fn family_group_name(unique: u64, name: &StreamName) -> Vec<u8> {
    [&FAMILY_PREFIX[..], &unique.to_le_bytes(), name.as_str().as_bytes()].concat()
}

/// The family's number and name in the name of a group; `None` if it is not a family's.
pub fn parse_family_group_name(group: &[u8]) -> Option<(u64, StreamName)> {
    let (unique, name) = group.strip_prefix(&FAMILY_PREFIX)?.split_first_chunk()?;
    Some((u64::from_le_bytes(*unique), StreamName::from_bytes(name).ok()?))
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// A number below [`NUMBER_MAX`], in its shortest form.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..28).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let shortest = byte != 0 || shift == 0;
            return (shortest && number <= NUMBER_MAX).then_some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(seed: u64) -> SealedRecord {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut runs = OrdinalRuns::default();
        let mut ordinal = random.u64(..9);
        for _ in 0..random.u32(..200) {
            let end = ordinal + random.u64(1..300);
            runs.push_range(&(ordinal..end));
            ordinal = end + random.u64(1..300);
        }
        SealedRecord {
            stream: StreamNumber(random.u32(..RECORD_TAG)),
            name: StreamName::new("a stream").unwrap(),
            sealed_at_ms: random.u64(..),
            expires_at_ms: random.bool().then(|| random.u64(1..)),
            bytes: random.u64(..),
            runs,
        }
    }

    #[test]
    fn records_round_trip() {
        for seed in 0..200 {
            let record = Record::Sealed(sealed(seed));
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        let record = Record::Destroyed(StreamNumber(7));
        assert_eq!(Record::decode(&record.encode()), Some(record));
        let name = StreamName::new("family").unwrap();
        let group = family_group_name(u64::MAX, &name);
        assert_eq!(parse_family_group_name(&group), Some((u64::MAX, name)));
        assert_eq!(parse_family_group_name(b"fbs1"), None);
    }

    /// A record with another bit is another record or none, never a panic.
    #[test]
    fn changed_records_are_rejected_or_read_as_they_are() {
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = Record::Sealed(sealed(seed % 50)).encode();
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
            bytes.truncate(random.usize(bytes.len() / 2..=bytes.len()));
            if let Some(record) = Record::decode(&bytes) {
                assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }
    }

    #[test]
    fn missing_blocks_are_named_as_ranges() {
        let mut runs = OrdinalRuns::default();
        runs.push_range(&(10..15));
        runs.push_range(&(20..25));
        assert_eq!(missing(&runs, |ordinal| ![11, 14, 20].contains(&ordinal)), [1..2, 4..6]);
        assert_eq!(missing(&runs, |_| true), []);
    }
}
