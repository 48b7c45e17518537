//! How a job reads items: from the node what is resident, from its agent what is not.
//!
//! The node may be absent, slow, stopped or killed: then it is skipped, and the agent reads the origin
//! (promise 5). The agent is the job's own; without it nothing can be read, so that it is gone is an
//! error, and the job starts another. So it is if the agent does not answer to greetings any more.
//!
//! A reader notices that it is in a forked child, and opens connections of its own there.

use std::{
    mem,
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};

use forebay_core::{
    ItemOrdinal,
    digest::{Digest, ItemPlace},
    manager::{Answer, Report},
    patience::{NODE_PATIENCE, Retry},
};
use forebay_wire::{GetAnswer, PAYLOAD_SIZE_MAX, Refusal};

use crate::{Client, ClientError, Handle, Interrupt, Result, Wanted, waiting::Waiting};

/// An agent that lives may have to wait for a slow origin; its own deadlines end that.
const AGENT_PATIENCE: Duration = Duration::from_mins(10);

/// Reads items of one dataset.
#[derive(Debug)]
pub struct Reader {
    digest: Digest,
    node_path: Option<PathBuf>,
    agent_path: PathBuf,
    job: String,
    /// Whose connections these are.
    process: u32,
    node: Option<(Client, Handle)>,
    /// The clock of the attempts to reach the node.
    began: Instant,
    node_retry: Retry,
    node_fell: bool,
    agent: Option<(Client, Handle)>,
    interrupt: Interrupt,
    counts: Counts,
}

/// What a reader has read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items.
    pub items: u64,
    /// Pieces asked for: an item is one, or several if it is very long.
    pub pieces: u64,
    /// Pieces that the node had.
    pub hits: u64,
    /// Bytes of all items.
    pub bytes: u64,
}

impl Reader {
    /// No connection is made yet.
    pub fn new(digest: Digest, node: Option<&Path>, agent: &Path, job: &str) -> Self {
        Self {
            digest,
            node_path: node.map(Path::to_owned),
            agent_path: agent.to_owned(),
            job: job.to_owned(),
            process: process::id(),
            node: None,
            began: Instant::now(),
            node_retry: Retry::default(),
            node_fell: false,
            agent: None,
            interrupt: Interrupt::default(),
            counts: Counts::default(),
        }
    }

    /// While it waits it asks whether the user has interrupted the job.
    #[must_use]
    pub fn interrupted_by(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }

    /// Whether the node has failed since this was last asked, and is worth starting anew.
    pub fn node_fell(&mut self) -> bool {
        mem::take(&mut self.node_fell)
    }

    /// The dataset.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// What has been read so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The bytes of these items, in this order.
    pub fn get(&mut self, items: &[ItemOrdinal]) -> Result<Vec<Vec<u8>>> {
        self.get_by(items, |reader, wanted| {
            let mut missing = reader.get_from_node(wanted);
            if !missing.is_empty() {
                reader.get_from_agent(&mut missing)?;
            }
            Ok(missing.len())
        })
    }

    /// The same from the origin, whatever is resident: what a probe is made of.
    pub fn get_past_the_cache(&mut self, items: &[ItemOrdinal]) -> Result<Vec<Vec<u8>>> {
        self.get_by(items, |reader, mut wanted| {
            reader.with_agent(|agent, handle| agent.mode(handle, true))?;
            let got = reader.get_from_agent(&mut wanted);
            // A connection that broke meanwhile has taken its mode along.
            if reader.agent.is_some() {
                reader.with_agent(|agent, handle| agent.mode(handle, false))?;
            }
            got.map(|()| wanted.len())
        })
    }

    /// Makes room for the bytes of these items, has it filled, and counts; `fill` says how many it did not
    /// find on the node.
    fn get_by(
        &mut self,
        items: &[ItemOrdinal],
        fill: impl FnOnce(&mut Self, Vec<Wanted<'_>>) -> Result<usize>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut places = Vec::with_capacity(items.len());
        for item in items {
            places.push(self.digest.item(*item)?);
        }
        let length =
            |place: &ItemPlace| usize::try_from(place.length).expect("items fit into memory");
        let mut contents: Vec<Vec<u8>> =
            places.iter().map(|place| vec![0; length(place)]).collect();
        let mut wanted = Vec::with_capacity(items.len());
        for (place, content) in places.iter().zip(&mut contents) {
            let mut offset = place.offset;
            for into in content.chunks_mut(PAYLOAD_SIZE_MAX) {
                let next = offset + into.len() as u64;
                wanted.push(Wanted { blob: place.blob.0, offset, into });
                offset = next;
            }
        }
        let asked = wanted.len();
        let missed = fill(self, wanted)?;
        self.counts.pieces += asked as u64;
        self.counts.hits += (asked - missed) as u64;
        self.counts.items += items.len() as u64;
        self.counts.bytes += contents.iter().map(|content| content.len() as u64).sum::<u64>();
        Ok(contents)
    }

    /// Which blobs the node has, one bit for each; nothing without a node.
    pub fn presence(&mut self) -> Vec<u8> {
        let blobs = self.digest.summary().blobs;
        self.with_node(|node, handle| node.presence(handle, blobs)).unwrap_or_default()
    }

    /// Tells the agent which items will be asked for soon, in this order.
    pub fn want(&mut self, items: &[ItemOrdinal]) -> Result<()> {
        let mut blobs = Vec::with_capacity(items.len());
        for item in items {
            blobs.push(self.digest.item(*item)?.blob.0);
        }
        blobs.dedup();
        self.with_agent(|agent, handle| agent.want(handle, &blobs))
    }

    /// What the node has counted; nothing without a node.
    pub fn node_stats(&mut self) -> Option<Vec<(String, u64)>> {
        self.with_node(|node, _| node.stats())
    }

    /// What the agent has counted.
    pub fn agent_stats(&mut self) -> Result<Vec<(String, u64)>> {
        self.with_agent(|agent, _| agent.stats())
    }

    /// Says how the job gets on with the dataset; nothing without a node.
    pub fn report(&mut self, report: Report) -> Option<std::result::Result<Answer, Refusal>> {
        self.with_node(|node, handle| match node.report(handle, report) {
            Ok(answer) => Ok(Ok(answer)),
            Err(ClientError::Refused(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(error),
        })
    }

    /// Says that the job reads the dataset no more, if anybody is there to hear it.
    pub fn leave(&mut self) {
        self.with_node(Client::leave);
    }

    fn get_from_agent(&mut self, wanted: &mut [Wanted<'_>]) -> Result<()> {
        let answers = self.with_agent(|agent, handle| agent.get(handle, AGENT_PATIENCE, wanted))?;
        if answers.iter().any(|answer| *answer != GetAnswer::Hit) {
            return Err(ClientError::Unexpected);
        }
        Ok(())
    }

    /// What the node could not give: all of it, if there is no node.
    fn get_from_node<'a>(&mut self, mut wanted: Vec<Wanted<'a>>) -> Vec<Wanted<'a>> {
        let answers = self.with_node(|node, handle| node.get(handle, Duration::ZERO, &mut wanted));
        let Some(answers) = answers else { return wanted };
        let missed =
            wanted.into_iter().zip(answers).filter(|(_, answer)| *answer != GetAnswer::Hit);
        missed.map(|(wanted, _)| wanted).collect()
    }

    /// Does something with the node. Whatever goes wrong with it is no error: there is no answer then.
    fn with_node<T>(&mut self, act: impl FnOnce(&mut Client, Handle) -> Result<T>) -> Option<T> {
        self.notice_fork();
        let began = self.began.elapsed();
        if self.node.is_none() {
            let path = self.node_path.as_ref()?;
            if !self.node_retry.is_due(began) {
                return None;
            }
            let waiting = Waiting::patiently(&self.interrupt);
            match connect(path, &self.job, NODE_PATIENCE, waiting, &self.digest) {
                Ok(node) => self.node = Some(node),
                Err(error) => self.node_failed(began, &error),
            }
        }
        let (node, handle) = self.node.as_mut()?;
        let outcome = act(node, *handle);
        if let Err(error) = &outcome
            && !error.is_refusal()
        {
            self.node = None;
            self.node_failed(began, error);
        }
        outcome.ok()
    }

    fn node_failed(&mut self, began: Duration, error: &ClientError) {
        if !matches!(error, ClientError::Interrupted) {
            self.node_fell |= self.node_retry.failed(began, self.began.elapsed());
        }
    }

    fn with_agent<T>(&mut self, act: impl FnOnce(&mut Client, Handle) -> Result<T>) -> Result<T> {
        self.notice_fork();
        if self.agent.is_none() {
            let (path, job) = (&self.agent_path, &self.job);
            let waiting = Waiting::for_the_living(&self.interrupt, path);
            self.agent = Some(connect(path, job, AGENT_PATIENCE, waiting, &self.digest)?);
        }
        let (agent, handle) = self.agent.as_mut().expect("just connected");
        let outcome = act(agent, *handle);
        if outcome.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.agent = None;
        }
        outcome
    }

    /// A child shares its parent's sockets, and must not use them.
    fn notice_fork(&mut self) {
        if self.process != process::id() {
            self.process = process::id();
            self.node = None;
            self.agent = None;
            self.node_retry = Retry::default();
        }
    }
}

/// Whether an item's blob was resident when [`Reader::presence`] said this. A damaged row is nobody's:
/// whoever reads it is told.
pub fn is_resident(digest: &Digest, presence: &[u8], item: ItemOrdinal) -> bool {
    let Some(place) = digest.item(item).ok().filter(|_| !presence.is_empty()) else {
        return false;
    };
    let byte = usize::try_from(place.blob.0 / 8).ok().and_then(|at| presence.get(at));
    byte.is_some_and(|byte| byte >> (place.blob.0 % 8) & 1 == 1)
}

fn connect(
    path: &Path,
    job: &str,
    patience: Duration,
    waiting: Waiting,
    digest: &Digest,
) -> Result<(Client, Handle)> {
    let mut client = Client::connect_waiting(path, job, patience, waiting)?;
    let handle = client.open(digest)?;
    Ok((client, handle))
}
