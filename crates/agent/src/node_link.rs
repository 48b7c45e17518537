//! A link to one node: one connection with the dataset open, opened again when it breaks.

use std::{pin::pin, sync::Arc, time::Duration};

use forebay_client::{Next, OpenError, Opening, greeted, hello};
use forebay_core::{
    Endpoint, NodeName,
    agent::{
        fetch::NodeState,
        free_space::{FREE_SPACE_AGE_MAX, FreeSpace},
    },
    cluster::{
        backoff::{Elapsed, Failure, Retry},
        liveness::{FIRST_PING_AFTER, PING_TIMEOUT},
        ring::RingMembership,
    },
    node::claims::LEASES,
};
use forebay_transport::Counter;
use forebay_wire::{Reply, Request};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::{
    claims::renew,
    cluster::{Login, NodeLinks},
    connection::{Connection, LinkError, Result},
};

/// Space that a blob may take on the node beside its bytes.
const OVERHEAD: u64 = 64 << 10;

/// A link to one node.
pub(crate) struct NodeLink {
    endpoint: Endpoint,
    /// Its name, if it is part of a cluster.
    name: Option<NodeName>,
    /// Held while a task connects.
    connecting: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// Backoff of prefetches. A node may report free space and still reject puts, because its disk
    /// is full; prefetching for it would be wasted.
    prefetch_retry: Mutex<Retry>,
    /// When the node reported its free space, and what is left of it after the puts since.
    free_space: Mutex<Option<(Duration, FreeSpace)>>,
    /// Blobs that were read from the origin because this node failed.
    pub fallbacks: Counter,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Connection>>,
    retry: Retry,
    /// The error of the last try.
    failure: String,
}

impl NodeLink {
    pub fn new(endpoint: Endpoint, name: Option<NodeName>) -> Self {
        let (connecting, state, prefetch_retry, free_space, fallbacks) = Default::default();
        Self { endpoint, name, connecting, state, prefetch_retry, free_space, fallbacks }
    }

    pub fn name(&self) -> Option<&NodeName> {
        self.name.as_ref()
    }

    pub fn is_to(&self, name: &NodeName, endpoint: &Endpoint) -> bool {
        self.name.as_ref() == Some(name) && self.endpoint == *endpoint
    }

    /// Whether the node may be sent a prefetched blob now.
    pub fn accepts_prefetch(&self, now: Duration) -> bool {
        self.prefetch_retry.lock().is_due(now)
    }

    /// The node has stored a prefetched blob, or rejected it.
    pub fn on_prefetch_put(&self, is_stored: bool, attempt: Elapsed) {
        let mut retry = self.prefetch_retry.lock();
        if is_stored {
            retry.on_success(attempt.now);
        } else {
            retry.on_failure(Failure::Dead, attempt);
        }
    }

    /// Reserves space on the node for a blob of this length, with a margin for `concurrency` blobs
    /// of that length. Returns false if the node has too little.
    pub async fn reserve(
        &self,
        links: &NodeLinks,
        length: u64,
        concurrency: usize,
    ) -> Result<bool> {
        let node = self.connection(links).await?;
        let needed = length + OVERHEAD;
        // Puts of other tasks need space as well.
        let margin = (concurrency as u64 + 1) * needed;
        let now = links.now();
        let is_fresh = |(at, space): &(Duration, FreeSpace)| {
            now < *at + FREE_SPACE_AGE_MAX && space.bytes >= margin
        };
        let known = self.free_space.lock().filter(is_fresh);
        let (asked_at, mut space) = match known {
            Some(known) => known,
            None => (now, node.free_space().await?),
        };
        let is_enough = space.bytes >= margin;
        if is_enough {
            space.bytes -= needed;
        }
        *self.free_space.lock() = Some((asked_at, space));
        Ok(is_enough)
    }

    /// Takes the connection that a discovery has opened.
    pub fn on_connected(&self, connection: Arc<Connection>) {
        self.state.lock().open = Some(connection);
    }

    /// The state of the node, and the connection if there is one. The job waits for this, so a
    /// failed node is not tried again here; prefetching does that.
    pub async fn node_state(&self, links: &NodeLinks) -> (NodeState, Option<Arc<Connection>>) {
        let present = self.present(links.now());
        let connection = match present {
            None if !self.state.lock().retry.has_failed() => self.connection(links).await,
            None => return (NodeState::Unreachable, None),
            Some(present) => present,
        };
        match connection {
            Ok(node) => (NodeState::Connected { lease: node.lease() }, Some(node)),
            Err(_) => (NodeState::Unreachable, None),
        }
    }

    /// The connection, which is opened if necessary.
    pub async fn connection(&self, links: &NodeLinks) -> Result<Arc<Connection>> {
        let _connecting = self.connecting.lock().await;
        // Another task may have connected meanwhile.
        let began = links.now();
        if let Some(present) = self.present(began) {
            return present;
        }
        let mut connecting = pin!(connect(links, &self.endpoint));
        let connected = if let Ok(connected) = timeout(FIRST_PING_AFTER, &mut connecting).await {
            connected
        } else {
            links.silence.notify_one();
            connecting.await
        };
        let checked = connected.and_then(|(connection, membership)| {
            links.on_membership(self, membership.as_ref()).map(|()| connection)
        });
        let mut state = self.state.lock();
        match checked {
            Ok(connection) => {
                state.open = Some(Arc::clone(&connection));
                state.retry.on_success(links.now());
                Ok(connection)
            }
            Err(error) => {
                if !state.retry.has_failed() {
                    let node = self.name.as_ref().map_or("single", NodeName::as_str);
                    tracing::warn!(%error, node, "node unreachable: reading the origin");
                }
                let attempt = Elapsed { since: began, now: links.now() };
                state.retry.on_failure(error.failure(), attempt);
                state.failure = error.to_string();
                drop(state);
                links.on_unreachable(self);
                Err(error)
            }
        }
    }

    /// Finds out whether the node hangs, unless it has failed already.
    pub async fn check(&self, links: &NodeLinks) {
        let (open, has_failed) = {
            let state = self.state.lock();
            (state.open.clone(), state.retry.has_failed())
        };
        match open {
            Some(open) => open.check().await,
            None if !has_failed => drop(self.connection(links).await),
            None => {}
        }
    }

    /// The connection, or the error of the last try; `None` if a try is due.
    fn present(&self, now: Duration) -> Option<Result<Arc<Connection>>> {
        let mut state = self.state.lock();
        if let Some(open) = state.open.as_ref().filter(|open| !open.is_closed()) {
            return Some(Ok(Arc::clone(open)));
        }
        // A node that was found hung is not tried to confirm it.
        if let Some(hung_for) = state.open.take().and_then(|open| open.hung_for()) {
            let attempt = Elapsed { since: now.saturating_sub(hung_for), now };
            state.retry.on_failure(Failure::Hung, attempt);
            state.failure = LinkError::Silent.to_string();
        }
        let is_due = state.retry.is_due(now);
        (!is_due).then(|| Err(LinkError::Unreachable(state.failure.clone())))
    }
}

/// Connects to a node, asks for its list, and opens the dataset.
pub(crate) async fn connect(
    links: &NodeLinks,
    endpoint: &Endpoint,
) -> Result<(Arc<Connection>, Option<RingMembership>)> {
    let Login { job, credentials, connector } = &links.login;
    let mut connection =
        Connection::new(connector.connect(endpoint, credentials, PING_TIMEOUT).await?);
    let hello = hello(job, credentials);
    // A node whose dispatch hangs may answer the hello and nothing else.
    let greeting = async {
        let welcome = greeted(connection.exchange(&hello).await?)?;
        match connection.exchange(&Request::Ring).await? {
            Reply::Ring(membership) => Ok((welcome, membership)),
            Reply::Error(refusal) => Err(LinkError::Refused(refusal)),
            _ => Err(LinkError::Open(OpenError::Unexpected)),
        }
    };
    let (welcome, membership) =
        timeout(PING_TIMEOUT, greeting).await.map_err(|_| LinkError::Silent)??;
    if !LEASES.contains(&welcome.lease) {
        return Err(OpenError::Unexpected.into());
    }
    connection.on_hello(endpoint, &links.login, Arc::clone(&links.silence));
    let (mut opening, mut request) = Opening::begin(&links.digest)?;
    let handle = loop {
        match opening.reply(connection.exchange(&request).await?)? {
            Next::Ask(next) => request = next,
            Next::Open(handle) => break handle,
        }
    };
    connection.on_open(handle, welcome);
    let connection = Arc::new(connection);
    tokio::spawn(renew(Arc::downgrade(&connection)));
    Ok((connection, membership))
}
