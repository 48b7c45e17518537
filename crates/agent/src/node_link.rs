//! The way to one node: one connection with the dataset open, opened again when it breaks.

use std::{sync::Arc, time::Duration};

use forebay_client::{Next, OpenError, Opening, greeted, hello};
use forebay_core::{
    Endpoint, NodeName,
    attempt::NodeState,
    claims::LEASES,
    doubt::GREETING,
    patience::{Failure, Retry},
    ring::Membership,
    room::{ROOM_AGE, Room},
};
use forebay_server::{Counter, dial};
use forebay_wire::{Reply, Request};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{
    connection::{Connection, LinkError, Result, renew},
    links::Links,
};

/// What a blob may take on the node beside its bytes.
const OVERHEAD: u64 = 64 << 10;

/// The way to one node.
pub(crate) struct Link {
    endpoint: Endpoint,
    /// What it is called, if it is one of several.
    name: Option<NodeName>,
    /// Held while somebody connects.
    connecting: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// A node may have room and still take nothing: its disk is full. What is fetched for it then is
    /// fetched in vain.
    puts_ahead: Mutex<Retry>,
    /// What the node could take, when it was asked, less what it was given since.
    room: Mutex<Option<(Duration, Room)>>,
    /// Blobs that were read from the origin because this node was of no help.
    pub fallbacks: Counter,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Connection>>,
    retry: Retry,
    /// How the last try failed.
    failure: String,
}

impl Link {
    pub fn new(endpoint: Endpoint, name: Option<NodeName>) -> Self {
        let (connecting, state, puts_ahead, room, fallbacks) = Default::default();
        Self { endpoint, name, connecting, state, puts_ahead, room, fallbacks }
    }

    pub fn name(&self) -> Option<&NodeName> {
        self.name.as_ref()
    }

    pub fn is_to(&self, name: &NodeName, endpoint: &Endpoint) -> bool {
        self.name.as_ref() == Some(name) && self.endpoint == *endpoint
    }

    /// Whether it is time to give the node something that nobody waits for.
    pub fn takes_any(&self, now: Duration) -> bool {
        self.puts_ahead.lock().is_due(now)
    }

    /// The node has taken such a thing, or not.
    pub fn has_taken(&self, is_taken: bool, began: Duration, now: Duration) {
        let mut puts_ahead = self.puts_ahead.lock();
        if is_taken {
            puts_ahead.succeeded(now);
        } else {
            puts_ahead.failed(Failure::Gone, began, now);
        }
    }

    /// Whether the node has bytes left for a blob of this length while so many come at once. It is taken as
    /// said that the blob will be put.
    pub async fn has_room_for(&self, links: &Links, length: u64, at_once: usize) -> Result<bool> {
        let node = self.connection(links).await?;
        let taken = length + OVERHEAD;
        // What is under way elsewhere needs some, too.
        let margin = (at_once as u64 + 1) * taken;
        let now = links.now();
        let is_fresh = |(at, room): &(Duration, Room)| now < *at + ROOM_AGE && room.bytes >= margin;
        let known = self.room.lock().filter(is_fresh);
        let (asked_at, mut room) = match known {
            Some(known) => known,
            None => (now, node.room().await?),
        };
        let has_room = room.bytes >= margin;
        if has_room {
            room.bytes -= taken;
        }
        *self.room.lock() = Some((asked_at, room));
        Ok(has_room)
    }

    /// Takes a connection that somebody has made.
    pub fn opened(&self, connection: Arc<Connection>) {
        self.state.lock().open = Some(connection);
    }

    /// What is known of the node, and the connection if there is one. The job waits for this: whoever has failed
    /// is tried again by those for whom nobody waits.
    pub async fn node(&self, links: &Links) -> (NodeState, Option<Arc<Connection>>) {
        let known = self.known(links.now());
        let connection = match known {
            None if !self.state.lock().retry.has_failed() => self.connection(links).await,
            None => return (NodeState::Unreachable, None),
            Some(known) => known,
        };
        match connection {
            Ok(node) => (NodeState::Leases(node.lease()), Some(node)),
            Err(_) => (NodeState::Unreachable, None),
        }
    }

    /// The connection, opened if need be.
    pub async fn connection(&self, links: &Links) -> Result<Arc<Connection>> {
        let _connecting = self.connecting.lock().await;
        // Somebody else may have connected meanwhile.
        let began = links.now();
        if let Some(known) = self.known(began) {
            return known;
        }
        let connected = connect(links, &self.endpoint).await;
        let heard = connected
            .and_then(|(connection, says)| links.heard(self, says.as_ref()).map(|()| connection));
        let mut state = self.state.lock();
        match heard {
            Ok(connection) => {
                state.open = Some(Arc::clone(&connection));
                state.retry.succeeded(links.now());
                Ok(connection)
            }
            Err(error) => {
                if !state.retry.has_failed() {
                    let node = self.name.as_ref().map_or("the only one", NodeName::as_str);
                    tracing::warn!(%error, node, "no node: reading the origin directly");
                }
                state.retry.failed(error.failure(), began, links.now());
                state.failure = error.to_string();
                drop(state);
                links.lost(self);
                Err(error)
            }
        }
    }

    /// The connection, or why there is none; nothing, if it is time to connect.
    fn known(&self, now: Duration) -> Option<Result<Arc<Connection>>> {
        let mut state = self.state.lock();
        if let Some(open) = state.open.as_ref().filter(|open| !open.is_closed()) {
            return Some(Ok(Arc::clone(open)));
        }
        // One that was found to hang need not be tried to know it.
        if let Some(hung_for) = state.open.take().and_then(|open| open.hung_for()) {
            state.retry.failed(Failure::Hung, now.saturating_sub(hung_for), now);
            state.failure = LinkError::Silent.to_string();
        }
        let is_due = state.retry.is_due(now);
        (!is_due).then(|| Err(LinkError::Unreachable(state.failure.clone())))
    }
}

/// Connects to a node, asks who it is, and opens the dataset.
pub(crate) async fn connect(
    links: &Links,
    endpoint: &Endpoint,
) -> Result<(Arc<Connection>, Option<Membership>)> {
    let credentials = &links.credentials;
    let mut connection = Connection::new(dial(endpoint, credentials, GREETING).await?);
    let hello = hello(&links.job, credentials);
    let said = timeout(GREETING, connection.exchange(&hello)).await;
    let lease = greeted(said.map_err(|_| LinkError::Silent)??)?;
    if !LEASES.contains(&lease) {
        return Err(OpenError::Unexpected.into());
    }
    connection.greeted(endpoint, credentials);
    let says = match connection.exchange(&Request::Ring).await? {
        Reply::Ring(says) => says,
        Reply::Error(refusal) => return Err(refusal.into()),
        _ => return Err(OpenError::Unexpected.into()),
    };
    let (mut opening, mut request) = Opening::begin(&links.digest)?;
    let handle = loop {
        match opening.reply(connection.exchange(&request).await?)? {
            Next::Ask(next) => request = next,
            Next::Open(handle) => break handle,
        }
    };
    connection.opened(handle, lease);
    let connection = Arc::new(connection);
    tokio::spawn(renew(Arc::downgrade(&connection)));
    Ok((connection, says))
}
