//! Client process: a process of a job with the real client, on a thread of its own.
//!
//! The client routes, verifies and falls back as in a training process: by item
//! ([`crate::item_reader`]) or by address ([`crate::blob_reader`]). Beside the bytes, the world
//! checks what nodes cost one call: however many hang, a call waits for all of them together no
//! longer than [`NODE_WAIT_MAX`] (promise 5).

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    agent_host::LocalAgent,
    blob_reader::BlobReader,
    client_environment::WorldEnvironment,
    item_reader::ItemReader,
    job::{Epoch, Job},
    lockstep::{self, Ended, Turns},
};

/// Longest time that one call waits for nodes, all together.
const NODE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Waits of this length are events.
const NODE_WAIT_NOTED: Duration = Duration::from_secs(1);

type Order = (Arc<Epoch>, oneshot::Sender<()>);

/// A process, as its job sees it.
pub struct ClientProcess {
    job: Arc<Job>,
    orders: mpsc::UnboundedSender<Order>,
}

/// The thread of a process.
pub struct ProcessThread {
    /// Its job.
    pub job: Arc<Job>,
    /// Its number in the job.
    pub number: u8,
    /// Its decisions.
    pub random: Rng,
    /// The outside of its client.
    pub environment: Arc<WorldEnvironment>,
    turns: Arc<Turns>,
}

/// Reads the batches of a process by its client.
pub trait BatchReader {
    /// Reads these items, and delivers them.
    fn read(
        &mut self,
        thread: &mut ProcessThread,
        epoch: &Epoch,
        batch: &[usize],
    ) -> Result<(), Ended>;

    /// Most items of a batch.
    fn batch_max(&self, planned: usize) -> usize;
}

/// A call of a client that has ended.
pub struct Called<T> {
    /// Its result.
    pub value: T,
    /// Whether the process's machine was paused meanwhile.
    pub was_paused: bool,
}

impl ClientProcess {
    /// Starts a process. It ends with `tasks`.
    pub fn start(
        job: &Arc<Job>,
        number: u8,
        agent: &LocalAgent,
        mut random: Rng,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (of, agent) = (Arc::clone(job), agent.clone());
        // A job that reads by address does not renew its claims. Without a fault each blob has to
        // be read from the origin once.
        let is_by_address = random.u8(..4) == 0 && !job.world.plan.faults.is_none();
        tasks.spawn(lockstep::run(move |turns| {
            let mut thread = ProcessThread::new(of, number, agent, random, turns);
            // The world has ended: nothing is left to do.
            let _ = if is_by_address {
                let reader = BlobReader::new(&mut thread);
                thread.run(ordered, reader)
            } else {
                let reader = ItemReader::new(&thread);
                thread.run(ordered, reader)
            };
        }));
        Self { job: Arc::clone(job), orders }
    }

    /// Reads batches until the epoch has no items left.
    pub async fn read_epoch(&self, epoch: &Arc<Epoch>) {
        let (done, is_done) = oneshot::channel();
        let ordered = self.orders.send((Arc::clone(epoch), done));
        if ordered.is_err() || is_done.await.is_err() {
            let text = format_args!("{}: the client panics", self.job.name);
            self.job.world.trace.violate(5, text);
        }
    }
}

impl ProcessThread {
    fn new(
        job: Arc<Job>,
        number: u8,
        agent: LocalAgent,
        mut random: Rng,
        turns: Arc<Turns>,
    ) -> Self {
        let (network, of) = (job.world.network.clone(), random.fork());
        let environment = WorldEnvironment::new(Arc::clone(&turns), network, job.host, agent, of);
        Self { job, number, random, environment: Arc::new(environment), turns }
    }

    /// Reads the epochs that the job orders.
    fn run(
        &mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        mut reader: impl BatchReader,
    ) -> Result<(), Ended> {
        loop {
            let (next, rest) = self.turns.wait_for(async move {
                let next = orders.recv().await;
                (next, orders)
            })?;
            orders = rest;
            let Some((epoch, done)) = next else { return Ok(()) };
            self.read_epoch(&epoch, &mut reader)?;
            // The job may have been stopped.
            let _ = done.send(());
        }
    }

    fn read_epoch(&mut self, epoch: &Epoch, reader: &mut impl BatchReader) -> Result<(), Ended> {
        loop {
            let most = reader.batch_max(self.job.world.plan.batch_max);
            let batch = epoch.take(self.random.usize(1..=most));
            if batch.is_empty() || self.job.world.trace.violated.is_set() {
                return Ok(());
            }
            reader.read(self, epoch, &batch)?;
            self.compute(300)?;
        }
    }

    /// Computes for up to `most_ms`.
    pub fn compute(&mut self, most_ms: u64) -> Result<(), Ended> {
        let time = Duration::from_millis(self.random.u64(..most_ms));
        let (network, host) = (self.job.world.network.clone(), self.job.host);
        self.turns.wait_for(async move {
            sleep(time).await;
            sleep_until(network.paused_until(host)).await;
        })
    }

    /// A call of the client that waits for nodes only as long as they may be hung.
    pub fn call<T>(&mut self, what: &str, act: impl FnOnce() -> T) -> Result<Called<T>, Ended> {
        self.call_within(what, NODE_WAIT_MAX, act)
    }

    /// A call of the client that waits for nodes up to `most`.
    pub fn call_within<T>(
        &mut self,
        what: &str,
        most: Duration,
        act: impl FnOnce() -> T,
    ) -> Result<Called<T>, Ended> {
        let Job { world, name, host, .. } = &*self.job;
        let began = Instant::now();
        self.environment.take_waited_for_nodes();
        let value = act();
        if self.turns.has_ended() {
            return Err(Ended);
        }
        let was_paused = world.network.was_paused_since(*host, began);
        let waited = self.environment.take_waited_for_nodes();
        if waited >= NODE_WAIT_NOTED {
            world.trace.event(format_args!("{name}: a {what} waited {waited:?} for nodes"));
        }
        if waited > most && !was_paused {
            world.trace.violate(5, format_args!("{name}: a {what} waits {waited:?} for nodes"));
        }
        Ok(Called { value, was_paused })
    }
}
