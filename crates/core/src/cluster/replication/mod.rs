//! Who manages a dataset when there are several nodes, and how the others come to know what it decided.
//!
//! The blobs of a dataset are spread over all nodes, so what its manager decides, which pieces have a place,
//! concerns all of them. Any node can be the manager. Jobs report to the first node in the ring's order that
//! answers; that node **takes over** if nobody manages the dataset: it asks all others whom they obey and what
//! they have, chooses a [`Term`] above all that it hears of, and from then on **tells** every node what is kept.
//! A node obeys the newest term it was told and refuses older ones, naming the newer; a manager that is refused
//! steps down. Whoever is asked by a job while another manages sends the job there ([`Readiness::Elsewhere`]).
//!
//! What is told is never a change but the whole of what is kept, with a version. So a lost, repeated or
//! reordered message does not matter, and a node that was away needs nothing but the next one.
//!
//! Nothing of this is kept on disk, and there is no quorum. Two managers of one dataset at the same time, one on
//! either side of a broken network, cost hits: bytes are named by their content and are never wrong, a node never
//! keeps more than its own flash holds, and jobs read through what is not kept. When the network is whole again
//! the newer term wins. Terms may even be forgotten, if all who knew them were restarted: then they begin anew,
//! and no order of a former life can be taken for a new one, since a term says in which of its lives a manager
//! chose it.
//!
//! The space is split for all datasets by one node, found in the same way (`placing.rs`). One node alone is a
//! council of one, through the same code.
//!
//! Requests, replies and the time go in, what is to be sent and done comes out ([`Effects`]).

mod asking;
mod hearing;
mod message;
mod obeying;
mod placing;
mod post;
mod reach;
mod telling;
mod term;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use message::{Handling, Reply, Request};
pub use obeying::{Free, Obeying, Places, Standing};
use placing::Placing;
use post::Post;
use reach::Reach;
pub use term::Term;

use crate::{
    ByteSize, DatasetId, NodeName,
    manager::{Answer, Description, Managers, Order, Piece, Refusal, Report, Rule, Space},
    units::ByteRate,
};

/// Nodes are told so often what is kept, even if nothing has changed, and asked whether they live.
pub const TELL_EVERY: Duration = Duration::from_secs(1);
/// Whoever has said nothing for so long does not live.
pub const SILENCE: Duration = Duration::from_secs(3);
/// Whoever takes over waits so long for what the others have to say.
pub const ASK_WITHIN: Duration = Duration::from_secs(1);

/// What does not change while a node runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What this node is called.
    pub me: NodeName,
    /// In which of its lives it is: a random number.
    pub life: u64,
    /// All other nodes.
    pub peers: Vec<NodeName>,
    /// All nodes, this one as well, in the ring's order for the name `placement`.
    pub placement_order: Vec<NodeName>,
    /// How space is split,
    pub rule: Rule,
    /// and how much of it this node has.
    pub capacity: ByteSize,
    /// How long a job is believed to live without a word.
    pub lease: Duration,
    /// How fast chunks are expected to be loaded, until that has been measured.
    pub load_rate: ByteRate,
}

/// Whether a job's report can be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Yes.
    Ready,
    /// Soon: the others are being asked.
    Waiting,
    /// Another node manages the dataset.
    Elsewhere(NodeName),
    /// Nobody does, and this node manages too many to begin with another.
    TooMany,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    /// Requests to other nodes. Any of them may be lost.
    pub send: Vec<(NodeName, Request)>,
    /// Pieces are to be looked for on this node's flash: [`Council::found`].
    pub find: Vec<DatasetId>,
    /// Pieces are to be freed on this node's flash: [`Council::freed`].
    pub free: Vec<(DatasetId, Places, Free)>,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datasets that this node has taken over.
    pub takeovers: u64,
    /// Those that it manages no more because another does.
    pub stepped_down: u64,
    /// Orders and shares of older terms that this node has refused.
    pub orders_refused: u64,
    /// Chunks, or halves of them, that were given a place,
    pub chunks_loaded: u64,
    /// and those that lost it.
    pub chunks_evicted: u64,
}

/// A node's part in managing datasets.
#[derive(Debug)]
pub struct Council {
    me: NodeName,
    life: u64,
    capacity: ByteSize,
    managers: Managers,
    obeying: Obeying,
    posts: BTreeMap<DatasetId, Post>,
    reach: Reach,
    placing: Placing,
    counters: Counters,
    effects: Effects,
}

impl Council {
    /// A node that manages nothing and obeys nobody yet.
    pub fn new(now: Duration, settings: Settings) -> Self {
        let Settings { me, life, peers, placement_order, .. } = settings;
        let space = Space::new(settings.rule, settings.capacity);
        Self {
            managers: Managers::new(space, settings.lease, settings.load_rate),
            obeying: Obeying::default(),
            posts: BTreeMap::new(),
            reach: Reach::new(now, peers),
            placing: Placing::new(me.clone(), life, placement_order),
            counters: Counters::default(),
            effects: Effects::default(),
            capacity: settings.capacity,
            me,
            life,
        }
    }

    /// What is to be done since this was last asked.
    pub fn effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// Whether a job's report about a dataset can be taken now; if nobody manages it, this node begins to.
    pub fn prepare(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        piece_sizes: impl FnOnce() -> Vec<ByteSize>,
    ) -> Readiness {
        match self.posts.get(&dataset) {
            Some(Post::Managing(_)) => return Readiness::Ready,
            Some(Post::Asking(_)) => return Readiness::Waiting,
            Some(Post::Yielded { to, until }) if now < *until => {
                return Readiness::Elsewhere(to.manager.clone());
            }
            Some(Post::Yielded { .. }) | None => {}
        }
        if let Some(standing) = self.obeying.standing(now, &dataset)
            && standing.term.manager != self.me
            && standing.silent_for < SILENCE
        {
            return Readiness::Elsewhere(standing.term.manager);
        }
        if !self.managers.has_room() {
            return Readiness::TooMany;
        }
        let others = self.reach.peers().filter(|peer| self.reach.may_answer(now, peer));
        let everybody = others.chain([&self.me]).cloned().collect();
        let asking = asking::Asking::new(now, piece_sizes(), everybody);
        self.posts.insert(dataset, Post::Asking(asking));
        self.effects.find.push(dataset);
        for peer in self.reach.peers() {
            self.effects.send.push((peer.clone(), Request::Ask { dataset }));
        }
        Readiness::Waiting
    }

    /// A job reports about a dataset that is managed here.
    pub fn report(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        job: &str,
        report: &Report,
    ) -> Result<Answer, Refusal> {
        if !matches!(self.posts.get(&dataset), Some(Post::Managing(_))) {
            return Ok(Answer::TellAll);
        }
        let (answer, orders) = self.managers.report(now, dataset, job, report);
        self.obey_manager(now, orders);
        self.ask_for_space(now);
        answer
    }

    /// A job has ended.
    pub fn left(&mut self, now: Duration, dataset: DatasetId, job: &str) -> Result<(), Refusal> {
        let orders = self.managers.left(now, dataset, job)?;
        self.obey_manager(now, orders);
        self.ask_for_space(now);
        Ok(())
    }

    /// So many bytes more of a piece have been put on this node.
    pub fn arrived(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        piece: u32,
        bytes: ByteSize,
    ) -> Result<(), Refusal> {
        self.obeying.arrived(&dataset, piece, bytes);
        let orders = self.managers.arrived(now, dataset, piece, bytes)?;
        self.obey_manager(now, orders);
        Ok(())
    }

    /// Whether what is fetched of a piece is kept here. Of a dataset that nobody manages, everything is.
    pub fn keeps(&self, dataset: &DatasetId, piece: u32) -> bool {
        self.obeying.keeps(dataset, piece)
    }

    /// Whether this node manages a dataset.
    pub fn manages(&self, dataset: &DatasetId) -> bool {
        matches!(self.posts.get(dataset), Some(Post::Managing(_)))
    }

    /// Whether this node manages a dataset, or is about to.
    pub fn cares_for(&self, dataset: &DatasetId) -> bool {
        matches!(self.posts.get(dataset), Some(Post::Managing(_) | Post::Asking(_)))
    }

    /// How a dataset of so many pieces stands, and why; `None` if nobody manages it.
    pub fn describe(&self, dataset: &DatasetId, pieces: u32) -> Option<Description> {
        let term = self.obeying.term(dataset)?;
        let mut description = self.managers.describe(dataset).unwrap_or_else(|| Description {
            manager: String::new(),
            term: 0,
            why: format!("node {} knows", term.manager),
            pieces: (0..pieces)
                .map(
                    |piece| {
                        if self.keeps(dataset, piece) { Piece::Rotating } else { Piece::Absent }
                    },
                )
                .collect(),
            jobs: Vec::new(),
        });
        description.manager = term.manager.to_string();
        description.term = term.number;
        Some(description)
    }

    /// Forgets a dataset: nobody manages it here until a job reports, and whatever is put is kept.
    pub fn forget(&mut self, dataset: &DatasetId) {
        self.posts.remove(dataset);
        self.managers.forget(dataset);
        self.obeying.forget(dataset);
    }

    /// Who could be reached lately.
    pub fn reachable(&self, now: Duration) -> impl Iterator<Item = &NodeName> {
        self.reach.reachable(now)
    }

    /// What this node obeys.
    pub fn obeying(&self) -> &Obeying {
        &self.obeying
    }

    /// The managers of the datasets that this node manages.
    pub fn managers(&self) -> &Managers {
        &self.managers
    }

    /// Which node splits the space, as far as this one knows.
    pub fn placement_owner(&self, now: Duration) -> &NodeName {
        self.placing.owner(|peer| self.reach.may_answer(now, peer))
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Result<(), Refusal> {
        for peer in self.reach.greet(now) {
            self.effects.send.push((peer, Request::Greet));
        }
        let overdue: Vec<DatasetId> = self
            .posts
            .iter()
            .filter_map(|(dataset, post)| {
                matches!(post, Post::Asking(asking) if asking.is_over(now)).then_some(*dataset)
            })
            .collect();
        for dataset in overdue {
            self.take_over(now, dataset);
        }
        self.posts.retain(|_, post| !matches!(post, Post::Yielded { until, .. } if now >= *until));
        self.follow_placement(now)?;
        let orders = self.managers.tick(now)?;
        self.obey_manager(now, orders);
        self.settle(now);
        Ok(())
    }

    /// When [`Council::tick`] has something to do, if nothing happens until then.
    pub fn next_deadline(&self) -> Option<Duration> {
        let posts = self.posts.values().filter_map(Post::next_deadline).min();
        [self.managers.next_deadline(), posts, self.reach.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What the managers have ordered becomes what is kept, and nodes are told.
    fn obey_manager(&mut self, now: Duration, orders: Vec<(DatasetId, Order)>) {
        let mut changed: BTreeMap<DatasetId, Vec<std::ops::Range<u32>>> = BTreeMap::new();
        for (dataset, order) in orders {
            let evicted = changed.entry(dataset).or_default();
            match order {
                Order::Load(_) => self.counters.chunks_loaded += 1,
                Order::Keep => {}
                Order::Evict(pieces) => {
                    self.counters.chunks_evicted += 1;
                    evicted.push(pieces);
                }
            }
        }
        for (dataset, evicted) in changed {
            let Some(manager) = self.managers.manager(&dataset) else { continue };
            let kept = manager.kept().collect();
            let Some(Post::Managing(telling)) = self.posts.get_mut(&dataset) else { continue };
            telling.change(now, kept, evicted);
            self.tell(now, dataset);
        }
    }

    /// Tells those who do not know yet, this node first of all.
    fn tell(&mut self, now: Duration, dataset: DatasetId) {
        let Some(Post::Managing(telling)) = self.posts.get_mut(&dataset) else { return };
        if telling.is_news_to(&self.me) {
            let places = telling.places();
            telling.sent(now, &self.me);
            match self.obeying.told(now, dataset, &places) {
                Ok(free) => self.effects.free.push((dataset, places, free)),
                Err(standing) => return self.step_down(now, dataset, &standing),
            }
        }
        let Some(Post::Managing(telling)) = self.posts.get_mut(&dataset) else { return };
        for peer in self.reach.peers() {
            if telling.is_due(now, peer) {
                telling.sent(now, peer);
                let places = telling.places();
                self.effects.send.push((peer.clone(), Request::Tell { dataset, places }));
            }
        }
    }

    /// Everybody who has to know is told, and evictions that are complete are reported to their managers.
    fn settle(&mut self, now: Duration) {
        let datasets: Vec<DatasetId> = self.posts.keys().copied().collect();
        for dataset in datasets {
            self.tell(now, dataset);
            self.check_evictions(now, dataset);
        }
    }

    fn check_evictions(&mut self, now: Duration, dataset: DatasetId) {
        loop {
            let Some(Post::Managing(telling)) = self.posts.get_mut(&dataset) else { return };
            let reach = &self.reach;
            let me = &self.me;
            let complete =
                telling.complete(now, |peer| peer == me || reach.is_reachable(now, peer));
            if complete.is_empty() {
                return;
            }
            for pieces in complete {
                // The manager may have been told otherwise since: then there is nothing to be done.
                let orders = self.managers.evicted(now, dataset, &pieces).unwrap_or_default();
                self.obey_manager(now, orders);
            }
        }
    }

    /// All have been heard who will be: this node manages the dataset from now on, unless another does.
    fn take_over(&mut self, now: Duration, dataset: DatasetId) {
        let Some(Post::Asking(asking)) = self.posts.remove(&dataset) else { return };
        let heard = asking.newest(self.obeying.standing(now, &dataset));
        if let Some(standing) = &heard
            && standing.term.manager != self.me
            && standing.silent_for < SILENCE
        {
            return self.yield_to(now, dataset, standing);
        }
        let number = heard.map_or(0, |standing| standing.term.number);
        let term = Term { number: number + 1, manager: self.me.clone(), life: self.life };
        let (sizes, found) = asking.into_parts();
        // Where there is no room for one more, its jobs will be told so.
        let Ok(orders) = self.managers.manage(now, dataset, || sizes, found) else { return };
        // Those that nobody reads have made room.
        let managers = &self.managers;
        self.posts.retain(|dataset, post| {
            !matches!(post, Post::Managing(_)) || managers.manager(dataset).is_some()
        });
        let kept = self.managers.manager(&dataset).map(|manager| manager.kept().collect());
        let everybody: BTreeSet<NodeName> = self.reach.peers().chain([&self.me]).cloned().collect();
        let telling = telling::Telling::new(term, kept.unwrap_or_default(), everybody);
        self.posts.insert(dataset, Post::Managing(telling));
        self.counters.takeovers += 1;
        self.obey_manager(now, orders);
        self.tell(now, dataset);
    }

    /// Another manages the dataset.
    fn step_down(&mut self, now: Duration, dataset: DatasetId, standing: &Standing) {
        self.counters.stepped_down += 1;
        self.managers.forget(&dataset);
        self.yield_to(now, dataset, standing);
    }

    fn yield_to(&mut self, now: Duration, dataset: DatasetId, standing: &Standing) {
        let until = now.saturating_add(SILENCE.saturating_sub(standing.silent_for));
        self.posts.insert(dataset, Post::Yielded { to: standing.term.clone(), until });
    }

    /// Space is split by whoever is first in the order of those who live; there may be another now.
    fn follow_placement(&mut self, now: Duration) -> Result<(), Refusal> {
        let is_mine = *self.placement_owner(now) == self.me;
        self.managers.split_here(is_mine);
        let capacity = self.reach.capacity(now, self.capacity);
        let mut orders = self.managers.set_capacity(now, capacity)?;
        if is_mine {
            orders.extend(self.managers.wished(now, self.placing.others(now))?);
        }
        self.obey_manager(now, orders);
        self.ask_for_space(now);
        Ok(())
    }

    /// Whoever splits the space is told what is wished for here, if it is time to.
    fn ask_for_space(&mut self, now: Duration) {
        let owner = self.placement_owner(now).clone();
        let (reasons, managers) = (self.managers.reasons(), &self.managers);
        if owner != self.me
            && let Some(request) = self.placing.ask(now, &owner, reasons, || managers.wishes(now))
        {
            self.effects.send.push((owner, request));
        }
    }
}
