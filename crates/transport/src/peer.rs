//! Accepted connections: the identity of the peer, and the two halves of the stream.

use std::io;

use forebay_auth::names_of;
use tokio::{
    io::{self as tokio_io, AsyncRead, AsyncWrite, Join, join, split},
    net::{TcpStream, UnixStream, tcp, unix},
};
use tokio_rustls::server::TlsStream;

/// The identity of a peer as far as the connection itself proves it, before its hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine.
    Unix {
        /// Its user id.
        uid: u32,
    },
    /// Any process of this machine, over TCP.
    Tcp,
    /// Any machine, over TLS.
    Tls {
        /// DNS names of the client certificate, in lower case; empty without a certificate.
        names: Vec<String>,
    },
}

/// A connection that can be served.
pub struct Accepted<R, W> {
    pub(crate) peer: Peer,
    pub(crate) reader: R,
    pub(crate) writer: W,
}

impl<R, W> Accepted<R, W> {
    /// A connection over another stream, whose peer is known.
    pub fn new(peer: Peer, reader: R, writer: W) -> Self {
        Self { peer, reader, writer }
    }

    /// The identity of the peer, before its hello.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The two halves of the stream, as one.
    pub fn into_stream(self) -> Join<R, W>
    where
        R: AsyncRead,
        W: AsyncWrite,
    {
        join(self.reader, self.writer)
    }
}

impl Accepted<unix::OwnedReadHalf, unix::OwnedWriteHalf> {
    /// A connection over a Unix socket.
    pub fn unix(socket: UnixStream) -> io::Result<Self> {
        let uid = socket.peer_cred()?.uid();
        let (reader, writer) = socket.into_split();
        Ok(Self { peer: Peer::Unix { uid }, reader, writer })
    }
}

impl Accepted<tcp::OwnedReadHalf, tcp::OwnedWriteHalf> {
    /// A connection in cleartext.
    pub fn tcp(socket: TcpStream) -> Self {
        let (reader, writer) = socket.into_split();
        Self { peer: Peer::Tcp, reader, writer }
    }
}

type Tls = TlsStream<TcpStream>;

impl Accepted<tokio_io::ReadHalf<Tls>, tokio_io::WriteHalf<Tls>> {
    /// A connection over TLS, after the handshake.
    pub fn tls(socket: Tls) -> Self {
        let certificate = socket.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map(names_of).unwrap_or_default();
        let (reader, writer) = split(socket);
        Self { peer: Peer::Tls { names }, reader, writer }
    }
}

/// The half of a connection that replies are written to.
pub trait WriteHalf: AsyncWrite + Send + Unpin + 'static {
    /// The Unix socket, over which a file descriptor can be passed; `None` for other connections.
    fn unix(&self) -> Option<&UnixStream> {
        None
    }
}

impl WriteHalf for unix::OwnedWriteHalf {
    fn unix(&self) -> Option<&UnixStream> {
        Some(self.as_ref())
    }
}

impl WriteHalf for tcp::OwnedWriteHalf {}
impl WriteHalf for tokio_io::WriteHalf<Tls> {}

/// The half of a connection that requests are read from.
pub trait ReadHalf: AsyncRead + Send + Unpin + 'static {}
impl<T: AsyncRead + Send + Unpin + 'static> ReadHalf for T {}
