//! Jobs: a real agent, and processes that read items of a dataset epoch by epoch.
//!
//! A process is simulated ([`crate::process`]) or has the real client ([`crate::client_process`]).
//! Every byte is checked (promise 1), that each item comes once per epoch (promise 2), and that no
//! item takes too long (promise 5).

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use forebay_auth::Credentials;
use forebay_core::{ByteSize, train::manager::Report, units::ByteRate};
use forebay_transport::Peer;
use forebay_wire::{Reply, Request};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    agent_host::LocalAgent,
    client_process::ClientProcess,
    dataset::Dataset,
    network::HostId,
    process::Process,
    secrets::{SECRETS, Secrets},
    wire_client::{CallError, Called, WireClient},
    world::World,
};

/// Time after which a process gives a node up, as the client does.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time of a batch, whatever fails but the origin (promise 5).
const BATCH_TIME_MAX: Duration = Duration::from_secs(12);
/// The same if the origin fails as well. A hung answer of it takes 5 s, and a second one 10 s more.
const BATCH_TIME_MAX_ORIGIN: Duration = Duration::from_secs(30);
/// Time that the agent has for an answer, before the world counts it as hung.
pub const AGENT_TIMEOUT: Duration = Duration::from_mins(2);
/// Interval of a job's reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(700);

/// A job.
pub struct Job {
    /// Where it runs.
    pub world: Arc<World>,
    number: u8,
    /// Its name.
    pub name: String,
    /// Its machine.
    pub host: HostId,
    /// What it reads.
    pub dataset: Arc<Dataset>,
    /// Its tenant's token.
    pub credentials: Credentials,
}

/// One epoch.
pub struct Epoch {
    /// Its number.
    pub number: u32,
    /// Items that no process has taken.
    rest: Mutex<Vec<usize>>,
    /// How often each item was delivered.
    delivered: Mutex<Vec<u32>>,
}

/// A batch that a process has read.
pub struct BatchRead {
    /// The process.
    pub process: u8,
    /// Items from nodes.
    pub hits: usize,
    /// Items from the agent.
    pub misses: usize,
    /// Its time.
    pub took: Duration,
}

/// A process of either kind.
enum Either {
    Simulated(Process),
    Client(ClientProcess),
}

impl Either {
    async fn read_epoch(&mut self, epoch: &Arc<Epoch>) {
        match self {
            Self::Simulated(process) => process.read_epoch(epoch).await,
            Self::Client(process) => process.read_epoch(epoch).await,
        }
    }
}

/// Runs a job until its last epoch.
pub async fn run(world: Arc<World>, number: u8, mut random: Rng) {
    let host = HostId(100 + number);
    let datasets = [&world.private, &world.public];
    let dataset = Arc::clone(datasets[usize::from(number) % 2]);
    sleep(Duration::from_millis(random.u64(..3000))).await;
    let credentials = Secrets::credentials(&SECRETS.team);
    let name = format!("job-{number}");
    let job = Arc::new(Job { world: Arc::clone(&world), number, name, host, dataset, credentials });
    let mut tasks = JoinSet::new();
    let agent = LocalAgent::start(&job, random.fork(), &mut tasks);
    if world.plan.faults.managed {
        tasks.spawn(report(Arc::clone(&job), random.fork()));
    }
    let mut processes = Vec::new();
    for number in 0..world.plan.processes {
        // Simulated processes believe what nodes send.
        if random.bool() || world.plan.has_liars() {
            let process = ClientProcess::start(&job, number, &agent, random.fork(), &mut tasks);
            processes.push(Either::Client(process));
            continue;
        }
        match Process::new(&job, number, &agent, random.fork()).await {
            Ok(process) => processes.push(Either::Simulated(process)),
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
        let epoch = Arc::new(Epoch { number, rest, delivered });
        join_all(processes.iter_mut().map(|process| process.read_epoch(&epoch))).await;
        let delivered = epoch.delivered.lock();
        if let Some(item) = delivered.iter().position(|times| *times != 1) {
            let times = delivered[item];
            let text = format_args!("{}: item {item} came {times} times", job.name);
            world.trace.violate(2, text);
        }
        world.trace.event(format_args!("{} epoch {number} ended", job.name));
    }
    job.add_up(&agent).await;
}

impl Epoch {
    /// The next batch; empty if no items are left.
    pub fn take(&self, length: usize) -> Vec<usize> {
        let mut rest = self.rest.lock();
        let from = rest.len() - length.min(rest.len());
        rest.drain(from..).collect()
    }
}

impl Job {
    /// Checks the bytes of an item, and counts it.
    pub fn deliver(&self, epoch: &Epoch, item: usize, bytes: &[u8], from: &str) {
        let Self { world, dataset, name, .. } = self;
        if dataset.content(&dataset.items[item]) != bytes {
            let text = format_args!("{name}: wrong bytes of item {item} from its {from}");
            world.trace.violate(1, text);
        }
        epoch.delivered.lock()[item] += 1;
    }

    /// Records a batch, and checks its time.
    pub fn on_read(&self, epoch: &Epoch, BatchRead { process, hits, misses, took }: BatchRead) {
        let Self { world, name, .. } = self;
        world.trace.event(format_args!(
            "{name}.{process} epoch {} read: {hits} hits, {misses} from the agent, {} us",
            epoch.number,
            took.as_micros()
        ));
        world.trace.on_read(hits + misses, took);
        let max = if world.plan.faults.origin { BATCH_TIME_MAX_ORIGIN } else { BATCH_TIME_MAX };
        if took > max {
            world.trace.violate(5, format_args!("{name}: a batch took {took:?}"));
        }
    }

    /// Adds the agent's counters to the world's.
    async fn add_up(&self, agent: &LocalAgent) {
        let Ok(stream) = agent.connect() else { return };
        let mut client = WireClient::new(stream);
        let greeted = client.hello(&self.name, &Credentials::default(), AGENT_TIMEOUT).await;
        let stats = match greeted {
            Ok(_) => client.call(&Request::Stats, AGENT_TIMEOUT).await,
            Err(error) => Err(error),
        };
        let Ok(Reply::Stats { counters }) = stats else { return };
        let of = |name: &str| {
            counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value)
        };
        let (fetches, fallbacks, uncached) =
            (of("agent_origin_fetches"), of("agent_fallbacks"), of("agent_uncached"));
        self.world.trace.event(format_args!(
            "{} fetched {fetches}, fallbacks {fallbacks}, uncached {uncached}",
            self.name
        ));
        self.world.on_job_ended(fetches, fallbacks + uncached);
    }
}

/// Connects to a node and opens the dataset.
pub async fn connect(job: &Job, node: usize) -> Called<(WireClient, u32)> {
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
