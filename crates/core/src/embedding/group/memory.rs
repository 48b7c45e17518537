//! The levels of keys that are not resident, in a sketch: a few bytes per key, nothing to evict.
//!
//! Each key has four cells and its level is at most the lowest of them. Levels rise with time, so what
//! was noted long ago counts for nothing by itself: the sketch never needs to be aged.

use super::{super::key::Key, level::Level};

const ROWS: usize = 4;
const BLOCK: usize = 16;

/// Remembered levels.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    /// The four cells of a key lie in one block of 64 bytes.
    blocks: Vec<[Level; BLOCK]>,
}

impl Memory {
    /// For about `keys` keys at a time.
    pub fn new(keys: u64) -> Self {
        let blocks = (keys / 4).clamp(1, 1 << 26);
        let blocks = usize::try_from(blocks).expect("at most 2^26 blocks");
        Self { blocks: vec![[Level::default(); BLOCK]; blocks] }
    }

    #[inline]
    fn cells(&self, key: Key) -> (usize, [usize; ROWS]) {
        let hash = key.mixed();
        // The upper half of the hash as a share of the blocks: any number of them will do.
        let block = (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize;
        let cell = |row: usize| row * 4 + (hash >> (2 * row)) as usize % 4;
        (block, [cell(0), cell(1), cell(2), cell(3)])
    }

    /// The level last noted for a key; nought, or another key's, if none was.
    #[inline]
    pub fn recall(&self, key: Key) -> Level {
        let (block, cells) = self.cells(key);
        cells.into_iter().map(|cell| self.blocks[block][cell]).min().unwrap_or_default()
    }

    /// Notes the level of a key.
    #[inline]
    pub fn note(&mut self, key: Key, level: Level) {
        let (block, cells) = self.cells(key);
        for cell in cells {
            let noted = &mut self.blocks[block][cell];
            *noted = (*noted).max(level);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedding::TableId;

    #[test]
    fn nothing_is_forgotten_and_little_is_made_up() {
        let key = |row| Key::new(TableId(0), row).unwrap();
        let mut memory = Memory::new(4000);
        assert_eq!(memory.recall(key(5)), Level(0));
        for row in 0..1000 {
            memory.note(key(row), Level(1000 + row as u32));
        }
        for row in 0..1000 {
            assert!(memory.recall(key(row)) >= Level(1000 + row as u32));
        }
        let made_up = (1000..2000).filter(|row| memory.recall(key(*row)) > Level(0)).count();
        assert!(made_up < 100, "{made_up} of 1,000 keys that were never noted");
    }
}
