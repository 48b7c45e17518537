//! The agent: the process beside a job that reads the origin.
//!
//! It holds the origin's credentials, so that the processes of the job link no origin client and
//! can fork freely. It claims blobs that the job misses, fetches them, verifies their addresses,
//! and sends them to the node and to the job. While the job waits for nothing it prefetches.
//! Without a node it answers from the origin (promise 5).

mod claims;
mod cluster;
mod connection;
mod fetch;
mod liveness;
mod metrics;
mod node_link;
mod prefetch;
mod service;
mod warm;
mod wrong_bytes;

use std::{future::Future, path::PathBuf, pin::pin, sync::Arc};

use forebay_auth::Credentials;
use forebay_core::{ByteSize, Namespace, cluster::ring::Seeds};
use forebay_digest::Digest;
use forebay_origin::Origin;
use forebay_transport::{Accepted, Listener, SocketAccess, session};
use tokio::task::JoinSet;

pub use metrics::metric_rows;
use service::AgentService;
pub use warm::{IncompleteReason, IncompleteShare, Warm, WarmError, WarmProgress, WarmResult};

/// Most processes of the job. Each has one connection.
const CONNECTIONS_MAX: usize = 1024;

/// The configuration of an agent.
pub struct Config {
    /// The job's private socket.
    pub socket: PathBuf,
    /// The seeds from which the nodes are discovered. Empty to use no node.
    pub nodes: Seeds,
    /// The job's credentials for the nodes.
    pub credentials: Credentials,
    /// The name of the job.
    pub job: String,
    /// The dataset.
    pub digest: Digest,
    /// Where the dataset is.
    pub origin: Origin,
    /// Whether the origin is another than the digest names. Versions do not apply there; only the
    /// content is checked.
    pub mirror: bool,
    /// The namespace whose key verifies the fetched blobs.
    pub namespace: Namespace,
    /// Size of the agent's cache, for blobs that no node keeps.
    pub memory: ByteSize,
}

/// An agent that is ready to serve.
pub struct Agent {
    service: Arc<AgentService>,
    listener: Listener,
}

impl Agent {
    /// Binds the socket.
    pub fn bind(config: Config) -> anyhow::Result<Self> {
        let listener = Listener::bind(&config.socket, SocketAccess::Owner)?;
        Ok(Self { service: Arc::new(AgentService::new(config)), listener })
    }

    /// Serves until `stop` completes.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { service, listener } = self;
        let (mut tasks, mut rejected) = (JoinSet::new(), JoinSet::new());
        tasks.spawn(prefetch::run(Arc::clone(&service)));
        let watching = Arc::clone(&service);
        tasks.spawn(async move { watching.links.watch().await });
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                socket = listener.accept() => {
                    if tasks.len() > CONNECTIONS_MAX {
                        let text = "the agent has too many connections; start fewer workers";
                        let socket = std::future::ready(Ok(socket));
                        session::reject(&mut rejected, socket, text);
                        continue;
                    }
                    let Ok(accepted) = Accepted::unix(socket) else { continue };
                    let service = Arc::clone(&service);
                    tasks.spawn(async move {
                        if let Err(error) = session::serve(service, accepted, ()).await {
                            tracing::debug!(%error, "connection ended early");
                        }
                    });
                }
                Some(_) = tasks.join_next() => {}
                () = &mut stop => return,
            }
        }
    }
}
