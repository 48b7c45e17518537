//! The socket underneath a client: whole frames out, whole frames in, each within a time.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_core::Endpoint;
use forebay_identity::{Credentials, in_words};
use forebay_segment::receive;
use forebay_wire::{Frame, GetAnswer, HEADER_SIZE, Header, Placed, Reply};

use crate::{
    ClientError, Result,
    socket::Socket,
    waiting::{SLICE, Waiting},
};

/// A connection that ended, in words of our own: those of TLS send people to a manual.
fn broken(error: io::Error) -> ClientError {
    match error.kind() {
        kind @ io::ErrorKind::UnexpectedEof => {
            io::Error::new(kind, "the other side hung up").into()
        }
        _ => error.into(),
    }
}

/// How a TLS alert begins.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    patience: Duration,
    waiting: Waiting,
    ahead: Ahead,
    /// Something went wrong in the middle of a frame: nothing that follows makes sense.
    spoilt: bool,
}

/// What came together with what was asked for: most often the next header, which costs no read of its own
/// then.
#[derive(Debug, Default)]
struct Ahead {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Long enough for a few headers, short enough that what is copied twice does not matter.
const AHEAD: usize = 256;

impl Ahead {
    fn new() -> Self {
        Self { bytes: vec![0; AHEAD].into(), start: 0, end: 0 }
    }

    /// Takes what there is, as much as there is room for.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.end - self.start);
        into[..count].copy_from_slice(&self.bytes[self.start..self.start + count]);
        self.start += count;
        count
    }
}

/// What comes back for a get.
pub(crate) enum GetReply {
    /// A range, up to its payload, whose length is told: it is for the caller to read.
    Range { index: u32, answer: GetAnswer, length: usize },
    /// Some ranges lie in the segment.
    Placed(Vec<Placed>),
}

impl Stream {
    /// Nothing has been said yet.
    pub fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        patience: Duration,
        waiting: Waiting,
    ) -> Result<Self> {
        let socket = Socket::connect(endpoint, credentials, patience)?;
        Ok(Self { socket, patience, waiting, ahead: Ahead::new(), spoilt: false })
    }

    /// Header, fields and payload leave in one write, where the socket takes it.
    pub fn write(&mut self, frame: &Frame) -> Result<()> {
        self.guarded(|stream| {
            let began = Instant::now();
            let parts: [&[u8]; 2] = [&frame.head, &frame.payload];
            let (mut at, total) = (0, parts[0].len() + parts[1].len());
            while at < total {
                in_time(began, stream.patience)?;
                let from_head = &parts[0][at.min(parts[0].len())..];
                let from_payload = &parts[1][at.saturating_sub(parts[0].len())..];
                let slices = [IoSlice::new(from_head), IoSlice::new(from_payload)];
                match stream.within(stream.patience, |socket| socket.write_vectored(&slices))? {
                    0 => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                    written => at += written,
                }
            }
            stream.within(stream.patience, |socket| socket.flush().map(|()| 0)).map(drop)
        })
    }

    /// The next reply, which has to answer request `id`.
    pub fn reply(&mut self, id: u64) -> Result<Reply> {
        self.guarded(|stream| {
            let header = stream.header(id, Duration::ZERO)?;
            stream.body(&header)
        })
    }

    /// The reply to a request for a segment, and the descriptor beside it. Nothing else is under way, so that
    /// it is not lost with what was read ahead.
    pub fn segment_reply(&mut self, id: u64) -> Result<(Reply, Option<OwnedFd>)> {
        self.guarded(|stream| {
            let mut bytes = [0; HEADER_SIZE];
            let mut descriptor = None;
            let read = stream.within(stream.patience, |socket| match socket {
                Socket::Unix(socket) => {
                    let (read, beside) = receive(socket, &mut bytes)?;
                    descriptor = beside;
                    Ok(read)
                }
                Socket::Tcp(_) | Socket::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
            })?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            stream.fill(&mut bytes[read..], Duration::ZERO)?;
            let header = check(&bytes, id)?;
            Ok((stream.body(&header)?, descriptor))
        })
    }

    /// Whether a descriptor can be passed over it.
    pub fn is_local(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// The next reply to a get. Waiting is the point of some gets, so the patience begins after `wait`.
    pub fn get_reply(&mut self, id: u64, wait: Duration) -> Result<GetReply> {
        const FIELDS: usize = 5;
        self.guarded(|stream| {
            let header = stream.header(id, wait)?;
            if !Reply::is_get(&header) || header.body_size < FIELDS {
                return match stream.body(&header)? {
                    Reply::Placed { places } => Ok(GetReply::Placed(places)),
                    Reply::Error(refusal) => Err(refusal.into()),
                    _ => Err(ClientError::Unexpected),
                };
            }
            let mut fields = [0; FIELDS];
            stream.fill(&mut fields, Duration::ZERO)?;
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

    /// The payload that [`Stream::get_reply`] announced.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.guarded(|stream| stream.fill(bytes, Duration::ZERO))
    }

    /// Does something with less patience: no longer than this, if it is said; others have had the rest.
    pub fn sooner<T>(&mut self, within: Option<Duration>, act: impl FnOnce(&mut Self) -> T) -> T {
        let patience = self.patience;
        let left = within.unwrap_or(patience);
        self.waiting.others = patience.saturating_sub(left);
        // What is there already must have time to be read.
        self.patience = left.clamp(SLICE, patience.max(SLICE));
        let done = act(self);
        (self.patience, self.waiting.others) = (patience, Duration::ZERO);
        done
    }

    /// From now on answers are waited for like this.
    pub fn wait(&mut self, patience: Duration, waiting: Waiting) {
        (self.patience, self.waiting) = (patience, waiting);
    }

    /// The other side has said something that leaves the two out of step.
    pub fn spoilt(&mut self) -> ClientError {
        self.spoilt = true;
        ClientError::Unexpected
    }

    fn header(&mut self, id: u64, wait: Duration) -> Result<Header> {
        let mut bytes = [0; HEADER_SIZE];
        let filled = self.fill(&mut bytes, wait);
        // To those who greet it in the clear, a TLS port sends an alert and is gone.
        if bytes.starts_with(&TLS_ALERT) && matches!(self.socket, Socket::Tcp(_)) {
            return Err(ClientError::Tls(
                "the node there speaks TLS; use tls:// instead of tcp://".to_owned(),
            ));
        }
        filled?;
        check(&bytes, id)
    }

    fn body(&mut self, header: &Header) -> Result<Reply> {
        let mut body = vec![0; header.body_size];
        self.fill(&mut body, Duration::ZERO)?;
        Ok(Reply::decode(header, &body.into())?)
    }

    /// Reads as many bytes as there is room; the first of them may take `wait` longer. What comes with the last
    /// of them is kept for the next.
    fn fill(&mut self, bytes: &mut [u8], wait: Duration) -> Result<()> {
        let (began, all) = (Instant::now(), self.patience + wait);
        let mut at = self.ahead.take(bytes);
        while at < bytes.len() {
            in_time(began, all)?;
            let wait = if at == 0 { wait } else { Duration::ZERO };
            let mut ahead = mem::take(&mut self.ahead);
            let wanted = bytes.len() - at;
            let read = self.within(self.patience + wait, |socket| {
                let mut both =
                    [IoSliceMut::new(&mut bytes[at..]), IoSliceMut::new(&mut ahead.bytes)];
                socket.read_vectored(&mut both)
            });
            if let Ok(read) = read {
                (ahead.start, ahead.end) = (0, read.saturating_sub(wanted));
            }
            self.ahead = ahead;
            match read? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                read => at += read.min(wanted),
            }
        }
        Ok(())
    }

    /// Tries something, slice by slice, until it is done or the time is up.
    fn within(
        &mut self,
        time: Duration,
        mut act: impl FnMut(&mut Socket) -> io::Result<usize>,
    ) -> Result<usize> {
        let mut began = None;
        loop {
            match act(&mut self.socket) {
                Ok(done) => return Ok(done),
                Err(error) if is_a_pause(&error) => {
                    let began: Instant = *began.get_or_insert_with(Instant::now);
                    // The first slice has passed before the clock was looked at.
                    let silent = began.elapsed() + SLICE;
                    if silent >= time {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                    self.waiting.go_on(silent)?;
                }
                Err(error) => {
                    let why = in_words(&error)
                        .or_else(|| self.socket.last_words().and_then(|error| in_words(&error)));
                    return Err(why.map_or_else(|| broken(error), ClientError::Tls));
                }
            }
        }
    }

    /// Runs a step; if it fails other than by a refusal, the connection is of no more use.
    fn guarded<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.spoilt {
            let broken = io::Error::new(io::ErrorKind::NotConnected, "it failed before");
            return Err(ClientError::Broken(broken));
        }
        let outcome = step(self);
        self.spoilt = matches!(&outcome, Err(error) if !error.is_refusal());
        outcome
    }
}

/// Understands a header, which has to answer request `id`.
fn check(bytes: &[u8; HEADER_SIZE], id: u64) -> Result<Header> {
    let header = Header::decode(bytes)?;
    // A refusal of something that could not be read has no id to answer to.
    if header.id != id && header.id != 0 {
        return Err(ClientError::Unexpected);
    }
    Ok(header)
}

/// A single read or write waits no longer than the patience; neither may many that bring a little each.
fn in_time(began: Instant, patience: Duration) -> io::Result<()> {
    if began.elapsed() > patience {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}

/// The end of a slice, or a signal.
fn is_a_pause(error: &io::Error) -> bool {
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

    const PATIENCE: Duration = Duration::from_millis(200);

    /// Promise 5: a node that was stopped accepts nobody, and its queue fills up. Whoever comes then must
    /// not wait for ever.
    #[test]
    fn a_full_queue_is_waited_for_with_patience() {
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
        let refused = Client::connect(&path, "job", PATIENCE).unwrap_err();
        assert!(matches!(refused, ClientError::Connect { .. }), "{refused}");
    }

    /// Promise 5: neither does a byte now and then keep a job waiting.
    #[test]
    fn an_answer_in_drops_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let dripping = thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let header = Header { kind: 0x81, id: 1, body_size: 1 << 20 }.encode();
            let mut drops = header.iter().copied().chain(std::iter::repeat(0)).take(1 << 20);
            // Ends with an error, when the other side has gone.
            drops.all(|drop| {
                thread::sleep(Duration::from_millis(5));
                socket.write_all(&[drop]).is_ok()
            })
        });
        let broken = Client::connect(&path, "job", PATIENCE).unwrap_err();
        assert!(matches!(broken, ClientError::Broken(_)), "{broken}");
        assert!(!dripping.join().unwrap());
    }
}
