//! Wrong bytes: what the agent does when bytes do not hash to the address of their blob.
//!
//! The agent hashes every blob that it gets from a node. A process of the job hashes what its
//! policy says, and reports a mismatch to the agent. In both cases the node that owns the blob is
//! asked to hash its own copy and to drop it if it is wrong. Then the blob is fetched again: under
//! a claim, if the node has dropped its copy, and otherwise from the origin.

use forebay_core::BlobOrdinal;
use forebay_wire::RecheckAnswer;

use crate::service::AgentService;

/// Bytes that are hashed at once: less than 1 ms of CPU time.
const HASHED_AT_ONCE: usize = 1 << 20;

impl AgentService {
    /// A process of the job has received wrong bytes of these blobs, from a node or from the agent.
    pub(crate) async fn on_wrong_bytes(&self, blobs: &[BlobOrdinal]) -> Vec<RecheckAnswer> {
        let mut answers = Vec::with_capacity(blobs.len());
        for blob in blobs {
            self.counters.wrong_bytes_reported.one();
            self.drop_if_wrong(*blob).await;
            answers.push(self.report_to_owner(*blob).await);
        }
        answers
    }

    /// Drops the copy in the agent's cache if it is wrong.
    async fn drop_if_wrong(&self, blob: BlobOrdinal) {
        let Some(content) = self.cache.lock().get(blob) else { return };
        if !self.is_at_address(blob, &content).await {
            tracing::warn!(%blob, "hash mismatch of a blob in the agent's cache: copy dropped");
            self.cache.lock().remove(blob);
        }
    }

    /// Whether these bytes are a blob's. Other tasks run between the slices of a long one. The
    /// addresses of a listing are not known: there, the version and length that the origin was
    /// asked for are all there is.
    pub(crate) async fn is_at_address(&self, blob: BlobOrdinal, content: &[u8]) -> bool {
        if self.digest.is_listing() {
            return true;
        }
        let Ok(address) = self.digest.blob(blob).map(|row| row.address) else { return false };
        let mut hasher = self.namespace.hasher();
        for (number, slice) in content.chunks(HASHED_AT_ONCE).enumerate() {
            if number > 0 {
                tokio::task::yield_now().await;
            }
            hasher.update(slice);
        }
        hasher.finish() == address
    }

    /// Asks the node that owns a blob to check its copy.
    pub(crate) async fn report_to_owner(&self, blob: BlobOrdinal) -> RecheckAnswer {
        let Ok(link) = self.links.to_owner(blob).await else { return RecheckAnswer::Absent };
        let Ok(node) = link.connection(&self.links).await else { return RecheckAnswer::Absent };
        let length = self.digest.blob(blob).map_or(0, |row| row.length);
        match node.report_wrong_bytes(blob, length).await {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%error, "report of wrong bytes failed");
                RecheckAnswer::Unchecked
            }
        }
    }
}
