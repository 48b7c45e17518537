//! The managers of this node's datasets at work: jobs report, `core::manager` decides, pieces are freed.
//!
//! A dataset of which no job reports is not managed: whatever is put is kept, and the oldest goes when room is
//! needed. As soon as a job reports, only what its manager has given a place is kept.

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use forebay_core::{
    BlobOrdinal, ByteSize, DatasetId,
    manager::{Answer, Managers, Order, Overview, Refusal, Report, Rule, Space},
    placement::Placement,
    table::Table,
    units::ByteRate,
};
use forebay_wire::{ErrorCode, Reply};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::node::{NodeService, Refused};

/// A job is believed to live for so long without a word.
const LEASE: Duration = Duration::from_mins(1);
/// How fast chunks are expected to be loaded, until that has been measured.
const LOAD_RATE: ByteRate = ByteRate(ByteSize::mib(256));
/// Regions that are not full, and what nobody manages, need some room as well: one part in so many.
const SPARE: u64 = 10;

/// Nobody is woken sooner than after this.
const TICK_MIN: Duration = Duration::from_millis(5);

type Orders = Vec<(DatasetId, Order)>;

/// All that a node manages.
pub(crate) struct Managing {
    state: Mutex<State>,
    /// There may be an earlier deadline.
    changed: Notify,
}

struct State {
    managers: Managers,
    /// Of datasets that are managed: what their pieces consist of.
    tables: HashMap<DatasetId, Arc<Table>>,
}

impl Managing {
    pub fn new(capacity: ByteSize) -> Self {
        let space = ByteSize(capacity.0 - capacity.0 / SPARE);
        let space = Space::new(Rule::Knapsack(Placement::default()), space);
        let managers = Managers::new(space, LEASE, LOAD_RATE);
        let state = Mutex::new(State { managers, tables: HashMap::new() });
        Self { state, changed: Notify::new() }
    }

    /// How much is managed.
    pub fn overview(&self) -> Overview {
        self.state.lock().managers.overview()
    }

    /// Whether a blob would be kept.
    pub fn keeps(&self, table: &Table, blob: u64) -> bool {
        let state = self.state.lock();
        let dataset = table.dataset();
        state.managers.manager(&dataset).is_none()
            || table
                .piece_of(BlobOrdinal::new(blob))
                .is_none_or(|piece| state.managers.is_kept(&dataset, piece))
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
        let is_managed = self.managing.state.lock().managers.manager(&dataset).is_some();
        if !is_managed {
            let found = self.blobs.pieces_of(table).await;
            let orders = {
                let State { managers, tables } = &mut *self.managing.state.lock();
                let orders = managers.manage(self.now(), dataset, || table.piece_sizes(), found);
                tables.insert(dataset, Arc::clone(table));
                tables.retain(|dataset, _| managers.manager(dataset).is_some());
                orders
            };
            self.carry_out(orders.map_err(|refusal| self.refuse(&refusal))?);
        }
        let (answer, orders) =
            self.managing.state.lock().managers.report(self.now(), dataset, job, report);
        self.carry_out(orders);
        let answer = answer.map_err(|refusal| self.refuse(&refusal))?;
        self.counters.reports.one();
        if let Answer::Draw { forced, .. } = &answer {
            self.counters.probe_batches.add(u64::from(*forced));
        }
        Ok(Reply::Report(answer))
    }

    /// A job reads a dataset no more.
    pub(crate) fn leave(self: &Arc<Self>, table: &Table, job: &str) -> Result<Reply, Refused> {
        let left = self.managing.state.lock().managers.left(self.now(), table.dataset(), job);
        self.carry_out(left.map_err(|refusal| self.refuse(&refusal))?);
        Ok(Reply::Left)
    }

    /// How a dataset stands, and why.
    pub(crate) fn explain(&self, table: &Table) -> Reply {
        let described = self.managing.state.lock().managers.describe(&table.dataset());
        let json = serde_json::to_vec(&described).expect("numbers, names and words");
        Reply::Explain { json: json.into() }
    }

    /// Nothing of a dataset is kept any more, and nobody manages it until a job reports.
    pub(crate) async fn evict_all(&self, table: &Table) -> Result<Reply, Refused> {
        {
            let State { managers, tables } = &mut *self.managing.state.lock();
            managers.forget(&table.dataset());
            tables.remove(&table.dataset());
        }
        let here = table.rows().iter().filter(|row| self.blobs.contains(&row.address));
        let bytes = here.map(|row| row.length).sum();
        self.blobs.free_all(table).await.map_err(|refusal| {
            tracing::warn!(%refusal, "a dataset could not be evicted");
            (ErrorCode::Failed, "the node's device failed; its log says how".to_owned())
        })?;
        Ok(Reply::Evicted { bytes })
    }

    /// A blob has been put.
    pub(crate) fn arrived(self: &Arc<Self>, table: &Table, blob: u64, bytes: u64) {
        let Some(piece) = table.piece_of(BlobOrdinal::new(blob)) else { return };
        let arrived = {
            let managers = &mut self.managing.state.lock().managers;
            managers.arrived(self.now(), table.dataset(), piece, ByteSize(bytes))
        };
        self.obey(arrived);
    }

    /// Wakes the managers when they have something to do, for ever.
    pub(crate) async fn manage(self: Arc<Self>) {
        loop {
            let changed = self.managing.changed.notified();
            let deadline = self.managing.state.lock().managers.next_deadline();
            match deadline.map(|at| at.saturating_sub(self.now())) {
                Some(wait) => drop(tokio::time::timeout(wait.max(TICK_MIN), changed).await),
                None => changed.await,
            }
            let orders = self.managing.state.lock().managers.tick(self.now());
            self.obey(orders);
        }
    }

    fn obey(self: &Arc<Self>, orders: Result<Orders, Refusal>) {
        match orders {
            Ok(orders) => self.carry_out(orders),
            Err(refusal) => tracing::error!(%refusal, "the managers are told nonsense"),
        }
    }

    /// What is to be evicted is freed, and the managers are told when it is. Loading is for jobs to do:
    /// they are told what to fetch.
    fn carry_out(self: &Arc<Self>, orders: Orders) {
        if orders.is_empty() {
            return;
        }
        self.managing.changed.notify_one();
        for (dataset, order) in orders {
            match order {
                Order::Load(_) => self.counters.chunks_loaded.one(),
                Order::Evict(pieces) => {
                    self.counters.chunks_evicted.one();
                    // Unless all of it was evicted meanwhile.
                    let table = self.managing.state.lock().tables.get(&dataset).cloned();
                    table.map(|table| tokio::spawn(Arc::clone(self).evict(table, pieces)));
                }
            }
        }
    }

    async fn evict(self: Arc<Self>, table: Arc<Table>, pieces: Range<u32>) {
        for piece in pieces.clone() {
            if let Err(refusal) = self.blobs.free(&table, piece).await {
                // It is not found any more; its space comes back when its regions are the oldest.
                tracing::warn!(%refusal, "a piece could not be freed");
            }
        }
        let orders = {
            let managers = &mut self.managing.state.lock().managers;
            managers.evicted(self.now(), table.dataset(), &pieces)
        };
        self.obey(orders);
    }

    fn refuse(&self, refusal: &Refusal) -> Refused {
        self.counters.reports_refused.one();
        let code = match refusal {
            Refusal::Fenced => ErrorCode::Fenced,
            Refusal::TooManyDatasets => ErrorCode::TooMuch,
            Refusal::Contradiction(_) => ErrorCode::Malformed,
        };
        (code, refusal.to_string())
    }
}
