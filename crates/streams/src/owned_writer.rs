//! Writers in the process that owns the store: blocks go to the device from the store's memory.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use forebay_core::streams::{
    FamilyId, Lifetime, StreamId, StreamName, StreamNumber,
    catalogue::{CatalogueError, StreamInfo},
    record::{RECORD_TAG, Record, missing},
};
use forebay_flash::{
    RequestError,
    index::GroupId,
    reservation::{FilledEntry, Reservation},
    shard::{EntryName, ShardAnswer, ShardRequest},
};

use crate::{error::StreamError, of_process::OfProcess, shared::Shared, writer::FullPolicy};

/// The writer of a stream of this process's store.
pub(crate) struct OwnedWriter {
    shared: OfProcess<Arc<Shared>>,
    id: StreamId,
    name: StreamName,
    family: FamilyId,
    group: GroupId,
    number: StreamNumber,
    full: FullPolicy,
    is_sealed: bool,
}

impl OwnedWriter {
    pub(crate) fn create(
        shared: &Arc<Shared>,
        name: &str,
        family: FamilyId,
        full: FullPolicy,
    ) -> Result<Self, StreamError> {
        let name = StreamName::for_new(name)?;
        // Their names are free.
        shared.end_leases();
        let gone = || StreamError::Catalogue(CatalogueError::FamilyGone(name.to_string()));
        let group = shared.group(family).ok_or_else(gone)?;
        let (id, number) = {
            let mut catalogue = shared.catalogue.lock();
            let id = catalogue.create(name.clone(), family)?;
            (id, catalogue.place(id).expect("just created").1)
        };
        let shared = OfProcess::new(Arc::clone(shared));
        Ok(Self { shared, id, name, family, group, number, full, is_sealed: false })
    }

    /// The stream's name.
    pub(crate) fn name(&self) -> &StreamName {
        &self.name
    }

    /// Longest block of the store.
    pub(crate) fn block_length(&self) -> u64 {
        self.shared.block_length
    }

    /// Appends a block. The bytes are copied once.
    pub(crate) async fn append_async(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        let entry = self.reserve_async(bytes.len()).await?.fill(bytes);
        self.shared.counts.copied_in.fetch_add(bytes.len() as u64, Relaxed);
        self.commit_entry(entry).await
    }

    /// Reserves memory for a block, to be filled in place. Waits for memory of other writers.
    pub(crate) async fn reserve_async(&self, length: usize) -> Result<Reservation, StreamError> {
        self.check_length(length)?;
        let buffer = self.shared.memory.take(Reservation::memory(length)).await;
        Ok(Reservation::on(buffer, length))
    }

    /// Reserves memory without waiting. `None` if there is none now.
    pub(crate) fn try_reserve(&self, length: usize) -> Result<Option<Reservation>, StreamError> {
        self.check_length(length)?;
        let buffer = self.shared.memory.try_take(Reservation::memory(length));
        Ok(buffer.map(|buffer| Reservation::on(buffer, length)))
    }

    /// Appends the first `length` bytes of a reservation as a block, without a copy.
    pub(crate) async fn commit_async(
        &mut self,
        reservation: Reservation,
        length: usize,
    ) -> Result<(), StreamError> {
        self.commit_entry(reservation.finish(length)).await
    }

    async fn commit_entry(&mut self, mut entry: FilledEntry) -> Result<(), StreamError> {
        self.shared.check_process()?;
        let length = entry.length();
        let gone = || StreamError::DestroyedUnsealed(self.name.to_string());
        let ordinal = self.shared.catalogue.lock().next_ordinal(self.family).ok_or_else(gone)?;
        let mut uncounted =
            Uncounted { shared: &self.shared, group: self.group, ordinal, is_counted: false };
        while let Some(rejected) = self.try_commit(ordinal, entry).await? {
            entry = rejected;
            self.make_space(length).await?;
        }
        let added = self.shared.catalogue.lock().on_block(self.id, ordinal, length);
        if !added? {
            return Err(StreamError::DestroyedUnsealed(self.name.to_string()));
        }
        uncounted.is_counted = true;
        self.shared.notify_followers(self.id, false);
        Ok(())
    }

    /// Frees what may go from a full store, or waits. Fails if the writer does not wait.
    async fn make_space(&self, length: u64) -> Result<(), StreamError> {
        if self.shared.end_leases() {
            return Ok(());
        }
        if self.full == FullPolicy::Error {
            return Err(self.shared.full(&self.name, length));
        }
        self.shared.await_space().await.map_err(|error| self.failed(error))
    }

    /// Appends the record of the stream. Returns its ordinal.
    async fn append_record(&self, record: Vec<u8>) -> Result<u64, StreamError> {
        let tag = self.number.0 | RECORD_TAG;
        loop {
            let bytes = record.clone();
            match self.shared.append_record(self.family, self.group, tag, bytes).await {
                Err(RequestError::NoSpace) => self.make_space(record.len() as u64).await?,
                appended => return appended.map_err(|error| self.failed(error)),
            }
        }
    }

    /// Commits an entry once. Returns it if the store is full.
    async fn try_commit(
        &self,
        ordinal: u64,
        entry: FilledEntry,
    ) -> Result<Option<FilledEntry>, StreamError> {
        let (group, tag) = (self.group, self.number.0);
        let name = EntryName::Ordinal(group, ordinal);
        let commit = ShardRequest::Commit { group, name, tag, entry };
        match self.shared.request(commit).await {
            Ok(ShardAnswer::NotCommitted { error: RequestError::NoSpace, entry }) => {
                Ok(Some(entry))
            }
            Ok(ShardAnswer::NotCommitted { error, .. }) | Err(error) => Err(self.failed(error)),
            Ok(_) => Ok(None),
        }
    }

    /// Seals the stream: it is complete, and can be opened.
    pub(crate) async fn seal_async(mut self) -> Result<StreamInfo, StreamError> {
        self.shared.check_process()?;
        let now_ms = (self.shared.clock)();
        let sealed = {
            let mut catalogue = self.shared.catalogue.lock();
            let lifetime = catalogue.lifetime(self.family);
            catalogue.seal_record(self.id, now_ms).zip(lifetime)
        };
        let destroyed = || StreamError::DestroyedUnsealed(self.name.to_string());
        let (record, lifetime) = sealed.ok_or_else(destroyed)?;
        let runs = record.runs.clone();
        if lifetime.is_durable() {
            let sync = || self.shared.request(ShardRequest::Sync { group: self.group });
            // The record is written after all blocks are durable, so that it is never found
            // without them after a crash.
            sync().await.map_err(|error| self.failed(error))?;
            let listed = record.clone();
            let ordinal = self.append_record(Record::Sealed(record).encode()).await?;
            self.shared.catalogue.lock().on_record(self.id, ordinal);
            sync().await.map_err(|error| self.failed(error))?;
            self.shared.list_sealed(self.id, &listed);
        }
        let group = Some(self.group);
        let lost = missing(&runs, |ordinal| self.shared.is_there(group, ordinal));
        if !lost.is_empty() {
            let name = self.name.to_string();
            return Err(CatalogueError::Lost { name, lost }.into());
        }
        let info = {
            let mut catalogue = self.shared.catalogue.lock();
            catalogue.on_sealed(self.id, Vec::new());
            catalogue.info(self.id)
        };
        self.is_sealed = true;
        if matches!(lifetime, Lifetime::Lease(_)) {
            self.shared.leases_begun.notify_waiters();
        }
        self.shared.notify_followers(self.id, true);
        info.filter(|info| !info.is_destroyed()).ok_or_else(destroyed)
    }

    fn check_length(&self, length: usize) -> Result<(), StreamError> {
        self.shared.check_process()?;
        let (length, max) = (length as u64, self.shared.block_length);
        if length > max { Err(StreamError::TooLong { length, max }) } else { Ok(()) }
    }

    fn failed(&self, error: RequestError) -> StreamError {
        StreamError::Write { stream: self.name.to_string(), error }
    }
}

/// An entry that its stream does not have: released unless it is counted, also if the future that
/// commits it is dropped.
struct Uncounted<'a> {
    shared: &'a Shared,
    group: GroupId,
    ordinal: u64,
    is_counted: bool,
}

impl Drop for Uncounted<'_> {
    fn drop(&mut self) {
        if !self.is_counted {
            self.shared.release(self.group, self.ordinal);
        }
    }
}

impl Drop for OwnedWriter {
    fn drop(&mut self) {
        if !self.shared.is_here() {
            return;
        }
        if !self.is_sealed && self.shared.catalogue.lock().destroy_id(self.id) {
            self.shared.notify_followers(self.id, true);
        }
        if !self.is_sealed {
            self.shared.remove_if_destroyed(self.id);
        }
    }
}
