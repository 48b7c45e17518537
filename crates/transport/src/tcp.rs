//! The TCP side of a node, with or without TLS.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::{
    dial::tune,
    peer::Accepted,
    session::{self, HELLO_WITHIN, Service},
    strangers::Stranger,
};

/// A listening port.
pub(crate) struct Network {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Network {
    pub async fn bind(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("listen on {address} (is another server there, or is it another machine's?)")
        })?;
        Ok(Self { listener, tls: tls.map(TlsAcceptor::from) })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection, and how it is answered.
    pub async fn accept(&self) -> (TcpStream, Option<TlsAcceptor>) {
        loop {
            let accepted = self.listener.accept().await;
            match accepted.and_then(|(socket, _)| tune(&socket).map(|()| socket)) {
                Ok(socket) => return (socket, self.tls.clone()),
                // Out of descriptors, most likely: wait for some to be returned.
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Shakes hands, if that is how it is done here, and serves.
pub(crate) async fn serve<S: Service>(
    service: Arc<S>,
    (socket, tls): (TcpStream, Option<TlsAcceptor>),
    stranger: Stranger,
) -> io::Result<()> {
    match tls {
        None => session::serve(service, Accepted::tcp(socket), stranger).await,
        Some(tls) => {
            let shaken = timeout(HELLO_WITHIN, tls.accept(socket)).await?;
            let socket = shaken.map_err(|error| {
                forebay_identity::in_words(&error).map_or(error, io::Error::other)
            })?;
            session::serve(service, Accepted::tls(socket), stranger).await
        }
    }
}
