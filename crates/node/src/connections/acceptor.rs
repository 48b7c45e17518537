//! Acceptor: gives each new connection a slot and a task, or rejects it.

use std::{io, sync::Arc, time::Duration};

use forebay_core::node::{
    connection_slots::{SlotClass, SlotRefusal},
    pre_auth::Source,
};
use forebay_transport::{Accepted, Peer, ReadHalf, WriteHalf, session, tcp};
use tokio::{
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::requests::service::NodeService;

/// All connections of a node.
pub struct Acceptor {
    node: Arc<NodeService>,
    connections: JoinSet<io::Result<()>>,
    /// Connections that receive a refusal before they are closed.
    rejected: JoinSet<()>,
}

impl Acceptor {
    /// No connections.
    pub fn new(node: Arc<NodeService>) -> Self {
        Self { node, connections: JoinSet::new(), rejected: JoinSet::new() }
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Waits for the next connection that ends. `None` if there is no connection.
    pub async fn next_ended(&mut self) -> Option<()> {
        let ended = self.connections.join_next().await?;
        if let Ok(Err(error)) = ended {
            tracing::debug!(%error, "connection failed");
        }
        Some(())
    }

    /// A connection over the Unix socket.
    pub(crate) fn on_local(&mut self, socket: UnixStream) {
        let Ok(accepted) = Accepted::unix(socket) else { return };
        let Peer::Unix { uid } = *accepted.peer() else { return };
        self.on_stream(accepted, Source::User(uid));
    }

    /// A connection over a stream that needs no handshake. A uid of the node, or of a tenant,
    /// decides about its slot until the hello.
    pub fn on_stream(&mut self, accepted: Accepted<impl ReadHalf, impl WriteHalf>, source: Source) {
        let class = match accepted.peer() {
            Peer::Unix { uid } => self.node.access.class_of_uid(*uid),
            Peer::Tcp | Peer::Tls { .. } => SlotClass::PreAuth,
        };
        match self.node.slots.enter(class, source) {
            Err(refusal) => {
                let text = self.count_refused(refusal);
                let stream = std::future::ready(Ok(accepted.into_stream()));
                session::reject(&mut self.rejected, stream, text);
            }
            Ok(slot) => {
                let id = slot.pre_auth();
                let serve = session::serve(Arc::clone(&self.node), accepted, slot);
                self.node.slots.set_task(id, self.connections.spawn(serve));
            }
        }
    }

    /// A connection over TCP.
    pub(crate) fn on_remote(&mut self, accepted: (TcpStream, Option<TlsAcceptor>)) {
        let Ok(address) = accepted.0.peer_addr() else { return };
        match self.node.slots.enter(SlotClass::PreAuth, address.ip().into()) {
            Err(refusal) => {
                let text = self.count_refused(refusal);
                tcp::reject(&mut self.rejected, accepted, text);
            }
            Ok(slot) => {
                let id = slot.pre_auth();
                let serve = tcp::serve(Arc::clone(&self.node), accepted, slot);
                self.node.slots.set_task(id, self.connections.spawn(serve));
            }
        }
    }

    /// Stops granting claims, and closes all connections when the requests in progress are done, at
    /// the latest after `grace`.
    pub async fn drain(mut self, grace: Duration) {
        let node = Arc::clone(&self.node);
        node.stop();
        let drained = async {
            while node.is_busy() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            node.close();
            while self.next_ended().await.is_some() {}
        };
        if timeout(grace, drained).await.is_err() {
            tracing::warn!("requests aborted after shutdown_grace");
        }
    }

    fn count_refused(&self, refusal: SlotRefusal) -> String {
        self.node.counters().connections_refused.one();
        refusal.to_string()
    }
}
