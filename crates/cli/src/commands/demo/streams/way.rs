//! One way to read the points, in a process of its own under the memory limit.
//!
//! It prints a line of JSON per step ([`Step`]) and one at the end of each pass ([`Pass`]).

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::ValueEnum;
use forebay_core::ByteSize;
use forebay_streams::{OpenOptions, Store, StoreConfig};
use memmap2::{Advice, Mmap};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{control_group, kmeans::KMeans};
use crate::output::Verdict;

/// The stream of points in the store.
pub const STREAM: &str = "points";
/// Steps of a pass, for progress and plots.
const STEPS: u64 = 20;
/// Size of a page, of which one byte is touched.
const PAGE: usize = 4096;

/// How the points are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// A file, by `read` through the page cache.
    Buffered,
    /// A mapped file.
    Mmap,
    /// A stream.
    Stream,
}

/// Arguments of the process.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    way: Way,
    /// The file of points, or the directory of the store.
    path: PathBuf,
    #[arg(long)]
    passes: u64,
    /// Length of a block.
    #[arg(long)]
    block: usize,
    /// Memory of the store.
    #[arg(long)]
    memory: ByteSize,
    /// The control group to join. Without one, the page cache is dropped before each pass.
    #[arg(long)]
    group: Option<PathBuf>,
}

/// A line of the process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    Step(Step),
    Pass(Pass),
}

/// Progress.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Step {
    /// Passes, with the part of the current one.
    pub passes: f64,
    /// Time since the first pass began.
    pub seconds: f64,
}

/// A pass over all points.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pass {
    pub seconds: f64,
    /// Time in which the computation waited for data.
    pub waiting_seconds: f64,
    /// Processor time of all threads.
    pub cpu_seconds: f64,
    pub bytes: u64,
    /// Mean squared distance to the nearest centre.
    pub distance: f64,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    if let Some(group) = &args.group {
        control_group::join(group)?;
    }
    let config = StoreConfig::existing(&args.path);
    let store = match args.way {
        Way::Stream => Some(StoreConfig { memory: args.memory, ..config? }.open()?),
        Way::Buffered | Way::Mmap => None,
    };
    let mut reporter = Reporter { began: Instant::now(), passes: 0, blocks: 0, of: 1 };
    let mut kmeans = KMeans::default();
    for _ in 0..args.passes {
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let mut pass = Progress { kmeans: &mut kmeans, reporter: &mut reporter, bytes: 0 };
        let waiting = match &store {
            Some(store) => pass.read_stream(store)?,
            None => pass.read_file(args)?,
        };
        let bytes = pass.bytes;
        reporter.passes += 1;
        say(&Line::Pass(Pass {
            seconds: began.elapsed().as_secs_f64(),
            waiting_seconds: waiting.as_secs_f64(),
            cpu_seconds: cpu_seconds() - cpu,
            bytes,
            distance: kmeans.on_pass(),
        }))?;
    }
    Ok(Verdict::Yes)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn say(line: &Line) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    io::stdout().lock().write_all(text.as_bytes()).context("the demo has ended")
}

/// Prints the steps of a pass.
struct Reporter {
    began: Instant,
    passes: u64,
    blocks: u64,
    of: u64,
}

impl Reporter {
    fn on_block(&mut self) -> anyhow::Result<()> {
        self.blocks += 1;
        if self.blocks.is_multiple_of(self.of.div_ceil(STEPS)) {
            let passes = self.passes as f64 + self.blocks as f64 / self.of as f64;
            let seconds = self.began.elapsed().as_secs_f64();
            say(&Line::Step(Step { passes, seconds }))?;
        }
        Ok(())
    }
}

/// A pass that is being read.
struct Progress<'a> {
    kmeans: &'a mut KMeans,
    reporter: &'a mut Reporter,
    bytes: u64,
}

impl Progress<'_> {
    fn on_block(&mut self, block: &[u8]) -> anyhow::Result<()> {
        self.kmeans.on_block(block);
        self.bytes += block.len() as u64;
        self.reporter.on_block()
    }

    /// Reads the stream. Returns the time spent waiting.
    fn read_stream(&mut self, store: &Store) -> anyhow::Result<Duration> {
        let known = store.list().into_iter().find(|info| info.name.as_str() == STREAM);
        (self.reporter.blocks, self.reporter.of) = (0, known.map_or(1, |info| info.blocks));
        let mut reader = store.open(STREAM, OpenOptions::default())?;
        let mut waiting = Duration::ZERO;
        loop {
            let since = Instant::now();
            let block = reader.next().transpose()?;
            waiting += since.elapsed();
            let Some(block) = block else { return Ok(waiting) };
            self.on_block(&block)?;
        }
    }

    /// Reads or maps the file. Returns the time spent waiting.
    fn read_file(&mut self, args: &Args) -> anyhow::Result<Duration> {
        let file = File::open(&args.path)?;
        if args.group.is_none() {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential)?;
        let blocks = file.metadata()?.len() / args.block as u64;
        (self.reporter.blocks, self.reporter.of) = (0, blocks.max(1));
        match args.way {
            Way::Mmap => self.read_mapped(&file, args.block),
            Way::Buffered | Way::Stream => self.read_buffered(&file, args.block, blocks),
        }
    }

    fn read_buffered(
        &mut self,
        file: &File,
        length: usize,
        blocks: u64,
    ) -> anyhow::Result<Duration> {
        let mut waiting = Duration::ZERO;
        let mut block = vec![0; length];
        for number in 0..blocks {
            let since = Instant::now();
            file.read_exact_at(&mut block, number * length as u64)?;
            waiting += since.elapsed();
            self.on_block(&block)?;
        }
        Ok(waiting)
    }

    /// The pages of a block are touched before the computation, so that their faults count as
    /// waiting.
    #[expect(unsafe_code, reason = "a file is mapped")]
    fn read_mapped(&mut self, file: &File, length: usize) -> anyhow::Result<Duration> {
        // SAFETY: the file is the demo's own, in its private directory, and is not changed.
        let mapping = unsafe { Mmap::map(file)? };
        mapping.advise(Advice::Sequential)?;
        let mut waiting = Duration::ZERO;
        for block in mapping.chunks_exact(length) {
            let since = Instant::now();
            let touched = block.iter().step_by(PAGE).fold(0, |all, byte| all | *byte);
            std::hint::black_box(touched);
            waiting += since.elapsed();
            self.on_block(block)?;
        }
        Ok(waiting)
    }
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Buffered, Self::Mmap, Self::Stream];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered file",
            Self::Mmap => "mapped file",
            Self::Stream => "stream",
        }
    }

    /// What it reads in the directory of the demo.
    pub fn path(self, directory: &Path) -> PathBuf {
        directory.join(if self == Self::Stream { "store" } else { "points" })
    }
}
