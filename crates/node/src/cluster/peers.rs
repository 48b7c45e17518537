//! Connections to the other nodes of the ring, one to each, as jobs connect to a node.
//!
//! What is sent may be lost: the council says it again. So nothing is kept for a node that cannot be reached, and
//! what was meant for it before is dropped when it is back. Answers say what they are about, so that they
//! need not be matched with what was asked. A node that is greeted every second and says nothing is given up, and
//! its connection with it.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use anyhow::Context as _;
use forebay_core::{
    Endpoint, NodeName, council::Request as Said, names::TokenHash, patience::NODE_PATIENCE,
    ring::Membership,
};
use forebay_identity::{Credentials, Files, read_token_file};
use forebay_wire::{ErrorCode, HEADER_SIZE, Header, Refusal, Reply, Request, SentToken, VERSIONS};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use crate::{Config, Incoming, Outgoing, dial, node::NodeService};

/// Requests that wait to be written to one node; what does not fit is lost.
const WAITING_MAX: usize = 4096;
/// A node that cannot be reached is tried again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// The other nodes.
#[derive(Default)]
pub(crate) struct Peers {
    all: BTreeMap<NodeName, Peer>,
    credentials: Credentials,
    token: Option<TokenHash>,
    /// What this node is called.
    me: String,
}

struct Peer {
    endpoint: Endpoint,
    requests: mpsc::Sender<Said>,
    /// Until somebody carries them.
    outgoing: Mutex<Option<mpsc::Receiver<Said>>>,
}

impl Peers {
    /// Those of the ring, if they know each other by a token.
    pub fn load(config: &Config, membership: Option<&Membership>) -> anyhow::Result<Self> {
        let Some(membership) = membership else { return Ok(Self::default()) };
        let Some(path) = &config.cluster_token else {
            tracing::warn!(
                "without `cluster_token` this node manages its part of every dataset by itself"
            );
            return Ok(Self::default());
        };
        let token = read_token_file(path).context("`cluster_token`")?;
        let files = Files {
            token: Some(path.clone()),
            authority: config.cluster_authority.clone(),
            ..Files::default()
        };
        let credentials = Credentials::read(&files).context("connect to the other nodes")?;
        let mut all = BTreeMap::new();
        for member in membership.ring().members() {
            if member.name == *membership.name() {
                continue;
            }
            let endpoint = member.endpoint.clone();
            let (requests, outgoing) = mpsc::channel(WAITING_MAX);
            let outgoing = Mutex::new(Some(outgoing));
            all.insert(member.name.clone(), Peer { endpoint, requests, outgoing });
        }
        let me = membership.name().to_string();
        Ok(Self { all, credentials, token: Some(TokenHash::of(token.as_bytes())), me })
    }

    /// What they are called.
    pub fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.all.keys()
    }

    /// Which of them says hello, if its token is the cluster's.
    pub fn identify(&self, name: &str, token: &[u8]) -> Option<NodeName> {
        let name = name.parse().ok()?;
        (self.all.contains_key(&name) && self.is_their_token(token)).then_some(name)
    }

    /// Whether a token is the cluster's.
    pub fn is_their_token(&self, token: &[u8]) -> bool {
        self.token == Some(TokenHash::of(token))
    }

    /// Sends a request, or loses it.
    pub fn send(&self, peer: &NodeName, request: Said) {
        if let Some(peer) = self.all.get(peer) {
            let _ = peer.requests.try_send(request);
        }
    }

    /// Stays in touch with all of them, for ever.
    pub async fn keep_in_touch(node: Arc<NodeService>) {
        let mut tasks = JoinSet::new();
        for (name, peer) in &node.managing.peers().all {
            let outgoing = peer.outgoing.lock().take();
            if let Some(outgoing) = outgoing {
                let (node, name) = (Arc::clone(&node), name.clone());
                tasks.spawn(carry(node, name, peer.endpoint.clone(), outgoing));
            }
        }
        while tasks.join_next().await.is_some() {}
        // There is nobody, or nobody any more.
        std::future::pending::<()>().await;
    }
}

async fn carry(
    node: Arc<NodeService>,
    name: NodeName,
    endpoint: Endpoint,
    mut outgoing: mpsc::Receiver<Said>,
) {
    let mut standing = Standing::default();
    loop {
        let peers = node.managing.peers();
        let ended = match connect(&endpoint, &peers.credentials, &peers.me).await {
            Ok((reader, writer)) => {
                while outgoing.try_recv().is_ok() {}
                tokio::select! {
                    ended = listen(&node, &name, reader, &mut standing) => ended,
                    ended = speak(&mut outgoing, writer) => ended,
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            standing.failed(&name, &error);
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

/// How it stands with one node, so that the log says it once for each change.
#[derive(Default)]
struct Standing {
    /// Nothing is known at first.
    is_reached: Option<bool>,
}

impl Standing {
    /// It has answered as nodes answer each other.
    fn answered(&mut self, name: &NodeName) {
        if self.is_reached.replace(true) != Some(true) {
            tracing::info!(peer = %name, "reached");
        }
    }

    fn failed(&mut self, name: &NodeName, error: &io::Error) {
        let cause = in_words(error);
        let told = match self.is_reached.replace(false) {
            Some(false) => return tracing::debug!(peer = %name, cause, "still cannot be reached"),
            Some(true) => "lost; its share is read from the origin meanwhile",
            None => "cannot be reached; see that it runs (`forebay status`)",
        };
        tracing::warn!(peer = %name, cause, "{told}");
    }
}

/// Why a node does not answer, with what to do about it.
fn in_words(error: &io::Error) -> String {
    match error.get_ref().and_then(|error| error.downcast_ref::<Refusal>()) {
        // It takes us for a job, or for nobody.
        Some(Refusal { code: ErrorCode::Malformed | ErrorCode::Identity, .. }) => {
            "its `cluster_token` differs from ours, or its `nodes` do not have us; give all nodes the same".to_owned()
        }
        _ if error.kind() == io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        _ => error.to_string(),
    }
}

async fn connect(
    endpoint: &Endpoint,
    credentials: &Credentials,
    me: &str,
) -> io::Result<(Incoming, Outgoing)> {
    let (mut reader, mut writer) = dial(endpoint, credentials, NODE_PATIENCE).await?;
    let (version_min, version_max) = VERSIONS;
    let token = SentToken(credentials.token().to_vec());
    let hello = Request::Hello { version_min, version_max, job: me.to_owned(), token };
    write(&mut writer, &hello).await?;
    match timeout(NODE_PATIENCE, read(&mut reader)).await?? {
        Reply::Hello { .. } => Ok((reader, writer)),
        Reply::Error(refusal) => Err(io::Error::other(refusal)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Takes answers until none comes.
async fn listen(
    node: &Arc<NodeService>,
    name: &NodeName,
    mut reader: Incoming,
    standing: &mut Standing,
) -> io::Result<()> {
    loop {
        match timeout(NODE_PATIENCE, read(&mut reader)).await?? {
            Reply::Council { capacity, reply } => {
                standing.answered(name);
                node.answered(name, capacity, reply);
            }
            Reply::Error(refusal) => return Err(io::Error::other(refusal)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Writes what there is to say until it cannot be written.
async fn speak(outgoing: &mut mpsc::Receiver<Said>, mut writer: Outgoing) -> io::Result<()> {
    while let Some(said) = outgoing.recv().await {
        timeout(NODE_PATIENCE, write(&mut writer, &Request::Council(said))).await??;
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
    // Space is taken as bytes arrive, not when they are announced.
    reader.take(header.body_size as u64).read_to_end(&mut body).await?;
    Reply::decode(&header, &body.into()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_the_fix() {
        let refused = |code| io::Error::other(Refusal { code, text: "no".to_owned() });
        for code in [ErrorCode::Malformed, ErrorCode::Identity] {
            assert!(in_words(&refused(code)).contains("`cluster_token` differs"));
        }
        assert_eq!(in_words(&refused(ErrorCode::Stopping)), "no");
        let hung_up = io::Error::new(io::ErrorKind::UnexpectedEof, "see https://example.org");
        assert_eq!(in_words(&hung_up), "it hung up");
    }
}
