//! Connections: frames in, requests to a service, replies out.
//!
//! A node and an agent speak the same wire, so this is all they share: who may connect, the hello, the
//! limits, and a writer that a slow reader holds up without anything growing. What requests mean is for
//! the [`Service`].

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use forebay_wire::{ErrorCode, Frame, HEADER_SIZE, Header, Refusal, Reply, Request, VERSIONS};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::UnixStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

/// Bytes of payload that may wait for one slow reader: two of the largest.
const PAYLOAD_IN_FLIGHT: usize = 32 << 20;
/// Replies that may wait for one slow reader.
const REPLIES_IN_FLIGHT: usize = 256;
/// Gets of one connection that may be under way; the next waits to be read from the socket.
const GETS_IN_FLIGHT: usize = 64;
/// A reader that takes nothing for so long is gone.
const STALLED: Duration = Duration::from_mins(2);
/// Space is taken as bytes arrive, not when they are announced.
const READ_AHEAD: usize = 64 << 10;

/// What requests mean.
pub trait Service: Send + Sync + 'static {
    /// What is kept for a connection.
    type Session: Send;

    /// How long a claim lives without being renewed.
    fn lease(&self) -> Duration;

    /// Somebody has said hello.
    fn connected(self: &Arc<Self>, job: &str) -> Self::Session;

    /// Answers a request; what takes long is answered later, from a task of its own.
    fn handle(
        self: &Arc<Self>,
        session: &mut Self::Session,
        request: Request,
        replies: Replies,
    ) -> impl Future<Output = ()> + Send;

    /// The connection has ended.
    fn gone(self: &Arc<Self>, session: Self::Session) -> impl Future<Output = ()> + Send;
}

/// Where the answers to one request go.
#[derive(Clone)]
pub struct Replies {
    id: u64,
    frames: mpsc::Sender<Outgoing>,
    bytes: Arc<Semaphore>,
    gets: Arc<Semaphore>,
}

struct Outgoing {
    frame: Frame,
    /// Returned when the frame has left.
    _room: Option<OwnedSemaphorePermit>,
}

/// Room for a payload that has not been read yet.
pub struct Room(OwnedSemaphorePermit);

impl Replies {
    /// Sends a reply without a payload. That the other side is gone is noticed elsewhere.
    pub async fn send(&self, reply: &Reply) {
        let outgoing = Outgoing { frame: reply.encode(self.id), _room: None };
        let _ = self.frames.send(outgoing).await;
    }

    /// Refuses the request.
    pub async fn refuse(&self, code: ErrorCode, text: impl Into<String>) {
        self.send(&Reply::Error(Refusal { code, text: text.into() })).await;
    }

    /// Waits until a payload of this length may be brought into memory.
    pub async fn room_for(&self, length: usize) -> Room {
        let permits = u32::try_from(length.clamp(1, PAYLOAD_IN_FLIGHT)).expect("limits fit");
        let room = Arc::clone(&self.bytes).acquire_many_owned(permits).await;
        Room(room.expect("never closed"))
    }

    /// Sends a reply whose payload there was room for.
    pub async fn send_payload(&self, reply: &Reply, room: Room) {
        let outgoing = Outgoing { frame: reply.encode(self.id), _room: Some(room.0) };
        let _ = self.frames.send(outgoing).await;
    }

    /// Waits until another get may be under way; it is, until the permit is dropped.
    pub async fn begin_get(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.gets).acquire_owned().await.expect("never closed")
    }
}

/// A challenge that nobody has seen before; nothing, if the system has no randomness.
pub fn fresh_nonce() -> Option<[u8; 32]> {
    let mut nonce = [0; 32];
    let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    (filled == Ok(nonce.len())).then_some(nonce)
}

/// Serves one connection until it ends.
pub async fn serve<S: Service>(service: Arc<S>, socket: UnixStream) -> io::Result<()> {
    let (mut reader, writer) = socket.into_split();
    let (frames, outgoing) = mpsc::channel(REPLIES_IN_FLIGHT);
    let writer = tokio::spawn(write(outgoing, writer));
    let bytes = Arc::new(Semaphore::new(PAYLOAD_IN_FLIGHT));
    let gets = Arc::new(Semaphore::new(GETS_IN_FLIGHT));
    let replies = |id| Replies {
        id,
        frames: frames.clone(),
        bytes: Arc::clone(&bytes),
        gets: Arc::clone(&gets),
    };

    let mut session = None;
    let outcome = loop {
        let (header, body) = match read_frame(&mut reader).await {
            Ok(Incoming::Frame(header, body)) => (header, body),
            Ok(Incoming::End) => break Ok(()),
            Ok(Incoming::Nonsense(header_id, problem)) => {
                replies(header_id).refuse(ErrorCode::Malformed, problem.to_string()).await;
                break Ok(());
            }
            Err(error) => break Err(error),
        };
        let replies = replies(header.id);
        let request = match Request::decode(&header, &body) {
            Ok(request) => request,
            Err(problem) => {
                replies.refuse(ErrorCode::Malformed, problem.to_string()).await;
                break Ok(());
            }
        };
        match (&mut session, request) {
            (None, Request::Hello { version_min, version_max, job }) => {
                let (oldest, newest) = VERSIONS;
                if version_min > newest || version_max < oldest {
                    let text = format!(
                        "you speak versions {version_min} to {version_max}, this node {oldest} to \
                         {newest}; install the same forebay on both sides"
                    );
                    replies.refuse(ErrorCode::Version, text).await;
                    break Ok(());
                }
                session = Some(service.connected(&job));
                let lease_ms = u32::try_from(service.lease().as_millis()).unwrap_or(u32::MAX);
                replies.send(&Reply::Hello { version: newest.min(version_max), lease_ms }).await;
            }
            (Some(session), request) if !matches!(request, Request::Hello { .. }) => {
                service.handle(session, request, replies).await;
            }
            (_, _) => {
                let text = "a connection begins with hello, and says it once";
                replies.refuse(ErrorCode::Malformed, text).await;
                break Ok(());
            }
        }
    };
    if let Some(session) = session {
        service.gone(session).await;
    }
    // Replies under way keep the channel open; the writer ends when the last of them has left.
    drop(frames);
    let _ = writer.await;
    outcome
}

enum Incoming {
    Frame(Header, Bytes),
    End,
    Nonsense(u64, forebay_wire::Malformed),
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Incoming> {
    let mut header = [0; HEADER_SIZE];
    // A connection that ends between frames has simply ended.
    if reader.read(&mut header[..1]).await? == 0 {
        return Ok(Incoming::End);
    }
    reader.read_exact(&mut header[1..]).await?;
    let header = match Header::decode(&header) {
        Ok(header) => header,
        Err(problem) => return Ok(Incoming::Nonsense(0, problem)),
    };
    let mut body = BytesMut::with_capacity(header.body_size.min(READ_AHEAD));
    let mut rest = reader.take(header.body_size as u64);
    while body.len() < header.body_size {
        if rest.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Incoming::Frame(header, body.freeze()))
}

async fn write(mut outgoing: mpsc::Receiver<Outgoing>, mut writer: impl AsyncWrite + Unpin) {
    while let Some(Outgoing { frame, _room }) = outgoing.recv().await {
        let mut both = bytes::Buf::chain(&frame.head[..], &frame.payload[..]);
        match timeout(STALLED, writer.write_all_buf(&mut both)).await {
            Ok(Ok(())) => {}
            // Gone, or as good as: those who still want to send find the channel closed.
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
