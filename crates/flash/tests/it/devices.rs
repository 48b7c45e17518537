//! The engine on real files, with `io_uring` and with threads: reads return what was written, also
//! after a restart, with more or fewer devices, and with larger or smaller ones.

use std::{
    collections::BTreeSet,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_flash::{
    DeviceConfig, DeviceError, Flash, FlashConfig, FlashError, Group, RequestError, VerifiedRead,
    io::{Backend, DeviceFileError},
    shard::{GroupState, Settings},
};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{join_all, poll_immediate},
    stream::FuturesUnordered,
};
use tempfile::TempDir;

use crate::world::{content, key};

/// Runs a future to its end.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

/// Devices in a directory of their own.
pub struct TestDevices {
    directory: TempDir,
    pub config: FlashConfig,
}

impl TestDevices {
    /// Devices of these sizes in MiB, with regions of 1 MiB.
    pub fn new(backend: Backend, sizes: &[u64]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = FlashConfig::new(Vec::new());
        config.backend = backend;
        config.staging_buffers = ByteSize::mib(4);
        config.read_buffers = ByteSize::mib(4);
        config.settings = Settings { write_size: 64 << 10, scrub_rate: None, ..config.settings };
        let mut setup = Self { directory, config };
        setup.config.devices = (0..).zip(sizes).map(|(at, size)| setup.device(at, *size)).collect();
        setup
    }

    pub fn path(&self, device: usize) -> PathBuf {
        self.directory.path().join(format!("device {device}"))
    }

    pub fn device(&self, device: usize, size: u64) -> DeviceConfig {
        DeviceConfig {
            path: self.path(device),
            capacity: ByteSize::mib(size),
            region_size: Some(ByteSize::mib(1)),
            owner: [7; 16],
        }
    }

    pub fn open(&self) -> Flash {
        Flash::open(&self.config).unwrap()
    }
}

/// Runs a test with each backend that works here.
fn on_each_backend(test: impl Fn(Backend)) {
    test(Backend::Threads);
    match Flash::open(&TestDevices::new(Backend::Uring, &[5]).config) {
        Err(FlashError::Device(DeviceError::Open(DeviceFileError::NoUring { .. }))) => {}
        Err(error) => panic!("{error}"),
        Ok(flash) => {
            drop(flash);
            test(Backend::Uring);
        }
    }
}

async fn append(group: &Group, numbers: Range<u64>, length: usize) {
    for number in numbers {
        group.append(key(number), 3, content(number, length)).await.unwrap();
    }
}

/// The entries that are there; their bytes must be right.
async fn present(flash: &Flash, numbers: Range<u64>, length: usize) -> BTreeSet<u64> {
    let mut present = BTreeSet::new();
    for number in numbers {
        if let Some(found) = flash.read(key(number), None).await.unwrap() {
            assert_eq!(&*found.bytes, &content(number, length)[..], "entry {number}");
            present.insert(number);
        }
    }
    present
}

fn range(numbers: Range<u64>) -> BTreeSet<u64> {
    numbers.collect()
}

const LENGTHS: [usize; 9] = [0, 1, 64, 4095, 4096, 16_384, 16_385, 131_072, 700_000];

/// Reads whole entries, ranges and batches.
async fn read_everything(flash: &Flash, dense: &Group) {
    let mut wanted = vec![(key(1 << 40), None)];
    let mut expected = vec![None];
    for (number, length) in (0..).zip(LENGTHS) {
        let bytes = content(number, length);
        let same = |found: Option<VerifiedRead>| {
            let found = found.expect("it was written");
            assert_eq!((found.length as usize, found.tag), (length, 3));
            found.bytes
        };
        assert_eq!(&*same(flash.read(key(number), None).await.unwrap()), &bytes[..]);
        let part = length as u64 / 3..length as u64 - length as u64 / 4;
        let expected_part = &bytes[length / 3..length - length / 4];
        let read = flash.read(key(number), Some(part.clone())).await.unwrap();
        assert_eq!(&*same(read), expected_part);
        let read = dense.read_ordinal(number, None).await.unwrap();
        assert_eq!(&*same(read), &bytes[..]);
        let read = dense.read_ordinal(number, Some(part.clone())).await.unwrap();
        assert_eq!(&*same(read), expected_part);
        wanted.extend([(key(number), None), (key(number), Some(part))]);
        expected.extend([Some(bytes.to_vec()), Some(expected_part.to_vec())]);
    }
    let read = flash.read_batch(&wanted).await;
    let read = read.into_iter().map(|one| one.unwrap().map(|found| found.bytes.to_vec()));
    assert!(read.eq(expected), "answers are in the order of the requests");
    assert!(dense.read_ordinal(1000, None).await.unwrap().is_none(), "a miss is not an error");
    assert!(!flash.contains(&key(1 << 40)) && flash.contains(&key(0)));
}

#[test]
fn entries_are_read_whole_in_ranges_and_in_batches() {
    on_each_backend(|backend| {
        let setup = TestDevices::new(backend, &[8, 8]);
        let flash = setup.open();
        wait(async {
            let group = flash.group(b"by key", 1, false).await.unwrap();
            let dense = flash.group(b"by number", 1, true).await.unwrap();
            for (number, length) in (0..).zip(LENGTHS) {
                group.append(key(number), 3, content(number, length)).await.unwrap();
                dense.append_ordinal(number, 3, content(number, length)).await.unwrap();
            }
            read_everything(&flash, &dense).await;
            dense.seal().await.unwrap();
            let late = dense.append_ordinal(90, 3, Bytes::new()).await;
            assert_eq!(late, Err(RequestError::Closed));
            read_everything(&flash, &dense).await;
            flash.flush().await.unwrap();
            read_everything(&flash, &dense).await;
        });
        drop(flash);
        let flash = setup.open();
        let found = flash.recovery_reports();
        assert_eq!(found.iter().map(|found| found.entries).sum::<u64>(), 18);
        assert!(
            found.iter().all(|found| found.regions_scanned == 0 && found.regions_sealed >= 2),
            "{found:?}"
        );
        wait(async {
            let dense = flash.group(b"by number", 1, true).await.unwrap();
            read_everything(&flash, &dense).await;
            assert_eq!(dense.entries().await.unwrap().len(), LENGTHS.len());
            let groups = flash.groups().await.unwrap();
            assert_eq!(groups.len(), 4, "two on each device");
            for group in groups {
                let state = if group.dense { GroupState::Sealed } else { GroupState::Filling };
                assert_eq!(group.state, state, "{group:?}");
            }
        });
    });
}

/// Successive long entries begin at different offsets in their blocks.
#[test]
fn long_entries_are_read_at_any_offset() {
    on_each_backend(|backend| {
        let mut setup = TestDevices::new(backend, &[80]);
        setup.config.devices[0].region_size = Some(ByteSize::mib(16));
        let flash = setup.open();
        wait(async {
            for (name, length) in [("MiB", 1 << 20), ("half", 512 << 10), ("odd", 1_048_000)] {
                let group = flash.group(name.as_bytes(), 1, false).await.unwrap();
                append(&group, 0..15, length).await;
                group.seal().await.unwrap();
                assert_eq!(present(&flash, 0..15, length).await, range(0..15), "{name}");
            }
        });
    });
}

/// Promise 7: sealed entries are there after a restart. Others may be; their bytes must be right.
#[test]
fn a_restart_without_a_flush_keeps_sealed_groups() {
    on_each_backend(|backend| {
        let setup = TestDevices::new(backend, &[16]);
        let flash = setup.open();
        wait(async {
            let sealed = flash.group(b"sealed", 1, false).await.unwrap();
            append(&sealed, 0..30, 100_000).await;
            sealed.seal().await.unwrap();
            let open = flash.group(b"open", 1, false).await.unwrap();
            append(&open, 100..130, 100_000).await;
        });
        drop(flash);
        let flash = setup.open();
        let found = flash.recovery_reports()[0];
        assert!(found.regions_scanned <= 4 && found.entries >= 30, "{found:?}");
        wait(async {
            assert_eq!(present(&flash, 0..30, 100_000).await, range(0..30));
            let kept = present(&flash, 100..130, 100_000).await;
            assert_eq!(kept.len() as u64, found.entries - 30);
            let open = flash.group(b"open", 1, false).await.unwrap();
            append(&open, 100..130, 100_000).await;
            assert_eq!(
                present(&flash, 100..130, 100_000).await,
                range(100..130),
                "the group accepts entries again"
            );
        });
    });
}

/// Dropped requests release their memory. These use twenty times as much as there is.
#[test]
fn dropped_requests_release_their_memory() {
    on_each_backend(|backend| {
        let setup = TestDevices::new(backend, &[16, 16]);
        let flash = setup.open();
        let mut random = fastrand::Rng::with_seed(5);
        wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..60, 100_000).await;
            flash.flush().await.unwrap();
            let other = flash.group(b"others", 1, false).await.unwrap();
            for round in 0..800 {
                let number = random.u64(..60);
                match random.u8(..4) {
                    0 => drop(flash.read(key(number), None)),
                    1 => drop(flash.read(key(number), None).now_or_never()),
                    2 => {
                        let write = other.append(key(1000 + round), 3, content(round, 9000));
                        let _ = write.now_or_never();
                    }
                    _ => {
                        let numbers: Vec<u64> = (0..8).map(|_| random.u64(..60)).collect();
                        let mut reads: FuturesUnordered<_> =
                            numbers.iter().map(|number| flash.read(key(*number), None)).collect();
                        for _ in 0..random.u8(..4) {
                            if random.bool() {
                                poll_immediate(reads.next()).await;
                            } else {
                                reads.next().await.expect("eight reads").unwrap();
                            }
                        }
                    }
                }
            }
            let all: Vec<_> = (0..60).map(|number| (key(number), None)).collect();
            for some in all.chunks(20) {
                let read = flash.read_batch(some).await;
                assert!(
                    read.iter().all(|one| matches!(one, Ok(Some(_)))),
                    "all memory is released"
                );
            }
            assert_eq!(present(&flash, 0..60, 100_000).await, range(0..60));
            for round in 0..800 {
                if let Some(found) = flash.read(key(1000 + round), None).await.unwrap() {
                    assert_eq!(&*found.bytes, &content(round, 9000)[..]);
                }
            }
            flash.flush().await.unwrap();
        });
    });
}

/// Promise 6: kept reads occupy the read buffers. Further reads wait, and continue when one is
/// released.
#[test]
fn reads_wait_for_memory_that_other_reads_occupy() {
    on_each_backend(|backend| {
        let mut setup = TestDevices::new(backend, &[16]);
        setup.config.settings.read_deadline = Duration::from_millis(100);
        let flash = setup.open();
        wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..20, 500_000).await;
            flash.flush().await.unwrap();
            let mut kept_reads = Vec::new();
            let error = loop {
                match flash.read(key(kept_reads.len() as u64), None).await {
                    Ok(found) => kept_reads.push(found.unwrap()),
                    Err(error) => break error,
                }
            };
            assert_eq!(error, RequestError::TimedOut);
            assert!((7..=8).contains(&kept_reads.len()), "{} of 500 kB in 4 MiB", kept_reads.len());
            append(&group, 20..22, 500_000).await;
            for (number, kept) in (0..).zip(&kept_reads) {
                assert_eq!(
                    &*kept.bytes,
                    &content(number, 500_000)[..],
                    "kept buffers are not reused"
                );
            }
            let mut next = Box::pin(flash.read(key(19), None));
            assert!(poll_immediate(&mut next).await.is_none());
            kept_reads.pop();
            assert!(next.await.unwrap().is_some(), "the release woke it");
        });
    });
}

/// A read after a long pause has its full timeout.
#[test]
fn a_pause_is_not_counted_against_the_next_read() {
    on_each_backend(|backend| {
        let mut setup = TestDevices::new(backend, &[6]);
        setup.config.settings.read_deadline = Duration::from_millis(400);
        let flash = setup.open();
        wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..9, 100_000).await;
            flash.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(flash.read(key(1), None).await.unwrap().is_some());
        });
    });
}

/// Several threads with many tasks each.
#[test]
fn several_threads_read_and_write_at_once() {
    on_each_backend(|backend| {
        let setup = TestDevices::new(backend, &[16, 16]);
        let flash = setup.open();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let flash = &flash;
                scope.spawn(move || {
                    wait(async {
                        let group = flash.group(b"a", 1, false).await.unwrap();
                        let numbers = thread * 100..thread * 100 + 40;
                        join_all(numbers.clone().map(async |number| {
                            group.append(key(number), 3, content(number, 50_000)).await.unwrap();
                        }))
                        .await;
                        assert_eq!(present(flash, numbers.clone(), 50_000).await, range(numbers));
                    });
                });
            }
        });
        let counters = flash.counters();
        assert_eq!(counters.iter().map(|device| device.entries).sum::<u64>(), 160);
        assert!(counters.iter().all(|device| device.entries > 40), "both devices are used");
    });
}

/// A lost device costs only its own entries, and entries on a new device are found.
#[test]
fn a_lost_device_costs_only_its_own_entries() {
    on_each_backend(|backend| {
        let mut setup = TestDevices::new(backend, &[8, 8, 8]);
        let flash = setup.open();
        let on_each = wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..60, 50_000).await;
            group.seal().await.unwrap();
            let counters = flash.counters();
            counters.iter().map(|device| device.entries).collect::<Vec<_>>()
        });
        drop(flash);
        assert!(on_each.iter().all(|entries| *entries > 5), "{on_each:?}");
        // The device is replaced by an empty one.
        fs::remove_file(setup.path(1)).unwrap();
        let flash = setup.open();
        let left = wait(present(&flash, 0..60, 50_000));
        assert_eq!(left.len() as u64, on_each[0] + on_each[2]);
        wait(async {
            let group = flash.group(b"b", 1, false).await.unwrap();
            for number in (0..60).filter(|number| !left.contains(number)) {
                group.append(key(number), 3, content(number, 50_000)).await.unwrap();
            }
            group.seal().await.unwrap();
        });
        drop(flash);
        // The order and then the number of devices change.
        setup.config.devices = vec![setup.device(2, 8), setup.device(0, 8), setup.device(1, 8)];
        let flash = setup.open();
        assert_eq!(wait(present(&flash, 0..60, 50_000)), range(0..60));
        drop(flash);
        setup.config.devices.push(setup.device(3, 8));
        let flash = setup.open();
        assert_eq!(wait(present(&flash, 0..60, 50_000)), range(0..60));
        wait(async {
            let group = flash.group(b"c", 1, false).await.unwrap();
            append(&group, 100..160, 50_000).await;
            group.seal().await.unwrap();
        });
        drop(flash);
        setup.config.devices = vec![setup.device(3, 8)];
        let flash = setup.open();
        assert!(wait(present(&flash, 0..60, 50_000)).is_empty());
        assert!(wait(present(&flash, 100..160, 50_000)).len() > 5);
    });
}

/// A drive that can be made to fail.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn on(file: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(made.stdout).unwrap();
        made.status.success().then(|| Self(PathBuf::from(path.trim())))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Promise 5: a failed drive does not affect the others.
#[test]
fn a_drive_that_cannot_be_read_is_left_out() {
    let mut setup = TestDevices::new(Backend::Threads, &[8]);
    let below = setup.path(9);
    fs::File::create(&below).unwrap().set_len(8 << 20).unwrap();
    // Skipped without the permission to create loop devices.
    let Some(drive) = LoopDevice::on(&below) else { return };
    setup.config.devices.push(DeviceConfig { path: drive.0.clone(), ..setup.device(1, 8) });
    let flash = setup.open();
    let on_each = wait(async {
        let group = flash.group(b"a", 1, false).await.unwrap();
        append(&group, 0..60, 50_000).await;
        group.seal().await.unwrap();
        let counters = flash.counters();
        counters.iter().map(|device| device.entries).collect::<Vec<_>>()
    });
    drop(flash);
    assert!(on_each.iter().all(|entries| *entries > 5), "{on_each:?}");
    fs::File::options().write(true).open(&below).unwrap().set_len(0).unwrap();
    let flash = setup.open();
    assert_eq!(wait(present(&flash, 0..60, 50_000)).len() as u64, on_each[0]);
    drop(flash);
    setup.config.devices.remove(0);
    let Err(error) = Flash::open(&setup.config) else { panic!("no device can open") };
    let text = error.to_string();
    assert!(matches!(error, FlashError::AllFailed(_)), "{text}");
    assert!(text.contains(drive.0.to_str().unwrap()), "{text}");
}

/// The capacity follows the configuration. Entries beyond it are lost.
#[test]
fn a_device_grows_and_shrinks_between_runs() {
    on_each_backend(|backend| {
        let mut setup = TestDevices::new(backend, &[6]);
        let mut next = 0;
        let mut sealed = BTreeSet::new();
        let mut known = 5;
        for size in [6, 17, 12, 6, 9, 64, 5, 6] {
            setup.config.devices = vec![setup.device(0, size)];
            let flash = setup.open();
            let length = fs::metadata(setup.path(0)).unwrap().len();
            assert_eq!(length, size << 20, "the file has the configured size");
            wait(async {
                let there = present(&flash, 0..next, 100_000).await;
                assert!(there.is_subset(&sealed), "no lost entry comes back");
                if size >= known {
                    assert_eq!(there, sealed, "growing loses nothing");
                }
                let name = format!("at {size}, {next}");
                let group = flash.group(name.as_bytes(), 1, false).await.unwrap();
                append(&group, next..next + 9, 100_000).await;
                group.seal().await.unwrap();
                next += 9;
                let counters = flash.counters();
                assert!(counters[0].entries <= (size - 1) * 10);
                sealed = present(&flash, 0..next, 100_000).await;
                assert!(sealed.is_superset(&range(next - 9..next)));
            });
            known = size;
        }
    });
}
