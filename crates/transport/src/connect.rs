//! Connecting to a node, as a task: what an agent does, and a node that asks another.

use std::{io, sync::Arc, time::Duration};

use forebay_core::{Endpoint, endpoint::HostPort};
use forebay_identity::{Credentials, in_words};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, split},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::writer::widen;

/// Whoever has not been noticed to be gone for so long is asked.
const KEEP_ALIVE: Duration = Duration::from_mins(1);

/// What comes from the node.
pub type Incoming = Box<dyn AsyncRead + Send + Unpin>;
/// What goes to it.
pub type Outgoing = Box<dyn AsyncWrite + Send + Unpin>;

/// Connects within a time. Nothing has been said yet.
pub async fn dial(
    endpoint: &Endpoint,
    credentials: &Credentials,
    within: Duration,
) -> io::Result<(Incoming, Outgoing)> {
    match timeout(within, connect(endpoint, credentials)).await? {
        Err(error) => Err(in_words(&error).map_or(error, io::Error::other)),
        connected => connected,
    }
}

async fn connect(
    endpoint: &Endpoint,
    credentials: &Credentials,
) -> io::Result<(Incoming, Outgoing)> {
    match endpoint {
        Endpoint::Unix(path) => {
            let socket = UnixStream::connect(path).await?;
            let owner = socket.peer_cred()?.uid();
            if !credentials.trusts(owner) {
                let text = format!(
                    "its socket belongs to user {owner}; if you trust that user's node, set FOREBAY_NODE_UID={owner}"
                );
                return Err(io::Error::other(text));
            }
            widen(&socket);
            let (reader, writer) = socket.into_split();
            Ok((Box::new(reader), Box::new(writer)))
        }
        Endpoint::Tcp(place) => {
            let socket = connect_tcp(place).await?;
            if !socket.peer_addr()?.ip().is_loopback() {
                let text = "it is another machine, and tcp:// is in the clear; use tls://";
                return Err(io::Error::other(text));
            }
            if !credentials.token().is_empty() {
                let text =
                    "anyone may listen there, so no token is sent; use its socket, or tls://";
                return Err(io::Error::other(text));
            }
            let (reader, writer) = socket.into_split();
            Ok((Box::new(reader), Box::new(writer)))
        }
        Endpoint::Tls(place) => {
            let no_authority = || io::Error::other("for tls:// set FOREBAY_TLS_CA");
            let config = Arc::clone(credentials.tls().ok_or_else(no_authority)?);
            let name = ServerName::try_from(place.host().to_owned()).map_err(io::Error::other)?;
            let socket = connect_tcp(place).await?;
            let (reader, writer) = split(TlsConnector::from(config).connect(name, socket).await?);
            Ok((Box::new(reader), Box::new(writer)))
        }
    }
}

async fn connect_tcp(place: &HostPort) -> io::Result<TcpStream> {
    let socket = TcpStream::connect((place.host(), place.port())).await?;
    tune(&socket)?;
    Ok(socket)
}

/// Frames leave at once, and a machine that has vanished is noticed.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE)?;
    Ok(())
}
