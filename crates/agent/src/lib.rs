//! The agent: the process beside a job.
//!
//! It holds the origin's credentials, so that the job's own processes link no origin and can fork freely.
//! It claims what the job misses, fetches it, proves it, hands it to the node and to the job; while
//! nobody waits it fetches ahead. When there is no node it answers from the origin itself (promise 5).

mod ahead;
mod connection;
mod fetch;
mod link;
mod links;
mod service;
mod warm;

use std::{future::Future, path::PathBuf, pin::pin, sync::Arc};

use forebay_core::{ByteSize, Namespace, digest::Digest, ring::Contacts};
use forebay_identity::Credentials;
use forebay_origin::Origin;
use forebay_server::{Accepted, Audience, Listener, session};
use tokio::task::JoinSet;

use service::AgentService;
pub use warm::{Behind, Ended, Warmed, Warming, Why};

/// Processes of the job at once; each has one connection.
const CONNECTIONS_MAX: usize = 1024;

/// What an agent needs to know.
pub struct Config {
    /// The job's private socket.
    pub socket: PathBuf,
    /// Where the nodes are, or one that knows the others; nobody, if there is to be no node.
    pub nodes: Contacts,
    /// Who the job is to the node.
    pub credentials: Credentials,
    /// What the job calls itself.
    pub job: String,
    /// The dataset.
    pub digest: Digest,
    /// Where it lies.
    pub origin: Origin,
    /// The origin is another than the digest names: versions mean nothing there, content does.
    pub mirror: bool,
    /// Whose key proves what was fetched.
    pub namespace: Namespace,
    /// How much memory is used for blobs that no node keeps.
    pub memory: ByteSize,
}

/// Enough for packs that serve many items, and to fetch ahead without a node.
pub const MEMORY: ByteSize = ByteSize::mib(256);

/// An agent that is ready to serve.
pub struct Agent {
    service: Arc<AgentService>,
    listener: Listener,
}

impl Agent {
    /// Takes possession of the socket.
    pub fn bind(config: Config) -> anyhow::Result<Self> {
        let listener = Listener::bind(&config.socket, Audience::Owner)?;
        Ok(Self { service: Arc::new(AgentService::new(config)), listener })
    }

    /// Serves until `stop` completes.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { service, listener } = self;
        let (mut tasks, mut leaving) = (JoinSet::new(), JoinSet::new());
        tasks.spawn(ahead::run(Arc::clone(&service)));
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                socket = listener.accept() => {
                    if tasks.len() > CONNECTIONS_MAX {
                        session::turn_away(&mut leaving, socket);
                        continue;
                    }
                    let Ok(accepted) = Accepted::unix(socket) else { continue };
                    let service = Arc::clone(&service);
                    tasks.spawn(async move {
                        if let Err(error) = session::serve(service, accepted, ()).await {
                            tracing::debug!(%error, "a connection ended early");
                        }
                    });
                }
                Some(_) = tasks.join_next() => {}
                () = &mut stop => return,
            }
        }
    }
}
