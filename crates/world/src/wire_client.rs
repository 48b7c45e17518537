//! Wire client: one connection of a simulated process, one request at a time.
//!
//! It uses the codec of `forebay-wire` and the handshake of `forebay-client`. It checks what every
//! client relies on: each range of a get is answered exactly once.

use std::{io, time::Duration};

use bytes::Bytes;
use forebay_auth::Credentials;
use forebay_client::{Next, Opening, greeted, hello};
use forebay_core::{BlobOrdinal, node::presence::KnownPresence};
use forebay_digest::Digest;
use forebay_wire::{
    BlobRange, ClaimAnswer, GetAnswer, HEADER_SIZE, Header, Refusal, Reply, Request,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    time::timeout,
};

use crate::pipe::{PipeReader, PipeWriter};

/// Why a call failed.
#[derive(Debug)]
pub enum CallError {
    /// The connection has ended.
    Broken,
    /// There was no answer in time.
    Silent,
    /// The server refused.
    Refused(Refusal),
    /// The answer breaks the protocol.
    Malformed(String),
}

impl From<io::Error> for CallError {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// The result of a call.
pub type Called<T> = Result<T, CallError>;

/// A connection.
pub struct WireClient {
    reader: BufReader<PipeReader>,
    writer: PipeWriter,
    next_id: u64,
}

impl WireClient {
    /// A connection over this stream.
    pub fn new((reader, writer): (PipeReader, PipeWriter)) -> Self {
        Self { reader: BufReader::new(reader), writer, next_id: 0 }
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Called<()> {
        Ok(self.writer.write_all(bytes).await?)
    }

    /// Sends a request, and returns its id.
    pub async fn send(&mut self, request: &Request) -> Called<u64> {
        self.next_id += 1;
        let frame = request.encode(self.next_id);
        self.send_bytes(&frame.to_bytes()).await?;
        Ok(self.next_id)
    }

    /// Ends the direction of requests.
    pub async fn half_close(&mut self) -> Called<()> {
        Ok(self.writer.shutdown().await?)
    }

    /// The next reply, and the id of its request.
    pub async fn reply(&mut self) -> Called<(u64, Reply)> {
        let mut header = [0; HEADER_SIZE];
        self.reader.read_exact(&mut header).await?;
        let malformed = |problem| CallError::Malformed(format!("{problem:?}"));
        let header = Header::decode(&header).map_err(malformed)?;
        let mut body = vec![0; header.body_size];
        self.reader.read_exact(&mut body).await?;
        Ok((header.id, Reply::decode(&header, &body.into()).map_err(malformed)?))
    }

    /// Reads this number of bytes, slowly.
    pub async fn read_some(&mut self, length: usize) -> Called<usize> {
        let mut bytes = vec![0; length];
        Ok(self.reader.read(&mut bytes).await?)
    }

    /// Sends a request and receives its reply. A refusal is an error.
    pub async fn call(&mut self, request: &Request, within: Duration) -> Called<Reply> {
        let call = async {
            let sent = self.send(request).await?;
            loop {
                match self.reply().await? {
                    (id, Reply::Error(refusal)) if id == sent || id == 0 => {
                        return Err(CallError::Refused(refusal));
                    }
                    (id, reply) if id == sent => return Ok(reply),
                    // Of an earlier request that was given up.
                    _ => {}
                }
            }
        };
        timeout(within, call).await.unwrap_or(Err(CallError::Silent))
    }

    /// Sends a hello. Returns the lease of claims.
    pub async fn hello(
        &mut self,
        job: &str,
        credentials: &Credentials,
        within: Duration,
    ) -> Called<Duration> {
        let reply = self.call(&hello(job, credentials), within).await?;
        let welcome = greeted(reply).map_err(|error| CallError::Malformed(error.to_string()))?;
        Ok(welcome.lease)
    }

    /// Opens a dataset.
    pub async fn open(&mut self, digest: &Digest, within: Duration) -> Called<u32> {
        let malformed = |error: forebay_client::OpenError| CallError::Malformed(error.to_string());
        let (mut opening, mut request) = Opening::begin(digest).map_err(malformed)?;
        loop {
            let reply = self.call(&request, within).await?;
            match opening.reply(reply).map_err(malformed)? {
                Next::Ask(next) => request = next,
                Next::Open(handle) => return Ok(handle.0),
            }
        }
    }

    /// Reads ranges. The answers are in the order of the ranges.
    pub async fn get(
        &mut self,
        handle: u32,
        wait: Duration,
        ranges: &[BlobRange],
        within: Duration,
    ) -> Called<Vec<(GetAnswer, Bytes)>> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
        let request = Request::Get { handle, wait_ms, ranges: ranges.to_vec() };
        let get = async {
            let sent = self.send(&request).await?;
            let mut answers: Vec<Option<(GetAnswer, Bytes)>> = vec![None; ranges.len()];
            while answers.iter().any(Option::is_none) {
                let (id, reply) = self.reply().await?;
                match reply {
                    Reply::Error(refusal) if id == sent || id == 0 => {
                        return Err(CallError::Refused(refusal));
                    }
                    Reply::Get { index, answer, payload } if id == sent => {
                        let Some(slot) = answers.get_mut(index as usize) else {
                            let text = format!("an answer to range {index} of {}", ranges.len());
                            return Err(CallError::Malformed(text));
                        };
                        if slot.replace((answer, payload)).is_some() {
                            let text = format!("range {index} is answered twice");
                            return Err(CallError::Malformed(text));
                        }
                    }
                    _ if id == sent => {
                        return Err(CallError::Malformed("not an answer to a get".to_owned()));
                    }
                    _ => {}
                }
            }
            Ok(answers.into_iter().flatten().collect())
        };
        timeout(within, get).await.unwrap_or(Err(CallError::Silent))
    }

    /// Which blobs are resident.
    pub async fn presence(
        &mut self,
        handle: u32,
        blobs: u64,
        within: Duration,
    ) -> Called<Vec<BlobOrdinal>> {
        let count = u32::try_from(blobs).expect("datasets are small");
        let request = Request::Presence { handle, first: 0, count, since: 0 };
        let Reply::Presence { version, update } = self.call(&request, within).await? else {
            return Err(CallError::Malformed("not a presence".to_owned()));
        };
        let mut known = KnownPresence::new(count);
        let applied = known.apply(version, &update);
        applied.map_err(|_| CallError::Malformed("an invalid presence".to_owned()))?;
        let is_resident = |at: &u64| {
            let byte = known.bits()[usize::try_from(at / 8).expect("datasets are small")];
            byte >> (at % 8) & 1 == 1
        };
        Ok((0..blobs).filter(is_resident).map(BlobOrdinal::new).collect())
    }

    /// Claims a blob.
    pub async fn claim(
        &mut self,
        handle: u32,
        blob: BlobOrdinal,
        within: Duration,
    ) -> Called<ClaimAnswer> {
        match self.call(&Request::Claim { handle, blobs: vec![blob] }, within).await? {
            Reply::Claim { answers } if answers.len() == 1 => Ok(answers[0]),
            _ => Err(CallError::Malformed("not an answer to a claim".to_owned())),
        }
    }
}
