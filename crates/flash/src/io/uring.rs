//! A [`Disk`] on `io_uring`: direct I/O with registered files and memory, one system call for a whole round
//! of commands and completions.
//!
//! **Memory.** A command is kept in `running` from before the kernel sees it until its completion has been
//! read, and with it its buffer. A ring that is dropped waits for what is running; where it cannot (it has
//! been moved to another thread), it leaks those buffers rather than free them under the kernel.
//!
//! **Waking.** The waker writes to an eventfd that the ring polls, but only if somebody is parked: see
//! [`Signal`].
//!
//! **Threads.** The kernel is told that one thread uses the ring, which is cheaper. It is the one that first
//! waits.

#![expect(unsafe_code, reason = "the kernel is given pointers, which Rust cannot follow")]

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::SeqCst},
    },
    time::Duration,
};

use io_uring::{
    Builder, IoUring, cqueue, opcode, squeue,
    types::{Fixed, FsyncFlags, SubmitArgs, Timespec},
};
use rustix::{
    event::{EventfdFlags, PollFlags, eventfd},
    io::Errno,
};

use super::{Command, Completion, DeviceFile, Disk, Fault, IoId, Waker, threads::Threads};
use crate::{arena::Arena, layout::BLOCK_SIZE};

/// How many commands the kernel holds at once, and one more for the waker's poll.
const ENTRIES: u32 = 256;
/// The longest piece of memory that can be registered as one.
const REGISTERED_MAX: usize = 1 << 30;
/// Longer than anybody waits, and short enough for the kernel.
const TIMEOUT_MAX: Duration = Duration::from_secs(1 << 30);

/// The files that are registered.
const DEVICE: Fixed = Fixed(0);
const EVENTS: Fixed = Fixed(1);
/// Marks the completions of the waker's poll.
const WAKE: u64 = u64::MAX;

/// A device behind a ring.
pub(super) struct Uring {
    ring: IoUring,
    /// Whether the ring has been given to the thread that uses it.
    begun: bool,
    /// Whether the eventfd is being polled.
    listening: bool,
    signal: Arc<Signal>,
    /// Addresses of the registered pieces of memory.
    registered: Vec<Range<usize>>,
    running: Running,
    /// What there was no room for yet, in order.
    backlog: VecDeque<Command>,
    /// Gives space back: the kernel has no asynchronous way to do that for all kinds of devices.
    discards: Threads,
    /// How many it has not done yet.
    discarding: usize,
    /// The registered memory stays mapped.
    _arenas: Vec<Arc<Arena>>,
}

impl Uring {
    /// A ring for this device, with the arenas registered if the system lets us.
    pub(super) fn start(file: &Arc<DeviceFile>, arenas: &[Arc<Arena>]) -> io::Result<Self> {
        let ring = build()?;
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this Linux is too old"));
        }
        let signal = Arc::new(Signal::new()?);
        let files = [file.as_fd().as_raw_fd(), signal.events.as_raw_fd()];
        ring.submitter().register_files(&files)?;
        let registered = register(&ring, arenas);
        let discards = Threads::start_with(Arc::clone(file), 1, Some(signal.waker()))?;
        Ok(Self {
            ring,
            begun: false,
            listening: false,
            signal,
            registered,
            running: Running::new(),
            backlog: VecDeque::new(),
            discards,
            discarding: 0,
            _arenas: arenas.to_vec(),
        })
    }

    /// Tries everything that a ring must be able to do here, on a ring of its own.
    pub(super) fn probe(file: &Arc<DeviceFile>) -> io::Result<()> {
        let arena = Arena::new(BLOCK_SIZE)?;
        let buffer = arena.take(BLOCK_SIZE).expect("nobody else uses it");
        let mut ring = Self::start(file, &[arena])?;
        ring.submit(&mut vec![Command::Read {
            id: IoId(0),
            offset: 0,
            buffer,
            length: BLOCK_SIZE,
        }]);
        let mut done = Vec::new();
        while done.is_empty() {
            ring.try_wait(None, &mut done)?;
        }
        if let Err(fault) = done[0].result {
            return Err(io::Error::other(fault));
        }
        // Signalled as if somebody were parked, and still listening afterwards.
        ring.signal.ring();
        ring.enter(1, Some(Duration::from_secs(10)))?;
        ring.reap(&mut done);
        if ring.listening { Ok(()) } else { Err(io::Error::other("it cannot poll repeatedly")) }
    }

    fn try_wait(
        &mut self,
        timeout: Option<Duration>,
        done: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.begin()?;
        let before = done.len();
        self.reap(done);
        if done.len() == before && self.signal.park() {
            let entered = self.enter(1, timeout);
            self.signal.unpark();
            entered?;
            self.reap(done);
        } else {
            self.signal.unpark();
            let queue = self.ring.submission();
            if !queue.is_empty() || queue.taskrun() {
                drop(queue);
                self.enter(0, None)?;
                self.reap(done);
            }
        }
        self.start_waiting();
        Ok(())
    }

    /// Makes this thread the ring's, and listens to the waker.
    fn begin(&mut self) -> io::Result<()> {
        if !self.begun {
            self.ring.submitter().register_enable_rings()?;
            self.begun = true;
        }
        if !self.listening {
            let flags = u32::from(PollFlags::IN.bits());
            self.push(&opcode::PollAdd::new(EVENTS, flags).multi(true).build().user_data(WAKE));
            self.listening = true;
        }
        Ok(())
    }

    /// Tells the kernel of new commands, and waits for so many completions.
    fn enter(&self, wanted: usize, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(wanted),
            Some(timeout) => {
                let timespec = Timespec::from(timeout.min(TIMEOUT_MAX));
                submitter.submit_with_args(wanted, &SubmitArgs::new().timespec(&timespec))
            }
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // The time is over, a signal came, or the kernel has to be asked again.
                Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            if entry.user_data() == WAKE {
                self.listening = cqueue::more(entry.flags());
            } else {
                let command = self.running.remove(entry.user_data());
                done.push(complete(command, entry.result()));
            }
        }
        if self.discarding > 0 {
            let before = done.len();
            self.discards.take(done);
            self.discarding -= done.len() - before;
        }
    }

    /// Begins what there is room for.
    fn start_waiting(&mut self) {
        while !self.running.is_full()
            && let Some(command) = self.backlog.pop_front()
        {
            let (number, command) = self.running.insert(command);
            let entry = entry(command, &self.registered).user_data(number);
            self.push(&entry);
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that a command's entry points to is owned by the command, which is in
        // `running` until its completion has been read; the poll points to nothing. Files are registered.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the ring has room for all that is running, and the poll");
    }
}

impl Disk for Uring {
    fn submit(&mut self, commands: &mut Vec<Command>) {
        for command in commands.drain(..) {
            command.assert_aligned();
            if matches!(command, Command::Discard { .. }) {
                self.discards.submit(&mut vec![command]);
                self.discarding += 1;
            } else {
                self.backlog.push_back(command);
            }
        }
        self.start_waiting();
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        self.try_wait(timeout, done).expect("a ring that worked when it was tried goes on working");
    }

    fn waker(&self) -> Waker {
        self.signal.waker()
    }
}

impl Drop for Uring {
    /// What has begun is finished; what has not, is not begun any more.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut done = Vec::new();
        while self.begun && !self.running.is_empty() {
            if self.enter(1, None).is_err() {
                std::mem::take(&mut self.running.commands).into_iter().for_each(std::mem::forget);
                return;
            }
            self.reap(&mut done);
            done.clear();
        }
    }
}

/// A ring that nobody uses yet, with the cheapest of the modes that this kernel has.
fn build() -> io::Result<IoUring> {
    let modes: [fn(&mut Builder); 4] = [
        |builder| {
            // Linux 6.1: completions are worked off only when we ask for them.
            builder.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
            builder.setup_taskrun_flag().setup_submit_all();
        },
        |builder| {
            // Linux 6.0
            builder.setup_single_issuer().setup_coop_taskrun();
            builder.setup_taskrun_flag().setup_submit_all();
        },
        |builder| {
            // Linux 5.19: no interrupts to work off completions.
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        },
        |_| {},
    ];
    let mut refused = io::Error::from(Errno::INVAL);
    for mode in modes {
        let mut builder = IoUring::builder();
        builder.setup_r_disabled().dontfork();
        mode(&mut builder);
        match builder.build(ENTRIES) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => refused = error,
            other => return other,
        }
    }
    Err(refused)
}

/// Spares the kernel to look the memory up for every command. It may be refused, by a limit on locked
/// memory for one; then all goes on without.
fn register(ring: &IoUring, arenas: &[Arc<Arena>]) -> Vec<Range<usize>> {
    let pieces = arenas.iter().flat_map(|arena| {
        let start = arena.base() as usize;
        let end = start + arena.size();
        (start..end).step_by(REGISTERED_MAX).map(move |at| at..end.min(at + REGISTERED_MAX))
    });
    let pieces: Vec<Range<usize>> = pieces.collect();
    let vectors: Vec<libc::iovec> = pieces
        .iter()
        .map(|piece| libc::iovec { iov_base: piece.start as *mut _, iov_len: piece.len() })
        .collect();
    // SAFETY: the pieces lie in the arenas, which the ring keeps for as long as it lives; nobody touches
    // their bytes but through buffers, and commands own those.
    match unsafe { ring.submitter().register_buffers(&vectors) } {
        Ok(()) => pieces,
        Err(error) => {
            tracing::info!(%error, "memory is not registered: raise the limit on locked memory");
            Vec::new()
        }
    }
}

/// What the kernel is told of a command.
fn entry(command: &mut Command, registered: &[Range<usize>]) -> squeue::Entry {
    match command {
        Command::Read { offset, buffer, length: asked, .. } => {
            let (start, length) = (buffer.as_mut_ptr(), length(&buffer[..*asked]));
            match index(registered, start, length) {
                Some(index) => {
                    opcode::ReadFixed::new(DEVICE, start, length, index).offset(*offset).build()
                }
                None => opcode::Read::new(DEVICE, start, length).offset(*offset).build(),
            }
        }
        Command::Write { offset, bytes, .. } => {
            let (start, length) = (bytes.as_ptr(), length(bytes));
            match index(registered, start, length) {
                Some(index) => {
                    opcode::WriteFixed::new(DEVICE, start, length, index).offset(*offset).build()
                }
                None => opcode::Write::new(DEVICE, start, length).offset(*offset).build(),
            }
        }
        Command::Sync { .. } => opcode::Fsync::new(DEVICE).flags(FsyncFlags::DATASYNC).build(),
        Command::Discard { .. } => unreachable!("a thread does that"),
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a region is shorter")
}

/// Which registered piece holds these bytes; none, if they lie across two.
fn index(registered: &[Range<usize>], start: *const u8, length: u32) -> Option<u16> {
    let (start, end) = (start as usize, start as usize + length as usize);
    let index = registered.iter().position(|piece| piece.start <= start && end <= piece.end)?;
    u16::try_from(index).ok()
}

fn complete(command: Command, result: i32) -> Completion {
    let result = u32::try_from(result).map_err(|_| Fault::from(Errno::from_raw_os_error(-result)));
    let whole = |asked: u32| match result {
        Ok(count) if count == asked => Ok(()),
        Ok(_) => Err(Fault::Short),
        Err(fault) => Err(fault),
    };
    match command {
        Command::Read { id, buffer, length: asked, .. } => {
            let result = whole(length(&buffer[..asked]));
            Completion { id, buffer: Some(buffer), result }
        }
        Command::Write { id, bytes, .. } => {
            Completion { id, buffer: None, result: whole(length(&bytes)) }
        }
        Command::Sync { id } | Command::Discard { id, .. } => {
            Completion { id, buffer: None, result: result.map(|_| ()) }
        }
    }
}

/// The commands that the kernel may know of, by number.
struct Running {
    commands: Vec<Option<Command>>,
    free: Vec<usize>,
}

impl Running {
    fn new() -> Self {
        let count = ENTRIES as usize - 1;
        Self { commands: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.commands.len()
    }

    fn insert(&mut self, command: Command) -> (u64, &mut Command) {
        let number = self.free.pop().expect("not full");
        (number as u64, self.commands[number].insert(command))
    }

    fn remove(&mut self, number: u64) -> Command {
        let number = usize::try_from(number).expect("one of ours");
        let command = self.commands[number].take().expect("a command completes once");
        self.free.push(number);
        command
    }
}

/// Ends a wait from another thread, at the cost of one atomic operation unless there is a wait to end.
///
/// Whoever wakes first does what it wakes for (it leaves a message), then swaps in `WOKEN`, and writes to
/// the eventfd only if it swapped out `PARKED`. The waiting thread changes `AWAKE` to `PARKED`, enters the
/// kernel, swaps in `AWAKE` when it is back, and looks for messages. No wake-up is lost:
///
/// - The swap comes before `PARKED`: then that change fails, and there is no wait.
/// - It comes after `PARKED`: then the eventfd is written, before the kernel is entered or after. The ring
///   polls the eventfd since before `PARKED`, so there will be a completion either way, and the wait ends.
/// - It comes while nobody waits: `WOKEN` stays, until a wait begins and sees it, or ends and looks for
///   messages after it took it away.
///
/// The eventfd is never read: the ring polls it repeatedly and hears of every write, and a poll that had to
/// be begun anew sees at once that it had been written to. A wait that had already ended by itself leaves
/// one completion behind, which ends a later wait early; no harm in that.
struct Signal {
    state: AtomicU8,
    events: OwnedFd,
}

const AWAKE: u8 = 0;
const PARKED: u8 = 1;
const WOKEN: u8 = 2;

impl Signal {
    fn new() -> io::Result<Self> {
        let events = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: AtomicU8::new(AWAKE), events })
    }

    fn waker(self: &Arc<Self>) -> Waker {
        let signal = Arc::clone(self);
        Arc::new(move || {
            if signal.state.swap(WOKEN, SeqCst) == PARKED {
                signal.ring();
            }
        })
    }

    fn ring(&self) {
        // It can fail only if it is full, and then it has been written to.
        let _ = rustix::io::write(&self.events, &1_u64.to_ne_bytes());
    }

    /// Whether to park: nobody has used the waker since the last wait.
    fn park(&self) -> bool {
        self.state.compare_exchange(AWAKE, PARKED, SeqCst, SeqCst).is_ok()
    }

    fn unpark(&self) {
        self.state.swap(AWAKE, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_across_two_registered_pieces_is_in_none() {
        let registered = [0x1000..0x5000, 0x5000..0x9000];
        let find = |start: usize, length| index(&registered, start as *const u8, length);
        assert_eq!(find(0x1000, 0x4000), Some(0));
        assert_eq!(find(0x4000, 0x2000), None);
        assert_eq!(find(0x5000, 0x1000), Some(1));
        assert_eq!(find(0x8000, 0x1001), None);
        assert_eq!(find(0x0, 0x1000), None);
    }

    /// Trap: "use-after-free when a read is cancelled". Only the ring's own thread can wait for what is
    /// running; dropped elsewhere, it keeps that memory for ever.
    #[test]
    fn dropped_by_another_thread_it_gives_nothing_back_that_may_be_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = DeviceFile::open(&directory.path().join("device"), 1 << 20).unwrap();
        let arena = Arena::new(1 << 20).unwrap();
        let Ok(mut ring) = Uring::start(&Arc::new(file), &[Arc::clone(&arena)]) else { return };
        let buffer = arena.take(1 << 20).unwrap();
        ring.submit(&mut vec![Command::Read {
            id: IoId(0),
            offset: 0,
            buffer,
            length: BLOCK_SIZE,
        }]);
        ring.begin().unwrap();
        ring.enter(0, None).unwrap();
        let bound_to_a_thread = ring.ring.params().is_setup_single_issuer();
        std::thread::spawn(move || drop(ring)).join().unwrap();
        assert_eq!(arena.take(1 << 20).is_none(), bound_to_a_thread);
    }
}
