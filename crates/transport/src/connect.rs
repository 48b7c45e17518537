//! Outgoing connections: asynchronous connect to a node, for agents and for other nodes.
//!
//! A [`Connector`] opens them: [`Sockets`] in a process, a simulated network in a simulated world.

use std::{io, sync::Arc, time::Duration};

use forebay_auth::{Credentials, in_words};
use forebay_core::{Endpoint, ids::endpoint::HostPort};
use futures::future::BoxFuture;
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, split},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::writer::enlarge_send_buffer;

/// Idle time after which TCP sends a keep-alive probe.
const KEEP_ALIVE: Duration = Duration::from_mins(1);

/// The receiving half of a connection.
pub type Incoming = Box<dyn AsyncRead + Send + Unpin>;
/// The sending half of a connection.
pub type Outgoing = Box<dyn AsyncWrite + Send + Unpin>;

/// Opens connections to endpoints.
pub trait Connector: Send + Sync + 'static {
    /// Connects to an endpoint within `timeout_after`, and applies the trust check of `credentials`
    /// to the server. Sends no request.
    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        credentials: &'a Credentials,
        timeout_after: Duration,
    ) -> BoxFuture<'a, io::Result<(Incoming, Outgoing)>>;
}

/// Connections over sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sockets;

impl Connector for Sockets {
    fn connect<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        credentials: &'a Credentials,
        timeout_after: Duration,
    ) -> BoxFuture<'a, io::Result<(Incoming, Outgoing)>> {
        Box::pin(async move {
            match timeout(timeout_after, connect_trusted(endpoint, credentials)).await? {
                Err(error) => Err(in_words(&error).map_or(error, io::Error::other)),
                connected => connected,
            }
        })
    }
}

async fn connect_trusted(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> io::Result<(Incoming, Outgoing)> {
    match endpoint {
        Endpoint::Unix(path) => {
            let socket = UnixStream::connect(path).await?;
            let owner = socket.peer_cred()?.uid();
            credentials.check_socket_owner(owner).map_err(io::Error::other)?;
            enlarge_send_buffer(&socket);
            let (reader, writer) = socket.into_split();
            Ok((Box::new(reader), Box::new(writer)))
        }
        Endpoint::Tcp(host) => {
            let socket = connect_tcp(host).await?;
            credentials.check_cleartext(socket.peer_addr()?.ip()).map_err(io::Error::other)?;
            let (reader, writer) = socket.into_split();
            Ok((Box::new(reader), Box::new(writer)))
        }
        Endpoint::Tls(host) => {
            let config = Arc::clone(credentials.check_tls().map_err(io::Error::other)?);
            let name = ServerName::try_from(host.host().to_owned()).map_err(io::Error::other)?;
            let socket = connect_tcp(host).await?;
            let (reader, writer) = split(TlsConnector::from(config).connect(name, socket).await?);
            Ok((Box::new(reader), Box::new(writer)))
        }
    }
}

async fn connect_tcp(host: &HostPort) -> io::Result<TcpStream> {
    let socket = TcpStream::connect((host.host(), host.port())).await?;
    tune(&socket)?;
    Ok(socket)
}

/// Disables Nagle's algorithm, and enables keep-alive so that a vanished machine is detected.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
    Ok(())
}
