//! I/O: reads all missing rows of a lookup in one batch, as few aligned reads.
//!
//! `plan.rs` joins neighbouring rows into reads; `ring.rs` executes them with `io_uring`.
//!
//! Not here: the uring of the flash engine. There, a device is one file for exclusive use, with a
//! thread of its own that sleeps until it is woken. Here, one batch reads from many files of other
//! owners, and the calling thread waits for all of it.

mod plan;
mod ring;

use std::{io, os::fd::BorrowedFd};

use memmap2::MmapMut;

use self::{plan::Span, ring::Ring};
use crate::{error::ReadError, file::ReadGuard};

pub(crate) use self::plan::RowRead;

/// Memory for the reads of one round, and the limit on bytes in flight per thread. A span always
/// fits.
const ROUND_BYTES: usize = 4 << 20;
/// Reads of one round.
const ROUND_READS: usize = 512;

/// How rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// `io_uring` if it is available, else `pread`.
    #[default]
    Auto,
    /// All reads of a round at once, with `io_uring`.
    Uring,
    /// One read after the other, with `pread`.
    Pread,
}

/// Cost of a batch of reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub reads: u64,
    pub bytes: u64,
}

/// Memory to read into, and a way to read. Used by one thread at a time.
#[derive(Debug)]
pub(crate) enum Reader {
    Ring(Box<Ring>),
    Pread(Plain),
}

/// Memory to read into with `pread`, and how much of it was ever used.
#[derive(Debug)]
pub(crate) struct Plain {
    memory: MmapMut,
    used: usize,
}

/// One aligned read into the memory of a round.
#[derive(Clone, Copy)]
struct Read<'a> {
    file: BorrowedFd<'a>,
    offset: u64,
    at: usize,
    length: usize,
}

impl Reader {
    /// A reader with a ring.
    pub fn ring() -> io::Result<Self> {
        Ring::new(ROUND_READS, ROUND_BYTES).map(|ring| Self::Ring(Box::new(ring)))
    }

    /// A reader without a ring.
    pub fn pread() -> io::Result<Self> {
        MmapMut::map_anon(ROUND_BYTES).map(|memory| Self::Pread(Plain { memory, used: 0 }))
    }

    /// Bytes allocated; memory that was never used does not count.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Ring(ring) => ring.bytes(),
            Self::Pread(plain) => plain.used as u64,
        }
    }

    /// Whether this process may use it: a forked process must not use the ring of its parent.
    pub fn is_ours(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.is_ours(),
            Self::Pread(_) => true,
        }
    }

    /// Reads every row to its position in `into`. Sorts `rows` by their order on disk.
    pub fn read(
        &mut self,
        files: &[ReadGuard<'_>],
        rows: &mut [RowRead],
        into: &mut [u8],
    ) -> Result<Cost, ReadError> {
        let spans = plan::plan(rows);
        let mut cost = Cost::default();
        let mut rest = &spans[..];
        while !rest.is_empty() {
            let (round, after) = rest.split_at(round_length(rest));
            rest = after;
            let mut at = 0;
            let reads: Vec<Read<'_>> = round
                .iter()
                .map(|span| {
                    let file = files[span.file].descriptor();
                    let read = Read { file, offset: span.start, at, length: span.length };
                    at += span.length;
                    read
                })
                .collect();
            let found = self.execute(&reads);
            for ((span, read), found) in round.iter().zip(&reads).zip(found) {
                let file = &files[span.file];
                let found = found.map_err(|source| file.failed(source))?;
                let bytes = &self.memory()[read.at..][..found];
                copy_rows(span, bytes, rows, into, file)?;
                cost.reads += 1;
                cost.bytes += found as u64;
            }
        }
        files.iter().try_for_each(ReadGuard::check)?;
        Ok(cost)
    }

    fn memory(&self) -> &[u8] {
        match self {
            Self::Ring(ring) => ring.memory(),
            Self::Pread(plain) => &plain.memory,
        }
    }

    /// Bytes that each read returned; fewer than its length only at the end of a file.
    fn execute(&mut self, reads: &[Read<'_>]) -> Vec<io::Result<usize>> {
        match self {
            Self::Ring(ring) => ring.read(reads),
            Self::Pread(plain) => {
                let Plain { memory, used } = plain;
                let read = |read: &Read<'_>| {
                    *used = (*used).max(read.at + read.length);
                    read_whole(read.file, read.offset, &mut memory[read.at..][..read.length])
                };
                reads.iter().map(read).collect()
            }
        }
    }
}

/// Number of these spans that are read in one round.
fn round_length(spans: &[Span]) -> usize {
    let mut bytes = 0;
    let fits = |span: &&Span| {
        bytes += span.length;
        bytes <= ROUND_BYTES
    };
    let count = spans.iter().take(ROUND_READS).take_while(fits).count();
    assert!(count > 0, "a span always fits");
    count
}

/// Copies the rows of a span to their positions.
fn copy_rows(
    span: &Span,
    bytes: &[u8],
    rows: &[RowRead],
    into: &mut [u8],
    file: &ReadGuard<'_>,
) -> Result<(), ReadError> {
    for row in &rows[span.rows.clone()] {
        let at = usize::try_from(row.offset - span.start).expect("inside the span");
        let Some(found) = bytes.get(at..at + row.length) else {
            // Prefer the error that says how the file has changed.
            file.check()?;
            return Err(file.failed(io::ErrorKind::UnexpectedEof.into()));
        };
        into[row.to..row.to + row.length].copy_from_slice(found);
    }
    Ok(())
}

/// Reads until the memory is full or the file ends.
fn read_whole(file: BorrowedFd<'_>, offset: u64, memory: &mut [u8]) -> io::Result<usize> {
    let mut found = 0;
    while found < memory.len() {
        let rest = &mut memory[found..];
        let read = rustix::io::retry_on_intr(|| {
            rustix::io::pread(file, &mut *rest, offset + found as u64)
        })?;
        found += read;
        // A direct read ends within a block only at the end of the file.
        if read == 0 || !(found as u64).is_multiple_of(crate::file::BLOCK) {
            break;
        }
    }
    Ok(found)
}
