//! The way to one node: one connection with the dataset open, opened again when it breaks.

use std::{sync::Arc, time::Duration};

use forebay_client::{Next, OpenError, Opening, greeted, hello};
use forebay_core::{
    Endpoint, NodeName,
    attempt::NodeState,
    claims::LEASES,
    patience::{NODE_PATIENCE, Retry},
    ring::Membership,
    room::{ROOM_AGE, Room},
};
use forebay_server::{Counter, dial};
use forebay_wire::{Reply, Request};
use parking_lot::Mutex;

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
    state: tokio::sync::Mutex<State>,
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
        let (state, puts_ahead, room, fallbacks) = Default::default();
        Self { endpoint, name, state, puts_ahead, room, fallbacks }
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
            puts_ahead.succeeded();
        } else {
            puts_ahead.failed(began, now);
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
    pub async fn opened(&self, connection: Arc<Connection>) {
        self.state.lock().await.open = Some(connection);
    }

    /// What is known of the node, and the connection if there is one.
    pub async fn node(&self, links: &Links) -> (NodeState, Option<Arc<Connection>>) {
        match self.connection(links).await {
            Ok(node) => (NodeState::Leases(node.lease()), Some(node)),
            Err(_) => (NodeState::Unreachable, None),
        }
    }

    /// The connection, opened if need be.
    pub async fn connection(&self, links: &Links) -> Result<Arc<Connection>> {
        let mut state = self.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(open));
        }
        state.open = None;
        let began = links.now();
        if !state.retry.is_due(began) {
            return Err(LinkError::Unreachable(state.failure.clone()));
        }
        let connected = connect(links, &self.endpoint).await;
        let heard = connected
            .and_then(|(connection, says)| links.heard(self, says.as_ref()).map(|()| connection));
        match heard {
            Ok(connection) => {
                state.open = Some(Arc::clone(&connection));
                state.retry.succeeded();
                Ok(connection)
            }
            Err(error) => {
                if !state.retry.has_failed() {
                    let node = self.name.as_ref().map_or("the only one", NodeName::as_str);
                    tracing::warn!(%error, node, "no node: reading the origin directly");
                }
                state.retry.failed(began, links.now());
                state.failure = error.to_string();
                links.lost(self);
                Err(error)
            }
        }
    }
}

/// Connects to a node, asks who it is, and opens the dataset.
pub(crate) async fn connect(
    links: &Links,
    endpoint: &Endpoint,
) -> Result<(Arc<Connection>, Option<Membership>)> {
    let mut connection = Connection::new(dial(endpoint, &links.credentials, NODE_PATIENCE).await?);
    let hello = hello(&links.job, &links.credentials);
    let lease = greeted(connection.exchange(&hello).await?)?;
    if !LEASES.contains(&lease) {
        return Err(OpenError::Unexpected.into());
    }
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
