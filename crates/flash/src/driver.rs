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
    desk: Arc<Desk>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    index: Arc<RwLock<Index>>,
    geometry: Geometry,
    found: Found,
}

/// Where requests are handed in.
struct Desk {
    started: Instant,
    state: Mutex<State>,
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
            let desk = Arc::new(Desk::new(shard));
            if ready.send(Ok((Arc::clone(&desk), facts))).is_ok() {
                desk.serve(&mut *disk);
            }
        })?;
        let ready = is_ready.recv().map_err(|_| io::Error::other("the device's thread ended"))?;
        Ok(ready.map(|(desk, (waker, index, geometry, found))| Self {
            desk,
            waker,
            thread: Some(thread),
            index,
            geometry,
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
        self.hand_in([(None, request)]);
    }

    /// Where everything is.
    pub fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    /// What has been counted; whoever was answered is in it.
    pub fn counters(&self) -> Counters {
        self.desk
            .state
            .lock()
            .shard
            .as_ref()
            .map_or_else(Counters::default, |shard| shard.counters())
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
        let after = self.desk.state.lock().work(self.desk.started, |shard| {
            requests.into_iter().for_each(|(reply, request)| shard.submit(reply, request));
        });
        if after.wake {
            (self.waker)();
        }
        after.answer();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.desk.state.lock().stopping = true;
        (self.waker)();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Desk {
    fn new(shard: Shard<Reply>) -> Self {
        let state = State {
            shard: Some(Box::new(shard)),
            commands: Vec::new(),
            wakes_at: Some(Duration::ZERO),
            stopping: false,
        };
        Self { started: Instant::now(), state: Mutex::new(state) }
    }

    /// The life of the thread.
    fn serve(&self, disk: &mut dyn Disk) {
        let (mut commands, mut done) = (Vec::new(), Vec::new());
        loop {
            let (after, timeout) = {
                let mut state = self.state.lock();
                let after = state.work(self.started, |shard| {
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
    fn work(&mut self, started: Instant, act: impl FnOnce(&mut Shard<Reply>)) -> After {
        let mut answers = Vec::new();
        // Dropped, if it panics: nobody must rely on it any more.
        let Some(mut shard) = self.shard.take() else { return After { answers, wake: true } };
        // First: what begins now has its deadline counted from now.
        shard.advance(started.elapsed());
        act(&mut shard);
        shard.take(&mut self.commands, &mut answers);
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
