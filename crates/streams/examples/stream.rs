//! Speed of streams: reading and writing in order, against a bare loop of direct I/O with the same
//! blocks and depth, in adjacent pairs. Each stream is verified while it is read; the bare loop
//! ignores its bytes.
//!
//! `cargo run --profile dist -p forebay-streams --example stream -- DIRECTORY [MIB] [PAIRS]`

#![expect(clippy::print_stdout, reason = "prints the measurements")]

use std::{path::Path, sync::Arc, time::Instant};

use forebay_bench_stats::{Target, compare, evaluate, table};
use forebay_core::ByteSize;
use forebay_flash::{
    buffers::BufferPool,
    io::{Backend, DeviceFile, Disk, IoCommand, IoId, open_disk},
};
use forebay_streams::{CreateOptions, OpenOptions, Store, StoreConfig};

/// Blocks in flight on both sides.
const DEPTH: u32 = 4;
/// A block of a stream with its header, in whole device blocks.
const BLOCK: usize = (4 << 20) - (8 << 10);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The bare loop.
struct Bare {
    disk: Box<dyn Disk>,
    pool: Arc<BufferPool>,
    blocks: u64,
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let mib: u64 = arguments.next().map_or(Ok(1024), |mib| mib.parse())?;
    let pairs: usize = arguments.next().map_or(Ok(15), |pairs| pairs.parse())?;
    let blocks = (mib << 20) / BLOCK as u64;
    let place = Path::new(&directory).join("forebay-stream-bench");
    std::fs::create_dir_all(&place)?;
    let mut bare = Bare::open(&place.join("bare"), blocks)?;
    // Room for the stream that is read and for the one that is written.
    let capacity = ByteSize(((3 * blocks + 16) * BLOCK as u64).max(256 << 20));
    let store = StoreConfig::new(place.join("store"), capacity).open()?;
    let payload: Vec<u8> = {
        let mut payload = vec![0; usize::try_from(store.block_length())?];
        fastrand::Rng::with_seed(1).fill(&mut payload);
        payload
    };
    write(&store, "read", blocks, &payload)?;
    // The first write to reserved space is slower, so every region is written once before.
    write(&store, "touch", 2 * blocks, &payload)?;
    store.destroy("touch", std::time::Duration::ZERO)?;
    bare.run(true)?;

    let mut rows = Vec::new();
    let speed = |bytes: u64, since: Instant| bytes as f64 / since.elapsed().as_secs_f64() / 1e9;
    rows.push(compare(
        "read in order, verified",
        "GB/s",
        "bare loop",
        Target::AtLeast(0.95),
        pairs,
        || -> Outcome<f64> {
            let since = Instant::now();
            Ok(speed(read(&store, "read")?, since))
        },
        || {
            let since = Instant::now();
            Ok(speed(bare.run(false)?, since))
        },
    )?);
    let mut first = Vec::new();
    for _ in 0..pairs {
        let since = Instant::now();
        drop(store.open("read", options())?.next().expect("a block")?);
        let ours = since.elapsed().as_secs_f64();
        let since = Instant::now();
        bare.read_one()?;
        first.push((1e3 * ours, 1e3 * since.elapsed().as_secs_f64()));
    }
    rows.push(evaluate("first block after open", "ms", "bare read", Target::AtMost(1.5), &first));
    let before = store.facts();
    rows.push(compare(
        "write in order",
        "GB/s",
        "bare loop",
        Target::AtLeast(0.95),
        pairs,
        || -> Outcome<f64> {
            let since = Instant::now();
            let bytes = write(&store, "write", blocks, &payload)?;
            let ours = speed(bytes, since);
            store.destroy("write", std::time::Duration::ZERO)?;
            Ok(ours)
        },
        || {
            let since = Instant::now();
            Ok(speed(bare.run(true)?, since))
        },
    )?);
    let after = store.facts();
    let written = (after.device_written.0 - before.device_written.0) as f64;
    let payload = (after.written.0 - before.written.0) as f64;
    rows.push(evaluate(
        "device bytes",
        "bytes",
        "payload",
        Target::AtMost(1.01),
        &[(written, payload)],
    ));
    println!("{}", table(&rows));
    drop((store, bare));
    std::fs::remove_dir_all(place)?;
    Ok(())
}

fn options() -> OpenOptions {
    OpenOptions { depth: DEPTH, in_flight: DEPTH, ..OpenOptions::default() }
}

fn write(store: &Store, name: &str, blocks: u64, payload: &[u8]) -> Outcome<u64> {
    let mut writer = store.create(name, CreateOptions::default())?;
    for _ in 0..blocks {
        writer.append(payload)?;
    }
    Ok(writer.seal()?.bytes)
}

fn read(store: &Store, name: &str) -> Outcome<u64> {
    let mut bytes = 0;
    for block in store.open(name, options())?.blocks() {
        bytes += block?.len() as u64;
    }
    Ok(bytes)
}

impl Bare {
    fn open(path: &Path, blocks: u64) -> Outcome<Self> {
        let file = Arc::new(DeviceFile::open(path, blocks * BLOCK as u64)?);
        let pool = BufferPool::new(DEPTH as usize * BLOCK)?;
        let disk = open_disk(&file, Backend::Auto, &[Arc::clone(&pool)])?;
        Ok(Self { disk, pool, blocks })
    }

    /// Reads or writes the whole file in order. Returns its bytes.
    fn run(&mut self, is_write: bool) -> Outcome<u64> {
        let (mut begun, mut ended) = (0, 0);
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        while ended < self.blocks {
            while begun < self.blocks
                && let Some(buffer) = self.pool.take(BLOCK)
            {
                let (id, offset) = (IoId(begun), begun * BLOCK as u64);
                commands.push(if is_write {
                    IoCommand::Write { id, offset, bytes: buffer.freeze() }
                } else {
                    IoCommand::Read { id, offset, buffer, length: BLOCK }
                });
                begun += 1;
            }
            self.disk.submit(&mut commands);
            self.disk.wait(None, &mut done);
            for completion in done.drain(..) {
                completion.result?;
                ended += 1;
            }
        }
        Ok(self.blocks * BLOCK as u64)
    }

    fn read_one(&mut self) -> Outcome<()> {
        let all = std::mem::replace(&mut self.blocks, 1);
        let outcome = self.run(false);
        self.blocks = all;
        outcome.map(|_| ())
    }
}
