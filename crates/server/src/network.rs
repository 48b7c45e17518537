//! The TCP side of a node, with or without TLS.
//!
//! Anyone can connect here, so whoever has not said who it is has few places: when they are taken, the next one
//! takes that of the one who has been silent the longest. Whoever means well says hello at once.

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::{
    dial::tune,
    peer::Accepted,
    session::{self, HELLO_WITHIN, Service},
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

/// Connections that have not said who they are, oldest first.
#[derive(Clone, Default)]
pub(crate) struct Strangers(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    next: u64,
    tasks: BTreeMap<u64, Option<AbortHandle>>,
}

/// One of them; dropped when it is known, or gone.
pub(crate) struct Stranger {
    strangers: Strangers,
    number: u64,
}

impl Strangers {
    pub fn enter(&self) -> Stranger {
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.tasks.insert(number, None);
        Stranger { strangers: self.clone(), number }
    }

    /// The task that serves it, unless it is known or gone by now.
    pub fn served_by(&self, number: u64, task: AbortHandle) {
        if let Some(place) = self.0.lock().tasks.get_mut(&number) {
            *place = Some(task);
        }
    }

    pub fn count(&self) -> usize {
        self.0.lock().tasks.len()
    }

    /// Ends the one that has been silent the longest. Whether there was one.
    pub fn dismiss_oldest(&self) -> bool {
        let oldest = self.0.lock().tasks.pop_first();
        oldest.and_then(|(_, task)| task).map(|task| task.abort()).is_some()
    }
}

impl Stranger {
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.0.lock().tasks.remove(&self.number);
    }
}
