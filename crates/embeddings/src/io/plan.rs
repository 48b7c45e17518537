//! Read planning: joins neighbouring rows into reads of whole blocks.

use std::ops::Range;

use super::ROUND_BYTES;
use crate::{file::BLOCK, format::ROW_BYTES_MAX};

/// Largest gap between rows that are read together. On the drives that we measured, a read costs as
/// much as transferring 15 KB, so reading two extra blocks is cheaper than another read.
const GAP_MAX: u64 = 2 * BLOCK;
/// Longest joined read, so that a round has several reads in flight.
const JOINED_MAX: u64 = 256 << 10;

const _: () = assert!(ROW_BYTES_MAX + 2 * BLOCK <= ROUND_BYTES as u64, "a row fits into a round");
const _: () = assert!(JOINED_MAX <= ROUND_BYTES as u64, "joined rows fit into a round");

/// A row that is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowRead {
    /// Index of its file.
    pub file: usize,
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// Offset in the destination.
    pub to: usize,
}

/// One read, of whole blocks, for some neighbouring rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub file: usize,
    pub start: u64,
    pub length: usize,
    /// Indices of its rows, after sorting.
    pub rows: Range<usize>,
}

/// Sorts the rows by file and offset, and groups them into reads.
pub(super) fn plan(rows: &mut [RowRead]) -> Vec<Span> {
    rows.sort_unstable();
    let mut spans: Vec<Span> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let start = row.offset / BLOCK * BLOCK;
        let end = (row.offset + row.length as u64).next_multiple_of(BLOCK);
        if let Some(last) = spans.last_mut()
            && last.file == row.file
            && start <= last.start + last.length as u64 + GAP_MAX
        {
            let joined = end.max(last.start + last.length as u64) - last.start;
            if joined <= JOINED_MAX {
                last.length = usize::try_from(joined).expect("it is bounded");
                last.rows.end = index + 1;
                continue;
            }
        }
        let length = usize::try_from(end - start).expect("a row is at most a MiB");
        spans.push(Span { file: row.file, start, length, rows: index..index + 1 });
    }
    spans
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_row_lies_in_its_read_and_reads_are_aligned_and_bounded(
            positions in prop::collection::vec(
                (0_usize..3, 0_u64..3_000_000, 1_usize..5000),
                0..200,
            ),
        ) {
            let mut rows: Vec<RowRead> = positions
                .into_iter()
                .enumerate()
                .map(|(to, (file, offset, length))| RowRead { file, offset, length, to })
                .collect();
            let spans = plan(&mut rows);
            let mut next = 0;
            for span in &spans {
                prop_assert_eq!(span.rows.start, next, "every row once, in order");
                next = span.rows.end;
                prop_assert!(span.start.is_multiple_of(BLOCK));
                prop_assert!((span.length as u64).is_multiple_of(BLOCK));
                prop_assert!(span.length as u64 <= JOINED_MAX);
                for row in &rows[span.rows.clone()] {
                    prop_assert_eq!(row.file, span.file);
                    prop_assert!(span.start <= row.offset);
                    let (end, row_end) =
                        (span.start + span.length as u64, row.offset + row.length as u64);
                    prop_assert!(row_end <= end);
                }
            }
            prop_assert_eq!(next, rows.len());
        }
    }

    #[test]
    fn neighbouring_rows_are_read_together_and_distant_ones_are_not() {
        let row = |file, offset| RowRead { file, offset, length: 144, to: 0 };
        let far = 100 * BLOCK;
        let mut rows = [row(1, 0), row(0, far), row(0, 4000), row(0, 300), row(0, far + 144)];
        let found: Vec<_> = plan(&mut rows).iter().map(|span| (span.start, span.length)).collect();
        assert_eq!(found, [(0, 8192), (far, 4096), (0, 4096)], "one row crosses a block");
    }
}
