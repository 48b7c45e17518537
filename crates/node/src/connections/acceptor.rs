//! Acceptor: gives each new connection a slot and a task, or rejects it.

use std::{io, sync::Arc};

use forebay_core::node::{
    connection_slots::{SlotClass, SlotRefusal},
    pre_auth::Source,
};
use forebay_transport::{Accepted, session, tcp};
use tokio::{
    net::{TcpStream, UnixStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::requests::service::NodeService;

/// All connections of a node.
pub(crate) struct Acceptor {
    node: Arc<NodeService>,
    connections: JoinSet<io::Result<()>>,
    /// Connections that receive a refusal before they are closed.
    rejected: JoinSet<()>,
}

impl Acceptor {
    pub fn new(node: Arc<NodeService>) -> Self {
        Self { node, connections: JoinSet::new(), rejected: JoinSet::new() }
    }

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

    /// A connection over the Unix socket. A uid of the node, or of a tenant, decides about its slot
    /// until the hello.
    pub fn on_local(&mut self, socket: UnixStream) {
        let Ok(peer) = socket.peer_cred() else { return };
        let class = self.node.access.class_of_uid(peer.uid());
        match self.node.slots.enter(class, Source::User(peer.uid())) {
            Err(refusal) => {
                let text = self.count_refused(refusal);
                session::reject(&mut self.rejected, std::future::ready(Ok(socket)), text);
            }
            Ok(slot) => {
                let (Ok(accepted), id) = (Accepted::unix(socket), slot.pre_auth()) else { return };
                let serve = session::serve(Arc::clone(&self.node), accepted, slot);
                self.node.slots.set_task(id, self.connections.spawn(serve));
            }
        }
    }

    /// A connection over TCP.
    pub fn on_remote(&mut self, accepted: (TcpStream, Option<TlsAcceptor>)) {
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

    fn count_refused(&self, refusal: SlotRefusal) -> String {
        self.node.counters().connections_refused.one();
        refusal.to_string()
    }
}
