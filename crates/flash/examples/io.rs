//! Overhead of the I/O layer: each backend against a bare loop with the same I/O, in adjacent
//! pairs.
//!
//! `cargo run --release -p forebay-flash --example io -- DIRECTORY [PAIRS]`

#![expect(unsafe_code, reason = "the bare loop passes pointers to the kernel")]
#![expect(clippy::print_stdout, reason = "prints the measurements")]

use std::{
    os::fd::{AsFd, AsRawFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_bench_stats::{Row, Target, evaluate, table};
use forebay_flash::{
    buffers::{Buffer, BufferPool, View},
    io::{Backend, DeviceFile, Disk, IoCommand, IoId, open_disk},
};
use io_uring::{IoUring, opcode, types::Fixed};
use rustix::{
    io::{pread, pwrite},
    time::{ClockId, clock_gettime},
};

const DEVICE_SIZE: u64 = 2 << 30;
const MEMORY: usize = 64 << 20;
/// Bytes per measurement.
const VOLUME: u64 = 512 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Work {
    Read,
    Write,
}

/// Kind of I/O, bytes per command, and commands in flight.
#[derive(Clone, Copy)]
struct Load {
    work: Work,
    length: usize,
    depth: usize,
}

struct Bench {
    file: Arc<DeviceFile>,
    pool: Arc<BufferPool>,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let pairs = arguments.next().map_or(15, |pairs| pairs.parse().expect("a number of pairs"));
    let only = arguments.next();
    let path = Path::new(&directory).join("forebay-io-bench");
    let file = Arc::new(DeviceFile::open(&path, DEVICE_SIZE).expect("a device"));
    let bench = Bench { file, pool: BufferPool::new(MEMORY).expect("memory") };
    bench.touch();

    let mut rows = Vec::new();
    for (work, length, depth) in [
        (Work::Read, 128 << 10, 1),
        (Work::Read, 128 << 10, 8),
        (Work::Read, 128 << 10, 32),
        (Work::Write, 1 << 20, 1),
        (Work::Write, 1 << 20, 8),
    ] {
        let load = Load { work, length, depth };
        for backend in [Backend::Uring, Backend::Threads] {
            if only.as_ref().is_none_or(|only| format!("{backend:?}") == *only) {
                rows.extend(bench.compare(load, backend, pairs));
            }
        }
    }
    println!("{}", table(&rows));
    std::fs::remove_file(path).expect("removed");
}

impl Bench {
    /// Writes the whole device once, because the first write to reserved space is slower.
    fn touch(&self) {
        let mut memory = self.pool.take(1 << 20).expect("memory");
        memory.fill(7);
        for offset in (0..DEVICE_SIZE).step_by(1 << 20) {
            pwrite(&self.file, &memory, offset).expect("written");
        }
        rustix::fs::fdatasync(&self.file).expect("synced");
    }

    fn compare(&self, load: Load, backend: Backend, pairs: usize) -> [Row; 2] {
        let mut speed = Vec::new();
        let mut effort = Vec::new();
        // Created once: the kernel goes on cleaning up a closed `io_uring` for a while.
        let mut disk = open_disk(&self.file, backend, &[Arc::clone(&self.pool)]).expect("a disk");
        let mut uring = self.uring();
        for pair in 0..pairs {
            let mut layer = || measure(|| self.layer(load, disk.as_mut()));
            let mut bare = || {
                measure(|| match backend {
                    Backend::Threads => self.bare_threads(load),
                    _ => self.bare_uring(load, &mut uring),
                })
            };
            let (layer, bare) = if pair % 2 == 0 {
                let layer = layer();
                (layer, bare())
            } else {
                let bare = bare();
                (layer(), bare)
            };
            speed.push((layer.0, bare.0));
            effort.push((layer.1, bare.1));
        }
        let what = match load.work {
            Work::Read => "read",
            Work::Write => "write",
        };
        let row = format!("{backend:?} {what} {} KiB x {}", load.length >> 10, load.depth);
        [
            evaluate(&row, "GB/s", "bare loop", Target::AtLeast(0.97), &speed),
            evaluate(&row, "CPU-s/GB", "bare loop", Target::AtMost(1.05), &effort),
        ]
    }

    /// Offsets in an order that defeats read-ahead.
    fn offsets(load: Load) -> impl Iterator<Item = u64> {
        let mut random = fastrand::Rng::with_seed(1);
        let length = load.length as u64;
        std::iter::repeat_with(move || random.u64(..DEVICE_SIZE / length) * length)
            .take(usize::try_from(VOLUME / length).expect("few"))
    }

    fn buffers(&self, load: Load) -> Vec<Buffer> {
        (0..load.depth).map(|_| self.pool.take(load.length).expect("memory")).collect()
    }

    fn layer(&self, load: Load, disk: &mut dyn Disk) -> (Duration, f64) {
        let mut offsets = Self::offsets(load);
        let views: Vec<_> = self.buffers(load).into_iter().map(Buffer::freeze).collect();
        let mut buffers = self.buffers(load);
        timed(|| Self::rounds(disk, load, &mut offsets, &views, &mut buffers))
    }

    fn rounds(
        disk: &mut dyn Disk,
        load: Load,
        offsets: &mut dyn Iterator<Item = u64>,
        views: &[View],
        buffers: &mut Vec<Buffer>,
    ) {
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        let mut running = 0;
        let mut free: Vec<u64> = (0..load.depth as u64).collect();
        loop {
            while let Some(id) = free.pop() {
                let Some(offset) = offsets.next() else { break };
                let slot = usize::try_from(id).expect("small");
                let id = IoId(id);
                running += 1;
                commands.push(match load.work {
                    Work::Read => {
                        let buffer = buffers.pop().expect("one for each");
                        IoCommand::Read { id, offset, buffer, length: load.length }
                    }
                    Work::Write => IoCommand::Write { id, offset, bytes: views[slot].clone() },
                });
            }
            if running == 0 {
                return;
            }
            disk.submit(&mut commands);
            disk.wait(None, &mut done);
            for completion in done.drain(..) {
                completion.result.expect("done");
                buffers.extend(completion.buffer);
                free.push(completion.id.0);
                running -= 1;
            }
        }
    }

    fn uring(&self) -> IoUring {
        let uring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .build(256)
            .expect("an io_uring");
        uring.submitter().register_files(&[self.file.as_fd().as_raw_fd()]).expect("registered");
        let memory = libc::iovec { iov_base: self.pool.base().cast(), iov_len: MEMORY };
        // SAFETY: the pool outlives the uring.
        unsafe { uring.submitter().register_buffers(&[memory]) }.expect("registered");
        uring
    }

    fn bare_uring(&self, load: Load, uring: &mut IoUring) -> (Duration, f64) {
        let mut offsets = Self::offsets(load);
        let mut buffers = self.buffers(load);
        timed(|| {
            let mut free: Vec<usize> = (0..load.depth).collect();
            let mut running = 0;
            loop {
                while let Some(slot) = free.pop() {
                    let Some(offset) = offsets.next() else { break };
                    let start = buffers[slot].as_mut_ptr();
                    let length = u32::try_from(load.length).expect("short");
                    let entry = match load.work {
                        Work::Read => opcode::ReadFixed::new(Fixed(0), start, length, 0)
                            .offset(offset)
                            .build(),
                        Work::Write => opcode::WriteFixed::new(Fixed(0), start, length, 0)
                            .offset(offset)
                            .build(),
                    };
                    // SAFETY: each buffer is used by one command at a time, and outlives the loop.
                    unsafe { uring.submission().push(&entry.user_data(slot as u64)) }
                        .expect("room");
                    running += 1;
                }
                if running == 0 {
                    return;
                }
                uring.submit_and_wait(1).expect("waited");
                for entry in uring.completion() {
                    assert_eq!(usize::try_from(entry.result()), Ok(load.length));
                    free.push(usize::try_from(entry.user_data()).expect("small"));
                    running -= 1;
                }
            }
        })
    }

    fn bare_threads(&self, load: Load) -> (Duration, f64) {
        let offsets = parking_lot::Mutex::new(Self::offsets(load));
        let buffers = self.buffers(load);
        timed(|| {
            std::thread::scope(|scope| {
                for mut buffer in buffers {
                    let (offsets, file) = (&offsets, &self.file);
                    scope.spawn(move || {
                        while let Some(offset) = { offsets.lock().next() } {
                            let moved = match load.work {
                                Work::Read => pread(file, &mut buffer[..], offset),
                                Work::Write => pwrite(file, &buffer, offset),
                            };
                            assert_eq!(moved, Ok(load.length));
                        }
                    });
                }
            });
        })
    }
}

/// GB/s and CPU-seconds per GB.
fn measure(run: impl FnOnce() -> (Duration, f64)) -> (f64, f64) {
    let gigabytes = VOLUME as f64 / 1e9;
    let (time, cpu) = run();
    (gigabytes / time.as_secs_f64(), cpu / gigabytes)
}

/// Elapsed time, and CPU time of the process.
fn timed(run: impl FnOnce()) -> (Duration, f64) {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (began, spent) = (Instant::now(), cpu());
    run();
    (began.elapsed(), cpu() - spent)
}
