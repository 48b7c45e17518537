//! The connections of one process: to the node, if it can be reached, and to the agent.
//!
//! The node is asked first and never waited for; whatever it does not have, or if it is not there, the
//! agent fetches (promise 5). So only the agent can fail a read.

use std::{
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};

use forebay_client::{Client, ClientError, Handle};
use forebay_core::digest::Digest;
use forebay_wire::{BlobRange, GetAnswer};

/// A node or agent that does not answer a question within this is not well.
const PATIENCE: Duration = Duration::from_secs(10);
/// A node that could not be reached is not tried again sooner.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long the agent may take for a batch: ten leases of somebody else's claim, then the origin with all
/// its retries. An agent that dies is noticed at once.
const AGENT_WAIT: Duration = Duration::from_mins(5);

/// Whom to speak to, and about what.
pub struct Ends {
    /// The dataset.
    pub digest: Digest,
    /// The node's socket.
    pub node: Option<PathBuf>,
    /// The agent's socket.
    pub agent: PathBuf,
    /// What the job calls itself.
    pub job: String,
}

/// What one thread of one process speaks through.
pub struct Links {
    pid: u32,
    node: Option<Open>,
    node_failed_at: Option<Instant>,
    agent: Option<Open>,
}

/// Names and values.
type Counters = Vec<(String, u64)>;

/// A connection with the dataset open.
struct Open {
    client: Client,
    handle: Handle,
}

impl Open {
    fn new(socket: &Path, ends: &Ends) -> Result<Self, ClientError> {
        let mut client = Client::connect(socket, &ends.job, PATIENCE)?;
        let handle = client.open(&ends.digest)?;
        Ok(Self { client, handle })
    }
}

impl Links {
    /// Nothing is connected before it is needed.
    pub fn new() -> Self {
        Self { pid: process::id(), node: None, node_failed_at: None, agent: None }
    }

    /// Whether they were made by this process: those that a fork has copied are the parent's.
    pub fn is_own(&self) -> bool {
        self.pid == process::id()
    }

    /// Fills the slots; the n-th is for the n-th range.
    pub fn get(
        &mut self,
        ends: &Ends,
        ranges: &[BlobRange],
        buffers: &mut [Vec<u8>],
    ) -> Result<(), ClientError> {
        let answers = self.ask_node(ends, |node| {
            let mut slots = crate::ranges::slots(buffers);
            let place = |at: usize, _| slots[at].take().expect("each range is answered once");
            node.client.get(node.handle, Duration::ZERO, ranges, place)
        });
        let missed =
            |at: &usize| answers.as_ref().is_none_or(|answers| answers[*at] != GetAnswer::Hit);
        let missing: Vec<usize> = (0..ranges.len()).filter(missed).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let asked: Vec<BlobRange> = missing.iter().map(|at| ranges[*at]).collect();
        let mut slots = crate::ranges::slots(buffers);
        let place = |at: usize, _| slots[missing[at]].take().expect("each range is answered once");
        let answers = self
            .ask_agent(ends, |agent| agent.client.get(agent.handle, AGENT_WAIT, &asked, place))?;
        // An agent answers with bytes or refuses.
        let complete = answers.iter().all(|answer| *answer == GetAnswer::Hit);
        complete.then_some(()).ok_or(ClientError::Unexpected)
    }

    /// Which blobs the node holds, a bit for each; `None` without a node.
    pub fn presence(&mut self, ends: &Ends) -> Option<Vec<u8>> {
        let blobs = ends.digest.summary().blobs;
        self.ask_node(ends, |node| node.client.presence(node.handle, blobs))
    }

    /// Tells the agent what will be asked for soon.
    pub fn want(&mut self, ends: &Ends, blobs: &[u64]) -> Result<(), ClientError> {
        self.ask_agent(ends, |agent| agent.client.want(agent.handle, blobs))
    }

    /// The counters of the node, if there is one, and of the agent.
    pub fn stats(&mut self, ends: &Ends) -> Result<(Option<Counters>, Counters), ClientError> {
        let node = self.ask_node(ends, |node| node.client.stats());
        let agent = self.ask_agent(ends, |agent| agent.client.stats())?;
        Ok((node, agent))
    }

    /// Asks the node, if it can be reached. A connection that failed in any way is given up.
    fn ask_node<T>(
        &mut self,
        ends: &Ends,
        question: impl FnOnce(&mut Open) -> Result<T, ClientError>,
    ) -> Option<T> {
        let socket = ends.node.as_ref()?;
        if self.node.is_none() {
            if self.node_failed_at.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
                return None;
            }
            self.node = Open::new(socket, ends).ok();
        }
        let answer = self.node.as_mut().and_then(|node| question(node).ok());
        if answer.is_none() {
            self.node = None;
            self.node_failed_at = Some(Instant::now());
        }
        answer
    }

    fn ask_agent<T>(
        &mut self,
        ends: &Ends,
        question: impl FnOnce(&mut Open) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let agent = match &mut self.agent {
            Some(agent) => agent,
            None => self.agent.insert(Open::new(&ends.agent, ends)?),
        };
        let answer = question(agent);
        if answer.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.agent = None;
        }
        answer
    }
}
