//! Position sets: which trail positions a job has read, one bit each.
//!
//! Bits are kept in blocks, so that a set grows without copying. All sets share a budget. Beyond it
//! positions are not recorded, and the set says that it does not know them.

use crate::ByteSize;

/// Words of a block: 4,096 positions, 1 GiB at 256 KiB.
const WORDS: usize = 64;
const BITS: u32 = 64 * 64;
/// Most positions of a set (at 256 KiB: 64 TiB).
const POSITIONS_MAX: u32 = 1 << 28;

type Block = Option<Box<[u64; WORDS]>>;

/// Memory that is left for blocks.
#[derive(Debug)]
pub(in crate::tier) struct BitmapBudget {
    blocks_left: u64,
    /// Positions that were not recorded.
    pub unmarked: u64,
}

impl BitmapBudget {
    pub fn new(bytes: ByteSize) -> Self {
        let block = (WORDS * 8) as u64;
        Self { blocks_left: bytes.0 / block, unmarked: 0 }
    }
}

/// Trail positions of one bucket.
#[derive(Debug, Default)]
pub(in crate::tier) struct PositionSet {
    blocks: Vec<Block>,
    /// Whether a position was not recorded.
    is_incomplete: bool,
}

impl PositionSet {
    /// Whether a position is in the set; `None` if that is unknown.
    #[inline]
    pub fn contains(&self, position: u32) -> Option<bool> {
        match self.blocks.get((position / BITS) as usize) {
            Some(Some(block)) => {
                let bit = position % BITS;
                Some(block[(bit / 64) as usize] >> (bit % 64) & 1 == 1)
            }
            _ if self.is_incomplete => None,
            _ => Some(false),
        }
    }

    /// Adds a position, within the budget.
    #[inline]
    pub fn insert(&mut self, position: u32, budget: &mut BitmapBudget) {
        let at = (position / BITS) as usize;
        if position >= POSITIONS_MAX {
            self.is_incomplete = true;
            budget.unmarked += 1;
            return;
        }
        if at >= self.blocks.len() {
            self.blocks.resize_with(at + 1, || None);
        }
        let block = &mut self.blocks[at];
        if block.is_none() {
            if budget.blocks_left == 0 {
                self.is_incomplete = true;
                budget.unmarked += 1;
                return;
            }
            budget.blocks_left -= 1;
            *block = Some(Box::new([0; WORDS]));
        }
        let (word, bit) = ((position % BITS / 64) as usize, position % 64);
        block.as_mut().expect("added above")[word] |= 1 << bit;
    }

    /// Marks the set as unknown beyond what is in it, as after a restart.
    pub fn forget(&mut self) {
        self.is_incomplete = true;
    }

    /// Gives the memory back.
    pub fn release(self, budget: &mut BitmapBudget) {
        budget.blocks_left += self.blocks.iter().flatten().count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 6 (bounded): beyond the budget nothing is recorded, and the set says so.
    #[test]
    fn positions_beyond_the_budget_are_unknown() {
        let mut budget = BitmapBudget::new(ByteSize(2 * 512));
        let (mut one, mut other) = (PositionSet::default(), PositionSet::default());
        for position in [0, 4095, 9000] {
            one.insert(position, &mut budget);
        }
        assert_eq!((one.contains(4095), one.contains(1)), (Some(true), Some(false)));
        assert_eq!((one.contains(5000), one.contains(100_000)), (Some(false), Some(false)));
        other.insert(7, &mut budget);
        one.insert(5000, &mut budget);
        assert_eq!((other.contains(7), budget.unmarked), (None, 2));
        assert_eq!((one.contains(9000), one.contains(5000)), (Some(true), None));
        one.release(&mut budget);
        other.insert(7, &mut budget);
        assert_eq!(other.contains(7), Some(true));
    }
}
