//! Borrowers: other processes that read the streams of a store, and what becomes of them and of the
//! owner under signals.
//!
//! The other processes are this test program, run with an otherwise ignored test.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::{
        fd::AsFd as _,
        unix::{fs::PermissionsExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use forebay_core::{
    ByteSize,
    streams::{
        Lifetime,
        lending::LEASES_MAX,
        loan::{LOAN_VERSION, LoanReply, LoanRequest},
    },
};
use forebay_streams::{
    BorrowedStore, CreateOptions, FullPolicy, Interrupt, OpenOptions, OpenedStore, Store,
    StoreConfig, StoreError, StreamError,
};
use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType},
    process::{Pid, Signal, kill_process},
};

use crate::sim::content;

/// Environment variable with the part that a process plays, and the store's directory.
const PLAN: &str = "FOREBAY_TEST_BORROWER";
/// Generous: the tests' machines are slow.
const TIMEOUT: Duration = Duration::from_mins(1);
const MEMORY: ByteSize = ByteSize::mib(16);
const BLOCKS: u64 = 24;
const LENGTH: usize = 300_000;
const KEPT: CreateOptions = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };

fn open(directory: &Path) -> Store {
    StoreConfig::new(directory, ByteSize::mib(65)).open().unwrap()
}

fn write(store: &Store, name: &str, options: CreateOptions) {
    let mut writer = store.create(name, options).unwrap();
    for block in 0..BLOCKS {
        writer.append(&content(block, LENGTH)).unwrap();
    }
    writer.seal().unwrap();
}

fn borrow(directory: &Path) -> BorrowedStore {
    BorrowedStore::connect(directory, MEMORY, Interrupt::default())
        .unwrap()
        .expect("a process owns the store")
}

fn readers(store: &Store, name: &str) -> u32 {
    store.list().iter().find(|info| info.name.as_str() == name).map_or(0, |info| info.readers)
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process of its own, killed on drop.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(part: &str, directory: &Path) -> Self {
        Self::start_as(None, part, directory).unwrap()
    }

    /// Starts it as this user. Fails if that is not allowed, or if the user may not run this
    /// program.
    fn start_as(user: Option<u32>, part: &str, directory: &Path) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(user) = user {
            command.uid(user).gid(user).current_dir("/");
        }
        let mut child = command
            .args(["--exact", "borrowers::process", "--ignored", "--nocapture"])
            .env(PLAN, format!("{part}#{}", directory.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Ok(Self { child, lines })
    }

    /// What the process says next.
    fn says(&mut self) -> String {
        let line = self.lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("say "));
        line.expect("it says something").split_off(4)
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Stops it, and waits until no thread of it runs.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").expect("after the name").1.starts_with('T')
        };
        let tasks = format!("/proc/{}/task", self.child.id());
        eventually("it is stopped", || std::fs::read_dir(&tasks).unwrap().all(is_stopped));
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(process, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(text: &str) {
    let mut stdout = std::io::stdout();
    stdout.write_all(format!("\nsay {text}\n").as_bytes()).unwrap();
    stdout.flush().unwrap();
}

fn await_line() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Run by the tests below.
#[test]
#[ignore = "child process of other tests"]
fn process() {
    let Ok(plan) = std::env::var(PLAN) else { return };
    let (part, path) = plan.split_once('#').expect("a part and a path");
    let path = PathBuf::from(path);
    if part == "own" {
        let store = open(&path);
        write(&store, "kept", KEPT);
        write(&store, "spill", CreateOptions::default());
        say("ready");
        return await_line();
    }
    if part == "count threads" {
        return count_threads(&path);
    }
    if part == "other user" {
        say(&BorrowedStore::connect(&path, MEMORY, Interrupt::default())
            .err()
            .map_or("ok".into(), |e| e.to_string()));
        // The owner refuses also a process that does not look at the user itself.
        let hello = LoanRequest::Hello { version: LOAN_VERSION }.encode();
        return say(&format!("{:?}", Bare::connect(&path).ask(&hello)));
    }
    let store = borrow(&path);
    let options = OpenOptions { depth: 2, ..OpenOptions::default() };
    let mut reader = store.open("s", options).unwrap();
    let mut blocks = 0;
    while let Some(block) = reader.next() {
        match block {
            Ok(block) => assert_eq!(block[..], content(blocks, LENGTH)[..], "never altered"),
            Err(error) => return say(&format!("error: {error}")),
        }
        blocks += 1;
        if part == "hold" && blocks == 1 {
            say("holding");
            await_line();
        }
    }
    assert_eq!(blocks, BLOCKS, "never shorter");
    say("read all");
}

/// Says how many threads a store has, before and after another process borrows.
fn count_threads(path: &Path) {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")));
        // The kernel's own workers of a uring are listed, too.
        let names = names.map_while(Result::ok).filter(|name| !name.starts_with("iou-"));
        names.collect::<Vec<_>>()
    };
    let before = threads().len();
    let _store = open(path);
    // Without io_uring, other threads do the I/O.
    if threads().iter().any(|name| name.starts_with("flash-io-")) {
        return say("no io_uring");
    }
    say(&format!("alone: {}", threads().len() - before));
    await_line();
    say(&format!("lending: {}", threads().len() - before));
    await_line();
}

#[test]
fn a_store_has_one_thread_and_another_when_it_is_borrowed() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Process::start("count threads", directory.path());
    match owner.says().as_str() {
        "no io_uring" => return,
        said => assert_eq!(said, "alone: 1"),
    }
    for _ in 0..2 {
        assert!(borrow(directory.path()).list().unwrap().is_empty());
    }
    owner.go_on();
    assert_eq!(owner.says(), "lending: 2");
}

/// Promise 4. Runs as root only, which alone can start a process of another user.
#[test]
fn a_borrower_of_another_user_is_refused() {
    // Any user but this process's.
    const OTHER_USER: u32 = 65534;
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    // The directory is private; the check of the user holds without that.
    let open_to_all = std::fs::Permissions::from_mode(0o777);
    for path in [directory.path().to_owned(), directory.path().join("store.sock")] {
        std::fs::set_permissions(path, open_to_all.clone()).unwrap();
    }
    let other = Process::start_as(Some(OTHER_USER), "other user", directory.path());
    let Ok(mut other) = other else { return };
    let said = other.says();
    assert!(said.contains("of another user: run as that user"), "{said}");
    let said = other.says();
    assert!(said.contains("Refused") && said.contains("belongs to another user"), "{said}");
    // Its own user still borrows.
    assert_eq!(borrow(directory.path()).list().unwrap().len(), 1);
}

/// Promises 1 and 9, in eight processes at a time. What is staged in the owner is found too.
#[test]
fn eight_borrowers_read_what_the_owner_wrote() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    for options in [CreateOptions::default(), KEPT] {
        write(&store, "s", options);
        let mut borrowers: Vec<_> =
            (0..8).map(|_| Process::start("read", directory.path())).collect();
        for borrower in &mut borrowers {
            assert_eq!(borrower.says(), "read all");
        }
        drop(borrowers);
        eventually("the leases have ended", || readers(&store, "s") == 0);
        store.destroy("s", Duration::ZERO).unwrap();
    }
    assert_eq!(store.facts().read, ByteSize(0), "no byte passes through the owner");
}

#[test]
fn blocks_lie_in_the_memory_of_the_borrower() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    let borrowed = borrow(directory.path());
    assert_eq!(borrowed.list().unwrap(), store.list());
    assert_eq!(borrowed.block_length(), store.block_length());
    let reader = borrowed.open("s", OpenOptions::default()).unwrap();
    assert_eq!(readers(&store, "s"), 1, "a lease is a reader");
    let mut blocks = 0;
    for block in reader.blocks() {
        let block = block.unwrap();
        assert!(borrowed.read_memory().contains(&(block.as_ptr() as usize)), "copied");
        assert!(block.as_ptr().addr().is_multiple_of(64) && !block.is_outside_slots());
        blocks += 1;
    }
    assert_eq!(blocks, BLOCKS);
    // A consumer that holds everything gets more, outside the slots.
    let options = OpenOptions { depth: 3, ..OpenOptions::default() };
    let held: Vec<_> = borrowed.open("s", options).unwrap().blocks().map(Result::unwrap).collect();
    assert_eq!(held.iter().filter(|block| block.is_outside_slots()).count() as u64, BLOCKS - 3);
    for (block, number) in held.iter().zip(0..) {
        assert_eq!(block[..], content(number, LENGTH)[..]);
    }
    drop(held);
    let (size, free) = borrowed.read_memory_sizes();
    assert_eq!(size, free, "all memory is back");
    eventually("the leases have ended", || readers(&store, "s") == 0);
}

#[test]
fn a_killed_borrower_loses_its_lease() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    let mut killed = Process::start("hold", directory.path());
    assert_eq!(killed.says(), "holding");
    assert_eq!(readers(&store, "s"), 1);
    killed.signal(Signal::KILL);
    // Waits for the reader, which never returns its lease.
    store.destroy("s", TIMEOUT).unwrap();
    eventually("all space is back", || store.facts().free == store.facts().capacity);
}

#[test]
fn a_stopped_borrower_delays_no_other_and_gets_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    let mut stopped = Process::start("hold", directory.path());
    assert_eq!(stopped.says(), "holding");
    stopped.stop();
    let mut other = Process::start("read", directory.path());
    assert_eq!(other.says(), "read all");
    store.destroy("s", Duration::from_millis(10)).unwrap();
    // All regions are used again.
    for round in 0..8 {
        let name = format!("other {round}");
        write(&store, &name, CreateOptions::default());
    }
    stopped.signal(Signal::CONT);
    stopped.go_on();
    let said = stopped.says();
    assert_eq!(said, "error: stream \"s\" was destroyed while it was read");
}

/// Promise 9: the owner's death is a clear error, and the next owner finds what was sealed.
#[test]
fn borrowers_of_a_killed_owner_get_an_error_and_the_next_owner_its_streams() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Process::start("own", directory.path());
    assert_eq!(owner.says(), "ready");
    let config = StoreConfig::new(directory.path(), ByteSize::mib(65));
    let OpenedStore::Borrowed(borrowed) = config.open_or_borrow().unwrap() else {
        panic!("another process owns the store")
    };
    let options = OpenOptions { depth: 2, ..OpenOptions::default() };
    let mut reader = borrowed.open("spill", options).unwrap();
    assert_eq!(reader.next().unwrap().unwrap()[..], content(0, LENGTH)[..]);
    owner.signal(Signal::KILL);
    owner.child.wait().unwrap();
    let error = reader.next().unwrap().unwrap_err();
    assert!(matches!(error, StreamError::OwnerGone(_)), "{error}");
    assert_eq!(reader.next().unwrap().unwrap_err(), error, "it stays so");
    assert!(matches!(borrowed.list(), Err(StreamError::OwnerGone(_))));
    drop((reader, borrowed));
    let OpenedStore::Owned(store) = config.open_or_borrow().unwrap() else {
        panic!("the owner is gone")
    };
    let names: Vec<_> = store.list().iter().map(|info| info.name.to_string()).collect();
    assert_eq!(names, ["kept"]);
    let blocks = store.open("kept", OpenOptions::default()).unwrap().blocks();
    for (block, number) in blocks.zip(0..) {
        assert_eq!(block.unwrap()[..], content(number, LENGTH)[..]);
    }
}

/// Promise 5: an owner that is stopped hangs no borrower. An interrupt ends a wait at once and
/// keeps the connection; without one, the wait ends after a few seconds with an error.
#[test]
fn a_stopped_owner_hangs_no_borrower() {
    let directory = tempfile::tempdir().unwrap();
    let mut owner = Process::start("own", directory.path());
    assert_eq!(owner.says(), "ready");
    let asked = Arc::new(AtomicU32::new(0));
    let limit = Arc::new(AtomicU32::new(u32::MAX));
    let interrupt = Interrupt::new({
        let (asked, limit) = (Arc::clone(&asked), Arc::clone(&limit));
        move || asked.fetch_add(1, Relaxed) >= limit.load(Relaxed)
    });
    let borrowed = BorrowedStore::connect(directory.path(), MEMORY, interrupt.clone());
    let borrowed = borrowed.unwrap().expect("a process owns the store");
    let options = OpenOptions { depth: 2, ..OpenOptions::default() };
    let mut reader = borrowed.open("spill", options).unwrap();
    assert_eq!(reader.next().unwrap().unwrap()[..], content(0, LENGTH)[..]);

    owner.stop();
    let interrupted_after = |checks: u32, error: StreamError| {
        assert_eq!(error, StreamError::Interrupted);
        assert!(asked.load(Relaxed) <= checks + 2, "{} checks", asked.load(Relaxed));
    };
    for checks in [0, 2] {
        asked.store(0, Relaxed);
        limit.store(checks, Relaxed);
        interrupted_after(checks, borrowed.list().unwrap_err());
        asked.store(0, Relaxed);
        interrupted_after(checks, borrowed.open("spill", options).err().unwrap());
        asked.store(0, Relaxed);
        let other = BorrowedStore::connect(directory.path(), MEMORY, interrupt.clone());
        assert!(matches!(other, Err(StoreError::Interrupted)));
    }
    limit.store(u32::MAX, Relaxed);
    // Blocks whose places are known need no owner.
    assert_eq!(reader.next().unwrap().unwrap()[..], content(1, LENGTH)[..]);
    drop(reader);

    // Replies that come late are skipped, and leases that were not awaited are returned.
    owner.signal(Signal::CONT);
    let spill = || borrowed.list().unwrap().into_iter().find(|info| info.name.as_str() == "spill");
    eventually("the leases have ended", || spill().unwrap().readers == 0);
    let blocks = borrowed.open("spill", options).unwrap().blocks();
    for (block, number) in blocks.zip(0..) {
        assert_eq!(block.unwrap()[..], content(number, LENGTH)[..]);
    }

    owner.stop();
    let error = borrowed.list().unwrap_err();
    assert!(matches!(error, StreamError::OwnerGone(_)), "{error}");
    let other = BorrowedStore::connect(directory.path(), MEMORY, Interrupt::default());
    let error = other.err().unwrap().to_string();
    assert!(error.contains("does not answer: continue or end it"), "{error}");
}

/// The completion of a read interrupts system calls of the thread that started it.
#[test]
fn requests_to_the_owner_go_on_while_reads_complete() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    let borrowed = borrow(directory.path());
    for _ in 0..60 {
        let blocks = borrowed.open("s", OpenOptions::default()).unwrap().blocks();
        for (block, number) in blocks.zip(0..) {
            assert_eq!(block.unwrap()[..], content(number, LENGTH)[..]);
            assert_eq!(borrowed.list().unwrap().len(), 1);
        }
    }
}

/// Promise 1: a reply that comes too late is not taken for the reply to another request.
#[test]
fn a_connection_ends_with_the_first_request_without_a_reply() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    let welcome = Bare::connect(directory.path())
        .ask(&LoanRequest::Hello { version: LOAN_VERSION }.encode())
        .unwrap();
    let other = tempfile::tempdir().unwrap();
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new(other.path().join("store.sock")).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let owner = std::thread::spawn(move || {
        let socket = rustix::net::accept(&listener).unwrap();
        let mut message = [0; 1024];
        let mut receive = || rustix::net::recv(&socket, &mut message[..], RecvFlags::empty());
        receive().unwrap();
        let device = tempfile::tempfile().unwrap();
        forebay_shm::send_with_fd(&socket, &welcome.encode(), device.as_fd()).unwrap();
        receive().unwrap();
        let late = LoanReply::Streams(Vec::new()).encode();
        for reply in [&b"\xff"[..], &late] {
            rustix::net::send(&socket, reply, SendFlags::NOSIGNAL).unwrap();
        }
        let _ = receive();
    });
    let borrowed = borrow(other.path());
    for _ in 0..3 {
        let error = borrowed.list().unwrap_err();
        assert!(matches!(error, StreamError::OwnerGone(_)), "{error}");
    }
    owner.join().unwrap();
}

/// A bare connection to the owner.
struct Bare(std::os::fd::OwnedFd);

impl Bare {
    fn connect(directory: &Path) -> Self {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let address = SocketAddrUnix::new(directory.join("store.sock")).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Self(socket)
    }

    /// The reply; `None` if the owner has closed the connection.
    fn ask(&self, message: &[u8]) -> Option<LoanReply> {
        // An owner that refuses a process replies and closes before it is asked.
        let _ = rustix::net::send(&self.0, message, SendFlags::NOSIGNAL);
        let mut reply = vec![0; 64 << 10];
        let mut receive = || rustix::net::recv(&self.0, &mut reply[..], RecvFlags::empty());
        let received = match receive() {
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        let (length, _) = received.ok()?;
        LoanReply::decode(&reply[..length])
    }
}

#[test]
fn bad_borrowers_are_refused_and_harm_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    write(&store, "s", CreateOptions::default());
    let open_s = LoanRequest::Open(forebay_core::streams::StreamName::new("s").unwrap()).encode();
    let hello = LoanRequest::Hello { version: LOAN_VERSION }.encode();

    let other = Bare::connect(directory.path());
    let reply = other.ask(&LoanRequest::Hello { version: LOAN_VERSION + 1 }.encode());
    let Some(LoanReply::Refused(text)) = reply else { panic!("{reply:?}") };
    assert!(text.contains("use the same forebay in both"), "{text}");
    assert_eq!(Bare::connect(directory.path()).ask(b"\xffgarbage"), None);
    assert_eq!(Bare::connect(directory.path()).ask(&open_s), None, "without a greeting");

    let flood = Bare::connect(directory.path());
    assert!(matches!(flood.ask(&hello), Some(LoanReply::Welcome(_))));
    for _ in 0..LEASES_MAX {
        assert!(matches!(flood.ask(&open_s), Some(LoanReply::Lent(_))));
    }
    let reply = flood.ask(&open_s);
    let Some(LoanReply::Refused(text)) = reply else { panic!("{reply:?}") };
    assert!(text.contains("close some of its readers"), "{text}");
    drop(flood);
    eventually("the leases have ended", || readers(&store, "s") == 0);

    let borrowed = borrow(directory.path());
    let open = |name: &str, options| borrowed.open(name, options).err().unwrap().to_string();
    assert!(open("t", OpenOptions::default()).contains("no stream \"t\""));
    let writer = store.create("open", CreateOptions::default()).unwrap();
    assert!(open("open", OpenOptions::default()).contains("is being written"));
    drop(writer);
    for options in [
        OpenOptions { follow: true, ..OpenOptions::default() },
        OpenOptions { consume: true, ..OpenOptions::default() },
    ] {
        assert!(open("s", options).contains("for that process alone"));
    }
    let deep = OpenOptions { depth: 999, ..OpenOptions::default() };
    assert!(open("s", deep).contains("smaller `depth`"));
    drop(store);
    assert!(matches!(borrowed.list(), Err(StreamError::OwnerGone(_))), "the store is closed");
    assert!(
        BorrowedStore::connect(directory.path(), MEMORY, Interrupt::default()).unwrap().is_none()
    );
}
