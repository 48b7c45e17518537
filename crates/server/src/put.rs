//! Taking blobs in: written as the pieces come, hashed whole, and only then believed (promise 4).

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use forebay_core::{
    Address, NamespaceId, claims::Holder, names::AddressHasher, node::PutError, table::Row,
};
use forebay_wire::{ErrorCode, PutAnswer};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use crate::{
    node::{NodeService, Refused, wake_all},
    store::Writing,
};

/// Blobs that one connection may be writing.
const PUTS_MAX: usize = 64;
/// Blobs that all connections together may be writing: each is an open file.
const PUTS_ALL_MAX: usize = 256;

/// What is being written, between its pieces. The node has them, not the connections: a put whose claim
/// was lost is ended by whoever notices, even if nothing more is ever heard from its writer.
#[derive(Default)]
pub(crate) struct Puts(Mutex<HashMap<Address, Put>>);

struct Put {
    holder: Holder,
    writing: Box<dyn Writing>,
    hasher: AddressHasher,
    next: u64,
}

impl Puts {
    /// Takes what this holder has begun.
    fn take(&self, holder: Holder, address: &Address) -> Option<Put> {
        let mut puts = self.0.lock();
        puts.get(address).is_some_and(|put| put.holder == holder).then(|| puts.remove(address))?
    }

    fn has_room_for(&self, holder: Holder) -> bool {
        let puts = self.0.lock();
        let own = puts.values().filter(|put| put.holder == holder).count();
        own < PUTS_MAX && puts.len() < PUTS_ALL_MAX
    }
}

impl NodeService {
    /// Takes the next piece of a claimed blob.
    pub(crate) async fn put(
        self: &Arc<Self>,
        holder: Holder,
        namespace: NamespaceId,
        row: Row,
        offset: u64,
        payload: Bytes,
    ) -> Result<PutAnswer, Refused> {
        let address = row.address;
        let mut put = match (offset, self.puts.take(holder, &address)) {
            (0, None) => self.begin_put(holder, namespace, row).await?,
            (_, Some(put)) if put.next == offset => put,
            (_, begun) => {
                if begun.is_some() {
                    drop(begun);
                    self.state.lock().fail_put(&address);
                } else if !self.state.lock().is_claimed_by(holder, &address) {
                    return Err(not_claimed());
                }
                return Err(malformed("the pieces of a blob come in order, each once"));
            }
        };
        let end = offset.checked_add(payload.len() as u64).filter(|end| *end <= row.length);
        let Some(end) = end.filter(|_| !payload.is_empty() || row.length == 0) else {
            drop(put);
            self.state.lock().fail_put(&address);
            return Err(malformed("a piece is empty, or longer than its blob"));
        };
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
                self.puts.0.lock().insert(address, put);
                // The claim may have been lost meanwhile.
                self.end_lost_puts();
                if !self.state.lock().may_write(holder, &address) {
                    return Err(not_claimed());
                }
                Ok(PutAnswer::More)
            }
            Ok(Err(true)) => {
                let mut wake = Vec::new();
                self.state.lock().finish_put(&address, &mut wake);
                wake_all(wake);
                self.counters.puts.one();
                self.counters.put_bytes.add(row.length);
                Ok(PutAnswer::Stored)
            }
            Ok(Err(false)) => {
                self.state.lock().fail_put(&address);
                self.counters.puts_poisoned.one();
                tracing::warn!(connection = holder.0, "a put did not hash to its address");
                Err((ErrorCode::WrongBytes, "the bytes do not hash to the address".to_owned()))
            }
            Err(error) => {
                self.state.lock().fail_put(&address);
                Err(disk_failed(self, &error))
            }
        }
    }

    async fn begin_put(
        self: &Arc<Self>,
        holder: Holder,
        namespace: NamespaceId,
        row: Row,
    ) -> Result<Put, Refused> {
        if !self.puts.has_room_for(holder) {
            return Err((ErrorCode::TooMuch, "too many blobs are being put already".to_owned()));
        }
        let Row { address, length } = row;
        let hasher = self.namespace(&namespace).expect("checked when it was opened").hasher();
        let footprint = self.store.footprint(length);
        let begun = self.state.lock().begin_put(holder, address, footprint);
        let leaving = begun.map_err(|error| match error {
            PutError::NotClaimed => not_claimed(),
            PutError::NoSpace(problem) => {
                self.counters.puts_without_space.one();
                (ErrorCode::NoSpace, problem.to_string())
            }
        })?;
        self.counters.evictions.add(leaving.len() as u64);
        let node = Arc::clone(self);
        let created = spawn_blocking(move || {
            // All of them go, even if one does not: the books say that they are gone.
            let removed = leaving.iter().map(|address| node.store.remove(address));
            let removed = removed.fold(Ok(()), io::Result::and);
            let mut wake = Vec::new();
            node.state.lock().left(&leaving, &mut wake);
            wake_all(wake);
            removed.and_then(|()| node.store.create(&address, length))
        });
        match created.await.expect("creating does not panic") {
            Ok(writing) => Ok(Put { holder, writing, hasher, next: 0 }),
            Err(error) => {
                self.state.lock().fail_put(&address);
                Err(disk_failed(self, &error))
            }
        }
    }

    /// Ends puts whose claims were lost, so that their space and files are free again: they leave no trace.
    pub(crate) fn end_lost_puts(&self) {
        let lost: Vec<(Address, Put)> = {
            let (mut puts, state) = (self.puts.0.lock(), self.state.lock());
            puts.extract_if(|address, put| !state.may_write(put.holder, address)).collect()
        };
        // First the file, then the right to write another.
        for (address, put) in lost {
            drop(put);
            self.state.lock().fail_put(&address);
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
