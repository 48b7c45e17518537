//! Links to all nodes, and the discovery of them. The first seed that answers sends the list of
//! nodes; a node without a list is used on its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay_auth::Credentials;
use forebay_core::{
    Address, BlobOrdinal, Endpoint, NodeName,
    cluster::{
        backoff::{BackoffTable, Elapsed},
        ring::{OwnerMap, Ring, RingChange, RingMembership, RingView, Seeds},
    },
    node::presence::KnownPresence,
};
use forebay_digest::Digest;
use forebay_transport::Connector;
use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::yield_now, time::Instant};

use crate::{
    connection::{Connection, LinkError, Result},
    metrics::AgentCounters,
    node_link::{NodeLink, connect},
};

/// Blobs of a node that are listed before the task yields: about 0.5 ms.
const OWNED_PER_SLICE: usize = 1 << 11;

/// How the agent connects to nodes.
#[derive(Clone)]
pub(crate) struct Login {
    pub job: String,
    pub credentials: Credentials,
    pub connector: Arc<dyn Connector>,
}

/// The links to all nodes.
pub(crate) struct NodeLinks {
    seeds: Seeds,
    pub login: Login,
    pub digest: Digest,
    started: Instant,
    /// Held during a discovery.
    discovery: tokio::sync::Mutex<BackoffTable>,
    /// Whether a discovery has found no node.
    discovery_failed: AtomicBool,
    known: Mutex<KnownNodes>,
    changed: Notify,
    /// A node is silent.
    pub silence: Arc<Notify>,
    counters: Arc<AgentCounters>,
}

#[derive(Default)]
struct KnownNodes {
    view: Option<RingView>,
    nodes: Option<Arc<Nodes>>,
}

/// The nodes: a single one, or a ring.
pub(crate) struct Nodes {
    /// In the order of the ring.
    links: Vec<Arc<NodeLink>>,
    owners: OwnerMap,
}

impl Nodes {
    fn single(link: NodeLink) -> Self {
        Self { links: vec![Arc::new(link)], owners: OwnerMap::single() }
    }

    /// The nodes of a ring. Links to nodes whose name and endpoint stay are taken over.
    fn from_ring(ring: Ring, before: Option<&Self>) -> Self {
        let link = |name: &NodeName, endpoint: &Endpoint| {
            let mut before = before.into_iter().flat_map(|before| &before.links);
            let link = before.find(|link| link.is_to(name, endpoint)).map(Arc::clone);
            link.unwrap_or_else(|| Arc::new(NodeLink::new(endpoint.clone(), Some(name.clone()))))
        };
        let links = ring.members().iter().map(|member| link(&member.name, &member.endpoint));
        Self { links: links.collect(), owners: OwnerMap::new(ring) }
    }

    /// In the order of the ring.
    pub fn links(&self) -> &[Arc<NodeLink>] {
        &self.links
    }

    /// The index of the node that owns a blob.
    pub fn owner(&self, digest: &Digest, blob: BlobOrdinal) -> usize {
        self.owners.owner(blob, address_in(digest))
    }

    /// The blobs that a node owns and does not have. Takes long for large datasets, so the task
    /// yields in between.
    pub async fn missing(
        &self,
        digest: &Digest,
        node: usize,
        present: &KnownPresence,
    ) -> Vec<BlobOrdinal> {
        let index = |blob: BlobOrdinal| usize::try_from(blob.0).expect("digests are in memory");
        let is_present =
            |blob: BlobOrdinal| present.bits()[index(blob) / 8] >> (blob.0 % 8) & 1 == 1;
        let owned = self.owners.owned_by(node, digest.summary().blobs, address_in(digest));
        let mut missing = Vec::new();
        for (at, blob) in owned.enumerate() {
            if at % OWNED_PER_SLICE == OWNED_PER_SLICE - 1 {
                yield_now().await;
            }
            if !is_present(blob) {
                missing.push(blob);
            }
        }
        missing
    }
}

impl NodeLinks {
    pub fn new(seeds: Seeds, login: Login, digest: Digest, counters: Arc<AgentCounters>) -> Self {
        let mut known = KnownNodes::default();
        if let Some((list, zone)) = seeds.list() {
            let ring = list.ring(zone).expect("checked");
            known.view = Some(RingView::new(list.clone(), None));
            known.nodes = Some(Arc::new(Nodes::from_ring(ring, None)));
        }
        Self {
            seeds,
            login,
            digest,
            started: Instant::now(),
            discovery: tokio::sync::Mutex::default(),
            discovery_failed: AtomicBool::new(false),
            known: Mutex::new(known),
            changed: Notify::new(),
            silence: Arc::default(),
            counters,
        }
    }

    /// The time since the agent started.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Completes when the list of nodes has changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Checks all nodes at once whenever one is silent, so that all hung nodes are known in the
    /// time that one takes. Never ends.
    pub async fn watch(&self) {
        loop {
            self.silence.notified().await;
            let nodes = self.known.lock().nodes.clone();
            let links = nodes.iter().flat_map(|nodes| &nodes.links);
            join_all(links.map(|link| link.check(self))).await;
        }
    }

    /// The link to the node that owns a blob. The job waits for this, so after a failed discovery
    /// it fails at once; prefetching discovers the nodes again.
    pub async fn to_owner(&self, blob: BlobOrdinal) -> Result<Arc<NodeLink>> {
        if self.discovery_failed.load(Relaxed) && self.known.lock().nodes.is_none() {
            return Err(unreachable());
        }
        let nodes = self.nodes().await?;
        Ok(Arc::clone(&nodes.links[nodes.owner(&self.digest, blob)]))
    }

    /// All nodes. The first call discovers them.
    pub async fn nodes(&self) -> Result<Arc<Nodes>> {
        if let Some(nodes) = &self.known.lock().nodes {
            return Ok(Arc::clone(nodes));
        }
        if self.seeds.is_empty() {
            return Err(LinkError::None);
        }
        let mut backoff = self.discovery.lock().await;
        // Another task may have discovered them meanwhile.
        if let Some(nodes) = &self.known.lock().nodes {
            return Ok(Arc::clone(nodes));
        }
        let (began, mut failure) = (self.now(), unreachable());
        // All at once: several hung seeds cost what one costs.
        let due = self.seeds.endpoints().iter().filter(|seed| backoff.is_due(seed, began));
        let try_seed = |seed| async move { (seed, connect(self, seed).await) };
        let mut tries: FuturesUnordered<_> = due.map(try_seed).collect();
        while let Some((endpoint, connected)) = tries.next().await {
            match connected {
                Ok((connection, membership)) => {
                    backoff.on_success(endpoint, self.now());
                    return Ok(self.on_discovered(endpoint, connection, membership));
                }
                Err(error) => {
                    if !backoff.has_failed(endpoint) {
                        tracing::warn!(%error, "node unreachable: reading the origin");
                    }
                    let attempt = Elapsed { since: began, now: self.now() };
                    backoff.on_failure(endpoint, error.failure(), began, attempt);
                    failure = error;
                }
            }
        }
        self.discovery_failed.store(true, Relaxed);
        Err(failure)
    }

    /// A seed has answered.
    fn on_discovered(
        &self,
        endpoint: &Endpoint,
        connection: Arc<Connection>,
        membership: Option<RingMembership>,
    ) -> Arc<Nodes> {
        let nodes = match &membership {
            None => Nodes::single(NodeLink::new(endpoint.clone(), None)),
            Some(membership) => Nodes::from_ring(membership.ring(), None),
        };
        let own =
            membership.as_ref().and_then(|membership| nodes.owners.index_of(membership.name()));
        nodes.links[own.unwrap_or(0)].on_connected(connection);
        let nodes = Arc::new(nodes);
        let mut known = self.known.lock();
        known.view = membership.map(|membership| {
            let list = membership.list();
            let count = list.members().len();
            tracing::info!(nodes = count, list = %list.fingerprint(), "cluster discovered");
            RingView::new(list.clone(), Some(membership.name().clone()))
        });
        known.nodes = Some(Arc::clone(&nodes));
        drop(known);
        self.changed.notify_one();
        nodes
    }

    /// A node was connected. Fails if it is not the expected one, and takes its list if it is the
    /// source of the one in use.
    pub fn on_membership(
        &self,
        link: &NodeLink,
        membership: Option<&RingMembership>,
    ) -> Result<()> {
        let mut known = self.known.lock();
        let Some(expected) = link.name() else {
            // It was a single node, and is part of a cluster now.
            if let Some(membership) = membership {
                let (list, name) = (membership.list().clone(), membership.name().clone());
                known.view = Some(RingView::new(list, Some(name)));
                self.change_ring(&mut known, membership.ring());
            }
            return Ok(());
        };
        let view = known.view.as_mut().expect("names come from a list");
        let ours = view.fingerprint();
        match view.on_membership(expected, membership) {
            RingChange::Unchanged => {}
            RingChange::Conflict(theirs) => {
                self.counters.ring_differs.one();
                tracing::warn!(
                    node = %expected, %theirs, %ours,
                    "node has a different list; give all nodes the same"
                );
            }
            RingChange::WrongNode => {
                self.counters.ring_wrong.one();
                let found = membership.map_or_else(
                    || "a node without a list".to_owned(),
                    |membership| format!("`{}`", membership.name()),
                );
                return Err(LinkError::WrongNode { expected: expected.to_string(), found });
            }
            RingChange::Updated => {
                tracing::info!(list = %view.fingerprint(), "list of nodes changed");
                let membership = membership.expect("it has sent a list");
                self.change_ring(&mut known, membership.ring());
            }
        }
        Ok(())
    }

    fn change_ring(&self, known: &mut KnownNodes, ring: Ring) {
        self.counters.ring_changes.one();
        let nodes = Nodes::from_ring(ring, known.nodes.as_deref());
        known.nodes = Some(Arc::new(nodes));
        self.changed.notify_one();
    }

    /// A node could not be connected. A single node is forgotten: another seed may answer.
    pub fn on_unreachable(&self, link: &NodeLink) {
        if link.name().is_none() && self.seeds.endpoints().len() > 1 {
            self.known.lock().nodes = None;
            self.changed.notify_one();
        }
    }

    /// The fallbacks of each node of a cluster, by name.
    pub fn fallbacks(&self) -> Vec<(String, u64)> {
        let nodes = self.known.lock().nodes.clone();
        let links = nodes.iter().flat_map(|nodes| &nodes.links);
        let of = |link: &Arc<NodeLink>| Some((link.name()?.to_string(), link.fallbacks.get()));
        links.filter_map(of).filter(|(_, fallbacks)| *fallbacks > 0).collect()
    }
}

fn unreachable() -> LinkError {
    LinkError::Unreachable("it was unreachable a moment ago".to_owned())
}

/// The address of a blob in this digest, for an [`OwnerMap`].
fn address_in(digest: &Digest) -> impl Fn(BlobOrdinal) -> Option<Address> + '_ {
    |blob| digest.blob(blob).ok().map(|row| row.address)
}
