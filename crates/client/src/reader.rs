//! The reader: reads resident items from the nodes, and the rest from the job's agent.
//!
//! A node that is dead, hung or slow is skipped, and the agent reads the origin (promise 5).
//! Without the agent nothing can be read: a dead or hung agent is an error, and the job starts
//! another one.
//!
//! In a forked child a reader opens connections of its own.

use std::{
    path::Path,
    process,
    time::{Duration, Instant},
};

use forebay_auth::Credentials;
use forebay_core::{
    Endpoint, ItemOrdinal,
    cluster::{
        backoff::REQUEST_AGE_MAX,
        ring::{Key, Seeds},
    },
    node::presence::KnownPresence,
    train::manager::{Report, ReportAnswer},
};
use forebay_digest::{Digest, ItemLocation};
use forebay_wire::{BlobRange, GetAnswer, PAYLOAD_SIZE_MAX};

use crate::{
    Client, ClientError, Handle, Interrupt, NodeHealth, ReadInto, Result, View,
    cluster::{
        nodes::{Nodes, RequestContext},
        routing::Fanout,
    },
    greeting::Subject,
    wait::WaitPolicy,
};

/// Timeout of an agent that answers pings. It may wait for a slow origin; its own deadlines end
/// that.
const AGENT_TIMEOUT: Duration = Duration::from_mins(10);

/// Most bytes of one get that are allocated on the word of the digest alone.
const BELIEVED_MAX: u64 = 256 << 20;

/// Reads items of one dataset.
#[derive(Debug)]
pub struct Reader {
    digest: Digest,
    nodes: Nodes,
    agent_endpoint: Endpoint,
    credentials: Credentials,
    job: String,
    /// The process that opened the connections.
    process: u32,
    agent: Option<(Client, Handle)>,
    interrupt: Interrupt,
    counts: Counts,
}

/// Counters of a reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items read.
    pub items: u64,
    /// Ranges requested. An item is one range, or several if it is longer than 16 MiB.
    pub ranges: u64,
    /// Ranges that a node had.
    pub hits: u64,
    /// Bytes of all items read.
    pub bytes: u64,
}

/// Items that were requested and are still to be received.
#[derive(Debug)]
pub struct Asked(Pending);

#[derive(Debug)]
enum Pending {
    Requested {
        ranges: Vec<BlobRange>,
        fanout: Fanout<usize>,
        /// The process that sent the request, and when.
        process: u32,
        at: Instant,
    },
    /// An item is longer than one range. Nothing is requested yet.
    Unrequested(Vec<ItemOrdinal>),
}

impl Reader {
    /// Opens no connection yet. `nodes` are the seeds from which the nodes are discovered.
    pub fn new(digest: Digest, nodes: Option<Seeds>, agent: &Path, job: &str) -> Self {
        Self {
            digest,
            nodes: Nodes::new(nodes.unwrap_or_default()),
            agent_endpoint: agent.into(),
            credentials: Credentials::default(),
            job: job.to_owned(),
            process: process::id(),
            agent: None,
            interrupt: Interrupt::default(),
            counts: Counts::default(),
        }
    }

    /// Checks for an interrupt of the job while it waits.
    #[must_use]
    pub fn with_interrupt(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }

    /// The credentials for the nodes. The agent authenticates the job by its user id.
    #[must_use]
    pub fn with_credentials(self, credentials: Credentials) -> Self {
        Self { credentials, ..self }
    }

    /// The health of the nodes, to be merged with that of other readers of the process.
    pub fn health(&mut self) -> &mut NodeHealth {
        self.nodes.health()
    }

    /// Whether a single node has died since the last call and should be restarted.
    pub fn take_restart_hint(&mut self) -> bool {
        self.nodes.take_restart_hint()
    }

    /// The dataset.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The bytes of these items, in this order.
    pub fn get(&mut self, items: &[ItemOrdinal]) -> Result<Vec<Vec<u8>>> {
        self.get_by(items, |reader, reads| {
            let mut missing = reader.with_nodes(|nodes, context| nodes.get(context, reads));
            if !missing.is_empty() {
                reader.get_from_agent(&mut missing)?;
            }
            Ok(missing.len())
        })
    }

    /// The same from the origin, even if the items are resident: a probe.
    pub fn get_from_origin(&mut self, items: &[ItemOrdinal]) -> Result<Vec<Vec<u8>>> {
        self.get_by(items, |reader, mut reads| {
            reader.with_agent(|agent, handle| agent.probe_mode(handle, true))?;
            let got = reader.get_from_agent(&mut reads);
            // The mode ends with the connection, if that broke.
            if reader.agent.is_some() {
                reader.with_agent(|agent, handle| agent.probe_mode(handle, false))?;
            }
            got.map(|()| reads.len())
        })
    }

    /// Allocates buffers for these items, has `fill` fill them, and counts. `fill` returns the
    /// number of ranges that no node had.
    fn get_by(
        &mut self,
        items: &[ItemOrdinal],
        fill: impl Fn(&mut Self, Vec<ReadInto<'_>>) -> Result<usize>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut locations = Vec::with_capacity(items.len());
        for item in items {
            locations.push(self.digest.item(*item)?);
        }
        if locations.iter().map(|location| location.length).sum::<u64>() > BELIEVED_MAX {
            // A digest may announce more bytes than there are. An item whose last byte can be read
            // is as long as it says.
            let mut last_bytes = vec![0; locations.len()];
            let ends = locations.iter().zip(last_bytes.chunks_mut(1));
            let ends = ends.filter(|(location, _)| location.length > 0);
            let ends = ends.map(|(ItemLocation { blob, offset, length }, into)| ReadInto {
                blob: *blob,
                offset: offset + length - 1,
                into,
            });
            fill(self, ends.collect())?;
        }
        let length = |location: &ItemLocation| {
            usize::try_from(location.length).expect("items fit into memory")
        };
        let mut contents: Vec<Vec<u8>> =
            locations.iter().map(|location| vec![0; length(location)]).collect();
        let mut reads = Vec::with_capacity(items.len());
        for (location, content) in locations.iter().zip(&mut contents) {
            let mut offset = location.offset;
            for into in content.chunks_mut(PAYLOAD_SIZE_MAX) {
                let next = offset + into.len() as u64;
                reads.push(ReadInto { blob: location.blob, offset, into });
                offset = next;
            }
        }
        let ranges = reads.len();
        let missed = fill(self, reads)?;
        self.counts.ranges += ranges as u64;
        self.counts.hits += (ranges - missed) as u64;
        self.counts.items += items.len() as u64;
        self.counts.bytes += contents.iter().map(|content| content.len() as u64).sum::<u64>();
        Ok(contents)
    }

    /// Views of these items, in this order. A hit on a node of this machine is not copied: its view
    /// occupies shared memory until it is dropped. When that is full, bytes are copied.
    pub fn get_views(&mut self, items: &[ItemOrdinal]) -> Result<Vec<View>> {
        let asked = self.ask(items)?;
        self.take(asked)
    }

    /// Requests these items from the nodes without waiting, so that the nodes work while the job
    /// does something else. The caller must [`Reader::take`] them before any other use of this
    /// reader.
    pub fn ask(&mut self, items: &[ItemOrdinal]) -> Result<Asked> {
        let mut ranges = Vec::with_capacity(items.len());
        for item in items {
            let location = self.digest.item(*item)?;
            let length = u32::try_from(location.length).ok();
            let Some(length) = length.filter(|length| *length as usize <= PAYLOAD_SIZE_MAX) else {
                return Ok(Asked(Pending::Unrequested(items.to_vec())));
            };
            ranges.push(BlobRange { blob: location.blob, offset: location.offset, length });
        }
        let fanout = self.with_nodes(|nodes, context| nodes.send_views(context, &ranges));
        Ok(Asked(Pending::Requested { ranges, fanout, process: self.process, at: Instant::now() }))
    }

    /// Receives the requested items. The agent reads those that no node has.
    pub fn take(&mut self, asked: Asked) -> Result<Vec<View>> {
        let (ranges, fanout) = match asked.0 {
            Pending::Unrequested(items) => {
                return Ok(self.get(&items)?.into_iter().map(View::own).collect());
            }
            Pending::Requested { ranges, fanout, process, at }
                if process == process::id() && at.elapsed() < REQUEST_AGE_MAX =>
            {
                (ranges, fanout)
            }
            // Requested by the parent process, or too old: the node may have given up.
            Pending::Requested { ranges, .. } => {
                self.nodes.forget();
                let fanout = self.with_nodes(|nodes, context| nodes.send_views(context, &ranges));
                (ranges, fanout)
            }
        };
        let mut views =
            self.with_nodes(|nodes, context| nodes.receive_views(context, &ranges, fanout));
        let missed: Vec<usize> = (0..ranges.len()).filter(|at| views[*at].is_none()).collect();
        self.counts.ranges += ranges.len() as u64;
        self.counts.hits += (ranges.len() - missed.len()) as u64;
        if !missed.is_empty() {
            let ranges: Vec<BlobRange> = missed.iter().map(|at| ranges[*at]).collect();
            let answers =
                self.with_agent(|agent, handle| agent.get_views(handle, AGENT_TIMEOUT, &ranges))?;
            for (at, answer) in missed.into_iter().zip(answers) {
                views[at] = Some(answer.map_err(|_| ClientError::Unexpected)?);
            }
        }
        let views: Vec<View> = views.into_iter().flatten().collect();
        assert_eq!(views.len(), ranges.len(), "one view per item");
        self.counts.items += ranges.len() as u64;
        self.counts.bytes += views.iter().map(|view| view.len() as u64).sum::<u64>();
        Ok(views)
    }

    /// Updates the presence of all blobs; without a node none is present. Returns the number of
    /// bytes sent and received.
    pub fn presence(&mut self, known: &mut KnownPresence) -> u64 {
        self.with_nodes(|nodes, context| nodes.presence(context, known))
    }

    /// Sends a report to the manager of the dataset. The answer says what to draw from; `None` if
    /// no node answers.
    pub fn report(&mut self, report: &Report) -> Result<Option<ReportAnswer>> {
        let answer = self.with_manager(|node, handle| node.report(handle, report.clone()))?;
        let Some(ReportAnswer::Redirect(manager)) = answer else { return Ok(answer) };
        self.with_nodes(|nodes, context| {
            nodes.with_named(context, &manager, |node, handle| node.report(handle, report.clone()))
        })
    }

    /// Ends the job's participation in the dataset.
    pub fn leave(&mut self) -> Result<()> {
        self.with_manager(Client::leave).map(|_| ())
    }

    /// Sends the agent the items that will be read soon, in this order.
    pub fn prefetch_hint(&mut self, items: &[ItemOrdinal]) -> Result<()> {
        let mut blobs = Vec::with_capacity(items.len());
        for item in items {
            blobs.push(self.digest.item(*item)?.blob);
        }
        blobs.dedup();
        self.with_agent(|agent, handle| agent.prefetch_hint(handle, &blobs))
    }

    /// The sums of the nodes' counters; `None` without a node.
    pub fn node_stats(&mut self) -> Option<Vec<(String, u64)>> {
        self.with_nodes(Nodes::stats)
    }

    /// The counters of the agent.
    pub fn agent_stats(&mut self) -> Result<Vec<(String, u64)>> {
        self.with_agent(|agent, _| agent.stats())
    }

    fn get_from_agent(&mut self, reads: &mut [ReadInto<'_>]) -> Result<()> {
        let answers = self.with_agent(|agent, handle| agent.get(handle, AGENT_TIMEOUT, reads))?;
        if answers.iter().any(|answer| *answer != GetAnswer::Hit) {
            return Err(ClientError::Unexpected);
        }
        Ok(())
    }

    fn with_nodes<T>(&mut self, act: impl FnOnce(&mut Nodes, &RequestContext<'_>) -> T) -> T {
        self.notice_fork();
        let Self { nodes, digest, job, credentials, interrupt, .. } = self;
        let subject = Subject::Dataset(digest);
        act(nodes, &RequestContext { subject, job, credentials, interrupt })
    }

    /// Calls `act` with the manager of the dataset: the first node in its order that answers.
    fn with_manager<T>(
        &mut self,
        act: impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        let key = Key::from(&self.digest.summary().dataset);
        self.with_nodes(|nodes, context| nodes.with_first(context, key, act))
    }

    fn with_agent<T>(&mut self, act: impl FnOnce(&mut Client, Handle) -> Result<T>) -> Result<T> {
        self.notice_fork();
        if self.agent.is_none() {
            self.agent = Some(self.connect_to_agent()?);
        }
        let (agent, handle) = self.agent.as_mut().expect("just connected");
        let outcome = act(agent, *handle);
        if outcome.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.agent = None;
        }
        outcome
    }

    fn connect_to_agent(&self) -> Result<(Client, Handle)> {
        let (endpoint, credentials) = (&self.agent_endpoint, Credentials::default());
        let peers = [endpoint.clone()].into();
        let policy = WaitPolicy::with_pings(&self.interrupt, endpoint, peers, &credentials);
        let mut client =
            Client::connect_with(&credentials, endpoint, &self.job, AGENT_TIMEOUT, policy)?;
        let handle = client.open(&self.digest)?;
        Ok((client, handle))
    }

    /// A forked child must not use the sockets of its parent.
    fn notice_fork(&mut self) {
        if self.process != process::id() {
            self.process = process::id();
            self.nodes.forget();
            self.agent = None;
        }
    }
}
