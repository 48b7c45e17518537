//! What becomes of the rows of a bag: pooled into one, or laid side by side.

use std::ops::Range;

/// How the rows of a bag become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Their sum, in the order of the keys.
    #[default]
    Sum,
    /// That sum divided by their number.
    Mean,
    /// The largest of each column.
    Max,
}

/// Takes the rows of whole bags, in any order of bags.
pub(crate) trait Output: Sized + Send {
    /// Parts of it for so many threads, each with its samples; one, if it cannot be divided.
    fn parts(&mut self, samples: usize, threads: usize) -> Vec<(Range<usize>, Self::Part<'_>)>;

    /// What a thread fills.
    type Part<'a>: Output
    where
        Self: 'a;

    /// The rows of one bag, each with its place in the bag. `start` is the bag's among the table's keys.
    fn bag<'a>(
        &mut self,
        table: usize,
        sample: usize,
        start: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    );
}

/// One row of numbers per sample: the pooled bags of all tables, one after the other.
pub(crate) struct Pooled<'a> {
    pub pooling: Pooling,
    /// Where each table's columns begin, and how many there are in all.
    pub columns: &'a [usize],
    /// The sample with which `out` begins.
    pub first: usize,
    pub out: &'a mut [f32],
}

impl Pooled<'_> {
    fn stride(&self) -> usize {
        self.columns[self.columns.len() - 1]
    }
}

impl Output for Pooled<'_> {
    type Part<'a>
        = Pooled<'a>
    where
        Self: 'a;

    fn parts(&mut self, samples: usize, threads: usize) -> Vec<(Range<usize>, Pooled<'_>)> {
        let (each, stride) = (samples.div_ceil(threads).max(1), self.stride());
        let (pooling, columns, begin) = (self.pooling, self.columns, self.first);
        let pieces = self.out.chunks_mut((each * stride).max(1)).enumerate();
        let parts = pieces.map(|(piece, out)| {
            let first = begin + piece * each;
            (first..(first + each).min(begin + samples), Pooled { pooling, columns, first, out })
        });
        parts.collect()
    }

    #[inline]
    fn bag<'a>(
        &mut self,
        table: usize,
        sample: usize,
        _: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    ) {
        let start = (sample - self.first) * self.stride();
        let out = &mut self.out[start + self.columns[table]..start + self.columns[table + 1]];
        let mut count = 0_u32;
        for (_, row) in rows {
            let numbers = row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            match (count, self.pooling) {
                // As a sum that begins with nought: -0 becomes 0, as it does in PyTorch.
                (0, Pooling::Sum | Pooling::Mean) => {
                    out.iter_mut().zip(numbers).for_each(|(sum, number)| *sum = 0.0 + number);
                }
                (_, Pooling::Sum | Pooling::Mean) => {
                    out.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
                }
                (0, Pooling::Max) => {
                    out.iter_mut().zip(numbers).for_each(|(largest, number)| *largest = number);
                }
                (_, Pooling::Max) => {
                    for (largest, number) in out.iter_mut().zip(numbers) {
                        *largest = if number > *largest { number } else { *largest };
                    }
                }
            }
            count += 1;
        }
        match (count, self.pooling) {
            (0, _) => out.fill(0.0),
            (1, _) | (_, Pooling::Sum | Pooling::Max) => {}
            (_, Pooling::Mean) => {
                let count = count as f32;
                for sum in out {
                    *sum /= count;
                }
            }
        }
    }
}

/// Every row by itself, in the order of the keys, table after table. Padding is left as it is.
pub(crate) struct Gathered<'a> {
    /// Where each table begins, and its rows' width.
    pub tables: &'a [(usize, usize)],
    pub out: &'a mut [u8],
}

impl Output for Gathered<'_> {
    type Part<'a>
        = Gathered<'a>
    where
        Self: 'a;

    fn parts(&mut self, samples: usize, _: usize) -> Vec<(Range<usize>, Gathered<'_>)> {
        vec![(0..samples, Gathered { tables: self.tables, out: self.out })]
    }

    fn bag<'a>(
        &mut self,
        table: usize,
        _: usize,
        start: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    ) {
        let (begin, width) = self.tables[table];
        for (place, row) in rows {
            let at = begin + (start + place) * width;
            self.out[at..at + width].copy_from_slice(row);
        }
    }
}
