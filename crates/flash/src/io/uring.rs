//! The `io_uring` backend: a [`Disk`] with direct I/O, registered files and registered memory. One
//! system call submits a batch of commands and collects completions.
//!
//! **Memory.** A command and its buffer stay in `in_flight` from before the kernel sees the command
//! until its completion has been read. Dropping the disk waits for the running commands. Where that
//! is impossible (the disk has been moved to another thread), the buffers are leaked rather than
//! released while the kernel may write to them.
//!
//! **Waking.** The waker writes to an eventfd that the uring polls, but only if the thread is
//! parked: see [`Signal`].
//!
//! **Threads.** The uring is created for a single thread, which is cheaper: the one that waits
//! first.

#![expect(unsafe_code, reason = "the kernel gets pointers, which the compiler cannot check")]

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
    types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec},
};
use rustix::{
    event::{EventfdFlags, PollFlags, eventfd},
    io::Errno,
};

use super::{
    Completion, DeviceFile, Disk, IoCommand, IoFault, IoId, Uninherited, Waker, Watch,
    threads::Threads,
};
use crate::{buffers::BufferPool, format::BLOCK_SIZE};

/// Size of the submission queue: 254 commands and two polls.
const ENTRIES: u32 = 256;
/// Polls: of the eventfd, and of a watched descriptor.
const POLLS: u32 = 2;
/// Longest range of memory that the kernel registers as one buffer.
const REGISTERED_MAX: usize = 1 << 30;
/// Upper bound of timeouts: longer than any real one, and accepted by the kernel.
const TIMEOUT_MAX: Duration = Duration::from_secs(1 << 30);

/// Registered files.
const DEVICE: Fixed = Fixed(0);
const EVENTS: Fixed = Fixed(1);
/// Marks completions of the eventfd poll.
const WAKE: u64 = u64::MAX;
/// Marks the completion of the watched descriptor's poll.
const WATCHED: u64 = u64::MAX - 1;

/// A device with its uring.
pub(super) struct Uring {
    /// It has the device open, so that a forked child would keep the device locked.
    inner: Uninherited<IoUring>,
    /// Whether the uring has been enabled by the thread that uses it.
    enabled: bool,
    /// Whether the eventfd is being polled.
    polling: bool,
    signal: Arc<Signal>,
    /// Addresses of the registered memory ranges.
    registered: Vec<Range<usize>>,
    in_flight: InFlight,
    /// Commands that wait for room in the submission queue, in order.
    backlog: VecDeque<IoCommand>,
    /// Runs the discards of a block device, which not all support asynchronously. Those of a file
    /// block its other I/O in any case, and are run at once.
    discards: Option<Threads>,
    /// Discards in progress.
    discarding: usize,
    /// Discards that have been run at once.
    discarded: Vec<Completion>,
    file: Arc<DeviceFile>,
    /// A descriptor that is not readable yet, and whether it is being polled.
    watch: Option<(Watch, bool)>,
    /// Keeps the registered memory mapped.
    _pools: Vec<Arc<BufferPool>>,
}

impl Uring {
    /// Starts a uring for this device. Registers the pools if the system permits it.
    pub(super) fn start(file: &Arc<DeviceFile>, pools: &[Arc<BufferPool>]) -> io::Result<Self> {
        let uring = build()?;
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel is too old"));
        }
        let signal = Arc::new(Signal::new()?);
        let files = [file.as_fd().as_raw_fd(), signal.events.as_raw_fd()];
        uring.submitter().register_files(&files)?;
        let registered = register(&uring, pools);
        let start = || Threads::start_with(Arc::clone(file), 1, Some(signal.waker()));
        let discards = file.is_block_device().then(start).transpose()?;
        Ok(Self {
            inner: uring,
            enabled: false,
            polling: false,
            signal,
            registered,
            in_flight: InFlight::new(),
            backlog: VecDeque::new(),
            discards,
            discarding: 0,
            discarded: Vec::new(),
            file: Arc::clone(file),
            watch: None,
            _pools: pools.to_vec(),
        })
    }

    /// Tries all required operations on a separate uring.
    pub(super) fn probe(file: &Arc<DeviceFile>) -> io::Result<()> {
        let pool = BufferPool::new(BLOCK_SIZE)?;
        let buffer = pool.take(BLOCK_SIZE).expect("the pool is new");
        let mut uring = Self::start(file, &[pool])?;
        uring.submit(&mut vec![IoCommand::Read {
            id: IoId(0),
            offset: 0,
            buffer,
            length: BLOCK_SIZE,
        }]);
        let mut done = Vec::new();
        while done.is_empty() {
            uring.try_wait(None, &mut done)?;
        }
        if let Err(fault) = done[0].result {
            return Err(io::Error::other(fault));
        }
        // The eventfd is written as if the thread were parked; the poll must stay armed.
        uring.signal.notify();
        uring.enter(1, Some(Duration::from_secs(10)))?;
        uring.reap(&mut done);
        if uring.polling {
            Ok(())
        } else {
            Err(io::Error::other("multishot poll is not supported"))
        }
    }

    fn try_wait(
        &mut self,
        timeout: Option<Duration>,
        done: &mut Vec<Completion>,
    ) -> io::Result<()> {
        self.enable()?;
        let before = done.len();
        self.reap(done);
        if done.len() == before && self.signal.park() {
            let entered = self.enter(1, timeout);
            self.signal.unpark();
            entered?;
            self.reap(done);
        } else {
            self.signal.unpark();
            let queue = self.inner.submission();
            if !queue.is_empty() || queue.taskrun() {
                drop(queue);
                self.enter(0, None)?;
                self.reap(done);
            }
        }
        self.start_backlog();
        Ok(())
    }

    /// Binds the uring to this thread and polls the eventfd.
    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.inner.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        if !self.polling {
            let flags = u32::from(PollFlags::IN.bits());
            self.push(&opcode::PollAdd::new(EVENTS, flags).multi(true).build().user_data(WAKE));
            self.polling = true;
        }
        if let Some((watch, is_polled)) = &mut self.watch
            && !std::mem::replace(is_polled, true)
        {
            let flags = u32::from(PollFlags::IN.bits());
            let poll = opcode::PollAdd::new(Fd(watch.descriptor.as_raw_fd()), flags);
            self.push(&poll.build().user_data(WATCHED));
        }
        Ok(())
    }

    /// Submits the new commands, and waits for this number of completions.
    fn enter(&self, completions: usize, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.inner.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(completions),
            Some(timeout) => {
                let timespec = Timespec::from(timeout.min(TIMEOUT_MAX));
                submitter.submit_with_args(completions, &SubmitArgs::new().timespec(&timespec))
            }
        };
        match entered {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                // Timeout, signal, or the kernel asks for a retry.
                Some(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        for entry in self.inner.completion() {
            match entry.user_data() {
                WAKE => self.polling = cqueue::more(entry.flags()),
                WATCHED => {
                    if let Some((watch, _)) = self.watch.take() {
                        (watch.on_readable)();
                    }
                }
                number => {
                    let command = self.in_flight.remove(number);
                    done.push(complete(command, entry.result()));
                }
            }
        }
        done.append(&mut self.discarded);
        if let Some(discards) = self.discards.as_ref().filter(|_| self.discarding > 0) {
            let before = done.len();
            discards.take(done);
            self.discarding -= done.len() - before;
        }
    }

    /// Starts the commands for which there is room.
    fn start_backlog(&mut self) {
        while !self.in_flight.is_full()
            && let Some(command) = self.backlog.pop_front()
        {
            let (number, command) = self.in_flight.insert(command);
            let entry = entry(command, &self.registered).user_data(number);
            self.push(&entry);
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that an entry points to is owned by its command, which is in
        // `in_flight` until its completion has been read. The poll points to nothing. Files are
        // registered.
        let pushed = unsafe { self.inner.submission().push(entry) };
        pushed.expect("the queue has room for all commands in flight and the poll");
    }
}

impl Disk for Uring {
    fn submit(&mut self, commands: &mut Vec<IoCommand>) {
        for command in commands.drain(..) {
            command.assert_aligned();
            match (command, &mut self.discards) {
                (command @ IoCommand::Discard { .. }, Some(discards)) => {
                    discards.submit(&mut vec![command]);
                    self.discarding += 1;
                }
                (IoCommand::Discard { id, offset, length }, None) => {
                    self.file.discard(offset, length);
                    self.discarded.push(Completion { id, buffer: None, result: Ok(()) });
                }
                (command, _) => self.backlog.push_back(command),
            }
        }
        self.start_backlog();
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        self.try_wait(timeout, done).expect("io_uring worked when it was probed");
    }

    fn waker(&self) -> Waker {
        self.signal.waker()
    }

    fn watch(&mut self, watch: Watch) {
        self.watch = Some((watch, false));
    }
}

impl Drop for Uring {
    /// Finishes the running commands and drops the queued ones.
    fn drop(&mut self) {
        self.backlog.clear();
        let mut done = Vec::new();
        while self.enabled && !self.in_flight.is_empty() {
            if self.enter(1, None).is_err() {
                std::mem::take(&mut self.in_flight.commands).into_iter().for_each(std::mem::forget);
                return;
            }
            self.reap(&mut done);
            done.clear();
        }
    }
}

/// A disabled uring in the cheapest mode that this kernel supports.
fn build() -> io::Result<Uninherited<IoUring>> {
    let modes: [fn(&mut Builder); 4] = [
        |builder| {
            // Linux 6.1: completion work runs only when this thread asks for it.
            builder.setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun();
            builder.setup_taskrun_flag().setup_submit_all();
        },
        |builder| {
            // Linux 6.0.
            builder.setup_single_issuer().setup_coop_taskrun();
            builder.setup_taskrun_flag().setup_submit_all();
        },
        |builder| {
            // Linux 5.19: no interrupts for completion work.
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        },
        |_| {},
    ];
    let mut last_error = io::Error::from(Errno::INVAL);
    for mode in modes {
        let mut builder = IoUring::builder();
        builder.setup_r_disabled().dontfork();
        mode(&mut builder);
        match Uninherited::new(|| builder.build(ENTRIES)) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => last_error = error,
            other => return other,
        }
    }
    Err(last_error)
}

/// Registers the pools, which saves the kernel a page lookup per command. A limit on locked memory
/// may prevent it; I/O then works without it.
fn register(uring: &IoUring, pools: &[Arc<BufferPool>]) -> Vec<Range<usize>> {
    let staged_writes = pools.iter().flat_map(|pool| {
        let start = pool.base() as usize;
        let end = start + pool.size();
        (start..end).step_by(REGISTERED_MAX).map(move |at| at..end.min(at + REGISTERED_MAX))
    });
    let staged_writes: Vec<Range<usize>> = staged_writes.collect();
    let vectors: Vec<libc::iovec> = staged_writes
        .iter()
        .map(|range| libc::iovec { iov_base: range.start as *mut _, iov_len: range.len() })
        .collect();
    // SAFETY: the ranges lie in the pools, which the uring keeps alive. Their bytes are accessed
    // only through buffers, which commands own.
    match unsafe { uring.submitter().register_buffers(&vectors) } {
        Ok(()) => staged_writes,
        Err(error) => {
            tracing::info!(%error, "buffers not registered: raise the limit on locked memory");
            Vec::new()
        }
    }
}

/// The submission queue entry of a command.
fn entry(command: &mut IoCommand, registered: &[Range<usize>]) -> squeue::Entry {
    match command {
        IoCommand::Read { offset, buffer, length: requested, .. } => {
            let (start, length) = (buffer.as_mut_ptr(), length(&buffer[..*requested]));
            match index(registered, start, length) {
                Some(index) => {
                    opcode::ReadFixed::new(DEVICE, start, length, index).offset(*offset).build()
                }
                None => opcode::Read::new(DEVICE, start, length).offset(*offset).build(),
            }
        }
        IoCommand::Write { offset, bytes, .. } => {
            let (start, length) = (bytes.as_ptr(), length(bytes));
            match index(registered, start, length) {
                Some(index) => {
                    opcode::WriteFixed::new(DEVICE, start, length, index).offset(*offset).build()
                }
                None => opcode::Write::new(DEVICE, start, length).offset(*offset).build(),
            }
        }
        IoCommand::Sync { .. } => opcode::Fsync::new(DEVICE).flags(FsyncFlags::DATASYNC).build(),
        IoCommand::Discard { .. } => unreachable!("discards run on a thread"),
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a region has less than 4 GiB")
}

/// Index of the registered range with these bytes; `None` if they span two.
fn index(registered: &[Range<usize>], start: *const u8, length: u32) -> Option<u16> {
    let (start, end) = (start as usize, start as usize + length as usize);
    let index = registered.iter().position(|range| range.start <= start && end <= range.end)?;
    u16::try_from(index).ok()
}

fn complete(command: IoCommand, result: i32) -> Completion {
    let result =
        u32::try_from(result).map_err(|_| IoFault::from(Errno::from_raw_os_error(-result)));
    let whole = |requested: u32| match result {
        Ok(count) if count == requested => Ok(()),
        Ok(_) => Err(IoFault::Short),
        Err(fault) => Err(fault),
    };
    match command {
        IoCommand::Read { id, buffer, length: requested, .. } => {
            let result = whole(length(&buffer[..requested]));
            Completion { id, buffer: Some(buffer), result }
        }
        IoCommand::Write { id, bytes, .. } => {
            Completion { id, buffer: None, result: whole(length(&bytes)) }
        }
        IoCommand::Sync { id } | IoCommand::Discard { id, .. } => {
            Completion { id, buffer: None, result: result.map(|_| ()) }
        }
    }
}

/// Commands that the kernel may know, by number.
struct InFlight {
    commands: Vec<Option<IoCommand>>,
    free: Vec<usize>,
}

impl InFlight {
    fn new() -> Self {
        let count = (ENTRIES - POLLS) as usize;
        Self { commands: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.commands.len()
    }

    fn insert(&mut self, command: IoCommand) -> (u64, &mut IoCommand) {
        let number = self.free.pop().expect("the table is not full");
        (number as u64, self.commands[number].insert(command))
    }

    fn remove(&mut self, number: u64) -> IoCommand {
        let number = usize::try_from(number).expect("a number from `insert`");
        let command = self.commands[number].take().expect("a command completes once");
        self.free.push(number);
        command
    }
}

/// Ends a wait from another thread. Costs one atomic operation if the waiting thread is not parked.
///
/// The waking thread first leaves its message, then swaps in `WOKEN`, and writes to the eventfd
/// only if it swapped out `PARKED`. The waiting thread changes `AWAKE` to `PARKED`, enters the
/// kernel, swaps in `AWAKE` on return, and looks for messages. No wake-up is lost:
///
/// - The swap comes before `PARKED`. Then the change to `PARKED` fails, and there is no wait.
/// - The swap comes after `PARKED`. Then the eventfd is written, before or after the thread enters
///   the kernel. The uring has polled the eventfd since before `PARKED`, so there is a completion
///   either way, and the wait ends.
/// - The swap comes outside a wait. Then `WOKEN` stays until a wait begins and sees it, or until a
///   wait ends, which swaps it out and then looks for messages.
///
/// The eventfd is never read. The multishot poll reports every write, and a poll that is armed
/// again reports earlier writes at once. A wait that ended by itself may leave one completion
/// behind, which harmlessly ends a later wait early.
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
                signal.notify();
            }
        })
    }

    fn notify(&self) {
        // A write fails only if the counter is full, and then the eventfd is readable.
        let _ = rustix::io::write(&self.events, &1_u64.to_ne_bytes());
    }

    /// Whether to park: the waker has not been used since the last wait.
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
    fn memory_across_two_registered_ranges_is_in_neither() {
        let registered = [0x1000..0x5000, 0x5000..0x9000];
        let find = |start: usize, length| index(&registered, start as *const u8, length);
        assert_eq!(find(0x1000, 0x4000), Some(0));
        assert_eq!(find(0x4000, 0x2000), None);
        assert_eq!(find(0x5000, 0x1000), Some(1));
        assert_eq!(find(0x8000, 0x1001), None);
        assert_eq!(find(0x0, 0x1000), None);
    }

    /// Trap: "use-after-free when a read is cancelled". Only the uring's own thread can wait for
    /// running commands. Dropped elsewhere, it leaks their memory.
    #[test]
    fn dropped_by_another_thread_it_releases_no_buffer_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let file = DeviceFile::open(&directory.path().join("device"), 1 << 20).unwrap();
        let pool = BufferPool::new(1 << 20).unwrap();
        let Ok(mut uring) = Uring::start(&Arc::new(file), &[Arc::clone(&pool)]) else { return };
        let buffer = pool.take(1 << 20).unwrap();
        uring.submit(&mut vec![IoCommand::Read {
            id: IoId(0),
            offset: 0,
            buffer,
            length: BLOCK_SIZE,
        }]);
        uring.enable().unwrap();
        uring.enter(0, None).unwrap();
        let bound_to_a_thread = uring.inner.params().is_setup_single_issuer();
        std::thread::spawn(move || drop(uring)).join().unwrap();
        assert_eq!(pool.take(1 << 20).is_none(), bound_to_a_thread);
    }
}
