//! Peers: one connection to each other node of the cluster, with the same handshake as a job's.
//!
//! Messages may be lost, because replication repeats them. So no messages are queued for a peer
//! that is dead or hung, and those queued before are dropped when it answers again. Replies name
//! their subject and are not matched to requests. Replication pings every peer each second: a peer
//! that is silent for [`NODE_TIMEOUT`] is hung, and its connection is closed.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use anyhow::Context as _;
use forebay_auth::{Credentials, Files, read_token_file};
use forebay_core::{
    Endpoint, NodeName,
    cluster::{
        backoff::NODE_TIMEOUT, replication::Request as ClusterRequest, ring::RingMembership,
    },
    ids::TokenHash,
};
use forebay_transport::{Connector, Incoming, Outgoing};
use forebay_wire::{ErrorCode, HEADER_SIZE, Header, Refusal, Reply, Request, SentToken, VERSIONS};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use crate::{Config, requests::service::NodeService};

/// Requests queued for one peer. Further ones are dropped.
const QUEUE_LENGTH_MAX: usize = 4096;
/// Time after which a dead or hung peer is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The other nodes of the cluster.
pub(crate) struct Peers {
    all: BTreeMap<NodeName, Peer>,
    connector: Arc<dyn Connector>,
    credentials: Credentials,
    token: Option<TokenHash>,
    /// Name of this node.
    own_name: String,
}

struct Peer {
    endpoint: Endpoint,
    requests: mpsc::Sender<ClusterRequest>,
    /// Taken by the task of the connection.
    queue: Mutex<Option<mpsc::Receiver<ClusterRequest>>>,
}

impl Peers {
    /// The peers of a configuration. Without `cluster_token` there are none.
    pub fn load(
        config: &Config,
        membership: Option<&RingMembership>,
        connector: Arc<dyn Connector>,
    ) -> anyhow::Result<Self> {
        let Some(membership) = membership else { return Ok(Self::none(connector)) };
        let Some(path) = &config.cluster_token else {
            tracing::warn!("no `cluster_token`: this node manages its part of every dataset alone");
            return Ok(Self::none(connector));
        };
        let token = read_token_file(path).context("`cluster_token`")?;
        let files = Files {
            token: Some(path.clone()),
            authority: config.cluster_ca.clone(),
            ..Files::default()
        };
        let credentials = Credentials::read(&files).context("connect to the other nodes")?;
        let mut all = BTreeMap::new();
        for member in membership.ring().members() {
            if member.name == *membership.name() {
                continue;
            }
            let endpoint = member.endpoint.clone();
            let (requests, queue) = mpsc::channel(QUEUE_LENGTH_MAX);
            let queue = Mutex::new(Some(queue));
            all.insert(member.name.clone(), Peer { endpoint, requests, queue });
        }
        let own_name = membership.name().to_string();
        let token = Some(TokenHash::of(token.as_bytes()));
        Ok(Self { all, connector, credentials, token, own_name })
    }

    fn none(connector: Arc<dyn Connector>) -> Self {
        let (all, credentials, token, own_name) = Default::default();
        Self { all, connector, credentials, token, own_name }
    }

    /// Names of the peers.
    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.all.keys()
    }

    /// The peer that a hello is from: the name is a peer's, and the token is the cluster's.
    pub fn identify(&self, name: &str, token: &[u8]) -> Option<NodeName> {
        let name = name.parse().ok()?;
        (self.all.contains_key(&name) && self.is_cluster_token(token)).then_some(name)
    }

    /// Whether a token is the cluster's.
    pub fn is_cluster_token(&self, token: &[u8]) -> bool {
        self.token == Some(TokenHash::of(token))
    }

    /// Queues a request, or drops it if the queue is full.
    pub fn send(&self, peer: &NodeName, request: ClusterRequest) {
        if let Some(peer) = self.all.get(peer) {
            let _ = peer.requests.try_send(request);
        }
    }

    /// Keeps the connections to all peers. Does not return.
    pub async fn run(node: Arc<NodeService>) {
        let mut tasks = JoinSet::new();
        for (name, peer) in &node.managers.peers().all {
            let queue = peer.queue.lock().take();
            if let Some(queue) = queue {
                let (node, name) = (Arc::clone(&node), name.clone());
                tasks.spawn(run_connection(node, name, peer.endpoint.clone(), queue));
            }
        }
        while tasks.join_next().await.is_some() {}
        // There are no peers.
        std::future::pending::<()>().await;
    }
}

/// Connects to a peer again and again, and exchanges messages while it is healthy.
async fn run_connection(
    node: Arc<NodeService>,
    name: NodeName,
    endpoint: Endpoint,
    mut queue: mpsc::Receiver<ClusterRequest>,
) {
    let mut health_log = HealthLog::default();
    loop {
        let peers = node.managers.peers();
        let ended = match connect(peers, &endpoint).await {
            Ok((reader, writer)) => {
                while queue.try_recv().is_ok() {}
                tokio::select! {
                    biased;
                    ended = read_replies(&node, &name, reader, &mut health_log) => ended,
                    ended = write_requests(&mut queue, writer) => ended,
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            health_log.on_failure(&name, &error);
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Logs changes of one peer's health, each once.
#[derive(Default)]
struct HealthLog {
    /// `None` before the first result.
    is_healthy: Option<bool>,
}

impl HealthLog {
    /// The peer has sent a cluster reply.
    fn on_reply(&mut self, name: &NodeName) {
        if self.is_healthy.replace(true) != Some(true) {
            tracing::info!(peer = %name, "reached");
        }
    }

    /// The peer is dead or hung, or rejects this node.
    fn on_failure(&mut self, name: &NodeName, error: &io::Error) {
        let cause = cause_of(error);
        let message = match self.is_healthy.replace(false) {
            Some(false) => return tracing::debug!(peer = %name, cause, "still cannot be reached"),
            Some(true) => "lost; its share of the blobs is read from the origin",
            None => "cannot be reached; check that it runs (`forebay status`)",
        };
        tracing::warn!(peer = %name, cause, "{message}");
    }
}

/// The cause of a failure and its remedy.
fn cause_of(error: &io::Error) -> String {
    match error.get_ref().and_then(|error| error.downcast_ref::<Refusal>()) {
        // The peer takes this node for a job, or rejects it.
        Some(Refusal { code: ErrorCode::Malformed | ErrorCode::Identity, .. }) => {
            "its `cluster_token` differs from this node's, or its `nodes` lack this node; give all \
             nodes the same"
                .to_owned()
        }
        _ if error.kind() == io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

async fn connect(peers: &Peers, endpoint: &Endpoint) -> io::Result<(Incoming, Outgoing)> {
    let Peers { connector, credentials, own_name, .. } = peers;
    let (mut reader, mut writer) = connector.connect(endpoint, credentials, NODE_TIMEOUT).await?;
    let (version_min, version_max) = VERSIONS;
    let token = SentToken(credentials.token().to_vec());
    let hello = Request::Hello { version_min, version_max, job: own_name.clone(), token };
    write(&mut writer, &hello).await?;
    match timeout(NODE_TIMEOUT, read(&mut reader)).await?? {
        Reply::Hello { .. } => Ok((reader, writer)),
        Reply::Error(refusal) => Err(io::Error::other(refusal)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Passes replies to the managers until the peer is silent for [`NODE_TIMEOUT`].
async fn read_replies(
    node: &Arc<NodeService>,
    name: &NodeName,
    mut reader: Incoming,
    health_log: &mut HealthLog,
) -> io::Result<()> {
    loop {
        match timeout(NODE_TIMEOUT, read(&mut reader)).await?? {
            Reply::Cluster { capacity, reply } => {
                health_log.on_reply(name);
                node.on_cluster_reply(name.clone(), capacity, reply).await;
            }
            Reply::Error(refusal) => return Err(io::Error::other(refusal)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Writes queued requests until a write fails.
async fn write_requests(
    queue: &mut mpsc::Receiver<ClusterRequest>,
    mut writer: Outgoing,
) -> io::Result<()> {
    while let Some(request) = queue.recv().await {
        timeout(NODE_TIMEOUT, write(&mut writer, &Request::Cluster(request))).await??;
    }
    Ok(())
}

async fn write(writer: &mut Outgoing, request: &Request) -> io::Result<()> {
    writer.write_all(&request.encode(1).to_bytes()).await?;
    writer.flush().await
}

async fn read(reader: &mut Incoming) -> io::Result<Reply> {
    let mut header = [0; HEADER_SIZE];
    reader.read_exact(&mut header).await?;
    let header = Header::decode(&header).map_err(io::Error::other)?;
    let mut body = Vec::new();
    // Memory grows as bytes arrive, not by the announced size.
    reader.take(header.body_size as u64).read_to_end(&mut body).await?;
    Reply::decode(&header, &body.into()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_with_the_remedy() {
        let refused = |code| io::Error::other(Refusal { code, text: "no".to_owned() });
        for code in [ErrorCode::Malformed, ErrorCode::Identity] {
            assert!(cause_of(&refused(code)).contains("`cluster_token` differs"));
        }
        assert_eq!(cause_of(&refused(ErrorCode::Stopping)), "no");
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "see https://example.org");
        assert_eq!(cause_of(&closed), "it closed the connection");
    }
}
