//! Taking blobs in: written as the pieces come, hashed whole, and only then believed (promise 4).

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use forebay_core::{
    Address, NamespaceId, claims::Holder, names::AddressHasher, node::PutError, table::Row,
};
use forebay_wire::{ErrorCode, PutAnswer};
use tokio::task::spawn_blocking;

use crate::{
    node::{NodeService, Refused, wake_all},
    store::Writing,
};

/// Blobs that one connection may be writing.
const PUTS_MAX: usize = 64;

/// What one connection is writing.
#[derive(Default)]
pub(crate) struct Puts(HashMap<Address, Put>);

struct Put {
    writing: Box<dyn Writing>,
    hasher: AddressHasher,
    next: u64,
}

impl Puts {
    /// Takes the next piece of a claimed blob.
    pub async fn piece(
        &mut self,
        node: &Arc<NodeService>,
        holder: Holder,
        namespace: NamespaceId,
        row: Row,
        offset: u64,
        payload: Bytes,
    ) -> Result<PutAnswer, Refused> {
        let address = row.address;
        let mut put = match (offset, self.0.remove(&address)) {
            (0, None) => self.begin(node, holder, namespace, row).await?,
            (_, Some(put)) if put.next == offset => put,
            (_, begun) => {
                if begun.is_some() {
                    node.state.lock().fail_put(&address);
                }
                return Err(malformed("the pieces of a blob come in order, each once"));
            }
        };
        let end = offset + payload.len() as u64;
        if end > row.length || (payload.is_empty() && row.length > 0) {
            node.state.lock().fail_put(&address);
            return Err(malformed("a piece is empty, or longer than its blob"));
        }
        let last = end == row.length;
        // What holds the put comes back, or has been dropped and left nothing behind.
        let written = spawn_blocking(move || -> io::Result<Result<Put, bool>> {
            put.hasher.update(&payload);
            put.writing.append(&payload)?;
            put.next = end;
            if !last {
                return Ok(Ok(put));
            }
            let right = put.hasher.finish() == address;
            if right {
                put.writing.finish()?;
            }
            Ok(Err(right))
        });
        match written.await.expect("writing does not panic") {
            Ok(Ok(put)) => {
                if !node.state.lock().may_write(holder, &address) {
                    drop(put);
                    node.state.lock().fail_put(&address);
                    return Err(not_claimed());
                }
                self.0.insert(address, put);
                Ok(PutAnswer::More)
            }
            Ok(Err(true)) => {
                let mut wake = Vec::new();
                node.state.lock().finish_put(&address, &mut wake);
                wake_all(wake);
                node.counters.puts.one();
                node.counters.put_bytes.add(row.length);
                Ok(PutAnswer::Stored)
            }
            Ok(Err(false)) => {
                node.state.lock().fail_put(&address);
                node.counters.puts_poisoned.one();
                tracing::warn!(connection = holder.0, "a put did not hash to its address");
                Err((ErrorCode::WrongBytes, "the bytes do not hash to the address".to_owned()))
            }
            Err(error) => {
                node.state.lock().fail_put(&address);
                Err(disk_failed(node, &error))
            }
        }
    }

    async fn begin(
        &mut self,
        node: &Arc<NodeService>,
        holder: Holder,
        namespace: NamespaceId,
        row: Row,
    ) -> Result<Put, Refused> {
        if self.0.len() == PUTS_MAX {
            return Err((ErrorCode::TooMuch, format!("{PUTS_MAX} blobs are being put already")));
        }
        let Row { address, length } = row;
        let hasher = node.namespace(&namespace).expect("checked when it was opened").hasher();
        let begun = node.state.lock().begin_put(holder, address, node.store.footprint(length));
        let leaving = begun.map_err(|error| match error {
            PutError::NotClaimed => not_claimed(),
            PutError::NoSpace(problem) => {
                node.counters.puts_without_space.one();
                (ErrorCode::NoSpace, problem.to_string())
            }
        })?;
        let store = Arc::clone(&node.store);
        node.counters.evictions.add(leaving.len() as u64);
        let created = spawn_blocking(move || {
            leaving.iter().try_for_each(|address| store.remove(address))?;
            store.create(&address, length)
        });
        match created.await.expect("creating does not panic") {
            Ok(writing) => Ok(Put { writing, hasher, next: 0 }),
            Err(error) => {
                node.state.lock().fail_put(&address);
                Err(disk_failed(node, &error))
            }
        }
    }

    /// The connection is gone: what it was writing leaves no trace.
    pub fn abort(self, node: &NodeService) {
        for (address, put) in self.0 {
            drop(put);
            node.state.lock().fail_put(&address);
        }
    }
}

fn disk_failed(node: &NodeService, error: &io::Error) -> Refused {
    node.counters.puts_failed.one();
    tracing::warn!(%error, "a blob cannot be written");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorCode::NoSpace, "the node's disk is full".to_owned())
        }
        _ => (ErrorCode::Failed, "the node's disk failed; its log says how".to_owned()),
    }
}

fn not_claimed() -> Refused {
    (ErrorCode::NotClaimed, "the claim is not held (any more)".to_owned())
}

fn malformed(text: &str) -> Refused {
    (ErrorCode::Malformed, text.to_owned())
}
