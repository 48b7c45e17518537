//! Sockets: Unix, TCP on this machine, or TLS. Reads and writes block for one [`SLICE`] at most.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay_auth::Credentials;
use forebay_core::{Endpoint, ids::endpoint::HostPort};
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};

use crate::{ClientError, Result, wait::SLICE};

/// A connected socket. Only a Unix socket can pass a file descriptor.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Socket {
    /// Connects within `timeout` and checks that the server is trusted: by the owner of the socket,
    /// or by its certificate. The TLS handshake happens at the first write.
    pub fn connect(
        endpoint: &Endpoint,
        credentials: &Credentials,
        timeout: Duration,
    ) -> Result<Self> {
        let shown = || endpoint.to_string();
        let untrusted = |cause| ClientError::Untrusted { endpoint: shown(), cause };
        let failed = |cause| ClientError::Connect { endpoint: shown(), cause };
        let socket = match endpoint {
            Endpoint::Unix(path) => {
                let socket = connect_unix(path, timeout).map_err(failed)?;
                let owner = rustix::net::sockopt::socket_peercred(&socket);
                let owner = owner.map_err(io::Error::from)?.uid.as_raw();
                credentials.check_socket_owner(owner).map_err(untrusted)?;
                socket.set_read_timeout(Some(SLICE))?;
                socket.set_write_timeout(Some(SLICE))?;
                return Ok(Self::Unix(socket));
            }
            Endpoint::Tcp(host) | Endpoint::Tls(host) => {
                connect_tcp(host, timeout).map_err(failed)?
            }
        };
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SLICE))?;
        socket.set_write_timeout(Some(SLICE))?;
        let Endpoint::Tls(host) = endpoint else {
            credentials.check_cleartext(socket.peer_addr()?.ip()).map_err(untrusted)?;
            return Ok(Self::Tcp(socket));
        };
        let config = credentials.check_tls().map_err(untrusted)?;
        let name = ServerName::try_from(host.host().to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Self::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    /// The TLS alert that the server sent before it closed the connection, if any. A node that
    /// rejects a certificate may close before the client has written everything.
    pub fn tls_alert(&mut self) -> Option<io::Error> {
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

    /// Only TLS buffers.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(_) | Self::Tcp(_) => Ok(()),
            Self::Tls(socket) => socket.flush(),
        }
    }
}

/// Connects. The timeout matters: a stopped process accepts no connection, and once its queue is
/// full, `connect` would block for ever.
fn connect_unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(timeout))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Tries the addresses of a host one after the other, all within `timeout`.
fn connect_tcp(host: &HostPort, timeout: Duration) -> io::Result<TcpStream> {
    let began = Instant::now();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in (host.host(), host.port()).to_socket_addrs()? {
        let left = timeout.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}
