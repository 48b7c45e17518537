//! The threads backend: a [`Disk`] of threads with blocking I/O, for systems that forbid
//! `io_uring`. The `io_uring` backend uses one such thread for discards.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rustix::{
    fs::fdatasync,
    io::{Errno, pread, pwrite, retry_on_intr},
};

use super::{Completion, DeviceFile, Disk, IoCommand, IoFault, Waker};

/// Enough to keep a drive busy; most of them sleep.
const THREADS: usize = 16;

/// The threads, their queue and their completions.
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    file: Arc<DeviceFile>,
    queue: Mutex<Queue>,
    /// The queue has a command, or the threads are to stop.
    queue_changed: Condvar,
    done: Mutex<Done>,
    /// There is a completion, or the waker was used.
    done_changed: Condvar,
    /// Called after each completion.
    listener: Option<Waker>,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<IoCommand>,
    stopping: bool,
}

#[derive(Default)]
struct Done {
    completions: Vec<Completion>,
    woken: bool,
}

impl Threads {
    pub(super) fn start(file: Arc<DeviceFile>) -> io::Result<Self> {
        Self::start_with(file, THREADS, None)
    }

    /// Starts `count` threads that call `listener` after each completion.
    pub(super) fn start_with(
        file: Arc<DeviceFile>,
        count: usize,
        listener: Option<Waker>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            queue: Mutex::default(),
            queue_changed: Condvar::new(),
            done: Mutex::default(),
            done_changed: Condvar::new(),
            listener,
        });
        // From here on, an error stops the threads that have been started.
        let mut started = Self { shared, threads: Vec::new() };
        for number in 0..count {
            let shared = Arc::clone(&started.shared);
            let thread = std::thread::Builder::new().name(format!("flash-io-{number}"));
            started.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(started)
    }

    /// Moves the completions into `done`.
    pub(super) fn take(&self, done: &mut Vec<Completion>) {
        done.append(&mut self.shared.done.lock().completions);
    }
}

impl Disk for Threads {
    fn submit(&mut self, commands: &mut Vec<IoCommand>) {
        let count = commands.len();
        commands.iter().for_each(IoCommand::assert_aligned);
        self.shared.queue.lock().commands.extend(commands.drain(..));
        for _ in 0..count.min(self.threads.len()) {
            self.shared.queue_changed.notify_one();
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.shared.done.lock();
        while state.completions.is_empty() && !state.woken {
            match deadline {
                None => self.shared.done_changed.wait(&mut state),
                Some(deadline) => {
                    if self.shared.done_changed.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        state.woken = false;
        done.append(&mut state.completions);
    }

    fn waker(&self) -> Waker {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || {
            shared.done.lock().woken = true;
            shared.done_changed.notify_all();
        })
    }
}

impl Drop for Threads {
    /// Finishes the running commands and drops the queued ones.
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.stopping = true;
        queue.commands.clear();
        drop(queue);
        self.shared.queue_changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(command) = self.next() {
            let completion = self.execute(command);
            self.done.lock().completions.push(completion);
            self.done_changed.notify_all();
            if let Some(listener) = &self.listener {
                listener();
            }
        }
    }

    fn next(&self) -> Option<IoCommand> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopping {
                return None;
            }
            if let Some(command) = queue.commands.pop_front() {
                return Some(command);
            }
            self.queue_changed.wait(&mut queue);
        }
    }

    fn execute(&self, command: IoCommand) -> Completion {
        let file = &self.file;
        match command {
            IoCommand::Read { id, offset, mut buffer, length } => {
                let read = retry_on_intr(|| pread(file, &mut buffer[..length], offset));
                Completion { id, buffer: Some(buffer), result: whole(read, length) }
            }
            IoCommand::Write { id, offset, bytes } => {
                let written = retry_on_intr(|| pwrite(file, &bytes, offset));
                Completion { id, buffer: None, result: whole(written, bytes.len()) }
            }
            IoCommand::Sync { id } => {
                let result = retry_on_intr(|| fdatasync(file)).map_err(IoFault::from);
                Completion { id, buffer: None, result }
            }
            IoCommand::Discard { id, offset, length } => {
                file.discard(offset, length);
                Completion { id, buffer: None, result: Ok(()) }
            }
        }
    }
}

fn whole(result: Result<usize, Errno>, requested: usize) -> Result<(), IoFault> {
    if result? == requested { Ok(()) } else { Err(IoFault::Short) }
}
