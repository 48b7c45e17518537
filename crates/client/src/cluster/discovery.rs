//! Discovery: which nodes there are.
//!
//! The first seed that answers sends the list of nodes; a node without a list is used on its own. A
//! list from the configuration needs no request. Each later connection checks the list that the
//! node has ([`RingView`]).

use std::time::Duration;

use forebay_core::{
    Address, BlobOrdinal, Endpoint,
    cluster::{
        backoff::NODE_TIMEOUT,
        liveness::PING_TIMEOUT,
        ring::{OwnerMap, Ring, RingChange, RingMembership, RingView},
    },
    node::presence::KnownPresence,
};
use forebay_digest::Digest;

use super::nodes::{Nodes, OpenNode, RequestContext, Subject};
use crate::{Client, ClientError, Result, node_health::RequestTimes, wait::WaitPolicy};

/// The discovered nodes.
#[derive(Debug)]
pub(super) enum Topology {
    Single(SingleNode),
    Cluster(RingNodes),
}

/// A node that is not part of a cluster.
#[derive(Debug)]
pub(super) struct SingleNode {
    endpoint: Endpoint,
    connection: OpenNode,
    owners: OwnerMap,
}

/// The nodes of a ring.
#[derive(Debug)]
pub(super) struct RingNodes {
    view: RingView,
    pub owners: OwnerMap,
    /// In the order of the ring.
    pub connections: Vec<Option<OpenNode>>,
    /// The last answer of each node about its blobs.
    pub presence: Vec<KnownPresence>,
}

impl Topology {
    pub fn owners(&self) -> &OwnerMap {
        match self {
            Self::Single(single) => &single.owners,
            Self::Cluster(cluster) => &cluster.owners,
        }
    }

    /// Where a node listens.
    pub fn endpoint(&self, node: usize) -> Option<&Endpoint> {
        match self {
            Self::Single(single) => Some(&single.endpoint),
            Self::Cluster(cluster) => Some(&cluster.ring().members().get(node)?.endpoint),
        }
    }

    /// The connection to a node, if it is open.
    pub fn connection(&mut self, node: usize) -> Option<&mut OpenNode> {
        match self {
            Self::Single(single) => Some(&mut single.connection),
            Self::Cluster(cluster) => cluster.connections[node].as_mut(),
        }
    }
}

impl Nodes {
    /// Discovers the nodes, unless they are known. Returns whether they are.
    pub(super) fn discover(&mut self, context: &RequestContext<'_>) -> bool {
        if self.topology.is_none()
            && let Some((list, zone)) = self.seeds.list()
        {
            let ring = list.ring(zone).expect("checked");
            let cluster = RingNodes::new(RingView::new(list.clone(), None), ring);
            self.topology = Some(Topology::Cluster(cluster));
        }
        for endpoint in self.seeds.endpoints() {
            if self.topology.is_some() {
                break;
            }
            if !self.health.is_due(endpoint, context.began) {
                continue;
            }
            let began = self.health.now();
            match open(context, endpoint, began) {
                Ok((connection, membership)) => {
                    self.health.on_success(endpoint);
                    self.topology = Some(topology(endpoint, connection, membership.as_ref()));
                }
                Err(ClientError::Interrupted) => {}
                Err(error) => {
                    let times = RequestTimes::connect(began);
                    self.restart_hint |= self.health.on_failure(endpoint, error.failure(), times);
                }
            }
        }
        self.topology.is_some()
    }
}

/// The nodes that a seed has named, with the connection to the seed.
fn topology(
    endpoint: &Endpoint,
    connection: OpenNode,
    membership: Option<&RingMembership>,
) -> Topology {
    let Some(membership) = membership else {
        let (endpoint, owners) = (endpoint.clone(), OwnerMap::single());
        return Topology::Single(SingleNode { endpoint, connection, owners });
    };
    let ring = membership.ring();
    let index = ring.index_of(membership.name()).expect("a node is in its own ring");
    let view = RingView::new(membership.list().clone(), Some(membership.name().clone()));
    let mut cluster = RingNodes::new(view, ring);
    cluster.connections[index] = Some(connection);
    Topology::Cluster(cluster)
}

impl RingNodes {
    fn new(view: RingView, ring: Ring) -> Self {
        let connections = ring.members().iter().map(|_| None).collect();
        Self { view, owners: OwnerMap::new(ring), connections, presence: Vec::new() }
    }

    pub fn ring(&self) -> &Ring {
        self.owners.ring().expect("a cluster has a ring")
    }

    /// Connects to a node, and takes its list if it is the source of the one in use.
    pub fn connect(
        &mut self,
        context: &RequestContext<'_>,
        node: usize,
        now: Duration,
    ) -> Result<()> {
        let member = self.ring().members()[node].clone();
        let (connection, membership) = open(context, &member.endpoint, now)?;
        match self.view.on_membership(&member.name, membership.as_ref()) {
            RingChange::Unchanged | RingChange::Conflict(_) => {
                self.connections[node] = Some(connection);
            }
            RingChange::WrongNode => return Err(ClientError::Unexpected),
            RingChange::Updated => {
                self.change_ring(membership.expect("it has sent a list").ring());
                if let Some(index) = self.ring().index_of(&member.name) {
                    self.connections[index] = Some(connection);
                }
            }
        }
        Ok(())
    }

    /// Replaces the ring. Connections to nodes whose name and endpoint stay are kept.
    fn change_ring(&mut self, ring: Ring) {
        let mut changed = Self::new(self.view.clone(), ring);
        let before = self.owners.ring().expect("a cluster has a ring").members();
        for (member, connection) in before.iter().zip(&mut self.connections) {
            if let Some(index) = changed.ring().index_of(&member.name)
                && changed.ring().members()[index].endpoint == member.endpoint
            {
                changed.connections[index] = connection.take();
            }
        }
        *self = changed;
    }
}

/// Connects, asks for the list, and opens the subject. A node that does not answer hello within
/// [`PING_TIMEOUT`] is hung. Later replies may take [`NODE_TIMEOUT`], while pings are answered.
fn open(
    context: &RequestContext<'_>,
    endpoint: &Endpoint,
    now: Duration,
) -> Result<(OpenNode, Option<RingMembership>)> {
    let RequestContext { credentials, job, interrupt, .. } = context;
    let policy = WaitPolicy::new(interrupt);
    let mut client = Client::connect_with(credentials, endpoint, job, PING_TIMEOUT, policy)?;
    let policy = WaitPolicy::with_pings(interrupt, endpoint, credentials);
    client.io.set_policy(NODE_TIMEOUT, policy);
    let membership = client.ring()?;
    let handle = match context.subject {
        Subject::Dataset(digest) => client.open(digest)?,
        Subject::BlobsByAddress(namespace) => client.select_by_address(namespace, &[])?,
    };
    Ok((OpenNode { client, handle, opened_at: now }, membership))
}

/// The address of a blob in this digest, for an [`OwnerMap`].
pub(super) fn address_in(digest: &Digest) -> impl Fn(BlobOrdinal) -> Option<Address> + '_ {
    |blob| digest.blob(blob).ok().map(|row| row.address)
}
