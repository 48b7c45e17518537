//! Sockets: Unix, TCP on this machine, TLS, or a stream of another environment. Connecting does not
//! block. Then reads and writes block for one [`SLICE`] at most.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
    vec,
};

use forebay_auth::Credentials;
use forebay_core::Endpoint;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt},
};
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{
    ClientEnvironment, ClientError, ClientStream, Result,
    poll::{SocketWait, WaitedSocket, wait_any},
    wait::SLICE,
};

/// A connected socket. Only a Unix socket can pass a file descriptor.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Stream(Box<dyn ClientStream>),
}

impl Socket {
    /// Connects within `timeout` and checks that the server is trusted: by the owner of the socket,
    /// or by its certificate. The TLS handshake happens at the first write.
    pub fn connect(
        environment: &dyn ClientEnvironment,
        endpoint: &Endpoint,
        credentials: &Credentials,
        timeout: Duration,
    ) -> Result<Self> {
        let began = environment.now();
        let mut connecting = environment.connect(endpoint)?;
        loop {
            if let Some(socket) = connecting.advance(credentials)? {
                return socket.into_blocking();
            }
            let took = environment.now().saturating_duration_since(began);
            let left = timeout.saturating_sub(took);
            if left.is_zero() {
                return Err(connecting.failed(ErrorKind::TimedOut.into()));
            }
            wait_any(environment, [connecting.wait()].into_iter(), left.min(SLICE))?;
        }
    }

    /// What to wait for, if an operation would have blocked.
    pub fn wait(&self, is_sending: bool) -> SocketWait<'_> {
        let (socket, is_write) = match self {
            Self::Unix(socket) => (WaitedSocket::Descriptor(socket.as_fd()), is_sending),
            Self::Tcp(socket) => (WaitedSocket::Descriptor(socket.as_fd()), is_sending),
            // During its handshake, TLS has to read before it can write.
            Self::Tls(tls) => (WaitedSocket::Descriptor(tls.sock.as_fd()), tls.conn.wants_write()),
            Self::Stream(stream) => (WaitedSocket::Stream(stream.number()), is_sending),
        };
        SocketWait { socket, is_write }
    }

    /// Lets reads and writes block for one [`SLICE`] at most.
    pub fn into_blocking(self) -> Result<Self> {
        match &self {
            Self::Unix(socket) => socket.set_nonblocking(false)?,
            Self::Tcp(socket) => socket.set_nonblocking(false)?,
            Self::Tls(tls) => tls.sock.set_nonblocking(false)?,
            Self::Stream(_) => {}
        }
        self.set_slice(SLICE)?;
        Ok(self)
    }

    /// Lets reads and writes block for this time at most.
    pub fn set_slice(&self, slice: Duration) -> io::Result<()> {
        let time = Some(slice);
        match self {
            Self::Unix(socket) => {
                socket.set_read_timeout(time)?;
                socket.set_write_timeout(time)
            }
            Self::Tcp(socket) => {
                socket.set_read_timeout(time)?;
                socket.set_write_timeout(time)
            }
            Self::Tls(tls) => {
                tls.sock.set_read_timeout(time)?;
                tls.sock.set_write_timeout(time)
            }
            Self::Stream(stream) => stream.set_slice(slice),
        }
    }

    /// The TLS alert that the server sent before it closed the connection, if any. A node that
    /// rejects a certificate may close before the client has written everything.
    pub fn tls_alert(&mut self) -> Option<io::Error> {
        let Self::Tls(tls) = self else { return None };
        let StreamOwned { conn, sock } = &mut **tls;
        while conn.read_tls(sock).ok()? > 0 {
            if let Err(error) = conn.process_new_packets() {
                return Some(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
        None
    }
}

impl Read for Socket {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(bytes),
            Self::Tcp(socket) => socket.read(bytes),
            Self::Tls(socket) => socket.read(bytes),
            Self::Stream(stream) => stream.read(bytes),
        }
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read_vectored(slices),
            Self::Tcp(socket) => socket.read_vectored(slices),
            Self::Tls(socket) => socket.read_vectored(slices),
            Self::Stream(stream) => stream.read_vectored(slices),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write_vectored(slices),
            Self::Tcp(socket) => socket.write_vectored(slices),
            Self::Tls(socket) => socket.write_vectored(slices),
            Self::Stream(stream) => stream.write_vectored(slices),
        }
    }

    /// Only TLS buffers.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(_) | Self::Tcp(_) | Self::Stream(_) => Ok(()),
            Self::Tls(socket) => socket.flush(),
        }
    }
}

/// A socket that is being connected without blocking.
#[derive(Debug)]
pub struct Connecting {
    endpoint: Endpoint,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A stopped process accepts no connection. Once its queue is full, the socket has to be
    /// connected again and again.
    Unix { socket: OwnedFd, address: SocketAddrUnix },
    /// The addresses of a host are tried one after the other.
    Tcp { socket: OwnedFd, others: vec::IntoIter<SocketAddr> },
    /// Taken when it is connected.
    Stream(Option<Box<dyn ClientStream>>),
}

impl Connecting {
    /// A stream of another environment than this machine.
    pub fn over_stream(endpoint: &Endpoint, stream: Box<dyn ClientStream>) -> Self {
        Self { endpoint: endpoint.clone(), state: State::Stream(Some(stream)) }
    }

    /// Begins to connect a socket. The name of a host is resolved here, which may block.
    pub(crate) fn over_socket(endpoint: &Endpoint) -> Result<Self> {
        let failed = |cause| ClientError::Connect { endpoint: endpoint.to_string(), cause };
        let state = match endpoint {
            Endpoint::Unix(path) => SocketAddrUnix::new(path)
                .and_then(|address| {
                    let socket = new_socket(AddressFamily::UNIX)?;
                    Ok(State::Unix { socket, address })
                })
                .map_err(|error| failed(error.into()))?,
            Endpoint::Tcp(host) | Endpoint::Tls(host) => {
                let addresses = (host.host(), host.port()).to_socket_addrs().map_err(failed)?;
                let mut others: vec::IntoIter<_> = addresses.collect::<Vec<_>>().into_iter();
                let none = io::Error::new(ErrorKind::NotFound, "the host name has no address");
                let socket = start_tcp(&mut others, none).map_err(failed)?;
                State::Tcp { socket, others }
            }
        };
        Ok(Self { endpoint: endpoint.clone(), state })
    }

    /// What to wait for.
    pub(crate) fn wait(&self) -> Option<SocketWait<'_>> {
        let socket = match &self.state {
            State::Unix { .. } | State::Stream(None) => return None,
            State::Tcp { socket, .. } => WaitedSocket::Descriptor(socket.as_fd()),
            State::Stream(Some(stream)) => WaitedSocket::Stream(stream.number()),
        };
        Some(SocketWait { socket, is_write: true })
    }

    /// The socket, which does not block, once it is connected and the server is trusted.
    pub(crate) fn advance(&mut self, credentials: &Credentials) -> Result<Option<Socket>> {
        let is_connected = self.try_advance().map_err(|cause| self.failed(cause))?;
        if !is_connected {
            return Ok(None);
        }
        let Self { endpoint, state } = self;
        let untrusted = |cause| ClientError::Untrusted { endpoint: endpoint.to_string(), cause };
        let socket = match state {
            State::Unix { socket, .. } => {
                let owner =
                    sockopt::socket_peercred(&*socket).map_err(io::Error::from)?.uid.as_raw();
                credentials.check_socket_owner(owner).map_err(untrusted)?;
                return Ok(Some(Socket::Unix(socket.try_clone()?.into())));
            }
            State::Tcp { socket, .. } => TcpStream::from(socket.try_clone()?),
            // Its environment has checked the server.
            State::Stream(stream) => return Ok(stream.take().map(Socket::Stream)),
        };
        socket.set_nodelay(true)?;
        let Endpoint::Tls(host) = &*endpoint else {
            credentials.check_cleartext(socket.peer_addr()?.ip()).map_err(untrusted)?;
            return Ok(Some(Socket::Tcp(socket)));
        };
        let config = credentials.check_tls().map_err(untrusted)?;
        let name = ServerName::try_from(host.host().to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Some(Socket::Tls(Box::new(StreamOwned::new(tls, socket)))))
    }

    fn try_advance(&mut self) -> io::Result<bool> {
        match &mut self.state {
            State::Unix { socket, address } => match connect(&*socket, address) {
                Ok(()) => Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => Ok(false),
                Err(error) => Err(error.into()),
            },
            State::Tcp { socket, others } => {
                let mut ready = [PollFd::new(&*socket, PollFlags::OUT)];
                if poll(&mut ready, Some(&Timespec::default()))? == 0 {
                    return Ok(false);
                }
                match sockopt::socket_error(&*socket)? {
                    Ok(()) => Ok(true),
                    Err(error) => {
                        *socket = start_tcp(others, error.into())?;
                        Ok(false)
                    }
                }
            }
            State::Stream(stream) => stream.as_mut().map_or(Ok(false), |it| it.is_connected()),
        }
    }

    fn failed(&self, cause: io::Error) -> ClientError {
        ClientError::Connect { endpoint: self.endpoint.to_string(), cause }
    }
}

fn new_socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None)
}

/// Begins to connect to the first address that does not fail at once.
fn start_tcp(addresses: &mut vec::IntoIter<SocketAddr>, error: io::Error) -> io::Result<OwnedFd> {
    let mut last = error;
    for address in addresses {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = new_socket(family)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => return Ok(socket),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
