//! Jobs: a real agent, and processes that read items of a dataset epoch by epoch.
//!
//! A process asks the owner of each blob, and its agent for what it does not get there, as the
//! client of a training process does. It checks every byte (promise 1), that each item comes once
//! per epoch (promise 2), and that no item takes too long (promise 5).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use forebay_agent::{Agent, Config, Environment};
use forebay_auth::Credentials;
use forebay_core::{ByteSize, cluster::ring::Seeds, train::manager::Report, units::ByteRate};
use forebay_transport::{Accepted, Entropy, Peer};
use forebay_wire::{BlobRange, GetAnswer, Reply, Request};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    dataset::Dataset,
    network::{HostConnector, HostId},
    pipe::{OpenGuard, Pipe, Way},
    secrets::{SECRETS, Secrets},
    wire_client::{CallError, Called, WireClient},
    world::World,
};

/// Time after which a process gives a node up, as the client does.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which it tries the node again.
const NODE_RETRY: Duration = Duration::from_secs(1);
/// Longest time of a batch, whatever fails but the origin (promise 5).
const BATCH_TIME_MAX: Duration = Duration::from_secs(12);
/// The same if the origin fails as well. A hung answer of it takes 5 s, and a second one 10 s more.
const BATCH_TIME_MAX_ORIGIN: Duration = Duration::from_secs(30);
/// Time that the agent has for an answer, before the world counts it as hung.
const AGENT_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval of a job's reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(700);

/// A job.
struct Job {
    world: Arc<World>,
    number: u8,
    name: String,
    host: HostId,
    dataset: Arc<Dataset>,
    credentials: Credentials,
}

/// One epoch.
struct Epoch {
    number: u32,
    /// Items that no process has taken.
    rest: Mutex<Vec<usize>>,
    /// How often each item was delivered.
    delivered: Mutex<Vec<u32>>,
}

/// One process.
struct Process {
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

/// Bytes between a process and the agent on its machine: without delay, and stopped with the host.
struct LocalWay {
    world: Arc<World>,
    host: HostId,
}

impl Way for LocalWay {
    fn arrival(&self) -> Instant {
        Instant::now()
    }

    fn blocked_until(&self) -> Instant {
        self.world.network.paused_until(self.host)
    }
}

/// Runs a job until its last epoch.
pub async fn run(world: Arc<World>, number: u8, mut random: Rng) {
    let host = HostId(100 + number);
    let datasets = [&world.private, &world.public];
    let dataset = Arc::clone(datasets[usize::from(number) % 2]);
    sleep(Duration::from_millis(random.u64(..3000))).await;
    let nonces = Mutex::new(random.fork());
    let entropy = Entropy::from_source(move || {
        let mut nonce = [0; 32];
        nonces.lock().fill(&mut nonce);
        nonce
    });
    let connector = Arc::new(HostConnector { network: world.network.clone(), host });
    let credentials = Secrets::credentials(&SECRETS.team);
    let agent = Agent::new(
        Config {
            socket: "/nowhere".into(),
            nodes: Seeds::of_list(world.list.clone(), None).expect("one ring"),
            credentials: credentials.clone(),
            job: format!("job-{number}"),
            digest: dataset.digest.clone(),
            origin: world.origin.origin(),
            mirror: false,
            namespace: dataset.namespace.clone(),
            memory: ByteSize::mib(1),
        },
        Environment { entropy, connector },
    );
    let mut tasks = JoinSet::new();
    agent.spawn_background(&mut tasks);
    let name = format!("job-{number}");
    let job = Arc::new(Job { world: Arc::clone(&world), number, name, host, dataset, credentials });
    if world.plan.faults.managed {
        tasks.spawn(report(Arc::clone(&job), random.fork()));
    }
    let mut processes = Vec::new();
    for number in 0..world.plan.processes {
        match Process::new(&job, number, &agent, random.fork(), &mut tasks).await {
            Ok(process) => processes.push(process),
            Err(error) => {
                return world.trace.violate(5, format_args!("the agent does not open: {error:?}"));
            }
        }
    }
    for number in 0..world.plan.epochs {
        let items = job.dataset.items.len();
        let mut order: Vec<usize> = (0..items).collect();
        random.shuffle(&mut order);
        let (rest, delivered) = (Mutex::new(order), Mutex::new(vec![0; items]));
        let epoch = Epoch { number, rest, delivered };
        join_all(processes.iter_mut().map(|process| process.read_epoch(&epoch))).await;
        let delivered = epoch.delivered.lock();
        if let Some(item) = delivered.iter().position(|times| *times != 1) {
            let times = delivered[item];
            let text = format_args!("{}: item {item} came {times} times", job.name);
            world.trace.violate(2, text);
        }
        world.trace.event(format_args!("{} epoch {number} ended", job.name));
    }
    for process in &mut processes {
        process.add_up().await;
    }
}

impl Process {
    async fn new(
        job: &Arc<Job>,
        number: u8,
        agent: &Agent,
        random: Rng,
        tasks: &mut JoinSet<()>,
    ) -> Called<Self> {
        let way = || -> Arc<dyn Way> {
            Arc::new(LocalWay { world: Arc::clone(&job.world), host: job.host })
        };
        let (there, back) = (Pipe::new(way(), 256 << 10), Pipe::new(way(), 256 << 10));
        let (near, far) = (OpenGuard::default(), OpenGuard::default());
        let peer = Peer::Unix { uid: rustix::process::geteuid().as_raw() };
        let accepted = Accepted::new(peer, there.reader(Arc::clone(&far)), back.writer(far));
        let agent = agent.clone();
        tasks.spawn(async move {
            // The end of a process is the end of its connection.
            let _ = agent.serve(accepted).await;
        });
        let mut agent = WireClient::new((back.reader(Arc::clone(&near)), there.writer(near)));
        agent.hello(&job.name, &job.credentials, AGENT_TIMEOUT).await?;
        let agent_handle = agent.open(&job.dataset.digest, AGENT_TIMEOUT).await?;
        let nodes = job.world.nodes.iter().map(|_| NodeLink::default()).collect();
        Ok(Self { job: Arc::clone(job), number, random, agent, agent_handle, nodes })
    }

    /// Reads batches until the epoch has no items left.
    async fn read_epoch(&mut self, epoch: &Epoch) {
        loop {
            let batch: Vec<usize> = {
                let mut rest = epoch.rest.lock();
                let length = self.random.usize(1..=self.job.world.plan.batch_max);
                let from = rest.len() - length.min(rest.len());
                rest.drain(from..).collect()
            };
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
        let mut missing = Vec::new();
        for (item, bytes) in answers.into_iter().flatten() {
            match bytes {
                Some(bytes) => self.deliver(epoch, item, &bytes, "node"),
                None => missing.push(item),
            }
        }
        let (hits, misses) = (batch.len() - missing.len(), missing.len());
        if !missing.is_empty() {
            self.ask_agent(epoch, missing).await;
        }
        let took = began.elapsed();
        let Job { world, name, .. } = &*self.job;
        world.trace.event(format_args!(
            "{name}.{} epoch {} read: {hits} hits, {misses} from the agent, {} us",
            self.number,
            epoch.number,
            took.as_micros()
        ));
        world.trace.on_read(batch.len(), took);
        let max = if world.plan.faults.origin { BATCH_TIME_MAX_ORIGIN } else { BATCH_TIME_MAX };
        if took > max {
            world.trace.violate(5, format_args!("{name}: a batch took {took:?}"));
        }
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
                        self.deliver(epoch, item, &bytes, "agent");
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

    /// Checks the bytes of an item, and counts it.
    fn deliver(&self, epoch: &Epoch, item: usize, bytes: &[u8], from: &str) {
        let Job { world, dataset, name, .. } = &*self.job;
        if dataset.content(&dataset.items[item]) != bytes {
            let text = format_args!("{name}: wrong bytes of item {item} from its {from}");
            world.trace.violate(1, text);
        }
        epoch.delivered.lock()[item] += 1;
    }

    /// Adds the agent's counters to the world's, once per job.
    async fn add_up(&mut self) {
        if self.number > 0 {
            return;
        }
        let Ok(Reply::Stats { counters }) = self.agent.call(&Request::Stats, AGENT_TIMEOUT).await
        else {
            return;
        };
        let of = |name: &str| {
            counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
        };
        let (fetches, fallbacks, uncached) =
            (of("agent_origin_fetches"), of("agent_fallbacks"), of("agent_uncached"));
        self.job.world.trace.event(format_args!(
            "{} fetched {fetches}, fallbacks {fallbacks}, uncached {uncached}",
            self.job.name
        ));
        self.job.world.on_job_ended(fetches, fallbacks + uncached);
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

/// Connects to a node and opens the dataset.
async fn connect(job: &Job, node: usize) -> Called<(WireClient, u32)> {
    let to = job.world.nodes[node].host;
    let stream = job.world.network.connect(job.host, to, Peer::Tcp).await?;
    let mut client = WireClient::new(stream);
    client.hello(&job.name, &job.credentials, NODE_TIMEOUT).await?;
    let handle = client.open(&job.dataset.digest, NODE_TIMEOUT).await?;
    Ok((client, handle))
}

/// Reports to the manager of the dataset until the world ends. Everything is unread in each report:
/// the manager decides what is kept, and the nodes exchange its keep sets.
async fn report(job: Arc<Job>, mut random: Rng) {
    let mut node = random.usize(..job.world.nodes.len());
    let mut open = None;
    for number in 0_u64.. {
        sleep(REPORT_INTERVAL).await;
        if open.is_none() {
            open = timeout(NODE_TIMEOUT, connect(&job, node)).await.ok().and_then(Result::ok);
        }
        let Some((client, handle)) = &mut open else {
            node = random.usize(..job.world.nodes.len());
            continue;
        };
        let report = Report {
            incarnation: u64::from(job.number) + 1,
            gpus: 1,
            epoch_batches: 100,
            epoch: number / 20,
            pace: ByteRate(ByteSize::mib(1)),
            is_full: true,
            unread: Vec::new(),
            released: Vec::new(),
            filled: Vec::new(),
            batches: Vec::new(),
        };
        let request = Request::Report { handle: *handle, report };
        let answer = client.call(&request, Duration::from_secs(10)).await;
        job.world.trace.event(format_args!("{} report: {}", job.name, kind_of(&answer)));
        match answer {
            Ok(Reply::Report(forebay_core::train::manager::ReportAnswer::Redirect(to))) => {
                let mut known = job.world.nodes.iter();
                let found = known.position(|host| crate::node_host::name_of(host.host) == to);
                node = found.unwrap_or(node);
                open = None;
            }
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(_) => {
                node = random.usize(..job.world.nodes.len());
                open = None;
            }
        }
    }
}

fn kind_of(answer: &Called<Reply>) -> String {
    use forebay_core::train::manager::ReportAnswer;
    match answer {
        Ok(Reply::Report(ReportAnswer::Draw { .. })) => "a draw set".to_owned(),
        Ok(Reply::Report(other)) => format!("{other:?}"),
        Ok(_) => "another answer".to_owned(),
        Err(CallError::Refused(refusal)) => format!("refused: {refusal}"),
        Err(error) => format!("{error:?}"),
    }
}
