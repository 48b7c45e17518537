//! The thread that owns a device: it hands messages to the shard, the shard's commands to the disk, what
//! the disk has done back to the shard, and the shard's answers to whoever asked. It parks when there is
//! nothing to do.

use std::{io, sync::Arc, thread::JoinHandle, time::Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::{
    index::Index,
    io::{Disk, Fault, Waker},
    layout::Geometry,
    recovery::{Found, Recovery},
    shard::{Counters, Outcome, Request, Shard},
};

/// Where an answer goes.
pub type Reply = oneshot::Sender<Outcome>;

/// A device and its thread.
pub struct Driver {
    inbox: Arc<Mutex<Vec<Message>>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    index: Arc<RwLock<Index>>,
    counters: Arc<Mutex<Counters>>,
    geometry: Geometry,
    found: Found,
}

enum Message {
    Ask(Request, Reply),
    /// What nobody waits for.
    Tell(Request),
    Stop,
}

impl Driver {
    /// Starts a thread that first recovers the device, then serves it.
    pub fn start(
        name: String,
        recovery: Recovery<Option<Reply>>,
        open: impl FnOnce() -> Box<dyn Disk> + Send + 'static,
    ) -> io::Result<Result<Self, Fault>> {
        let inbox: Arc<Mutex<Vec<Message>>> = Arc::default();
        let counters: Arc<Mutex<Counters>> = Arc::default();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(name).spawn({
            let (inbox, counters) = (Arc::clone(&inbox), Arc::clone(&counters));
            move || {
                let mut disk = open();
                let recovered = recovery.carry_out(&mut *disk);
                let (shard, found) = match recovered {
                    Ok(recovered) => recovered,
                    Err(fault) => return drop(ready.send(Err(fault))),
                };
                *counters.lock() = shard.counters();
                let facts = (disk.waker(), shard.index(), shard.geometry(), found);
                if ready.send(Ok(facts)).is_ok() {
                    serve(&inbox, &counters, shard, &mut *disk);
                }
            }
        })?;
        let ready = is_ready.recv().map_err(|_| io::Error::other("the device's thread ended"))?;
        Ok(ready.map(|(waker, index, geometry, found)| Self {
            inbox,
            waker,
            thread: Some(thread),
            index,
            counters,
            geometry,
            found,
        }))
    }

    /// Asks for something. Dropping the receiver does no harm.
    pub fn ask(&self, request: Request) -> oneshot::Receiver<Outcome> {
        let (reply, answer) = oneshot::channel();
        self.send([Message::Ask(request, reply)]);
        answer
    }

    /// Asks for many things at once.
    pub fn ask_all(
        &self,
        requests: impl IntoIterator<Item = Request>,
    ) -> Vec<oneshot::Receiver<Outcome>> {
        let (messages, answers): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|request| {
                let (reply, answer) = oneshot::channel();
                (Message::Ask(request, reply), answer)
            })
            .unzip();
        self.send(messages);
        answers
    }

    /// Says something that needs no answer.
    pub fn tell(&self, request: Request) {
        self.send([Message::Tell(request)]);
    }

    /// Where everything is.
    pub fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    /// What has been counted; whoever was answered is in it.
    pub fn counters(&self) -> Counters {
        *self.counters.lock()
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

    fn send(&self, messages: impl IntoIterator<Item = Message>) {
        self.inbox.lock().extend(messages);
        (self.waker)();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.send([Message::Stop]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    inbox: &Mutex<Vec<Message>>,
    counters: &Mutex<Counters>,
    mut shard: Shard<Option<Reply>>,
    disk: &mut dyn Disk,
) {
    let started = Instant::now();
    let (mut messages, mut commands) = (Vec::new(), Vec::new());
    let (mut answers, mut done) = (Vec::new(), Vec::new());
    let mut stopping = false;
    loop {
        std::mem::swap(&mut messages, &mut *inbox.lock());
        // Before anything is asked: what begins now has its deadline counted from now.
        let now = started.elapsed();
        shard.advance(now);
        for message in messages.drain(..) {
            match message {
                Message::Ask(request, reply) => shard.submit(Some(reply), request),
                Message::Tell(request) => shard.submit(None, request),
                Message::Stop => stopping = true,
            }
        }
        shard.take(&mut commands, &mut answers);
        *counters.lock() = shard.counters();
        for (reply, outcome) in answers.drain(..) {
            // Whoever asked may have gone.
            if let Some(reply) = reply {
                let _ = reply.send(outcome);
            }
        }
        if stopping && commands.is_empty() && shard.is_idle() {
            return;
        }
        disk.submit(&mut commands);
        let timeout = shard.wake_at().map(|at| at.saturating_sub(now));
        disk.wait(timeout, &mut done);
        done.drain(..).for_each(|completion| shard.completed(completion));
    }
}
