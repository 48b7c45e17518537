//! The state of the peers: which are reachable, and how much capacity the cluster has.
//!
//! A peer that does not answer for [`PEER_TIMEOUT`] does not split the space, and no eviction waits
//! for it. Its capacity counts for longer: a node that restarts comes back with its contents, and
//! all datasets would be moved twice.

use std::{collections::BTreeMap, time::Duration};

use super::{HEARTBEAT_INTERVAL, PEER_TIMEOUT};
use crate::{ByteSize, NodeName};

/// The capacity of a peer counts for this long after its last reply.
const CAPACITY_AGE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct PeerStates {
    started_at: Duration,
    peers: BTreeMap<NodeName, Peer>,
    pinged_at: Option<Duration>,
}

#[derive(Debug, Default)]
struct Peer {
    heard_at: Option<Duration>,
    capacity: ByteSize,
}

impl Peer {
    fn is_heard_within(&self, now: Duration, time: Duration) -> bool {
        self.heard_at.is_some_and(|at| now < at.saturating_add(time))
    }
}

impl PeerStates {
    pub fn new(now: Duration, peers: Vec<NodeName>) -> Self {
        let peers = peers.into_iter().map(|peer| (peer, Peer::default())).collect();
        Self { started_at: now, peers, pinged_at: None }
    }

    pub fn peers(&self) -> impl Iterator<Item = &NodeName> {
        self.peers.keys()
    }

    pub fn on_reply(&mut self, now: Duration, peer: &NodeName, capacity: ByteSize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            (peer.heard_at, peer.capacity) = (Some(now), capacity);
        }
    }

    pub fn is_reachable(&self, now: Duration, peer: &NodeName) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_heard_within(now, PEER_TIMEOUT))
    }

    pub fn reachable(&self, now: Duration) -> impl Iterator<Item = &NodeName> {
        self.peers.keys().filter(move |peer| self.is_reachable(now, peer))
    }

    /// Whether a peer may answer: it is reachable, or this node has just started.
    pub fn may_answer(&self, now: Duration, peer: &NodeName) -> bool {
        self.is_reachable(now, peer) || self.is_new(now) && self.peers.contains_key(peer)
    }

    /// The total capacity, this node's included. A peer that has not answered yet counts with this
    /// node's capacity at first: else all shares would change when it answers.
    pub fn capacity(&self, now: Duration, own: ByteSize) -> ByteSize {
        let capacity = |peer: &Peer| match peer.heard_at {
            Some(_) if peer.is_heard_within(now, CAPACITY_AGE_MAX) => peer.capacity.0,
            None if self.is_new(now) => own.0,
            _ => 0,
        };
        ByteSize(self.peers.values().map(capacity).fold(own.0, u64::saturating_add))
    }

    fn is_new(&self, now: Duration) -> bool {
        now < self.started_at.saturating_add(PEER_TIMEOUT)
    }

    /// The peers to ping now: all of them, once per heartbeat.
    pub fn take_due_pings(&mut self, now: Duration) -> Vec<NodeName> {
        if self.next_deadline().is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.pinged_at = Some(now);
        self.peers.keys().cloned().collect()
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let next =
            self.pinged_at.map_or(self.started_at, |at| at.saturating_add(HEARTBEAT_INTERVAL));
        (!self.peers.is_empty()).then_some(next)
    }
}
