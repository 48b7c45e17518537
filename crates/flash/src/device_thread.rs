//! Device threads: one shard behind a lock, and one thread that runs its commands on the disk.
//!
//! A caller takes the lock and submits its request to the shard itself. Most requests need no I/O
//! at that moment: an append is a copy into memory, and a switch to another thread would cost more
//! than the copy. The thread is woken only when there are commands for the disk, and parks
//! otherwise. It is the only thread that uses the disk.
//!
//! In a simulated world there is no thread: the world takes the turns itself ([`DeviceDriver`]).

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::{Mutex, RwLock};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    format::Geometry,
    index::Index,
    io::{Completion, Disk, IoCommand, IoFault, Waker},
    recovery::{Recovery, RecoveryReport},
    shard::{BufferPools, Counters, RequestError, RequestResult, Shard, ShardRequest},
};

/// Where an answer goes. A reply that is dropped unanswered tells its caller that the device is
/// gone.
pub enum AnswerSink {
    /// The caller does not wait for it.
    None,
    /// To a caller that waits.
    Channel(oneshot::Sender<RequestResult>),
    /// To a function. It runs on the device's thread or on the caller's, without the shard's lock.
    Call(CallOnce),
}

/// A function that is called exactly once: with an answer, or with `Gone` when it is dropped.
pub struct CallOnce(Option<Box<dyn FnOnce(RequestResult) + Send>>);

impl AnswerSink {
    /// A reply that calls this function.
    pub fn call(function: impl FnOnce(RequestResult) + Send + 'static) -> Self {
        Self::Call(CallOnce(Some(Box::new(function))))
    }

    /// Sends an answer.
    pub fn send(self, outcome: RequestResult) {
        match self {
            Self::None => {}
            // The receiver may have been dropped.
            Self::Channel(sender) => drop(sender.send(outcome)),
            Self::Call(mut function) => {
                if let Some(function) = function.0.take() {
                    function(outcome);
                }
            }
        }
    }
}

impl Drop for CallOnce {
    fn drop(&mut self) {
        if let Some(function) = self.0.take() {
            function(Err(RequestError::Gone));
        }
    }
}

/// A shard that accepts requests from any thread: a device, or a simulated one.
pub trait Engine: Send + Sync {
    /// Submits a request.
    fn submit(&self, reply: AnswerSink, request: ShardRequest);
    /// Submits a request later, on another thread. Never blocks on the shard's lock, so it may be
    /// called wherever a buffer is dropped.
    fn post(&self, reply: AnswerSink, request: ShardRequest);
    /// The shard's index.
    fn index(&self) -> &RwLock<Index>;
    /// The shard's counters. They include every request that has been answered.
    fn counters(&self) -> Counters;
    /// The device's geometry.
    fn geometry(&self) -> Geometry;
    /// Memory for I/O.
    fn pools(&self) -> &BufferPools;

    /// Submits a request and returns its answer. Dropping the receiver is safe.
    fn request(&self, request: ShardRequest) -> oneshot::Receiver<RequestResult> {
        let (reply, answer) = oneshot::channel();
        self.submit(AnswerSink::Channel(reply), request);
        answer
    }
}

/// An open device and its thread.
pub struct DeviceThread {
    mailbox: Arc<Mailbox>,
    waker: Waker,
    /// `None` for a device that is driven from outside.
    thread: Option<JoinHandle<()>>,
    index: Arc<RwLock<Index>>,
    geometry: Geometry,
    pools: BufferPools,
    entry_length_max: u64,
    recovery_report: RecoveryReport,
}

/// State shared by the callers and the thread.
struct Mailbox {
    started: Instant,
    state: Mutex<State>,
    /// Requests without a reply. They have a lock of their own because a guard may be dropped while
    /// its thread holds `state`.
    posted: Mutex<Vec<(AnswerSink, ShardRequest)>>,
    /// A copy made whenever `state` is released, so that counters can be read while it is locked.
    counters: Mutex<Counters>,
}

struct State {
    /// `None` after a panic inside the shard; all requests then end with `Gone`.
    shard: Option<Box<Shard<AnswerSink>>>,
    /// Commands that the thread has yet to submit.
    commands: Vec<IoCommand>,
    /// Time at which the thread wakes up without a waker.
    wakes_at: Option<Duration>,
    stopping: bool,
}

/// Drops the shard when the thread ends for any reason, so that pending requests end too.
struct DropShard<'a>(&'a Mailbox);

impl Drop for DropShard<'_> {
    fn drop(&mut self) {
        let shard = self.0.state.lock().shard.take();
        drop(shard);
    }
}

/// Work to do after the lock is released.
struct Deferred {
    answers: Vec<(AnswerSink, RequestResult)>,
    wake: bool,
}

/// Takes the turns of a device that has no thread. Its end is the end of the device: all requests
/// end with `Gone`, as after a kill.
pub struct DeviceDriver {
    mailbox: Arc<Mailbox>,
    disk: Box<dyn Disk>,
    transfer: Transfer,
}

/// The state of a device after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The device is closed.
    Ended,
    /// The next turn follows a completion, a call of the waker, or this time.
    Next(Option<Duration>),
}

/// What a turn passes between shard and disk.
#[derive(Default)]
struct Transfer {
    commands: Vec<IoCommand>,
    done: Vec<Completion>,
}

impl DeviceDriver {
    /// Passes completions to the shard and new commands to the disk.
    pub fn turn(&mut self) -> Turn {
        self.mailbox.turn(&mut *self.disk, &mut self.transfer)
    }

    /// Takes completions from the disk, for the next turn.
    pub fn complete(&mut self) {
        self.disk.wait(Some(Duration::ZERO), &mut self.transfer.done);
    }
}

impl Drop for DeviceDriver {
    fn drop(&mut self) {
        drop(DropShard(&self.mailbox));
    }
}

impl DeviceThread {
    /// Recovers the device at once. The caller takes its turns from then on.
    pub fn driven(
        recovery: Recovery<AnswerSink>,
        pools: BufferPools,
        mut disk: Box<dyn Disk>,
    ) -> Result<(Self, DeviceDriver), IoFault> {
        let (shard, recovery_report) = recovery.run(&mut *disk)?;
        let (waker, index, geometry) = (disk.waker(), shard.index(), shard.geometry());
        let entry_length_max = shard.entry_length_max();
        let mailbox = Arc::new(Mailbox::new(shard));
        let transfer = Transfer::default();
        let driver = DeviceDriver { mailbox: Arc::clone(&mailbox), disk, transfer };
        let thread = None;
        let device = Self {
            mailbox,
            waker,
            thread,
            index,
            geometry,
            pools,
            entry_length_max,
            recovery_report,
        };
        Ok((device, driver))
    }

    /// Starts a thread that recovers the device and then serves it.
    pub fn start(
        name: String,
        recovery: Recovery<AnswerSink>,
        pools: BufferPools,
        open: impl FnOnce() -> Box<dyn Disk> + Send + 'static,
    ) -> io::Result<Result<Self, IoFault>> {
        let (started, start) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let mut disk = open();
            let (shard, report) = match recovery.run(&mut *disk) {
                Ok(recovered) => recovered,
                Err(fault) => return drop(started.send(Err(fault))),
            };
            let facts = (disk.waker(), shard.index(), shard.geometry(), report);
            let entry_length_max = shard.entry_length_max();
            let mailbox = Arc::new(Mailbox::new(shard));
            if started.send(Ok((Arc::clone(&mailbox), facts, entry_length_max))).is_ok() {
                mailbox.serve(&mut *disk);
            }
        })?;
        let start = start.recv().map_err(|_| io::Error::other("the device thread ended"))?;
        Ok(start.map(|(mailbox, (waker, index, geometry, report), entry_length_max)| Self {
            mailbox,
            waker,
            thread: Some(thread),
            index,
            geometry,
            pools,
            entry_length_max,
            recovery_report: report,
        }))
    }

    /// Submits several requests under one lock.
    pub fn request_all(
        &self,
        requests: impl IntoIterator<Item = ShardRequest>,
    ) -> Vec<oneshot::Receiver<RequestResult>> {
        let (requests, answers): (Vec<_>, Vec<_>) = requests
            .into_iter()
            .map(|request| {
                let (reply, answer) = oneshot::channel();
                ((AnswerSink::Channel(reply), request), answer)
            })
            .unzip();
        self.submit_all(requests);
        answers
    }

    /// The longest payload that can be appended.
    pub fn entry_length_max(&self) -> u64 {
        self.entry_length_max
    }

    /// Wakes the thread.
    pub fn waker(&self) -> Waker {
        Arc::clone(&self.waker)
    }

    /// What recovery found on the device.
    pub fn recovery_report(&self) -> RecoveryReport {
        self.recovery_report
    }

    fn submit_all(&self, requests: impl IntoIterator<Item = (AnswerSink, ShardRequest)>) {
        let mut state = self.mailbox.state.lock();
        let deferred = state.work(&self.mailbox, |shard| {
            requests.into_iter().for_each(|(reply, request)| shard.submit(reply, request));
        });
        drop(state);
        if deferred.wake {
            (self.waker)();
        }
        deferred.send_answers();
    }
}

impl Engine for DeviceThread {
    fn submit(&self, reply: AnswerSink, request: ShardRequest) {
        self.submit_all([(reply, request)]);
    }

    fn post(&self, reply: AnswerSink, request: ShardRequest) {
        self.mailbox.posted.lock().push((reply, request));
        (self.waker)();
    }

    fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    fn counters(&self) -> Counters {
        *self.mailbox.counters.lock()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn pools(&self) -> &BufferPools {
        &self.pools
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.mailbox.state.lock().stopping = true;
        (self.waker)();
        // The last handle may be dropped by an answer, on the device's own thread, which ends then.
        let thread = self.thread.take();
        let is_own = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| !is_own(thread)) {
            let _ = thread.join();
        }
    }
}

impl Mailbox {
    fn new(shard: Shard<AnswerSink>) -> Self {
        let counters = shard.counters();
        let state = State {
            shard: Some(Box::new(shard)),
            commands: Vec::new(),
            wakes_at: Some(Duration::ZERO),
            stopping: false,
        };
        let (posted, counters) = (Mutex::default(), Mutex::new(counters));
        Self { started: Instant::now(), state: Mutex::new(state), posted, counters }
    }

    /// The thread's main loop.
    fn serve(&self, disk: &mut dyn Disk) {
        let _drop_shard = DropShard(self);
        let mut transfer = Transfer::default();
        while let Turn::Next(timeout) = self.turn(disk, &mut transfer) {
            disk.wait(timeout, &mut transfer.done);
        }
    }

    /// Passes completions to the shard, answers to the callers and commands to the disk.
    fn turn(&self, disk: &mut dyn Disk, transfer: &mut Transfer) -> Turn {
        let Transfer { commands, done } = transfer;
        let (deferred, timeout) = {
            let mut state = self.state.lock();
            let deferred = state.work(self, |shard| {
                done.drain(..).for_each(|completion| shard.on_completion(completion));
            });
            std::mem::swap(commands, &mut state.commands);
            let Some(shard) = &state.shard else { return Turn::Ended };
            if state.stopping && commands.is_empty() && shard.is_idle() {
                return Turn::Ended;
            }
            state.wakes_at = shard.wake_at();
            let now = self.started.elapsed();
            (deferred, state.wakes_at.map(|at| at.saturating_sub(now)))
        };
        deferred.send_answers();
        disk.submit(commands);
        Turn::Next(timeout)
    }
}

impl State {
    /// Runs `act` on the shard, unless the shard is gone.
    fn work(&mut self, mailbox: &Mailbox, act: impl FnOnce(&mut Shard<AnswerSink>)) -> Deferred {
        let mut answers = Vec::new();
        // Taken out, so that a panic drops the shard: its state may be inconsistent then.
        let Some(mut shard) = self.shard.take() else { return Deferred { answers, wake: true } };
        // Before anything else, so that the deadlines of new requests count from now.
        shard.advance(mailbox.started.elapsed());
        let posted = std::mem::take(&mut *mailbox.posted.lock());
        for (reply, request) in posted {
            shard.submit(reply, request);
        }
        act(&mut shard);
        shard.take(&mut self.commands, &mut answers);
        *mailbox.counters.lock() = shard.counters();
        let earlier = match (shard.wake_at(), self.wakes_at) {
            (Some(at), Some(known)) => at < known,
            (Some(_), None) => true,
            (None, _) => false,
        };
        self.shard = Some(shard);
        Deferred { answers, wake: earlier || !self.commands.is_empty() }
    }
}

impl Deferred {
    fn send_answers(self) {
        for (reply, outcome) in self.answers {
            reply.send(outcome);
        }
    }
}
