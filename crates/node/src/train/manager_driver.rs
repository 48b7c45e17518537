//! The managers of this node's datasets at work: jobs report, `core::council` and `core::manager` decide, pieces
//! are freed.
//!
//! A dataset of which no job has reported is not managed: whatever is put is kept, and what was used longest ago goes
//! when room is needed. As soon as a job reports, to whichever node, only what its manager has given a place is kept, on all
//! nodes. Connections to the others are in `peers.rs`.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use forebay_core::{
    BlobOrdinal, ByteSize, DatasetId, NodeName,
    council::{
        ASK_WITHIN, Council, Counters as Counted, Effects, Free, Handling, Places, Readiness,
        Request, Settings,
    },
    manager::{Answer, Overview, Refusal, Report, Rule},
    placement::Placement,
    ring::{Key, Membership},
    table::Table,
    units::ByteRate,
};
use forebay_wire::{ErrorCode, Reply};
use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as TaskMutex, Notify, OwnedSemaphorePermit},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    access::Guest,
    node::{NodeService, Refused},
    peers::Peers,
    session::Replies,
};

/// A job is believed to live for so long without a word.
const LEASE: Duration = Duration::from_mins(1);
/// How fast chunks are expected to be loaded, until that has been measured.
const LOAD_RATE: ByteRate = ByteRate(ByteSize::mib(256));
/// Regions that are not full, and what nobody manages, need some room as well: one part in so many.
const SPARE: u64 = 10;
/// Whoever reports while the others are being asked waits so long at most; then it is asked to report again.
const PREPARED_WITHIN: Duration = ASK_WITHIN.saturating_mul(2);

/// Nobody is woken sooner than after this.
const TICK_MIN: Duration = Duration::from_millis(5);

/// All that a node manages.
pub(crate) struct Managing {
    council: Mutex<Council>,
    /// Of datasets that are managed here: what their pieces consist of.
    tables: Mutex<HashMap<DatasetId, Arc<Table>>>,
    /// What can be kept, for datasets that are managed.
    space: ByteSize,
    /// What the council had counted when it was last looked at.
    counted: Mutex<Counted>,
    /// There may be an earlier deadline.
    changed: Notify,
    /// Somebody was heard of whom a takeover waited for.
    heard: Notify,
    /// Whoever looks at the pieces of a dataset, or frees some, does so alone: what one term frees, a later one
    /// must not have been told to keep meanwhile.
    turns: Mutex<HashMap<DatasetId, Weak<TaskMutex<()>>>>,
    peers: Peers,
}

impl Managing {
    /// Among others, if there are any that it can be in touch with.
    pub fn new(
        capacity: ByteSize,
        life: u64,
        membership: Option<&Membership>,
        peers: Peers,
    ) -> Self {
        let space = ByteSize(capacity.0 - capacity.0 / SPARE);
        let alone: NodeName = "node".parse().expect("a name");
        let me = membership.map_or(alone, |membership| membership.name().clone());
        let names: Vec<NodeName> = peers.names().cloned().collect();
        let placement_order = match membership.filter(|_| !names.is_empty()) {
            None => vec![me.clone()],
            Some(membership) => {
                let ring = membership.ring();
                let order = ring.order(Key::named("placement")).into_iter();
                order.map(|place| ring.members()[place].name.clone()).collect()
            }
        };
        let settings = Settings {
            me,
            life,
            peers: names,
            placement_order,
            rule: Rule::Knapsack(Placement::default()),
            capacity: space,
            lease: LEASE,
            load_rate: LOAD_RATE,
        };
        Self {
            council: Mutex::new(Council::new(Duration::ZERO, settings)),
            tables: Mutex::default(),
            space,
            counted: Mutex::default(),
            changed: Notify::new(),
            heard: Notify::new(),
            turns: Mutex::default(),
            peers,
        }
    }

    /// Whether a blob would be kept.
    pub fn keeps(&self, table: &Table, blob: u64) -> bool {
        let piece = table.piece_of(BlobOrdinal::new(blob));
        piece.is_none_or(|piece| self.council.lock().keeps(&table.dataset(), piece))
    }

    /// The connections to other nodes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Other nodes, those that answer, datasets that are managed here, and the highest term.
    pub fn gauges(&self, now: Duration) -> [u64; 3] {
        let council = self.council.lock();
        let reachable = council.reachable(now).count();
        let term = council.obeying().number_max();
        [self.peers.names().count() as u64, reachable as u64, term]
    }

    /// What the managers here have decided.
    pub fn overview(&self) -> Overview {
        self.council.lock().managers().overview()
    }

    fn turn(&self, dataset: DatasetId) -> Arc<TaskMutex<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(&dataset).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(TaskMutex::new(()));
        turns.insert(dataset, Arc::downgrade(&turn));
        turn
    }
}

impl NodeService {
    /// A job says how it gets on.
    pub(crate) async fn report(
        self: &Arc<Self>,
        table: &Arc<Table>,
        job: &str,
        report: &Report,
    ) -> Result<Reply, Refused> {
        let dataset = table.dataset();
        let until = Instant::now() + PREPARED_WITHIN;
        loop {
            let heard = self.managing.heard.notified();
            let mut heard = std::pin::pin!(heard);
            heard.as_mut().enable();
            let readiness =
                self.council(|council, now| council.prepare(now, dataset, || table.piece_sizes()));
            match readiness {
                Readiness::Ready => {
                    let answer =
                        self.council(|council, now| council.report(now, dataset, job, report));
                    let answer = answer.map_err(|refusal| self.refuse(&refusal))?;
                    self.counters.reports.one();
                    if let Answer::Draw { forced, .. } = &answer {
                        self.counters.probe_batches.add(u64::from(*forced));
                    }
                    return Ok(Reply::Report(answer));
                }
                Readiness::Elsewhere(node) => return Ok(Reply::Report(Answer::Elsewhere(node))),
                Readiness::TooMany => return Err(self.refuse(&Refusal::TooManyDatasets)),
                Readiness::Waiting => {
                    let mut tables = self.managing.tables.lock();
                    tables.insert(dataset, Arc::clone(table));
                }
            }
            if timeout_at(until, heard).await.is_err() {
                return Ok(Reply::Report(Answer::TellAll));
            }
        }
    }

    /// A job reads a dataset no more.
    pub(crate) fn leave(self: &Arc<Self>, table: &Table, job: &str) -> Result<Reply, Refused> {
        let left = self.council(|council, now| council.left(now, table.dataset(), job));
        left.map_err(|refusal| self.refuse(&refusal))?;
        self.blobs.left(&table.dataset());
        Ok(Reply::Left)
    }

    /// How a dataset stands, and why.
    pub(crate) fn explain(&self, guest: &Guest, table: &Table) -> Reply {
        let pieces = table.chunking().pieces();
        let described = self.managing.council.lock().describe(&table.dataset(), pieces);
        let described = described.map(|described| self.access.seen_by(guest, described));
        let json = serde_json::to_vec(&described).expect("numbers, names and words");
        Reply::Explain { json: json.into() }
    }

    /// Nothing of a dataset is kept any more, and nobody manages it until a job reports.
    pub(crate) async fn evict_all(&self, table: &Table) -> Result<Reply, Refused> {
        self.managing.council.lock().forget(&table.dataset());
        self.managing.tables.lock().remove(&table.dataset());
        let bytes = self.blobs.free_all(table).await.map_err(|refusal| {
            tracing::warn!(%refusal, "a dataset could not be evicted");
            (ErrorCode::Failed, "the node's device failed; its log says how".to_owned())
        })?;
        Ok(Reply::Evicted { bytes })
    }

    /// A blob has been put.
    pub(crate) fn arrived(self: &Arc<Self>, table: &Table, blob: u64, bytes: u64) {
        let Some(piece) = table.piece_of(BlobOrdinal::new(blob)) else { return };
        let arrived = self
            .council(|council, now| council.arrived(now, table.dataset(), piece, ByteSize(bytes)));
        complain(arrived);
    }

    /// Wakes the council when it has something to do, for ever.
    pub(crate) async fn manage(self: Arc<Self>) {
        loop {
            let changed = self.managing.changed.notified();
            let deadline = self.managing.council.lock().next_deadline();
            match deadline.map(|at| at.saturating_sub(self.now())) {
                Some(wait) => drop(timeout(wait.max(TICK_MIN), changed).await),
                None => changed.await,
            }
            complain(self.consult(Council::tick));
            self.managing.heard.notify_waiters();
            let (council, mut tables) = (self.managing.council.lock(), self.managing.tables.lock());
            tables.retain(|dataset, _| council.cares_for(dataset));
        }
    }

    /// Another node has answered.
    pub(crate) fn answered(
        self: &Arc<Self>,
        from: &NodeName,
        capacity: ByteSize,
        reply: forebay_core::council::Reply,
    ) {
        complain(self.council(|council, now| council.on_reply(now, from, capacity, reply)));
        self.managing.heard.notify_waiters();
    }

    /// Another node has something to say.
    pub(crate) async fn counsel(
        self: Arc<Self>,
        from: NodeName,
        request: Request,
        replies: Replies,
        _turn: OwnedSemaphorePermit,
    ) {
        let dataset = match &request {
            Request::Ask { dataset } | Request::Tell { dataset, .. } => Some(*dataset),
            Request::Greet | Request::Wish { .. } => None,
        };
        let turn = dataset.map(|dataset| self.managing.turn(dataset));
        let _alone = match &turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        let handling = self.council(|council, now| council.on_request(now, &from, request));
        let reply = match handling {
            Handling::Reply(reply) => reply,
            Handling::Find(dataset) => {
                let found = self.pieces_here(dataset).await;
                self.managing.council.lock().answer_ask(self.now(), dataset, found)
            }
            Handling::Free(dataset, places, free) => {
                self.free_pieces(dataset, &places, free).await;
                self.managing.council.lock().answer_tell(dataset, places)
            }
        };
        let capacity = self.managing.space;
        replies.send(&Reply::Council { capacity, reply }).await;
    }

    /// Asks or tells the council something, and has done what follows from that.
    fn council<T>(self: &Arc<Self>, asks: impl FnOnce(&mut Council, Duration) -> T) -> T {
        let answer = self.consult(asks);
        self.managing.changed.notify_one();
        answer
    }

    /// The same, for whoever looks at the deadline anyway.
    fn consult<T>(self: &Arc<Self>, asks: impl FnOnce(&mut Council, Duration) -> T) -> T {
        let (answer, effects) = {
            let mut council = self.managing.council.lock();
            let answer = asks(&mut council, self.now());
            self.count(council.counters());
            (answer, council.effects())
        };
        self.carry_out(effects);
        answer
    }

    fn carry_out(self: &Arc<Self>, Effects { send, find, free }: Effects) {
        for (peer, request) in send {
            self.managing.peers.send(&peer, request);
        }
        for dataset in find {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let turn = node.managing.turn(dataset);
                let _alone = turn.lock().await;
                let found = node.pieces_here(dataset).await;
                node.council(|council, now| council.found(now, dataset, &found));
                node.managing.heard.notify_waiters();
            });
        }
        for (dataset, places, free) in free {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let turn = node.managing.turn(dataset);
                let _alone = turn.lock().await;
                node.free_pieces(dataset, &places, free).await;
                node.council(|council, now| council.freed(now, dataset, &places));
            });
        }
    }

    /// What the council has counted since, everybody sees.
    fn count(&self, counted: Counted) {
        let before = std::mem::replace(&mut *self.managing.counted.lock(), counted);
        let all = &self.counters;
        for (counter, now, before) in [
            (&all.chunks_loaded, counted.chunks_loaded, before.chunks_loaded),
            (&all.chunks_evicted, counted.chunks_evicted, before.chunks_evicted),
            (&all.takeovers, counted.takeovers, before.takeovers),
            (&all.stepped_down, counted.stepped_down, before.stepped_down),
            (&all.orders_refused, counted.orders_refused, before.orders_refused),
        ] {
            counter.add(now - before);
        }
    }

    fn table_of(&self, dataset: DatasetId) -> Option<Arc<Table>> {
        let managed = self.managing.tables.lock().get(&dataset).cloned();
        managed.or_else(|| self.tables.get(&dataset))
    }

    async fn pieces_here(&self, dataset: DatasetId) -> Vec<u32> {
        self.blobs.pieces_of(dataset, self.table_of(dataset).as_deref()).await
    }

    /// Frees what has no place. Whoever does so has its turn.
    async fn free_pieces(&self, dataset: DatasetId, places: &Places, free: Free) {
        let table = self.table_of(dataset);
        let pieces = match free {
            Free::These(pieces) => pieces,
            Free::AllOthers => {
                let mut here = self.blobs.pieces_of(dataset, table.as_deref()).await;
                here.retain(|piece| places.kept.binary_search(piece).is_err());
                here
            }
        };
        for piece in pieces {
            // It may have been given a place again while this waited for its turn.
            if self.managing.council.lock().keeps(&dataset, piece) {
                continue;
            }
            if let Err(refusal) = self.blobs.free(dataset, table.as_deref(), piece).await {
                // It is not found any more; its space comes back with its regions.
                tracing::warn!(%refusal, "a piece could not be freed");
            }
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Refused {
        self.counters.reports_refused.one();
        let code = match refusal {
            Refusal::Fenced => ErrorCode::Fenced,
            Refusal::TooManyDatasets | Refusal::TooManyJobs => ErrorCode::TooMuch,
            Refusal::Contradiction(_) => ErrorCode::Malformed,
        };
        (code, refusal.to_string())
    }
}

fn complain(outcome: Result<(), Refusal>) {
    if let Err(refusal) = outcome {
        tracing::error!(%refusal, "the managers are told nonsense");
    }
}
