//! The bare loop: direct I/O on a file, by a uring with registered memory, or by threads.

#![expect(unsafe_code, reason = "io_uring takes raw pointers")]

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, OpenOptionsExt as _},
    },
    path::Path,
    sync::Mutex,
    time::Instant,
};

use anyhow::{Context as _, ensure};
use forebay_bench_stats::load::{Sample, Watch};
use forebay_core::ByteSize;
use io_uring::{IoUring, opcode, types::Fixed};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, OFlags};

use super::{Case, DEPTHS, ITEMS};

/// Memory for the largest depth with the largest items.
const MEMORY: usize = DEPTHS[2] * ITEMS[2];

/// A file, and the memory for its operations.
pub struct Raw {
    file: File,
    size: u64,
    memory: MmapMut,
    random: fastrand::Rng,
    /// Offset of the next write.
    next: u64,
}

/// One read or write.
struct Operation {
    write: bool,
    offset: u64,
}

impl Raw {
    /// Makes a file of this size with every block written.
    pub fn make(path: &Path, ByteSize(size): ByteSize) -> anyhow::Result<Self> {
        let direct = i32::try_from(OFlags::DIRECT.bits())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).custom_flags(direct);
        let file = options.open(path).context("make a file for direct I/O")?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size)?;
        let mut memory = MmapOptions::new().len(MEMORY).populate().map_anon()?;
        fastrand::Rng::with_seed(1).fill(&mut memory);
        for offset in (0..size).step_by(1 << 20) {
            file.write_all_at(&memory[..1 << 20], offset)?;
        }
        file.sync_data()?;
        Ok(Self { file, size, memory, random: fastrand::Rng::with_seed(2), next: 0 })
    }

    /// Runs a load. As in the engine, reads are random in one half, writes sequential in the other.
    pub fn run(&mut self, case: Case, threads: bool) -> anyhow::Result<Sample> {
        let Self { file, size, memory, random, next } = self;
        let (half, item) = (*size / 2, case.item as u64);
        let next = || {
            let write = case.load.is_write(random);
            let offset = if write {
                *next = (*next + item) % half;
                half + *next
            } else {
                random.u64(..half / item) * item
            };
            Operation { write, offset }
        };
        let is_over = |watch: &Watch| watch.elapsed() >= case.limit;
        let watch = if threads {
            by_threads(file, memory, case.item, case.depth, next, is_over)?
        } else {
            by_ring(file, memory, case.item, case.depth, next, is_over)?
        };
        file.sync_data()?;
        Ok(watch.finish())
    }

    /// Writes `count` items sequentially.
    pub fn write_all(&mut self, item: usize, depth: usize, count: usize) -> anyhow::Result<Sample> {
        let Self { file, size, memory, next, .. } = self;
        let mut begun = 0;
        let mut operation = || {
            begun += 1;
            *next = (*next + item as u64) % (*size - item as u64);
            *next -= *next % item as u64;
            Operation { write: true, offset: *next }
        };
        let mut left = count;
        let is_over = |_: &Watch| {
            left = left.saturating_sub(1);
            left < depth
        };
        let watch = by_ring(file, memory, item, depth, &mut operation, is_over)?;
        ensure!(begun == count, "the bare loop wrote {begun} of {count} items");
        file.sync_data()?;
        Ok(watch.finish())
    }
}

fn by_ring(
    file: &File,
    memory: &mut MmapMut,
    item: usize,
    depth: usize,
    mut next: impl FnMut() -> Operation,
    mut is_over: impl FnMut(&Watch) -> bool,
) -> anyhow::Result<Watch> {
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .build(64)
        .context("set up io_uring for the bare loop, which needs Linux 6.1 or later")?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let base = memory.as_mut_ptr();
    let vector = libc::iovec { iov_base: base.cast(), iov_len: memory.len() };
    // SAFETY: the memory outlives the ring, which is dropped at the end of this function, after
    // its last completion.
    unsafe { ring.submitter().register_buffers(&[vector])? };
    let length = u32::try_from(item)?;
    let mut began = vec![Instant::now(); depth];
    let mut start = |slot: usize, ring: &mut IoUring, began: &mut [Instant]| {
        let Operation { write, offset } = next();
        // SAFETY: the memory of a slot is inside the mapping: there are at most `DEPTHS[2]` slots
        // of at most `ITEMS[2]` bytes.
        let memory = unsafe { base.add(slot * item) };
        let entry = if write {
            opcode::WriteFixed::new(Fixed(0), memory, length, 0).offset(offset).build()
        } else {
            opcode::ReadFixed::new(Fixed(0), memory, length, 0).offset(offset).build()
        };
        began[slot] = Instant::now();
        // SAFETY: a slot has one operation at a time, which alone uses its memory.
        unsafe { ring.submission().push(&entry.user_data(slot as u64)) }
    };
    let mut watch = Watch::start();
    for slot in 0..depth {
        start(slot, &mut ring, &mut began)?;
    }
    let mut running = depth;
    let mut done = Vec::with_capacity(depth);
    let mut failed = None;
    while running > 0 {
        ring.submit_and_wait(1)?;
        done.extend(ring.completion().map(|entry| (entry.user_data(), entry.result())));
        for (slot, result) in done.drain(..) {
            let slot = usize::try_from(slot)?;
            running -= 1;
            if u32::try_from(result) != Ok(length) {
                failed = Some(result);
            }
            watch.count(began[slot], u64::from(length));
            if failed.is_none() && !is_over(&watch) {
                start(slot, &mut ring, &mut began)?;
                running += 1;
            }
        }
    }
    match failed {
        Some(result) => anyhow::bail!("an operation of the bare loop failed with {result}"),
        None => Ok(watch),
    }
}

fn by_threads(
    file: &File,
    memory: &mut MmapMut,
    item: usize,
    depth: usize,
    next: impl FnMut() -> Operation + Send,
    is_over: impl Fn(&Watch) -> bool + Sync,
) -> anyhow::Result<Watch> {
    let next = Mutex::new(next);
    let watch = Mutex::new(Watch::start());
    let work = |memory: &mut [u8]| -> std::io::Result<()> {
        loop {
            let Operation { write, offset } = (next.lock().expect("no thread panics"))();
            let began = Instant::now();
            if write {
                file.write_all_at(memory, offset)?;
            } else {
                file.read_exact_at(memory, offset)?;
            }
            let mut watch = watch.lock().expect("no thread panics");
            watch.count(began, memory.len() as u64);
            if is_over(&watch) {
                return Ok(());
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = memory
            .chunks_mut(item)
            .take(depth)
            .map(|memory| {
                let work = &work;
                scope.spawn(move || work(memory))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(watch.into_inner().expect("no thread panics"))
}
