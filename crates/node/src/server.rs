//! Server: binds a node to its sockets and devices, serves connections, and stops it.

use std::{future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use anyhow::Context as _;
use forebay_core::Namespace;
use forebay_transport::{Listener, SocketAccess, tcp::TcpAcceptor};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, interval},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    config::{Config, reload::Reloads},
    connections::acceptor::Acceptor,
    environment::Environment,
    ops::{self, health::Health},
    requests::{access::Access, service::NodeService},
    store::{blob_store::BlobStore, stream_store::StreamStore},
};

/// A node that is ready to serve.
pub struct Server {
    node: Arc<NodeService>,
    listener: Listener,
    tcp: Option<TcpAcceptor>,
    metrics: Option<SocketAddr>,
    config: Reloads,
    /// Tasks beside the connections, which end with the server.
    background: JoinSet<()>,
}

impl Server {
    /// Opens the socket, the devices and the ports of a configuration, and recovers the blobs on
    /// the devices.
    pub async fn bind(config: &Config, namespaces: Vec<Namespace>) -> anyhow::Result<Self> {
        config.check()?;
        let (access, tls) = (Access::load(config, namespaces)?, config.tls()?);
        let listener = Listener::bind(&config.socket, socket_access(config))?;
        let (health, mut background) = (Arc::new(Health::default()), JoinSet::new());
        let mut metrics = None;
        // Before the devices are opened: recovery may take long, and `/readyz` reports it.
        if let Some(address) = config.metrics {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!("serve metrics on {address}; check that no other server uses the port")
            })?;
            metrics = listener.local_addr().ok();
            background.spawn(ops::http::serve(listener, Arc::clone(&health)));
        }
        let environment = Environment::of_this_machine();
        let (store_config, entropy) = (config.clone(), environment.entropy.clone());
        let open = move || {
            let blobs = BlobStore::open(&store_config, entropy)?;
            anyhow::Ok((blobs, StreamStore::open(&store_config)?))
        };
        let (blobs, streams) = tokio::task::spawn_blocking(open).await??;
        let node = NodeService::new(blobs, streams, config, access, environment)?;
        let tcp = match config.listen {
            Some(address) => Some(TcpAcceptor::bind(address, tls).await?),
            None => None,
        };
        health.on_recovered(Arc::clone(&node));
        let config = Reloads::new(Arc::clone(&node), config.clone());
        Ok(Self { node, listener, tcp, metrics, config, background })
    }

    /// The service of the node.
    pub fn node(&self) -> &Arc<NodeService> {
        &self.node
    }

    /// The address of `/metrics`, if it is served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// The TCP address on which the node listens, if any.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.address().ok())
    }

    /// The handle for changing the configuration of the running node.
    pub fn reloads(&self) -> Reloads {
        self.config.clone()
    }

    /// Serves until `stop` completes, or until there was no connection for `idle_exit`. Then no
    /// more claims are granted, and requests in progress have `shutdown_grace` to finish.
    pub async fn run(self, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { node, listener, tcp, metrics: _, config, mut background } = self;
        node.spawn_background(&mut background);
        let mut stop = pin!(stop);
        let mut acceptor = Acceptor::new(Arc::clone(&node));
        let mut tick = interval(Duration::from_secs(1));
        let mut busy_at = Instant::now();
        loop {
            tokio::select! {
                socket = listener.accept() => acceptor.on_local(socket),
                accepted = accept(tcp.as_ref()) => acceptor.on_remote(accepted),
                Some(()) = acceptor.next_ended() => {}
                _ = tick.tick() => {
                    if !acceptor.is_empty() {
                        busy_at = Instant::now();
                        continue;
                    }
                    let idle_exit = config.now().idle_exit;
                    if idle_exit.is_some_and(|idle| busy_at.elapsed() > idle) {
                        tracing::info!(?idle_exit, "stop after idle time");
                        break;
                    }
                }
                () = &mut stop => break,
            }
        }
        // The sockets first, so that another node can be started at once.
        drop((listener, tcp));
        acceptor.drain(config.now().shutdown_grace).await;
        drop(background);
        node.finish().await;
        Ok(())
    }
}

/// All users may connect if a tenant has a uid other than the node's.
fn socket_access(config: &Config) -> SocketAccess {
    let own = rustix::process::geteuid().as_raw();
    let mut uids = config.tenants.iter().flat_map(|tenant| &tenant.uids);
    if uids.any(|uid| *uid != own) { SocketAccess::AllUsers } else { SocketAccess::Owner }
}

/// The next TCP connection. Never completes if the node does not listen on TCP.
async fn accept(tcp: Option<&TcpAcceptor>) -> (TcpStream, Option<TlsAcceptor>) {
    match tcp {
        Some(tcp) => tcp.accept().await,
        None => std::future::pending().await,
    }
}
