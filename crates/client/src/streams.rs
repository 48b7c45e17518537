//! Streams on a node: the same writers and readers as those of a store of this process.
//!
//! Each writer and each reader has a connection of its own, so that a slow reader delays no other.
//! A writer has [`IN_FLIGHT`] blocks on their way, a reader asks for as many ahead. A connection
//! that breaks is an error, never the end of a stream (promise 9): the end is what the node says is
//! the end, after the number of blocks and bytes that it announced at the beginning.

use std::{
    collections::VecDeque, os::unix::fs::FileTypeExt as _, path::Path, process, time::Duration,
};

use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_core::{
    Endpoint,
    ids::endpoint::EndpointError,
    node::stream_quotas::AccountFacts,
    streams::{BlockNumber, Lifetime, StreamName, catalogue::StreamInfo},
};
use forebay_streams::{BlockSink, BlockSource, Reader, StreamError, Writer};
use forebay_wire::{ErrorCode, Reply, Request, StreamReply, StreamRequest, VERSION_STREAMS};

use crate::{
    Client, ClientError, Interrupt, Result, ThisMachine, frame_io::StreamFrame, wait::WaitPolicy,
};

type StreamResult<T> = std::result::Result<T, StreamError>;

/// Blocks on their way at a time: one is sent while the one before is written or read.
const IN_FLIGHT: usize = 2;
/// Longest wait for a reply. A node waits up to 30 s for its device.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Longest wait for a node when a writer or a reader is dropped. Then the connection is closed,
/// which has the same effect, a little later.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The streams of this client on a node.
#[derive(Debug, Clone)]
pub struct NodeStreams {
    endpoint: Endpoint,
    credentials: Credentials,
    job: String,
    interrupt: Interrupt,
}

/// The node that the name of a store means: `tcp://HOST:PORT`, `tls://HOST:PORT`, or the path of a
/// node's socket. `None` for other names, which are directories.
pub fn node_of_store(store: &Path) -> std::result::Result<Option<Endpoint>, EndpointError> {
    let is_socket =
        || std::fs::metadata(store).is_ok_and(|metadata| metadata.file_type().is_socket());
    match store.to_str() {
        Some(text) if text.contains("://") => text.parse().map(Some),
        _ => Ok(is_socket().then(|| store.into())),
    }
}

impl NodeStreams {
    /// Streams on the node at this endpoint. Opens no connection yet.
    pub fn new(endpoint: impl Into<Endpoint>, credentials: Credentials, job: &str) -> Self {
        let (endpoint, job) = (endpoint.into(), job.to_owned());
        Self { endpoint, credentials, job, interrupt: Interrupt::default() }
    }

    /// Checks for an interrupt of the job while it waits.
    #[must_use]
    pub fn with_interrupt(self, interrupt: Interrupt) -> Self {
        Self { interrupt, ..self }
    }

    /// Creates a stream. `Process` is until the node stops.
    pub fn create(&self, name: &str, lifetime: Lifetime) -> StreamResult<Writer> {
        let (name, text) = (StreamName::new(name)?, name.to_owned());
        let mut client = self.connect()?;
        match ask(&mut client, StreamRequest::Create { name: text, lifetime }) {
            Ok(StreamReply::Created { handle, block_length }) => {
                let sink: Box<dyn BlockSink> = Box::new(NodeWriter {
                    client,
                    name,
                    handle,
                    block_length: block_length.into(),
                    blocks: 0,
                    bytes: 0,
                    in_flight: VecDeque::new(),
                    is_open: true,
                    process: process::id(),
                });
                Ok(sink.into())
            }
            Ok(_) => Err(stream_error(ClientError::Unexpected)),
            Err(error) => Err(stream_error(error)),
        }
    }

    /// Opens a sealed stream for reading. With `consume`, it is destroyed while it is read.
    pub fn open(&self, name: &str, consume: bool) -> StreamResult<Reader> {
        StreamName::new(name)?;
        let mut client = self.connect()?;
        match ask(&mut client, StreamRequest::Open { name: name.to_owned(), consume }) {
            Ok(StreamReply::Opened { handle, info }) => {
                let source: Box<dyn BlockSource> = Box::new(NodeReader {
                    client,
                    info,
                    handle,
                    requested: VecDeque::new(),
                    next: 0,
                    bytes: 0,
                    has_ended: false,
                    process: process::id(),
                });
                Ok(source.into())
            }
            Ok(_) => Err(stream_error(ClientError::Unexpected)),
            Err(error) => Err(stream_error(error)),
        }
    }

    /// Destroys a stream. The node waits 5 s for its readers, which then get an error.
    pub fn destroy(&self, name: &str) -> StreamResult<()> {
        StreamName::new(name)?;
        match ask(&mut self.connect()?, StreamRequest::Destroy { name: name.to_owned() }) {
            Ok(StreamReply::Done) => Ok(()),
            Ok(_) => Err(stream_error(ClientError::Unexpected)),
            Err(error) => Err(stream_error(error)),
        }
    }

    /// The streams of this client, by name.
    pub fn list(&self) -> StreamResult<Vec<StreamInfo>> {
        let mut client = self.connect()?;
        let mut all: Vec<StreamInfo> = Vec::new();
        loop {
            let after = all.last().map_or_else(String::new, |info| info.name.to_string());
            match ask(&mut client, StreamRequest::List { after: after.clone() }) {
                Ok(StreamReply::List { streams, is_last }) => {
                    let is_ascending =
                        streams.first().is_none_or(|first| first.name.as_str() > &*after);
                    if !is_ascending || streams.is_empty() && !is_last {
                        return Err(stream_error(ClientError::Unexpected));
                    }
                    all.extend(streams);
                    if is_last {
                        return Ok(all);
                    }
                }
                Ok(_) => return Err(stream_error(ClientError::Unexpected)),
                Err(error) => return Err(stream_error(error)),
            }
        }
    }

    /// What this client has on the node, and the longest block.
    pub fn facts(&self) -> StreamResult<(AccountFacts, u64)> {
        match ask(&mut self.connect()?, StreamRequest::Facts) {
            Ok(StreamReply::Facts { account, block_length }) => Ok((account, block_length.into())),
            Ok(_) => Err(stream_error(ClientError::Unexpected)),
            Err(error) => Err(stream_error(error)),
        }
    }

    fn connect(&self) -> StreamResult<Client> {
        let policy = WaitPolicy::interruptible(&self.interrupt);
        let client = Client::connect_with(
            &ThisMachine::shared(),
            &self.credentials,
            &self.endpoint,
            &self.job,
            TIMEOUT,
            policy,
        );
        let client = client.map_err(stream_error)?;
        if client.version() < VERSION_STREAMS {
            return Err(StreamError::Refused(format!(
                "the node at `{}` has no streams, because it is older than this client: install \
                 the same forebay on both sides",
                self.endpoint
            )));
        }
        Ok(client)
    }
}

fn ask(client: &mut Client, request: StreamRequest) -> Result<StreamReply> {
    match client.ask(&Request::Stream(request))? {
        Reply::Stream(reply) => Ok(reply),
        _ => Err(ClientError::Unexpected),
    }
}

/// The error of a stream, by the cause of a failed request.
fn stream_error(error: ClientError) -> StreamError {
    match error {
        ClientError::Refused(refusal) => match refusal.code {
            ErrorCode::NoSpace => StreamError::RefusedFull(refusal.text),
            ErrorCode::Lost => StreamError::RefusedLost(refusal.text),
            _ => StreamError::Refused(refusal.text),
        },
        ClientError::Interrupted => StreamError::Interrupted,
        ClientError::Broken(_) | ClientError::Unexpected | ClientError::Malformed(_) => {
            StreamError::ConnectionLost(error.to_string())
        }
        other => StreamError::Refused(other.to_string()),
    }
}

/// The writer of a stream on a node.
struct NodeWriter {
    client: Client,
    name: StreamName,
    handle: u32,
    block_length: u64,
    blocks: u64,
    bytes: u64,
    /// Appends that have not been answered, in order.
    in_flight: VecDeque<u64>,
    /// Whether the node has the handle.
    is_open: bool,
    /// A forked child has a copy, which must not use the connection.
    process: u32,
}

impl NodeWriter {
    /// Waits until at most `left` appends are on their way.
    fn settle(&mut self, left: usize) -> Result<()> {
        while self.in_flight.len() > left {
            let id = self.in_flight.pop_front().expect("just seen");
            match self.client.io.reply(id)? {
                Reply::Stream(StreamReply::Done) => {}
                Reply::Error(refusal) => return Err(refusal.into()),
                _ => return Err(self.client.io.mark_broken()),
            }
        }
        Ok(())
    }

    fn try_append(&mut self, payload: Bytes) -> Result<()> {
        self.settle(IN_FLIGHT - 1)?;
        let (handle, block) = (self.handle, BlockNumber(self.blocks));
        let length = payload.len() as u64;
        let append = StreamRequest::Append { handle, block, payload };
        let id = self.client.send(&Request::Stream(append))?;
        self.in_flight.push_back(id);
        self.blocks += 1;
        self.bytes += length;
        Ok(())
    }

    fn try_seal(&mut self) -> Result<StreamInfo> {
        self.settle(0)?;
        let (handle, blocks, bytes) = (self.handle, self.blocks, self.bytes);
        match ask(&mut self.client, StreamRequest::Seal { handle, blocks, bytes })? {
            StreamReply::Sealed(info) => Ok(info),
            _ => Err(self.client.io.mark_broken()),
        }
    }
}

impl BlockSink for NodeWriter {
    fn name(&self) -> &StreamName {
        &self.name
    }

    fn block_length(&self) -> u64 {
        self.block_length
    }

    fn append(&mut self, block: Bytes) -> StreamResult<()> {
        self.try_append(block).map_err(stream_error)
    }

    fn seal(mut self: Box<Self>) -> StreamResult<StreamInfo> {
        let info = self.try_seal().map_err(stream_error)?;
        self.is_open = false;
        Ok(info)
    }
}

/// Drops the stream on the node, so that its name is free when this returns.
impl Drop for NodeWriter {
    fn drop(&mut self) {
        if self.is_open && self.process == process::id() {
            self.client.io.set_timeout(CLOSE_TIMEOUT);
            // A refused append leaves the later ones to be answered.
            while !self.in_flight.is_empty() {
                if self.settle(0).is_err_and(|error| !error.is_refusal()) {
                    return;
                }
            }
            let _ = ask(&mut self.client, StreamRequest::Close { handle: self.handle });
        }
    }
}

/// The reader of a stream on a node.
struct NodeReader {
    client: Client,
    /// The stream, as it was opened.
    info: StreamInfo,
    handle: u32,
    /// Requests for the blocks from `next` on, in order.
    requested: VecDeque<u64>,
    /// Number of the next block.
    next: u64,
    /// Bytes read so far.
    bytes: u64,
    has_ended: bool,
    /// A forked child has a copy, which must not use the connection.
    process: u32,
}

impl NodeReader {
    /// Asks for the next blocks, and after the last one for the end.
    fn ask_ahead(&mut self) -> Result<()> {
        let end = self.info.blocks.saturating_add(1);
        while self.requested.len() < IN_FLIGHT && self.next + (self.requested.len() as u64) < end {
            let block = BlockNumber(self.next + self.requested.len() as u64);
            let request = StreamRequest::Next { handle: self.handle, block };
            let id = self.client.send(&Request::Stream(request))?;
            self.requested.push_back(id);
        }
        Ok(())
    }

    fn try_next(&mut self) -> Result<Option<usize>> {
        self.ask_ahead()?;
        let Some(id) = self.requested.pop_front() else { return Err(ClientError::Unexpected) };
        match self.client.io.stream_reply(id)? {
            StreamFrame::Block { length } if self.next < self.info.blocks => Ok(Some(length)),
            StreamFrame::Reply(Reply::Stream(StreamReply::End)) => Ok(None),
            StreamFrame::Reply(Reply::Error(refusal)) => Err(refusal.into()),
            StreamFrame::Block { .. } | StreamFrame::Reply(_) => Err(self.client.io.mark_broken()),
        }
    }
}

impl BlockSource for NodeReader {
    fn name(&self) -> &StreamName {
        &self.info.name
    }

    fn next_length(&mut self) -> StreamResult<Option<usize>> {
        if self.has_ended {
            return Ok(None);
        }
        let length = self.try_next().map_err(stream_error)?;
        if length.is_none() {
            let (bytes, expected) = (self.bytes, self.info.bytes);
            if (self.next, bytes) != (self.info.blocks, expected) {
                let stream = self.info.name.to_string();
                return Err(StreamError::Shorter { stream, bytes, expected });
            }
            self.has_ended = true;
        }
        Ok(length)
    }

    fn read(&mut self, into: &mut [u8]) -> StreamResult<()> {
        self.client.io.read(into).map_err(stream_error)?;
        self.next += 1;
        self.bytes += into.len() as u64;
        Ok(())
    }
}

/// Closes the reader on the node, so that its memory is free when this returns.
impl Drop for NodeReader {
    fn drop(&mut self) {
        if self.has_ended || self.process != process::id() {
            return;
        }
        self.client.io.set_timeout(CLOSE_TIMEOUT);
        while let Some(id) = self.requested.pop_front() {
            let skipped = match self.client.io.stream_reply(id) {
                Ok(StreamFrame::Block { length }) => self.client.io.read(&mut vec![0; length]),
                Ok(StreamFrame::Reply(_)) => Ok(()),
                Err(error) => Err(error),
            };
            if skipped.is_err_and(|error| !error.is_refusal()) {
                return;
            }
        }
        let _ = ask(&mut self.client, StreamRequest::Close { handle: self.handle });
    }
}
