//! World: everything that one seed makes, and its run.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fastrand::Rng;
use forebay_core::{
    BlobOrdinal, Namespace,
    cluster::ring::{NodeList, Ring},
};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    audit, chaos,
    dataset::Dataset,
    disks::RunEnd,
    hostile, job,
    network::{HostId, Network},
    node_host::{NodeHost, members},
    origin::{OriginFaults, SimStore},
    plan::{Plan, Scale},
    rogue,
    secrets::SECRETS,
    trace::{Outcome, Trace},
};

/// Time in which all jobs have to end (promise 5).
const JOBS_TIME_MAX: Duration = Duration::from_hours(1);

/// A world.
pub struct World {
    /// What the seed decides in advance.
    pub plan: Plan,
    /// What happens.
    pub trace: Trace,
    /// The network.
    pub network: Network,
    /// The machines of the nodes.
    pub nodes: Vec<NodeHost>,
    /// The members of the cluster.
    pub list: NodeList,
    ring: Ring,
    /// The object store.
    pub origin: Arc<SimStore>,
    /// The team's dataset.
    pub private: Arc<Dataset>,
    /// A dataset that all tenants may use.
    pub public: Arc<Dataset>,
    fetches: AtomicU64,
    exceptions: AtomicU64,
}

/// Runs the world of a seed. With `keep`, the outcome has all events.
pub fn run(seed: u64, scale: Scale, keep: bool) -> Outcome {
    // Made once per process, in files whose names the thread's generator draws.
    LazyLock::force(&SECRETS);
    // Agents shuffle what they prefetch with the thread's generator.
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let mut random = Rng::with_seed(seed);
        let world = Arc::new(World::new(&mut random, scale, keep));
        world.trace.event(format_args!("seed {seed}: {:?}", world.plan));
        world.run(random).await;
        world.trace.outcome(world.network.messages())
    })
}

impl World {
    fn new(random: &mut Rng, scale: Scale, keep: bool) -> Self {
        let plan = Plan::new(random, scale);
        let network = Network::new(random.fork(), plan.delay_max);
        let [private, public] = &plan.lengths;
        let private = Dataset::new("private", SECRETS.namespace.clone(), private, random);
        let public = Dataset::new("public", Namespace::public(), public, random);
        let (private, public) = (Arc::new(private), Arc::new(public));
        let datasets = [Arc::clone(&private), Arc::clone(&public)];
        let origin = SimStore::new(&datasets, random.fork());
        let list =
            NodeList::new(members(plan.nodes.nodes, plan.nodes.rogues), false).expect("a list");
        let host = |host| NodeHost::new(HostId(host), plan.nodes, network.clone(), random.fork());
        Self {
            nodes: (0..plan.nodes.nodes).map(host).collect(),
            ring: list.ring(None).expect("one ring"),
            list,
            trace: Trace::new(keep),
            plan,
            network,
            origin,
            private,
            public,
            fetches: AtomicU64::new(0),
            exceptions: AtomicU64::new(0),
        }
    }

    /// Whether a host is a node's.
    pub fn is_node(&self, host: HostId) -> bool {
        self.nodes.iter().any(|node| node.host == host)
    }

    /// The member that owns a blob: the index of a node, or more if it is a rogue member.
    pub fn owner(&self, dataset: &Dataset, blob: BlobOrdinal) -> usize {
        let row = dataset.digest.blob(blob).expect("a blob of the dataset");
        self.ring.owner(&row.address)
    }

    /// A job has ended, after reading the origin this often, and this often without a claim.
    pub fn on_job_ended(&self, fetches: u64, exceptions: u64) {
        self.fetches.fetch_add(fetches, Relaxed);
        self.exceptions.fetch_add(exceptions, Relaxed);
    }

    /// Reads of the origin, and those without a claim.
    pub fn fetched(&self) -> (u64, u64) {
        (self.fetches.load(Relaxed), self.exceptions.load(Relaxed))
    }

    async fn run(self: &Arc<Self>, mut random: Rng) {
        let mut beside = JoinSet::new();
        for host in &self.nodes {
            sleep(Duration::from_millis(random.u64(..500))).await;
            host.start();
        }
        beside.spawn(audit::watch_limits(Arc::clone(self)));
        for at in 0..self.nodes.len() {
            beside.spawn(audit::watch_as_owner(Arc::clone(self), at));
        }
        beside.spawn(chaos::run(Arc::clone(self), random.fork()));
        for number in 0..self.plan.rogues.len() {
            beside.spawn(rogue::run(Arc::clone(self), number));
        }
        for number in 0..self.plan.hostile {
            beside.spawn(hostile::run(Arc::clone(self), number, random.fork()));
        }
        let mut jobs = JoinSet::new();
        for number in 0..self.plan.jobs {
            jobs.spawn(job::run(Arc::clone(self), number, random.fork()));
        }
        let ended = async {
            while let Some(ended) = jobs.join_next().await {
                if ended.is_err() {
                    self.trace.violate(5, format_args!("a job panics"));
                }
            }
        };
        let ended = async {
            tokio::select! {
                biased;
                () = self.trace.violated.wait() => {}
                ended = timeout(JOBS_TIME_MAX, ended) => if ended.is_err() {
                    self.trace.violate(5, format_args!("jobs do not end in {JOBS_TIME_MAX:?}"));
                },
            }
        };
        ended.await;
        jobs.shutdown().await;
        beside.shutdown().await;
        if self.trace.violated.is_set() {
            return;
        }
        self.network.heal();
        self.origin.set_faults(OriginFaults::default());
        self.trace.event(format_args!("all jobs have ended"));
        audit::at_end(self).await;
        for host in &self.nodes {
            host.kill(RunEnd::Process).await;
        }
    }
}
