//! The reader: reads resident items from the nodes, and the rest from the job's agent.
//!
//! A node that is dead, hung or slow is skipped, and the agent reads the origin (promise 5).
//! Without the agent nothing can be read: a dead or hung agent is an error, and the job starts
//! another one.
//!
//! Bytes that do not hash to their blob's address are never returned (promise 1). They are counted
//! and reported to the agent, which has the node check its copy, and they are read again from the
//! agent. Bytes that are wrong twice are an error.
//!
//! In a forked child a reader opens connections of its own.

use std::{
    path::Path,
    process,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_auth::Credentials;
use forebay_core::{
    BlobOrdinal, Endpoint, ItemOrdinal, Namespace,
    cluster::{
        backoff::REQUEST_AGE_MAX,
        ring::{Key, Seeds},
    },
    dataset::verification::{ByteSource, VerifyPolicy},
    node::presence::KnownPresence,
    train::manager::{Report, ReportAnswer},
};
use forebay_digest::{Digest, ItemLocation};
use forebay_wire::{BlobRange, GetAnswer, PAYLOAD_SIZE_MAX};

use crate::{
    Client, ClientEnvironment, ClientError, Handle, Interrupt, NodeHealth, ReadInto, Result,
    ThisMachine, View,
    cluster::{
        nodes::{Nodes, RequestContext},
        routing::Fanout,
    },
    greeting::Subject,
    verifier::{PlannedRead, Verifier},
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
    environment: Arc<dyn ClientEnvironment>,
    digest: Digest,
    nodes: Nodes,
    agent_endpoint: Endpoint,
    credentials: Credentials,
    job: String,
    /// The process that opened the connections.
    process: u32,
    agent: Option<(Client, Handle)>,
    interrupt: Interrupt,
    verifier: Verifier,
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
    /// Items whose bytes were verified.
    pub verified: u64,
    /// Items that were to be verified and could not be: the digest has no hash tree for their blob,
    /// or the key of its namespace is missing.
    pub unverifiable: u64,
    /// Items whose bytes did not hash to their blob's address. They were read again.
    pub hash_mismatches: u64,
}

/// Items that were requested and are still to be received.
#[derive(Debug)]
pub struct Asked(Pending);

#[derive(Debug)]
enum Pending {
    Requested {
        reads: Vec<PlannedRead>,
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
        Self::in_environment(ThisMachine::shared(), digest, nodes, agent, job)
    }

    /// The same in another environment.
    pub fn in_environment(
        environment: Arc<dyn ClientEnvironment>,
        digest: Digest,
        nodes: Option<Seeds>,
        agent: &Path,
        job: &str,
    ) -> Self {
        let (policy, seed) = (VerifyPolicy::default(), environment.random());
        Self {
            verifier: Verifier::new(policy, None, &digest, seed),
            digest,
            nodes: Nodes::new(&environment, nodes.unwrap_or_default()),
            environment,
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

    /// Which reads are verified, and the namespace of the digest if it is not the public one.
    #[must_use]
    pub fn with_verification(self, policy: VerifyPolicy, namespace: Option<Namespace>) -> Self {
        let seed = self.environment.random();
        Self { verifier: Verifier::new(policy, namespace, &self.digest, seed), ..self }
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
        Counts { unverifiable: self.verifier.unverifiable, ..self.counts }
    }

    /// The bytes of these items, in this order.
    pub fn get(&mut self, items: &[ItemOrdinal]) -> Result<Vec<Vec<u8>>> {
        let locations = self.locate(items)?;
        let reads = self.plan(&locations)?;
        self.get_by(&reads, |reader, reads| {
            let mut missing = reader.with_nodes(|nodes, context| nodes.get(context, reads));
            if !missing.is_empty() {
                reader.get_from_agent(&mut missing)?;
            }
            Ok(missing.len())
        })
    }

    /// The same from the origin, even if the items are resident: a probe.
    pub fn get_from_origin(&mut self, items: &[ItemOrdinal]) -> Result<Vec<Vec<u8>>> {
        let locations = self.locate(items)?;
        let reads = self.plan_from(&locations, &vec![ByteSource::Local; items.len()])?;
        self.get_by(&reads, |reader, mut reads| {
            reader.with_agent(|agent, handle| agent.probe_mode(handle, true))?;
            let got = reader.get_from_agent(&mut reads);
            // The mode ends with the connection, if that broke.
            if reader.agent.is_some() {
                reader.with_agent(|agent, handle| agent.probe_mode(handle, false))?;
            }
            got.map(|()| reads.len())
        })
    }

    /// Allocates buffers for these reads, has `fill` fill them, verifies, and counts. `fill`
    /// returns the number of ranges that no node had.
    fn get_by(
        &mut self,
        reads: &[PlannedRead],
        fill: impl Fn(&mut Self, Vec<ReadInto<'_>>) -> Result<usize>,
    ) -> Result<Vec<Vec<u8>>> {
        if reads.iter().map(PlannedRead::length).sum::<u64>() > BELIEVED_MAX {
            // A digest may announce more bytes than there are. A range whose last byte can be read
            // is as long as it says.
            let mut last_bytes = vec![0; reads.len()];
            let ends = reads.iter().zip(last_bytes.chunks_mut(1));
            let ends = ends.filter(|(read, _)| read.length() > 0);
            let ends = ends.map(|(read, into)| ReadInto {
                blob: read.blob,
                offset: read.extent.end - 1,
                into,
            });
            fill(self, ends.collect())?;
        }
        let length =
            |read: &PlannedRead| usize::try_from(read.length()).expect("items fit into memory");
        let mut contents: Vec<Vec<u8>> = reads.iter().map(|read| vec![0; length(read)]).collect();
        let all: Vec<ReadInto<'_>> =
            reads.iter().zip(&mut contents).flat_map(|(read, into)| pieces(read, into)).collect();
        let ranges = all.len();
        let missed = fill(self, all)?;
        let wrong = self.wrong_reads(reads, |at| &contents[at])?;
        if !wrong.is_empty() {
            self.report_wrong_bytes(reads, &wrong);
            let again = reads.iter().zip(&mut contents).enumerate();
            let again = again.filter(|(at, _)| wrong.contains(at));
            let again = again.flat_map(|(_, (read, into))| pieces(read, into));
            self.get_from_agent(&mut again.collect::<Vec<_>>())?;
            self.check_again(reads, &wrong, |at| &contents[at])?;
        }
        for (read, content) in reads.iter().zip(&mut contents) {
            let item = read.item_range();
            content.truncate(item.end);
            content.drain(..item.start);
        }
        self.counts.ranges += ranges as u64;
        self.counts.hits += (ranges - missed) as u64;
        self.counts.items += reads.len() as u64;
        self.counts.bytes += contents.iter().map(|content| content.len() as u64).sum::<u64>();
        Ok(contents)
    }

    fn locate(&self, items: &[ItemOrdinal]) -> Result<Vec<ItemLocation>> {
        let mut locations = Vec::with_capacity(items.len());
        for item in items {
            locations.push(self.digest.item(*item)?);
        }
        Ok(locations)
    }

    /// Decides for each item whether it is verified, by the node that owns its blob.
    fn plan(&mut self, locations: &[ItemLocation]) -> Result<Vec<PlannedRead>> {
        let blobs = locations.iter().map(|location| location.blob);
        let sources = self.with_nodes(|nodes, context| nodes.sources(context, blobs));
        self.plan_from(locations, &sources)
    }

    /// The same for items from these sources.
    fn plan_from(
        &mut self,
        locations: &[ItemLocation],
        sources: &[ByteSource],
    ) -> Result<Vec<PlannedRead>> {
        let mut reads = Vec::with_capacity(locations.len());
        for (location, source) in locations.iter().zip(sources) {
            reads.push(self.verifier.plan(&self.digest, *location, *source)?);
        }
        Ok(reads)
    }

    /// Verifies what was read. Returns the indices of the reads whose bytes are wrong.
    fn wrong_reads<'a>(
        &mut self,
        reads: &[PlannedRead],
        bytes: impl Fn(usize) -> &'a [u8],
    ) -> Result<Vec<usize>> {
        let mut wrong = Vec::new();
        for (at, read) in reads.iter().enumerate() {
            let is_right = self.verifier.check(&self.digest, read, bytes(at))?;
            self.counts.verified += u64::from(is_right.is_some());
            if is_right == Some(false) {
                wrong.push(at);
            }
        }
        self.counts.hash_mismatches += wrong.len() as u64;
        Ok(wrong)
    }

    /// Reports wrong bytes to the agent. Without an answer they are read again all the same.
    fn report_wrong_bytes(&mut self, reads: &[PlannedRead], wrong: &[usize]) {
        let mut blobs: Vec<BlobOrdinal> = wrong.iter().map(|at| reads[*at].blob).collect();
        blobs.sort_unstable();
        blobs.dedup();
        let _ = self.with_agent(|agent, handle| agent.report_wrong_bytes(handle, &blobs));
    }

    /// Verifies what was read again.
    fn check_again<'a>(
        &mut self,
        reads: &[PlannedRead],
        wrong: &[usize],
        bytes: impl Fn(usize) -> &'a [u8],
    ) -> Result<()> {
        for at in wrong {
            if self.verifier.check(&self.digest, &reads[*at], bytes(*at))? == Some(false) {
                return Err(ClientError::WrongBytes { blob: reads[*at].blob });
            }
        }
        Ok(())
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
        let locations = self.locate(items)?;
        let reads = self.plan(&locations)?;
        let ranges: Option<Vec<BlobRange>> = reads.iter().map(PlannedRead::range).collect();
        let Some(ranges) = ranges else {
            return Ok(Asked(Pending::Unrequested(items.to_vec())));
        };
        let fanout = self.with_nodes(|nodes, context| nodes.send_views(context, &ranges));
        let (process, at) = (self.process, self.environment.now());
        Ok(Asked(Pending::Requested { reads, ranges, fanout, process, at }))
    }

    /// Receives the requested items. The agent reads those that no node has.
    pub fn take(&mut self, asked: Asked) -> Result<Vec<View>> {
        let (reads, ranges, fanout) = match asked.0 {
            Pending::Unrequested(items) => {
                return Ok(self.get(&items)?.into_iter().map(View::own).collect());
            }
            Pending::Requested { reads, ranges, fanout, process, at }
                if process == process::id()
                    && self.environment.now().duration_since(at) < REQUEST_AGE_MAX =>
            {
                (reads, ranges, fanout)
            }
            // Requested by the parent process, or too old: the node may have given up.
            Pending::Requested { reads, ranges, .. } => {
                self.nodes.forget();
                let fanout = self.with_nodes(|nodes, context| nodes.send_views(context, &ranges));
                (reads, ranges, fanout)
            }
        };
        let mut views =
            self.with_nodes(|nodes, context| nodes.receive_views(context, &ranges, fanout));
        let missed: Vec<usize> = (0..ranges.len()).filter(|at| views[*at].is_none()).collect();
        self.counts.ranges += ranges.len() as u64;
        self.counts.hits += (ranges.len() - missed.len()) as u64;
        for (at, view) in self.views_from_agent(&ranges, &missed)? {
            views[at] = Some(view);
        }
        let mut views: Vec<View> = views.into_iter().flatten().collect();
        assert_eq!(views.len(), ranges.len(), "one view per item");
        let wrong = self.wrong_reads(&reads, |at| &views[at])?;
        if !wrong.is_empty() {
            self.report_wrong_bytes(&reads, &wrong);
            for (at, view) in self.views_from_agent(&ranges, &wrong)? {
                views[at] = view;
            }
            self.check_again(&reads, &wrong, |at| &views[at])?;
        }
        let views = views.into_iter().zip(&reads).map(|(view, read)| view.slice(read.item_range()));
        let views: Vec<View> = views.collect();
        self.counts.items += ranges.len() as u64;
        self.counts.bytes += views.iter().map(|view| view.len() as u64).sum::<u64>();
        Ok(views)
    }

    /// Some of these ranges from the agent, with their indices.
    fn views_from_agent(
        &mut self,
        ranges: &[BlobRange],
        indices: &[usize],
    ) -> Result<Vec<(usize, View)>> {
        if indices.is_empty() {
            return Ok(Vec::new());
        }
        let ranges: Vec<BlobRange> = indices.iter().map(|at| ranges[*at]).collect();
        let answers =
            self.with_agent(|agent, handle| agent.get_views(handle, AGENT_TIMEOUT, &ranges))?;
        let view = |(at, answer): (&usize, std::result::Result<View, GetAnswer>)| {
            answer.map(|view| (*at, view)).map_err(|_| ClientError::Unexpected)
        };
        indices.iter().zip(answers).map(view).collect()
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
        let Self { environment, nodes, digest, job, credentials, interrupt, .. } = self;
        let subject = Subject::Dataset(digest);
        act(nodes, &RequestContext { environment, subject, job, credentials, interrupt })
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
        let Self { environment, agent_endpoint: endpoint, interrupt, job, .. } = self;
        let (credentials, peers) = (Credentials::default(), [endpoint.clone()].into());
        let policy = WaitPolicy::with_pings(environment, interrupt, endpoint, peers, &credentials);
        let mut client =
            Client::connect_with(environment, &credentials, endpoint, job, AGENT_TIMEOUT, policy)?;
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

/// The reads of one range into its buffer: several if it is longer than a frame.
fn pieces<'a>(read: &PlannedRead, into: &'a mut [u8]) -> impl Iterator<Item = ReadInto<'a>> {
    let (blob, start) = (read.blob, read.extent.start);
    into.chunks_mut(PAYLOAD_SIZE_MAX).enumerate().map(move |(number, into)| ReadInto {
        blob,
        offset: start + (number * PAYLOAD_SIZE_MAX) as u64,
        into,
    })
}
