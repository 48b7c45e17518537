//! Opening datasets: the first client uploads the blob table, the others prove that they hold it
//! (promise 4). An unknown dataset or namespace and a forbidden one are refused alike.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use forebay_core::{
    ByteSize, DatasetId, NamespaceId,
    dataset::{
        blob_table::{BlobRow, BlobTable, Upload, UploadError},
        possession::{NamespaceBinding, ProofHasher, proofs_match},
    },
};
use forebay_wire::{BlobLength, ErrorCode, OpenAnswer};
use parking_lot::Mutex;

use crate::{
    ops::work_queue::{Lane, ROWS_PER_SLICE, Slice},
    requests::{
        access::Identity,
        service::{NodeService, Refused},
    },
};

/// Open challenges of one connection.
const CHALLENGES_MAX: usize = 16;
/// Rows of all tables together, complete or not, if there is memory for them.
const ROWS_MAX: u64 = 1 << 26;

/// Challenges and upload of one connection.
#[derive(Default)]
pub(crate) struct PendingOpens {
    challenges: HashMap<DatasetId, Challenge>,
    upload: Option<PendingUpload>,
}

struct Challenge {
    nonce: [u8; 32],
    /// Kept alive here: the other clients may close the dataset before the proof arrives.
    table: Arc<BlobTable>,
}

struct PendingUpload {
    dataset: DatasetId,
    upload: Box<Upload>,
    rows: ReservedRows,
}

/// Tables of the open datasets. They share a limit of rows with the uploads in progress.
pub(crate) struct OpenTables {
    open: Mutex<HashMap<DatasetId, Weak<BlobTable>>>,
    rows_max: u64,
    /// Rows of uploads in progress and of selections.
    reserved: Arc<AtomicU64>,
}

/// The blobs that a connection has selected by address.
pub(crate) struct Selection {
    pub table: Arc<BlobTable>,
    _rows: ReservedRows,
}

/// Rows that are reserved until this is dropped.
struct ReservedRows {
    reserved: Arc<AtomicU64>,
    rows: u64,
}

impl Drop for ReservedRows {
    fn drop(&mut self) {
        self.reserved.fetch_sub(self.rows, Relaxed);
    }
}

impl OpenTables {
    /// Tables that use at most this memory.
    pub fn new(memory: ByteSize) -> Self {
        let rows_max = (memory.0 / size_of::<BlobRow>() as u64).min(ROWS_MAX);
        Self { open: Mutex::default(), rows_max, reserved: Arc::default() }
    }

    /// Number of open datasets.
    pub fn count(&self) -> u64 {
        self.open.lock().values().filter(|table| table.strong_count() > 0).count() as u64
    }

    /// The table of a dataset, if it is open.
    pub fn get(&self, dataset: &DatasetId) -> Option<Arc<BlobTable>> {
        self.open.lock().get(dataset).and_then(Weak::upgrade)
    }

    /// An empty reservation.
    fn reservation(&self) -> ReservedRows {
        ReservedRows { reserved: Arc::clone(&self.reserved), rows: 0 }
    }

    /// Adds `more` rows to a reservation, unless the limit would be exceeded. Returns whether it
    /// did.
    fn reserve(&self, reservation: &mut ReservedRows, more: u64) -> bool {
        let tables = self.open.lock();
        let rows = |table: Arc<BlobTable>| table.rows().len() as u64;
        let open: u64 = tables.values().filter_map(Weak::upgrade).map(rows).sum();
        let fits = open + self.reserved.load(Relaxed) + more <= self.rows_max;
        if fits {
            self.reserved.fetch_add(more, Relaxed);
            reservation.rows += more;
        }
        fits
    }

    fn too_large(&self) -> Refused {
        let rows = self.rows_max;
        let text =
            format!("the tables of all open datasets exceed the node's limit of {rows} rows");
        (ErrorCode::TooMuch, text)
    }

    /// Registers a table for as long as a client has it open. Returns the registered one.
    fn register(&self, table: BlobTable) -> Arc<BlobTable> {
        let mut tables = self.open.lock();
        tables.retain(|_, table| table.strong_count() > 0);
        let dataset = table.dataset();
        if let Some(known) = tables.get(&dataset).and_then(Weak::upgrade) {
            return known;
        }
        let table = Arc::new(table);
        tables.insert(dataset, Arc::downgrade(&table));
        table
    }
}

impl Selection {
    /// Selects blobs by address. A client that knows the address of a blob in its namespace could
    /// also upload a table that contains it, so no proof is needed.
    pub async fn new(
        node: &NodeService,
        identity: &Identity,
        lane: Lane,
        namespace: NamespaceId,
        blobs: Vec<BlobLength>,
    ) -> Result<Self, Refused> {
        if !node.access.allows(identity, &namespace) {
            return Err(unknown());
        }
        let mut rows = node.tables.reservation();
        if !node.tables.reserve(&mut rows, blobs.len() as u64) {
            return Err(node.tables.too_large());
        }
        let bind = move || BlobTable::by_address(namespace, &rows_of(&blobs));
        let table = node.work.run_once(lane, bind).await;
        let table = table.map_err(|problem| (ErrorCode::Malformed, problem.to_string()))?;
        Ok(Self { table: Arc::new(table), _rows: rows })
    }
}

impl PendingOpens {
    /// What the client must do to open a dataset.
    pub fn open(
        &mut self,
        node: &NodeService,
        identity: &Identity,
        namespace: NamespaceId,
        dataset: DatasetId,
    ) -> Result<OpenAnswer, Refused> {
        if !node.access.allows(identity, &namespace) {
            return Err(unknown());
        }
        let known = node.tables.get(&NamespaceBinding::new(namespace).dataset(&dataset));
        let Some(table) = known else { return Ok(OpenAnswer::Upload) };
        if self.challenges.len() >= CHALLENGES_MAX {
            self.challenges.clear();
        }
        let nonce = node.entropy.nonce().ok_or_else(|| {
            (ErrorCode::Failed, "cannot read random bytes from the kernel".to_owned())
        })?;
        self.challenges.insert(dataset, Challenge { nonce, table });
        Ok(OpenAnswer::Prove { nonce })
    }

    /// Checks the proof for a challenge. Each challenge can be answered once.
    pub async fn prove(
        &mut self,
        node: &NodeService,
        lane: Lane,
        dataset: DatasetId,
        proof: [u8; 32],
    ) -> Result<Arc<BlobTable>, Refused> {
        let Challenge { nonce, table } = self.challenges.remove(&dataset).ok_or_else(unknown)?;
        let proved = Arc::clone(&table);
        let (mut hasher, mut next) = (Some(ProofHasher::new(&nonce)), 0);
        let expected = node.work.run(lane, move || {
            let rows = proved.rows().get(next..).unwrap_or_default();
            let hash = hasher.as_mut().expect("not done");
            hash.update(rows.iter().take(ROWS_PER_SLICE).copied());
            next += ROWS_PER_SLICE;
            if rows.len() > ROWS_PER_SLICE {
                return Slice::More;
            }
            Slice::Done(hasher.take().expect("not done").finish())
        });
        if !proofs_match(&expected.await, &proof) {
            node.counters.proofs_refused.one();
            return Err(unknown());
        }
        Ok(table)
    }

    /// Stores a page. Returns the table if it is complete, else the ordinal at which the next page
    /// begins.
    pub async fn upload(
        &mut self,
        node: &NodeService,
        identity: &Identity,
        dataset: DatasetId,
        new: impl FnOnce() -> Option<Upload>,
        first: u64,
        page: Vec<BlobLength>,
    ) -> Result<Result<Arc<BlobTable>, u64>, Refused> {
        let begun = self.upload.take().filter(|begun| begun.dataset == dataset && first > 0);
        let mut begun = if let Some(begun) = begun {
            begun
        } else {
            let invalid = || {
                let text = "the numbers of chunks, partitions and blobs are not valid".to_owned();
                (ErrorCode::Malformed, text)
            };
            let upload = Box::new(new().ok_or_else(invalid)?);
            // Otherwise the client would learn it only after uploading all that fits.
            if upload.blobs() > node.tables.rows_max {
                return Err(node.tables.too_large());
            }
            PendingUpload { dataset, upload, rows: node.tables.reservation() }
        };
        if !node.access.allows(identity, &begun.upload.namespace()) {
            return Err(unknown());
        }
        if !node.tables.reserve(&mut begun.rows, page.len() as u64) {
            return Err(node.tables.too_large());
        }
        let lane = Lane::Tenant(identity.tenant());
        let (mut slot, mut done) = (Some(begun), 0);
        let hash = move || {
            let rows = rows_of(&page[done..(done + ROWS_PER_SLICE).min(page.len())]);
            let upload = &mut slot.as_mut().expect("not done").upload;
            let outcome = match upload.page(first.saturating_add(done as u64), &rows) {
                // The table is complete, and the page is not.
                Ok(Some(_)) if done + rows.len() < page.len() => {
                    Err(UploadError::OutOfOrder { expected: upload.next(), found: first })
                }
                outcome => outcome,
            };
            done += rows.len();
            match outcome {
                Ok(None) if done < page.len() => Slice::More,
                outcome => Slice::Done((slot.take().expect("not done"), outcome)),
            }
        };
        let (begun, outcome) = node.work.run(lane, hash).await;
        match outcome {
            Ok(None) => {
                let next = begun.upload.next();
                self.upload = Some(begun);
                Ok(Err(next))
            }
            Ok(Some(table)) => Ok(Ok(node.tables.register(table))),
            Err(problem) => {
                node.counters.proofs_refused.one();
                Err((ErrorCode::Malformed, problem.to_string()))
            }
        }
    }
}

fn rows_of(page: &[BlobLength]) -> Vec<BlobRow> {
    page.iter().map(|row| BlobRow { address: row.address, length: row.length }).collect()
}

fn unknown() -> Refused {
    let text = "this node has no such dataset or namespace, or you may not use it; if the digest \
                is of a private namespace, give the node its key (`namespaces` in its \
                configuration, or of your tenant)";
    (ErrorCode::Unknown, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 6: unfinished uploads together are limited to the rows of one table.
    #[test]
    fn unfinished_uploads_share_the_limit_of_rows() {
        let tables = OpenTables::new(ByteSize(u64::MAX));
        let mut uploads: Vec<ReservedRows> = (0..4).map(|_| tables.reservation()).collect();
        for upload in &mut uploads {
            assert!(tables.reserve(upload, ROWS_MAX / 4));
        }
        assert!(!tables.reserve(&mut uploads[0], 1), "the limit is reached");
        uploads.pop();
        assert!(tables.reserve(&mut uploads[0], ROWS_MAX / 4), "a dropped upload frees its rows");
        drop(uploads);
        assert_eq!(tables.reserved.load(Relaxed), 0);
    }
}
