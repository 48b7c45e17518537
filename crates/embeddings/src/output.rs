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
///
/// Bags are numbered table by table: in this order they lie in the output, and in this order they are done, so
/// that what is written lies together. Sample by sample, each row would be written to another page than the one
/// before, which costs more than looking it up.
pub(crate) trait Output: Sized + Send {
    /// Parts of it for so many threads, each with the numbers of its bags; one, if it cannot be divided.
    fn parts(&mut self, bags: usize, threads: usize) -> Vec<(Range<usize>, Self::Part<'_>)>;

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

/// One row of numbers per bag: a table's pooled bags one after the other, table after table.
pub(crate) struct Pooled<'a> {
    pub pooling: Pooling,
    /// Where each table's columns begin, and how many there are in all.
    pub columns: &'a [usize],
    /// How many bags each table has.
    pub samples: usize,
    /// How many numbers come before those of `out`.
    pub before: usize,
    pub out: &'a mut [f32],
}

impl Pooled<'_> {
    /// Where the row of a bag lies in `out`.
    #[inline]
    fn place(&self, table: usize, sample: usize) -> Range<usize> {
        let (begin, end) = (self.columns[table], self.columns[table + 1]);
        let start = self.samples * begin + sample * (end - begin) - self.before;
        start..start + (end - begin)
    }
}

impl Output for Pooled<'_> {
    type Part<'a>
        = Pooled<'a>
    where
        Self: 'a;

    fn parts(&mut self, bags: usize, threads: usize) -> Vec<(Range<usize>, Pooled<'_>)> {
        let each = bags.div_ceil(threads).max(1);
        let mut parts = Vec::with_capacity(threads);
        let mut before = self.before;
        for first in (0..bags).step_by(each) {
            let numbers = first..(first + each).min(bags);
            let last = numbers.end - 1;
            let end = self.before + self.place(last / self.samples, last % self.samples).end;
            parts.push((numbers, before..end));
            before = end;
        }
        let Self { pooling, columns, samples, .. } = *self;
        let mut left = &mut *self.out;
        let cut = parts.into_iter().map(|(numbers, places)| {
            let (out, rest) = std::mem::take(&mut left).split_at_mut(places.len());
            left = rest;
            (numbers, Pooled { pooling, columns, samples, before: places.start, out })
        });
        cut.collect()
    }

    #[inline]
    fn bag<'a>(
        &mut self,
        table: usize,
        sample: usize,
        _: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    ) {
        let place = self.place(table, sample);
        let out = &mut self.out[place];
        let mut count = 0_u32;
        for (_, row) in rows {
            let numbers = row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            match (count, self.pooling) {
                // As a sum that begins with nought: -0 becomes 0, as it does in PyTorch.
                (0, Pooling::Sum | Pooling::Mean) => {
                    begin_sum(out, row);
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

/// What a bag's first row, most often its only one, begins the sum with. Four numbers at a time: for rows this
/// short, what a compiler does before and after longer strides takes as long as the strides.
#[inline]
fn begin_sum(out: &mut [f32], row: &[u8]) {
    let ((fours, ends), (rows, tails)) = (out.as_chunks_mut::<4>(), row.as_chunks::<16>());
    for (four, row) in fours.iter_mut().zip(rows) {
        let numbers: &[[u8; 4]; 4] = row.as_chunks().0.try_into().expect("sixteen bytes");
        *four = numbers.map(|bytes| 0.0 + f32::from_le_bytes(bytes));
    }
    for (end, bytes) in ends.iter_mut().zip(tails.as_chunks::<4>().0) {
        *end = 0.0 + f32::from_le_bytes(*bytes);
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

    fn parts(&mut self, bags: usize, _: usize) -> Vec<(Range<usize>, Gathered<'_>)> {
        vec![(0..bags, Gathered { tables: self.tables, out: self.out })]
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
