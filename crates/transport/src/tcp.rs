//! TCP listener of a node, with or without TLS.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::{
    connect::tune,
    peer::Accepted,
    session::{self, HELLO_TIMEOUT, Service},
};

/// A listening TCP socket.
pub struct TcpAcceptor {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl TcpAcceptor {
    /// Binds the address. With `tls`, every connection must complete a handshake.
    pub async fn bind(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!(
                "listen on {address}; check that no other server uses the port and that the \
                 address is this machine's"
            )
        })?;
        Ok(Self { listener, tls: tls.map(TlsAcceptor::from) })
    }

    /// The address that was bound.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection, and the TLS acceptor for its handshake.
    pub async fn accept(&self) -> (TcpStream, Option<TlsAcceptor>) {
        loop {
            let accepted = self.listener.accept().await;
            match accepted.and_then(|(socket, _)| tune(&socket).map(|()| socket)) {
                Ok(socket) => return (socket, self.tls.clone()),
                // Most likely out of file descriptors: wait until some are free.
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Completes the TLS handshake, if any, and serves the connection.
pub async fn serve<S: Service>(
    service: Arc<S>,
    (socket, tls): (TcpStream, Option<TlsAcceptor>),
    slot: S::Slot,
) -> io::Result<()> {
    match tls {
        None => session::serve(service, Accepted::tcp(socket), slot).await,
        Some(tls) => {
            let handshake = timeout(HELLO_TIMEOUT, tls.accept(socket)).await?;
            let socket = handshake
                .map_err(|error| forebay_auth::in_words(&error).map_or(error, io::Error::other))?;
            session::serve(service, Accepted::tls(socket), slot).await
        }
    }
}

/// Rejects a connection, as [`session::reject`]. With TLS the refusal follows the handshake: in
/// cleartext the client would take it for a server without TLS.
pub fn reject(
    rejected: &mut JoinSet<()>,
    (socket, tls): (TcpStream, Option<TlsAcceptor>),
    text: impl Into<String>,
) {
    match tls {
        None => session::reject(rejected, std::future::ready(Ok(socket)), text),
        Some(tls) => session::reject(rejected, tls.accept(socket), text),
    }
}
