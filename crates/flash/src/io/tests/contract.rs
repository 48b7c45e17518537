//! What every real [`Disk`] promises, tried on each of them.

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

use super::{Backend, Command, Completion, DeviceFile, Disk, Fault, IoId, open_disk};
use crate::{
    arena::{Arena, Buffer},
    layout::BLOCK_SIZE,
};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Longer than any machine needs; whoever waits so long waits for ever.
const FOR_EVER: Duration = Duration::from_mins(2);

/// A disk on a file of so many blocks, and memory for it.
struct Bed {
    arena: Arc<Arena>,
    file: Arc<DeviceFile>,
    _directory: TempDir,
}

impl Bed {
    fn new(blocks: u64, memory_blocks: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = DeviceFile::open(&directory.path().join("device"), blocks * BLOCK).unwrap();
        let arena = Arena::new(memory_blocks * BLOCK_SIZE).unwrap();
        Self { arena, file: Arc::new(file), _directory: directory }
    }

    fn disk(&self, backend: Backend) -> Box<dyn Disk> {
        open_disk(&self.file, backend, &[Arc::clone(&self.arena)]).unwrap()
    }

    fn buffer(&self, blocks: usize, label: u64) -> Buffer {
        let mut buffer = self.arena.take(blocks * BLOCK_SIZE).expect("enough memory");
        fill(&mut buffer, label);
        buffer
    }
}

/// Bytes that differ from word to word, and from label to label.
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

fn read(id: u64, offset: u64, buffer: Buffer) -> Command {
    let length = buffer.len();
    Command::Read { id: IoId(id), offset, buffer, length }
}

fn write(id: u64, offset: u64, buffer: Buffer) -> Command {
    Command::Write { id: IoId(id), offset, bytes: buffer.freeze() }
}

/// Waits, but not for ever.
fn wait(disk: &mut dyn Disk, done: &mut Vec<Completion>) {
    let began = Instant::now();
    disk.wait(Some(FOR_EVER), done);
    assert!(began.elapsed() < FOR_EVER, "nothing happened for {FOR_EVER:?}");
}

/// Carries these out, and returns what came of each.
fn run(disk: &mut dyn Disk, mut commands: Vec<Command>) -> HashMap<IoId, Completion> {
    let count = commands.len();
    disk.submit(&mut commands);
    assert!(commands.is_empty(), "all were taken over");
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

pub(super) fn run_one(disk: &mut dyn Disk, command: Command) -> Completion {
    run(disk, vec![command]).into_values().next().unwrap()
}

/// A thousand reads, writes, syncs and discards at random, never two at a time for one block.
fn a_thousand_commands_do_what_they_say(backend: Backend) {
    const BLOCKS: u64 = 700;
    let bed = Bed::new(BLOCKS, 1000);
    let mut disk = bed.disk(backend);
    let mut random = fastrand::Rng::with_seed(4);
    let mut content: HashMap<u64, u64> = HashMap::new();
    let mut busy: HashMap<IoId, (u64, Kind)> = HashMap::new();
    let mut seen = HashSet::new();
    let mut done = Vec::new();
    let mut most = 0;
    for id in 0..1000 {
        let free = |at: &u64| busy.values().all(|(other, _)| other != at);
        let at = std::iter::repeat_with(|| random.u64(..BLOCKS)).find(free).unwrap();
        let (what, command) = match fastrand::Rng::with_seed(id).u8(..10) {
            0 => (Kind::Sync, Command::Sync { id: IoId(id) }),
            1 => {
                content.remove(&at);
                let (offset, length) = (at * BLOCK, BLOCK);
                (Kind::Discard, Command::Discard { id: IoId(id), offset, length })
            }
            2..6 => {
                content.insert(at, id);
                (Kind::Write, write(id, at * BLOCK, bed.buffer(1, id)))
            }
            _ => (Kind::Read, read(id, at * BLOCK, bed.buffer(1, u64::MAX))),
        };
        busy.insert(IoId(id), (at, what));
        most = most.max(busy.len());
        disk.submit(&mut vec![command]);
        // Long stretches in which nobody looks, so that many run at once.
        if id % 400 == 399 {
            while !busy.is_empty() {
                wait(disk.as_mut(), &mut done);
                for completion in done.drain(..) {
                    assert!(seen.insert(completion.id), "each completes once");
                    let (at, what) = busy.remove(&completion.id).expect("one of ours");
                    assert_eq!(completion.result, Ok(()), "{what:?} at {at}");
                    assert_eq!(completion.buffer.is_some(), what == Kind::Read);
                    if let (Some(buffer), Some(label)) = (completion.buffer, content.get(&at)) {
                        assert!(holds(&buffer, *label), "block {at} holds {label}");
                    }
                }
            }
        }
    }
    assert!(most > 300, "more than a ring holds");
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
    let bed = Bed::new(2000, 2000);
    let mut disk = bed.disk(backend);
    let writes = (0..2000).map(|id| write(id, id * BLOCK, bed.buffer(1, id))).collect();
    assert!(run(disk.as_mut(), writes).values().all(|one| one.result.is_ok()));
    let reads = (0..2000).map(|id| read(id, id * BLOCK, bed.buffer(1, u64::MAX))).collect();
    for (id, completion) in run(disk.as_mut(), reads) {
        assert_eq!(completion.result, Ok(()));
        assert!(holds(&completion.buffer.unwrap(), id.0), "block {id:?}");
    }
}

/// What is written by one back end is read by the other, whole and in parts.
fn another_back_end_reads_the_same(backend: Backend) {
    let bed = Bed::new(64, 128);
    let whole = bed.buffer(64, 1);
    let completion = run_one(bed.disk(backend).as_mut(), write(1, 0, whole));
    assert_eq!((completion.result, completion.buffer.is_none()), (Ok(()), true));
    let other = if backend == Backend::Threads { Backend::Auto } else { Backend::Threads };
    let completion = run_one(bed.disk(other).as_mut(), read(2, 0, bed.buffer(64, 2)));
    assert!(holds(&completion.buffer.unwrap(), 1));
    let part = run_one(bed.disk(backend).as_mut(), read(3, 5 * BLOCK, bed.buffer(2, 3)));
    let (words, _) = part.buffer.as_ref().unwrap().as_chunks::<8>();
    assert_eq!(words[0], word(1, 5 * BLOCK_SIZE / 8));
}

/// Ten thousand messages, each of which is seen before the next is sent: one lost wake-up ends the test.
fn no_wake_up_is_lost(backend: Backend) {
    const MESSAGES: u32 = 10_000;
    let bed = Bed::new(4, 4);
    let mut disk = bed.disk(backend);
    let waker = disk.waker();
    let (sent, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (their_sent, their_seen) = (Arc::clone(&sent), Arc::clone(&seen));
    let sender = std::thread::spawn(move || {
        for message in 1..=MESSAGES {
            their_sent.store(message, SeqCst);
            waker();
            while their_seen.load(SeqCst) < message {
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
    let bed = Bed::new(4, 4);
    let mut disk = bed.disk(backend);
    let mut done = Vec::new();
    for _ in 0..3 {
        disk.waker()();
        disk.waker()();
        wait(disk.as_mut(), &mut done);
    }
    assert!(done.is_empty());
}

/// It comes back when the time is over, and sleeps until then.
fn a_wait_ends_when_its_time_is_over(backend: Backend) {
    let bed = Bed::new(4, 4);
    let mut disk = bed.disk(backend);
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

/// A wake-up while commands run, and completions while nobody waits, take nothing from each other.
fn completions_and_wakes_do_not_hide_each_other(backend: Backend) {
    let bed = Bed::new(64, 64);
    let mut disk = bed.disk(backend);
    let waker = disk.waker();
    for round in 0..200 {
        let mut commands = vec![read(round, 0, bed.buffer(16, 0))];
        disk.submit(&mut commands);
        waker();
        let mut done = Vec::new();
        while done.is_empty() {
            disk.wait(None, &mut done);
        }
        assert_eq!((done.len(), done[0].id), (1, IoId(round)));
    }
}

/// No memory is given out again while a command may still use it, and none is lost.
fn a_disk_dropped_while_commands_run_gives_all_memory_back(backend: Backend) {
    let bed = Bed::new(512, 512);
    for begin in [false, true] {
        let mut disk = bed.disk(backend);
        let mut commands: Vec<Command> = (0..400)
            .map(|id| match id % 2 {
                0 => read(id, id * BLOCK, bed.buffer(1, 0)),
                _ => write(id, id * BLOCK, bed.buffer(1, id)),
            })
            .collect();
        disk.submit(&mut commands);
        if begin {
            disk.wait(Some(Duration::ZERO), &mut Vec::new());
        }
        drop(disk);
        assert!(bed.arena.take(512 * BLOCK_SIZE).is_some(), "all is back");
    }
    assert_eq!(Arc::strong_count(&bed.file), 1, "nobody holds the device any more");
}

fn beyond_the_end_is_short(backend: Backend) {
    let bed = Bed::new(10, 16);
    let mut disk = bed.disk(backend);
    for offset in [8 * BLOCK, 10 * BLOCK, 20 * BLOCK] {
        let completion = run_one(disk.as_mut(), read(1, offset, bed.buffer(4, 7)));
        assert_eq!(completion.result, Err(Fault::Short), "at {offset}");
        assert!(completion.buffer.is_some(), "a read that failed gives its buffer back");
    }
}

/// A limit on locked memory may forbid to register it.
fn memory_need_not_be_registered(backend: Backend) {
    let bed = Bed::new(16, 16);
    let mut disk = open_disk(&bed.file, backend, &[]).unwrap();
    assert_eq!(run_one(disk.as_mut(), write(1, 0, bed.buffer(8, 1))).result, Ok(()));
    let completion = run_one(disk.as_mut(), read(2, 0, bed.buffer(8, 2)));
    assert!(holds(&completion.buffer.unwrap(), 1));
}

/// Discarded space stays reserved: a later write cannot fail for want of it.
fn discarded_space_stays_reserved(backend: Backend) {
    use std::os::unix::fs::MetadataExt;
    let bed = Bed::new(512, 512);
    let mut disk = bed.disk(backend);
    assert_eq!(run_one(disk.as_mut(), write(1, 0, bed.buffer(512, 1))).result, Ok(()));
    let held = || std::fs::metadata(bed.file.path()).unwrap().blocks();
    let before = held();
    let (offset, length) = (128 * BLOCK, 256 * BLOCK);
    let discard = Command::Discard { id: IoId(2), offset, length };
    assert_eq!(run_one(disk.as_mut(), discard).result, Ok(()));
    assert!(held() >= before, "{} of {before} are still reserved", held());
    let completion = run_one(disk.as_mut(), read(3, 0, bed.buffer(128, 2)));
    assert!(holds(&completion.buffer.unwrap(), 1), "what lies before is as it was");
}

/// In a child process with a file system of its own, of one MiB.
fn a_full_file_system_is_told_apart(backend: Backend, test: &str) {
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
        .args(["--exact", &format!("io::contract::{test}"), "--nocapture"])
        .env(DIRECTORY, directory.path())
        .output();
    let (output, success) = match child {
        Ok(child) => {
            let printed = [child.stdout, child.stderr].concat();
            (String::from_utf8_lossy(&printed).into_owned(), child.status.success())
        }
        Err(error) => (error.to_string(), false),
    };
    if output.contains(FILE_SYSTEM_THERE) {
        assert!(success, "{output}");
    } else {
        say(&format!("a full file system is not tried, as none can be mounted: {output}"));
    }
}

/// Said by the child that has a file system, and one with direct I/O.
const FILE_SYSTEM_THERE: &str = "there is a file system of one MiB";

fn fill_file_system(backend: Backend, directory: &Path) {
    let Ok(file) = DeviceFile::open(&directory.join("device"), 16 * BLOCK) else { return };
    say(FILE_SYSTEM_THERE);
    let arena = Arena::new(64 * BLOCK_SIZE).unwrap();
    let mut disk = open_disk(&Arc::new(file), backend, &[Arc::clone(&arena)]).unwrap();
    let mut write_at = |at: u64| {
        let buffer = arena.take(16 * BLOCK_SIZE).unwrap();
        run_one(disk.as_mut(), write(at, at * BLOCK, buffer)).result
    };
    assert_eq!(write_at(0), Ok(()), "reserved");
    let results: Vec<_> = (1..40).map(|at| write_at(16 * at)).collect();
    assert_eq!(results.last(), Some(&Err(Fault::NoSpace)));
    assert!(results.iter().all(|one| matches!(one, Ok(()) | Err(Fault::NoSpace))), "{results:?}");
}

#[expect(clippy::print_stdout, reason = "whoever runs the tests should know what was not tried")]
pub(super) fn say(what: &str) {
    println!("{what}");
}

fn uring_works_here() -> bool {
    let bed = Bed::new(4, 4);
    let works = super::Uring::probe(&bed.file);
    works.inspect_err(|error| say(&format!("io_uring is not tried: {error}"))).is_ok()
}

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod uring {
            $(#[test]
            fn $test() {
                if super::uring_works_here() {
                    super::$test(super::Backend::Uring);
                }
            })*

            #[test]
            fn a_full_file_system_is_told_apart() {
                if super::uring_works_here() {
                    let this = "uring::a_full_file_system_is_told_apart";
                    super::a_full_file_system_is_told_apart(super::Backend::Uring, this);
                }
            }
        }
        mod threads {
            $(#[test]
            fn $test() {
                super::$test(super::Backend::Threads);
            })*

            #[test]
            fn a_full_file_system_is_told_apart() {
                let this = "threads::a_full_file_system_is_told_apart";
                super::a_full_file_system_is_told_apart(super::Backend::Threads, this);
            }
        }
    };
}

contract!(
    a_thousand_commands_do_what_they_say,
    more_commands_than_the_queue_holds,
    another_back_end_reads_the_same,
    no_wake_up_is_lost,
    a_wake_before_the_wait_ends_it,
    a_wait_ends_when_its_time_is_over,
    completions_and_wakes_do_not_hide_each_other,
    a_disk_dropped_while_commands_run_gives_all_memory_back,
    memory_need_not_be_registered,
    beyond_the_end_is_short,
    discarded_space_stays_reserved,
);

/// Trap: "`io_uring` forbidden by seccomp". Threads take over by themselves, and whoever insists is told.
#[test]
fn without_a_ring_threads_take_over() {
    let forbidden = std::thread::spawn(|| {
        forbid_rings();
        let bed = Bed::new(16, 16);
        let refused = open_disk(&bed.file, Backend::Uring, &[]).err().unwrap();
        assert!(refused.to_string().contains("io_uring is not available"), "{refused}");
        let mut disk = bed.disk(Backend::Auto);
        assert_eq!(run_one(disk.as_mut(), write(1, 0, bed.buffer(8, 1))).result, Ok(()));
        let completion = run_one(disk.as_mut(), read(2, 0, bed.buffer(8, 2)));
        assert!(holds(&completion.buffer.unwrap(), 1));
    });
    forbidden.join().unwrap();
}

/// Puts this thread, and those it starts, under the filter that containers have by default.
#[expect(unsafe_code, reason = "seccomp has no safe interface")]
fn forbid_rings() {
    let instruction = |code: u32, k: u32, jt: u8, jf: u8| {
        let code = u16::try_from(code).unwrap();
        libc::sock_filter { code, jt, jf, k }
    };
    let number = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let refuse = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap();
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        instruction(libc::BPF_RET | libc::BPF_K, refuse, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: both calls only read what they are given, which lives until they return, and change nothing
    // but what this thread may ask of the kernel.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(result, 0, "a thread may forbid itself what it likes");
}
