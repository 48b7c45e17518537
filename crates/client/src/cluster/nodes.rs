//! The nodes of a job: one connection to each, opened when it is first needed.
//!
//! Nodes that have to be connected are connected at once, and when one is silent, all are pinged at
//! once ([`crate::greeting`]). So several hung nodes cost what one costs.
//!
//! **Invariant:** the failure of a node is never an error here. The blobs of a node that is dead,
//! hung or not the expected one are missing, and the agent reads them. All failed nodes together
//! cost a job at most 10 % of its time ([`forebay_core::cluster::backoff`]).

use std::{mem, sync::Arc, time::Duration};

use forebay_auth::Credentials;
use forebay_core::{
    BlobOrdinal, Endpoint,
    cluster::ring::{Member, Seeds},
    dataset::verification::ByteSource,
};
use forebay_digest::Digest;

use super::discovery::{RingNodes, Topology, address_in};
use crate::{
    Client, ClientEnvironment, ClientError, Handle, Interrupt, NodeHealth, Result,
    greeting::{GreetingContext, Needed, Subject, greet_all},
    node_health::RequestTimes,
};

/// The context of one request of the job.
#[derive(Debug)]
pub(crate) struct RequestContext<'a> {
    pub environment: &'a Arc<dyn ClientEnvironment>,
    pub subject: Subject<'a>,
    pub job: &'a str,
    pub credentials: &'a Credentials,
    pub interrupt: &'a Interrupt,
}

impl<'a> RequestContext<'a> {
    pub(super) fn greeting(&self, health: &NodeHealth) -> GreetingContext<'a> {
        GreetingContext {
            environment: self.environment,
            job: self.job,
            credentials: self.credentials,
            subject: Some(self.subject),
            open_timeout: health.allowance(),
        }
    }

    pub(super) fn digest(&self) -> &'a Digest {
        match self.subject {
            Subject::Dataset(digest) => digest,
            Subject::BlobsByAddress(_) => unreachable!("selected blobs have no digest"),
        }
    }
}

/// All nodes of a job.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(super) seeds: Seeds,
    /// The nodes, once they are discovered.
    pub(super) topology: Option<Topology>,
    pub(super) health: NodeHealth,
    pub(super) restart_hint: bool,
}

/// A connection with the dataset open.
#[derive(Debug)]
pub(super) struct OpenNode {
    pub client: Client,
    pub handle: Handle,
    pub opened_at: Duration,
}

impl Nodes {
    pub fn new(environment: &Arc<dyn ClientEnvironment>, seeds: Seeds) -> Self {
        let health = NodeHealth::in_environment(environment);
        Self { seeds, topology: None, health, restart_hint: false }
    }

    /// The health of the nodes, to be merged with that of other readers of the process.
    pub fn health(&mut self) -> &mut NodeHealth {
        &mut self.health
    }

    /// Forgets all connections, which belong to another process. The health of the nodes stays.
    pub fn forget(&mut self) {
        (self.topology, self.restart_hint) = (None, false);
    }

    /// Whether a single node has died since the last call and should be restarted.
    pub fn take_restart_hint(&mut self) -> bool {
        mem::take(&mut self.restart_hint)
    }

    /// The number of nodes; 0 until they are discovered.
    pub(super) fn count(&self) -> usize {
        self.topology.as_ref().map_or(0, |topology| topology.owners().nodes())
    }

    /// Where each of these blobs comes from if its owner has it. A node that is not reached over a
    /// Unix socket may be on another machine.
    pub fn sources(
        &mut self,
        context: &RequestContext<'_>,
        blobs: impl Iterator<Item = BlobOrdinal>,
    ) -> Vec<ByteSource> {
        let is_known = self.discover(context);
        let topology = self.topology.as_ref().filter(|_| is_known);
        let source = |blob| {
            let owner =
                |topology: &Topology| topology.owners().owner(blob, address_in(context.digest()));
            match topology.and_then(|topology| topology.endpoint(owner(topology))) {
                None | Some(Endpoint::Unix(_)) => ByteSource::Local,
                Some(Endpoint::Tcp(_) | Endpoint::Tls(_)) => ByteSource::Remote,
            }
        };
        blobs.map(source).collect()
    }

    /// Calls `act` with the connection to a node, which is opened first if that is due. `None` if
    /// the node fails or refuses.
    pub(super) fn with<T>(
        &mut self,
        context: &RequestContext<'_>,
        node: usize,
        began: Duration,
        act: impl FnOnce(&mut OpenNode) -> Result<T>,
    ) -> Option<T> {
        self.connect(context, node);
        self.with_open(node, began, act)
    }

    /// The same with the present connection: a reply arrives on the connection that its request was
    /// sent on.
    pub(super) fn with_open<T>(
        &mut self,
        node: usize,
        began: Duration,
        act: impl FnOnce(&mut OpenNode) -> Result<T>,
    ) -> Option<T> {
        let topology = self.topology.as_mut()?;
        let is_single = matches!(topology, Topology::Single(_));
        // A list that has just changed may be shorter.
        let endpoint = topology.endpoint(node)?.clone();
        // Another connection has found out that the node failed.
        if self.health.has_failed(&endpoint) {
            self.disconnect(node);
            return None;
        }
        let allowance = self.health.allowance();
        let open = topology.connection(node)?;
        let opened_at = open.opened_at;
        open.client.io.set_timeout(allowance);
        let outcome = act(open);
        for (endpoint, failure) in open.client.io.take_failed_peers() {
            let times = RequestTimes { opened_at: self.health.now(), began };
            self.health.on_failure(&endpoint, failure, times);
        }
        match outcome {
            Ok(done) => Some(done),
            Err(error) if error.is_refusal() => None,
            Err(error) => {
                self.disconnect(node);
                if !matches!(error, ClientError::Interrupted) {
                    let times = RequestTimes { opened_at, began };
                    let restart = self.health.on_failure(&endpoint, error.failure(), times);
                    self.restart_hint |= restart && is_single;
                }
                None
            }
        }
    }

    /// Connects to a node of a cluster, if that is due, and to all others that are due at the same
    /// time. Replies that are pending on an earlier connection are given up.
    fn connect(&mut self, context: &RequestContext<'_>, node: usize) {
        let Some(Topology::Cluster(cluster)) = &mut self.topology else { return };
        let health = &mut self.health;
        let is_due = |cluster: &RingNodes, at: usize| {
            let endpoint = &cluster.ring().members()[at].endpoint;
            let is_open = cluster.connections[at].is_some() && !health.has_failed(endpoint);
            !is_open && health.is_due(endpoint)
        };
        if node >= cluster.connections.len() || !is_due(cluster, node) {
            return;
        }
        let due: Vec<usize> =
            (0..cluster.connections.len()).filter(|at| is_due(cluster, *at)).collect();
        let members: Vec<Member> =
            due.iter().map(|at| cluster.ring().members()[*at].clone()).collect();
        for at in due {
            cluster.connections[at] = None;
        }
        let endpoints: Vec<&Endpoint> = members.iter().map(|member| &member.endpoint).collect();
        let began = health.now();
        let greeted =
            greet_all(&endpoints, context.greeting(health), Needed::All, context.interrupt);
        for (member, greeted) in members.iter().zip(greeted.into_iter().flatten()) {
            let connected = greeted
                .unwrap_or(Err(ClientError::Interrupted))
                .and_then(|greeted| cluster.on_greeted(context, member, greeted, began));
            match connected {
                Ok(()) => health.on_success(&member.endpoint),
                Err(ClientError::Interrupted) => {}
                Err(error) => {
                    let times = RequestTimes::connect(began);
                    health.on_failure(&member.endpoint, error.failure(), times);
                }
            }
        }
    }

    /// Drops a connection. A single node is discovered again.
    fn disconnect(&mut self, node: usize) {
        match &mut self.topology {
            Some(Topology::Cluster(cluster)) => cluster.connections[node] = None,
            _ => self.topology = None,
        }
    }
}
