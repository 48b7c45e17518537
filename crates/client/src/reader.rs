//! How a job reads items: from the nodes what is resident, from its agent what is not.
//!
//! A node may be absent, slow, stopped or killed: then it is skipped, and the agent reads the origin
//! (promise 5). The agent is the job's own; without it nothing can be read, so that it is gone is an
//! error, and the job starts another. So it is if the agent does not answer to greetings any more.
//!
//! A reader notices that it is in a forked child, and opens connections of its own there.

use std::{
    path::Path,
    process,
    time::{Duration, Instant},
};

use forebay_core::{
    Endpoint, ItemOrdinal,
    digest::{Digest, ItemPlace},
    manager::{Answer, Report},
    patience::ASKED_AHEAD_MAX,
    presence::Known,
    ring::{Contacts, Key},
};
use forebay_identity::Credentials;
use forebay_wire::{BlobRange, GetAnswer, PAYLOAD_SIZE_MAX};

use crate::{
    Client, ClientError, Experience, Handle, Interrupt, Result, View, Wanted,
    nodes::{Caller, Nodes, Shares, Subject},
    waiting::Waiting,
};

/// An agent that lives may have to wait for a slow origin; its own deadlines end that.
const AGENT_PATIENCE: Duration = Duration::from_mins(10);

/// Reads items of one dataset.
#[derive(Debug)]
pub struct Reader {
    digest: Digest,
    nodes: Nodes,
    agent_at: Endpoint,
    credentials: Credentials,
    job: String,
    /// Whose connections these are.
    process: u32,
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
    /// Pieces that the nodes had.
    pub hits: u64,
    /// Bytes of all items.
    pub bytes: u64,
}

/// Items that were asked for, and are to be taken.
#[derive(Debug)]
pub struct Asked(How);

#[derive(Debug)]
enum How {
    Whole {
        ranges: Vec<BlobRange>,
        shares: Shares<usize>,
        /// Who has asked, and when.
        process: u32,
        at: Instant,
    },
    /// Some item is too long to be placed in one piece: nobody has been asked yet.
    InPieces(Vec<ItemOrdinal>),
}

impl Reader {
    /// No connection is made yet. Which nodes there are is asked of those that are named, if any are.
    pub fn new(digest: Digest, nodes: Option<Contacts>, agent: &Path, job: &str) -> Self {
        Self {
            digest,
            nodes: Nodes::new(nodes.unwrap_or_default()),
            agent_at: agent.into(),
            credentials: Credentials::default(),
            job: job.to_owned(),
            process: process::id(),
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

    /// Who it is to the node; to the agent it is the job's own user.
    #[must_use]
    pub fn known_by(self, credentials: Credentials) -> Self {
        Self { credentials, ..self }
    }

    /// What it knows of nodes: others of its process may know more.
    pub fn experience(&mut self) -> &mut Experience {
        self.nodes.experience()
    }

    /// Whether the node, if it is alone, has failed since this was last asked, and is worth starting anew.
    pub fn node_fell(&mut self) -> bool {
        self.nodes.fell()
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
            let mut missing = reader.with_nodes(|nodes, caller| nodes.get(caller, wanted));
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

    /// Views of these items, in this order: those that a node has lie where it has placed them. Whoever keeps
    /// views keeps their places: when there is none left, bytes are copied.
    pub fn get_views(&mut self, items: &[ItemOrdinal]) -> Result<Vec<View>> {
        let asked = self.ask(items)?;
        self.take(asked)
    }

    /// Asks the nodes for these items, and does not wait: they work while the job does something else. What was
    /// asked for is to be taken before anything else is done with this reader.
    pub fn ask(&mut self, items: &[ItemOrdinal]) -> Result<Asked> {
        let mut ranges = Vec::with_capacity(items.len());
        for item in items {
            let place = self.digest.item(*item)?;
            let length = u32::try_from(place.length).ok();
            let Some(length) = length.filter(|length| *length as usize <= PAYLOAD_SIZE_MAX) else {
                return Ok(Asked(How::InPieces(items.to_vec())));
            };
            ranges.push(BlobRange { blob: place.blob.0, offset: place.offset, length });
        }
        let shares = self.with_nodes(|nodes, caller| nodes.ask_views(caller, &ranges));
        Ok(Asked(How::Whole { ranges, shares, process: self.process, at: Instant::now() }))
    }

    /// Views of what was asked for; what no node has is read by the agent.
    pub fn take(&mut self, asked: Asked) -> Result<Vec<View>> {
        let (ranges, shares) = match asked.0 {
            How::InPieces(items) => {
                return Ok(self.get(&items)?.into_iter().map(View::own).collect());
            }
            How::Whole { ranges, shares, process, at }
                if process == process::id() && at.elapsed() < ASKED_AHEAD_MAX =>
            {
                (ranges, shares)
            }
            // The parent's, which is for the parent to take; or what the node may not wait to send any longer.
            How::Whole { ranges, .. } => {
                self.nodes.forget();
                let shares = self.with_nodes(|nodes, caller| nodes.ask_views(caller, &ranges));
                (ranges, shares)
            }
        };
        let mut views = self.with_nodes(|nodes, caller| nodes.take_views(caller, &ranges, shares));
        let missed: Vec<usize> = (0..ranges.len()).filter(|at| views[*at].is_none()).collect();
        self.counts.pieces += ranges.len() as u64;
        self.counts.hits += (ranges.len() - missed.len()) as u64;
        if !missed.is_empty() {
            let ranges: Vec<BlobRange> = missed.iter().map(|at| ranges[*at]).collect();
            let answers =
                self.with_agent(|agent, handle| agent.get_views(handle, AGENT_PATIENCE, &ranges))?;
            for (at, answer) in missed.into_iter().zip(answers) {
                views[at] = Some(answer.map_err(|_| ClientError::Unexpected)?);
            }
        }
        let views: Vec<View> = views.into_iter().flatten().collect();
        assert_eq!(views.len(), ranges.len(), "each item was found or is an error");
        self.counts.items += ranges.len() as u64;
        self.counts.bytes += views.iter().map(|view| view.len() as u64).sum::<u64>();
        Ok(views)
    }

    /// Brings up to date what is known of the nodes' blobs; without a node there are none. Returns how many
    /// bytes that took.
    pub fn presence(&mut self, known: &mut Known) -> u64 {
        self.with_nodes(|nodes, caller| nodes.presence(caller, known))
    }

    /// Says how the job gets on to whoever manages the dataset; the answer is what to draw from. Nothing, if
    /// nobody is there.
    pub fn report(&mut self, report: &Report) -> Result<Option<Answer>> {
        let answer = self.with_manager(|node, handle| node.report(handle, report.clone()))?;
        let Some(Answer::Elsewhere(manager)) = answer else { return Ok(answer) };
        self.with_nodes(|nodes, caller| {
            nodes.with_named(caller, &manager, |node, handle| node.report(handle, report.clone()))
        })
    }

    /// Says that the job reads the dataset no more.
    pub fn leave(&mut self) -> Result<()> {
        self.with_manager(Client::leave).map(|_| ())
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

    /// What the nodes have counted, together; nothing without a node.
    pub fn node_stats(&mut self) -> Option<Vec<(String, u64)>> {
        self.with_nodes(Nodes::stats)
    }

    /// What the agent has counted.
    pub fn agent_stats(&mut self) -> Result<Vec<(String, u64)>> {
        self.with_agent(|agent, _| agent.stats())
    }

    fn get_from_agent(&mut self, wanted: &mut [Wanted<'_>]) -> Result<()> {
        let answers = self.with_agent(|agent, handle| agent.get(handle, AGENT_PATIENCE, wanted))?;
        if answers.iter().any(|answer| *answer != GetAnswer::Hit) {
            return Err(ClientError::Unexpected);
        }
        Ok(())
    }

    fn with_nodes<T>(&mut self, act: impl FnOnce(&mut Nodes, &Caller<'_>) -> T) -> T {
        self.notice_fork();
        let Self { nodes, digest, job, credentials, interrupt, .. } = self;
        let (subject, began) = (Subject::Dataset(digest), nodes.experience().now());
        act(nodes, &Caller { subject, job, credentials, interrupt, began })
    }

    /// The node that manages the dataset is the first in its order that answers.
    fn with_manager<T>(
        &mut self,
        act: impl FnMut(&mut Client, Handle) -> Result<T>,
    ) -> Result<Option<T>> {
        let key = Key::from(&self.digest.summary().dataset);
        self.with_nodes(|nodes, caller| nodes.with_first(caller, key, act))
    }

    fn with_agent<T>(&mut self, act: impl FnOnce(&mut Client, Handle) -> Result<T>) -> Result<T> {
        self.notice_fork();
        if self.agent.is_none() {
            let waiting =
                Waiting::for_the_living(&self.interrupt, &self.agent_at, &Credentials::default());
            self.agent = Some(connect(
                &Credentials::default(),
                &self.agent_at,
                (&self.job, AGENT_PATIENCE),
                waiting,
                &self.digest,
            )?);
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
            self.nodes.forget();
            self.agent = None;
        }
    }
}

fn connect(
    credentials: &Credentials,
    endpoint: &Endpoint,
    (job, patience): (&str, Duration),
    waiting: Waiting,
    digest: &Digest,
) -> Result<(Client, Handle)> {
    let mut client = Client::connect_waiting(credentials, endpoint, job, patience, waiting)?;
    let handle = client.open(digest)?;
    Ok((client, handle))
}
