//! Segment table: interval of the last read and trail position of each segment, in ten bytes.
//!
//! The table has a fixed number of slots, reserved at the start, and never moves an entry. A
//! segment has two sets of 16 slots, by hash, and takes one in the emptier set; so the table is
//! about 87 % full before a segment finds no slot. A slot holds 32 bits of the hash: one lookup in
//! 10^8 finds the entry of another segment.

use crate::{
    tier::snapshot::{Reader, SnapshotError, Writer},
    util::stable_hash::mix,
};

/// Slots of a set: the hashes fill a cache line.
const WAYS: usize = 16;
/// Sets that are swept when an interval begins, as a share of all: a table is swept twice before
/// an interval's number repeats.
const SWEEP_SHARE: usize = 1 << 15;

/// A segment's hash; the highest bits decide whether it is in a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    pub fn new(bucket: u32, segment: u64) -> Self {
        Self(mix(mix(u64::from(bucket)) ^ segment))
    }

    /// Whether the segment is in a sample of one in 2^shift.
    #[inline]
    pub fn is_sampled(self, shift: u32) -> bool {
        shift == 0 || self.0 >> (64 - shift) == 0
    }

    /// What a slot holds of it: the highest bits, and never 0.
    fn tag(self) -> u32 {
        u32::try_from(self.0 >> 32).expect("32 bits").max(1)
    }
}

/// An entry of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Trail position.
    pub position: u32,
    /// Lowest bits of the interval of the last read.
    pub stamp: u16,
}

/// What counts as an entry: those of the sample that were read in the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Validity {
    pub shift: u32,
    pub stamp: u16,
    pub intervals: u16,
}

impl Validity {
    #[inline]
    fn covers(self, tag: u32, stamp: u16) -> bool {
        tag != 0
            && (self.shift == 0 || self.shift < 32 && tag >> (32 - self.shift) == 0)
            && self.stamp.wrapping_sub(stamp) < self.intervals
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct SegmentTable {
    tags: Vec<u32>,
    positions: Vec<u32>,
    stamps: Vec<u16>,
    ways: usize,
    sets: usize,
    swept: usize,
}

impl SegmentTable {
    /// A table with at most this number of slots, and at least one.
    pub fn new(slots: usize) -> Self {
        let ways = slots.clamp(1, WAYS);
        let sets = (slots / ways).max(1);
        let slots = sets * ways;
        let (tags, positions, stamps) = (vec![0; slots], vec![0; slots], vec![0; slots]);
        Self { tags, positions, stamps, ways, sets, swept: 0 }
    }

    /// Slot of a segment.
    #[inline]
    pub fn find(&self, key: Key, valid: Validity) -> Option<usize> {
        let tag = key.tag();
        self.sets_of(key).into_iter().find_map(|start| {
            let at = self.tags[start..start + self.ways].iter().position(|other| *other == tag)?;
            valid.covers(tag, self.stamps[start + at]).then_some(start + at)
        })
    }

    #[inline]
    pub fn at(&self, slot: usize) -> Seen {
        Seen { position: self.positions[slot], stamp: self.stamps[slot] }
    }

    #[inline]
    pub fn set_stamp(&mut self, slot: usize, stamp: u16) {
        self.stamps[slot] = stamp;
    }

    /// Adds a segment that is not in the table. Returns whether there was a slot.
    pub fn insert(&mut self, key: Key, seen: Seen, valid: Validity) -> bool {
        let free = |start: usize| {
            let is_free = |slot: &usize| !valid.covers(self.tags[*slot], self.stamps[*slot]);
            let mut slots = (start..start + self.ways).filter(is_free);
            slots.next().map(|first| (1 + slots.count(), first))
        };
        let [one, other] = self.sets_of(key).map(free);
        let Some((_, slot)) = one.max(other) else { return false };
        self.tags[slot] = key.tag();
        self.positions[slot] = seen.position;
        self.stamps[slot] = seen.stamp;
        true
    }

    /// Clears the entries of some sets that are no longer valid, before their stamps repeat.
    pub fn sweep(&mut self, valid: Validity) {
        for _ in 0..=self.sets / SWEEP_SHARE {
            self.swept = (self.swept + 1) % self.sets;
            for slot in self.swept * self.ways..(self.swept + 1) * self.ways {
                if !valid.covers(self.tags[slot], self.stamps[slot]) {
                    self.tags[slot] = 0;
                }
            }
        }
    }

    /// Number of valid entries. Looks at all slots.
    pub fn len(&self, valid: Validity) -> usize {
        let slots = self.tags.iter().zip(&self.stamps);
        slots.filter(|(tag, stamp)| valid.covers(**tag, **stamp)).count()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.tags.len()
    }

    /// Writes the valid entries.
    pub fn save(&self, valid: Validity, writer: &mut Writer) {
        writer.count(self.len(valid));
        for (slot, (tag, stamp)) in self.tags.iter().zip(&self.stamps).enumerate() {
            if valid.covers(*tag, *stamp) {
                writer.count(slot);
                writer.u32(*tag);
                writer.u32(self.positions[slot]);
                writer.u32(u32::from(*stamp));
            }
        }
    }

    /// Reads entries into an empty table of the same size.
    pub fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), SnapshotError> {
        for _ in 0..reader.count(16, self.slots())? {
            let slot = usize::try_from(reader.u32()?).expect("at least 32 bits");
            if slot >= self.slots() {
                return Err(SnapshotError::Damaged);
            }
            (self.tags[slot], self.positions[slot]) = (reader.u32()?, reader.u32()?);
            self.stamps[slot] = u16::try_from(reader.u32()?).map_err(|_| SnapshotError::Damaged)?;
        }
        Ok(())
    }

    /// First slots of the two sets of a segment.
    #[inline]
    fn sets_of(&self, key: Key) -> [usize; 2] {
        let one = mix(key.0);
        [one, mix(one.rotate_left(32) ^ 0xa076_1d64_78bd_642f)].map(|hash| {
            let set = (u128::from(hash) * self.sets as u128) >> 64;
            usize::try_from(set).expect("below the number of sets") * self.ways
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Validity = Validity { shift: 0, stamp: 0, intervals: 1 };

    fn fill(table: &mut SegmentTable, segments: u64) -> u64 {
        let seen = |position| Seen { position, stamp: 0 };
        let first_lost = (0..segments).find(|segment| {
            let position = u32::try_from(*segment).unwrap();
            !table.insert(Key::new(7, *segment), seen(position), ALL)
        });
        first_lost.unwrap_or(segments)
    }

    #[test]
    fn six_slots_in_seven_are_used_before_a_segment_finds_none() {
        for slots in [1 << 12, 1 << 16, 400_000] {
            let mut table = SegmentTable::new(slots);
            let stored = fill(&mut table, slots as u64);
            assert!(stored * 7 >= slots as u64 * 6, "{stored} of {slots}");
            assert_eq!(table.len(ALL) as u64, stored);
            for segment in 0..stored {
                let slot = table.find(Key::new(7, segment), ALL).expect("it was inserted");
                assert_eq!(u64::from(table.at(slot).position), segment);
            }
            let strangers =
                (0..stored).filter(|segment| table.find(Key::new(8, *segment), ALL).is_some());
            assert!(strangers.count() <= 1);
        }
    }

    #[test]
    fn entries_outside_the_sample_and_the_window_make_room() {
        let mut table = SegmentTable::new(1 << 10);
        let stored = fill(&mut table, 1 << 10);
        let half = Validity { shift: 1, ..ALL };
        let sampled = (0..stored).filter(|segment| Key::new(7, *segment).is_sampled(1)).count();
        assert_eq!(table.len(half), sampled);
        assert!((400..600).contains(&sampled), "{sampled}");
        let later = Validity { shift: 0, stamp: 3, intervals: 3 };
        assert_eq!(table.len(later), 0);
        assert!(table.insert(Key::new(9, 9), Seen { position: 0, stamp: 3 }, later));
        (0..100).for_each(|_| table.sweep(later));
        assert_eq!(table.len(ALL), 0, "old entries were cleared");
    }
}
