//! Warm: fetches a dataset into the nodes before a job reads it.
//!
//! Each blob takes the way of any agent's fetch: claimed, read with the user's credentials,
//! verified and put. Resident blobs are skipped, so an interrupted run can be continued. Nothing is
//! evicted to make room. Each node has a task of its own, which ends when the node is full, dead,
//! hung or rejects puts; the other nodes go on.

use std::{collections::VecDeque, ops::AddAssign, sync::Arc};

use forebay_core::{
    BlobOrdinal,
    agent::{
        fetch::Outcome,
        free_space::{Reservation, SpaceLedger},
    },
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::{JoinError, JoinSet},
};

use crate::{
    Config, Environment,
    connection::LinkError,
    fetch::FetchError,
    node_link::NodeLink,
    service::{AgentService, chain},
};

/// Rejected puts in a row after which a node is given up.
const REJECTED_MAX: u64 = 16;

/// A run of `forebay warm`.
pub struct Warm {
    service: Arc<AgentService>,
    /// Blobs to fetch, in this order, each with its length.
    blobs: Vec<(BlobOrdinal, u64)>,
    concurrency: usize,
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WarmProgress {
    /// Blobs that were fetched and put.
    pub fetched: u64,
    /// Bytes of those.
    pub fetched_bytes: u64,
    /// Blobs that were resident, or that another agent was fetching.
    pub skipped: u64,
    /// Bytes of those.
    pub skipped_bytes: u64,
    /// Blobs that their node would not keep, because they are not in the keep set.
    pub uncached: u64,
    /// Blobs that their node rejected.
    pub rejected: u64,
}

impl AddAssign for WarmProgress {
    fn add_assign(&mut self, more: Self) {
        self.fetched += more.fetched;
        self.fetched_bytes += more.fetched_bytes;
        self.skipped += more.skipped;
        self.skipped_bytes += more.skipped_bytes;
        self.uncached += more.uncached;
        self.rejected += more.rejected;
    }
}

/// A node that did not get all of its blobs.
#[derive(Debug)]
pub struct IncompleteShare {
    /// Its name, if it is part of a cluster.
    pub node: Option<String>,
    /// The reason.
    pub reason: IncompleteReason,
    /// Blobs that were not fetched for it.
    pub blobs: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// Why a node did not get all of its blobs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IncompleteReason {
    /// It has no space for the next blob.
    #[error("is full")]
    Full,
    /// It is dead or hung, or not the expected node.
    #[error("does not answer: {0}")]
    Unreachable(String),
    /// It rejects puts.
    #[error("rejects puts; see its log")]
    RejectsPuts,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum WarmError {
    /// The user has interrupted it.
    #[error("interrupted")]
    Interrupted,
    /// The origin failed.
    #[error("{0}")]
    Origin(String),
}

/// The result of a run.
#[derive(Debug)]
pub struct WarmResult {
    /// What was done.
    pub progress: WarmProgress,
    /// Nodes that did not get all of their blobs, sorted by name.
    pub incomplete: Vec<IncompleteShare>,
    /// Why it ended early, if it did.
    pub error: Option<WarmError>,
}

impl Warm {
    /// Fetches these blobs of the agent's dataset, `concurrency` at a time.
    pub fn new(config: Config, blobs: Vec<(BlobOrdinal, u64)>, concurrency: usize) -> Self {
        Self {
            service: Arc::new(AgentService::new(config, Environment::of_this_machine())),
            blobs,
            concurrency,
        }
    }

    /// Fetches until all blobs are resident, all nodes are given up, the origin fails or `stop`
    /// completes. Fetches in progress are finished. `on_progress` is called after each blob.
    pub async fn run(
        self,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&WarmProgress),
    ) -> WarmResult {
        let (mut progress, mut incomplete, mut error) = (WarmProgress::default(), Vec::new(), None);
        let (stop_sender, stopped) = watch::channel(false);
        let (sender, mut updates) = mpsc::unbounded_channel();
        let mut shares = JoinSet::new();
        let permits = Arc::new(Semaphore::new(self.concurrency));
        for share in self.shares().await.unwrap_or_else(|all| {
            incomplete.push(all);
            Vec::new()
        }) {
            shares.spawn(share.run(Arc::clone(&permits), sender.clone(), stopped.clone()));
        }
        drop(sender);
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Some(Ok(more)) => {
                        progress += more;
                        on_progress(&progress);
                    }
                    Some(Err(text)) => {
                        error.get_or_insert(WarmError::Origin(text));
                        stop_sender.send_replace(true);
                    }
                    // All shares have ended.
                    None => break,
                },
                () = &mut stop, if error.is_none() => {
                    error = Some(WarmError::Interrupted);
                    stop_sender.send_replace(true);
                }
            }
        }
        while let Some(share) = shares.join_next().await {
            incomplete.extend(share.ok().flatten());
        }
        incomplete.sort_by(|one, other| one.node.cmp(&other.node));
        WarmResult { progress, incomplete, error }
    }

    /// The blobs of each node; or all of them, if no node is found.
    async fn shares(&self) -> Result<Vec<NodeShare>, IncompleteShare> {
        let nodes = match self.service.links.nodes().await {
            Ok(nodes) => nodes,
            Err(error) => {
                let (blobs, bytes) = sum(&self.blobs);
                let reason = IncompleteReason::Unreachable(chain(&error));
                return Err(IncompleteShare { node: None, reason, blobs, bytes });
            }
        };
        let links = nodes.links().iter().map(Arc::clone);
        let mut shares: Vec<NodeShare> =
            links.map(|link| NodeShare::new(Arc::clone(&self.service), link)).collect();
        for (blob, length) in &self.blobs {
            let owner = nodes.owner(&self.service.digest, *blob);
            shares[owner].queue.push_back((*blob, *length));
        }
        Ok(shares)
    }
}

fn sum<'a>(blobs: impl IntoIterator<Item = &'a (BlobOrdinal, u64)>) -> (u64, u64) {
    blobs.into_iter().fold((0, 0), |(count, bytes), (_, length)| (count + 1, bytes + length))
}

/// The blobs that one node owns, and their fetches.
struct NodeShare {
    service: Arc<AgentService>,
    link: Arc<NodeLink>,
    queue: VecDeque<(BlobOrdinal, u64)>,
    /// Blobs that could not be claimed, because the node failed.
    unclaimed: Vec<(BlobOrdinal, u64)>,
    ledger: SpaceLedger,
    fetches: JoinSet<Fetched>,
    rejected_in_a_row: u64,
    /// Why the node is given up, if it is.
    reason: Option<IncompleteReason>,
}

/// A finished fetch of one blob.
struct Fetched {
    blob: BlobOrdinal,
    length: u64,
    reservation: Reservation,
    outcome: Result<Outcome, FetchError>,
    _permit: OwnedSemaphorePermit,
}

/// The progress of one blob, or the error of the origin.
type Update = Result<WarmProgress, String>;

impl NodeShare {
    fn new(service: Arc<AgentService>, link: Arc<NodeLink>) -> Self {
        let (queue, unclaimed, ledger, fetches) = Default::default();
        let (rejected_in_a_row, reason) = (0, None);
        Self { service, link, queue, unclaimed, ledger, fetches, rejected_in_a_row, reason }
    }

    async fn run(
        mut self,
        permits: Arc<Semaphore>,
        updates: mpsc::UnboundedSender<Update>,
        mut stopped: watch::Receiver<bool>,
    ) -> Option<IncompleteShare> {
        loop {
            let may_start = self.reason.is_none() && !self.queue.is_empty() && !*stopped.borrow();
            let reservation = if may_start { self.reserve_next().await } else { None };
            if reservation.is_none() && self.fetches.is_empty() {
                break;
            }
            tokio::select! {
                Some(done) = self.fetches.join_next() => {
                    if let Some(reservation) = reservation {
                        self.ledger.release(reservation);
                    }
                    let update = self.on_fetched(done).await;
                    let _ = updates.send(update);
                }
                Ok(permit) = Arc::clone(&permits).acquire_owned(), if reservation.is_some() => {
                    self.start_next(reservation.expect("checked"), permit);
                }
                _ = stopped.changed(), if reservation.is_some() => {
                    self.ledger.release(reservation.expect("checked"));
                }
            }
        }
        let (blobs, bytes) = sum(self.queue.iter().chain(&self.unclaimed));
        let node = self.link.name().map(ToString::to_string);
        self.reason.map(|reason| IncompleteShare { node, reason, blobs, bytes })
    }

    /// Reserves space on the node for the next blob. `None` for now, or for good if `reason` is
    /// set.
    async fn reserve_next(&mut self) -> Option<Reservation> {
        let (_, length) = *self.queue.front()?;
        if !self.ledger.is_stale(self.service.links.now())
            && let Some(reservation) = self.ledger.reserve(length)
        {
            return Some(reservation);
        }
        if let Err(error) = self.update_free_space().await {
            self.reason = Some(IncompleteReason::Unreachable(chain(&error)));
            return None;
        }
        let reservation = self.ledger.reserve(length);
        // Fetches in progress may need less than their reservations. Without any, the node is full.
        if reservation.is_none() && self.ledger.is_idle() {
            self.reason = Some(IncompleteReason::Full);
        }
        reservation
    }

    async fn update_free_space(&mut self) -> Result<(), LinkError> {
        let links = &self.service.links;
        let space = self.link.connection(links).await?.free_space().await?;
        self.ledger.on_report(links.now(), space);
        Ok(())
    }

    /// Fetches the next blob on a task of its own.
    fn start_next(&mut self, reservation: Reservation, permit: OwnedSemaphorePermit) {
        let (blob, length) = self.queue.pop_front().expect("space is reserved for it");
        let (service, link) = (Arc::clone(&self.service), Arc::clone(&self.link));
        self.fetches.spawn(async move {
            let outcome = service.fetch_for_node(blob, length, Ok(link)).await;
            Fetched { blob, length, reservation, outcome, _permit: permit }
        });
    }

    async fn on_fetched(&mut self, done: Result<Fetched, JoinError>) -> Update {
        let done = done.map_err(|_| "the fetch panicked; see the log".to_owned())?;
        let Fetched { blob, length, reservation, outcome, _permit: _ } = done;
        self.ledger.release(reservation);
        let outcome = outcome.map_err(|error| chain(&error))?;
        let none = WarmProgress::default();
        if outcome != Outcome::Kept {
            self.rejected_in_a_row = 0;
        }
        Ok(match outcome {
            Outcome::Bytes => WarmProgress { fetched: 1, fetched_bytes: length, ..none },
            Outcome::Elsewhere => WarmProgress { skipped: 1, skipped_bytes: length, ..none },
            Outcome::Kept => {
                self.rejected_in_a_row += 1;
                if self.rejected_in_a_row >= REJECTED_MAX {
                    self.reason.get_or_insert(IncompleteReason::RejectsPuts);
                }
                WarmProgress { rejected: 1, ..none }
            }
            Outcome::Unclaimed | Outcome::Failed => {
                match self.link.connection(&self.service.links).await {
                    Ok(_) => WarmProgress { uncached: 1, ..none },
                    Err(error) => {
                        self.unclaimed.push((blob, length));
                        let reason = IncompleteReason::Unreachable(chain(&error));
                        self.reason.get_or_insert(reason);
                        none
                    }
                }
            }
        })
    }
}
