//! The daemon: a node of the cache, for the jobs of one user on one machine.
//!
//! [`Server::bind`] takes possession of a socket and a directory; [`Server::run`] serves until it is told
//! to stop. Decisions are `core::node`'s; here are sockets, files and time.

mod blobs;
mod config;
mod counters;
mod get;
mod health;
mod hot;
mod http;
mod listen;
mod managing;
mod node;
mod open;
mod presence;
mod put;
mod reload;
pub mod session;

use std::{future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use forebay_core::Namespace;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, interval, timeout},
};

use blobs::Blobs;
pub use config::{Config, default_socket};
pub use counters::{AgentCounters, Counter, Counters, Gauges, page as metrics_page};
use health::Health;
pub use listen::Listener;
pub use node::NodeService;
pub use reload::Reloads;

/// A node that is ready to serve.
pub struct Server {
    node: Arc<NodeService>,
    listener: Listener,
    metrics: Option<SocketAddr>,
    config: Reloads,
    /// What runs beside the connections, and ends with the server.
    background: JoinSet<()>,
}

impl Server {
    /// Takes possession of the socket and the directory, and takes up what lies there.
    pub async fn bind(config: &Config, namespaces: Vec<Namespace>) -> anyhow::Result<Self> {
        config.check()?;
        let listener = Listener::bind(&config.socket)?;
        let (health, mut background) = (Arc::new(Health::default()), JoinSet::new());
        let mut metrics = None;
        // Before the devices are opened, so that it can be seen that this takes its time.
        if let Some(address) = config.metrics {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!("serve metrics on {address} (is another server there?)")
            })?;
            metrics = listener.local_addr().ok();
            background.spawn(http::serve(listener, Arc::clone(&health)));
        }
        let opening = config.clone();
        let blobs = tokio::task::spawn_blocking(move || Blobs::open(&opening)).await??;
        let node = Arc::new(NodeService::new(blobs, config.lease, namespaces));
        health.recovered(Arc::clone(&node));
        let config = Reloads::new(Arc::clone(&node), config.clone());
        Ok(Self { node, listener, metrics, config, background })
    }

    /// The node itself.
    pub fn node(&self) -> &Arc<NodeService> {
        &self.node
    }

    /// Where `/metrics` is.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// How to change the configuration while it runs.
    pub fn reloads(&self) -> Reloads {
        self.config.clone()
    }

    /// Serves until `stop` completes, or nobody has been connected for too long; then grants no more claims
    /// and lets what is under way finish, for as long as `grace` says.
    pub async fn run(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { node, listener, metrics: _, config, mut background } = self;
        background.spawn(Arc::clone(&node).expire_claims());
        background.spawn(Arc::clone(&node).manage());
        let mut stop = pin!(stop);
        let mut connections = JoinSet::new();
        let mut tick = interval(Duration::from_secs(1));
        let mut busy_at = Instant::now();
        loop {
            tokio::select! {
                socket = listener.accept() => {
                    if connections.len() >= config.now().connections {
                        node.counters().connections_refused.one();
                        session::turn_away(socket);
                    } else {
                        connections.spawn(session::serve(Arc::clone(&node), socket));
                    }
                }
                Some(ended) = connections.join_next() => {
                    if let Ok(Err(error)) = ended {
                        tracing::debug!(%error, "a connection ended early");
                    }
                }
                _ = tick.tick() => {
                    if !connections.is_empty() {
                        busy_at = Instant::now();
                    }
                    let idle_exit = config.now().idle_exit;
                    if idle_exit.is_some_and(|idle| busy_at.elapsed() > idle) {
                        tracing::info!("nobody has been connected for a while: stopping");
                        break;
                    }
                }
                () = &mut stop => break,
            }
        }
        node.stop();
        // The name goes first, so that whoever comes now starts another node.
        drop(listener);
        let in_order = async {
            while node.is_busy() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            node.close();
            while connections.join_next().await.is_some() {}
        };
        if timeout(config.now().grace, in_order).await.is_err() {
            tracing::warn!("what was under way is cut off");
        }
        node.flush().await;
        Ok(())
    }
}
