//! Acceptor: admits connections up to `max_connections`, and a smaller number that have not
//! authenticated.

use std::{io, sync::Arc};

use forebay_core::node::pre_auth::Source;
use forebay_transport::{Accepted, session, tcp};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    config::reload::Reloads, connections::pre_auth::PreAuthConnections,
    requests::service::NodeService,
};

/// Pre-auth connections may use one part in this many of `max_connections`.
const PRE_AUTH_SHARE: usize = 8;
/// Pre-auth connections that are always allowed.
const PRE_AUTH_MIN: usize = 8;

/// All connections of a node.
pub(crate) struct Acceptor {
    node: Arc<NodeService>,
    config: Reloads,
    connections: JoinSet<io::Result<()>>,
    /// Connections that receive a refusal before they are closed.
    rejected: JoinSet<()>,
    pre_auth: PreAuthConnections,
}

impl Acceptor {
    pub fn new(node: Arc<NodeService>, config: Reloads) -> Self {
        let (connections, rejected) = (JoinSet::new(), JoinSet::new());
        Self { node, config, connections, rejected, pre_auth: PreAuthConnections::default() }
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

    /// A connection over the Unix socket. A uid of a tenant, or of the node, counts as
    /// authenticated.
    pub fn on_local(&mut self, socket: UnixStream) {
        let Ok(peer) = socket.peer_cred() else { return };
        let source =
            (!self.node.access.is_known_uid(peer.uid())).then_some(Source::User(peer.uid()));
        let Some(socket) = self.admit(source.is_some(), socket) else { return };
        let Ok(accepted) = Accepted::unix(socket) else { return };
        let node = Arc::clone(&self.node);
        match source {
            None => drop(self.connections.spawn(session::serve(node, accepted, ()))),
            Some(source) => {
                let guard = self.pre_auth.enter(source);
                let id = guard.id();
                let task = self.connections.spawn(session::serve(node, accepted, guard));
                self.pre_auth.set_task(id, task);
            }
        }
    }

    /// A connection over TCP.
    pub fn on_remote(&mut self, (socket, tls): (TcpStream, Option<TlsAcceptor>)) {
        let Ok(address) = socket.peer_addr() else { return };
        let Some(socket) = self.admit(true, socket) else { return };
        let guard = self.pre_auth.enter(address.ip().into());
        let id = guard.id();
        let serve = tcp::serve(Arc::clone(&self.node), (socket, tls), guard);
        let task = self.connections.spawn(serve);
        self.pre_auth.set_task(id, task);
    }

    /// Returns the socket if the limits allow another connection. A pre-auth connection is evicted
    /// if that makes space.
    fn admit<S>(&mut self, is_pre_auth: bool, socket: S) -> Option<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Connections that have ended do not count.
        while self.connections.try_join_next().is_some() {}
        let connections_max = self.config.now().max_connections;
        let pre_auth_max = (connections_max / PRE_AUTH_SHARE).max(PRE_AUTH_MIN);
        let is_full = self.connections.len() >= connections_max;
        let is_pre_auth_full = is_pre_auth && self.pre_auth.count() >= pre_auth_max;
        let has_evicted = (is_full || is_pre_auth_full) && self.pre_auth.evict_one();
        if is_full && !has_evicted {
            self.node.counters().connections_refused.one();
            session::reject(&mut self.rejected, socket);
            return None;
        }
        Some(socket)
    }
}
