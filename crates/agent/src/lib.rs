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

use std::{future::Future, io, path::PathBuf, pin::pin, sync::Arc};

use forebay_auth::Credentials;
use forebay_core::{ByteSize, Namespace, cluster::ring::Seeds};
use forebay_digest::Digest;
use forebay_origin::Origin;
use forebay_transport::{
    Accepted, Connector, Entropy, Listener, ReadHalf, SocketAccess, Sockets, WriteHalf, session,
};
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

/// What an agent uses of the outside, beside the origin.
pub struct Environment {
    /// Source of nonces.
    pub entropy: Entropy,
    /// Opens connections to nodes.
    pub connector: Arc<dyn Connector>,
}

impl Environment {
    /// The kernel and sockets.
    pub fn of_this_machine() -> Self {
        Self { entropy: Entropy::kernel(), connector: Arc::new(Sockets) }
    }
}

/// The agent of a job, without a socket.
#[derive(Clone)]
pub struct Agent(Arc<AgentService>);

/// An agent that listens at a socket.
pub struct ListeningAgent {
    agent: Agent,
    listener: Listener,
}

impl Agent {
    /// An agent. It has no connections.
    pub fn new(config: Config, environment: Environment) -> Self {
        Self(Arc::new(AgentService::new(config, environment)))
    }

    /// Binds the socket.
    pub fn bind(config: Config) -> anyhow::Result<ListeningAgent> {
        let listener = Listener::bind(&config.socket, SocketAccess::Owner)?;
        Ok(ListeningAgent { agent: Self::new(config, Environment::of_this_machine()), listener })
    }

    /// Starts the tasks beside the connections.
    pub fn spawn_background(&self, tasks: &mut JoinSet<()>) {
        tasks.spawn(prefetch::run(Arc::clone(&self.0)));
        let watching = Arc::clone(&self.0);
        tasks.spawn(async move { watching.links.watch().await });
    }

    /// Serves one process of the job until its connection ends.
    pub async fn serve(self, accepted: Accepted<impl ReadHalf, impl WriteHalf>) -> io::Result<()> {
        session::serve(self.0, accepted, ()).await
    }
}

impl ListeningAgent {
    /// Serves until `stop` completes.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { agent, listener } = self;
        let (mut tasks, mut rejected) = (JoinSet::new(), JoinSet::new());
        agent.spawn_background(&mut tasks);
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
                    let agent = agent.clone();
                    tasks.spawn(async move {
                        if let Err(error) = agent.serve(accepted).await {
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
