//! Frame I/O: whole frames out and in over a socket, each within a timeout.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_auth::{Credentials, in_words};
use forebay_core::{Endpoint, cluster::backoff::Failure};
use forebay_shm::receive_with_fd;
use forebay_wire::{Frame, GetAnswer, HEADER_SIZE, Header, Reply, ShmRange, StreamReply};

use crate::{
    ClientEnvironment, ClientError, Result,
    socket::Socket,
    wait::{SLICE, WaitPolicy},
};

/// Replaces the text of an unexpected end, which for TLS refers to a manual.
fn broken(error: io::Error) -> ClientError {
    match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => {
            io::Error::new(kind, "the server closed the connection").into()
        }
        _ => error.into(),
    }
}

/// The first bytes of a TLS alert.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];
/// Shortest slice, for bytes that have arrived already.
const SLICE_MIN: Duration = Duration::from_millis(1);

/// Whether these first bytes of a reply show that the server requires TLS: it answers cleartext
/// with an alert and closes the connection.
pub(crate) fn is_tls_required(socket: &Socket, bytes: &[u8]) -> bool {
    bytes.starts_with(&TLS_ALERT) && matches!(socket, Socket::Tcp(_))
}

/// The error of an operation on a socket.
pub(crate) fn failed(socket: &mut Socket, error: io::Error) -> ClientError {
    let why = in_words(&error).or_else(|| socket.tls_alert().and_then(|error| in_words(&error)));
    why.map_or_else(|| broken(error), ClientError::Tls)
}

/// A reply about streams.
#[derive(Debug)]
pub(crate) enum StreamFrame {
    /// A block of this length follows.
    Block { length: usize },
    /// Another reply.
    Reply(Reply),
}

/// A socket that carries frames.
#[derive(Debug)]
pub(crate) struct FrameIo {
    socket: Socket,
    environment: Arc<dyn ClientEnvironment>,
    timeout: Duration,
    /// How long the socket blocks at a time.
    slice: Duration,
    policy: WaitPolicy,
    read_ahead: ReadAhead,
    /// A frame was interrupted: what follows cannot be decoded.
    is_broken: bool,
}

/// Bytes that arrived together with the requested ones, most often the next header, which then
/// costs no read of its own.
#[derive(Debug, Default)]
struct ReadAhead {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Enough for a few headers; little enough that copying it twice does not matter.
const READ_AHEAD_SIZE: usize = 256;

impl ReadAhead {
    fn new() -> Self {
        Self { bytes: vec![0; READ_AHEAD_SIZE].into(), start: 0, end: 0 }
    }

    /// Moves bytes into `into`. Returns their number.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.end - self.start);
        into[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        count
    }
}

/// A reply to a get.
pub(crate) enum GetReply {
    /// The fields of one range. The caller reads its payload of `length` bytes.
    Range { index: u32, answer: GetAnswer, length: usize },
    /// Ranges in the shm region.
    GetShm(Vec<ShmRange>),
}

impl FrameIo {
    /// Connects. No frame is sent yet.
    pub fn connect(
        environment: &Arc<dyn ClientEnvironment>,
        endpoint: &Endpoint,
        credentials: &Credentials,
        timeout: Duration,
        policy: WaitPolicy,
    ) -> Result<Self> {
        let socket = Socket::connect(&**environment, endpoint, credentials, timeout)?;
        let mut io = Self::new(environment, socket);
        io.set_policy(timeout, policy);
        Ok(io)
    }

    /// A connected socket that blocks for one [`SLICE`].
    pub fn new(environment: &Arc<dyn ClientEnvironment>, socket: Socket) -> Self {
        Self {
            socket,
            environment: Arc::clone(environment),
            timeout: SLICE,
            slice: SLICE,
            policy: WaitPolicy::default(),
            read_ahead: ReadAhead::new(),
            is_broken: false,
        }
    }

    /// Writes a frame: header, fields and payload in one call, where the socket allows it.
    pub fn write(&mut self, frame: &Frame) -> Result<()> {
        self.guarded(|io| {
            let mut progress = io.progress();
            let parts: [&[u8]; 2] = [&frame.head, &frame.payload];
            let (mut at, total) = (0, parts[0].len() + parts[1].len());
            while at < total {
                let from_head = &parts[0][at.min(parts[0].len())..];
                let from_payload = &parts[1][at.saturating_sub(parts[0].len())..];
                let slices = [IoSlice::new(from_head), IoSlice::new(from_payload)];
                let timeout = io.timeout;
                match io.within(&mut progress, timeout, |socket| socket.write_vectored(&slices))? {
                    0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    written => at += written,
                }
            }
            let timeout = io.timeout;
            io.within(&mut progress, timeout, |socket| socket.flush().map(|()| 0)).map(drop)
        })
    }

    /// The next reply, which has to answer request `id`.
    pub fn reply(&mut self, id: u64) -> Result<Reply> {
        self.guarded(|io| {
            let header = io.header(id, Duration::ZERO)?;
            io.body(&header)
        })
    }

    /// The reply to a request for a shm region, and the file descriptor beside it. No other request
    /// may be pending: a read-ahead would lose the descriptor.
    pub fn shm_reply(&mut self, id: u64) -> Result<(Reply, Option<OwnedFd>)> {
        self.guarded(|io| {
            let mut bytes = [0; HEADER_SIZE];
            let mut descriptor = None;
            let timeout = io.timeout;
            let read = io.within(&mut io.progress(), timeout, |socket| match socket {
                Socket::Unix(socket) => {
                    let (read, beside) = receive_with_fd(socket, &mut bytes)?;
                    descriptor = beside;
                    Ok(read)
                }
                Socket::Tcp(_) | Socket::Tls(_) | Socket::Stream(_) => {
                    Err(io::ErrorKind::Unsupported.into())
                }
            })?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            io.fill(&mut bytes[read..], Duration::ZERO)?;
            let header = check(&bytes, id)?;
            Ok((io.body(&header)?, descriptor))
        })
    }

    /// Whether the socket can pass a file descriptor.
    pub fn is_local(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// The next reply to a get. The node was asked to wait up to `wait`, so the timeout begins
    /// after it.
    pub fn get_reply(&mut self, id: u64, wait: Duration) -> Result<GetReply> {
        const FIELDS: usize = 5;
        self.guarded(|io| {
            let header = io.header(id, wait)?;
            if !Reply::is_get(&header) || header.body_size < FIELDS {
                return match io.body(&header)? {
                    Reply::GetShm { ranges } => Ok(GetReply::GetShm(ranges)),
                    Reply::Error(refusal) => Err(refusal.into()),
                    _ => Err(ClientError::Unexpected),
                };
            }
            let mut fields = [0; FIELDS];
            io.fill(&mut fields, Duration::ZERO)?;
            let fields = Bytes::copy_from_slice(&fields);
            let without_payload = Header { body_size: FIELDS, ..header };
            match Reply::decode(&without_payload, &fields)? {
                Reply::Get { index, answer, .. } => {
                    Ok(GetReply::Range { index, answer, length: header.body_size - FIELDS })
                }
                _ => Err(ClientError::Unexpected),
            }
        })
    }

    /// The reply to a request about streams. The payload of a block is left to be read.
    pub fn stream_reply(&mut self, id: u64) -> Result<StreamFrame> {
        const FIELDS: usize = StreamReply::BLOCK_FIELDS;
        self.guarded(|io| {
            let header = io.header(id, Duration::ZERO)?;
            if !Reply::is_stream(&header) || header.body_size < FIELDS {
                return io.body(&header).map(StreamFrame::Reply);
            }
            let mut body = vec![0; FIELDS];
            io.fill(&mut body, Duration::ZERO)?;
            if StreamReply::is_block(&body) {
                return Ok(StreamFrame::Block { length: header.body_size - FIELDS });
            }
            body.resize(header.body_size, 0);
            io.fill(&mut body[FIELDS..], Duration::ZERO)?;
            Ok(StreamFrame::Reply(Reply::decode(&header, &body.into())?))
        })
    }

    /// Reads the payload that [`FrameIo::get_reply`] or [`FrameIo::stream_reply`] announced.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.guarded(|io| io.fill(bytes, Duration::ZERO))
    }

    /// Runs `act` with a shorter timeout, if one is given: other nodes have used the rest. Bytes
    /// that have arrived already are read in any case.
    pub fn with_timeout<T>(
        &mut self,
        shorter: Option<Duration>,
        act: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let timeout = self.timeout;
        self.timeout = shorter.unwrap_or(timeout).clamp(SLICE_MIN, timeout.max(SLICE_MIN));
        let is_short = self.timeout < SLICE;
        if is_short {
            self.set_slice(self.timeout)?;
        }
        let done = act(self);
        self.timeout = timeout;
        if is_short {
            self.set_slice(SLICE)?;
        }
        done
    }

    fn set_slice(&mut self, slice: Duration) -> Result<()> {
        self.slice = slice;
        Ok(self.socket.set_slice(slice)?)
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        self.environment.now()
    }

    fn progress(&self) -> Progress {
        Progress { began: self.now(), checked: Duration::ZERO }
    }

    /// The time that a reply may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes the time that later replies may take.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Other peers that did not answer a ping since the last call.
    pub fn take_failed_peers(&mut self) -> Vec<(Endpoint, Failure)> {
        self.policy.take_failed()
    }

    /// Changes how later replies are waited for.
    pub fn set_policy(&mut self, timeout: Duration, policy: WaitPolicy) {
        (self.timeout, self.policy) = (timeout, policy);
    }

    /// Marks the connection as broken, after a reply that does not match its request.
    pub fn mark_broken(&mut self) -> ClientError {
        self.is_broken = true;
        ClientError::Unexpected
    }

    fn header(&mut self, id: u64, wait: Duration) -> Result<Header> {
        let mut bytes = [0; HEADER_SIZE];
        let filled = self.fill(&mut bytes, wait);
        if is_tls_required(&self.socket, &bytes) {
            return Err(ClientError::tls_required());
        }
        filled?;
        check(&bytes, id)
    }

    fn body(&mut self, header: &Header) -> Result<Reply> {
        let mut body = vec![0; header.body_size];
        self.fill(&mut body, Duration::ZERO)?;
        Ok(Reply::decode(header, &body.into())?)
    }

    /// Fills `bytes`. The first byte may take `wait` longer than the timeout. Bytes that arrive
    /// after the last one are kept for the next call.
    fn fill(&mut self, bytes: &mut [u8], wait: Duration) -> Result<()> {
        let (mut progress, all) = (self.progress(), self.timeout + wait);
        let mut at = self.read_ahead.take(bytes);
        while at < bytes.len() {
            let mut ahead = mem::take(&mut self.read_ahead);
            let wanted = bytes.len() - at;
            let read = self.within(&mut progress, all, |socket| {
                let mut both =
                    [IoSliceMut::new(&mut bytes[at..]), IoSliceMut::new(&mut ahead.bytes)];
                socket.read_vectored(&mut both)
            });
            if let Ok(read) = read {
                (ahead.start, ahead.end) = (0, read.saturating_sub(wanted));
            }
            self.read_ahead = ahead;
            match read? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => at += read.min(wanted),
            }
        }
        Ok(())
    }

    /// Repeats `act` after each slice until it succeeds or `time` is over. A peer that sends a byte
    /// now and then makes no progress: its silence lasts until the step is complete.
    fn within(
        &mut self,
        progress: &mut Progress,
        time: Duration,
        mut act: impl FnMut(&mut Socket) -> io::Result<usize>,
    ) -> Result<usize> {
        loop {
            let outcome = act(&mut self.socket);
            let is_slice_over = outcome.as_ref().is_err_and(is_slice_end);
            if let Some(silence) = progress.silence(self.now(), is_slice_over) {
                if silence >= time {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                self.policy.on_slice(silence)?;
            }
            match outcome {
                Ok(done) => return Ok(done),
                Err(_) if is_slice_over => {}
                Err(error) => return Err(failed(&mut self.socket, error)),
            }
        }
    }

    /// Runs a step. A failure other than a refusal breaks the connection.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.is_broken {
            let broken = io::Error::new(io::ErrorKind::NotConnected, "an earlier request failed");
            return Err(ClientError::Broken(broken));
        }
        let outcome = step(self);
        self.is_broken = matches!(&outcome, Err(error) if !error.is_refusal());
        outcome
    }
}

/// Decodes a header, which must reply to request `id`.
pub(crate) fn check(bytes: &[u8; HEADER_SIZE], id: u64) -> Result<Header> {
    let header = Header::decode(bytes)?;
    // The refusal of a frame that could not be decoded has id 0.
    if header.id != id && header.id != 0 {
        return Err(ClientError::Unexpected);
    }
    Ok(header)
}

/// The time that one step takes: a frame to be written, or some bytes to be read.
struct Progress {
    began: Instant,
    /// When the silence was last looked at.
    checked: Duration,
}

impl Progress {
    /// How long the step takes already, once in each slice.
    fn silence(&mut self, now: Instant, is_slice_over: bool) -> Option<Duration> {
        let silence = now.saturating_duration_since(self.began);
        let is_due = is_slice_over || silence >= self.checked + SLICE;
        is_due.then(|| {
            self.checked = silence;
            silence
        })
    }
}

/// Whether a call ended with its slice, or by a signal.
fn is_slice_end(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket,
        socket_with,
    };

    use super::*;
    use crate::Client;

    const TIMEOUT: Duration = Duration::from_millis(200);

    /// Promise 5: a stopped node accepts no connection, and its queue fills up. The next connect
    /// must not block for ever.
    #[test]
    fn connecting_to_a_full_queue_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let address = SocketAddrUnix::new(&path).unwrap();
        let stopped = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&stopped, &address).unwrap();
        listen(&stopped, 1).unwrap();
        let mut queued = Vec::new();
        loop {
            let flags = SocketFlags::NONBLOCK;
            let next = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            let outcome = connect(&next, &address);
            queued.push(next);
            if outcome.is_err() {
                break;
            }
        }
        let refused = Client::connect(&path, "job", TIMEOUT).unwrap_err();
        assert!(matches!(refused, ClientError::Connect { .. }), "{refused}");
    }

    /// Promise 5: a node that sends a byte now and then does not hold up a job.
    #[test]
    fn a_reply_that_arrives_byte_by_byte_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let sender = thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let header = Header { kind: 0x81, id: 1, body_size: 1 << 20 }.encode();
            let mut bytes = header.iter().copied().chain(std::iter::repeat(0)).take(1 << 20);
            // Ends with an error when the client has closed.
            bytes.all(|byte| {
                thread::sleep(Duration::from_millis(5));
                socket.write_all(&[byte]).is_ok()
            })
        });
        let broken = Client::connect(&path, "job", TIMEOUT).unwrap_err();
        assert!(matches!(broken, ClientError::Broken(_)), "{broken}");
        assert!(!sender.join().unwrap());
    }
}
