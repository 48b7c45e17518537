//! One side of the comparison under a memory limit: a process that reads the data on request.
//!
//! A request is `read` or `sum`. The answer is a line with the elapsed seconds, the seconds of
//! processor time of all threads, and the bytes.

use std::{
    fs::File,
    io::{self, BufRead as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use clap::ValueEnum;
use forebay_streams::StoreConfig;
use memmap2::{Advice, Mmap};

use super::{BLOCK, STREAM, cpu_seconds, options, read, sum};

/// Which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A stream of the store in a directory.
    Stream,
    /// A file, read through the page cache.
    Buffered,
    /// A mapped file.
    Mapped,
}

/// Arguments of the process.
#[derive(Debug, clap::Args)]
pub struct Args {
    kind: Kind,
    path: PathBuf,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let store = match args.kind {
        Kind::Stream => Some(StoreConfig::existing(&args.path)?.open()?),
        Kind::Buffered | Kind::Mapped => None,
    };
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "ready")?;
    for line in io::stdin().lock().lines() {
        let is_summed = line? == "sum";
        let mut total = 0.0;
        let each = |block: &[u8]| {
            if is_summed {
                total += sum(block);
            }
        };
        let (since, cpu) = (Instant::now(), cpu_seconds());
        let bytes = match (args.kind, &store) {
            (Kind::Stream, Some(store)) => read(store.open(STREAM, options())?, each)?,
            (Kind::Mapped, _) => read_mapped(&args.path, each)?,
            (Kind::Buffered | Kind::Stream, _) => read_buffered(&args.path, each)?,
        };
        let (seconds, cpu) = (since.elapsed().as_secs_f64(), cpu_seconds() - cpu);
        std::hint::black_box(total);
        writeln!(stdout, "{seconds} {cpu} {bytes}")?;
    }
    Ok(())
}

fn read_buffered(path: &Path, mut each: impl FnMut(&[u8])) -> anyhow::Result<u64> {
    let (file, length) = uncached(path)?;
    let mut block = vec![0; BLOCK];
    for at in (0..length / BLOCK as u64).map(|number| number * BLOCK as u64) {
        file.read_exact_at(&mut block, at)?;
        each(&block);
    }
    Ok(length)
}

#[expect(unsafe_code, reason = "a file is mapped")]
fn read_mapped(path: &Path, each: impl FnMut(&[u8])) -> anyhow::Result<u64> {
    let (file, length) = uncached(path)?;
    // SAFETY: no other process changes the file of the benchmark.
    let mapping = unsafe { Mmap::map(&file)? };
    mapping.advise(Advice::Sequential)?;
    mapping.chunks(BLOCK).for_each(each);
    Ok(length)
}

/// The file, dropped from the page cache, and its length.
fn uncached(path: &Path) -> anyhow::Result<(File, u64)> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}
