//! From a missing blob to its bytes: by claim and fetch, by waiting for somebody else's fetch, or, when
//! the node is of no help, straight from the origin (promises 3 and 5). Either way they are proved.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use forebay_core::{BlobOrdinal, digest::DigestError};
use forebay_origin::{OriginError, PIECE};
use forebay_wire::{ClaimAnswer, GetAnswer};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::Instant;

use crate::{
    link::{Connection, HeldClaim, LinkError},
    service::AgentService,
};

/// Pieces of one blob that are read at once.
const PIECES_AT_ONCE: usize = 8;
/// After so many leases somebody else's fetch is no longer waited for.
const LEASES_MAX: u32 = 10;

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

/// What the node said of a blob that somebody asked for.
enum Said {
    Bytes(Bytes),
    Fetch(Arc<Connection>, HeldClaim),
    Nothing,
}

impl AgentService {
    /// The bytes of a blob that the job waits for.
    pub(crate) async fn obtain(&self, blob: u64) -> Result<Bytes, FetchError> {
        let length = self.digest.blob(BlobOrdinal::new(blob))?.length;
        match self.ask_node(blob, length).await {
            Ok(Said::Bytes(content)) => return Ok(content),
            Ok(Said::Fetch(node, claim)) => return self.fetch_and_put(blob, &node, claim).await,
            Ok(Said::Nothing) => self.counters.fallbacks.one(),
            Err(LinkError::None) => {}
            Err(error) => {
                tracing::debug!(%error, "the node is of no help");
                self.counters.fallbacks.one();
            }
        }
        let content = self.read_origin(blob, None).await?;
        self.kept.lock().insert(blob, content.clone());
        Ok(content)
    }

    /// Fetches a blob for the node, if nobody else does; without a node, for the memory that is left.
    pub(crate) async fn obtain_ahead(self: &Arc<Self>, blob: u64) -> Result<(), FetchError> {
        let claimed = match self.link.connection().await {
            Ok(node) => (node.claim(blob).await, Some(node)),
            Err(error) => (Err(error), None),
        };
        match claimed {
            (Ok(ClaimAnswer::Granted), Some(node)) => {
                let claim = node.hold(blob);
                self.fetch_and_put(blob, &node, claim).await?;
            }
            (Ok(_), _) => {}
            (Err(_), _) => {
                let length = self.digest.blob(BlobOrdinal::new(blob))?.length;
                if self.kept.lock().has_room_ahead(length) {
                    // Whoever asks for it will be told what is wrong.
                    let _ = self.bytes_of(blob).await;
                }
            }
        }
        Ok(())
    }

    async fn ask_node(&self, blob: u64, length: u64) -> Result<Said, LinkError> {
        let node = self.link.connection().await?;
        let deadline = Instant::now() + node.lease() * LEASES_MAX;
        while Instant::now() < deadline {
            let wait = match node.claim(blob).await? {
                ClaimAnswer::Granted => {
                    let claim = node.hold(blob);
                    return Ok(Said::Fetch(node, claim));
                }
                ClaimAnswer::Held | ClaimAnswer::Present => node.lease(),
                ClaimAnswer::TooMany => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            if let (GetAnswer::Hit, content) = node.get(blob, length, wait).await? {
                return Ok(Said::Bytes(content));
            }
        }
        Ok(Said::Nothing)
    }

    async fn fetch_and_put(
        &self,
        blob: u64,
        node: &Connection,
        claim: HeldClaim,
    ) -> Result<Bytes, FetchError> {
        let content = self.read_origin(blob, Some(&claim)).await?;
        if let Err(error) = node.put(&claim, &content).await {
            tracing::debug!(%error, "the node did not take a blob");
            self.counters.puts_refused.one();
            self.kept.lock().insert(blob, content.clone());
        }
        Ok(content)
    }

    /// Reads a blob's parts, one after the other, and proves the whole.
    async fn read_origin(&self, blob: u64, claim: Option<&HeldClaim>) -> Result<Bytes, FetchError> {
        let row = self.digest.blob(BlobOrdinal::new(blob))?;
        let _memory = self.memory.take(row.length).await;
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
        let mut content = BytesMut::with_capacity(usize::try_from(row.length).unwrap_or(0));
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
            content.extend_from_slice(&piece);
        }
        drop(reads);
        let content = content.freeze();
        if self.namespace.address(&content) != row.address {
            return Err(FetchError::WrongBytes(first));
        }
        Ok(content)
    }
}
