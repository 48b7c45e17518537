//! Removal of streams and families: what is destroyed is durably gone when the call returns.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::streams::{
    FamilyId, StreamId, StreamName, StreamNumber,
    catalogue::{CatalogueError, Removal, StreamInfo},
    record::{RECORD_TAG, Record},
};
use forebay_flash::{
    RequestError,
    format::{BLOCK_SIZE, frame_checksums},
    index::GroupId,
    shard::{EntryName, GuardKind, RequestResult, ShardRequest},
};
use futures::future::{Either, select};
use tokio::sync::oneshot;

use crate::{error::StreamError, shared::Shared};

impl Shared {
    /// Destroys a stream: its name is free, and readers that have it open may finish.
    pub(crate) fn begin_destroy(&self, name: &StreamName) -> Result<StreamId, StreamError> {
        let id = self.catalogue.lock().destroy(name)?;
        self.notify_followers(id, true);
        Ok(id)
    }

    /// Waits until a stream has no reader.
    pub(crate) async fn readers_closed(&self, id: StreamId) {
        while let Some(last_reader) = self.await_readers(id) {
            // The sender is dropped with the store only.
            let _ = last_reader.await;
        }
    }

    /// The end of the last reader; `None` if there is none.
    fn await_readers(&self, id: StreamId) -> Option<oneshot::Receiver<()>> {
        let mut destroyers = self.destroyers.lock();
        let readers = self.catalogue.lock().info(id).map_or(0, |info| info.readers);
        (readers > 0).then(|| {
            let (sender, receiver) = oneshot::channel();
            destroyers.entry(id).or_default().push(sender);
            receiver
        })
    }

    /// The last reader of a stream has closed it.
    pub(crate) fn on_last_reader_closed(self: &Arc<Self>, id: StreamId) {
        let waiting = self.destroyers.lock().remove(&id).unwrap_or_default();
        let is_awaited = waiting.into_iter().filter_map(|sender| sender.send(()).ok()).count() > 0;
        if !is_awaited {
            self.remove_if_destroyed(id);
        }
    }

    /// Removes a destroyed stream. Readers that have it open get an error.
    pub(crate) async fn remove(&self, id: StreamId, name: &StreamName) -> Result<(), StreamError> {
        let is_listed = self.list_destroyed(id, true);
        let removed = self.catalogue.lock().remove(id);
        let Some((family, removal)) = removed else { return Ok(()) };
        let failed = |error| StreamError::Write { stream: name.to_string(), error };
        let (record, ordinals) = match removal {
            Removal::Family => return self.free_group(family).await.map_err(failed),
            Removal::Ordinals { record, ordinals } => (record, ordinals),
        };
        let Some(group) = self.group(family) else { return Ok(()) };
        let release = ShardRequest::ReleaseOrdinals { group, ordinals };
        let Some(number) = record else {
            return self.request(release).await.map(|_| ()).map_err(failed);
        };
        let mut recorded = self.record_destroyed(family, group, number).await;
        self.request(release).await.map_err(failed)?;
        if recorded == Err(RequestError::NoSpace) {
            // Regions that the stream had alone are free now.
            recorded = self.record_destroyed(family, group, number).await;
        }
        match recorded {
            // The list of sealed streams says durably that it is destroyed.
            Err(RequestError::NoSpace) if is_listed => Ok(()),
            Err(RequestError::NoSpace) => Err(self.full(name, BLOCK_SIZE as u64)),
            recorded => recorded.map_err(failed),
        }
    }

    /// Records durably that a stream is destroyed.
    async fn record_destroyed(
        &self,
        family: FamilyId,
        group: GroupId,
        number: StreamNumber,
    ) -> Result<(), RequestError> {
        let (tag, record) = (number.0 | RECORD_TAG, Record::Destroyed(number).encode());
        self.append_record(family, group, tag, record).await?;
        self.request(ShardRequest::Sync { group }).await.map(|_| ())
    }

    /// Destroys the streams whose lease has ended. Readers that have one open may finish. False if
    /// there are none.
    pub(crate) fn end_leases(&self) -> bool {
        let now_ms = (self.clock)();
        let ended: Vec<StreamId> = {
            let mut catalogue = self.catalogue.lock();
            let ended = catalogue.expired(now_ms).into_iter();
            ended.filter_map(|name| catalogue.destroy(&name).ok()).collect()
        };
        for id in &ended {
            // Not posted: an append that follows finds their regions free, or waits for them.
            self.remove_with(*id, |request| drop(self.engine.request(request)));
        }
        !ended.is_empty()
    }

    /// Waits until a region is free, or the end of a lease may free one.
    pub(crate) async fn await_space(&self) -> Result<(), RequestError> {
        let leases_begun = self.leases_begun.notified();
        let next = self.catalogue.lock().next_lease_end();
        let now_ms = (self.clock)();
        let timeout = next.map(|at| Duration::from_millis(at.saturating_sub(now_ms)));
        let free = self.request(ShardRequest::AwaitSpace { timeout });
        match select(pin!(free), pin!(leases_begun)).await {
            Either::Left((answer, _)) => answer.map(|_| ()),
            Either::Right(_) => Ok(()),
        }
    }

    /// Removes a destroyed stream without waiting for it, and without making that durable first.
    pub(crate) fn remove_if_destroyed(&self, id: StreamId) {
        self.remove_with(id, |request| self.post(request));
    }

    /// Removes a stream if it is destroyed and has no reader.
    fn remove_with(&self, id: StreamId, send: impl Fn(ShardRequest)) {
        let is_removable = |info: &StreamInfo| info.is_destroyed() && info.readers == 0;
        if self.catalogue.lock().info(id).as_ref().is_some_and(is_removable) {
            self.list_destroyed(id, false);
        }
        let removed = {
            let mut catalogue = self.catalogue.lock();
            let info = catalogue.info(id);
            let is_destroyed = info.as_ref().is_some_and(is_removable);
            is_destroyed.then(|| catalogue.remove(id)).flatten()
        };
        let Some((family, removal)) = removed else { return };
        let Some(group) = self.group(family) else { return };
        match removal {
            Removal::Family => {
                self.groups.lock().remove(&family);
                send(ShardRequest::Release { group, guard: GuardKind::Pin });
                send(ShardRequest::Free { group, lease_timeout: Duration::ZERO });
            }
            Removal::Ordinals { record, ordinals } => {
                if let Some(number) = record
                    && let Some(ordinal) = self.catalogue.lock().next_ordinal(family)
                {
                    let record = Record::Destroyed(number).encode();
                    send(record_append(group, ordinal, number.0 | RECORD_TAG, record));
                }
                send(ShardRequest::ReleaseOrdinals { group, ordinals });
            }
        }
    }

    /// Destroys a family and all its streams.
    pub(crate) async fn destroy_family(&self, family: FamilyId) -> Result<(), StreamError> {
        let recorded = self.catalogue.lock().recorded_keys(family);
        for key in recorded {
            self.list_destroyed_key(key, true);
        }
        let streams = self.catalogue.lock().destroy_family(family);
        for id in streams {
            self.notify_followers(id, true);
        }
        let failed = |error| StreamError::Write { stream: "of the family".into(), error };
        self.free_group(family).await.map_err(failed)
    }

    /// Removes a family in which no stream was created.
    pub(crate) fn drop_empty_family(&self, family: FamilyId) {
        self.catalogue.lock().destroy_family(family);
        if let Some(group) = self.groups.lock().remove(&family) {
            self.post(ShardRequest::Release { group, guard: GuardKind::Pin });
            self.post(ShardRequest::Free { group, lease_timeout: Duration::ZERO });
        }
    }

    /// The stream of this name.
    pub(crate) fn id_of(&self, name: &StreamName) -> Result<StreamId, StreamError> {
        let id = self.catalogue.lock().find(name);
        let not_found = || CatalogueError::NotFound(name.to_string()).into();
        id.ok_or_else(not_found)
    }

    async fn free_group(&self, family: FamilyId) -> Result<(), RequestError> {
        let Some(group) = self.groups.lock().remove(&family) else { return Ok(()) };
        self.request(ShardRequest::Release { group, guard: GuardKind::Pin }).await?;
        let free = ShardRequest::Free { group, lease_timeout: Duration::ZERO };
        self.request(free).await.map(|_| ())
    }

    /// Appends a record to a family. Returns its ordinal.
    pub(crate) async fn append_record(
        &self,
        family: FamilyId,
        group: GroupId,
        tag: u32,
        record: Vec<u8>,
    ) -> Result<u64, RequestError> {
        let ordinal = self.catalogue.lock().next_ordinal(family).ok_or(RequestError::Gone)?;
        let answer: RequestResult = self.request(record_append(group, ordinal, tag, record)).await;
        answer.map(|_| ordinal)
    }
}

fn record_append(group: GroupId, ordinal: u64, tag: u32, record: Vec<u8>) -> ShardRequest {
    let payload = Bytes::from(record);
    let checksums = frame_checksums(&payload);
    let name = EntryName::Ordinal(group, ordinal);
    ShardRequest::Append { group, name, tag, payload, checksums }
}
