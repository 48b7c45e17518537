//! Greetings: connections that are opened without blocking, several at once.
//!
//! A greeting connects, sends hello and asks for the list of nodes. That much is a ping. Then it
//! opens the subject of the job, if there is one. Each step happens when `poll(2)` reports that the
//! socket is ready, so that one thread greets 64 nodes in the time that the slowest takes, and all
//! hung nodes together cost one timeout (promise 5).

use std::{
    io::{self, Read as _, Write as _},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_auth::Credentials;
use forebay_core::{
    Endpoint, NamespaceId,
    cluster::{liveness::PING_TIMEOUT, ring::RingMembership},
};
use forebay_digest::Digest;
use forebay_wire::{HEADER_SIZE, Reply, Request};

use crate::{
    Client, ClientEnvironment, ClientError, Handle, Interrupt, Next, Opening, Result,
    frame_io::{FrameIo, check, failed, is_tls_required},
    handshake::{Welcome, greeted, hello},
    poll::{SocketWait, wait_any},
    socket::{Connecting, Socket},
    wait::SLICE,
};

/// Bytes that are read at once. Replies to greetings are short.
const READ_SIZE: usize = 4096;
/// Time that each request after the list adds to the deadline: the pages of a blob table have a
/// megabyte.
const PAGE_TIME: Duration = Duration::from_millis(200);

/// What a connection opens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A dataset.
    Dataset(&'a Digest),
    /// Blobs of a namespace, selected by address.
    BlobsByAddress(NamespaceId),
}

/// The context of greetings: where, as which job, and what to open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GreetingContext<'a> {
    pub environment: &'a Arc<dyn ClientEnvironment>,
    pub job: &'a str,
    pub credentials: &'a Credentials,
    /// Nothing is opened without a subject: the greeting is a ping.
    pub subject: Option<Subject<'a>>,
    /// Time for opening the subject.
    pub open_timeout: Duration,
}

impl<'a> GreetingContext<'a> {
    pub fn ping(environment: &'a Arc<dyn ClientEnvironment>, credentials: &'a Credentials) -> Self {
        let (subject, open_timeout) = (None, Duration::ZERO);
        Self { environment, job: "", credentials, subject, open_timeout }
    }
}

/// A greeted node.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub client: Client,
    /// The handle of the subject; 0 for a ping.
    pub handle: Handle,
    /// The node's name and list; `None` if it is not part of a cluster.
    pub membership: Option<RingMembership>,
}

/// A connection that is being opened.
#[derive(Debug)]
struct Greeting<'a> {
    endpoint: &'a Endpoint,
    context: GreetingContext<'a>,
    began: Instant,
    connecting: Option<Connecting>,
    socket: Option<Socket>,
    transfer: Transfer,
    awaiting: Awaiting<'a>,
    welcome: Welcome,
    membership: Option<RingMembership>,
    /// Requests after the one for the list.
    requests: u32,
}

/// The request whose reply comes next.
#[derive(Debug)]
enum Awaiting<'a> {
    Hello,
    Ring,
    Opening(Box<Opening<'a>>),
    Select,
}

/// One request on its way out, and its reply on its way in.
#[derive(Debug, Default)]
struct Transfer {
    id: u64,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
}

impl Transfer {
    fn begin(&mut self, request: &Request) {
        self.id += 1;
        (self.output, self.sent) = (request.encode(self.id).to_bytes(), 0);
        self.input.clear();
    }

    /// Sends and receives what is possible without blocking. Returns the reply when it is whole.
    fn advance(&mut self, socket: &mut Socket) -> Result<Option<Reply>> {
        match self.try_advance(socket) {
            Ok(reply) => reply.map(Some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(_) if is_tls_required(socket, &self.input) => Err(ClientError::tls_required()),
            Err(error) => Err(failed(socket, error)),
        }
    }

    fn try_advance(&mut self, socket: &mut Socket) -> io::Result<Result<Reply>> {
        while self.sent < self.output.len() {
            match socket.write(&self.output[self.sent..])? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => self.sent += sent,
            }
        }
        socket.flush()?;
        let mut buffer = [0; READ_SIZE];
        loop {
            if let Some(bytes) = self.input.first_chunk::<HEADER_SIZE>() {
                let header = match check(bytes, self.id) {
                    Ok(header) => header,
                    Err(_) if is_tls_required(socket, &self.input) => {
                        return Ok(Err(ClientError::tls_required()));
                    }
                    Err(error) => return Ok(Err(error)),
                };
                let size = HEADER_SIZE + header.body_size;
                if self.input.len() > size {
                    return Ok(Err(ClientError::Unexpected));
                }
                if self.input.len() == size {
                    let body = self.input.split_off(HEADER_SIZE);
                    return Ok(Reply::decode(&header, &body.into()).map_err(Into::into));
                }
            }
            match socket.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.input.extend_from_slice(&buffer[..read]),
            }
        }
    }
}

impl<'a> Greeting<'a> {
    fn new(endpoint: &'a Endpoint, context: GreetingContext<'a>, began: Instant) -> Self {
        Self {
            endpoint,
            context,
            began,
            connecting: None,
            socket: None,
            transfer: Transfer::default(),
            awaiting: Awaiting::Hello,
            welcome: Welcome::default(),
            membership: None,
            requests: 0,
        }
    }

    /// Time after which it has failed. Hello and the list take [`PING_TIMEOUT`] together.
    fn timeout(&self) -> Duration {
        match self.awaiting {
            Awaiting::Hello | Awaiting::Ring => PING_TIMEOUT,
            Awaiting::Opening(_) | Awaiting::Select => {
                PING_TIMEOUT + self.context.open_timeout + PAGE_TIME * self.requests.min(1 << 16)
            }
        }
    }

    /// What to wait for. `None` if only time helps.
    fn wait(&self) -> Option<SocketWait<'_>> {
        match (&self.socket, &self.connecting) {
            (Some(socket), _) => Some(socket.wait(self.transfer.sent < self.transfer.output.len())),
            (None, Some(connecting)) => connecting.wait(),
            (None, None) => None,
        }
    }

    /// Goes on as far as possible without blocking. Returns the node when it is greeted.
    fn advance(&mut self, now: Instant) -> Result<Option<Greeted>> {
        match self.try_advance() {
            Ok(None) if now.saturating_duration_since(self.began) >= self.timeout() => {
                Err(io::Error::from(io::ErrorKind::TimedOut).into())
            }
            outcome => outcome,
        }
    }

    fn try_advance(&mut self) -> Result<Option<Greeted>> {
        if self.socket.is_none() {
            let connecting = match &mut self.connecting {
                Some(connecting) => connecting,
                None => self.connecting.insert(self.context.environment.connect(self.endpoint)?),
            };
            let Some(socket) = connecting.advance(self.context.credentials)? else {
                return Ok(None);
            };
            self.socket = Some(socket);
            self.transfer.begin(&hello(self.context.job, self.context.credentials));
        }
        let socket = self.socket.as_mut().expect("it is connected");
        while let Some(reply) = self.transfer.advance(socket)? {
            let request = match (&mut self.awaiting, reply) {
                (_, Reply::Error(refusal)) => return Err(refusal.into()),
                (Awaiting::Hello, reply) => {
                    self.welcome = greeted(reply)?;
                    self.awaiting = Awaiting::Ring;
                    Request::Ring
                }
                (Awaiting::Ring, Reply::Ring(membership)) => {
                    self.membership = membership;
                    match self.context.subject {
                        None => return self.finish(Handle(0)).map(Some),
                        Some(Subject::Dataset(digest)) => {
                            let (opening, request) = Opening::begin(digest)?;
                            self.awaiting = Awaiting::Opening(Box::new(opening));
                            request
                        }
                        Some(Subject::BlobsByAddress(namespace)) => {
                            self.awaiting = Awaiting::Select;
                            Request::SelectByAddress { namespace, blobs: Vec::new() }
                        }
                    }
                }
                (Awaiting::Opening(opening), reply) => match opening.reply(reply)? {
                    Next::Ask(request) => request,
                    Next::Open(handle) => return self.finish(handle).map(Some),
                },
                (Awaiting::Select, Reply::Open { handle }) => {
                    return self.finish(Handle(handle)).map(Some);
                }
                _ => return Err(ClientError::Unexpected),
            };
            self.requests += u32::from(!matches!(self.awaiting, Awaiting::Hello | Awaiting::Ring));
            self.transfer.begin(&request);
        }
        Ok(None)
    }

    fn finish(&mut self, handle: Handle) -> Result<Greeted> {
        let socket = self.socket.take().expect("it is connected");
        let io = FrameIo::new(self.context.environment, socket.into_blocking()?);
        let client = Client::greeted(io, self.transfer.id, self.welcome)?;
        Ok(Greeted { client, handle, membership: self.membership.take() })
    }
}

/// Which greetings a caller needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needed {
    /// All of them.
    All,
    /// The first that succeeds. The first endpoint has a lead of [`LEAD`] before the others.
    Any,
}

/// Lead of the first endpoint, which most often answers: the others are not connected then.
const LEAD: Duration = SLICE;

/// Greets nodes, all at once. The results are in the order of the endpoints; `None` for greetings
/// that were not needed any more.
pub(crate) fn greet_all(
    endpoints: &[&Endpoint],
    context: GreetingContext<'_>,
    needed: Needed,
    interrupt: &Interrupt,
) -> Result<Vec<Option<Result<Greeted>>>> {
    let mut results: Vec<Option<Result<Greeted>>> = endpoints.iter().map(|_| None).collect();
    let mut running: Vec<(usize, Greeting<'_>)> = Vec::new();
    let environment = &**context.environment;
    let (start, mut next) = (environment.now(), 0);
    let mut checked_at = start;
    loop {
        let now = environment.now();
        let may_begin = match needed {
            Needed::Any if now.duration_since(start) < LEAD && !running.is_empty() => next,
            Needed::Any if next == 0 => 1,
            _ => endpoints.len(),
        };
        while next < may_begin.min(endpoints.len()) {
            running.push((next, Greeting::new(endpoints[next], context, now)));
            next += 1;
        }
        for (at, mut greeting) in mem::take(&mut running) {
            match greeting.advance(environment.now()).transpose() {
                Some(result) => results[at] = Some(result),
                None => running.push((at, greeting)),
            }
        }
        let is_done = running.is_empty() && next == endpoints.len();
        let has_one = results.iter().flatten().any(Result::is_ok);
        if is_done || needed == Needed::Any && has_one {
            return Ok(results);
        }
        let now = environment.now();
        if now.duration_since(checked_at) >= SLICE {
            interrupt.check()?;
            checked_at = now;
        }
        if !running.is_empty() {
            let waits = running.iter().map(|(_, greeting)| greeting.wait());
            wait_any(environment, waits, SLICE)?;
        }
    }
}

/// Pings peers, all at once. Returns those that did not answer, by index. A refusal is an answer.
pub(crate) fn ping_all(
    environment: &Arc<dyn ClientEnvironment>,
    endpoints: &[Endpoint],
    credentials: &Credentials,
    interrupt: &Interrupt,
) -> Result<Vec<(usize, ClientError)>> {
    let endpoints: Vec<&Endpoint> = endpoints.iter().collect();
    let context = GreetingContext::ping(environment, credentials);
    let results = greet_all(&endpoints, context, Needed::All, interrupt)?;
    let error = |result: Option<Result<Greeted>>| result.and_then(Result::err);
    let failed = results.into_iter().enumerate().filter_map(|(at, result)| {
        let error = error(result).filter(|error| !error.is_refusal())?;
        Some((at, error))
    });
    Ok(failed.collect())
}
