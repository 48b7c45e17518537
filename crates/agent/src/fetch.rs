//! From a missing blob to its bytes: carries out the steps that `core::attempt` decides upon. Whatever the
//! origin gives is proved before anyone sees it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal,
    attempt::{Attempt, Fact, NodeState, Outcome, Purpose, Right, Step},
    digest::DigestError,
};
use forebay_origin::{OriginError, PIECE};
use forebay_server::Gathered;
use forebay_wire::GetAnswer;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::timeout,
};

use crate::{
    connection::{Connection, HeldClaim, LinkError},
    link::Link,
    service::AgentService,
};

/// Pieces of one blob that are read at once.
const PIECES_AT_ONCE: usize = 8;

/// Why a blob cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Origin(#[from] OriginError),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(
        "the content of `{0}` is not what it was when the digest was built, although its version is; \
         build the digest again"
    )]
    WrongBytes(String),
}

/// A blob's bytes, and the memory that was taken for them.
pub(crate) struct Obtained {
    pub content: Bytes,
    _memory: Option<OwnedSemaphorePermit>,
}

impl Obtained {
    /// What is kept has its own limit.
    pub fn kept(content: Bytes) -> Self {
        Self { content, _memory: None }
    }
}

/// What an attempt has at hand.
struct Hands {
    blob: u64,
    length: u64,
    link: Option<Arc<Link>>,
    node: Option<Arc<Connection>>,
    claim: Option<HeldClaim>,
    /// Tells of claims that have ended since the last one was asked for.
    ended: Option<watch::Receiver<()>>,
    content: Bytes,
    error: Option<FetchError>,
}

impl AgentService {
    /// The bytes of a blob that the job waits for.
    pub(crate) async fn obtain(&self, blob: u64) -> Result<Obtained, FetchError> {
        let length = self.digest.blob(BlobOrdinal::new(blob))?.length;
        // Before anything is claimed: a claim that waits for memory makes no headway, and is lost.
        let memory = self.memory.take(length).await;
        let link = self.links.to(blob).await;
        let (_, content) = self.attempt(blob, length, Purpose::Wanted, link).await?;
        Ok(Obtained { content, _memory: Some(memory) })
    }

    /// The bytes of a blob, straight from the origin: a probe, which is to find out how long that takes.
    pub(crate) async fn obtain_past_the_cache(&self, blob: u64) -> Result<Obtained, FetchError> {
        let length = self.digest.blob(BlobOrdinal::new(blob))?.length;
        let memory = self.memory.take(length).await;
        self.counters.probes.one();
        self.counters.probe_bytes.add(length);
        let content = self.read_origin(blob, None).await?;
        Ok(Obtained { content, _memory: Some(memory) })
    }

    /// Fetches a blob for the node, if nobody else does. What no node will keep is fetched for the memory
    /// that is left, if the job has said that it will want it.
    pub(crate) async fn obtain_ahead(
        self: &Arc<Self>,
        blob: u64,
        is_wanted: bool,
    ) -> Result<(), FetchError> {
        let length = self.digest.blob(BlobOrdinal::new(blob))?.length;
        let link = self.links.to(blob).await;
        let kept = self.kept.lock().content(blob);
        if let Some(content) = kept {
            if let Ok(link) = link {
                self.hand_over(&link, blob, &content).await;
            }
            return Ok(());
        }
        match self.fetch_ahead(blob, length, link).await? {
            Outcome::Unclaimed if is_wanted && self.kept.lock().has_room_ahead(length) => {
                // Whoever asks for it will be told what is wrong.
                let _ = self.bytes_of(blob).await;
            }
            _ => {}
        }
        Ok(())
    }

    /// Fetches a blob for the node that owns it, if it may be claimed at once.
    pub(crate) async fn fetch_ahead(
        &self,
        blob: u64,
        length: u64,
        link: Result<Arc<Link>, LinkError>,
    ) -> Result<Outcome, FetchError> {
        let _memory = self.memory.take(length).await;
        let owner = link.as_ref().ok().map(Arc::clone);
        let began = self.links.now();
        let (outcome, _) = self.attempt(blob, length, Purpose::Ahead, link).await?;
        if let (Outcome::Bytes | Outcome::Kept, Some(link)) = (outcome, owner) {
            link.has_taken(outcome == Outcome::Bytes, began, self.links.now());
        }
        Ok(outcome)
    }

    /// What was read from the origin while its node was away is given to the node, now that it is back.
    async fn hand_over(&self, link: &Link, blob: u64, content: &Bytes) {
        let began = self.links.now();
        let Ok(node) = link.connection(&self.links).await else { return };
        if !link.takes_any(began) {
            return;
        }
        if let Ok((_, Some(claim))) = node.claim(blob).await {
            let is_taken = claim.put(content).await.is_ok();
            if is_taken {
                // It may go from here, if room is needed.
                self.kept.lock().take_note_of(blob);
            } else {
                self.count_refused(content);
                claim.release().await;
            }
            link.has_taken(is_taken, began, self.links.now());
        }
    }

    async fn attempt(
        &self,
        blob: u64,
        length: u64,
        purpose: Purpose,
        link: Result<Arc<Link>, LinkError>,
    ) -> Result<(Outcome, Bytes), FetchError> {
        let (state, node) = match &link {
            Ok(link) => link.node(&self.links).await,
            Err(LinkError::None) => (NodeState::None, None),
            Err(_) => (NodeState::Unreachable, None),
        };
        let mut attempt = Attempt::new(self.links.now(), purpose, state);
        let (claim, ended, content, error) = (None, None, Bytes::new(), None);
        let link = link.ok();
        let mut hands = Hands { blob, length, link, node, claim, ended, content, error };
        loop {
            let step = attempt.step();
            if let Step::Done(outcome) = step {
                return hands.error.map_or(Ok((outcome, hands.content)), Err);
            }
            let fact = self.carry_out(step, &mut hands).await;
            attempt.next(self.links.now(), fact);
        }
    }

    async fn carry_out(&self, step: Step, hands: &mut Hands) -> Fact {
        match step {
            Step::Claim => self.claim(hands).await,
            Step::Get(wait) => hands.get(wait).await,
            Step::Room(wait) => {
                let ended = hands.ended.as_mut().expect("a claim was asked for");
                let _ = timeout(wait, ended.changed()).await;
                Fact::Done
            }
            Step::Pause(pause) => {
                tokio::time::sleep(pause).await;
                Fact::Done
            }
            Step::Fetch(right) => {
                self.counters.origin_fetches.one();
                match right {
                    Right::Fallback => {
                        self.counters.fallbacks.one();
                        self.counters.fallback_bytes.add(hands.length);
                        if let Some(link) = hands.link.as_ref().filter(|link| link.name().is_some())
                        {
                            self.counters.fallbacks_ring.one();
                            link.fallbacks.one();
                        }
                    }
                    Right::Outside => {
                        self.counters.outside.one();
                        self.counters.outside_bytes.add(hands.length);
                    }
                    Right::Claim | Right::NoNode => {}
                }
                match self.read_origin(hands.blob, hands.claim.as_ref()).await {
                    Ok(content) => {
                        hands.content = content;
                        Fact::Fetched
                    }
                    Err(error) => {
                        hands.error = Some(error);
                        Fact::FetchFailed
                    }
                }
            }
            Step::Put => match hands.claim.as_ref().expect("granted").put(&hands.content).await {
                Ok(()) => Fact::Done,
                Err(error) => {
                    tracing::debug!(%error, "the node did not take a blob");
                    self.count_refused(&hands.content);
                    Fact::NodeFailed
                }
            },
            Step::Keep => {
                self.kept.lock().insert(hands.blob, hands.content.clone());
                Fact::Done
            }
            Step::Release => {
                hands.claim.take().expect("granted").release().await;
                Fact::Done
            }
            Step::Done(_) => unreachable!("there is nothing to carry out"),
        }
    }

    fn count_refused(&self, content: &Bytes) {
        self.counters.puts_refused.one();
        self.counters.puts_refused_bytes.add(content.len() as u64);
    }

    async fn claim(&self, hands: &mut Hands) -> Fact {
        // Another attempt of this agent may have kept it since.
        if let Some(content) = self.kept.lock().take_note_of(hands.blob) {
            hands.content = content;
            return Fact::Bytes;
        }
        let node = hands.node.as_ref().expect("its leases are known");
        hands.ended = Some(node.watch_claims());
        match node.claim(hands.blob).await {
            Ok((claimed, claim)) => {
                hands.claim = claim;
                Fact::Claim(claimed)
            }
            Err(error) => of_no_help(&error),
        }
    }

    /// Reads a blob's parts, one after the other, and proves the whole.
    async fn read_origin(&self, blob: u64, claim: Option<&HeldClaim>) -> Result<Bytes, FetchError> {
        let row = self.digest.blob(BlobOrdinal::new(blob))?;
        let mut pieces = Vec::new();
        for part in row.parts() {
            let part = part?;
            let end = part.offset + part.length;
            let mut start = part.offset;
            while start < end {
                let next = end.min(start + PIECE);
                pieces.push((part.object.to_owned(), self.version_of(&part), start..next));
                start = next;
            }
        }
        let first = pieces.first().map(|(object, ..)| object.clone()).unwrap_or_default();
        let mut content = Gathered::new(usize::try_from(row.length).unwrap_or(0));
        let mut reads = stream::iter(pieces)
            .map(|(object, version, range)| async move {
                self.origin.read(&object, &version, range).await
            })
            .buffered(PIECES_AT_ONCE);
        while let Some(piece) = reads.try_next().await? {
            self.counters.origin_bytes.add(piece.len() as u64);
            if let Some(claim) = claim {
                claim.progress(piece.len() as u64);
            }
            content.add(piece);
        }
        drop(reads);
        let content = content.take();
        if self.namespace.address(&content) != row.address {
            return Err(FetchError::WrongBytes(first));
        }
        Ok(content)
    }
}

impl Hands {
    async fn get(&mut self, wait: Duration) -> Fact {
        let node = self.node.as_ref().expect("its leases are known");
        match node.get(self.blob, self.length, wait).await {
            Ok((GetAnswer::Hit, content)) => {
                self.content = content;
                Fact::Bytes
            }
            Ok((GetAnswer::Miss, _)) => Fact::Absent,
            Ok((GetAnswer::Claimed, _)) => Fact::StillClaimed,
            Err(error) => of_no_help(&error),
        }
    }
}

fn of_no_help(error: &LinkError) -> Fact {
    tracing::debug!(%error, "the node is of no help");
    Fact::NodeFailed
}
