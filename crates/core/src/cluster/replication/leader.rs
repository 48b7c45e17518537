//! The leader: replicates a dataset's keep-set and tracks which nodes have applied it.
//!
//! A node is sent the keep-set when it changes, when it has not answered, and once per heartbeat,
//! so that a restarted node learns it soon. At most one message per node is in flight; the next one
//! carries all changes since. An eviction is complete when every reachable node has applied a
//! keep-set without it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{HEARTBEAT_INTERVAL, KeepSet, Term};
use crate::{ByteSize, HalfChunk, HalfChunkRange, NodeName, train::manager::HalfChunkBytes};

/// An eviction counts as complete after this time, even if a peer has not answered: its space is
/// freed when it returns.
pub(super) const EVICT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Replication {
    keep_set: KeepSet,
    evictions: Vec<Eviction>,
    nodes: BTreeMap<NodeName, PeerProgress>,
}

/// Half-chunks that are in no keep-set from `version` on.
#[derive(Debug)]
struct Eviction {
    half_chunks: HalfChunkRange,
    version: u64,
    since: Duration,
}

#[derive(Debug, Default)]
struct PeerProgress {
    /// The newest version that it has applied.
    applied: u64,
    /// The version sent last, and when.
    sent: Option<(u64, Duration)>,
    /// Bytes put there, per half-chunk.
    arrived: BTreeMap<HalfChunk, u64>,
}

impl Replication {
    pub fn new(term: Term, kept: Vec<HalfChunk>, nodes: BTreeSet<NodeName>) -> Self {
        let nodes = nodes.into_iter().map(|node| (node, PeerProgress::default())).collect();
        Self { keep_set: KeepSet { term, version: 1, kept }, evictions: Vec::new(), nodes }
    }

    pub fn term(&self) -> &Term {
        &self.keep_set.term
    }

    pub fn keep_set(&self) -> KeepSet {
        self.keep_set.clone()
    }

    /// Sets a new keep-set and starts evictions.
    pub fn change(&mut self, now: Duration, kept: Vec<HalfChunk>, evicted: Vec<HalfChunkRange>) {
        if kept != self.keep_set.kept {
            self.keep_set.kept = kept;
            self.keep_set.version += 1;
        }
        let version = self.keep_set.version;
        self.evictions.extend(evicted.into_iter().map(|half_chunks| Eviction {
            half_chunks,
            version,
            since: now,
        }));
    }

    /// Whether the newest version has not been sent to a node.
    pub fn is_news_to(&self, node: &NodeName) -> bool {
        let progress = self.nodes.get(node).and_then(|progress| progress.sent);
        progress.is_none_or(|(version, _)| version < self.keep_set.version)
    }

    /// Whether the keep-set is to be sent to a node now.
    pub fn is_due(&self, now: Duration, node: &NodeName) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|progress| self.due_at(progress).is_none_or(|at| now >= at))
    }

    /// When the keep-set is sent to a node next, if nothing changes; `None` for now.
    fn due_at(&self, progress: &PeerProgress) -> Option<Duration> {
        let (version, at) = progress.sent?;
        let is_answered = progress.applied >= version;
        let is_news = version < self.keep_set.version;
        (!is_answered || !is_news).then(|| at.saturating_add(HEARTBEAT_INTERVAL))
    }

    pub fn on_sent(&mut self, now: Duration, node: &NodeName) {
        if let Some(progress) = self.nodes.get_mut(node) {
            progress.sent = Some((self.keep_set.version, now));
        }
    }

    /// A node has applied a version. Returns the bytes put there since its last answer.
    pub fn on_applied(
        &mut self,
        node: &NodeName,
        version: u64,
        arrived: &[HalfChunkBytes],
    ) -> Vec<HalfChunkBytes> {
        let Some(progress) = self.nodes.get_mut(node) else { return Vec::new() };
        progress.applied = progress.applied.max(version);
        let news = |HalfChunkBytes { half_chunk, bytes }: &HalfChunkBytes| {
            let known = progress.arrived.entry(*half_chunk).or_default();
            let more = bytes.0.saturating_sub(*known);
            // A node that restarted counts from 0.
            *known = bytes.0;
            HalfChunkBytes { half_chunk: *half_chunk, bytes: ByteSize(more) }
        };
        arrived.iter().map(news).filter(|more| more.bytes.0 > 0).collect()
    }

    /// Takes the evictions that are complete.
    pub fn complete(
        &mut self,
        now: Duration,
        is_reachable: impl Fn(&NodeName) -> bool,
    ) -> Vec<HalfChunkRange> {
        let awaited = self.nodes.iter().filter(|(node, _)| is_reachable(node));
        let applied = awaited.map(|(_, progress)| progress.applied).min().unwrap_or(u64::MAX);
        let is_over = |evictions: &mut Eviction| {
            evictions.version <= applied || now >= evictions.since.saturating_add(EVICT_TIMEOUT)
        };
        self.evictions.extract_if(.., is_over).map(|evictions| evictions.half_chunks).collect()
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        // A single node applies its keep-set at once.
        let is_alone = self.nodes.len() == 1;
        let tells =
            self.nodes.values().map(|progress| self.due_at(progress).unwrap_or_default()).min();
        let ends =
            self.evictions.iter().map(|evictions| evictions.since.saturating_add(EVICT_TIMEOUT));
        tells.filter(|_| !is_alone).into_iter().chain(ends).min()
    }
}
