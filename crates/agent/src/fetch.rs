//! Fetches: carries out the steps that [`forebay_core::agent::fetch`] decides. Bytes from the
//! origin are verified against the blob's address before they are used.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal,
    agent::fetch::{FetchEvent, FetchReason, FetchState, NodeState, Outcome, Purpose, Step},
    cluster::backoff::Elapsed,
    dataset::hash_tree::verify_slice,
};
use forebay_digest::DigestError;
use forebay_origin::{OriginError, PIECE};
use forebay_transport::ByteChain;
use forebay_wire::GetAnswer;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::timeout,
};

use crate::{
    claims::HeldClaim,
    connection::{Connection, LinkError},
    node_link::NodeLink,
    service::AgentService,
};

/// Concurrent reads of one blob.
const READ_CONCURRENCY: usize = 8;
/// Bytes of one read.
const PIECE_STEP: usize = 2 << 20;
const _: () = assert!(PIECE_STEP as u64 == PIECE, "reads are pieces");
/// Transfers of a blob whose bytes do not hash to its address before that is an error. The first
/// may have been damaged on the way; two in a row were not.
const TRANSFERS_MAX: u32 = 2;

/// Why a fetch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(
        "the content of `{0}` differs from the digest although its version is the same \
         ({TRANSFERS_MAX} transfers); build the digest again"
    )]
    HashMismatch(String),
}

/// A blob's bytes, and the memory permit for them.
pub(crate) struct FetchedBlob {
    pub content: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

impl FetchedBlob {
    /// A blob of the agent's cache, which has a limit of its own.
    pub fn cached(content: Bytes) -> Self {
        Self { content, _memory: None }
    }
}

/// The state of one fetch beside its [`FetchState`].
struct FetchTask {
    blob: BlobOrdinal,
    length: u64,
    /// Whether the job reads all of it when it arrives.
    is_whole: bool,
    link: Option<Arc<NodeLink>>,
    node: Option<Arc<Connection>>,
    claim: Option<HeldClaim>,
    /// Changes when a claim has ended since the last one was requested.
    claim_ended: Option<watch::Receiver<()>>,
    content: Bytes,
    error: Option<FetchError>,
}

impl AgentService {
    /// A demand fetch: the job waits for the blob. If `is_whole`, it reads all of it now.
    pub(crate) async fn fetch_demand(
        &self,
        blob: BlobOrdinal,
        is_whole: bool,
    ) -> Result<FetchedBlob, FetchError> {
        let length = self.digest.blob(blob)?.length;
        // Before the claim: a claim that waits for memory makes no progress, and is lost.
        let memory = self.memory.take(length).await;
        let link = self.links.to_owner(blob).await;
        let (_, content) = self.run_fetch(blob, length, Purpose::Demand, link, is_whole).await?;
        Ok(FetchedBlob { content, _memory: Some(memory) })
    }

    /// A probe: reads a blob, or some leaves of its hash tree, from the origin, whatever is
    /// resident.
    pub(crate) async fn fetch_from_origin(
        &self,
        blob: BlobOrdinal,
        extent: Range<u64>,
    ) -> Result<FetchedBlob, FetchError> {
        let length = extent.end - extent.start;
        let memory = self.memory.take(length).await;
        self.counters.probes.one();
        self.counters.probe_bytes.add(length);
        let content = self.read_origin(blob, extent, None).await?;
        Ok(FetchedBlob { content, _memory: Some(memory) })
    }

    /// The part of a blob that is read for a range of it alone: whole leaves of its hash tree, so
    /// that they can be verified. The whole blob, if the digest has no tree of it.
    pub(crate) fn extent_of(
        &self,
        blob: BlobOrdinal,
        range: &Range<u64>,
    ) -> Result<Range<u64>, FetchError> {
        let row = self.digest.blob(blob)?;
        let tree = row.tree()?.filter(|tree| tree.is_of(&self.namespace, &row.address));
        Ok(tree.map_or(0..row.length, |tree| tree.leaf().cover(range, row.length)))
    }

    /// Prefetches a blob for its node, if no other agent does. A blob that no node will keep goes
    /// into the agent's cache, if the job has hinted at it and there is space.
    pub(crate) async fn prefetch(
        self: &Arc<Self>,
        blob: BlobOrdinal,
        is_hinted: bool,
    ) -> Result<(), FetchError> {
        let length = self.digest.blob(blob)?.length;
        let link = self.links.to_owner(blob).await;
        let cached = self.cache.lock().get(blob);
        if let Some(content) = cached {
            if let Ok(link) = link {
                self.put_cached(&link, blob, &content).await;
            }
            return Ok(());
        }
        match self.fetch_for_node(blob, length, link).await? {
            Outcome::Unclaimed if is_hinted && self.cache.lock().begin_prefetch(length) => {
                if self.is_still_hinted(blob) {
                    // A later read reports the error to the job.
                    let _ = self.bytes_of(blob, false).await;
                }
                self.cache.lock().end_prefetch(length);
            }
            _ => {}
        }
        Ok(())
    }

    /// Fetches a blob for the node that owns it, if the claim is granted at once.
    pub(crate) async fn fetch_for_node(
        &self,
        blob: BlobOrdinal,
        length: u64,
        link: Result<Arc<NodeLink>, LinkError>,
    ) -> Result<Outcome, FetchError> {
        let _memory = self.memory.take(length).await;
        let owner = link.as_ref().ok().map(Arc::clone);
        let began = self.links.now();
        let (outcome, _) = self.run_fetch(blob, length, Purpose::Prefetch, link, false).await?;
        if let (Outcome::Bytes | Outcome::Kept, Some(link)) = (outcome, owner) {
            let attempt = Elapsed { since: began, now: self.links.now() };
            link.on_prefetch_put(outcome == Outcome::Bytes, attempt);
        }
        Ok(outcome)
    }

    /// Puts a blob of the agent's cache to its node, which was unreachable when the blob was
    /// fetched.
    async fn put_cached(&self, link: &NodeLink, blob: BlobOrdinal, content: &Bytes) {
        let began = self.links.now();
        let Ok(node) = link.connection(&self.links).await else { return };
        if !link.accepts_prefetch(began) {
            return;
        }
        if let Ok((_, Some(claim))) = node.claim(blob).await {
            let is_stored = claim.put(content).await.is_ok();
            if is_stored {
                self.cache.lock().on_put(blob);
            } else {
                self.count_refused(content);
                claim.release().await;
            }
            link.on_prefetch_put(is_stored, Elapsed { since: began, now: self.links.now() });
        }
    }

    /// Runs a fetch to its end.
    async fn run_fetch(
        &self,
        blob: BlobOrdinal,
        length: u64,
        purpose: Purpose,
        link: Result<Arc<NodeLink>, LinkError>,
        is_whole: bool,
    ) -> Result<(Outcome, Bytes), FetchError> {
        let (state, node) = match &link {
            Ok(link) => link.node_state(&self.links).await,
            Err(LinkError::None) => (NodeState::None, None),
            Err(_) => (NodeState::Unreachable, None),
        };
        let mut fetch = FetchState::new(self.links.now(), purpose, state);
        let (claim, claim_ended, content, error) = (None, None, Bytes::new(), None);
        let link = link.ok();
        let mut task =
            FetchTask { blob, length, is_whole, link, node, claim, claim_ended, content, error };
        loop {
            let step = fetch.step();
            if let Step::Done(outcome) = step {
                return task.error.map_or(Ok((outcome, task.content)), Err);
            }
            let event = self.carry_out(step, &mut task).await;
            fetch.on_event(self.links.now(), event);
        }
    }

    async fn carry_out(&self, step: Step, task: &mut FetchTask) -> FetchEvent {
        match step {
            Step::Claim => self.claim(task).await,
            Step::Get(wait) => self.get_from_node(task, wait).await,
            Step::AwaitClaimSlot(wait) => {
                let ended = task.claim_ended.as_mut().expect("a claim was requested");
                let _ = timeout(wait, ended.changed()).await;
                FetchEvent::Done
            }
            Step::Pause(pause) => {
                tokio::time::sleep(pause).await;
                FetchEvent::Done
            }
            Step::ReadOrigin(reason) => {
                self.counters.origin_fetches.one();
                match reason {
                    FetchReason::Fallback => {
                        self.counters.fallbacks.one();
                        self.counters.fallback_bytes.add(task.length);
                        if let Some(link) = task.link.as_ref().filter(|link| link.name().is_some())
                        {
                            self.counters.fallbacks_ring.one();
                            link.fallbacks.one();
                        }
                    }
                    FetchReason::Uncached => {
                        self.counters.uncached.one();
                        self.counters.uncached_bytes.add(task.length);
                    }
                    FetchReason::Claim | FetchReason::NoNode => {}
                }
                match self.read_origin(task.blob, 0..task.length, task.claim.as_ref()).await {
                    Ok(content) => {
                        task.content = content;
                        FetchEvent::Fetched
                    }
                    Err(error) => {
                        task.error = Some(error);
                        FetchEvent::FetchFailed
                    }
                }
            }
            Step::Put => match task.claim.as_ref().expect("granted").put(&task.content).await {
                Ok(()) => FetchEvent::Done,
                Err(error) => {
                    tracing::debug!(%error, "put failed");
                    self.count_refused(&task.content);
                    FetchEvent::NodeFailed
                }
            },
            Step::Keep => {
                let (mut cache, content) = (self.cache.lock(), task.content.clone());
                if task.is_whole {
                    cache.insert_read(task.blob, content);
                } else {
                    cache.insert(task.blob, content);
                }
                FetchEvent::Done
            }
            Step::Release => {
                task.claim.take().expect("granted").release().await;
                FetchEvent::Done
            }
            Step::Done(_) => unreachable!("the fetch has ended"),
        }
    }

    fn count_refused(&self, content: &Bytes) {
        self.counters.puts_refused.one();
        self.counters.puts_refused_bytes.add(content.len() as u64);
    }

    async fn claim(&self, task: &mut FetchTask) -> FetchEvent {
        // Another fetch of this agent may have cached it since.
        if let Some(content) = self.cache.lock().get(task.blob) {
            task.content = content;
            return FetchEvent::Bytes;
        }
        let node = task.node.as_ref().expect("the node is connected");
        task.claim_ended = Some(node.watch_claims());
        match node.claim(task.blob).await {
            Ok((claimed, claim)) => {
                task.claim = claim;
                FetchEvent::Claim(claimed)
            }
            Err(error) => node_failed(&error),
        }
    }

    /// Gets a blob from its node and verifies its address. A wrong copy is reported, and counts as
    /// absent.
    async fn get_from_node(&self, task: &mut FetchTask, wait: Duration) -> FetchEvent {
        let node = task.node.as_ref().expect("the node is connected");
        match node.get(task.blob, task.length, wait).await {
            Ok((GetAnswer::Hit, content)) => {
                if self.is_at_address(task.blob, &content).await {
                    task.content = content;
                    return FetchEvent::Bytes;
                }
                self.counters.hash_mismatches.one();
                tracing::warn!(blob = %task.blob, "hash mismatch of a blob from a node");
                self.report_to_owner(task.blob).await;
                FetchEvent::Absent
            }
            Ok((GetAnswer::Miss, _)) => FetchEvent::Absent,
            Ok((GetAnswer::Claimed, _)) => FetchEvent::StillClaimed,
            Err(error) => node_failed(&error),
        }
    }

    /// Reads a blob and verifies its address, or some of its leaves and verifies their hashes. A
    /// transfer that does not match is repeated once.
    async fn read_origin(
        &self,
        blob: BlobOrdinal,
        extent: Range<u64>,
        claim: Option<&HeldClaim>,
    ) -> Result<Bytes, FetchError> {
        for _ in 0..TRANSFERS_MAX {
            let content = self.transfer(blob, &extent, claim).await?;
            if self.is_extent(blob, &extent, &content).await? {
                return Ok(content);
            }
            self.counters.transfers_damaged.one();
            tracing::warn!(%blob, "hash mismatch of a transfer from the origin");
        }
        let first = self.digest.blob(blob)?.parts().next().transpose()?;
        Err(FetchError::HashMismatch(first.map(|part| part.object.to_owned()).unwrap_or_default()))
    }

    /// Whether these bytes are an extent of a blob: all of it, or some of its leaves.
    async fn is_extent(
        &self,
        blob: BlobOrdinal,
        extent: &Range<u64>,
        content: &[u8],
    ) -> Result<bool, FetchError> {
        if *extent == (0..self.digest.blob(blob)?.length) {
            return Ok(self.is_at_address(blob, content).await);
        }
        let row = self.digest.blob(blob)?;
        let is_slice =
            |tree| verify_slice(&self.namespace, &row.address, &tree, extent.start, content);
        Ok(row.tree()?.is_some_and(is_slice))
    }

    /// Reads the parts of an extent of a blob, in order.
    async fn transfer(
        &self,
        blob: BlobOrdinal,
        extent: &Range<u64>,
        claim: Option<&HeldClaim>,
    ) -> Result<Bytes, FetchError> {
        let row = self.digest.blob(blob)?;
        let (mut parts, mut at) = (Vec::new(), 0);
        for part in row.parts() {
            let part = part?;
            let own = at..at + part.length;
            at = own.end;
            let start = extent.start.clamp(own.start, own.end) - own.start;
            let end = extent.end.clamp(own.start, own.end) - own.start;
            if start < end || *extent == (0..row.length) {
                let range = part.offset + start..part.offset + end;
                parts.push((part.object.to_owned(), self.version_of(&part), range));
            }
        }
        // Lazily, piece by piece: a digest may announce more bytes than the origin has.
        let reads = parts.into_iter().flat_map(|(object, version, range)| {
            range.clone().step_by(PIECE_STEP).map(move |start| {
                (object.clone(), version.clone(), start..range.end.min(start + PIECE))
            })
        });
        let length = extent.end - extent.start;
        let mut content = ByteChain::new(usize::try_from(length).unwrap_or(0));
        let mut bytes = stream::iter(reads)
            .map(|(object, version, range)| async move {
                self.origin.read(&object, &version, range).await
            })
            .buffered(READ_CONCURRENCY);
        while let Some(read) = bytes.try_next().await? {
            self.counters.origin_bytes.add(read.len() as u64);
            if let Some(claim) = claim {
                claim.progress(read.len() as u64);
            }
            content.add(read);
        }
        drop(bytes);
        Ok(content.take())
    }
}

fn node_failed(error: &LinkError) -> FetchEvent {
    tracing::debug!(%error, "node failed");
    FetchEvent::NodeFailed
}
