//! Modes: how the rows come from the device, as in section 5 of `SSDStreamer`.
//!
//! | mode | paper | reads |
//! |---|---|---|
//! | `buffered` | D | a file through the page cache, one block after another |
//! | `pref` | PREF | the same, with a thread that reads two blocks ahead |
//! | `userio` | USERIO | a stream past the page cache, one block after another |
//! | `sst` | SST | a stream of flat rows, four blocks ahead |
//! | `mmap` | – | a mapped file of flat rows |
//!
//! The first three decode serialised rows. The pages of a mapped block are touched before the
//! computation, so that their faults count as I/O.

use std::{
    fs::File,
    io::Read as _,
    ops::AddAssign,
    path::Path,
    sync::mpsc::sync_channel,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::ValueEnum;
use forebay_core::ByteSize;
use forebay_streams::{OpenOptions, Store, StoreConfig};
use memmap2::{Advice, Mmap};
use serde::Serialize;
use zerocopy::FromBytes as _;

use crate::{
    data::{FLAT, FLAT_LENGTH, SERIALISED, SERIALISED_LENGTH, STORE, decode},
    workload::{COLUMNS, Workload},
};

/// Size of a page.
const PAGE: usize = 4096;
/// Blocks that the thread of `pref` reads ahead.
const PREFETCHED: usize = 2;

/// A mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Buffered,
    Mmap,
    Pref,
    Userio,
    Sst,
}

/// How the time of passes was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Split {
    pub compute_seconds: f64,
    pub deserialise_seconds: f64,
    pub io_seconds: f64,
    pub bytes: u64,
}

impl AddAssign for Split {
    fn add_assign(&mut self, other: Self) {
        self.compute_seconds += other.compute_seconds;
        self.deserialise_seconds += other.deserialise_seconds;
        self.io_seconds += other.io_seconds;
        self.bytes += other.bytes;
    }
}

/// The data of a mode, open.
pub enum Source {
    Buffered(File),
    Prefetched(File),
    Mapped(Mmap),
    Stream { store: Store, name: &'static str, options: OpenOptions },
}

impl Source {
    /// Opens the data in a directory. A store takes `memory`.
    pub fn open(mode: Mode, directory: &Path, memory: ByteSize) -> anyhow::Result<Self> {
        let file = |name: &str| -> anyhow::Result<File> {
            let file = File::open(directory.join(name)).context("open the rows")?;
            // Nothing that was left by the run before.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            Ok(file)
        };
        let stream = |name, depth| -> anyhow::Result<Self> {
            let config = StoreConfig::existing(directory.join(STORE))?;
            let store = StoreConfig { memory, ..config }.open()?;
            let options = OpenOptions { depth, in_flight: depth, ..OpenOptions::default() };
            Ok(Self::Stream { store, name, options })
        };
        match mode {
            Mode::Buffered => Ok(Self::Buffered(file(SERIALISED)?)),
            Mode::Pref => Ok(Self::Prefetched(file(SERIALISED)?)),
            Mode::Mmap => map(&file(FLAT)?).map(Self::Mapped),
            Mode::Userio => stream(SERIALISED, 1),
            Mode::Sst => stream(FLAT, 4),
        }
    }

    /// Reads all rows once.
    pub fn pass(&self, workload: &mut Workload) -> anyhow::Result<Split> {
        let mut pass = Pass { workload, split: Split::default() };
        match self {
            Self::Buffered(file) => {
                let (mut file, mut block) = (rewound(file)?, vec![0; SERIALISED_LENGTH]);
                while pass.timed(|| read_block(&mut file, &mut block))? {
                    pass.on_serialised(&block)?;
                }
            }
            Self::Prefetched(file) => pass.read_ahead(file)?,
            Self::Mapped(mapping) => {
                for block in mapping.chunks(FLAT_LENGTH) {
                    pass.timed(|| {
                        let touched = block.iter().step_by(PAGE).fold(0, |all, byte| all | *byte);
                        std::hint::black_box(touched);
                        Ok(())
                    })?;
                    pass.on_flat(block)?;
                }
            }
            Self::Stream { store, name, options } => {
                let mut reader = pass.timed(|| Ok(store.open(name, *options)?))?;
                while let Some(block) = pass.timed(|| Ok(reader.next().transpose()?))? {
                    if *name == FLAT {
                        pass.on_flat(&block)?;
                    } else {
                        pass.on_serialised(&block)?;
                    }
                }
            }
        }
        Ok(pass.split)
    }
}

/// A pass that is being read.
struct Pass<'a> {
    workload: &'a mut Workload,
    split: Split,
}

impl Pass<'_> {
    /// Counts the time of I/O.
    fn timed<T>(&mut self, read: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let since = Instant::now();
        let result = read();
        self.split.io_seconds += seconds(since.elapsed());
        result
    }

    fn on_flat(&mut self, block: &[u8]) -> anyhow::Result<()> {
        let since = Instant::now();
        let rows = <[[f64; COLUMNS]]>::ref_from_bytes(block);
        let rows = rows.map_err(|_| anyhow::anyhow!("a block is not a number of whole rows"))?;
        for row in rows {
            self.workload.on_row(row);
        }
        self.split.compute_seconds += seconds(since.elapsed());
        self.split.bytes += block.len() as u64;
        Ok(())
    }

    fn on_serialised(&mut self, block: &[u8]) -> anyhow::Result<()> {
        let since = Instant::now();
        let rows = decode(block)?;
        self.split.deserialise_seconds += seconds(since.elapsed());
        let since = Instant::now();
        for row in &rows {
            self.workload.on_row(row.first_chunk().context("a row is too short")?);
        }
        self.split.compute_seconds += seconds(since.elapsed());
        // Rows of their own have to be freed, too.
        let since = Instant::now();
        drop(rows);
        self.split.deserialise_seconds += seconds(since.elapsed());
        self.split.bytes += block.len() as u64;
        Ok(())
    }

    /// A thread reads through the page cache; only the time in which its blocks are missing counts.
    fn read_ahead(&mut self, file: &File) -> anyhow::Result<()> {
        let mut file = rewound(file)?;
        std::thread::scope(|scope| {
            let (sender, blocks) = sync_channel(PREFETCHED);
            scope.spawn(move || {
                loop {
                    let mut block = vec![0; SERIALISED_LENGTH];
                    let read = read_block(&mut file, &mut block);
                    let is_last = !matches!(read, Ok(true));
                    if sender.send(read.map(|is_there| is_there.then_some(block))).is_err()
                        || is_last
                    {
                        return;
                    }
                }
            });
            while let Some(block) =
                self.timed(|| blocks.recv().context("the thread has ended")?)?
            {
                self.on_serialised(&block)?;
            }
            Ok(())
        })
    }
}

/// Reads a whole block; `false` at the end.
fn read_block(file: &mut &File, block: &mut [u8]) -> anyhow::Result<bool> {
    match file.read(&mut block[..1])? {
        0 => Ok(false),
        _ => file.read_exact(&mut block[1..]).map(|()| true).context("read a block"),
    }
}

fn rewound(file: &File) -> anyhow::Result<&File> {
    use std::io::Seek as _;
    let mut from = file;
    from.rewind()?;
    Ok(file)
}

#[expect(unsafe_code, reason = "a file is mapped")]
fn map(file: &File) -> anyhow::Result<Mmap> {
    // SAFETY: the file is the evaluation's own, and is not changed.
    let mapping = unsafe { Mmap::map(file)? };
    mapping.advise(Advice::Sequential)?;
    Ok(mapping)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
