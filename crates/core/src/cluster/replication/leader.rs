//! A manager's word, and who has obeyed it.
//!
//! Every node is told what is kept: when it changes, when it has not answered, and every so often, so that one
//! that was started again knows soon. To one node only one word is under way at a time; the next says all that
//! changed meanwhile. A piece has gone when every node that can be reached has obeyed a word without it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use super::{Places, TELL_EVERY, Term};
use crate::{ByteSize, NodeName};

/// An eviction counts as complete after so long, whoever has not answered: its space comes back by itself.
pub(super) const EVICT_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Telling {
    places: Places,
    leaving: Vec<Leaving>,
    nodes: BTreeMap<NodeName, Told>,
}

/// Pieces that nobody is to have from this version on.
#[derive(Debug)]
struct Leaving {
    pieces: Range<u32>,
    version: u64,
    since: Duration,
}

#[derive(Debug, Default)]
struct Told {
    /// The newest version that it has obeyed,
    obeyed: u64,
    /// and the one it was told last, and when.
    sent: Option<(u64, Duration)>,
    /// What has arrived there.
    arrived: BTreeMap<u32, u64>,
}

impl Telling {
    pub fn new(term: Term, kept: Vec<u32>, nodes: BTreeSet<NodeName>) -> Self {
        let nodes = nodes.into_iter().map(|node| (node, Told::default())).collect();
        Self { places: Places { term, version: 1, kept }, leaving: Vec::new(), nodes }
    }

    pub fn term(&self) -> &Term {
        &self.places.term
    }

    pub fn places(&self) -> Places {
        self.places.clone()
    }

    /// This is kept from now on, and these pieces are to go.
    pub fn change(&mut self, now: Duration, kept: Vec<u32>, evicted: Vec<Range<u32>>) {
        if kept != self.places.kept {
            self.places.kept = kept;
            self.places.version += 1;
        }
        let version = self.places.version;
        self.leaving.extend(evicted.into_iter().map(|pieces| Leaving {
            pieces,
            version,
            since: now,
        }));
    }

    /// Whether a node was not told the newest version yet.
    pub fn is_news_to(&self, node: &NodeName) -> bool {
        let told = self.nodes.get(node).and_then(|told| told.sent);
        told.is_none_or(|(version, _)| version < self.places.version)
    }

    /// Whether a node is to be told now.
    pub fn is_due(&self, now: Duration, node: &NodeName) -> bool {
        self.nodes.get(node).is_some_and(|told| self.due_at(told).is_none_or(|at| now >= at))
    }

    /// When a node is told next, if nothing changes; now, if there is no such time.
    fn due_at(&self, told: &Told) -> Option<Duration> {
        let (version, at) = told.sent?;
        let is_answered = told.obeyed >= version;
        let is_news = version < self.places.version;
        (!is_answered || !is_news).then(|| at.saturating_add(TELL_EVERY))
    }

    pub fn sent(&mut self, now: Duration, node: &NodeName) {
        if let Some(told) = self.nodes.get_mut(node) {
            told.sent = Some((self.places.version, now));
        }
    }

    /// A node has obeyed. Returns what has arrived there since it last answered.
    pub fn obeyed(
        &mut self,
        node: &NodeName,
        version: u64,
        arrived: &[(u32, ByteSize)],
    ) -> Vec<(u32, ByteSize)> {
        let Some(told) = self.nodes.get_mut(node) else { return Vec::new() };
        told.obeyed = told.obeyed.max(version);
        let news = |(piece, bytes): &(u32, ByteSize)| {
            let known = told.arrived.entry(*piece).or_default();
            let more = bytes.0.saturating_sub(*known);
            // A node that was started again counts from nought.
            *known = bytes.0;
            (*piece, ByteSize(more))
        };
        arrived.iter().map(news).filter(|(_, more)| more.0 > 0).collect()
    }

    /// Evictions that are complete, each once.
    pub fn complete(
        &mut self,
        now: Duration,
        is_reachable: impl Fn(&NodeName) -> bool,
    ) -> Vec<Range<u32>> {
        let awaited = self.nodes.iter().filter(|(node, _)| is_reachable(node));
        let obeyed = awaited.map(|(_, told)| told.obeyed).min().unwrap_or(u64::MAX);
        let is_over = |leaving: &mut Leaving| {
            leaving.version <= obeyed || now >= leaving.since.saturating_add(EVICT_WITHIN)
        };
        self.leaving.extract_if(.., is_over).map(|leaving| leaving.pieces).collect()
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        // A node alone is told at once; it frees what it has to, and says so.
        let is_alone = self.nodes.len() == 1;
        let tells = self.nodes.values().map(|told| self.due_at(told).unwrap_or_default()).min();
        let ends = self.leaving.iter().map(|leaving| leaving.since.saturating_add(EVICT_WITHIN));
        tells.filter(|_| !is_alone).into_iter().chain(ends).min()
    }
}
