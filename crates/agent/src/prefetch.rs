//! Prefetch: blobs of the job's prefetch hints first, in their order; then all other blobs, as long
//! as the nodes have free space. Those come in a random order, so that the agents of several jobs
//! fetch different blobs.
//!
//! Each node has a task that fills it with the blobs it owns, so that a hung node holds up no
//! other. When a node is connected again, the task asks for its presence and fetches what is
//! missing; blobs in the agent's cache are put without a fetch.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use forebay_core::BlobOrdinal;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::{
    cluster::Nodes,
    connection::{Connection, LinkError, Result},
    node_link::NodeLink,
    service::AgentService,
};

/// Concurrent prefetches. Small blobs need many to hide the origin's latency. Fewer than the
/// concurrent requests to an origin, so that some are left for demand fetches.
const CONCURRENCY: usize = 48;
/// Interval at which a full or unreachable node is checked again.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs until the agent stops.
pub(crate) async fn run(service: Arc<AgentService>) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    let mut tasks = JoinSet::new();
    tasks.spawn(fetch_hinted(Arc::clone(&service), Arc::clone(&permits)));
    // A job of a rotation reports before its first read. Blobs that are fetched before that are
    // hardly in the keep set.
    service.first_request().await;
    loop {
        let nodes = match service.links.nodes().await {
            Ok(nodes) => nodes,
            Err(LinkError::None) => return std::future::pending().await,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // The tasks end when the set is dropped: when the list of nodes has changed.
        let mut fills = JoinSet::new();
        for node in 0..nodes.links().len() {
            let fill = NodeFill {
                service: Arc::clone(&service),
                nodes: Arc::clone(&nodes),
                node,
                missing: Vec::new(),
                listed_on: Weak::new(),
            };
            fills.spawn(fill.run(Arc::clone(&permits)));
        }
        loop {
            service.links.changed().await;
            let now = service.links.nodes().await;
            if !now.is_ok_and(|now| Arc::ptr_eq(&now, &nodes)) {
                break;
            }
        }
    }
}

/// Fetches the blobs of prefetch hints, before all others.
async fn fetch_hinted(service: Arc<AgentService>, permits: Arc<Semaphore>) {
    let mut fetches = JoinSet::new();
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
        if let Some(blob) = service.next_hinted() {
            fetch(&mut fetches, Arc::clone(&service), blob, true, permit);
        } else {
            drop(permit);
            service.hint_added().await;
        }
        while fetches.try_join_next().is_some() {}
    }
}

fn fetch(
    fetches: &mut JoinSet<()>,
    service: Arc<AgentService>,
    blob: BlobOrdinal,
    is_hinted: bool,
    permit: OwnedSemaphorePermit,
) {
    fetches.spawn(async move {
        if let Err(error) = service.prefetch(blob, is_hinted).await {
            // A demand fetch of the blob reports the error to the job.
            tracing::debug!(%error, %blob, "prefetch failed");
        }
        if is_hinted {
            service.on_prefetched(blob);
        }
        drop(permit);
    });
}

/// Fills one node with the blobs it owns.
struct NodeFill {
    service: Arc<AgentService>,
    nodes: Arc<Nodes>,
    /// The index of the node.
    node: usize,
    /// Blobs that the node does not have, in a random order.
    missing: Vec<BlobOrdinal>,
    /// The connection on which the node last sent its presence.
    listed_on: Weak<Connection>,
}

impl NodeFill {
    async fn run(mut self, permits: Arc<Semaphore>) {
        let mut fetches = JoinSet::new();
        loop {
            while fetches.try_join_next().is_some() {}
            let Some(blob) = self.next().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let permit = Arc::clone(&permits).acquire_owned().await.expect("never closed");
            if self.service.has_hints() {
                drop(permit);
                tokio::task::yield_now().await;
                continue;
            }
            self.missing.pop();
            fetch(&mut fetches, Arc::clone(&self.service), blob, false, permit);
        }
    }

    fn link(&self) -> &Arc<NodeLink> {
        &self.nodes.links()[self.node]
    }

    /// The next blob, if the node is connected, accepts prefetches and has free space for it.
    async fn next(&mut self) -> Option<BlobOrdinal> {
        let connection = self.link().connection(&self.service.links).await.ok()?;
        if self.listed_on.as_ptr() != Arc::as_ptr(&connection) {
            self.list_missing(&connection).await.ok()?;
        }
        let blob = *self.missing.last()?;
        if !self.link().accepts_prefetch(self.service.links.now()) {
            return None;
        }
        let Ok(row) = self.service.digest.blob(blob) else { return Some(blob) };
        let reserved = self.link().reserve(&self.service.links, row.length, CONCURRENCY).await;
        reserved.is_ok_and(|is_reserved| is_reserved).then_some(blob)
    }

    /// Lists the blobs that the node owns and does not have.
    async fn list_missing(&mut self, connection: &Arc<Connection>) -> Result<()> {
        let digest = &self.service.digest;
        let present = connection.presence(digest.summary().blobs).await?;
        self.missing = self.nodes.missing(digest, self.node, &present).await;
        fastrand::shuffle(&mut self.missing);
        self.listed_on = Arc::downgrade(connection);
        Ok(())
    }
}
