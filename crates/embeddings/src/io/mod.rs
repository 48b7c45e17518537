//! All missing rows of a lookup, in one go: planned as few aligned reads, carried out together.
//!
//! The flash engine has a ring, too, but a device there is one file, opened for writing and for us alone,
//! and its thread sleeps until somebody wakes it. Here one batch reads from many files that belong to
//! others, the thread that asks waits for all of it, and there is nothing else to do meanwhile.

mod plan;
mod ring;

use std::{io, os::fd::BorrowedFd};

use memmap2::MmapMut;

use self::{plan::Span, ring::Ring};
use crate::{error::ReadError, file::Reading};

pub(crate) use self::plan::Wanted;

/// Memory for the reads of one round, and so the most that a thread has in flight. A span always fits.
const ROUND_BYTES: usize = 4 << 20;
/// Reads of one round.
const ROUND_READS: usize = 512;

/// How rows are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// By a ring where the system lets us, else one read after the other.
    #[default]
    Auto,
    /// By `io_uring`.
    Uring,
    /// One read after the other.
    Pread,
}

/// What reading cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub reads: u64,
    pub bytes: u64,
}

/// Memory to read into, and a way to read. One thread at a time uses it.
#[derive(Debug)]
pub(crate) enum Reader {
    Ring(Box<Ring>),
    Pread(MmapMut),
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
    /// With a ring.
    pub fn ring() -> io::Result<Self> {
        Ring::new(ROUND_READS, ROUND_BYTES).map(|ring| Self::Ring(Box::new(ring)))
    }

    /// Without one.
    pub fn pread() -> io::Result<Self> {
        MmapMut::map_anon(ROUND_BYTES).map(Self::Pread)
    }

    /// Whether it may be used here: a fork shares a ring with its parent, and must not touch it.
    pub fn is_ours(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.is_ours(),
            Self::Pread(_) => true,
        }
    }

    /// Reads every row to its place in `into`. The rows are put in the order in which they lie on disk.
    pub fn read(
        &mut self,
        files: &[Reading<'_>],
        wanted: &mut [Wanted],
        into: &mut [u8],
    ) -> Result<Cost, ReadError> {
        let spans = plan::plan(wanted);
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
            let found = self.carry_out(&reads);
            for ((span, read), found) in round.iter().zip(&reads).zip(found) {
                let file = &files[span.file];
                let found = found.map_err(|source| file.failed(source))?;
                let bytes = &self.memory()[read.at..][..found];
                deliver(span, bytes, wanted, into, file)?;
                cost.reads += 1;
                cost.bytes += found as u64;
            }
        }
        files.iter().try_for_each(Reading::check)?;
        Ok(cost)
    }

    fn memory(&self) -> &[u8] {
        match self {
            Self::Ring(ring) => ring.memory(),
            Self::Pread(memory) => memory,
        }
    }

    /// How many bytes each read found; fewer than it asked for only at a file's end.
    fn carry_out(&mut self, reads: &[Read<'_>]) -> Vec<io::Result<usize>> {
        match self {
            Self::Ring(ring) => ring.read(reads),
            Self::Pread(memory) => reads
                .iter()
                .map(|read| {
                    read_whole(read.file, read.offset, &mut memory[read.at..][..read.length])
                })
                .collect(),
        }
    }
}

/// How many of these spans are read together.
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

/// Copies the rows of a span to their places.
fn deliver(
    span: &Span,
    bytes: &[u8],
    wanted: &[Wanted],
    into: &mut [u8],
    file: &Reading<'_>,
) -> Result<(), ReadError> {
    for row in &wanted[span.rows.clone()] {
        let at = usize::try_from(row.offset - span.start).expect("inside the span");
        let Some(found) = bytes.get(at..at + row.length) else {
            // The file knows best what has become of it.
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
        // A direct read ends within a block only where the file does.
        if read == 0 || !(found as u64).is_multiple_of(crate::file::BLOCK) {
            break;
        }
    }
    Ok(found)
}
