//! Puts: a blob arrives in parts, is hashed as they come, and becomes visible only if the whole
//! hashes to its address (promise 1).

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use forebay_core::{
    Address, BlobOrdinal,
    dataset::blob_table::{BlobRow, BlobTable},
    ids::AddressHasher,
    node::{
        claims::Holder,
        fetch_table::{BlobState, NotClaimed},
        put_limits::{self, PutInProgress},
        tenants::TenantId,
    },
};
use forebay_flash::RequestError;
use forebay_wire::{ErrorCode, PutAnswer};
use parking_lot::Mutex;

use crate::{
    ops::work_queue::{HASHED_PER_SLICE, Lane, Slice},
    requests::{
        claims::wake_all,
        service::{NodeService, Refused, row_of},
    },
    store::blob_write::BlobWrite,
};

/// Puts that are not complete. The node owns them, not the connections: a put whose claim is lost
/// is ended even if its client is silent.
#[derive(Default)]
pub(crate) struct PutsInProgress(Mutex<BTreeMap<Address, PartialPut>>);

/// The client of a put.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PutOwner {
    pub holder: Holder,
    pub tenant: Option<TenantId>,
}

struct PartialPut {
    owner: PutOwner,
    write: BlobWrite,
    hasher: AddressHasher,
    /// Offset of the next bytes.
    next: u64,
}

impl PutsInProgress {
    /// Removes and returns the put of this holder.
    fn take(&self, holder: Holder, address: &Address) -> Option<PartialPut> {
        let mut puts = self.0.lock();
        let is_holders = puts.get(address).is_some_and(|put| put.owner.holder == holder);
        is_holders.then(|| puts.remove(address))?
    }

    /// Whether the limits allow the client another put.
    fn may_begin(&self, PutOwner { holder, tenant }: PutOwner, memory_max: usize) -> bool {
        let puts = self.0.lock();
        let in_progress = puts.values().map(|put| PutInProgress {
            holder: put.owner.holder,
            tenant: put.owner.tenant,
            memory: put.write.memory(),
        });
        put_limits::may_begin(in_progress, holder, tenant, memory_max)
    }
}

impl NodeService {
    /// Handles the next bytes of a claimed blob.
    pub(crate) async fn put(
        self: &Arc<Self>,
        owner: PutOwner,
        table: &BlobTable,
        blob: BlobOrdinal,
        offset: u64,
        payload: Bytes,
    ) -> Result<PutAnswer, Refused> {
        let row = row_of(table, blob)?;
        let (holder, address) = (owner.holder, row.address);
        let mut put = match (offset, self.puts.take(holder, &address)) {
            (0, None) => self.begin_put(owner, table, blob, row)?,
            (_, Some(put)) if put.next == offset => put,
            (_, begun) => {
                if begun.is_some() {
                    drop(begun);
                    self.fetch_table.lock().fail_put(&address);
                } else if !self.fetch_table.lock().is_claimed_by(holder, &address) {
                    return Err(not_claimed());
                }
                return Err(malformed("the bytes of a blob must come in order, each once"));
            }
        };
        let end = offset.checked_add(payload.len() as u64).filter(|end| *end <= row.length);
        let Some(end) = end.filter(|_| !payload.is_empty() || row.length == 0) else {
            drop(put);
            self.fetch_table.lock().fail_put(&address);
            return Err(malformed("the payload of a put is empty, or exceeds the end of the blob"));
        };
        let lane = Lane::Tenant(owner.tenant);
        put.hasher = self.hash(lane, put.hasher, &payload).await;
        put.next = end;
        if let Err(refusal) = put.write.append(&self.blobs, payload).await {
            self.fetch_table.lock().fail_put(&address);
            return Err(self.write_error(&refusal));
        }
        if end < row.length {
            self.puts.0.lock().insert(address, put);
            // The claim may have been lost meanwhile.
            self.end_lost_puts();
            if !self.fetch_table.lock().may_write(holder, &address) {
                return Err(not_claimed());
            }
            return Ok(PutAnswer::More);
        }
        let PartialPut { write, hasher, .. } = put;
        if !table.is_at(&row, &hasher.finish()) {
            self.fetch_table.lock().fail_put(&address);
            self.counters.put_hash_mismatches.one();
            tracing::warn!(connection = holder.0, "hash mismatch of a put");
            return Err((ErrorCode::WrongBytes, "the bytes do not hash to the address".to_owned()));
        }
        if !self.managers.keeps(table, blob) {
            // Its half-chunk was freed during the put.
            self.fetch_table.lock().fail_put(&address);
            return Err(not_kept());
        }
        if let Err(refusal) = write.finish(&self.blobs).await {
            self.fetch_table.lock().fail_put(&address);
            return Err(self.write_error(&refusal));
        }
        let mut wake = Vec::new();
        {
            let mut fetches = self.fetch_table.lock();
            // A claim that was lost during the write was counted as lost.
            if fetches.state(&address, false) == BlobState::Claimed {
                self.counters.claims_fulfilled.one();
            }
            fetches.finish_put(self.now(), &address, &mut wake);
        }
        wake_all(wake);
        self.counters.puts.one();
        self.counters.put_bytes.add(row.length);
        self.on_put(table, blob, row.length);
        Ok(PutAnswer::Stored)
    }

    /// Hashes the next bytes of a blob: long ones in slices.
    pub(crate) async fn hash(
        &self,
        lane: Lane,
        mut hasher: AddressHasher,
        bytes: &Bytes,
    ) -> AddressHasher {
        if bytes.len() <= HASHED_PER_SLICE {
            hasher.update(bytes);
            return hasher;
        }
        let (mut rest, mut hasher) = (bytes.clone(), Some(hasher));
        let slice = move || {
            let bytes = rest.split_to(rest.len().min(HASHED_PER_SLICE));
            hasher.as_mut().expect("not done").update(&bytes);
            if rest.is_empty() {
                Slice::Done(hasher.take().expect("not done"))
            } else {
                Slice::More
            }
        };
        self.work.run(lane, slice).await
    }

    fn begin_put(
        self: &Arc<Self>,
        owner: PutOwner,
        table: &BlobTable,
        blob: BlobOrdinal,
        row: BlobRow,
    ) -> Result<PartialPut, Refused> {
        let too_many = || (ErrorCode::TooMuch, "too many puts in progress; try again".to_owned());
        if !self.puts.may_begin(owner, self.blobs.write_buffers_max()) {
            return Err(too_many());
        }
        if !self.managers.keeps(table, blob) {
            // Its half-chunk has left the keep set since the claim.
            return Err(not_kept());
        }
        // A reload may have removed the namespace since the dataset was opened.
        let namespace = self.access.namespace(&table.namespace());
        let removed = || (ErrorCode::Unknown, "the node serves the namespace no longer".to_owned());
        let hasher = namespace.ok_or_else(removed)?.hasher();
        if !self.fits(row) {
            self.counters.put_no_space.one();
            let text = "the blob is longer than half of the node's capacity".to_owned();
            return Err((ErrorCode::NoSpace, text));
        }
        let begun = self.fetch_table.lock().begin_put(owner.holder, row.address);
        begun.map_err(|NotClaimed| not_claimed())?;
        let refused = match self.blobs.begin_write(table, blob, row) {
            Ok(Some(write)) => return Ok(PartialPut { owner, write, hasher, next: 0 }),
            Ok(None) => too_many(),
            Err(refusal) => self.write_error(&refusal),
        };
        self.fetch_table.lock().fail_put(&row.address);
        Err(refused)
    }

    /// Whether the node can store a blob of this length: a longer one would evict most of the rest.
    pub(crate) fn fits(&self, row: BlobRow) -> bool {
        row.length <= self.blobs.capacity().0 / 2
    }

    fn write_error(&self, refusal: &RequestError) -> Refused {
        match refusal {
            RequestError::NoSpace | RequestError::TooLong { .. } => {
                self.counters.put_no_space.one();
                (ErrorCode::NoSpace, refusal.to_string())
            }
            RequestError::Busy => (ErrorCode::TooMuch, refusal.to_string()),
            // The group is being freed.
            RequestError::Closed | RequestError::Gone => not_kept(),
            _ => {
                self.counters.puts_failed.one();
                tracing::warn!(%refusal, "write of a blob failed");
                (ErrorCode::Failed, "the node's device failed; its log has the cause".to_owned())
            }
        }
    }

    /// Ends puts whose claims were lost, and frees their memory.
    pub(crate) fn end_lost_puts(&self) {
        let lost: Vec<(Address, PartialPut)> = {
            let (mut puts, fetches) = (self.puts.0.lock(), self.fetch_table.lock());
            let is_lost = |address: &Address, put: &mut PartialPut| {
                !fetches.may_write(put.owner.holder, address)
            };
            puts.extract_if(.., is_lost).collect()
        };
        // The memory first, then the right to write the blob.
        for (address, put) in lost {
            drop(put);
            self.fetch_table.lock().fail_put(&address);
        }
    }
}

fn not_kept() -> Refused {
    (ErrorCode::NoSpace, "the node does not keep the blob any more".to_owned())
}

fn not_claimed() -> Refused {
    (ErrorCode::NotClaimed, "the claim is not held, or not any more".to_owned())
}

fn malformed(text: &str) -> Refused {
    (ErrorCode::Malformed, text.to_owned())
}
