//! The engine on real files, with a ring and with threads: what was written is what is read, also after a
//! restart, with more or fewer devices, and on larger or smaller ones.

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
    Config, DeviceConfig, DeviceError, Flash, FlashError, Group, Proved, Refusal,
    io::{Backend, OpenError},
    shard::{Life, Settings},
};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{join_all, poll_immediate},
    stream::FuturesUnordered,
};
use tempfile::TempDir;

use crate::world::{content, key};

/// Drives one future to its end.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

/// Some devices in a directory of their own.
pub struct Place {
    directory: TempDir,
    pub config: Config,
}

impl Place {
    /// Devices of so many MiB, with regions of one.
    pub fn new(backend: Backend, sizes: &[u64]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::new(Vec::new());
        config.backend = backend;
        config.staging = ByteSize::mib(4);
        config.reading = ByteSize::mib(4);
        config.settings = Settings { piece_size: 64 << 10, scrub_rate: None, ..config.settings };
        let mut place = Self { directory, config };
        place.config.devices = (0..).zip(sizes).map(|(at, size)| place.device(at, *size)).collect();
        place
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

/// Runs a test once for each way of I/O that works here.
fn on_both(test: impl Fn(Backend)) {
    test(Backend::Threads);
    match Flash::open(&Place::new(Backend::Uring, &[5]).config) {
        Err(FlashError::Device(DeviceError::Open(OpenError::NoRing { .. }))) => {}
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

/// Which of these are there; what is there is right.
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

/// Whole, in ranges and in batches.
async fn read_everything(flash: &Flash, dense: &Group) {
    let mut wanted = vec![(key(1 << 40), None)];
    let mut expected = vec![None];
    for (number, length) in (0..).zip(LENGTHS) {
        let bytes = content(number, length);
        let same = |found: Option<Proved>| {
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
    assert!(read.eq(expected), "a batch, in its order");
    assert!(dense.read_ordinal(1000, None).await.unwrap().is_none(), "a miss is not an error");
    assert!(!flash.contains(&key(1 << 40)) && flash.contains(&key(0)));
}

#[test]
fn what_was_written_is_read_whole_in_ranges_and_in_batches() {
    on_both(|backend| {
        let place = Place::new(backend, &[8, 8]);
        let flash = place.open();
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
            assert_eq!(late, Err(Refusal::Closed));
            read_everything(&flash, &dense).await;
            flash.flush().await.unwrap();
            read_everything(&flash, &dense).await;
        });
        drop(flash);
        let flash = place.open();
        let found = flash.found();
        assert_eq!(found.iter().map(|found| found.entries).sum::<u64>(), 18);
        assert!(found.iter().all(|found| found.scanned == 0 && found.sealed >= 2), "{found:?}");
        wait(async {
            let dense = flash.group(b"by number", 1, true).await.unwrap();
            read_everything(&flash, &dense).await;
            assert_eq!(dense.entries().await.unwrap().len(), LENGTHS.len());
            let groups = flash.groups().await.unwrap();
            assert_eq!(groups.len(), 4, "two on each device");
            for group in groups {
                let life = if group.dense { Life::Sealed } else { Life::Filling };
                assert_eq!(group.life, life, "{group:?}");
            }
        });
    });
}

/// Long entries lie differently in their blocks, each a little further on than the one before.
#[test]
fn long_entries_are_read_wherever_they_lie() {
    on_both(|backend| {
        let mut place = Place::new(backend, &[80]);
        place.config.devices[0].region_size = Some(ByteSize::mib(16));
        let flash = place.open();
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

/// Promise 7: what was sealed is there after a restart. What was not may be; if it is, it is right.
#[test]
fn a_restart_without_a_flush_keeps_what_was_sealed() {
    on_both(|backend| {
        let place = Place::new(backend, &[16]);
        let flash = place.open();
        wait(async {
            let sealed = flash.group(b"sealed", 1, false).await.unwrap();
            append(&sealed, 0..30, 100_000).await;
            sealed.seal().await.unwrap();
            let open = flash.group(b"open", 1, false).await.unwrap();
            append(&open, 100..130, 100_000).await;
        });
        drop(flash);
        let flash = place.open();
        let found = flash.found()[0];
        assert!(found.scanned <= 4 && found.entries >= 30, "{found:?}");
        wait(async {
            assert_eq!(present(&flash, 0..30, 100_000).await, range(0..30));
            let kept = present(&flash, 100..130, 100_000).await;
            assert_eq!(kept.len() as u64, found.entries - 30);
            let open = flash.group(b"open", 1, false).await.unwrap();
            append(&open, 100..130, 100_000).await;
            assert_eq!(present(&flash, 100..130, 100_000).await, range(100..130), "it goes on");
        });
    });
}

/// Requests can be dropped at any time without harm: each memory that they had comes back, or soon nobody
/// could read or write any more. Here they take twenty times as much as there is.
#[test]
fn requests_dropped_at_any_time_do_no_harm() {
    on_both(|backend| {
        let place = Place::new(backend, &[16, 16]);
        let flash = place.open();
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
                                reads.next().await.expect("eight").unwrap();
                            }
                        }
                    }
                }
            }
            let all: Vec<_> = (0..60).map(|number| (key(number), None)).collect();
            for some in all.chunks(20) {
                let read = flash.read_batch(some).await;
                assert!(read.iter().all(|one| matches!(one, Ok(Some(_)))), "all memory is back");
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

/// Promise 6: whoever holds on to what it read has the memory; others wait for it, and go on with it.
#[test]
fn readers_wait_for_memory_that_others_hold() {
    on_both(|backend| {
        let mut place = Place::new(backend, &[16]);
        place.config.settings.read_deadline = Duration::from_millis(100);
        let flash = place.open();
        wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..20, 500_000).await;
            flash.flush().await.unwrap();
            let mut held = Vec::new();
            let refusal = loop {
                match flash.read(key(held.len() as u64), None).await {
                    Ok(found) => held.push(found.unwrap()),
                    Err(refusal) => break refusal,
                }
            };
            assert_eq!(refusal, Refusal::TimedOut);
            assert!((7..=8).contains(&held.len()), "{} of 500 kB in 4 MiB", held.len());
            append(&group, 20..22, 500_000).await;
            for (number, held) in (0..).zip(&held) {
                assert_eq!(&*held.bytes, &content(number, 500_000)[..], "nobody else's yet");
            }
            let mut next = Box::pin(flash.read(key(19), None));
            assert!(poll_immediate(&mut next).await.is_none());
            held.pop();
            assert!(next.await.unwrap().is_some(), "it was told");
        });
    });
}

/// A read that begins after a long pause has as much time as any other.
#[test]
fn a_pause_is_not_counted_against_the_next_read() {
    on_both(|backend| {
        let mut place = Place::new(backend, &[6]);
        place.config.settings.read_deadline = Duration::from_millis(400);
        let flash = place.open();
        wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..9, 100_000).await;
            flash.flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert!(flash.read(key(1), None).await.unwrap().is_some());
        });
    });
}

/// Many tasks at once, in a process with threads.
#[test]
fn many_read_and_write_at_once() {
    on_both(|backend| {
        let place = Place::new(backend, &[16, 16]);
        let flash = place.open();
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
        assert!(counters.iter().all(|device| device.entries > 40), "both have their share");
    });
}

/// A lost device costs its own entries, and no more; and what is put on a new one is found as well.
#[test]
fn a_lost_device_costs_only_what_was_on_it() {
    on_both(|backend| {
        let mut place = Place::new(backend, &[8, 8, 8]);
        let flash = place.open();
        let on_each = wait(async {
            let group = flash.group(b"a", 1, false).await.unwrap();
            append(&group, 0..60, 50_000).await;
            group.seal().await.unwrap();
            let counters = flash.counters();
            counters.iter().map(|device| device.entries).collect::<Vec<_>>()
        });
        drop(flash);
        assert!(on_each.iter().all(|entries| *entries > 5), "{on_each:?}");
        // Replaced by a new one, as it were: the file is gone.
        fs::remove_file(place.path(1)).unwrap();
        let flash = place.open();
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
        // In another order, and with another number of them.
        place.config.devices = vec![place.device(2, 8), place.device(0, 8), place.device(1, 8)];
        let flash = place.open();
        assert_eq!(wait(present(&flash, 0..60, 50_000)), range(0..60));
        drop(flash);
        place.config.devices.push(place.device(3, 8));
        let flash = place.open();
        assert_eq!(wait(present(&flash, 0..60, 50_000)), range(0..60));
        wait(async {
            let group = flash.group(b"c", 1, false).await.unwrap();
            append(&group, 100..160, 50_000).await;
            group.seal().await.unwrap();
        });
        drop(flash);
        place.config.devices = vec![place.device(3, 8)];
        let flash = place.open();
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

/// Promise 5: a drive that fails does not keep the others from being used.
#[test]
fn a_drive_that_cannot_be_read_is_left_out() {
    let mut place = Place::new(Backend::Threads, &[8]);
    let below = place.path(9);
    fs::File::create(&below).unwrap().set_len(8 << 20).unwrap();
    // Without the right to make one there is nothing to be seen here.
    let Some(drive) = LoopDevice::on(&below) else { return };
    place.config.devices.push(DeviceConfig { path: drive.0.clone(), ..place.device(1, 8) });
    let flash = place.open();
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
    let flash = place.open();
    assert_eq!(wait(present(&flash, 0..60, 50_000)).len() as u64, on_each[0]);
    drop(flash);
    place.config.devices.remove(0);
    let Err(error) = Flash::open(&place.config) else { panic!("there is no other") };
    let text = error.to_string();
    assert!(matches!(error, FlashError::AllFailed(_)), "{text}");
    assert!(text.contains(drive.0.to_str().unwrap()), "{text}");
}

/// The capacity is what the configuration says, whatever it was before. What lies beyond it goes.
#[test]
fn a_device_grows_and_shrinks_between_runs() {
    on_both(|backend| {
        let mut place = Place::new(backend, &[6]);
        let mut next = 0;
        let mut sealed = BTreeSet::new();
        let mut known = 5;
        for size in [6, 17, 12, 6, 9, 64, 5, 6] {
            place.config.devices = vec![place.device(0, size)];
            let flash = place.open();
            let length = fs::metadata(place.path(0)).unwrap().len();
            assert_eq!(length, size << 20, "not a byte more than asked for");
            wait(async {
                let there = present(&flash, 0..next, 100_000).await;
                assert!(there.is_subset(&sealed), "nothing comes back");
                if size >= known {
                    assert_eq!(there, sealed, "nothing is lost in growing");
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
