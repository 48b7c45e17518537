//! Handles the requests and replies of peers.

use std::time::Duration;

use super::{
    Handling, KeepSet, LeaderView, Replicator, Reply, Request, Role, Term, leader::Replication,
};
use crate::{
    ByteSize, DatasetId, HalfChunk, NodeName,
    train::{
        manager::{HalfChunkBytes, ReportRefusal},
        placement::DatasetDemand,
    },
};

impl Replicator {
    /// The half-chunks of a dataset that were found on this node's flash.
    pub fn found(&mut self, now: Duration, dataset: DatasetId, found: &[HalfChunk]) {
        let me = self.me.clone();
        self.on_follows(now, dataset, &me, None, found);
    }

    /// The half-chunks outside the keep-set were freed on this node.
    pub fn freed(&mut self, now: Duration, dataset: DatasetId, keep_set: &KeepSet) {
        let me = self.me.clone();
        self.on_applied(now, dataset, &me, &keep_set.term, keep_set.version, &[]);
    }

    /// Handles a request of a peer.
    pub fn on_request(&mut self, now: Duration, from: &NodeName, request: Request) -> Handling {
        match request {
            Request::Ping => Handling::Reply(Reply::Alive),
            Request::Query { dataset } => Handling::Find(dataset),
            Request::Replicate { dataset, keep_set } => {
                match self.follower.on_replicate(now, dataset, &keep_set) {
                    Ok(free) => {
                        if self.manages(&dataset) {
                            let (term, silent_for) = (keep_set.term.clone(), Duration::ZERO);
                            self.lose_leadership(now, dataset, &LeaderView { term, silent_for });
                        }
                        Handling::Free(dataset, keep_set, free)
                    }
                    Err(leader) => {
                        self.counters.stale_orders_rejected +=
                            u64::from(leader.term > keep_set.term);
                        let term = keep_set.term;
                        Handling::Reply(Reply::Stale { dataset, term, leader })
                    }
                }
            }
            Request::SpaceRequest { known, requests } => {
                Handling::Reply(self.on_space_request(now, from, known, requests))
            }
        }
    }

    /// The reply to a query, once the half-chunks on flash are known.
    pub fn query_reply(&self, now: Duration, dataset: DatasetId, found: Vec<HalfChunk>) -> Reply {
        Reply::Follows { dataset, leader: self.follower.leader(now, &dataset), found }
    }

    /// The reply to a replication, once everything outside the keep-set is freed.
    pub fn replicate_reply(&self, dataset: DatasetId, keep_set: KeepSet) -> Reply {
        let KeepSet { term, version, .. } = keep_set;
        Reply::Applied { dataset, term, version, arrived: self.follower.all_arrived(&dataset) }
    }

    /// Handles a reply of a peer that has this capacity.
    pub fn on_reply(
        &mut self,
        now: Duration,
        from: &NodeName,
        capacity: ByteSize,
        reply: Reply,
    ) -> Result<(), ReportRefusal> {
        self.peer_states.on_reply(now, from, capacity);
        match reply {
            Reply::Alive => {}
            Reply::Follows { dataset, leader, found } => {
                self.on_follows(now, dataset, from, leader, &found);
            }
            Reply::Applied { dataset, term, version, arrived } => {
                self.on_applied(now, dataset, from, &term, version, &arrived);
            }
            Reply::Stale { dataset, term, leader } => {
                let is_superseded =
                    |replication: &Replication| *replication.term() == term && leader.term > term;
                if let Some(Role::Managing(replication)) = self.roles.get(&dataset)
                    && is_superseded(replication)
                {
                    self.lose_leadership(now, dataset, &leader);
                }
            }
            Reply::Shares { term, shares } => {
                if self.space_leader.accepts(&term) {
                    let orders = self.managers.set_shares(now, shares)?;
                    self.apply_orders(now, orders);
                } else {
                    self.counters.stale_orders_rejected += 1;
                }
            }
        }
        self.update_space_leader(now)
    }

    fn on_space_request(
        &mut self,
        now: Duration,
        from: &NodeName,
        known: Option<Term>,
        requests: Vec<(DatasetId, DatasetDemand)>,
    ) -> Reply {
        if *self.placement_owner(now) != self.me {
            // A node before this one in the order is alive: the shares stay unchanged.
            return Reply::Alive;
        }
        let datasets: Vec<DatasetId> = requests.iter().map(|(dataset, _)| *dataset).collect();
        let term = self.space_leader.on_space_request(now, from, known, requests);
        match self.managers.on_space_requests(now, self.space_leader.others(now)) {
            Ok(orders) => self.apply_orders(now, orders),
            Err(_) => return Reply::Alive,
        }
        Reply::Shares { term, shares: self.managers.shares_elsewhere(&datasets) }
    }

    fn on_follows(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        from: &NodeName,
        leader: Option<LeaderView>,
        found: &[HalfChunk],
    ) {
        if let Some(Role::Takeover(takeover)) = self.roles.get_mut(&dataset)
            && takeover.on_follows(from, leader, found)
        {
            self.take_over(now, dataset);
        }
    }

    fn on_applied(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        from: &NodeName,
        term: &Term,
        version: u64,
        arrived: &[HalfChunkBytes],
    ) {
        let Some(Role::Managing(replication)) = self.roles.get_mut(&dataset) else { return };
        if replication.term() != term {
            return;
        }
        for HalfChunkBytes { half_chunk, bytes } in replication.on_applied(from, version, arrived) {
            // Another chunking, or a malformed reply: skip it.
            let orders =
                self.managers.on_arrived(now, dataset, half_chunk, bytes).unwrap_or_default();
            self.apply_orders(now, orders);
        }
        self.check_evictions(now, dataset);
        self.replicate(now, dataset);
    }
}
