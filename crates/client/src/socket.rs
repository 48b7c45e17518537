//! The ways to a node: a Unix socket, TCP on this machine, or TLS. All of them block, slice by slice.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_core::{Endpoint, endpoint::HostPort};
use forebay_identity::Credentials;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{ClientError, Result, waiting::SLICE};

/// A connected socket. A descriptor can be passed over a Unix socket alone.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Connects, to a process of one's own or root's (or whom one trusts), or to whom the authority signed for.
    /// What TLS has to say first is said with the first bytes that are written.
    pub fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        patience: Duration,
    ) -> Result<Self> {
        let shown = || endpoint.to_string();
        let failed = |cause| ClientError::Connect { endpoint: shown(), cause };
        let socket = match endpoint {
            Endpoint::Unix(path) => {
                let socket = connect_unix(path, patience).map_err(failed)?;
                let owner = rustix::net::sockopt::socket_peercred(&socket);
                let owner = owner.map_err(io::Error::from)?.uid.as_raw();
                if !credentials.trusts(owner) {
                    return Err(ClientError::Stranger { path: shown(), owner });
                }
                socket.set_read_timeout(Some(SLICE))?;
                socket.set_write_timeout(Some(SLICE))?;
                return Ok(Self::Unix(socket));
            }
            Endpoint::Tcp(place) | Endpoint::Tls(place) => {
                connect_tcp(place, patience).map_err(failed)?
            }
        };
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SLICE))?;
        socket.set_write_timeout(Some(SLICE))?;
        let Endpoint::Tls(place) = endpoint else {
            if !socket.peer_addr()?.ip().is_loopback() {
                return Err(ClientError::InTheClear { endpoint: shown() });
            }
            if !credentials.token().is_empty() {
                return Err(ClientError::TokenInTheClear { endpoint: shown() });
            }
            return Ok(Self::Tcp(socket));
        };
        let config = credentials.tls().ok_or(ClientError::NoAuthority)?;
        let name = ServerName::try_from(place.host().to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    /// Why the other side broke off, if it said so. A node that refuses a certificate may be gone before all has
    /// been written.
    pub fn last_words(&mut self) -> Option<io::Error> {
        let Self::Tls(tls) = self else { return None };
        let StreamOwned { conn, sock } = &mut **tls;
        while conn.read_tls(sock).ok()? > 0 {
            if let Err(error) = conn.process_new_packets() {
                return Some(io::Error::new(io::ErrorKind::InvalidData, error));
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
        }
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read_vectored(slices),
            Self::Tcp(socket) => socket.read_vectored(slices),
            Self::Tls(socket) => socket.read_vectored(slices),
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
        }
    }

    /// Only TLS holds anything back.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => Ok(()),
            Self::Tls(socket) => socket.flush(),
        }
    }
}

/// Connects. A process that was stopped accepts nobody, and once enough have queued up, the next would
/// wait for ever.
fn connect_unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Tries the addresses of a name one after the other, all within the patience.
fn connect_tcp(place: &HostPort, patience: Duration) -> io::Result<TcpStream> {
    let began = Instant::now();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in (place.host(), place.port()).to_socket_addrs()? {
        let left = patience.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
