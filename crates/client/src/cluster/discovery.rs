//! Discovery: which nodes there are.
//!
//! The first seed that answers sends the list of nodes; a node without a list is used on its own.
//! Seeds that do not answer are waited for at once. A list from the configuration needs no request.
//! Each later connection checks the list that the node has ([`RingView`]).

use std::{sync::Arc, time::Duration};

use forebay_core::{
    Address, BlobOrdinal, Endpoint,
    cluster::{
        backoff::NODE_TIMEOUT,
        ring::{Member, OwnerMap, Ring, RingChange, RingView},
    },
    node::presence::KnownPresence,
};
use forebay_digest::Digest;

use super::nodes::{Nodes, OpenNode, RequestContext};
use crate::{
    ClientError, Result,
    greeting::{Greeted, Needed, greet_all},
    node_health::RequestTimes,
    wait::WaitPolicy,
};

/// The discovered nodes.
#[derive(Debug)]
pub(super) enum Topology {
    Single(Box<SingleNode>),
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
    /// In the order of the ring.
    endpoints: Arc<[Endpoint]>,
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
        if self.topology.is_some() {
            return true;
        }
        let due = self.seeds.endpoints().iter().filter(|seed| self.health.is_due(seed));
        let due: Vec<&Endpoint> = due.collect();
        let began = self.health.now();
        let greeting = context.greeting(&self.health);
        let greeted = greet_all(&due, greeting, Needed::Any, context.interrupt);
        for (endpoint, greeted) in due.into_iter().zip(greeted.into_iter().flatten()) {
            match greeted {
                Some(Ok(greeted)) => {
                    self.health.on_success(endpoint);
                    self.topology = Some(topology(context, endpoint, greeted, began));
                }
                Some(Err(error)) => {
                    let times = RequestTimes::connect(began);
                    self.restart_hint |= self.health.on_failure(endpoint, error.failure(), times);
                }
                None => {}
            }
        }
        self.topology.is_some()
    }
}

/// The nodes that a seed has named, with the connection to the seed.
fn topology(
    context: &RequestContext<'_>,
    endpoint: &Endpoint,
    greeted: Greeted,
    began: Duration,
) -> Topology {
    let Some(membership) = greeted.membership.clone() else {
        let connection =
            OpenNode::new(context, endpoint, [endpoint.clone()].into(), greeted, began);
        let (endpoint, owners) = (endpoint.clone(), OwnerMap::single());
        return Topology::Single(Box::new(SingleNode { endpoint, connection, owners }));
    };
    let ring = membership.ring();
    let index = ring.index_of(membership.name()).expect("a node is in its own ring");
    let view = RingView::new(membership.list().clone(), Some(membership.name().clone()));
    let mut cluster = RingNodes::new(view, ring);
    let peers = Arc::clone(&cluster.endpoints);
    cluster.connections[index] = Some(OpenNode::new(context, endpoint, peers, greeted, began));
    Topology::Cluster(cluster)
}

impl RingNodes {
    fn new(view: RingView, ring: Ring) -> Self {
        let connections = ring.members().iter().map(|_| None).collect();
        let endpoints = ring.members().iter().map(|member| member.endpoint.clone()).collect();
        Self { view, owners: OwnerMap::new(ring), connections, endpoints, presence: Vec::new() }
    }

    pub fn ring(&self) -> &Ring {
        self.owners.ring().expect("a cluster has a ring")
    }

    /// A node was greeted. Takes its list if it is the source of the one in use.
    pub fn on_greeted(
        &mut self,
        context: &RequestContext<'_>,
        member: &Member,
        greeted: Greeted,
        began: Duration,
    ) -> Result<()> {
        let membership = greeted.membership.clone();
        match self.view.on_membership(&member.name, membership.as_ref()) {
            RingChange::Unchanged | RingChange::Conflict(_) => {}
            RingChange::WrongNode => return Err(ClientError::Unexpected),
            RingChange::Updated => {
                self.change_ring(membership.expect("it has sent a list").ring());
            }
        }
        // A list that has just changed may lack the node.
        if let Some(index) = self.ring().index_of(&member.name) {
            let peers = Arc::clone(&self.endpoints);
            let open = OpenNode::new(context, &member.endpoint, peers, greeted, began);
            self.connections[index] = Some(open);
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

impl OpenNode {
    /// A greeted node. While it is silent, all `peers` are pinged.
    fn new(
        context: &RequestContext<'_>,
        endpoint: &Endpoint,
        peers: Arc<[Endpoint]>,
        Greeted { mut client, handle, .. }: Greeted,
        opened_at: Duration,
    ) -> Self {
        let RequestContext { environment, credentials, interrupt, .. } = context;
        let policy = WaitPolicy::with_pings(environment, interrupt, endpoint, peers, credentials);
        client.io.set_policy(NODE_TIMEOUT, policy);
        Self { client, handle, opened_at }
    }
}

/// The address of a blob in this digest, for an [`OwnerMap`].
pub(super) fn address_in(digest: &Digest) -> impl Fn(BlobOrdinal) -> Option<Address> + '_ {
    |blob| digest.blob(blob).ok().map(|row| row.address)
}
