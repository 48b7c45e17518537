//! Where connections come in: so many and no more, and few of those of which nobody knows who is there.

use std::{io, sync::Arc};

use forebay_core::strangers::Source;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    network, node::NodeService, peer::Accepted, reload::Reloads, session, strangers::Strangers,
};

/// Strangers may have one part in so many of all connections,
const STRANGERS_SHARE: usize = 8;
/// but at least so many.
const STRANGERS_MIN: usize = 8;

/// All connections of a node.
pub(crate) struct Door {
    node: Arc<NodeService>,
    config: Reloads,
    connections: JoinSet<io::Result<()>>,
    /// Those who are told that they cannot come in.
    leaving: JoinSet<()>,
    strangers: Strangers,
}

impl Door {
    pub fn new(node: Arc<NodeService>, config: Reloads) -> Self {
        let (connections, leaving) = (JoinSet::new(), JoinSet::new());
        Self { node, config, connections, leaving, strangers: Strangers::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Waits for the next connection that ends. Nothing, if there is none.
    pub async fn ended(&mut self) -> Option<()> {
        let ended = self.connections.join_next().await?;
        if let Ok(Err(error)) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
        Some(())
    }

    /// Somebody of this machine.
    pub fn local(&mut self, socket: UnixStream) {
        let Ok(peer) = socket.peer_cred() else { return };
        let source = (!self.node.access.knows(peer.uid())).then_some(Source::User(peer.uid()));
        let Some(socket) = self.let_in(source.is_some(), socket) else { return };
        let Ok(accepted) = Accepted::unix(socket) else { return };
        let node = Arc::clone(&self.node);
        match source {
            None => drop(self.connections.spawn(session::serve(node, accepted, ()))),
            Some(source) => {
                let stranger = self.strangers.enter(source);
                let who = stranger.who();
                let served = self.connections.spawn(session::serve(node, accepted, stranger));
                self.strangers.served_by(who, served);
            }
        }
    }

    /// Somebody from anywhere.
    pub fn remote(&mut self, (socket, tls): (TcpStream, Option<TlsAcceptor>)) {
        let Ok(address) = socket.peer_addr() else { return };
        let Some(socket) = self.let_in(true, socket) else { return };
        let stranger = self.strangers.enter(address.ip().into());
        let who = stranger.who();
        let served = network::serve(Arc::clone(&self.node), (socket, tls), stranger);
        let served = self.connections.spawn(served);
        self.strangers.served_by(who, served);
    }

    /// The socket again, if there is a place for it.
    fn let_in<S>(&mut self, is_stranger: bool, socket: S) -> Option<S>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Those who have gone have left their places.
        while self.connections.try_join_next().is_some() {}
        let connections_max = self.config.now().connections;
        let strangers_max = (connections_max / STRANGERS_SHARE).max(STRANGERS_MIN);
        let is_full = self.connections.len() >= connections_max;
        let is_crowded = is_stranger && self.strangers.count() >= strangers_max;
        let has_dismissed = (is_full || is_crowded) && self.strangers.dismiss_one();
        if is_full && !has_dismissed {
            self.node.counters().connections_refused.one();
            session::turn_away(&mut self.leaving, socket);
            return None;
        }
        Some(socket)
    }
}
