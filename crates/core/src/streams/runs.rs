//! Ordinal runs: the ordinals of a stream's blocks, in the order of the blocks.
//!
//! A family counts the blocks of all its streams with one sequence of ordinals. A stream that is
//! written alone is one run; streams that are written side by side interleave. Memory is 16 bytes
//! per run, whatever the number of blocks.

use std::ops::Range;

use super::BlockNumber;

/// Ascending ordinals, as runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OrdinalRuns {
    runs: Vec<Run>,
    blocks: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    /// Number of the first block.
    block: u64,
    first: u64,
}

impl OrdinalRuns {
    /// Adds the next block. Its ordinal is greater than all before.
    pub fn push(&mut self, ordinal: u64) {
        let next = self.ranges().next_back().map_or(0, |last| last.end);
        assert!(ordinal >= next, "ordinals ascend");
        if self.runs.is_empty() || ordinal > next {
            self.runs.push(Run { block: self.blocks, first: ordinal });
        }
        self.blocks += 1;
    }

    /// Adds a run of blocks. Its ordinals are greater than all before.
    pub fn push_range(&mut self, range: &Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.push(range.start);
        self.blocks += range.end - range.start - 1;
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Ordinal of a block.
    pub fn ordinal(&self, BlockNumber(block): BlockNumber) -> Option<u64> {
        if block >= self.blocks {
            return None;
        }
        let run = self.runs.partition_point(|run| run.block <= block);
        let run = self.runs.get(run.checked_sub(1)?)?;
        Some(run.first + (block - run.block))
    }

    /// The runs as ranges of ordinals.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = Range<u64>> {
        (0..self.runs.len()).map(|at| {
            let run = &self.runs[at];
            let end = self.runs.get(at + 1).map_or(self.blocks, |next| next.block);
            run.first..run.first + (end - run.block)
        })
    }

    /// The ordinals of the blocks from this one on.
    pub fn ranges_from(&self, BlockNumber(block): BlockNumber) -> Vec<Range<u64>> {
        let mut skip = block;
        let mut ranges = Vec::new();
        for range in self.ranges() {
            let length = range.end - range.start;
            let some = skip.min(length);
            skip -= some;
            if some < length {
                ranges.push(range.start + some..range.end);
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_find_every_block_of_interleaved_streams() {
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut runs, mut expected, mut ordinal) = (OrdinalRuns::default(), Vec::new(), 0);
            for _ in 0..random.usize(..100) {
                ordinal += if random.bool() { 1 } else { random.u64(1..5) };
                if random.bool() {
                    runs.push(ordinal);
                    expected.push(ordinal);
                } else {
                    let end = ordinal + random.u64(..4);
                    runs.push_range(&(ordinal..end));
                    expected.extend(ordinal..end);
                    ordinal = end;
                }
            }
            assert_eq!(runs.blocks(), expected.len() as u64);
            let found = (0..).map_while(|block| runs.ordinal(BlockNumber(block)));
            assert!(found.eq(expected.iter().copied()), "{runs:?}");
            assert!(runs.ranges().flatten().eq(expected.iter().copied()));
            let from = random.usize(..=expected.len());
            let rest = runs.ranges_from(BlockNumber(from as u64)).into_iter().flatten();
            assert!(rest.eq(expected[from..].iter().copied()));
        }
    }
}
