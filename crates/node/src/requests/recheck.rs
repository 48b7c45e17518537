//! Rechecks: a client has received wrong bytes of a blob, so the node hashes its own copies, and
//! drops those that are wrong (promise 1).
//!
//! A checksum protects a blob on flash, and a hash its way to the node. Between them, and in the
//! memory cache, a fault of the memory goes unnoticed until a client verifies what it receives. The
//! client reads the origin whatever the node finds, so a recheck may be refused: see
//! [`RecheckBudget`](forebay_core::node::recheck_budget::RecheckBudget).
//!
//! A client can report only blobs that it can read. A report changes nothing that is sound.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal, ByteSize,
    dataset::blob_table::{BlobRow, BlobTable},
    ids::AddressHasher,
    node::{recheck_budget::RecheckBudget, tenants::TenantId},
};
use forebay_transport::session::{GetPermit, Replies};
use forebay_wire::{RecheckAnswer, Reply};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{
    ops::work_queue::Lane,
    requests::{
        service::{NodeService, Refused, row_of},
        session::NodeSession,
    },
    store::blob_store::Read,
};

/// Blobs that are rechecked at a time. With the length of a piece, this bounds their memory.
const CONCURRENT_MAX: usize = 2;
/// Bytes that are read from flash at a time.
const PIECE: u64 = 2 << 20;

/// The limits of rechecks.
pub(crate) struct Rechecks {
    budget: Mutex<RecheckBudget>,
    running: Semaphore,
}

impl Default for Rechecks {
    fn default() -> Self {
        Self { budget: Mutex::default(), running: Semaphore::new(CONCURRENT_MAX) }
    }
}

impl NodeService {
    /// Starts to recheck reported blobs, on a task that replies: claims on this connection are
    /// renewed meanwhile.
    pub(crate) async fn start_recheck(
        self: &Arc<Self>,
        session: &NodeSession,
        handle: u32,
        blobs: &[BlobOrdinal],
        replies: &Replies,
    ) -> Result<(), Refused> {
        let table = Arc::clone(session.table(handle)?);
        let rows = blobs.iter().map(|blob| row_of(&table, *blob)).collect::<Result<_, _>>()?;
        let (node, tenant) = (Arc::clone(self), session.identity.tenant());
        let permit = replies.begin_get(blobs.len()).await;
        tokio::spawn(node.recheck_all(tenant, table, rows, replies.clone(), permit));
        Ok(())
    }

    /// Rechecks blobs one after the other, and replies.
    async fn recheck_all(
        self: Arc<Self>,
        tenant: Option<TenantId>,
        table: Arc<BlobTable>,
        rows: Vec<BlobRow>,
        replies: Replies,
        _permit: GetPermit,
    ) {
        let mut answers = Vec::with_capacity(rows.len());
        for row in rows {
            let answer = self.recheck(tenant, &table, row).await;
            self.counters.blobs_reported.one();
            match answer {
                RecheckAnswer::Dropped => {
                    self.counters.blobs_dropped.one();
                    tracing::warn!("hash mismatch of a blob in this node: copy dropped");
                }
                RecheckAnswer::Sound => {}
                RecheckAnswer::Absent | RecheckAnswer::Unchecked => {
                    self.counters.blobs_unchecked.one();
                }
            }
            answers.push(answer);
        }
        replies.send(&Reply::WrongBytes { answers }).await;
    }

    /// Hashes the copy in memory and the one on flash.
    async fn recheck(
        &self,
        tenant: Option<TenantId>,
        table: &BlobTable,
        row: BlobRow,
    ) -> RecheckAnswer {
        if !self.blobs.contains(&row.address) {
            return RecheckAnswer::Absent;
        }
        let _running = self.rechecks.running.acquire().await.expect("never closed");
        let may_hash = self.rechecks.budget.lock().take(self.now(), tenant, ByteSize(row.length));
        let namespace = self.access.namespace(&table.namespace()).filter(|_| may_hash);
        let Some(namespace) = namespace else { return RecheckAnswer::Unchecked };
        let lane = Lane::Tenant(tenant);
        let mut is_wrong = false;
        if let Some(bytes) = self.blobs.memory_cache().peek(&row) {
            let hasher = self.hash(lane, namespace.hasher(), &bytes).await;
            if !table.is_at(&row, &hasher.finish()) {
                self.blobs.memory_cache().remove(&row.address);
                is_wrong = true;
            }
        }
        match self.hash_stored(lane, namespace.hasher(), row).await {
            Some(hasher) if table.is_at(&row, &hasher.finish()) => {}
            Some(_) => {
                self.blobs.discard(&row).await;
                is_wrong = true;
            }
            // A copy that cannot be read is gone by now.
            None if !is_wrong => return RecheckAnswer::Absent,
            None => {}
        }
        if is_wrong { RecheckAnswer::Dropped } else { RecheckAnswer::Sound }
    }

    /// Hashes the copy on flash. `None` if it cannot be read.
    async fn hash_stored(
        &self,
        lane: Lane,
        mut hasher: AddressHasher,
        row: BlobRow,
    ) -> Option<AddressHasher> {
        let mut start = 0;
        loop {
            let range = start..row.length.min(start + PIECE);
            let bytes = self.read_stored(row, range.clone()).await?;
            hasher = self.hash(lane, hasher, &bytes).await;
            if range.end == row.length {
                return Some(hasher);
            }
            start = range.end;
        }
    }

    async fn read_stored(&self, row: BlobRow, range: Range<u64>) -> Option<Bytes> {
        match self.blobs.read_stored(row, range).await {
            Read::Hit(bytes) => Some(bytes),
            Read::Gone | Read::OtherLength | Read::Failed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Namespace;

    use super::*;
    use crate::{Config, Server};

    const LENGTHS: [usize; 3] = [300_000, 3 << 20, 9 << 20];

    fn content(length: usize) -> Bytes {
        let mut random = fastrand::Rng::with_seed(length as u64);
        (0..length).map(|_| random.u8(..)).collect()
    }

    /// A node, and a table of one blob.
    async fn node_with(length: usize) -> (tempfile::TempDir, Server, Arc<BlobTable>, Bytes) {
        let directory = tempfile::tempdir().unwrap();
        let config = Config {
            socket: directory.path().join("run/node.sock"),
            directory: directory.path().join("cache"),
            capacity: Some(ByteSize::mib(64)),
            memory_cache: Some(ByteSize::mib(16)),
            ..Config::default()
        };
        let server = Server::bind(&config, Vec::new()).await.unwrap();
        let (namespace, content) = (Namespace::public(), content(length));
        let row = BlobRow { address: namespace.address(&content), length: length as u64 };
        let table = BlobTable::by_address(namespace.id(), &[row]).unwrap();
        (directory, server, Arc::new(table), content)
    }

    /// Writes bytes without hashing them.
    async fn write(node: &NodeService, table: &BlobTable, bytes: Bytes) -> BlobRow {
        let blob = BlobOrdinal::new(0);
        let row = table.row(blob).unwrap();
        let mut write = node.blobs.begin_write(table, blob, row).unwrap().unwrap();
        write.append(&node.blobs, bytes).await.unwrap();
        write.finish(&node.blobs).await.unwrap();
        row
    }

    fn damaged(bytes: &Bytes) -> Bytes {
        let mut wrong = bytes.to_vec();
        let at = wrong.len() * 2 / 3;
        wrong[at] ^= 4;
        wrong.into()
    }

    /// Promise 1: blobs of one entry and of several parts.
    #[tokio::test]
    async fn a_wrong_copy_on_flash_is_dropped() {
        for length in LENGTHS {
            let (_directory, server, table, content) = node_with(length).await;
            let node = server.node();
            let row = write(node, &table, damaged(&content)).await;
            assert_eq!(node.recheck(None, &table, row).await, RecheckAnswer::Dropped);
            assert!(!node.blobs.contains(&row.address), "{length}");
            assert!(node.blobs.memory_cache().peek(&row).is_none());
            assert_eq!(node.recheck(None, &table, row).await, RecheckAnswer::Absent);
            write(node, &table, content.clone()).await;
            assert_eq!(node.recheck(None, &table, row).await, RecheckAnswer::Sound);
            let read = node.blobs.read(row, 0..row.length).await;
            assert!(matches!(read, Read::Hit(bytes) if bytes == content), "{length}");
        }
    }

    /// A bit flips in memory: the copy on flash is sound, and stays.
    #[tokio::test]
    async fn a_wrong_copy_in_memory_is_dropped_and_that_on_flash_stays() {
        let (_directory, server, table, content) = node_with(LENGTHS[0]).await;
        let node = server.node();
        let row = write(node, &table, content.clone()).await;
        node.blobs.memory_cache().on_put(row.address, &damaged(&content));
        let read = node.blobs.read(row, 0..row.length).await;
        assert!(matches!(read, Read::Hit(bytes) if bytes != content), "the node serves it");
        assert_eq!(node.recheck(None, &table, row).await, RecheckAnswer::Dropped);
        let read = node.blobs.read(row, 0..row.length).await;
        assert!(matches!(read, Read::Hit(bytes) if bytes == content));
        assert_eq!(node.recheck(None, &table, row).await, RecheckAnswer::Sound);
    }

    /// Promise 6: reports of sound blobs cost a node a limited amount of hashing.
    #[tokio::test]
    async fn reports_beyond_the_budget_are_not_checked() {
        let (_directory, server, table, content) = node_with(LENGTHS[2]).await;
        let node = server.node();
        let row = write(node, &table, content).await;
        let tenant = Some(TenantId(0));
        let now = node.now();
        while node.rechecks.budget.lock().take(now, tenant, ByteSize(1 << 40)) {}
        assert_eq!(node.recheck(tenant, &table, row).await, RecheckAnswer::Unchecked);
        assert_eq!(node.recheck(None, &table, row).await, RecheckAnswer::Sound, "another tenant");
    }
}
