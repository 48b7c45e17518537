//! The levels of keys that are not resident: four bytes a key, nothing to evict.
//!
//! Sixteen keys share a block of 64 bytes, told apart by a few bits of their hash; when a block is full, the lowest
//! level makes way. Levels rise with time, so what was noted long ago counts for nothing by itself. (A count-min
//! sketch of the same size has room for a quarter of the keys, and once it is full every newcomer looks like
//! an old favourite.)

use super::{super::key::Key, level::Level};

const BLOCK: usize = 16;
/// Cells of a block that the processor looks at in one step.
const LANES: usize = 4;
/// A cell's lower bits are a level, in 16ths of a doubling; it wraps around, which takes tens of thousands of
/// half-lives. Its upper bits tell whose it is; nought is nobody's.
const LEVEL_BITS: u32 = 20;
const LEVEL_MASK: u32 = (1 << LEVEL_BITS) - 1;
const STEP: u32 = Level::STEPS / 16;
/// Sums may be above "now" by so much: 64 doublings.
const ABOVE: u32 = 64 * Level::STEPS;

/// Remembered levels.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    blocks: Vec<[u32; BLOCK]>,
    /// By how much all levels have been lowered so far, up to what wraps around.
    lowered: u32,
}

impl Memory {
    /// For about `keys` keys at a time.
    pub fn new(keys: u64) -> Self {
        let blocks = (keys / BLOCK as u64).clamp(1, 1 << 26);
        let blocks = usize::try_from(blocks).expect("at most 2^26 blocks");
        Self { blocks: vec![[0; BLOCK]; blocks], lowered: 0 }
    }

    #[inline]
    fn place(&self, key: Key) -> (usize, u32) {
        let hash = key.mixed();
        // The upper half of the hash as a share of the blocks: any number of them will do.
        let block = (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize;
        (block, (hash as u32 >> LEVEL_BITS).max(1))
    }

    /// All levels, those remembered and those to come, are lowered by so much.
    pub fn lower(&mut self, by: u32) {
        self.lowered = self.lowered.wrapping_add(by);
    }

    /// How far a cell's level is below the highest that is possible now.
    #[inline]
    fn below(&self, cell: u32, now: Level) -> u32 {
        let highest = now.0.wrapping_add(self.lowered).wrapping_add(ABOVE) / STEP;
        highest.wrapping_sub(cell) & LEVEL_MASK
    }

    /// The level last noted for a key; nought, or rarely another key's, if none was.
    #[inline]
    pub fn recall(&self, key: Key, now: Level) -> Level {
        let (block, tag) = self.place(key);
        let block = &self.blocks[block];
        own(block, tag).map_or(Level::default(), |cell| {
            let below = self.below(block[cell], now) * STEP;
            Level(now.0.saturating_add(ABOVE).saturating_sub(below))
        })
    }

    /// Notes the level of a key.
    #[inline]
    pub fn note(&mut self, key: Key, level: Level, now: Level) {
        let (at, tag) = self.place(key);
        let block = &self.blocks[at];
        let cell = own(block, tag).unwrap_or_else(|| {
            // The lowest, or nobody's; whose it is stands in the lowest bits.
            let mut most = [0_i32; LANES];
            for (at, cells) in block.as_chunks::<LANES>().0.iter().enumerate() {
                for lane in 0..LANES {
                    let nobodys = u32::from(cells[lane] == 0) << LEVEL_BITS;
                    let below = nobodys | self.below(cells[lane], now);
                    let below = below << BLOCK.ilog2() | (at * LANES + lane) as u32;
                    most[lane] = most[lane].max(below.cast_signed());
                }
            }
            most.into_iter().fold(0, i32::max) as usize % BLOCK
        });
        let noted = level.0.wrapping_add(self.lowered) / STEP;
        self.blocks[at][cell] = tag << LEVEL_BITS | (noted & LEVEL_MASK);
    }
}

/// Which cell of a block has this tag. All are looked at, since that takes no longer than the first few would.
#[inline]
fn own(block: &[u32; BLOCK], tag: u32) -> Option<usize> {
    let mut found = [0_u32; LANES];
    for (at, cells) in block.as_chunks::<LANES>().0.iter().enumerate() {
        for lane in 0..LANES {
            let is_own = cells[lane] >> LEVEL_BITS == tag;
            found[lane] |= if is_own { 1 << (at * LANES + lane) } else { 0 };
        }
    }
    let found = found.into_iter().fold(0, |all, some| all | some);
    (found != 0).then(|| found.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedding::TableId;

    fn key(row: u64) -> Key {
        Key::new(TableId(0), row).unwrap()
    }

    #[test]
    fn what_has_room_is_remembered_and_little_is_made_up() {
        let now = Level(100_000);
        let mut memory = Memory::new(4000);
        assert_eq!(memory.recall(key(5), now), Level(0));
        let level = |row: u64| Level(90_000 + 16 * row as u32);
        for row in 0..1000 {
            memory.note(key(row), Level(5), now);
            memory.note(key(row), level(row), now);
        }
        let right = (0..1000).filter(|row| memory.recall(key(*row), now) == level(*row)).count();
        assert!(right > 980, "{right} of 1,000");
        let made_up = (1000..11_000).filter(|row| memory.recall(key(*row), now) > Level(0)).count();
        assert!(made_up < 50, "{made_up} of 10,000 keys that were never noted");
    }

    #[test]
    fn a_full_memory_keeps_the_highest_levels_whenever_they_wrap_around() {
        let now = 100_000;
        for lowered in [0, LEVEL_MASK * STEP - now + 500, u32::MAX - now - 500] {
            let mut memory = Memory::new(160);
            memory.lower(lowered);
            for row in 0..1600 {
                let level = if row % 16 == 0 { now + 2560 } else { now - 16_000 };
                memory.note(key(row), Level(level), Level(now));
            }
            let high = (0..100).filter(|row| {
                memory.recall(key(16 * row), Level(now)).0.abs_diff(now + 2560) < STEP
            });
            let high = high.count();
            assert!(high > 80, "{high} of 100 after {lowered}");
            let later = Level(now + 25_600);
            assert!(memory.recall(key(0), later).0.abs_diff(now + 2560) <= STEP, "levels stay");
            memory.lower(40_000);
            let lowered = memory.recall(key(0), Level(later.0 - 40_000));
            assert!(lowered.0.abs_diff(now + 2560 - 40_000) <= STEP, "or all of them are lowered");
        }
    }
}
