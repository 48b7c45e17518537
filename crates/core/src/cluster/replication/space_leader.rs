//! The space leader: one node that splits the space between all datasets.
//!
//! It is the first live node in the ring's order for the name `placement`. The other nodes send it
//! the space requests of their datasets when they change and at an interval, and receive a share
//! for each. If it does not answer, the shares stay unchanged. Its shares have a term, too: a new
//! space leader takes one above all that it learns of, and shares of an older term are refused.

use std::{collections::BTreeMap, time::Duration};

use super::{HEARTBEAT_INTERVAL, Request, Term};
use crate::{DatasetId, NodeName, train::placement::DatasetDemand};

/// Interval of space requests.
const SPACE_REQUEST_INTERVAL: Duration = Duration::from_secs(5);
/// A space request counts for this long.
const SPACE_REQUEST_AGE_MAX: Duration = Duration::from_secs(30);

type SpaceRequests = Vec<(DatasetId, DatasetDemand)>;

#[derive(Debug)]
pub(super) struct SpaceLeader {
    me: NodeName,
    incarnation: u64,
    order: Vec<NodeName>,
    /// The newest known term.
    known: Option<Term>,
    requests: BTreeMap<NodeName, (Duration, SpaceRequests)>,
    /// The last request: to which node, with which version of the reasons, and when.
    asked: Option<(NodeName, u64, Duration)>,
    is_answered: bool,
}

impl SpaceLeader {
    pub fn new(me: NodeName, incarnation: u64, order: Vec<NodeName>) -> Self {
        assert!(order.contains(&me), "this node is in its ring");
        let (known, asked) = (None, None);
        Self { me, incarnation, order, known, requests: BTreeMap::new(), asked, is_answered: false }
    }

    /// The node that splits the space.
    pub fn owner(&self, is_reachable: impl Fn(&NodeName) -> bool) -> &NodeName {
        let is_alive = |node: &&NodeName| **node == self.me || is_reachable(node);
        self.order.iter().find(is_alive).expect("this node is alive")
    }

    /// The request to send to the owner, if one is due.
    pub fn ask(
        &mut self,
        now: Duration,
        owner: &NodeName,
        reasons: u64,
        requests: impl FnOnce() -> SpaceRequests,
    ) -> Option<Request> {
        let is_due = self.asked.as_ref().is_none_or(|(asked, for_reasons, at)| {
            let pause = if self.is_answered { SPACE_REQUEST_INTERVAL } else { HEARTBEAT_INTERVAL };
            let is_news = self.is_answered && *for_reasons != reasons;
            asked != owner || is_news || now >= at.saturating_add(pause)
        });
        if !is_due {
            return None;
        }
        self.asked = Some((owner.clone(), reasons, now));
        self.is_answered = false;
        Some(Request::SpaceRequest { known: self.known.clone(), requests: requests() })
    }

    /// Whether shares of this term are accepted.
    pub fn accepts(&mut self, term: &Term) -> bool {
        self.is_answered = true;
        let accepts = self.known.as_ref().is_none_or(|known| term >= known);
        if accepts {
            self.known = Some(term.clone());
        }
        accepts
    }

    /// Stores the space requests of a peer. Returns the term of the answer.
    pub fn on_space_request(
        &mut self,
        now: Duration,
        from: &NodeName,
        known: Option<Term>,
        requests: SpaceRequests,
    ) -> Term {
        self.requests.insert(from.clone(), (now, requests));
        self.known = self.known.take().max(known);
        let is_mine =
            |term: &Term| (&term.manager, term.incarnation) == (&self.me, self.incarnation);
        if let Some(mine) = self.known.clone().filter(is_mine) {
            return mine;
        }
        let number = self.known.as_ref().map_or(0, |known| known.number) + 1;
        let term = Term { number, manager: self.me.clone(), incarnation: self.incarnation };
        self.known = Some(term.clone());
        term
    }

    /// The space requests of all peers. If two peers request space for one dataset, the later one
    /// counts.
    pub fn others(&mut self, now: Duration) -> BTreeMap<DatasetId, DatasetDemand> {
        self.requests.retain(|_, (at, _)| now < at.saturating_add(SPACE_REQUEST_AGE_MAX));
        let mut by_time: Vec<_> = self.requests.values().collect();
        by_time.sort_by_key(|(at, _)| *at);
        by_time.into_iter().flat_map(|(_, requests)| requests.iter().cloned()).collect()
    }
}
