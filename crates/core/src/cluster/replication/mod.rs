//! Replication of keep-sets: which node manages a dataset, and how the others learn what to keep.
//!
//! The blobs of a dataset are spread over all nodes, so the decisions of its manager, the
//! *keep-set* of half-chunks, concern all of them. Any node can be the manager. Jobs report to the
//! first node in the ring's order that answers. If no node manages the dataset, that node **takes
//! over**: it queries all peers for the manager that they follow and for what they hold, chooses a
//! [`Term`] above all that it learns of, and from then on **replicates** the keep-set to every
//! node. A node follows the newest term and refuses older ones, naming the newer; a manager that is
//! refused gives up the dataset. A node that is not the manager redirects the job
//! ([`Readiness::Elsewhere`]).
//!
//! A message carries the whole keep-set with a version, never a change. So lost, repeated and
//! reordered messages are harmless, and a node that was away needs only the next one.
//!
//! Nothing is stored on disk, and there is no quorum. Two managers of one dataset, on both sides of
//! a network partition, cost hits only: blobs are named by their content, a node never keeps more
//! than its flash holds, and jobs read the origin for what is not kept. When the partition heals,
//! the newer term wins. If every node that knew a term restarts, terms start again. A term carries
//! the manager's incarnation, so an order of an earlier incarnation is never taken for a new one.
//!
//! One node splits the space between all datasets (`space_leader`). A single node runs the same
//! code with no peers.
//!
//! Requests, replies and the time go in; messages and actions come out ([`Effects`]).

mod follower;
mod inbox;
mod leader;
mod message;
mod peer_state;
mod role;
mod space_leader;
mod takeover;
mod term;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use follower::{Follower, Free, KeepSet, LeaderView};
pub use message::{Handling, Reply, Request};
use peer_state::PeerStates;
use role::Role;
use space_leader::SpaceLeader;
pub use term::Term;

use crate::{
    ByteSize, DatasetId, HalfChunk, HalfChunkRange, NodeName,
    train::manager::{
        Explanation, HalfChunkOrder, HalfChunkState, ManagerRegistry, PlacementRule, Report,
        ReportAnswer, ReportRefusal, Space,
    },
    units::ByteRate,
};

/// Interval of replication and pings, even if nothing has changed.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A peer that has not answered for this long counts as dead.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that a takeover waits for the answers of the peers.
pub const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(1);

/// The settings of a node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of this node.
    pub me: NodeName,
    /// A random number chosen when the node starts.
    pub incarnation: u64,
    /// The other nodes.
    pub peers: Vec<NodeName>,
    /// All nodes, this one included, in the ring's order for the name `placement`.
    pub placement_order: Vec<NodeName>,
    /// How space is split between datasets.
    pub rule: PlacementRule,
    /// The capacity of this node.
    pub capacity: ByteSize,
    /// A job that does not report for this long has ended.
    pub lease: Duration,
    /// Expected rate of loading chunks, until it has been measured.
    pub load_rate: ByteRate,
}

/// Whether this node can take a job's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// This node manages the dataset.
    Ready,
    /// A takeover is in progress.
    Waiting,
    /// Another node manages the dataset.
    Elsewhere(NodeName),
    /// No node manages the dataset, and this node has reached its limit of managed datasets.
    TooMany,
}

/// Actions for the caller.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    /// Requests to send to other nodes. Any of them may be lost.
    pub send: Vec<(NodeName, Request)>,
    /// Datasets to look for on this node's flash: [`Replicator::found`].
    pub find: Vec<DatasetId>,
    /// Half-chunks to free on this node's flash: [`Replicator::freed`].
    pub free: Vec<(DatasetId, KeepSet, Free)>,
}

/// Event counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Takeovers by this node.
    pub takeovers: u64,
    /// Datasets that this node stopped managing because another node has a newer term.
    pub leadership_lost: u64,
    /// Keep-sets and shares of older terms that this node refused.
    pub stale_orders_rejected: u64,
    /// Half-chunks added to keep-sets.
    pub chunks_loaded: u64,
    /// Half-chunks removed from keep-sets.
    pub chunks_evicted: u64,
}

/// One node's side of replication: its roles, what it follows, and the state of its peers.
#[derive(Debug)]
pub struct Replicator {
    me: NodeName,
    incarnation: u64,
    capacity: ByteSize,
    managers: ManagerRegistry,
    follower: Follower,
    roles: BTreeMap<DatasetId, Role>,
    peer_states: PeerStates,
    space_leader: SpaceLeader,
    counters: Counters,
    effects: Effects,
}

impl Replicator {
    /// A node that manages and follows nothing.
    pub fn new(now: Duration, settings: Settings) -> Self {
        let Settings { me, incarnation, peers, placement_order, .. } = settings;
        let space = Space::new(settings.rule, settings.capacity);
        Self {
            managers: ManagerRegistry::new(space, settings.lease, settings.load_rate),
            follower: Follower::default(),
            roles: BTreeMap::new(),
            peer_states: PeerStates::new(now, peers),
            space_leader: SpaceLeader::new(me.clone(), incarnation, placement_order),
            counters: Counters::default(),
            effects: Effects::default(),
            capacity: settings.capacity,
            me,
            incarnation,
        }
    }

    /// Sets the memory for the state of jobs.
    pub fn set_job_memory(&mut self, memory: ByteSize) {
        self.managers.set_job_memory(memory);
    }

    /// Takes the actions that have accumulated.
    pub fn effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Whether this node can take a report about a dataset. Starts a takeover if no node manages
    /// it.
    pub fn prepare(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        half_chunk_sizes: impl FnOnce() -> Vec<ByteSize>,
    ) -> Readiness {
        match self.roles.get(&dataset) {
            Some(Role::Managing(_)) => return Readiness::Ready,
            Some(Role::Takeover(_)) => return Readiness::Waiting,
            Some(Role::Yielded { to, until }) if now < *until => {
                return Readiness::Elsewhere(to.manager.clone());
            }
            Some(Role::Yielded { .. }) | None => {}
        }
        if let Some(leader) = self.follower.leader(now, &dataset)
            && leader.term.manager != self.me
            && leader.silent_for < PEER_TIMEOUT
        {
            return Readiness::Elsewhere(leader.term.manager);
        }
        if !self.managers.has_capacity() {
            return Readiness::TooMany;
        }
        let others = self.peer_states.peers().filter(|peer| self.peer_states.may_answer(now, peer));
        let all_nodes = others.chain([&self.me]).cloned().collect();
        let takeover = takeover::Takeover::new(now, half_chunk_sizes(), all_nodes);
        self.roles.insert(dataset, Role::Takeover(takeover));
        self.effects.find.push(dataset);
        for peer in self.peer_states.peers() {
            self.effects.send.push((peer.clone(), Request::Query { dataset }));
        }
        Readiness::Waiting
    }

    /// Takes a job's report about a dataset that this node manages.
    pub fn report(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        job: &str,
        report: &Report,
    ) -> Result<ReportAnswer, ReportRefusal> {
        if !matches!(self.roles.get(&dataset), Some(Role::Managing(_))) {
            return Ok(ReportAnswer::FullReportNeeded);
        }
        let (answer, orders) = self.managers.on_report(now, dataset, job, report);
        self.apply_orders(now, orders);
        self.request_space(now);
        answer
    }

    /// Removes a job that has left.
    pub fn left(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        job: &str,
    ) -> Result<(), ReportRefusal> {
        let orders = self.managers.on_left(now, dataset, job)?;
        self.apply_orders(now, orders);
        self.request_space(now);
        Ok(())
    }

    /// `bytes` more of a half-chunk were put on this node.
    pub fn arrived(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        half_chunk: HalfChunk,
        bytes: ByteSize,
    ) -> Result<(), ReportRefusal> {
        self.follower.arrived(&dataset, half_chunk, bytes);
        let orders = self.managers.on_arrived(now, dataset, half_chunk, bytes)?;
        self.apply_orders(now, orders);
        Ok(())
    }

    /// The keep-sets that may have changed since the last call; `None` if the dataset has no
    /// manager any more.
    pub fn take_changed_keep_sets(&mut self) -> Vec<(DatasetId, Option<Vec<HalfChunk>>)> {
        let changed = self.follower.take_changed().into_iter();
        let kept = |dataset| self.follower.keep_set(&dataset).map(|keep_set| keep_set.kept.clone());
        changed.map(|dataset| (dataset, kept(dataset))).collect()
    }

    /// Whether blobs of a half-chunk are kept here. Everything is kept of a dataset without a
    /// manager.
    pub fn keeps(&self, dataset: &DatasetId, half_chunk: HalfChunk) -> bool {
        self.follower.keeps(dataset, half_chunk)
    }

    /// Whether this node manages a dataset.
    pub fn manages(&self, dataset: &DatasetId) -> bool {
        matches!(self.roles.get(dataset), Some(Role::Managing(_)))
    }

    /// Whether this node manages a dataset or is taking it over.
    pub fn manages_or_takes_over(&self, dataset: &DatasetId) -> bool {
        matches!(self.roles.get(dataset), Some(Role::Managing(_) | Role::Takeover(_)))
    }

    /// The state of a dataset for `forebay explain`; `None` if no node manages it.
    pub fn explain(&self, dataset: &DatasetId, half_chunks: u32) -> Option<Explanation> {
        let term = self.follower.term(dataset)?;
        let mut description = self.managers.explain(dataset).unwrap_or_else(|| Explanation {
            manager: String::new(),
            term: 0,
            why: format!("managed by node {}", term.manager),
            half_chunks: HalfChunk::all(half_chunks)
                .into_iter()
                .map(|half_chunk| {
                    if self.keeps(dataset, half_chunk) {
                        HalfChunkState::Rotating
                    } else {
                        HalfChunkState::Absent
                    }
                })
                .collect(),
            jobs: Vec::new(),
        });
        description.manager = term.manager.to_string();
        description.term = term.number;
        Some(description)
    }

    /// Forgets a dataset: it has no manager here until a job reports, and everything that is put is
    /// kept.
    pub fn forget(&mut self, dataset: &DatasetId) {
        self.roles.remove(dataset);
        self.managers.forget(dataset);
        self.follower.forget(dataset);
    }

    /// Peers that answered within [`PEER_TIMEOUT`].
    pub fn reachable(&self, now: Duration) -> impl Iterator<Item = &NodeName> {
        self.peer_states.reachable(now)
    }

    /// The keep-sets that this node follows.
    pub fn follower(&self) -> &Follower {
        &self.follower
    }

    /// The managers of this node's datasets.
    pub fn managers(&self) -> &ManagerRegistry {
        &self.managers
    }

    /// The node that splits the space, as far as this one knows.
    pub fn placement_owner(&self, now: Duration) -> &NodeName {
        self.space_leader.owner(|peer| self.peer_states.may_answer(now, peer))
    }

    /// Event counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Duration) -> Result<(), ReportRefusal> {
        for peer in self.peer_states.take_due_pings(now) {
            self.effects.send.push((peer, Request::Ping));
        }
        let overdue: Vec<DatasetId> = self
            .roles
            .iter()
            .filter_map(|(dataset, role)| {
                matches!(role, Role::Takeover(takeover) if takeover.is_over(now))
                    .then_some(*dataset)
            })
            .collect();
        for dataset in overdue {
            self.take_over(now, dataset);
        }
        self.roles.retain(|_, role| !matches!(role, Role::Yielded { until, .. } if now >= *until));
        self.update_space_leader(now)?;
        let orders = self.managers.on_tick(now)?;
        self.apply_orders(now, orders);
        self.settle(now);
        Ok(())
    }

    /// The next time at which [`Replicator::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let roles = self.roles.values().filter_map(Role::next_deadline).min();
        [self.managers.next_deadline(), roles, self.peer_states.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Applies the managers' orders to the keep-sets, and replicates those that changed.
    fn apply_orders(&mut self, now: Duration, orders: Vec<(DatasetId, HalfChunkOrder)>) {
        let mut changed: BTreeMap<DatasetId, Vec<HalfChunkRange>> = BTreeMap::new();
        for (dataset, order) in orders {
            let evicted = changed.entry(dataset).or_default();
            match order {
                HalfChunkOrder::Load(_) => self.counters.chunks_loaded += 1,
                HalfChunkOrder::Keep => {}
                HalfChunkOrder::Evict(half_chunks) => {
                    self.counters.chunks_evicted += 1;
                    evicted.push(half_chunks);
                }
            }
        }
        for (dataset, evicted) in changed {
            let Some(manager) = self.managers.manager(&dataset) else { continue };
            let kept = manager.keep_set().collect();
            let Some(Role::Managing(replication)) = self.roles.get_mut(&dataset) else { continue };
            replication.change(now, kept, evicted);
            self.replicate(now, dataset);
        }
    }

    /// Sends the keep-set to the peers that need it. This node applies it first.
    fn replicate(&mut self, now: Duration, dataset: DatasetId) {
        let Some(Role::Managing(replication)) = self.roles.get_mut(&dataset) else { return };
        if replication.is_news_to(&self.me) {
            let keep_set = replication.keep_set();
            replication.on_sent(now, &self.me);
            match self.follower.on_replicate(now, dataset, &keep_set) {
                Ok(free) => self.effects.free.push((dataset, keep_set, free)),
                Err(leader) => return self.lose_leadership(now, dataset, &leader),
            }
        }
        let Some(Role::Managing(replication)) = self.roles.get_mut(&dataset) else { return };
        for peer in self.peer_states.peers() {
            if replication.is_due(now, peer) {
                replication.on_sent(now, peer);
                let keep_set = replication.keep_set();
                self.effects.send.push((peer.clone(), Request::Replicate { dataset, keep_set }));
            }
        }
    }

    /// Replicates all keep-sets that are due, and reports complete evictions to the managers.
    fn settle(&mut self, now: Duration) {
        let datasets: Vec<DatasetId> = self.roles.keys().copied().collect();
        for dataset in datasets {
            self.replicate(now, dataset);
            self.check_evictions(now, dataset);
        }
    }

    fn check_evictions(&mut self, now: Duration, dataset: DatasetId) {
        loop {
            let Some(Role::Managing(replication)) = self.roles.get_mut(&dataset) else { return };
            let peer_states = &self.peer_states;
            let me = &self.me;
            let complete =
                replication.complete(now, |peer| peer == me || peer_states.is_reachable(now, peer));
            if complete.is_empty() {
                return;
            }
            for half_chunks in complete {
                // The manager may have changed its decision since.
                let orders =
                    self.managers.on_evicted(now, dataset, half_chunks).unwrap_or_default();
                self.apply_orders(now, orders);
            }
        }
    }

    /// Ends a takeover: this node manages the dataset, unless a peer follows a live manager.
    fn take_over(&mut self, now: Duration, dataset: DatasetId) {
        let Some(Role::Takeover(takeover)) = self.roles.remove(&dataset) else { return };
        let newest = takeover.newest(self.follower.leader(now, &dataset));
        if let Some(leader) = &newest
            && leader.term.manager != self.me
            && leader.silent_for < PEER_TIMEOUT
        {
            return self.yield_to(now, dataset, leader);
        }
        let number = newest.map_or(0, |leader| leader.term.number);
        let term =
            Term { number: number + 1, manager: self.me.clone(), incarnation: self.incarnation };
        let (sizes, found) = takeover.into_parts();
        // If the node manages as many datasets as it may, the next report is refused.
        let Ok(orders) = self.managers.manage(now, dataset, || sizes, found) else { return };
        // Managers without jobs may have been dropped to make space.
        let managers = &self.managers;
        self.roles.retain(|dataset, role| {
            !matches!(role, Role::Managing(_)) || managers.manager(dataset).is_some()
        });
        let kept = self.managers.manager(&dataset).map(|manager| manager.keep_set().collect());
        let all_nodes: BTreeSet<NodeName> =
            self.peer_states.peers().chain([&self.me]).cloned().collect();
        let replication = leader::Replication::new(term, kept.unwrap_or_default(), all_nodes);
        self.roles.insert(dataset, Role::Managing(replication));
        self.counters.takeovers += 1;
        self.apply_orders(now, orders);
        self.replicate(now, dataset);
    }

    /// A peer has a newer term for the dataset.
    fn lose_leadership(&mut self, now: Duration, dataset: DatasetId, leader: &LeaderView) {
        self.counters.leadership_lost += 1;
        self.managers.forget(&dataset);
        self.yield_to(now, dataset, leader);
    }

    fn yield_to(&mut self, now: Duration, dataset: DatasetId, leader: &LeaderView) {
        let until = now.saturating_add(PEER_TIMEOUT.saturating_sub(leader.silent_for));
        self.roles.insert(dataset, Role::Yielded { to: leader.term.clone(), until });
    }

    /// The first live node in the order splits the space; it may have changed.
    fn update_space_leader(&mut self, now: Duration) -> Result<(), ReportRefusal> {
        let is_mine = *self.placement_owner(now) == self.me;
        self.managers.set_splits_here(is_mine);
        let capacity = self.peer_states.capacity(now, self.capacity);
        let mut orders = self.managers.set_capacity(now, capacity)?;
        if is_mine {
            orders.extend(self.managers.on_space_requests(now, self.space_leader.others(now))?);
        }
        self.apply_orders(now, orders);
        self.request_space(now);
        Ok(())
    }

    /// Sends this node's space requests to the node that splits the space, if due.
    fn request_space(&mut self, now: Duration) {
        let owner = self.placement_owner(now).clone();
        let (reasons, managers) = (self.managers.demand_revision(), &self.managers);
        if owner != self.me
            && let Some(request) =
                self.space_leader.ask(now, &owner, reasons, || managers.space_requests(now))
        {
            self.effects.send.push((owner, request));
        }
    }
}
