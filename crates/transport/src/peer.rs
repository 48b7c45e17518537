//! Who is at the other end of a connection, and the two ways over it.

use std::io;

use forebay_identity::names_of;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split},
    net::{TcpStream, UnixStream, tcp, unix},
};
use tokio_rustls::server::TlsStream;

/// What a connection itself tells of who is there, before a word is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, and whose it is.
    Unix {
        /// Its user.
        uid: u32,
    },
    /// Anyone on this machine.
    Tcp,
    /// Anyone; the names of its certificate, if it has shown one.
    Tls {
        /// DNS names, in small letters.
        names: Vec<String>,
    },
}

/// A connection that can be served: who is there, and the two ways.
pub struct Accepted<R, W> {
    pub(crate) peer: Peer,
    pub(crate) reader: R,
    pub(crate) writer: W,
}

impl Accepted<unix::OwnedReadHalf, unix::OwnedWriteHalf> {
    /// From this machine.
    pub fn unix(socket: UnixStream) -> io::Result<Self> {
        let uid = socket.peer_cred()?.uid();
        let (reader, writer) = socket.into_split();
        Ok(Self { peer: Peer::Unix { uid }, reader, writer })
    }
}

impl Accepted<tcp::OwnedReadHalf, tcp::OwnedWriteHalf> {
    /// In the clear.
    pub fn tcp(socket: TcpStream) -> Self {
        let (reader, writer) = socket.into_split();
        Self { peer: Peer::Tcp, reader, writer }
    }
}

type Tls = TlsStream<TcpStream>;

impl Accepted<ReadHalf<Tls>, WriteHalf<Tls>> {
    /// Over TLS, when hands have been shaken.
    pub fn tls(socket: Tls) -> Self {
        let shown = socket.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let names = shown.map(names_of).unwrap_or_default();
        let (reader, writer) = split(socket);
        Self { peer: Peer::Tls { names }, reader, writer }
    }
}

/// The way by which replies leave.
pub trait Outlet: AsyncWrite + Send + Unpin + 'static {
    /// The Unix socket underneath, over which a descriptor can be passed; nothing for others.
    fn unix(&self) -> Option<&UnixStream> {
        None
    }
}

impl Outlet for unix::OwnedWriteHalf {
    fn unix(&self) -> Option<&UnixStream> {
        Some(self.as_ref())
    }
}

impl Outlet for tcp::OwnedWriteHalf {}
impl Outlet for WriteHalf<Tls> {}

/// The way by which requests come.
pub trait Inlet: AsyncRead + Send + Unpin + 'static {}
impl<T: AsyncRead + Send + Unpin + 'static> Inlet for T {}
