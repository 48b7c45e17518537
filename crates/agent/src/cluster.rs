//! The ways to all nodes that share the work. Who they are is asked of whichever is found first; a node
//! that knows of no others is alone.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay_core::{
    BlobOrdinal, Endpoint, NodeName,
    digest::Digest,
    patience::Book,
    presence,
    ring::{Contacts, Heard, KnownRing, Membership, Ring},
};
use forebay_identity::Credentials;
use forebay_server::AgentCounters;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    connection::{Connection, LinkError, Result},
    link::{Link, connect},
};

/// The ways to all nodes.
pub(crate) struct Links {
    contacts: Contacts,
    pub job: String,
    pub credentials: Credentials,
    pub digest: Digest,
    started: Instant,
    /// Held while somebody finds out who there is.
    learning: tokio::sync::Mutex<Book>,
    /// Whether nobody was found at least once.
    searched_in_vain: AtomicBool,
    known: Mutex<Known>,
    changed: Notify,
    counters: Arc<AgentCounters>,
}

#[derive(Default)]
struct Known {
    ring: Option<KnownRing>,
    nodes: Option<Arc<Nodes>>,
}

/// Those who share the work: one that is alone, or a ring.
pub(crate) struct Nodes {
    ring: Option<Ring>,
    /// In the order of the ring.
    links: Vec<Arc<Link>>,
    /// Of every blob, once all of them have been needed.
    owners: OnceLock<Vec<u16>>,
}

impl Nodes {
    fn alone(link: Link) -> Self {
        Self { ring: None, links: vec![Arc::new(link)], owners: OnceLock::new() }
    }

    /// Links to those who stay where they were are kept.
    fn of(ring: Ring, before: Option<&Self>) -> Self {
        let link = |name: &NodeName, endpoint: &Endpoint| {
            let mut before = before.into_iter().flat_map(|before| &before.links);
            let kept = before.find(|link| link.is_to(name, endpoint)).map(Arc::clone);
            kept.unwrap_or_else(|| Arc::new(Link::new(endpoint.clone(), Some(name.clone()))))
        };
        let links = ring.members().iter().map(|member| link(&member.name, &member.endpoint));
        Self { links: links.collect(), ring: Some(ring), owners: OnceLock::new() }
    }

    /// In the order of the ring.
    pub fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// The node that owns a blob, by its place. A row that cannot be read is nobody's: whoever reads it is
    /// told.
    pub fn owner(&self, digest: &Digest, blob: u64) -> usize {
        let Some(ring) = &self.ring else { return 0 };
        digest.blob(BlobOrdinal::new(blob)).map_or(0, |row| ring.owner(&row.address))
    }
}

impl Nodes {
    /// All blobs of a node that are not among these, one bit for each. Takes long for large datasets.
    pub fn absent(&self, digest: &Digest, place: usize, present: &presence::Known) -> Vec<u64> {
        let blobs = 0..digest.summary().blobs;
        let owners = self.owners.get_or_init(|| {
            let owner = |blob| u16::try_from(self.owner(digest, blob)).expect("at most NODES_MAX");
            if self.ring.is_some() { blobs.clone().map(owner).collect() } else { Vec::new() }
        });
        let index = |blob: u64| usize::try_from(blob).expect("digests are in memory");
        let is_owned =
            |blob: u64| owners.get(index(blob)).is_none_or(|owner| usize::from(*owner) == place);
        let is_there = |blob: u64| present.bits()[index(blob / 8)] >> (blob % 8) & 1 == 1;
        blobs.filter(|blob| is_owned(*blob) && !is_there(*blob)).collect()
    }
}

impl Links {
    pub fn new(
        contacts: Contacts,
        credentials: Credentials,
        job: String,
        digest: Digest,
        counters: Arc<AgentCounters>,
    ) -> Self {
        let mut known = Known::default();
        if let Some((list, zone)) = contacts.list() {
            let ring = list.ring(zone).expect("checked");
            known.ring = Some(KnownRing::new(list.clone(), None));
            known.nodes = Some(Arc::new(Nodes::of(ring, None)));
        }
        Self {
            contacts,
            job,
            credentials,
            digest,
            started: Instant::now(),
            learning: tokio::sync::Mutex::default(),
            searched_in_vain: AtomicBool::new(false),
            known: Mutex::new(known),
            changed: Notify::new(),
            counters,
        }
    }

    /// The time as `core` wants it.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Completes when other nodes share the work than before.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The way to the node that owns a blob. The job waits for this: if nobody could be found, that is left to
    /// those for whom nobody waits.
    pub async fn to(&self, blob: u64) -> Result<Arc<Link>> {
        if self.searched_in_vain.load(Relaxed) && self.known.lock().nodes.is_none() {
            return Err(unreachable());
        }
        let nodes = self.nodes().await?;
        Ok(Arc::clone(&nodes.links[nodes.owner(&self.digest, blob)]))
    }

    /// All nodes; whoever is first to ask finds out who they are.
    pub async fn nodes(&self) -> Result<Arc<Nodes>> {
        if let Some(nodes) = &self.known.lock().nodes {
            return Ok(Arc::clone(nodes));
        }
        if self.contacts.is_empty() {
            return Err(LinkError::None);
        }
        let mut book = self.learning.lock().await;
        // Somebody else may have found out meanwhile.
        if let Some(nodes) = &self.known.lock().nodes {
            return Ok(Arc::clone(nodes));
        }
        let (search_began, mut failure) = (self.now(), unreachable());
        for endpoint in self.contacts.endpoints() {
            let began = self.now();
            if !book.is_due(endpoint, search_began, began) {
                continue;
            }
            match connect(self, endpoint).await {
                Ok((connection, says)) => {
                    book.succeeded(endpoint, self.now());
                    return Ok(self.learnt(endpoint, connection, says));
                }
                Err(error) => {
                    if !book.has_failed(endpoint) {
                        tracing::warn!(%error, "no node: reading the origin directly");
                    }
                    book.failed(endpoint, error.failure(), began, (began, self.now()));
                    failure = error;
                }
            }
        }
        self.searched_in_vain.store(true, Relaxed);
        Err(failure)
    }

    fn learnt(
        &self,
        endpoint: &Endpoint,
        connection: Arc<Connection>,
        says: Option<Membership>,
    ) -> Arc<Nodes> {
        let nodes = match &says {
            None => Nodes::alone(Link::new(endpoint.clone(), None)),
            Some(says) => Nodes::of(says.ring(), None),
        };
        let own = says.as_ref().and_then(|says| nodes.ring.as_ref()?.place_of(says.name()));
        nodes.links[own.unwrap_or(0)].opened(connection);
        let nodes = Arc::new(nodes);
        let mut known = self.known.lock();
        known.ring = says.map(|says| {
            let count = says.list().members().len();
            tracing::info!(nodes = count, list = %says.list().fingerprint(), "several nodes share the work");
            KnownRing::new(says.list().clone(), Some(says.name().clone()))
        });
        known.nodes = Some(Arc::clone(&nodes));
        drop(known);
        self.changed.notify_one();
        nodes
    }

    /// A node was reached; is it the one that should be there?
    pub fn heard(&self, link: &Link, says: Option<&Membership>) -> Result<()> {
        let mut known = self.known.lock();
        let Some(expected) = link.name() else {
            // It was alone, and is no more.
            if let Some(says) = says {
                known.ring = Some(KnownRing::new(says.list().clone(), Some(says.name().clone())));
                self.change(&mut known, says.ring());
            }
            return Ok(());
        };
        let ring = known.ring.as_mut().expect("names come from a list");
        let ours = ring.fingerprint();
        match ring.heard(expected, says) {
            Heard::Same => {}
            Heard::Differs(theirs) => {
                self.counters.ring_differs.one();
                tracing::warn!(
                    node = %expected, %theirs, %ours,
                    "a node has another list of nodes than the one that is used; give all of them the same"
                );
            }
            Heard::Wrong => {
                self.counters.ring_wrong.one();
                let found = says.map_or("a node without a list", |says| says.name().as_str());
                return Err(LinkError::Wrong {
                    expected: expected.to_string(),
                    found: found.to_owned(),
                });
            }
            Heard::Changed => {
                tracing::info!(list = %ring.fingerprint(), "the list of nodes has changed");
                let says = says.expect("it has said something");
                self.change(&mut known, says.ring());
            }
        }
        Ok(())
    }

    fn change(&self, known: &mut Known, ring: Ring) {
        self.counters.ring_changes.one();
        let nodes = Nodes::of(ring, known.nodes.as_deref());
        known.nodes = Some(Arc::new(nodes));
        self.changed.notify_one();
    }

    /// A node that is alone is gone: another contact may be there.
    pub fn lost(&self, link: &Link) {
        if link.name().is_none() && self.contacts.endpoints().len() > 1 {
            self.known.lock().nodes = None;
            self.changed.notify_one();
        }
    }

    /// How often each node was of no help, by name.
    pub fn fallbacks(&self) -> Vec<(String, u64)> {
        let nodes = self.known.lock().nodes.clone();
        let links = nodes.iter().flat_map(|nodes| &nodes.links);
        let of = |link: &Arc<Link>| Some((link.name()?.to_string(), link.fallbacks.get()));
        links.filter_map(of).filter(|(_, fallbacks)| *fallbacks > 0).collect()
    }
}

fn unreachable() -> LinkError {
    LinkError::Unreachable("it could not be reached a moment ago".to_owned())
}
