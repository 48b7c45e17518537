//! A [`Disk`] of threads that read and write one command at a time: for where `io_uring` is forbidden. The
//! ring uses one such thread, too, for what it cannot do itself.

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

use super::{Command, Completion, DeviceFile, Disk, Fault, Waker};

/// As many as keep a drive busy; each sleeps most of the time.
const THREADS: usize = 16;

/// The threads, and what is to be done and has been done.
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    file: Arc<DeviceFile>,
    todo: Mutex<Todo>,
    /// There is something to be done, or it is over.
    arrived: Condvar,
    done: Mutex<Done>,
    /// Something has been done, or the waker was used.
    changed: Condvar,
    /// Told of each completion, too.
    listener: Option<Waker>,
}

#[derive(Default)]
struct Todo {
    commands: VecDeque<Command>,
    over: bool,
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

    /// So many threads, which tell the listener of each completion.
    pub(super) fn start_with(
        file: Arc<DeviceFile>,
        count: usize,
        listener: Option<Waker>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            todo: Mutex::default(),
            arrived: Condvar::new(),
            done: Mutex::default(),
            changed: Condvar::new(),
            listener,
        });
        // From here on, a failure ends those that have been started.
        let mut started = Self { shared, threads: Vec::new() };
        for number in 0..count {
            let shared = Arc::clone(&started.shared);
            let thread = std::thread::Builder::new().name(format!("flash-io-{number}"));
            started.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(started)
    }

    /// Adds what has been completed.
    pub(super) fn take(&self, done: &mut Vec<Completion>) {
        done.append(&mut self.shared.done.lock().completions);
    }
}

impl Disk for Threads {
    fn submit(&mut self, commands: &mut Vec<Command>) {
        let count = commands.len();
        commands.iter().for_each(Command::assert_aligned);
        self.shared.todo.lock().commands.extend(commands.drain(..));
        for _ in 0..count.min(self.threads.len()) {
            self.shared.arrived.notify_one();
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.shared.done.lock();
        while state.completions.is_empty() && !state.woken {
            match deadline {
                None => self.shared.changed.wait(&mut state),
                Some(deadline) => {
                    if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
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
            shared.changed.notify_all();
        })
    }
}

impl Drop for Threads {
    /// What has begun is finished; what has not, is not begun any more.
    fn drop(&mut self) {
        let mut todo = self.shared.todo.lock();
        todo.over = true;
        todo.commands.clear();
        drop(todo);
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(command) = self.next() {
            let completion = self.carry_out(command);
            self.done.lock().completions.push(completion);
            self.changed.notify_all();
            if let Some(listener) = &self.listener {
                listener();
            }
        }
    }

    fn next(&self) -> Option<Command> {
        let mut todo = self.todo.lock();
        loop {
            if todo.over {
                return None;
            }
            if let Some(command) = todo.commands.pop_front() {
                return Some(command);
            }
            self.arrived.wait(&mut todo);
        }
    }

    fn carry_out(&self, command: Command) -> Completion {
        let file = &self.file;
        match command {
            Command::Read { id, offset, mut buffer, length } => {
                let read = retry_on_intr(|| pread(file, &mut buffer[..length], offset));
                Completion { id, buffer: Some(buffer), result: whole(read, length) }
            }
            Command::Write { id, offset, bytes } => {
                let written = retry_on_intr(|| pwrite(file, &bytes, offset));
                Completion { id, buffer: None, result: whole(written, bytes.len()) }
            }
            Command::Sync { id } => {
                let result = retry_on_intr(|| fdatasync(file)).map_err(Fault::from);
                Completion { id, buffer: None, result }
            }
            Command::Discard { id, offset, length } => {
                file.discard(offset, length);
                Completion { id, buffer: None, result: Ok(()) }
            }
        }
    }
}

fn whole(result: Result<usize, Errno>, asked: usize) -> Result<(), Fault> {
    if result? == asked { Ok(()) } else { Err(Fault::Short) }
}
