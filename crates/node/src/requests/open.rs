//! Opening a dataset: a challenge to those who say they hold its table, an upload from the first
//! (promise 4). Whether a dataset or a namespace is unknown or forbidden looks alike.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use forebay_core::{
    DatasetId, NamespaceId,
    table::{Bound, Row, Table, Upload, proofs_match},
};
use forebay_wire::{BlobLength, ErrorCode, ShowAnswer};
use parking_lot::Mutex;

use crate::{
    access::Guest,
    node::{NodeService, Refused},
    session::fresh_nonce,
};

/// Challenges of one connection that may be open.
const CHALLENGES_MAX: usize = 16;
/// Rows of all tables together, whole or not: 40 bytes each.
const ROWS_MAX: u64 = 1 << 26;

/// What one connection has under way.
#[derive(Default)]
pub(crate) struct Opening {
    /// With the table itself: whoever is asked to prove that it holds it need not fear that the last of
    /// the others closes it meanwhile.
    challenges: HashMap<DatasetId, ([u8; 32], Arc<Table>)>,
    upload: Option<Uploading>,
}

struct Uploading {
    dataset: DatasetId,
    upload: Box<Upload>,
    rows: RowsTaken,
}

/// Tables that somebody has open, and room for more.
#[derive(Default)]
pub(crate) struct Tables {
    open: Mutex<HashMap<DatasetId, Weak<Table>>>,
    /// Rows of tables that are being uploaded.
    uploading: Arc<AtomicU64>,
}

/// Blobs that a connection has picked, and the room for their rows.
pub(crate) struct Picked {
    pub table: Arc<Table>,
    _rows: RowsTaken,
}

/// Rows that an upload has taken room for, until it is over.
struct RowsTaken {
    uploading: Arc<AtomicU64>,
    rows: u64,
}

impl Drop for RowsTaken {
    fn drop(&mut self) {
        self.uploading.fetch_sub(self.rows, Relaxed);
    }
}

impl Tables {
    /// How many there are.
    pub fn open(&self) -> u64 {
        self.open.lock().values().filter(|table| table.strong_count() > 0).count() as u64
    }

    /// The table of a dataset that somebody has open.
    pub fn get(&self, dataset: &DatasetId) -> Option<Arc<Table>> {
        self.open.lock().get(dataset).and_then(Weak::upgrade)
    }

    fn begin(&self) -> RowsTaken {
        RowsTaken { uploading: Arc::clone(&self.uploading), rows: 0 }
    }

    /// Takes room for so many rows more, if there is so much: all open tables and all uploads share it.
    fn take(&self, taken: &mut RowsTaken, more: u64) -> bool {
        let tables = self.open.lock();
        let rows = |table: Arc<Table>| table.rows().len() as u64;
        let open: u64 = tables.values().filter_map(Weak::upgrade).map(rows).sum();
        let has_room = open + self.uploading.load(Relaxed) + more <= ROWS_MAX;
        if has_room {
            self.uploading.fetch_add(more, Relaxed);
            taken.rows += more;
        }
        has_room
    }

    /// Keeps a table for as long as somebody has it open.
    fn keep(&self, table: Table) -> Arc<Table> {
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

impl Opening {
    /// Tells what has to be done.
    pub fn show(
        &mut self,
        node: &NodeService,
        guest: &Guest,
        namespace: NamespaceId,
        dataset: DatasetId,
    ) -> Result<ShowAnswer, Refused> {
        if !node.access.allows(guest, &namespace) {
            return Err(unknown());
        }
        let known = node.tables.get(&Bound::to(namespace).dataset(&dataset));
        let Some(table) = known else { return Ok(ShowAnswer::Upload) };
        if self.challenges.len() >= CHALLENGES_MAX {
            self.challenges.clear();
        }
        let nonce = fresh_nonce()
            .ok_or_else(|| (ErrorCode::Failed, "the node has no randomness".to_owned()))?;
        self.challenges.insert(dataset, (nonce, table));
        Ok(ShowAnswer::Prove { nonce })
    }

    /// Checks the answer to a challenge, each of which is good for one try.
    pub async fn prove(
        &mut self,
        node: &NodeService,
        dataset: DatasetId,
        proof: [u8; 32],
    ) -> Result<Arc<Table>, Refused> {
        let (nonce, table) = self.challenges.remove(&dataset).ok_or_else(unknown)?;
        let expected = Arc::clone(&table);
        let expected = tokio::task::spawn_blocking(move || expected.proof(&nonce)).await;
        if !proofs_match(&expected.expect("hashing does not panic"), &proof) {
            node.counters.proofs_refused.one();
            return Err(unknown());
        }
        Ok(table)
    }

    /// Blobs by their addresses. To know the address of a blob of one's namespace is as good as to hold a table that
    /// has it: anybody could upload one.
    pub fn pick(
        node: &NodeService,
        guest: &Guest,
        namespace: NamespaceId,
        blobs: &[BlobLength],
    ) -> Result<Picked, Refused> {
        if !node.access.allows(guest, &namespace) {
            return Err(unknown());
        }
        let mut rows = node.tables.begin();
        if !node.tables.take(&mut rows, blobs.len() as u64) {
            return Err(too_large());
        }
        let table = Table::picked(namespace, &rows_of(blobs));
        let table = table.map_err(|problem| (ErrorCode::Malformed, problem.to_string()))?;
        Ok(Picked { table: Arc::new(table), _rows: rows })
    }

    /// Takes a page. Returns the table if it is complete, else where the next page begins.
    pub fn upload(
        &mut self,
        node: &NodeService,
        guest: &Guest,
        dataset: DatasetId,
        new: impl FnOnce() -> Option<Upload>,
        first: u64,
        page: &[BlobLength],
    ) -> Result<Result<Arc<Table>, u64>, Refused> {
        let begun = self.upload.take().filter(|begun| begun.dataset == dataset && first > 0);
        let mut begun = if let Some(begun) = begun {
            begun
        } else {
            let upload = new()
                .ok_or_else(|| (ErrorCode::Malformed, "no dataset is cut like that".to_owned()))?;
            Uploading { dataset, upload: Box::new(upload), rows: node.tables.begin() }
        };
        if !node.access.allows(guest, &begun.upload.namespace()) {
            return Err(unknown());
        }
        if !node.tables.take(&mut begun.rows, page.len() as u64) {
            return Err(too_large());
        }
        match begun.upload.page(first, &rows_of(page)) {
            Ok(None) => {
                let next = begun.upload.next();
                self.upload = Some(begun);
                Ok(Err(next))
            }
            Ok(Some(table)) => Ok(Ok(node.tables.keep(table))),
            Err(problem) => {
                node.counters.proofs_refused.one();
                Err((ErrorCode::Malformed, problem.to_string()))
            }
        }
    }
}

fn rows_of(page: &[BlobLength]) -> Vec<Row> {
    page.iter().map(|row| Row { address: row.address, length: row.length }).collect()
}

fn too_large() -> Refused {
    let text = "the tables of all open datasets would be too large for this node";
    (ErrorCode::TooMuch, text.to_owned())
}

fn unknown() -> Refused {
    let text = "this node knows no such dataset or namespace, or not from you; if the digest is of a \
                private namespace, give the node its key (`namespaces` in its configuration), to you if it has tenants";
    (ErrorCode::Unknown, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 6: many uploads that none of them finishes take no more than one would.
    #[test]
    fn unfinished_uploads_share_the_room_for_tables() {
        let tables = Tables::default();
        let mut uploads: Vec<RowsTaken> = (0..4).map(|_| tables.begin()).collect();
        for upload in &mut uploads {
            assert!(tables.take(upload, ROWS_MAX / 4));
        }
        assert!(!tables.take(&mut uploads[0], 1), "all of it is taken");
        uploads.pop();
        assert!(tables.take(&mut uploads[0], ROWS_MAX / 4), "given back with the upload");
        drop(uploads);
        assert_eq!(tables.uploading.load(Relaxed), 0);
    }
}
