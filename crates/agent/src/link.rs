//! The way to the node: one connection with the dataset open, opened again when it breaks.

use std::{sync::Arc, time::Duration};

use forebay_client::{Next, OpenError, Opening, greeted, hello};
use forebay_core::{
    Endpoint,
    attempt::NodeState,
    claims::LEASES,
    digest::Digest,
    patience::{NODE_PATIENCE, Retry},
};
use forebay_identity::Credentials;
use forebay_server::dial;
use tokio::time::Instant;

use crate::connection::{Connection, LinkError, Result, renew};

/// The way to the node.
pub(crate) struct Link {
    endpoint: Option<Endpoint>,
    credentials: Credentials,
    job: String,
    digest: Digest,
    started: Instant,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<Arc<Connection>>,
    retry: Retry,
}

impl Link {
    pub fn new(
        endpoint: Option<Endpoint>,
        credentials: Credentials,
        job: String,
        digest: Digest,
    ) -> Self {
        let (started, state) = (Instant::now(), tokio::sync::Mutex::default());
        Self { endpoint, credentials, job, digest, started, state }
    }

    /// The time as `core` wants it.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What is known of the node, and the connection if there is one.
    pub async fn node(&self) -> (NodeState, Option<Arc<Connection>>) {
        match self.connection().await {
            Ok(node) => (NodeState::Leases(node.lease()), Some(node)),
            Err(LinkError::None) => (NodeState::None, None),
            Err(_) => (NodeState::Unreachable, None),
        }
    }

    /// The connection, opened if need be.
    pub async fn connection(&self) -> Result<Arc<Connection>> {
        let endpoint = self.endpoint.as_ref().ok_or(LinkError::None)?;
        let mut state = self.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(open));
        }
        state.open = None;
        let began = self.now();
        if !state.retry.is_due(began) {
            return Err(LinkError::Unreachable);
        }
        match self.open(endpoint).await {
            Ok(connection) => {
                tokio::spawn(renew(Arc::downgrade(&connection)));
                state.open = Some(Arc::clone(&connection));
                state.retry.succeeded();
                Ok(connection)
            }
            Err(error) => {
                if !state.retry.has_failed() {
                    tracing::warn!(%error, "no node: reading the origin directly");
                }
                state.retry.failed(began, self.now());
                Err(error)
            }
        }
    }

    async fn open(&self, endpoint: &Endpoint) -> Result<Arc<Connection>> {
        let mut connection =
            Connection::new(dial(endpoint, &self.credentials, NODE_PATIENCE).await?);
        let hello = hello(&self.job, &self.credentials);
        let lease = greeted(connection.exchange(&hello).await?)?;
        if !LEASES.contains(&lease) {
            return Err(OpenError::Unexpected.into());
        }
        let (mut opening, mut request) = Opening::begin(&self.digest)?;
        let handle = loop {
            match opening.reply(connection.exchange(&request).await?)? {
                Next::Ask(next) => request = next,
                Next::Open(handle) => break handle,
            }
        };
        connection.opened(handle, lease);
        Ok(Arc::new(connection))
    }
}
