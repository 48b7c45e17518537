//! Contract of [`Disk`], tested on each real backend.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::io::{Backend, Completion, DeviceFile, Disk, IoCommand, IoFault, IoId, open_disk};
use crate::{
    buffers::{Buffer, BufferPool},
    format::BLOCK_SIZE,
};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Longer than any machine needs; a longer wait counts as a hang.
const HANG: Duration = Duration::from_mins(2);

/// A device file and memory for it.
struct TestDevice {
    pool: Arc<BufferPool>,
    file: Arc<DeviceFile>,
    _directory: TempDir,
}

impl TestDevice {
    fn new(blocks: u64, memory_blocks: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = DeviceFile::open(&directory.path().join("device"), blocks * BLOCK).unwrap();
        let pool = BufferPool::new(memory_blocks * BLOCK_SIZE).unwrap();
        Self { pool, file: Arc::new(file), _directory: directory }
    }

    fn disk(&self, backend: Backend) -> Box<dyn Disk> {
        open_disk(&self.file, backend, &[Arc::clone(&self.pool)]).unwrap()
    }

    fn buffer(&self, blocks: usize, label: u64) -> Buffer {
        let mut buffer = self.pool.take(blocks * BLOCK_SIZE).expect("the pool is large enough");
        fill(&mut buffer, label);
        buffer
    }
}

/// A word that depends on the label and the position.
fn word(label: u64, at: usize) -> [u8; 8] {
    (label.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at as u64).to_le_bytes()
}

fn fill(bytes: &mut [u8], label: u64) {
    let (words, _) = bytes.as_chunks_mut::<8>();
    for (at, into) in words.iter_mut().enumerate() {
        *into = word(label, at);
    }
}

fn holds(bytes: &[u8], label: u64) -> bool {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().enumerate().all(|(at, found)| *found == word(label, at))
}

fn read(id: u64, offset: u64, buffer: Buffer) -> IoCommand {
    let length = buffer.len();
    IoCommand::Read { id: IoId(id), offset, buffer, length }
}

fn write(id: u64, offset: u64, buffer: Buffer) -> IoCommand {
    IoCommand::Write { id: IoId(id), offset, bytes: buffer.freeze() }
}

/// Waits for at most [`HANG`].
fn wait(disk: &mut dyn Disk, done: &mut Vec<Completion>) {
    let began = Instant::now();
    disk.wait(Some(HANG), done);
    assert!(began.elapsed() < HANG, "nothing happened for {HANG:?}");
}

/// Runs these commands and returns their completions.
fn run(disk: &mut dyn Disk, mut commands: Vec<IoCommand>) -> HashMap<IoId, Completion> {
    let count = commands.len();
    disk.submit(&mut commands);
    assert!(commands.is_empty(), "all commands were taken");
    let mut finished = HashMap::new();
    let mut done = Vec::new();
    while finished.len() < count {
        wait(disk, &mut done);
        for completion in done.drain(..) {
            let again = finished.insert(completion.id, completion);
            assert!(again.is_none(), "each completes once");
        }
    }
    finished
}

pub(crate) fn run_one(disk: &mut dyn Disk, command: IoCommand) -> Completion {
    run(disk, vec![command]).into_values().next().unwrap()
}

/// A thousand random reads, writes, syncs and discards, at most one per block at a time.
fn a_thousand_random_commands_take_effect(backend: Backend) {
    const BLOCKS: u64 = 700;
    let test = TestDevice::new(BLOCKS, 1000);
    let mut disk = test.disk(backend);
    let mut random = fastrand::Rng::with_seed(4);
    let mut content: HashMap<u64, u64> = HashMap::new();
    let mut busy: HashMap<IoId, (u64, Kind)> = HashMap::new();
    let mut seen = HashSet::new();
    let mut done = Vec::new();
    let mut busy_max = 0;
    for id in 0..1000 {
        let free = |at: &u64| busy.values().all(|(other, _)| other != at);
        let at = std::iter::repeat_with(|| random.u64(..BLOCKS)).find(free).unwrap();
        let (what, command) = match fastrand::Rng::with_seed(id).u8(..10) {
            0 => (Kind::Sync, IoCommand::Sync { id: IoId(id) }),
            1 => {
                content.remove(&at);
                let (offset, length) = (at * BLOCK, BLOCK);
                (Kind::Discard, IoCommand::Discard { id: IoId(id), offset, length })
            }
            2..6 => {
                content.insert(at, id);
                (Kind::Write, write(id, at * BLOCK, test.buffer(1, id)))
            }
            _ => (Kind::Read, read(id, at * BLOCK, test.buffer(1, u64::MAX))),
        };
        busy.insert(IoId(id), (at, what));
        busy_max = busy_max.max(busy.len());
        disk.submit(&mut vec![command]);
        // Long stretches without a wait, so that many commands run at once.
        if id % 400 == 399 {
            while !busy.is_empty() {
                wait(disk.as_mut(), &mut done);
                for completion in done.drain(..) {
                    assert!(seen.insert(completion.id), "each completes once");
                    let (at, what) = busy.remove(&completion.id).expect("a pending command");
                    assert_eq!(completion.result, Ok(()), "{what:?} at {at}");
                    assert_eq!(completion.buffer.is_some(), what == Kind::Read);
                    if let (Some(buffer), Some(label)) = (completion.buffer, content.get(&at)) {
                        assert!(holds(&buffer, *label), "block {at} holds {label}");
                    }
                }
            }
        }
    }
    assert!(busy_max > 300, "more than the queue holds");
    disk.wait(Some(Duration::ZERO), &mut done);
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Sync,
    Discard,
}

fn more_commands_than_the_queue_holds(backend: Backend) {
    let test = TestDevice::new(2000, 2000);
    let mut disk = test.disk(backend);
    let writes = (0..2000).map(|id| write(id, id * BLOCK, test.buffer(1, id))).collect();
    assert!(run(disk.as_mut(), writes).values().all(|one| one.result.is_ok()));
    let reads = (0..2000).map(|id| read(id, id * BLOCK, test.buffer(1, u64::MAX))).collect();
    for (id, completion) in run(disk.as_mut(), reads) {
        assert_eq!(completion.result, Ok(()));
        assert!(holds(&completion.buffer.unwrap(), id.0), "block {id:?}");
    }
}

/// One backend reads what another has written, whole and in part.
fn another_backend_reads_the_same(backend: Backend) {
    let test = TestDevice::new(64, 128);
    let whole = test.buffer(64, 1);
    let completion = run_one(test.disk(backend).as_mut(), write(1, 0, whole));
    assert_eq!((completion.result, completion.buffer.is_none()), (Ok(()), true));
    let other = if backend == Backend::Threads { Backend::Auto } else { Backend::Threads };
    let completion = run_one(test.disk(other).as_mut(), read(2, 0, test.buffer(64, 2)));
    assert!(holds(&completion.buffer.unwrap(), 1));
    let part = run_one(test.disk(backend).as_mut(), read(3, 5 * BLOCK, test.buffer(2, 3)));
    let (words, _) = part.buffer.as_ref().unwrap().as_chunks::<8>();
    assert_eq!(words[0], word(1, 5 * BLOCK_SIZE / 8));
}

/// Each of 10,000 messages is seen before the next is sent, so one lost wake-up hangs the test.
fn no_wake_up_is_lost(backend: Backend) {
    const MESSAGES: u32 = 10_000;
    let test = TestDevice::new(4, 4);
    let mut disk = test.disk(backend);
    let waker = disk.waker();
    let (sent, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (sender_sent, sender_seen) = (Arc::clone(&sent), Arc::clone(&seen));
    let sender = std::thread::spawn(move || {
        for message in 1..=MESSAGES {
            sender_sent.store(message, SeqCst);
            waker();
            while sender_seen.load(SeqCst) < message {
                std::thread::yield_now();
            }
        }
    });
    let mut done = Vec::new();
    while seen.load(SeqCst) < MESSAGES {
        wait(disk.as_mut(), &mut done);
        seen.store(sent.load(SeqCst), SeqCst);
    }
    assert!(done.is_empty());
    sender.join().unwrap();
}

fn a_wake_before_the_wait_ends_it(backend: Backend) {
    let test = TestDevice::new(4, 4);
    let mut disk = test.disk(backend);
    let mut done = Vec::new();
    for _ in 0..3 {
        disk.waker()();
        disk.waker()();
        wait(disk.as_mut(), &mut done);
    }
    assert!(done.is_empty());
}

/// A wait sleeps until its timeout, and returns then.
fn a_wait_ends_at_its_timeout(backend: Backend) {
    let test = TestDevice::new(4, 4);
    let mut disk = test.disk(backend);
    let mut done = Vec::new();
    disk.wait(Some(Duration::ZERO), &mut done);
    let began = Instant::now();
    let mut waits = 0;
    while began.elapsed() < Duration::from_millis(50) {
        disk.wait(Some(Duration::from_millis(20)), &mut done);
        waits += 1;
    }
    assert!(waits <= 10, "{waits} waits of 20 ms within 50 ms");
    assert!(done.is_empty());
}

/// A wake-up while commands run, and completions outside a wait, do not hide each other.
fn completions_and_wakes_do_not_hide_each_other(backend: Backend) {
    let test = TestDevice::new(64, 64);
    let mut disk = test.disk(backend);
    let waker = disk.waker();
    for round in 0..200 {
        let mut commands = vec![read(round, 0, test.buffer(16, 0))];
        disk.submit(&mut commands);
        waker();
        let mut done = Vec::new();
        while done.is_empty() {
            disk.wait(None, &mut done);
        }
        assert_eq!((done.len(), done[0].id), (1, IoId(round)));
    }
}

/// No memory is reused while a command may still write to it, and none is lost.
fn a_disk_dropped_while_commands_run_releases_all_memory(backend: Backend) {
    let test = TestDevice::new(512, 512);
    for begin in [false, true] {
        let mut disk = test.disk(backend);
        let mut commands: Vec<IoCommand> = (0..400)
            .map(|id| match id % 2 {
                0 => read(id, id * BLOCK, test.buffer(1, 0)),
                _ => write(id, id * BLOCK, test.buffer(1, id)),
            })
            .collect();
        disk.submit(&mut commands);
        if begin {
            disk.wait(Some(Duration::ZERO), &mut Vec::new());
        }
        drop(disk);
        assert!(test.pool.take(512 * BLOCK_SIZE).is_some(), "all memory is released");
    }
    assert_eq!(Arc::strong_count(&test.file), 1, "the disk keeps no reference to the file");
}

fn a_read_beyond_the_end_is_short(backend: Backend) {
    let test = TestDevice::new(10, 16);
    let mut disk = test.disk(backend);
    for offset in [8 * BLOCK, 10 * BLOCK, 20 * BLOCK] {
        let completion = run_one(disk.as_mut(), read(1, offset, test.buffer(4, 7)));
        assert_eq!(completion.result, Err(IoFault::Short), "at {offset}");
        assert!(completion.buffer.is_some(), "a read that failed gives its buffer back");
    }
}

/// A limit on locked memory may prevent registration.
fn memory_need_not_be_registered(backend: Backend) {
    let test = TestDevice::new(16, 16);
    let mut disk = open_disk(&test.file, backend, &[]).unwrap();
    assert_eq!(run_one(disk.as_mut(), write(1, 0, test.buffer(8, 1))).result, Ok(()));
    let completion = run_one(disk.as_mut(), read(2, 0, test.buffer(8, 2)));
    assert!(holds(&completion.buffer.unwrap(), 1));
}

/// Discarded space stays reserved, so a later write cannot fail for lack of space.
fn discarded_space_stays_reserved(backend: Backend) {
    use std::os::unix::fs::MetadataExt;
    let test = TestDevice::new(512, 512);
    let mut disk = test.disk(backend);
    assert_eq!(run_one(disk.as_mut(), write(1, 0, test.buffer(512, 1))).result, Ok(()));
    let reserved = || std::fs::metadata(test.file.path()).unwrap().blocks();
    let before = reserved();
    let (offset, length) = (128 * BLOCK, 256 * BLOCK);
    let discard = IoCommand::Discard { id: IoId(2), offset, length };
    assert_eq!(run_one(disk.as_mut(), discard).result, Ok(()));
    assert!(reserved() >= before, "{} of {before} are still reserved", reserved());
    let completion = run_one(disk.as_mut(), read(3, 0, test.buffer(128, 2)));
    assert!(holds(&completion.buffer.unwrap(), 1), "blocks before it are unchanged");
}

/// Runs in a child process with a 1 MiB file system of its own.
fn a_full_file_system_is_no_space(backend: Backend, test: &str) {
    const DIRECTORY: &str = "FOREBAY_TEST_FULL_FILE_SYSTEM";
    if let Ok(directory) = std::env::var(DIRECTORY) {
        return fill_file_system(backend, Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m none "$0" && exec "$@""#;
    let child = process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("io::tests::contract::{test}"), "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output();
    let (output, success) = match child {
        Ok(child) => {
            let printed = [child.stdout, child.stderr].concat();
            (String::from_utf8_lossy(&printed).into_owned(), child.status.success())
        }
        Err(error) => (error.to_string(), false),
    };
    if output.contains(MOUNTED) {
        assert!(success, "{output}");
    } else {
        note(&format!("skipped: no file system can be mounted: {output}"));
    }
}

/// Printed by a child that has mounted a file system with direct I/O.
const MOUNTED: &str = "a file system of 1 MiB is mounted";

fn fill_file_system(backend: Backend, directory: &Path) {
    let Ok(file) = DeviceFile::open(&directory.join("device"), 16 * BLOCK) else { return };
    note(MOUNTED);
    let pool = BufferPool::new(64 * BLOCK_SIZE).unwrap();
    let mut disk = open_disk(&Arc::new(file), backend, &[Arc::clone(&pool)]).unwrap();
    let mut write_at = |at: u64| {
        let buffer = pool.take(16 * BLOCK_SIZE).unwrap();
        run_one(disk.as_mut(), write(at, at * BLOCK, buffer)).result
    };
    assert_eq!(write_at(0), Ok(()), "reserved");
    let results: Vec<_> = (1..40).map(|at| write_at(16 * at)).collect();
    assert_eq!(results.last(), Some(&Err(IoFault::NoSpace)));
    assert!(results.iter().all(|one| matches!(one, Ok(()) | Err(IoFault::NoSpace))), "{results:?}");
}

#[expect(clippy::print_stdout, reason = "shows which tests were skipped")]
pub(crate) fn note(text: &str) {
    println!("{text}");
}

fn uring_works_here() -> bool {
    let test = TestDevice::new(4, 4);
    let works = crate::io::Uring::probe(&test.file);
    works.inspect_err(|error| note(&format!("skipped: io_uring does not work: {error}"))).is_ok()
}

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod uring {
            $(#[test]
            fn $test() {
                if super::uring_works_here() {
                    super::$test(crate::io::Backend::Uring);
                }
            })*

            #[test]
            fn a_full_file_system_is_no_space() {
                if super::uring_works_here() {
                    let this = "uring::a_full_file_system_is_no_space";
                    super::a_full_file_system_is_no_space(crate::io::Backend::Uring, this);
                }
            }
        }
        mod threads {
            $(#[test]
            fn $test() {
                super::$test(crate::io::Backend::Threads);
            })*

            #[test]
            fn a_full_file_system_is_no_space() {
                let this = "threads::a_full_file_system_is_no_space";
                super::a_full_file_system_is_no_space(crate::io::Backend::Threads, this);
            }
        }
    };
}

contract!(
    a_thousand_random_commands_take_effect,
    more_commands_than_the_queue_holds,
    another_backend_reads_the_same,
    no_wake_up_is_lost,
    a_wake_before_the_wait_ends_it,
    a_wait_ends_at_its_timeout,
    completions_and_wakes_do_not_hide_each_other,
    a_disk_dropped_while_commands_run_releases_all_memory,
    memory_need_not_be_registered,
    a_read_beyond_the_end_is_short,
    discarded_space_stays_reserved,
);

/// Trap: "`io_uring` forbidden by seccomp". `Auto` uses threads; `Uring` is an error.
#[test]
fn threads_take_over_where_io_uring_is_forbidden() {
    let thread = std::thread::spawn(|| {
        forbid_io_uring();
        let test = TestDevice::new(16, 16);
        let error = open_disk(&test.file, Backend::Uring, &[]).err().unwrap();
        assert!(error.to_string().contains("io_uring is not available"), "{error}");
        let mut disk = test.disk(Backend::Auto);
        assert_eq!(run_one(disk.as_mut(), write(1, 0, test.buffer(8, 1))).result, Ok(()));
        let completion = run_one(disk.as_mut(), read(2, 0, test.buffer(8, 2)));
        assert!(holds(&completion.buffer.unwrap(), 1));
    });
    thread.join().unwrap();
}

/// Forbids `io_uring` to this thread and its children, as containers do by default.
#[expect(unsafe_code, reason = "seccomp has no safe interface")]
fn forbid_io_uring() {
    let instruction = |code: u32, k: u32, jt: u8, jf: u8| {
        let code = u16::try_from(code).unwrap();
        libc::sock_filter { code, jt, jf, k }
    };
    let number = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let deny = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap();
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, deny, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: both calls only read their arguments, which live until the calls return, and change
    // nothing but the system calls that this thread may make.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(result, 0, "the filter is installed");
}
