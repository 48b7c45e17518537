//! The nodes of a job: one connection to each, opened when it is first needed.
//!
//! **Invariant:** the failure of a node is never an error here. The blobs of a node that is dead,
//! hung or not the expected one are missing, and the agent reads them. All failed nodes together
//! cost a job at most 10 % of its time ([`forebay_core::cluster::backoff`]).

use std::{mem, time::Duration};

use forebay_auth::Credentials;
use forebay_core::{NamespaceId, cluster::ring::Seeds};
use forebay_digest::Digest;

use super::discovery::Topology;
use crate::{
    Client, ClientError, Handle, Interrupt, NodeHealth, Result, node_health::RequestTimes,
};

/// The context of one request of the job.
#[derive(Debug)]
pub(crate) struct RequestContext<'a> {
    pub subject: Subject<'a>,
    pub job: &'a str,
    pub credentials: &'a Credentials,
    pub interrupt: &'a Interrupt,
    /// When it began, by the clock of [`NodeHealth`].
    pub began: Duration,
}

/// What a connection opens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A dataset.
    Dataset(&'a Digest),
    /// Blobs of a namespace, selected by address.
    BlobsByAddress(NamespaceId),
}

impl<'a> RequestContext<'a> {
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
    pub fn new(seeds: Seeds) -> Self {
        Self { seeds, topology: None, health: NodeHealth::default(), restart_hint: false }
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
        let open = topology.connection(node)?;
        let opened_at = open.opened_at;
        match act(open) {
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

    /// Connects to a node of a cluster, if that is due. Replies that are pending on an earlier
    /// connection are given up.
    fn connect(&mut self, context: &RequestContext<'_>, node: usize) {
        let Some(Topology::Cluster(cluster)) = &mut self.topology else { return };
        let Some(member) = cluster.ring().members().get(node) else { return };
        let (endpoint, health) = (member.endpoint.clone(), &mut self.health);
        if health.has_failed(&endpoint) {
            cluster.connections[node] = None;
        }
        if cluster.connections[node].is_some() || !health.is_due(&endpoint, context.began) {
            return;
        }
        let now = health.now();
        match cluster.connect(context, node, now) {
            Ok(()) => health.on_success(&endpoint),
            Err(ClientError::Interrupted) => {}
            Err(error) => {
                health.on_failure(&endpoint, error.failure(), RequestTimes::connect(now));
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
