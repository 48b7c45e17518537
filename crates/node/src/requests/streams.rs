//! Streams of clients: create, append, seal, open, read, list, destroy.
//!
//! A connection's requests are handled in order, so its blocks are written and read in order. Space
//! for a reply is reserved before a block is taken from its reader, and a reader has a fixed number
//! of slots: a slow client keeps its own slots and its own space, nothing else (promise 6).
//!
//! Not here: names and budgets, which are `core::node::stream_quotas`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use forebay_core::{
    ByteSize,
    node::{
        claims::Holder,
        stream_quotas::{Account, ChargeId, QuotaError, READER_DEPTH, StreamQuotas, WRITERS_MAX},
    },
    streams::{
        BlockNumber, Lifetime, StreamName, catalogue::CatalogueError, catalogue::StreamInfo,
    },
};
use forebay_streams::{
    CreateOptions, FullPolicy, OpenOptions, Reader, StreamError, WhenHeld, Writer,
};
use forebay_transport::session::Replies;
use forebay_wire::{ErrorCode, Reply, STREAM_PAGE_MAX, StreamReply, StreamRequest};
use tokio::time::sleep;

use crate::{
    requests::{
        service::{NodeService, Refused},
        session::NodeSession,
    },
    store::stream_store::StreamStore,
};

/// Longest wait for the readers of a stream before it is destroyed. Then they get an error.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the last reads of closed readers, which hold memory.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the record of a sealed stream: one block of the device.
const RECORD_LENGTH: usize = 1024;

/// The streams that one connection writes and reads, by handle.
#[derive(Default)]
pub(crate) struct SessionStreams {
    open: BTreeMap<u32, OpenStream>,
    handles_given: u32,
}

/// A stream that a connection writes or reads.
enum OpenStream {
    Writing(WritingStream),
    Reading(ReadingStream),
}

struct WritingStream {
    name: StreamName,
    charge: ChargeId,
    writer: Writer,
    blocks: u64,
    bytes: u64,
}

struct ReadingStream {
    name: StreamName,
    charge: ChargeId,
    reader: Reader,
    consumes: bool,
}

impl SessionStreams {
    fn add(&mut self, stream: OpenStream) -> u32 {
        // Never used again on this connection, so that a late request finds no other stream.
        let handle = self.handles_given;
        self.handles_given = handle.saturating_add(1);
        self.open.insert(handle, stream);
        handle
    }

    /// Drops writers whose streams were destroyed, once a connection has the most writers.
    fn drop_destroyed(&mut self, client: StreamClient<'_>) {
        let is_writing = |stream: &OpenStream| matches!(stream, OpenStream::Writing(_));
        if self.open.values().filter(|stream| is_writing(stream)).count() < WRITERS_MAX {
            return;
        }
        self.open.retain(|_, stream| match stream {
            OpenStream::Writing(WritingStream { name, charge, .. }) => {
                client.is_charged(name, *charge)
            }
            OpenStream::Reading(_) => true,
        });
    }

    fn writing(&mut self, handle: u32) -> Result<&mut WritingStream, Refused> {
        match self.open.get_mut(&handle) {
            Some(OpenStream::Writing(stream)) => Ok(stream),
            _ => Err(no_handle("written", handle)),
        }
    }

    fn reading(&mut self, handle: u32) -> Result<&mut ReadingStream, Refused> {
        match self.open.get_mut(&handle) {
            Some(OpenStream::Reading(stream)) => Ok(stream),
            _ => Err(no_handle("read", handle)),
        }
    }
}

/// The client of a request about streams.
#[derive(Clone, Copy)]
struct StreamClient<'a> {
    streams: &'a StreamStore,
    account: Account,
    holder: Holder,
}

impl StreamClient<'_> {
    fn decide<T>(
        &self,
        decision: impl FnOnce(&mut StreamQuotas) -> Result<T, QuotaError>,
    ) -> Result<T, Refused> {
        self.streams.decide(decision).map_err(|error| quota_refused(&error))
    }

    /// The name within the account, and the name on the device.
    fn names(&self, name: &str) -> Result<Names, Refused> {
        let stored = self.decide(|quotas| quotas.stored_name(self.account, name))?;
        let name = StreamName::new(name).map_err(|error| quota_refused(&error.into()))?;
        Ok(Names { name, stored })
    }

    /// The names of a stream that is open.
    fn names_of(&self, name: &StreamName) -> Result<Names, Refused> {
        self.names(name.as_str())
    }

    fn close_reader(&self, charge: ChargeId) {
        self.streams.decide(|quotas| quotas.close_reader(self.account, self.holder, charge));
    }

    fn is_charged(&self, name: &StreamName, charge: ChargeId) -> bool {
        self.streams.decide(|quotas| quotas.is_charged(self.account, name, charge))
    }

    fn on_removed(&self, name: &StreamName, charge: ChargeId) {
        self.streams.decide(|quotas| quotas.on_removed(self.account, name, charge));
    }
}

/// The names of a stream.
struct Names {
    /// For the client.
    name: StreamName,
    /// On the device.
    stored: StreamName,
}

impl Names {
    /// An error of the store, with the name that the client uses.
    fn refused(&self, error: &StreamError) -> Refused {
        let code = match error {
            StreamError::Full { .. } => ErrorCode::NoSpace,
            StreamError::Lost { .. } | StreamError::Shorter { .. } => ErrorCode::Lost,
            StreamError::Catalogue(error) if error.is_lost() => ErrorCode::Lost,
            StreamError::Catalogue(CatalogueError::NotFound(_)) | StreamError::Destroyed(_) => {
                ErrorCode::Unknown
            }
            StreamError::Catalogue(_) | StreamError::TooLong { .. } | StreamError::Name(_) => {
                ErrorCode::Malformed
            }
            StreamError::Memory { .. } => ErrorCode::TooMuch,
            StreamError::Read { .. } | StreamError::Write { .. } => {
                tracing::warn!(%error, "stream failed");
                ErrorCode::Failed
            }
            _ => ErrorCode::Failed,
        };
        let quoted = |name: &StreamName| format!("{:?}", name.as_str());
        (code, error.to_string().replace(&quoted(&self.stored), &quoted(&self.name)))
    }

    fn shown(&self, info: StreamInfo) -> StreamInfo {
        StreamInfo { name: self.name.clone(), family: self.name.clone(), ..info }
    }
}

impl NodeService {
    /// The reply to a request about streams, or `None` if it has been sent.
    pub(crate) async fn on_stream_request(
        self: &Arc<Self>,
        session: &mut NodeSession,
        request: StreamRequest,
        replies: &Replies,
    ) -> Result<Option<Reply>, Refused> {
        let none = || quota_refused(&QuotaError::NoBudget);
        let answered = match self.streams.as_ref().ok_or_else(none) {
            Ok(streams) => {
                let (account, holder) = (session.identity.tenant(), session.holder);
                let client = StreamClient { streams, account, holder };
                self.answer_stream(client, &mut session.streams, request, replies).await
            }
            Err(refused) => Err(refused),
        };
        if let Err((ErrorCode::NoSpace | ErrorCode::TooMuch, _)) = &answered {
            self.counters.stream_refused.one();
        }
        answered.map(|reply| reply.map(Reply::Stream))
    }

    async fn answer_stream(
        &self,
        client: StreamClient<'_>,
        open: &mut SessionStreams,
        request: StreamRequest,
        replies: &Replies,
    ) -> Result<Option<StreamReply>, Refused> {
        Ok(Some(match request {
            StreamRequest::Create { name, lifetime } => create(client, open, &name, lifetime)?,
            StreamRequest::Append { handle, block, payload } => {
                let length = payload.len() as u64;
                append(client, open.writing(handle)?, block, payload).await?;
                self.counters.stream_appended_bytes.add(length);
                StreamReply::Done
            }
            StreamRequest::Seal { handle, blocks, bytes } => {
                seal(client, open, handle, (blocks, bytes)).await?
            }
            StreamRequest::Open { name, consume } => {
                self.open_stream(client, open, &name, consume).await?
            }
            StreamRequest::Next { handle, block } => {
                return self.next_block(client, open, (handle, block), replies).await;
            }
            StreamRequest::Close { handle } => {
                match open.open.remove(&handle).ok_or_else(|| no_handle("open", handle))? {
                    OpenStream::Writing(WritingStream { name, charge, writer, .. }) => {
                        drop(writer);
                        client.on_removed(&name, charge);
                        self.counters.stream_abandoned.one();
                    }
                    OpenStream::Reading(ReadingStream { reader, charge, .. }) => {
                        drop(reader);
                        client.close_reader(charge);
                    }
                }
                StreamReply::Done
            }
            StreamRequest::Destroy { name } => {
                let names = client.names(&name)?;
                // Its name may be that of another stream when it is gone.
                let charge =
                    client.decide(|quotas| Ok(quotas.find(client.account, &names.name)))?;
                let destroyed = client
                    .streams
                    .store
                    .destroy_until(names.stored.as_str(), sleep(DESTROY_TIMEOUT));
                destroyed.await.map_err(|error| names.refused(&error))?;
                if let Some(charge) = charge {
                    client.on_removed(&names.name, charge);
                }
                StreamReply::Done
            }
            StreamRequest::List { after } => list(client, &after)?,
            StreamRequest::Facts => {
                client.streams.collect_expired();
                let account = client.decide(|quotas| quotas.facts(client.account))?;
                StreamReply::Facts { account, block_length: client.streams.block_length() }
            }
        }))
    }

    async fn open_stream(
        &self,
        client: StreamClient<'_>,
        open: &mut SessionStreams,
        name: &str,
        consumes: bool,
    ) -> Result<StreamReply, Refused> {
        let names = client.names(name)?;
        client.streams.collect_expired();
        let charge = client
            .decide(|quotas| quotas.open_reader(client.account, client.holder, &names.name))?;
        let opened = open_reader(client.streams, &names.stored, consumes).await;
        let reader = opened.map_err(|error| {
            client.close_reader(charge);
            names.refused(&error)
        })?;
        // While this waited, the stream may have become another one of the same name.
        let info = client.streams.store.find(&names.stored).map(|info| names.shown(info));
        let is_charged = client.is_charged(&names.name, charge);
        let Some(info) = info.filter(|_| is_charged) else {
            drop(reader);
            client.close_reader(charge);
            return Err(names.refused(&StreamError::Destroyed(names.stored.to_string())));
        };
        let stream = ReadingStream { name: names.name, charge, reader, consumes };
        let handle = open.add(OpenStream::Reading(stream));
        Ok(StreamReply::Opened { handle, info })
    }

    /// Sends the next block of a stream, or answers that there is none.
    async fn next_block(
        &self,
        client: StreamClient<'_>,
        open: &mut SessionStreams,
        (handle, block): (u32, BlockNumber),
        replies: &Replies,
    ) -> Result<Option<StreamReply>, Refused> {
        let stream = open.reading(handle)?;
        let next = stream.reader.position();
        if block != next {
            let text = format!("block {} is next, not block {}", next.0, block.0);
            return Err((ErrorCode::Malformed, text));
        }
        let names = client.names_of(&stream.name)?;
        let length = client.streams.block_length() as usize;
        let Some(space) = replies.reserve(length).await else { return Ok(None) };
        match stream.reader.next_async().await {
            Some(Ok(block)) => {
                let payload = block.into_bytes();
                self.counters.stream_read_bytes.add(payload.len() as u64);
                replies.send_payload(&Reply::Stream(StreamReply::Block { payload }), space);
                Ok(None)
            }
            Some(Err(error)) => Err(names.refused(&error)),
            None => {
                let (is_consumed, charge) = (stream.consumes, stream.charge);
                open.open.remove(&handle);
                client.close_reader(charge);
                if is_consumed {
                    client.on_removed(&names.name, charge);
                }
                Ok(Some(StreamReply::End))
            }
        }
    }

    /// A connection has ended: its readers are closed, and its unsealed streams are dropped.
    pub(crate) fn end_streams(&self, session: &mut NodeSession) {
        let open = std::mem::take(&mut session.streams);
        let Some(streams) = &self.streams else { return };
        // The names are free after the streams are gone.
        drop(open);
        let (account, holder) = (session.identity.tenant(), session.holder);
        let dropped = streams.decide(|quotas| quotas.on_disconnect(account, holder));
        self.counters.stream_abandoned.add(dropped.len() as u64);
    }
}

fn create(
    client: StreamClient<'_>,
    open: &mut SessionStreams,
    name: &str,
    lifetime: Lifetime,
) -> Result<StreamReply, Refused> {
    let Names { name, stored } = client.names(name)?;
    client.streams.collect_expired();
    open.drop_destroyed(client);
    let charge = client.decide(|quotas| quotas.create(client.account, client.holder, &name))?;
    let options = CreateOptions { lifetime, full: FullPolicy::Error };
    let created = client.streams.store.create(stored.as_str(), options);
    let names = Names { name, stored };
    let writer = created.map_err(|error| {
        client.on_removed(&names.name, charge);
        names.refused(&error)
    })?;
    let stream = WritingStream { name: names.name, charge, writer, blocks: 0, bytes: 0 };
    let handle = open.add(OpenStream::Writing(stream));
    Ok(StreamReply::Created { handle, block_length: client.streams.block_length() })
}

async fn append(
    client: StreamClient<'_>,
    stream: &mut WritingStream,
    block: BlockNumber,
    payload: Bytes,
) -> Result<(), Refused> {
    if block.0 != stream.blocks {
        let text = format!("block {} is next, not block {}", stream.blocks, block.0);
        return Err((ErrorCode::Malformed, text));
    }
    let names = client.names_of(&stream.name)?;
    let (length, max) = (payload.len() as u64, client.streams.store.block_length());
    if length > max {
        return Err(names.refused(&StreamError::TooLong { length, max }));
    }
    let entry = StreamStore::entry_size(payload.len());
    // Leases that have ended make room.
    client.streams.collect_expired();
    let charged = |quotas: &mut StreamQuotas| {
        quotas.append(client.account, &stream.name, stream.charge, entry)
    };
    client.decide(charged)?;
    let appended = stream.writer.append_async(&payload).await;
    appended.map_err(|error| names.refused(&error))?;
    stream.blocks += 1;
    stream.bytes += length;
    Ok(())
}

/// Seals a stream whose client has counted the same blocks and bytes.
async fn seal(
    client: StreamClient<'_>,
    open: &mut SessionStreams,
    handle: u32,
    (blocks, bytes): (u64, u64),
) -> Result<StreamReply, Refused> {
    let stream = open.writing(handle)?;
    if (blocks, bytes) != (stream.blocks, stream.bytes) {
        let text = format!(
            "the stream has {} blocks with {} bytes, not {blocks} with {bytes}: write it again",
            stream.blocks, stream.bytes
        );
        return Err((ErrorCode::Malformed, text));
    }
    let names = client.names_of(&stream.name)?;
    let Some(OpenStream::Writing(stream)) = open.open.remove(&handle) else {
        unreachable!("just seen")
    };
    let charge = stream.charge;
    match stream.writer.seal_async().await {
        Ok(info) => {
            let has_record = info.lifetime.is_durable();
            let record =
                if has_record { StreamStore::entry_size(RECORD_LENGTH) } else { ByteSize::ZERO };
            // A short lease has ended by now.
            let store = &client.streams.store;
            let ends = || store.lease_end(&names.stored).unwrap_or_else(|| store.now_ms());
            let lease_end = matches!(info.lifetime, Lifetime::Lease(_)).then(ends);
            let sealed = |quotas: &mut StreamQuotas| {
                quotas.on_sealed(client.account, &names.name, charge, record, lease_end);
            };
            client.streams.decide(sealed);
            Ok(StreamReply::Sealed(names.shown(info)))
        }
        Err(error) => {
            client.on_removed(&names.name, charge);
            Err(names.refused(&error))
        }
    }
}

/// A page of the client's streams. Streams of other clients cost it nothing.
fn list(client: StreamClient<'_>, after: &str) -> Result<StreamReply, Refused> {
    client.streams.collect_expired();
    let prefix = client.decide(|quotas| quotas.prefix(client.account))?;
    let after = format!("{prefix}{after}");
    let mut found = client.streams.store.page(&prefix, &after, STREAM_PAGE_MAX + 1);
    let is_last = found.len() <= STREAM_PAGE_MAX;
    found.truncate(STREAM_PAGE_MAX);
    let shown = found.into_iter().map(|info| {
        let name = info.name.as_str().strip_prefix(&prefix).expect("names of the page");
        let name = StreamName::new(name).expect("the end of a name is a name");
        StreamInfo { family: name.clone(), name, ..info }
    });
    Ok(StreamReply::List { streams: shown.collect(), is_last })
}

/// Opens a reader. The memory of readers that were closed just now comes back after their last
/// reads, and after their last blocks are sent.
async fn open_reader(
    streams: &StreamStore,
    stored: &StreamName,
    consume: bool,
) -> Result<Reader, StreamError> {
    let options = OpenOptions {
        depth: READER_DEPTH,
        in_flight: READER_DEPTH,
        when_held: WhenHeld::Wait,
        follow: false,
        consume,
    };
    streams.store.open_until(stored.as_str(), options, sleep(MEMORY_TIMEOUT)).await
}

fn no_handle(state: &str, handle: u32) -> Refused {
    (ErrorCode::Unknown, format!("no stream is {state} as handle {handle} on this connection"))
}

fn quota_refused(error: &QuotaError) -> Refused {
    let code = match error {
        QuotaError::NoBudget | QuotaError::Full { .. } | QuotaError::TooManyStreams => {
            ErrorCode::NoSpace
        }
        QuotaError::TooManyWriters(_) | QuotaError::TooManyReaders => ErrorCode::TooMuch,
        QuotaError::NotFound(_) => ErrorCode::Unknown,
        QuotaError::Name(_) | QuotaError::NameTooLong { .. } | QuotaError::Taken(_) => {
            ErrorCode::Malformed
        }
    };
    (code, error.to_string())
}
