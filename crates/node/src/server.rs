//! The daemon: a node of the cache, for the jobs of one user on one machine.
//!
//! [`Server::bind`] takes possession of a socket and a directory; [`Server::run`] serves until it is told
//! to stop. Decisions are `core::node`'s; here are sockets, files and time.

mod access;
mod blobs;
mod bound;
mod config;
mod counters;
mod dial;
mod door;
mod gathered;
mod get;
mod health;
mod hot;
mod http;
mod listen;
mod machine;
mod managing;
mod network;
mod node;
mod nodes;
mod open;
mod peer;
mod peers;
mod presence;
mod put;
mod reach;
mod reload;
mod segments;
pub mod session;
mod strangers;
mod tenant_config;
mod writer;

use std::{future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use forebay_core::Namespace;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, interval, timeout},
};
use tokio_rustls::TlsAcceptor;

use access::Access;
use blobs::Blobs;
pub use bound::memory_max;
pub use config::{Config, default_socket};
pub use counters::{AgentCounters, Counter, Counters, Gauges, page as metrics_page};
pub use dial::{Incoming, Outgoing, dial};
use door::Door;
pub use gathered::Gathered;
use health::Health;
pub use listen::{Audience, Listener};
use managing::Managing;
use network::Network;
pub use node::NodeService;
pub use nodes::read_node_list;
pub use peer::{Accepted, Inlet, Outlet, Peer};
use peers::Peers;
pub use reload::Reloads;
pub use tenant_config::TenantConfig;

/// A node that is ready to serve.
pub struct Server {
    node: Arc<NodeService>,
    listener: Listener,
    network: Option<Network>,
    metrics: Option<SocketAddr>,
    config: Reloads,
    /// What runs beside the connections, and ends with the server.
    background: JoinSet<()>,
}

impl Server {
    /// Takes possession of the socket and the directory, and takes up what lies there.
    pub async fn bind(config: &Config, namespaces: Vec<Namespace>) -> anyhow::Result<Self> {
        config.check()?;
        let (access, tls) = (Access::load(config, namespaces)?, config.tls()?);
        let listener = Listener::bind(&config.socket, audience(config))?;
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
        let membership = config.membership()?;
        let peers = Peers::load(config, membership.as_ref())?;
        let life = session::fresh_nonce().context("the system has no randomness")?;
        let life = u64::from_le_bytes(*life.first_chunk().expect("longer"));
        let managing = Managing::new(blobs.capacity(), life, membership.as_ref(), peers);
        let node = Arc::new(NodeService::new(blobs, config, access, membership, managing));
        let network = match config.listen {
            Some(address) => Some(Network::bind(address, tls).await?),
            None => None,
        };
        health.recovered(Arc::clone(&node));
        let config = Reloads::new(Arc::clone(&node), config.clone());
        Ok(Self { node, listener, network, metrics, config, background })
    }

    /// The node itself.
    pub fn node(&self) -> &Arc<NodeService> {
        &self.node
    }

    /// Where `/metrics` is.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Where it listens for others than those on its socket.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        self.network.as_ref().and_then(|network| network.address().ok())
    }

    /// How to change the configuration while it runs.
    pub fn reloads(&self) -> Reloads {
        self.config.clone()
    }

    /// Serves until `stop` completes, or nobody has been connected for too long; then grants no more claims
    /// and lets what is under way finish, for as long as `grace` says.
    pub async fn run(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { node, listener, network, metrics: _, config, mut background } = self;
        background.spawn(Arc::clone(&node).expire_claims());
        background.spawn(Arc::clone(&node).manage());
        background.spawn(Peers::keep_in_touch(Arc::clone(&node)));
        let mut stop = pin!(stop);
        let mut door = Door::new(Arc::clone(&node), config.clone());
        let mut tick = interval(Duration::from_secs(1));
        let mut busy_at = Instant::now();
        loop {
            tokio::select! {
                socket = listener.accept() => door.local(socket),
                accepted = accept(network.as_ref()) => door.remote(accepted),
                Some(()) = door.ended() => {}
                _ = tick.tick() => {
                    if !door.is_empty() {
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
        drop((listener, network));
        let in_order = async {
            while node.is_busy() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            node.close();
            while door.ended().await.is_some() {}
        };
        if timeout(config.now().grace, in_order).await.is_err() {
            tracing::warn!("what was under way is cut off");
        }
        node.flush().await;
        Ok(())
    }
}

/// Other users are heard if some of them are tenants.
fn audience(config: &Config) -> Audience {
    let own = rustix::process::geteuid().as_raw();
    let mut uids = config.tenants.iter().flat_map(|tenant| &tenant.uids);
    if uids.any(|uid| *uid != own) { Audience::Everyone } else { Audience::Owner }
}

/// The next connection over the network; never one, if there is none.
async fn accept(network: Option<&Network>) -> (TcpStream, Option<TlsAcceptor>) {
    match network {
        Some(network) => network.accept().await,
        None => std::future::pending().await,
    }
}
