//! One side of the comparison under a memory limit: a process that runs lookups on request.
//!
//! A request is a line `BATCH LOOKUPS`. The answer is a line with the mean and the p99 of a lookup,
//! in microseconds.

use std::{
    fs::File,
    hint::black_box,
    io::{self, BufRead as _, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context as _;
use clap::ValueEnum;
use forebay_core::ByteSize;
use forebay_embeddings::{Contents, Options, Pooling, Tables, format::Layout};
use memmap2::{Advice, Mmap};

use super::model::{DIMENSION, Model, ROW_BYTES, bags};

/// Samples that are looked up before the first that counts. They fill the memory a few times.
const WARM_UP_SAMPLES: usize = 100_000;
const WARM_UP_BATCH: usize = 500;

/// Which side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `forebay_embeddings::Tables`.
    Ours,
    /// The mapped file and the kernel's page cache.
    Mmap,
}

/// Arguments of the process.
#[derive(Debug, clap::Args)]
pub struct Args {
    kind: Kind,
    file: PathBuf,
    /// Rows of all tables together.
    rows: u64,
    /// Memory for rows and their bookkeeping.
    memory: ByteSize,
}

/// A source of rows.
trait Side {
    fn look_up(&self, keys: &[Vec<i64>], out: &mut [f32]) -> anyhow::Result<()>;
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = Model::new(args.rows);
    let side: Box<dyn Side> = match args.kind {
        Kind::Ours => Box::new(Ours::open(&model, &args.file, args.memory)?),
        Kind::Mmap => Box::new(Mapped::open(&args.file)?),
    };
    let mut random = fastrand::Rng::with_seed(2);
    let mut out = vec![0.0; WARM_UP_BATCH * model.rows.len() * DIMENSION];
    for _ in 0..WARM_UP_SAMPLES / WARM_UP_BATCH {
        side.look_up(&model.draw(WARM_UP_BATCH, &mut random), &mut out)?;
    }
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "ready")?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (batch, lookups) = line.split_once(' ').context("expected two numbers")?;
        let (batch, lookups): (usize, usize) = (batch.parse()?, lookups.parse()?);
        out.resize(batch * model.rows.len() * DIMENSION, 0.0);
        let mut micros = Vec::with_capacity(lookups);
        for _ in 0..lookups {
            let keys = model.draw(batch, &mut random);
            let began = Instant::now();
            side.look_up(&keys, &mut out)?;
            micros.push(began.elapsed().as_secs_f64() * 1e6);
            black_box(&out);
        }
        micros.sort_unstable_by(f64::total_cmp);
        let mean = micros.iter().sum::<f64>() / micros.len() as f64;
        writeln!(stdout, "{mean} {}", micros[(micros.len() - 1) * 99 / 100])?;
    }
    Ok(())
}

struct Ours {
    tables: Tables,
}

impl Ours {
    fn open(model: &Model, file: &Path, memory: ByteSize) -> anyhow::Result<Self> {
        Ok(Self { tables: Tables::open(&model.sources(file), &Options::new(memory))? })
    }
}

impl Side for Ours {
    fn look_up(&self, keys: &[Vec<i64>], out: &mut [f32]) -> anyhow::Result<()> {
        Ok(self.tables.lookup(&bags(keys), Pooling::Sum, out)?)
    }
}

struct Mapped {
    layouts: Vec<Layout>,
    map: Mmap,
}

impl Mapped {
    #[expect(unsafe_code, reason = "the peer is a mapped file")]
    fn open(path: &Path) -> anyhow::Result<Self> {
        let (Contents::Safetensors { tensors }, _) = forebay_embeddings::inspect(path)? else {
            anyhow::bail!("`{}` is not a safetensors file", path.display());
        };
        let layouts = tensors.into_iter().filter_map(|tensor| tensor.table).collect();
        // SAFETY: the benchmark's file is not written while it is mapped.
        let map = unsafe { Mmap::map(&File::open(path)?)? };
        map.advise(Advice::Random)?;
        Ok(Self { layouts, map })
    }
}

impl Side for Mapped {
    fn look_up(&self, keys: &[Vec<i64>], out: &mut [f32]) -> anyhow::Result<()> {
        let mut out = out.chunks_exact_mut(DIMENSION);
        for (keys, layout) in keys.iter().zip(&self.layouts) {
            for (key, out) in keys.iter().zip(&mut out) {
                let at = layout.offset + key.cast_unsigned() * ROW_BYTES as u64;
                let row = &self.map[usize::try_from(at)?..][..ROW_BYTES];
                for (number, bytes) in out.iter_mut().zip(row.as_chunks::<4>().0) {
                    *number = f32::from_le_bytes(*bytes);
                }
            }
        }
        Ok(())
    }
}
