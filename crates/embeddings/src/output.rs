//! Output of a lookup: the rows of a bag are pooled into one, or gathered side by side.

use std::ops::Range;

use crate::codes::Code;

/// How the rows of a bag are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Sum, in the order of the keys.
    #[default]
    Sum,
    /// That sum divided by the number of rows.
    Mean,
    /// Maximum of each column.
    Max,
}

/// A destination for the rows of whole bags, in any order of bags.
///
/// Bags are numbered table by table. They are in this order in the output and are processed in this
/// order, so that writes are contiguous. Sample by sample, each row would be written to another
/// page than the one before, which costs more than looking it up.
pub(crate) trait Output: Sized + Send {
    /// Splits the output for `threads` threads, each part with the numbers of its bags. One part if
    /// it cannot be divided.
    fn parts(&mut self, bags: usize, threads: usize) -> Vec<(Range<usize>, Self::Part<'_>)>;

    /// The part of one thread.
    type Part<'a>: Output
    where
        Self: 'a;

    /// Writes the rows of one bag, each with its index in the bag. `start` is the index of the
    /// bag's first key among the table's keys.
    fn bag<'a>(
        &mut self,
        table: usize,
        sample: usize,
        start: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    );
}

/// Pooled output: one row per bag, in the order of bag numbers.
pub(crate) struct Pooled<'a> {
    pub pooling: Pooling,
    /// First column of each table, and the total number of columns.
    pub columns: &'a [usize],
    /// The code of each quantised table.
    pub codes: &'a [Option<Code>],
    /// Bags of each table.
    pub samples: usize,
    /// Numbers of the whole output before those of `out`.
    pub before: usize,
    pub out: &'a mut [f32],
}

impl Pooled<'_> {
    /// Range of a bag's row in `out`.
    #[inline]
    fn range(&self, table: usize, sample: usize) -> Range<usize> {
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
            let end = self.before + self.range(last / self.samples, last % self.samples).end;
            parts.push((numbers, before..end));
            before = end;
        }
        let Self { pooling, columns, codes, samples, .. } = *self;
        let mut left = &mut *self.out;
        let split = parts.into_iter().map(|(numbers, range)| {
            let (out, rest) = std::mem::take(&mut left).split_at_mut(range.len());
            left = rest;
            (numbers, Pooled { pooling, columns, codes, samples, before: range.start, out })
        });
        split.collect()
    }

    #[inline]
    fn bag<'a>(
        &mut self,
        table: usize,
        sample: usize,
        _: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    ) {
        let range = self.range(table, sample);
        let out = &mut self.out[range];
        let mut count = 0_u32;
        if let Some(code) = self.codes[table] {
            count = pool_quantised(code, self.pooling, out, rows.map(|(_, row)| row));
            return finish(self.pooling, count, out);
        }
        for (_, row) in rows {
            let numbers = row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            match (count, self.pooling) {
                // A sum that starts with 0, so that -0 becomes 0 as in PyTorch.
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
        finish(self.pooling, count, out);
    }
}

/// Ends a bag of `count` rows: an empty one is zeros, a mean is divided.
#[inline]
fn finish(pooling: Pooling, count: u32, out: &mut [f32]) {
    match (count, pooling) {
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

/// Decodes quantised rows into their sum or maximum; returns their number. A sum needs no decoded
/// row in between.
fn pool_quantised<'a>(
    code: Code,
    pooling: Pooling,
    out: &mut [f32],
    rows: impl Iterator<Item = &'a [u8]>,
) -> u32 {
    let mut decoded = Vec::new();
    let mut count = 0;
    for row in rows {
        match (count, pooling) {
            (0, Pooling::Max) => code.decode(row, out),
            (0, Pooling::Sum | Pooling::Mean) => {
                out.fill(0.0);
                code.add(row, out);
            }
            (_, Pooling::Sum | Pooling::Mean) => code.add(row, out),
            (_, Pooling::Max) => {
                decoded.resize(out.len(), 0.0);
                code.decode(row, &mut decoded);
                for (largest, number) in out.iter_mut().zip(&decoded) {
                    *largest = if *number > *largest { *number } else { *largest };
                }
            }
        }
        count += 1;
    }
    count
}

/// Starts a sum with a bag's first row, usually the only one. Four numbers at a time: for rows this
/// short, the code that compilers emit before and after longer strides takes as long as the
/// strides.
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

/// Gathered output: every row by itself, in the order of the keys, table by table. Rows of padding
/// keys are not written.
pub(crate) struct Gathered<'a> {
    /// Offset of each table in `out`, and the width of its rows there.
    pub tables: &'a [(usize, usize)],
    /// The code of each quantised table.
    pub codes: &'a [Option<Code>],
    pub out: &'a mut [u8],
}

impl Output for Gathered<'_> {
    type Part<'a>
        = Gathered<'a>
    where
        Self: 'a;

    fn parts(&mut self, bags: usize, _: usize) -> Vec<(Range<usize>, Gathered<'_>)> {
        vec![(0..bags, Gathered { tables: self.tables, codes: self.codes, out: self.out })]
    }

    fn bag<'a>(
        &mut self,
        table: usize,
        _: usize,
        start: usize,
        rows: impl Iterator<Item = (usize, &'a [u8])>,
    ) {
        let (begin, width) = self.tables[table];
        for (index, row) in rows {
            let at = begin + (start + index) * width;
            let out = &mut self.out[at..at + width];
            let Some(code) = self.codes[table] else {
                out.copy_from_slice(row);
                continue;
            };
            let mut decoded = vec![0.0; width / 4];
            code.decode(row, &mut decoded);
            for (bytes, number) in out.as_chunks_mut::<4>().0.iter_mut().zip(decoded) {
                *bytes = number.to_le_bytes();
            }
        }
    }
}
