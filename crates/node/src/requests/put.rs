//! Taking blobs in: hashed as the pieces come, and believed only when the whole is right (promise 4).

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use forebay_core::{
    Address, BlobOrdinal,
    claims::Holder,
    names::AddressHasher,
    node::{NotClaimed, Standing},
    puts::{self, UnderWay},
    table::{Row, Table},
};
use forebay_flash::Refusal;
use forebay_wire::{ErrorCode, PutAnswer};
use parking_lot::Mutex;

use crate::{
    blobs::{INCOMING, Incoming},
    node::{NodeService, Refused, row_of, wake_all},
};

/// What is being written, between its pieces. The node has them, not the connections: a put whose claim
/// was lost is ended by whoever notices, even if nothing more is ever heard from its writer.
#[derive(Default)]
pub(crate) struct Puts(Mutex<HashMap<Address, Put>>);

struct Put {
    holder: Holder,
    tenant: Option<usize>,
    incoming: Incoming,
    hasher: AddressHasher,
    next: u64,
}

impl Puts {
    /// Takes what this holder has begun.
    fn take(&self, holder: Holder, address: &Address) -> Option<Put> {
        let mut puts = self.0.lock();
        puts.get(address).is_some_and(|put| put.holder == holder).then(|| puts.remove(address))?
    }

    fn has_room_for(&self, holder: Holder, tenant: Option<usize>) -> bool {
        let puts = self.0.lock();
        let under_way = puts.values().map(|put| UnderWay {
            holder: put.holder,
            tenant: put.tenant,
            memory: put.incoming.memory(),
        });
        puts::may_begin(under_way, holder, tenant, INCOMING)
    }
}

impl NodeService {
    /// Takes the next piece of a claimed blob.
    pub(crate) async fn put(
        self: &Arc<Self>,
        (holder, tenant): (Holder, Option<usize>),
        table: &Table,
        blob: u64,
        offset: u64,
        payload: Bytes,
    ) -> Result<PutAnswer, Refused> {
        let row = row_of(table, blob)?;
        let address = row.address;
        let mut put = match (offset, self.puts.take(holder, &address)) {
            (0, None) => self.begin_put((holder, tenant), table, blob, row)?,
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
        put.hasher.update(&payload);
        put.next = end;
        if let Err(refusal) = put.incoming.take(&self.blobs, payload).await {
            self.state.lock().fail_put(&address);
            return Err(self.not_written(&refusal));
        }
        if end < row.length {
            self.puts.0.lock().insert(address, put);
            // The claim may have been lost meanwhile.
            self.end_lost_puts();
            if !self.state.lock().may_write(holder, &address) {
                return Err(not_claimed());
            }
            return Ok(PutAnswer::More);
        }
        let Put { incoming, hasher, .. } = put;
        if !table.is_at(&row, &hasher.finish()) {
            self.state.lock().fail_put(&address);
            self.counters.puts_poisoned.one();
            tracing::warn!(connection = holder.0, "a put did not hash to its address");
            return Err((ErrorCode::WrongBytes, "the bytes do not hash to the address".to_owned()));
        }
        if !self.managing.keeps(table, blob) {
            // What has gone must not come back piece by piece.
            self.state.lock().fail_put(&address);
            return Err(not_kept());
        }
        if let Err(refusal) = incoming.finish(&self.blobs).await {
            self.state.lock().fail_put(&address);
            return Err(self.not_written(&refusal));
        }
        let mut wake = Vec::new();
        {
            let mut state = self.state.lock();
            // A claim that was lost in the last moment was counted then.
            if state.standing(&address, false) == Standing::Claimed {
                self.counters.claims_fulfilled.one();
            }
            state.finish_put(&address, &mut wake);
        }
        wake_all(wake);
        self.counters.puts.one();
        self.counters.put_bytes.add(row.length);
        self.arrived(table, blob, row.length);
        Ok(PutAnswer::Stored)
    }

    fn begin_put(
        self: &Arc<Self>,
        (holder, tenant): (Holder, Option<usize>),
        table: &Table,
        blob: u64,
        row: Row,
    ) -> Result<Put, Refused> {
        let too_many = || (ErrorCode::TooMuch, "too many blobs are being put already".to_owned());
        if !self.puts.has_room_for(holder, tenant) {
            return Err(too_many());
        }
        if !self.managing.keeps(table, blob) {
            // It has lost its place since it was claimed.
            return Err(not_kept());
        }
        // It was served when the dataset was opened, and may have gone from the configuration since.
        let namespace = self.access.namespace(&table.namespace());
        let gone = || (ErrorCode::Unknown, "the namespace is not served any more".to_owned());
        let hasher = namespace.ok_or_else(gone)?.hasher();
        if row.length > self.blobs.capacity().0 / 2 {
            self.counters.puts_without_space.one();
            let text = "the blob is longer than half of what this node may hold".to_owned();
            return Err((ErrorCode::NoSpace, text));
        }
        let begun = self.state.lock().begin_put(holder, row.address);
        begun.map_err(|NotClaimed| not_claimed())?;
        let refused = match self.blobs.begin(table, BlobOrdinal::new(blob), row) {
            Ok(Some(incoming)) => return Ok(Put { holder, tenant, incoming, hasher, next: 0 }),
            Ok(None) => too_many(),
            Err(refusal) => self.not_written(&refusal),
        };
        self.state.lock().fail_put(&row.address);
        Err(refused)
    }

    fn not_written(&self, refusal: &Refusal) -> Refused {
        match refusal {
            Refusal::NoSpace | Refusal::TooLong { .. } => {
                self.counters.puts_without_space.one();
                (ErrorCode::NoSpace, refusal.to_string())
            }
            Refusal::Busy => (ErrorCode::TooMuch, refusal.to_string()),
            // It is being freed.
            Refusal::Closed | Refusal::Gone => not_kept(),
            _ => {
                self.counters.puts_failed.one();
                tracing::warn!(%refusal, "a blob cannot be written");
                (ErrorCode::Failed, "the node's device failed; its log says how".to_owned())
            }
        }
    }

    /// Ends puts whose claims were lost, so that their memory is free again: they leave no trace.
    pub(crate) fn end_lost_puts(&self) {
        let lost: Vec<(Address, Put)> = {
            let (mut puts, state) = (self.puts.0.lock(), self.state.lock());
            puts.extract_if(|address, put| !state.may_write(put.holder, address)).collect()
        };
        // First its memory, then the right to write another.
        for (address, put) in lost {
            drop(put);
            self.state.lock().fail_put(&address);
        }
    }
}

fn not_kept() -> Refused {
    (ErrorCode::NoSpace, "the blob is not kept any more".to_owned())
}

fn not_claimed() -> Refused {
    (ErrorCode::NotClaimed, "the claim is not held (any more)".to_owned())
}

fn malformed(text: &str) -> Refused {
    (ErrorCode::Malformed, text.to_owned())
}
