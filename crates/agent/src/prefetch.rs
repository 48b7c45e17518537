//! Fetching ahead: first what the job said it will want, in that order; then, as long as the nodes have
//! room, everything else, in a random order of the agent's own, so that the agents of several jobs meet
//! as little as possible.
//!
//! Each node has a task of its own that fills up its share, so that one that is hung holds up nobody else. A
//! node that is back after a while is asked what it has, and is given the rest: first what is still in this
//! agent's memory.

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
    connection::{Connection, LinkError, Result},
    link::Link,
    links::Nodes,
    service::AgentService,
};

/// Blobs fetched ahead at once: small ones need many to make up for an origin's latency. Fewer than the requests
/// that an origin is sent at once, which leaves some to what the job waits for.
const AT_ONCE: usize = 48;
/// How often it is looked whether a node has room again, or is there again.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs until the agent stops.
pub(crate) async fn run(service: Arc<AgentService>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    tasks.spawn(fetch_wanted(Arc::clone(&service), Arc::clone(&places)));
    // A job that takes part in a rotation reports before it asks for anything; what was fetched sooner would
    // hardly be of a piece that has a place.
    service.has_begun().await;
    loop {
        let nodes = match service.links.nodes().await {
            Ok(nodes) => nodes,
            Err(LinkError::None) => return std::future::pending().await,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // They end when they are dropped, which is when others share the work.
        let mut fillings = JoinSet::new();
        for place in 0..nodes.links().len() {
            let filling = Filling {
                service: Arc::clone(&service),
                nodes: Arc::clone(&nodes),
                place,
                rest: Vec::new(),
                looked_at: Weak::new(),
            };
            fillings.spawn(filling.run(Arc::clone(&places)));
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

/// What the job said it will want comes before everything else.
async fn fetch_wanted(service: Arc<AgentService>, places: Arc<Semaphore>) {
    let mut fetches = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
        if let Some(blob) = service.next_wanted() {
            fetch(&mut fetches, Arc::clone(&service), (blob, true), place);
        } else {
            drop(place);
            service.something_wanted().await;
        }
        while fetches.try_join_next().is_some() {}
    }
}

fn fetch(
    fetches: &mut JoinSet<()>,
    service: Arc<AgentService>,
    (blob, is_wanted): (u64, bool),
    place: OwnedSemaphorePermit,
) {
    fetches.spawn(async move {
        if let Err(error) = service.obtain_ahead(blob, is_wanted).await {
            // Whoever asks for it will be told why.
            tracing::debug!(%error, blob, "cannot fetch ahead");
        }
        drop(place);
    });
}

/// One node's share, as far as it is not there.
struct Filling {
    service: Arc<AgentService>,
    nodes: Arc<Nodes>,
    place: usize,
    /// In a random order.
    rest: Vec<u64>,
    /// The connection on which the node last said what it has.
    looked_at: Weak<Connection>,
}

impl Filling {
    async fn run(mut self, places: Arc<Semaphore>) {
        let mut fetches = JoinSet::new();
        loop {
            while fetches.try_join_next().is_some() {}
            let Some(blob) = self.next().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
            if self.service.is_something_wanted() {
                drop(place);
                tokio::task::yield_now().await;
                continue;
            }
            self.rest.pop();
            fetch(&mut fetches, Arc::clone(&self.service), (blob, false), place);
        }
    }

    fn link(&self) -> &Arc<Link> {
        &self.nodes.links()[self.place]
    }

    /// What to fetch next, if the node is there, takes anything and would keep it without dropping another.
    async fn next(&mut self) -> Option<u64> {
        let node = self.link().connection(&self.service.links).await.ok()?;
        if self.looked_at.as_ptr() != Arc::as_ptr(&node) {
            self.look(&node).await.ok()?;
        }
        let blob = *self.rest.last()?;
        if !self.link().takes_any(self.service.links.now()) {
            return None;
        }
        let Ok(row) = self.service.digest.blob(BlobOrdinal::new(blob)) else { return Some(blob) };
        let has_room = self.link().has_room_for(&self.service.links, row.length, AT_ONCE).await;
        has_room.is_ok_and(|has_room| has_room).then_some(blob)
    }

    /// Finds out what the node lacks of its share.
    async fn look(&mut self, node: &Arc<Connection>) -> Result<()> {
        let (service, nodes, place) =
            (Arc::clone(&self.service), Arc::clone(&self.nodes), self.place);
        let present = node.presence(service.digest.summary().blobs).await?;
        let look = move || nodes.absent(&service.digest, place, &present);
        self.rest = tokio::task::spawn_blocking(look).await.expect("looking does not panic");
        fastrand::shuffle(&mut self.rest);
        self.looked_at = Arc::downgrade(node);
        Ok(())
    }
}
