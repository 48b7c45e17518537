//! Node host: a machine that runs a real node on simulated disks, and starts, stops and kills it.
//!
//! The node is `forebay-node` itself: sessions, dispatch, claims, managers and peers. The host
//! gives it streams in place of sockets, a task in place of work threads, and devices without
//! threads. A kill aborts the tasks that reach the outside: nothing that the node still does can be
//! seen from then on.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use forebay_core::{
    ByteSize, NodeName,
    cluster::ring::{Member, Weight},
};
use forebay_flash::io::sim::FaultRates;
use forebay_node::{Acceptor, Config, Environment, NodeService, TenantConfig, WorkQueue, Worker};
use forebay_transport::{Entropy, Latch};
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, sleep_until},
};

use crate::{
    disks::{DEVICES_MAX, Disks, RunEnd},
    network::{Arrived, HostConnector, HostId, Network, endpoint_of},
    rogue,
    secrets::SECRETS,
};

/// What all nodes of a world have in common.
#[derive(Debug, Clone, Copy)]
pub struct NodePlan {
    /// Number of nodes.
    pub nodes: u8,
    /// Number of rogue members beside them.
    pub rogues: u8,
    /// Connections of a node at most.
    pub max_connections: usize,
    /// Memory for requests and replies.
    pub connection_memory: ByteSize,
    /// Memory cache; large enough for all blobs, or none: it has an order of its own when full.
    pub memory_cache: ByteSize,
    /// Lease of a claim.
    pub claim_lease: Duration,
    /// Regions of a device.
    pub regions: u32,
    /// Time that a slice of work takes.
    pub slice: Duration,
}

/// A machine with a node.
pub struct NodeHost {
    /// The machine.
    pub host: HostId,
    config: Config,
    plan: NodePlan,
    network: Network,
    state: Mutex<State>,
}

struct State {
    random: Rng,
    disks: Disks,
    /// The devices of the next run.
    devices: Vec<usize>,
    running: Option<Running>,
}

struct Running {
    node: Arc<NodeService>,
    stop: Arc<Latch>,
    /// The acceptor of connections, which ends after `stop`.
    serving: JoinSet<()>,
    /// Tasks beside the connections, workers and devices.
    beside: JoinSet<()>,
}

/// The name of a member. The names of nodes come first in the list, in the order of their hosts.
pub fn name_of(host: HostId) -> NodeName {
    let kind = if rogue::is_rogue(host) { "rogue" } else { "node" };
    format!("{kind}-{}", host.0).parse().expect("a name")
}

/// The members of a cluster: nodes, and rogue members that own a third of the blobs together.
pub fn members(nodes: u8, rogues: u8) -> Vec<Member> {
    let member = |host, weight| Member {
        name: name_of(host),
        endpoint: endpoint_of(host),
        weight,
        zone: None,
    };
    let all = (0..nodes).map(|host| member(HostId(host), Weight::default()));
    let share = u32::from(nodes) * 500 / u32::from(rogues.max(1));
    let light = Weight::from_thousandths(share).expect("at most 64 members");
    let rogue = |number| member(rogue::host_of(number), light);
    all.chain((0..usize::from(rogues)).map(rogue)).collect()
}

impl NodeHost {
    /// A machine whose node is not started.
    pub fn new(host: HostId, plan: NodePlan, network: Network, mut random: Rng) -> Self {
        let tenant = |name: &str, token, namespaces| TenantConfig {
            name: name.to_owned(),
            tokens: vec![token],
            namespaces,
            ..TenantConfig::default()
        };
        let secrets = &*SECRETS;
        let config = Config {
            tenants: vec![
                tenant("team", secrets.team.clone(), vec!["public".into(), secrets.key.clone()]),
                tenant("other", secrets.other.clone(), vec!["public".into()]),
            ],
            name: Some(name_of(host)),
            nodes: members(plan.nodes, plan.rogues),
            cluster_token: Some(secrets.cluster.clone()),
            memory_cache: Some(plan.memory_cache),
            shared_memory: Some(ByteSize(0)),
            connection_memory: Some(plan.connection_memory),
            max_connections: plan.max_connections,
            claim_lease: plan.claim_lease,
            ..Config::default()
        };
        let disks = Disks::new(random.fork(), plan.regions);
        let state = State { random, disks, devices: vec![0], running: None };
        Self { host, config, plan, network, state: Mutex::new(state) }
    }

    /// The node, if it runs.
    pub fn node(&self) -> Option<Arc<NodeService>> {
        self.state.lock().running.as_ref().map(|running| Arc::clone(&running.node))
    }

    /// Limit of connections.
    pub fn max_connections(&self) -> usize {
        self.plan.max_connections
    }

    /// Limit of the memory of connections.
    pub fn connection_memory(&self) -> ByteSize {
        self.plan.connection_memory
    }

    /// Starts the node, unless it runs.
    pub fn start(&self) {
        let mut state = self.state.lock();
        if state.running.is_some() {
            return;
        }
        let State { random, disks, devices, .. } = &mut *state;
        let (work, worker) = WorkQueue::new();
        let nonces = Mutex::new(random.fork());
        let entropy = Entropy::from_source(move || {
            let mut nonce = [0; 32];
            nonces.lock().fill(&mut nonce);
            nonce
        });
        let connector = HostConnector { network: self.network.clone(), host: self.host };
        let environment = Environment { entropy, connector: Arc::new(connector), work };
        let mut beside = JoinSet::new();
        let open = |eviction| disks.open(devices, &eviction, &mut beside);
        let node = NodeService::on_devices(&self.config, Vec::new(), environment, open)
            .expect("the configuration is valid");
        beside.spawn(work_off(worker, self.plan.slice, self.network.clone(), self.host));
        node.spawn_background(&mut beside);
        let (stop, mut serving) = (Arc::<Latch>::default(), JoinSet::new());
        serving.spawn(serve(
            Acceptor::new(Arc::clone(&node)),
            self.network.listen(self.host),
            Arc::clone(&stop),
        ));
        state.running = Some(Running { node, stop, serving, beside });
    }

    /// Ends the node at once.
    pub async fn kill(&self, end: RunEnd) {
        let Some(mut running) = self.state.lock().running.take() else { return };
        self.network.fail(self.host);
        running.serving.shutdown().await;
        running.beside.shutdown().await;
        drop(running);
        self.state.lock().disks.close(end);
    }

    /// Stops the node as a signal does.
    pub async fn stop(&self) {
        let Some(mut running) = self.state.lock().running.take() else { return };
        running.stop.set();
        running.serving.join_next().await;
        self.network.fail(self.host);
        running.node.finish().await;
        running.beside.shutdown().await;
        drop(running);
        self.state.lock().disks.close(RunEnd::Process);
    }

    /// Chooses the devices of the next run.
    pub fn change_devices(&self, set: usize) {
        const SETS: [&[usize]; 4] = [&[0], &[0, 1], &[1], &[1, 0]];
        const { assert!(DEVICES_MAX == 2) };
        self.state.lock().devices = SETS[set % SETS.len()].to_vec();
    }

    /// Sets the fault rates of the devices.
    pub fn set_faults(&self, faults: FaultRates) {
        self.state.lock().disks.set_faults(faults);
    }
}

/// Accepts connections until the node is stopped, then lets requests in progress finish.
async fn serve(
    mut acceptor: Acceptor,
    mut arriving: mpsc::UnboundedReceiver<Arrived>,
    stop: Arc<Latch>,
) {
    loop {
        tokio::select! {
            biased;
            () = stop.wait() => break,
            Some(arrived) = arriving.recv() => acceptor.on_stream(arrived.accepted, arrived.source),
            Some(()) = acceptor.next_ended() => {}
        }
    }
    drop(arriving);
    acceptor.drain(Duration::from_secs(5)).await;
}

/// Does the work of a node, `slice` at a time.
async fn work_off(worker: Worker, slice: Duration, network: Network, host: HostId) {
    while let Some(work) = worker.next().await {
        sleep_until(network.paused_until(host)).await;
        if slice.is_zero() {
            tokio::task::yield_now().await;
        } else {
            sleep(slice).await;
        }
        work.run(|| slice.max(Duration::from_micros(100)));
    }
}
