//! Who lives, and how much space there is.
//!
//! A node that does not answer for a moment is not asked to split the space, and nobody waits for what it has
//! to free. But its space is counted for longer: a node that is started again comes back with all it had,
//! and all datasets would be moved twice.

use std::{collections::BTreeMap, time::Duration};

use super::{SILENCE, TELL_EVERY};
use crate::{ByteSize, NodeName};

/// The space of a node counts for so long after it was last heard of.
const AWAY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Reach {
    started_at: Duration,
    peers: BTreeMap<NodeName, Peer>,
    greeted_at: Option<Duration>,
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

impl Reach {
    pub fn new(now: Duration, peers: Vec<NodeName>) -> Self {
        let peers = peers.into_iter().map(|peer| (peer, Peer::default())).collect();
        Self { started_at: now, peers, greeted_at: None }
    }

    pub fn peers(&self) -> impl Iterator<Item = &NodeName> {
        self.peers.keys()
    }

    pub fn heard(&mut self, now: Duration, peer: &NodeName, capacity: ByteSize) {
        if let Some(peer) = self.peers.get_mut(peer) {
            (peer.heard_at, peer.capacity) = (Some(now), capacity);
        }
    }

    pub fn is_reachable(&self, now: Duration, peer: &NodeName) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_heard_within(now, SILENCE))
    }

    pub fn reachable(&self, now: Duration) -> impl Iterator<Item = &NodeName> {
        self.peers.keys().filter(move |peer| self.is_reachable(now, peer))
    }

    /// Whether somebody is worth waiting for. At first nothing is known of anybody.
    pub fn may_answer(&self, now: Duration, peer: &NodeName) -> bool {
        self.is_reachable(now, peer) || self.is_new(now) && self.peers.contains_key(peer)
    }

    /// All space that counts, with one's own. Of whom nothing was heard yet, it is believed that they have as
    /// much: else all datasets would be moved when they are heard of.
    pub fn capacity(&self, now: Duration, own: ByteSize) -> ByteSize {
        let capacity = |peer: &Peer| match peer.heard_at {
            Some(_) if peer.is_heard_within(now, AWAY) => peer.capacity.0,
            None if self.is_new(now) => own.0,
            _ => 0,
        };
        ByteSize(self.peers.values().map(capacity).fold(own.0, u64::saturating_add))
    }

    fn is_new(&self, now: Duration) -> bool {
        now < self.started_at.saturating_add(SILENCE)
    }

    /// Those who are greeted now: everybody, every so often.
    pub fn greet(&mut self, now: Duration) -> Vec<NodeName> {
        if self.next_deadline().is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.greeted_at = Some(now);
        self.peers.keys().cloned().collect()
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        let next = self.greeted_at.map_or(self.started_at, |at| at.saturating_add(TELL_EVERY));
        (!self.peers.is_empty()).then_some(next)
    }
}
