//! Wrong bytes: what the agent does when bytes do not hash to the address of their blob.
//!
//! The agent hashes every blob that it gets from a node. A process of the job hashes what its
//! policy says, and reports a mismatch to the agent. In both cases the node that owns the blob is
//! asked to hash its own copy and to drop it if it is wrong. Then the blob is fetched again: under
//! a claim, if the node has dropped its copy, and otherwise from the origin.

use forebay_core::BlobOrdinal;
use forebay_wire::RecheckAnswer;

use crate::service::AgentService;

impl AgentService {
    /// A process of the job has received wrong bytes of these blobs, from a node or from the agent.
    pub(crate) async fn on_wrong_bytes(&self, blobs: &[BlobOrdinal]) -> Vec<RecheckAnswer> {
        let mut answers = Vec::with_capacity(blobs.len());
        for blob in blobs {
            self.counters.wrong_bytes_reported.one();
            self.drop_if_wrong(*blob);
            answers.push(self.report_to_owner(*blob).await);
        }
        answers
    }

    /// Drops the copy in the agent's cache if it is wrong.
    fn drop_if_wrong(&self, blob: BlobOrdinal) {
        let Some(content) = self.cache.lock().get(blob) else { return };
        if !self.is_at_address(blob, &content) {
            tracing::warn!(%blob, "hash mismatch of a blob in the agent's cache: copy dropped");
            self.cache.lock().remove(blob);
        }
    }

    /// Whether these bytes are a blob's.
    pub(crate) fn is_at_address(&self, blob: BlobOrdinal, content: &[u8]) -> bool {
        let row = self.digest.blob(blob);
        row.is_ok_and(|row| self.namespace.address(content) == row.address)
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
