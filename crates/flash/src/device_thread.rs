//! A device at work: the shard behind a lock, and the thread that carries its commands out and parks when
//! there are none.
//!
//! Whoever asks takes the lock and asks the shard itself. Most requests need no I/O at that moment: an
//! append is a copy into memory, and going to sleep until another thread had made it would cost more than
//! the copy. Only what the disk has to do wakes the thread, and only it ever touches the disk.

use std::{
    io,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::{
    index::Index,
    io::{Command, Disk, Fault, Waker},
    layout::Geometry,
    recovery::{Found, Recovery},
    shard::{Counters, Outcome, Request, Shard},
};

/// Where an answer goes, if anybody waits for it.
type Reply = Option<oneshot::Sender<Outcome>>;

/// A device and its thread.
pub struct Driver {
    window: Arc<Window>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    index: Arc<RwLock<Index>>,
    geometry: Geometry,
    entry_length_max: u64,
    found: Found,
}

/// Where requests are handed in.
struct Window {
    started: Instant,
    state: Mutex<State>,
    /// What nobody waits for. Whoever drops something may be inside the lock already.
    told: Mutex<Vec<Request>>,
    /// As they were when the lock was last given back, for those who are inside it.
    counters: Mutex<Counters>,
}

struct State {
    /// Gone when somebody has panicked over it: then everything that was asked is answered as gone.
    shard: Option<Box<Shard<Reply>>>,
    /// What the thread is to carry out.
    commands: Vec<Command>,
    /// When the thread looks for work by itself.
    wakes_at: Option<Duration>,
    stopping: bool,
}

/// However the thread ends, nobody waits for it any more.
struct End<'a>(&'a Window);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let shard = self.0.state.lock().shard.take();
        drop(shard);
    }
}

/// What is left to do when the lock has been given back.
struct After {
    answers: Vec<(Reply, Outcome)>,
    wake: bool,
}

impl Driver {
    /// Starts a thread that first recovers the device, then serves it.
    pub fn start(
        name: String,
        recovery: Recovery<Reply>,
        open: impl FnOnce() -> Box<dyn Disk> + Send + 'static,
    ) -> io::Result<Result<Self, Fault>> {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let mut disk = open();
            let (shard, found) = match recovery.carry_out(&mut *disk) {
                Ok(recovered) => recovered,
                Err(fault) => return drop(ready.send(Err(fault))),
            };
            let facts = (disk.waker(), shard.index(), shard.geometry(), found);
            let entry_length_max = shard.entry_length_max();
            let window = Arc::new(Window::new(shard));
            if ready.send(Ok((Arc::clone(&window), facts, entry_length_max))).is_ok() {
                window.serve(&mut *disk);
            }
        })?;
        let ready = is_ready.recv().map_err(|_| io::Error::other("the device's thread ended"))?;
        Ok(ready.map(|(window, (waker, index, geometry, found), entry_length_max)| Self {
            window,
            waker,
            thread: Some(thread),
            index,
            geometry,
            entry_length_max,
            found,
        }))
    }

    /// Asks for something. Dropping the receiver does no harm.
    pub fn ask(&self, request: Request) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        self.hand_in([(Some(reply), request)]);
        answer
    }

    /// Asks for many things at once.
    pub fn ask_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Vec<oneshot::Receiver<Outcome>> {
        let (asked, answers): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|request| {
                let (reply, answer) = oneshot::channel();
                ((Some(reply), request), answer)
            })
            .unzip();
        self.hand_in(asked);
        answers
    }

    /// Says something that needs no answer.
    pub fn tell(&self, request: Request) {
        self.window.told.lock().push(request);
        (self.waker)();
    }

    /// Where everything is.
    pub fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    /// What has been counted; whoever was answered is in it.
    pub fn counters(&self) -> Counters {
        *self.window.counters.lock()
    }

    /// The longest entry that can be written.
    pub fn entry_length_max(&self) -> u64 {
        self.entry_length_max
    }

    /// Wakes the thread.
    pub fn waker(&self) -> Waker {
        Arc::clone(&self.waker)
    }

    /// How the device is cut.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What was found when it was opened.
    pub fn found(&self) -> Found {
        self.found
    }

    fn hand_in(&self, requests: impl IntoIterator<Item = (Reply, Request)>) {
        let mut state = self.window.state.lock();
        let after = state.work(&self.window, |shard| {
            requests.into_iter().for_each(|(reply, request)| shard.submit(reply, request));
        });
        drop(state);
        if after.wake {
            (self.waker)();
        }
        after.answer();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.window.state.lock().stopping = true;
        (self.waker)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Window {
    fn new(shard: Shard<Reply>) -> Self {
        let counters = shard.counters();
        let state = State {
            shard: Some(Box::new(shard)),
            commands: Vec::new(),
            wakes_at: Some(Duration::ZERO),
            stopping: false,
        };
        let (told, counters) = (Mutex::default(), Mutex::new(counters));
        Self { started: Instant::now(), state: Mutex::new(state), told, counters }
    }

    /// The life of the thread.
    fn serve(&self, disk: &mut dyn Disk) {
        let _end = End(self);
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        loop {
            let (after, timeout) = {
                let mut state = self.state.lock();
                let after = state.work(self, |shard| {
                    done.drain(..).for_each(|completion| shard.completed(completion));
                });
                std::mem::swap(&mut commands, &mut state.commands);
                let Some(shard) = &state.shard else { return };
                if state.stopping && commands.is_empty() && shard.is_idle() {
                    return;
                }
                state.wakes_at = shard.wake_at();
                let now = self.started.elapsed();
                (after, state.wakes_at.map(|at| at.saturating_sub(now)))
            };
            after.answer();
            disk.submit(&mut commands);
            disk.wait(timeout, &mut done);
        }
    }
}

impl State {
    /// Does something with the shard, if there is one.
    fn work(&mut self, window: &Window, act: impl FnOnce(&mut Shard<Reply>)) -> After {
        let mut answers = Vec::new();
        // Dropped, if it panics: nobody must rely on it any more.
        let Some(mut shard) = self.shard.take() else { return After { answers, wake: true } };
        // First: what begins now has its deadline counted from now.
        shard.advance(window.started.elapsed());
        let told = std::mem::take(&mut *window.told.lock());
        for request in told {
            shard.submit(None, request);
        }
        act(&mut shard);
        shard.take(&mut self.commands, &mut answers);
        *window.counters.lock() = shard.counters();
        let earlier = match (shard.wake_at(), self.wakes_at) {
            (Some(at), Some(known)) => at < known,
            (Some(_), None) => true,
            (None, _) => false,
        };
        self.shard = Some(shard);
        After { answers, wake: earlier || !self.commands.is_empty() }
    }
}

impl After {
    fn answer(self) {
        for (reply, outcome) in self.answers {
            // Whoever asked may have gone.
            if let Some(reply) = reply {
                let _ = reply.send(outcome);
            }
        }
    }
}
