//! Ghost table: the levels of keys that are not resident, in four bytes per key.
//!
//! Sixteen keys share a block of 64 bytes and are distinguished by 12 bits of their hash. In a full
//! block the lowest level is replaced. Levels rise with time, so old entries lose weight without
//! being touched. A count-min sketch of the same size holds a quarter of the keys, and once it is
//! full it overestimates every new key.

use super::decayed_frequency::DecayedFrequency;
use crate::embeddings::key::Key;

const BLOCK: usize = 16;
/// Cells of a block that one SIMD instruction compares.
const LANES: usize = 4;
/// Lower bits of a cell: a level in 16ths of a doubling, which wraps around after tens of thousands
/// of half-lives. The upper bits are the key's tag; 0 is an empty cell.
const LEVEL_BITS: u32 = 20;
const LEVEL_MASK: u32 = (1 << LEVEL_BITS) - 1;
const STEP: u32 = DecayedFrequency::STEPS / 16;
/// Levels above "now" that sums can reach: 64 doublings.
const ABOVE_NOW: u32 = 64 * DecayedFrequency::STEPS;

/// Levels of keys that are not resident.
#[derive(Debug, Clone)]
pub(super) struct GhostTable {
    blocks: Vec<[u32; BLOCK]>,
    /// Sum of all rebases so far, which wraps around.
    rebased_by: u32,
}

impl GhostTable {
    /// A table for about `keys` keys.
    pub fn new(keys: u64) -> Self {
        let blocks = usize::try_from(block_count(keys)).expect("at most 2^26 blocks");
        Self { blocks: vec![[0; BLOCK]; blocks], rebased_by: 0 }
    }

    /// Bytes of a table for about `keys` keys.
    pub fn bytes_for(keys: u64) -> u64 {
        block_count(keys) * size_of::<[u32; BLOCK]>() as u64
    }

    /// Bytes of this table.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.blocks[..]) as u64
    }

    #[inline]
    fn block_and_tag(&self, key: Key) -> (usize, u32) {
        let hash = key.mixed();
        // The upper half of the hash as a share of the blocks, whose number need not be a power of
        // two.
        let block = (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize;
        (block, (hash as u32 >> LEVEL_BITS).max(1))
    }

    /// Lowers all levels, stored and future ones, by `by`.
    pub fn rebase(&mut self, by: u32) {
        self.rebased_by = self.rebased_by.wrapping_add(by);
    }

    /// Distance of a cell's level from the highest that is possible now.
    #[inline]
    fn below(&self, cell: u32, now: DecayedFrequency) -> u32 {
        let highest = now.0.wrapping_add(self.rebased_by).wrapping_add(ABOVE_NOW) / STEP;
        highest.wrapping_sub(cell) & LEVEL_MASK
    }

    /// The level stored for a key. If there is none: 0, or rarely the level of another key.
    #[inline]
    pub fn get(&self, key: Key, now: DecayedFrequency) -> DecayedFrequency {
        let (block, tag) = self.block_and_tag(key);
        let block = &self.blocks[block];
        find_tag(block, tag).map_or(DecayedFrequency::default(), |cell| {
            let below = self.below(block[cell], now) * STEP;
            DecayedFrequency(now.0.saturating_add(ABOVE_NOW).saturating_sub(below))
        })
    }

    /// Stores the level of a key.
    #[inline]
    pub fn insert(&mut self, key: Key, level: DecayedFrequency, now: DecayedFrequency) {
        let (at, tag) = self.block_and_tag(key);
        let block = &self.blocks[at];
        let cell = find_tag(block, tag).unwrap_or_else(|| {
            // An empty cell, else the lowest. Its index is in the low bits of the maximum.
            let mut most = [0_i32; LANES];
            for (at, cells) in block.as_chunks::<LANES>().0.iter().enumerate() {
                for lane in 0..LANES {
                    let is_empty = u32::from(cells[lane] == 0) << LEVEL_BITS;
                    let below = is_empty | self.below(cells[lane], now);
                    let below = below << BLOCK.ilog2() | (at * LANES + lane) as u32;
                    most[lane] = most[lane].max(below.cast_signed());
                }
            }
            most.into_iter().fold(0, i32::max) as usize % BLOCK
        });
        let noted = level.0.wrapping_add(self.rebased_by) / STEP;
        self.blocks[at][cell] = tag << LEVEL_BITS | (noted & LEVEL_MASK);
    }
}

fn block_count(keys: u64) -> u64 {
    (keys / BLOCK as u64).clamp(1, 1 << 26)
}

/// The cell of a block with this tag. All cells are compared, which is as fast as the first few.
#[inline]
fn find_tag(block: &[u32; BLOCK], tag: u32) -> Option<usize> {
    let mut found = [0_u32; LANES];
    for (at, cells) in block.as_chunks::<LANES>().0.iter().enumerate() {
        for lane in 0..LANES {
            let matches = cells[lane] >> LEVEL_BITS == tag;
            found[lane] |= if matches { 1 << (at * LANES + lane) } else { 0 };
        }
    }
    let found = found.into_iter().fold(0, |all, some| all | some);
    (found != 0).then(|| found.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::TableId;

    fn key(row: u64) -> Key {
        Key::new(TableId(0), row).unwrap()
    }

    #[test]
    fn stored_levels_are_found_with_few_false_positives() {
        let now = DecayedFrequency(100_000);
        let mut ghosts = GhostTable::new(4000);
        assert_eq!(ghosts.get(key(5), now), DecayedFrequency(0));
        let level = |row: u64| DecayedFrequency(90_000 + 16 * row as u32);
        for row in 0..1000 {
            ghosts.insert(key(row), DecayedFrequency(5), now);
            ghosts.insert(key(row), level(row), now);
        }
        let right = (0..1000).filter(|row| ghosts.get(key(*row), now) == level(*row)).count();
        assert!(right > 980, "{right} of 1,000");
        let false_positives =
            (1000..11_000).filter(|row| ghosts.get(key(*row), now) > DecayedFrequency(0)).count();
        assert!(false_positives < 50, "{false_positives} of 10,000 keys that were never stored");
    }

    #[test]
    fn a_full_table_keeps_the_highest_levels_also_after_wrapping() {
        let now = 100_000;
        for rebased_by in [0, LEVEL_MASK * STEP - now + 500, u32::MAX - now - 500] {
            let mut ghosts = GhostTable::new(160);
            ghosts.rebase(rebased_by);
            for row in 0..1600 {
                let level = if row % 16 == 0 { now + 2560 } else { now - 16_000 };
                ghosts.insert(key(row), DecayedFrequency(level), DecayedFrequency(now));
            }
            let high = (0..100).filter(|row| {
                ghosts.get(key(16 * row), DecayedFrequency(now)).0.abs_diff(now + 2560) < STEP
            });
            let high = high.count();
            assert!(high > 80, "{high} of 100 after {rebased_by}");
            let later = DecayedFrequency(now + 25_600);
            assert!(
                ghosts.get(key(0), later).0.abs_diff(now + 2560) <= STEP,
                "levels do not change with time"
            );
            ghosts.rebase(40_000);
            let rebased_by = ghosts.get(key(0), DecayedFrequency(later.0 - 40_000));
            assert!(
                rebased_by.0.abs_diff(now + 2560 - 40_000) <= STEP,
                "a rebase lowers all levels"
            );
        }
    }
}
