//! Process: a simulated process of a job, with the codec of `wire` and the handshake of `client`.
//!
//! It asks the owner of each blob, and its agent for what it does not get there, as the client of a
//! training process does.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use forebay_wire::{BlobRange, GetAnswer};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    agent_host::LocalAgent,
    job::{AGENT_TIMEOUT, BatchRead, Epoch, Job, NODE_TIMEOUT, connect},
    wire_client::{CallError, Called, WireClient},
};

/// Time after which it tries a node again.
const NODE_RETRY: Duration = Duration::from_secs(1);

/// One process.
pub struct Process {
    job: Arc<Job>,
    number: u8,
    random: Rng,
    agent: WireClient,
    agent_handle: u32,
    nodes: Vec<NodeLink>,
}

/// A process's connection to one node.
#[derive(Default)]
struct NodeLink {
    open: Option<(WireClient, u32)>,
    retry_at: Option<Instant>,
}

impl Process {
    /// Connects to the agent.
    pub async fn new(job: &Arc<Job>, number: u8, agent: &LocalAgent, random: Rng) -> Called<Self> {
        let mut agent = WireClient::new(agent.connect()?);
        agent.hello(&job.name, &job.credentials, AGENT_TIMEOUT).await?;
        let agent_handle = agent.open(&job.dataset.digest, AGENT_TIMEOUT).await?;
        let nodes = job.world.nodes.iter().map(|_| NodeLink::default()).collect();
        Ok(Self { job: Arc::clone(job), number, random, agent, agent_handle, nodes })
    }

    /// Reads batches until the epoch has no items left.
    pub async fn read_epoch(&mut self, epoch: &Epoch) {
        loop {
            let batch = epoch.take(self.random.usize(1..=self.job.world.plan.batch_max));
            if batch.is_empty() || self.job.world.trace.violated.is_set() {
                return;
            }
            self.read(epoch, &batch).await;
            // The computation of the job.
            sleep(Duration::from_millis(self.random.u64(..300))).await;
        }
    }

    async fn read(&mut self, epoch: &Epoch, batch: &[usize]) {
        let began = Instant::now();
        let items = &self.job.dataset.items;
        let mut by_owner: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for item in batch {
            by_owner
                .entry(self.job.world.owner(&self.job.dataset, items[*item].blob))
                .or_default()
                .push(*item);
        }
        let job = Arc::clone(&self.job);
        let links = self.nodes.iter_mut().enumerate();
        let asked = links.filter_map(|(node, link)| {
            let items = by_owner.remove(&node)?;
            Some(ask_node(&job, link, node, items))
        });
        let answers: Vec<Vec<(usize, Option<Bytes>)>> = join_all(asked).await;
        // Rogue members are not asked.
        let mut missing: Vec<usize> = by_owner.into_values().flatten().collect();
        for (item, bytes) in answers.into_iter().flatten() {
            match bytes {
                Some(bytes) => self.job.deliver(epoch, item, &bytes, "node"),
                None => missing.push(item),
            }
        }
        let (hits, misses) = (batch.len() - missing.len(), missing.len());
        if !missing.is_empty() {
            self.ask_agent(epoch, missing).await;
        }
        let read = BatchRead { process: self.number, hits, misses, took: began.elapsed() };
        self.job.on_read(epoch, read);
    }

    /// Reads items from the agent, which has to have them all.
    async fn ask_agent(&mut self, epoch: &Epoch, missing: Vec<usize>) {
        let ranges: Vec<BlobRange> =
            missing.iter().map(|item| self.job.dataset.items[*item]).collect();
        let handle = self.agent_handle;
        let answers = self.agent.get(handle, Duration::ZERO, &ranges, AGENT_TIMEOUT).await;
        let trace = &self.job.world.trace;
        match answers {
            Ok(answers) => {
                for (item, (answer, bytes)) in missing.into_iter().zip(answers) {
                    if answer == GetAnswer::Hit {
                        self.job.deliver(epoch, item, &bytes, "agent");
                    } else {
                        trace.violate(5, format_args!("the agent answers {answer:?}"));
                    }
                }
            }
            Err(CallError::Malformed(text)) => trace.violate(2, format_args!("the agent: {text}")),
            Err(error) => {
                trace.violate(5, format_args!("{}: the agent fails: {error:?}", self.job.name));
            }
        }
    }
}

/// Asks a node for items. `None` for those that it does not have.
async fn ask_node(
    job: &Job,
    link: &mut NodeLink,
    node: usize,
    items: Vec<usize>,
) -> Vec<(usize, Option<Bytes>)> {
    let ranges: Vec<BlobRange> = items.iter().map(|item| job.dataset.items[*item]).collect();
    let answers = match link.get(job, node, &ranges).await {
        Ok(answers) => answers,
        Err(error) => {
            if let CallError::Malformed(text) = &error {
                job.world.trace.violate(2, format_args!("node {node}: {text}"));
            }
            *link = NodeLink { open: None, retry_at: Some(Instant::now() + NODE_RETRY) };
            return items.into_iter().map(|item| (item, None)).collect();
        }
    };
    let bytes = answers.into_iter().map(|(answer, bytes)| match answer {
        GetAnswer::Hit => Some(bytes),
        GetAnswer::Miss | GetAnswer::Claimed => None,
    });
    items.into_iter().zip(bytes).collect()
}

impl NodeLink {
    async fn get(
        &mut self,
        job: &Job,
        node: usize,
        ranges: &[BlobRange],
    ) -> Called<Vec<(GetAnswer, Bytes)>> {
        if self.retry_at.is_some_and(|at| at > Instant::now()) {
            return Err(CallError::Silent);
        }
        let (client, handle) = match &mut self.open {
            Some((client, handle)) => (client, *handle),
            closed => {
                let opened = timeout(2 * NODE_TIMEOUT, connect(job, node)).await;
                let (client, handle) = closed.insert(opened.unwrap_or(Err(CallError::Silent))?);
                (client, *handle)
            }
        };
        client.get(handle, Duration::ZERO, ranges, NODE_TIMEOUT).await
    }
}
