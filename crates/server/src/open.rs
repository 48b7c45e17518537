//! Opening a dataset: a challenge to those who say they hold its table, an upload from the first
//! (promise 4). Whether a dataset or a namespace is unknown or forbidden looks alike.

use std::{collections::HashMap, sync::Arc};

use forebay_core::{
    DatasetId, NamespaceId,
    table::{Row, Table, Upload, proofs_match},
};
use forebay_wire::{BlobLength, ErrorCode, ShowAnswer};

use crate::{
    node::{NodeService, Refused},
    session::fresh_nonce,
};

/// Challenges of one connection that may be open.
const CHALLENGES_MAX: usize = 16;

/// What one connection has under way.
#[derive(Default)]
pub(crate) struct Opening {
    /// With the table itself: whoever is asked to prove that it holds it need not fear that the last of
    /// the others closes it meanwhile.
    challenges: HashMap<DatasetId, ([u8; 32], Arc<Table>)>,
    upload: Option<(DatasetId, Box<Upload>)>,
}

impl Opening {
    /// Tells what has to be done.
    pub fn show(
        &mut self,
        node: &NodeService,
        namespace: NamespaceId,
        dataset: DatasetId,
    ) -> Result<ShowAnswer, Refused> {
        node.namespace(&namespace).ok_or_else(unknown)?;
        let known = node.table(&dataset).filter(|table| table.namespace() == namespace);
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

    /// Takes a page. Returns the table if it is complete, else where the next page begins.
    pub fn upload(
        &mut self,
        node: &NodeService,
        dataset: DatasetId,
        new: impl FnOnce() -> Option<Upload>,
        first: u64,
        page: &[BlobLength],
    ) -> Result<Result<Arc<Table>, u64>, Refused> {
        let begun = self.upload.take().filter(|(begun, _)| *begun == dataset && first > 0);
        let mut upload =
            match begun {
                Some((_, upload)) => upload,
                None => Box::new(new().ok_or_else(|| {
                    (ErrorCode::Malformed, "no dataset is cut like that".to_owned())
                })?),
            };
        node.namespace(&upload.namespace()).ok_or_else(unknown)?;
        if !node.has_room_for_rows(upload.next() + page.len() as u64) {
            let text = "the tables of all open datasets would be too large for this node";
            return Err((ErrorCode::TooMuch, text.to_owned()));
        }
        let rows: Vec<Row> =
            page.iter().map(|row| Row { address: row.address, length: row.length }).collect();
        match upload.page(first, &rows) {
            Ok(None) => {
                let next = upload.next();
                self.upload = Some((dataset, upload));
                Ok(Err(next))
            }
            Ok(Some(table)) => Ok(Ok(node.keep(table))),
            Err(problem) => {
                node.counters.proofs_refused.one();
                Err((ErrorCode::Malformed, problem.to_string()))
            }
        }
    }
}

fn unknown() -> Refused {
    let text = "this node knows no such dataset or namespace, or not from you; if the digest is of a \
                private namespace, give the node its key (`namespaces` in its configuration)";
    (ErrorCode::Unknown, text.to_owned())
}
