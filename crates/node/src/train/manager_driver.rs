//! Manager driver: runs the managers of this node's datasets and the replication of their keep
//! sets.
//!
//! `core::cluster::replication` and `core::train::manager` decide. The driver passes them reports,
//! cluster messages and the time, sends their messages, and frees half-chunks that are not kept.
//!
//! Decisions take milliseconds, and tables take longer to scan. So both run in the work queue, and
//! requests for blobs never wait for them: what is kept is published after every decision.
//!
//! A dataset without a report has no manager: every blob that is put is kept, until its dataset is
//! the least recently used one of a full device. After the first report, to any node, all nodes
//! keep only the half-chunks of the manager's keep set.
//!
//! Not here: the connections to other nodes (`cluster::peers`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use forebay_core::{
    BlobOrdinal, ByteSize, DatasetId, HalfChunk, NodeName,
    cluster::{
        replication::{
            Counters as ReplicationCounters, Effects, Free, Handling, KeepSet, Readiness,
            Replicator, Request, Settings, TAKEOVER_TIMEOUT,
        },
        ring::{Key, RingMembership},
    },
    dataset::blob_table::{BlobRow, BlobTable},
    train::{
        manager::{ManagerRegistry, Overview, PlacementRule, Report, ReportAnswer, ReportRefusal},
        placement::Placement,
    },
    units::ByteRate,
};
use forebay_transport::session::{GetPermit, Replies};
use forebay_wire::{ErrorCode, Reply};
use parking_lot::{Mutex, RwLock};
use tokio::{
    runtime::Handle,
    sync::{Mutex as TaskMutex, Notify},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    cluster::peers::Peers,
    ops::{
        memory_limit,
        work_queue::{Lane, ROWS_PER_SLICE, Slice},
    },
    requests::{
        access::Identity,
        service::{NodeService, Refused},
    },
};

/// Time after which a job that does not report counts as ended.
const JOB_LEASE: Duration = Duration::from_mins(1);
/// Expected rate of loading chunks, until it has been measured.
const LOAD_RATE_DEFAULT: ByteRate = ByteRate(ByteSize::mib(256));
/// One part in this many of the capacity is not managed: it is for regions that are not full, and
/// for blobs without a manager.
const SPARE_SHARE: u64 = 10;
/// Longest wait of a report for a takeover. After it the job is asked for a full report.
const PREPARE_TIMEOUT: Duration = TAKEOVER_TIMEOUT.saturating_mul(2);
/// Shortest time between two ticks of the managers.
const TICK_MIN: Duration = Duration::from_millis(20);

/// The managers of a node, and the state for driving them.
pub(crate) struct ManagerDriver {
    /// Locked by the work queue, and by callers that may wait.
    replicator: Mutex<Replicator>,
    /// The half-chunks that are kept of each managed dataset, ascending.
    keep_sets: RwLock<HashMap<DatasetId, Arc<[HalfChunk]>>>,
    /// Bytes that were put since the last decision.
    arrived: Mutex<BTreeMap<(DatasetId, HalfChunk), u64>>,
    /// Blob tables of the datasets that are managed here.
    tables: Mutex<HashMap<DatasetId, Arc<BlobTable>>>,
    /// Bytes for managed datasets.
    space: ByteSize,
    /// The replicator's counters at the last update of the metrics.
    counted: Mutex<ReplicationCounters>,
    /// The replicator's next deadline may be earlier than before.
    deadline_changed: Notify,
    /// A peer has answered, or another step of a takeover is done.
    takeover_progress: Notify,
    /// Held while the half-chunks of a dataset are listed or freed. Without it, an order of an old
    /// term could free half-chunks that a newer term keeps.
    dataset_locks: Mutex<HashMap<DatasetId, Weak<TaskMutex<()>>>>,
    peers: Peers,
}

/// Gauges of the cluster, as this node sees it.
pub(crate) struct ClusterGauges {
    pub peers_configured: u64,
    pub peers_reachable: u64,
    /// The highest term that this node follows.
    pub manager_term: u64,
}

impl ManagerDriver {
    /// A driver for a node of this capacity. `peers` is empty for a single node.
    pub fn new(
        capacity: ByteSize,
        incarnation: u64,
        membership: Option<&RingMembership>,
        peers: Peers,
    ) -> Self {
        let space = ByteSize(capacity.0 - capacity.0 / SPARE_SHARE);
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
            incarnation,
            peers: names,
            placement_order,
            rule: PlacementRule::Knapsack(Placement::default()),
            capacity: space,
            lease: JOB_LEASE,
            load_rate: LOAD_RATE_DEFAULT,
        };
        let mut replicator = Replicator::new(Duration::ZERO, settings);
        replicator.set_job_memory(memory_limit::plan().jobs);
        Self {
            replicator: Mutex::new(replicator),
            keep_sets: RwLock::default(),
            arrived: Mutex::default(),
            tables: Mutex::default(),
            space,
            counted: Mutex::default(),
            deadline_changed: Notify::new(),
            takeover_progress: Notify::new(),
            dataset_locks: Mutex::default(),
            peers,
        }
    }

    /// Whether the node would keep a blob.
    pub fn keeps(&self, table: &BlobTable, blob: BlobOrdinal) -> bool {
        let half_chunk = table.half_chunk_of(blob);
        half_chunk.is_none_or(|half_chunk| self.keeps_half_chunk(&table.dataset(), half_chunk))
    }

    fn keeps_half_chunk(&self, dataset: &DatasetId, half_chunk: HalfChunk) -> bool {
        let keep_sets = self.keep_sets.read();
        keep_sets.get(dataset).is_none_or(|kept| kept.binary_search(&half_chunk).is_ok())
    }

    /// Applies what was put since the last decision.
    fn apply_arrived(&self, replicator: &mut Replicator, now: Duration) {
        let arrived = std::mem::take(&mut *self.arrived.lock());
        for ((dataset, half_chunk), bytes) in arrived {
            log_refusal(replicator.arrived(now, dataset, half_chunk, ByteSize(bytes)));
        }
    }

    /// Publishes the keep sets that have changed.
    fn publish(&self, replicator: &mut Replicator) {
        let changed = replicator.take_changed_keep_sets();
        if changed.is_empty() {
            return;
        }
        let mut keep_sets = self.keep_sets.write();
        for (dataset, kept) in changed {
            match kept {
                Some(kept) => keep_sets.insert(dataset, kept.into()),
                None => keep_sets.remove(&dataset),
            };
        }
    }

    /// The connections to other nodes.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Gauges of the cluster.
    pub fn cluster_gauges(&self, now: Duration) -> ClusterGauges {
        let replicator = self.replicator.lock();
        ClusterGauges {
            peers_configured: self.peers.names().count() as u64,
            peers_reachable: replicator.reachable(now).count() as u64,
            manager_term: replicator.follower().number_max(),
        }
    }

    /// Summary of the managers' decisions.
    pub fn overview(&self) -> Overview {
        self.replicator.lock().managers().overview()
    }

    fn dataset_lock(&self, dataset: DatasetId) -> Arc<TaskMutex<()>> {
        let mut dataset_locks = self.dataset_locks.lock();
        dataset_locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = dataset_locks.get(&dataset).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(TaskMutex::new(()));
        dataset_locks.insert(dataset, Arc::downgrade(&lock));
        lock
    }
}

/// The result of an attempt to take a report.
enum Attempt {
    /// The sizes of the half-chunks are needed to start a takeover.
    NeedsSizes,
    Answered(Result<ReportAnswer, ReportRefusal>),
    Readiness(Readiness),
}

impl NodeService {
    /// Handles a job's report. Waits for a takeover, if this node is to manage the dataset.
    pub(crate) async fn report(
        self: &Arc<Self>,
        lane: Lane,
        table: &Arc<BlobTable>,
        job: &str,
        report: Report,
    ) -> Result<Reply, Refused> {
        let (dataset, half_chunks) = (table.dataset(), table.chunking().half_chunks());
        ManagerRegistry::check_half_chunks(half_chunks).map_err(|refusal| self.refuse(&refusal))?;
        let (job, report): (Arc<str>, _) = (job.into(), Arc::new(report));
        let (until, mut sizes) = (Instant::now() + PREPARE_TIMEOUT, None);
        loop {
            let progress = self.managers.takeover_progress.notified();
            let mut progress = std::pin::pin!(progress);
            progress.as_mut().enable();
            let (job, report, known) = (Arc::clone(&job), Arc::clone(&report), sizes.take());
            let attempt = self.with_replicator(lane, move |replicator, now| {
                if known.is_none() && !replicator.manages_or_takes_over(&dataset) {
                    return Attempt::NeedsSizes;
                }
                match replicator.prepare(now, dataset, || known.unwrap_or_default()) {
                    Readiness::Ready => {
                        Attempt::Answered(replicator.report(now, dataset, &job, &report))
                    }
                    readiness => Attempt::Readiness(readiness),
                }
            });
            match attempt.await {
                Attempt::NeedsSizes => {
                    sizes = Some(self.half_chunk_sizes(lane, table).await);
                    continue;
                }
                Attempt::Answered(answer) => {
                    let answer = answer.map_err(|refusal| self.refuse(&refusal))?;
                    self.counters.reports.one();
                    if let ReportAnswer::Draw { probe_batches, .. } = &answer {
                        self.counters.probe_batches.add(u64::from(*probe_batches));
                    }
                    return Ok(Reply::Report(answer));
                }
                Attempt::Readiness(Readiness::Elsewhere(node)) => {
                    return Ok(Reply::Report(ReportAnswer::Redirect(node)));
                }
                Attempt::Readiness(Readiness::TooMany) => {
                    return Err(self.refuse(&ReportRefusal::TooManyDatasets));
                }
                Attempt::Readiness(Readiness::Waiting | Readiness::Ready) => {
                    let mut tables = self.managers.tables.lock();
                    tables.insert(dataset, Arc::clone(table));
                }
            }
            if timeout_at(until, progress).await.is_err() {
                return Ok(Reply::Report(ReportAnswer::FullReportNeeded));
            }
        }
    }

    /// A job has left a dataset.
    pub(crate) async fn leave(
        self: &Arc<Self>,
        lane: Lane,
        table: &BlobTable,
        job: &str,
    ) -> Result<Reply, Refused> {
        let (dataset, job) = (table.dataset(), job.to_owned());
        let left = self
            .with_replicator(lane, move |replicator, now| replicator.left(now, dataset, &job))
            .await;
        left.map_err(|refusal| self.refuse(&refusal))?;
        self.blobs.on_leave(&dataset);
        Ok(Reply::Left)
    }

    /// The state of a dataset and the reasons for it, without other tenants' jobs.
    pub(crate) async fn explain(
        self: &Arc<Self>,
        identity: Identity,
        table: &Arc<BlobTable>,
    ) -> Reply {
        let (node, table) = (Arc::clone(self), Arc::clone(table));
        let lane = Lane::Tenant(identity.tenant());
        let explain = move || {
            let half_chunks = table.chunking().half_chunks();
            let mut replicator = node.managers.replicator.lock();
            node.managers.apply_arrived(&mut replicator, node.now());
            let explanation = replicator.explain(&table.dataset(), half_chunks);
            drop(replicator);
            let explanation = explanation.map(|all| node.access.redact_for(&identity, all));
            serde_json::to_vec(&explanation).expect("plain data")
        };
        Reply::Explain { json: self.work.run_once(lane, explain).await.into() }
    }

    /// Evicts a dataset. It has no manager until a job reports again.
    pub(crate) async fn evict_all(
        self: &Arc<Self>,
        lane: Lane,
        table: &Arc<BlobTable>,
    ) -> Result<Reply, Refused> {
        let dataset = table.dataset();
        self.with_replicator(lane, move |replicator, _| replicator.forget(&dataset)).await;
        self.managers.tables.lock().remove(&dataset);
        let node = Arc::clone(self);
        let before = self.visit_rows(lane, table, 0, move |bytes, _, row| {
            *bytes += if node.blobs.contains(&row.address) { row.length } else { 0 };
            node.blobs.memory_cache().remove(&row.address);
        });
        let before = before.await;
        self.blobs.free_groups(dataset).await.map_err(|refusal| {
            tracing::warn!(%refusal, "eviction of a dataset failed");
            (ErrorCode::Failed, "the node's device failed; its log has the cause".to_owned())
        })?;
        let node = Arc::clone(self);
        let after = self.visit_rows(lane, table, 0, move |bytes, _, row| {
            *bytes += if node.blobs.contains(&row.address) { row.length } else { 0 };
        });
        Ok(Reply::Evicted { bytes: u64::saturating_sub(before, after.await) })
    }

    /// A blob was put. The managers learn of it with the next decision, which follows at once.
    pub(crate) fn on_put(self: &Arc<Self>, table: &BlobTable, blob: BlobOrdinal, bytes: u64) {
        let Some(half_chunk) = table.half_chunk_of(blob) else { return };
        let is_first = {
            let mut arrived = self.managers.arrived.lock();
            let is_first = arrived.is_empty();
            let sum = arrived.entry((table.dataset(), half_chunk)).or_default();
            *sum = sum.saturating_add(bytes);
            is_first
        };
        if is_first {
            let (node, runtime) = (Arc::clone(self), Handle::current());
            self.work.post(Lane::Node, move || {
                node.decide(&runtime, |_, _| ());
                node.managers.deadline_changed.notify_one();
            });
        }
    }

    /// Ticks the replicator at its deadlines. Does not return.
    pub(crate) async fn drive_managers(self: Arc<Self>) {
        loop {
            let deadline_changed = self.managers.deadline_changed.notified();
            let node = Arc::clone(&self);
            let deadline = move || node.managers.replicator.lock().next_deadline();
            let deadline = self.work.run_once(Lane::Node, deadline).await;
            match deadline.map(|at| at.saturating_sub(self.now())) {
                Some(wait) => drop(timeout(wait, deadline_changed).await),
                None => deadline_changed.await,
            }
            let node = Arc::clone(&self);
            let tick = move |replicator: &mut Replicator, now| {
                log_refusal(replicator.tick(now));
                let mut tables = node.managers.tables.lock();
                tables.retain(|dataset, _| replicator.manages_or_takes_over(dataset));
            };
            self.with_replicator_unnotified(Lane::Node, tick).await;
            self.managers.takeover_progress.notify_waiters();
            tokio::time::sleep(TICK_MIN).await;
        }
    }

    /// A peer has answered.
    pub(crate) async fn on_cluster_reply(
        self: &Arc<Self>,
        from: NodeName,
        capacity: ByteSize,
        reply: forebay_core::cluster::replication::Reply,
    ) {
        let on_reply = move |replicator: &mut Replicator, now| {
            log_refusal(replicator.on_reply(now, &from, capacity, reply));
        };
        self.with_replicator(Lane::Node, on_reply).await;
        self.managers.takeover_progress.notify_waiters();
    }

    /// A peer has sent a request. `_permit` counts it as in flight.
    pub(crate) async fn on_cluster_request(
        self: Arc<Self>,
        from: NodeName,
        request: Request,
        replies: Replies,
        _permit: GetPermit,
    ) {
        let dataset = match &request {
            Request::Query { dataset } | Request::Replicate { dataset, .. } => Some(*dataset),
            Request::Ping | Request::SpaceRequest { .. } => None,
        };
        let lock = dataset.map(|dataset| self.managers.dataset_lock(dataset));
        let _guard = match &lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        let on_request =
            move |replicator: &mut Replicator, now| replicator.on_request(now, &from, request);
        let reply = match self.with_replicator(Lane::Node, on_request).await {
            Handling::Reply(reply) => reply,
            Handling::Find(dataset) => {
                let found = self.half_chunks_here(dataset).await;
                let reply = move |replicator: &mut Replicator, now| {
                    replicator.query_reply(now, dataset, found)
                };
                self.with_replicator(Lane::Node, reply).await
            }
            Handling::Free(dataset, keep_set, free) => {
                self.free_half_chunks(dataset, &keep_set, free).await;
                let reply = move |replicator: &mut Replicator, _| {
                    replicator.replicate_reply(dataset, keep_set)
                };
                self.with_replicator(Lane::Node, reply).await
            }
        };
        let capacity = self.managers.space;
        replies.send(&Reply::Cluster { capacity, reply }).await;
    }

    /// Runs an action on the replicator in the work queue, applies its effects, and wakes the
    /// driver in case the deadline has changed.
    async fn with_replicator<T: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        action: impl FnOnce(&mut Replicator, Duration) -> T + Send + 'static,
    ) -> T {
        let answer = self.with_replicator_unnotified(lane, action).await;
        self.managers.deadline_changed.notify_one();
        answer
    }

    /// Like [`Self::with_replicator`], without waking the driver.
    async fn with_replicator_unnotified<T: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        action: impl FnOnce(&mut Replicator, Duration) -> T + Send + 'static,
    ) -> T {
        let (node, runtime) = (Arc::clone(self), Handle::current());
        self.work.run_once(lane, move || node.decide(&runtime, action)).await
    }

    /// Applies what was put, then an action, and its effects. Blocks while other decisions are
    /// made: called in the work queue.
    fn decide<T>(
        self: &Arc<Self>,
        runtime: &Handle,
        action: impl FnOnce(&mut Replicator, Duration) -> T,
    ) -> T {
        let (answer, effects) = {
            let mut replicator = self.managers.replicator.lock();
            let now = self.now();
            self.managers.apply_arrived(&mut replicator, now);
            let answer = action(&mut replicator, now);
            self.count(replicator.counters());
            self.managers.publish(&mut replicator);
            (answer, replicator.effects())
        };
        let _entered = runtime.enter();
        self.apply(effects);
        answer
    }

    /// Visits all rows of a table, in slices.
    async fn visit_rows<T: Send + 'static>(
        &self,
        lane: Lane,
        table: &Arc<BlobTable>,
        state: T,
        mut visit: impl FnMut(&mut T, HalfChunk, &BlobRow) + Send + 'static,
    ) -> T {
        let (table, mut state, mut next) = (Arc::clone(table), Some(state), 0);
        let slice = move || {
            let visited = state.as_mut().expect("not done");
            for (half_chunk, row) in table.rows_by_half_chunk_from(next).take(ROWS_PER_SLICE) {
                visit(visited, half_chunk, &row);
            }
            next += ROWS_PER_SLICE;
            if next < table.rows().len() {
                Slice::More
            } else {
                Slice::Done(state.take().expect("not done"))
            }
        };
        self.work.run(lane, slice).await
    }

    /// Size of each half-chunk.
    async fn half_chunk_sizes(&self, lane: Lane, table: &Arc<BlobTable>) -> Vec<ByteSize> {
        let sizes = vec![ByteSize(0); table.chunking().half_chunks() as usize];
        self.visit_rows(lane, table, sizes, |sizes, half_chunk, row| {
            let size = &mut sizes[half_chunk.index()];
            size.0 = size.0.saturating_add(row.length);
        })
        .await
    }

    fn apply(self: &Arc<Self>, Effects { send, find, free }: Effects) {
        for (peer, request) in send {
            self.managers.peers.send(&peer, request);
        }
        for dataset in find {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let lock = node.managers.dataset_lock(dataset);
                let _guard = lock.lock().await;
                let found = node.half_chunks_here(dataset).await;
                let on_found = move |replicator: &mut Replicator, now| {
                    replicator.found(now, dataset, &found);
                };
                node.with_replicator(Lane::Node, on_found).await;
                node.managers.takeover_progress.notify_waiters();
            });
        }
        for (dataset, keep_set, free) in free {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let lock = node.managers.dataset_lock(dataset);
                let _guard = lock.lock().await;
                node.free_half_chunks(dataset, &keep_set, free).await;
                let on_freed = move |replicator: &mut Replicator, now| {
                    replicator.freed(now, dataset, &keep_set);
                };
                node.with_replicator(Lane::Node, on_freed).await;
            });
        }
    }

    /// Adds the replicator's new counts to the node's metrics.
    fn count(&self, counted: ReplicationCounters) {
        let before = std::mem::replace(&mut *self.managers.counted.lock(), counted);
        let all = &self.counters;
        for (counter, now, before) in [
            (&all.chunks_loaded, counted.chunks_loaded, before.chunks_loaded),
            (&all.chunks_evicted, counted.chunks_evicted, before.chunks_evicted),
            (&all.takeovers, counted.takeovers, before.takeovers),
            (&all.leadership_lost, counted.leadership_lost, before.leadership_lost),
            (
                &all.stale_orders_rejected,
                counted.stale_orders_rejected,
                before.stale_orders_rejected,
            ),
        ] {
            counter.add(now - before);
        }
    }

    fn table_of(&self, dataset: DatasetId) -> Option<Arc<BlobTable>> {
        let managed = self.managers.tables.lock().get(&dataset).cloned();
        managed.or_else(|| self.tables.get(&dataset))
    }

    /// The half-chunks of which blobs are resident. Without the table, only half-chunks with groups
    /// of their own are found.
    async fn half_chunks_here(self: &Arc<Self>, dataset: DatasetId) -> Vec<HalfChunk> {
        let table = self.table_of(dataset);
        let count = table.as_ref().map_or(u32::MAX, |table| table.chunking().half_chunks());
        match table.filter(|table| !self.blobs.has_groups(table)) {
            None => self.blobs.half_chunks_of(dataset, count).await,
            Some(table) => {
                let node = Arc::clone(self);
                let visit = move |found: &mut BTreeSet<HalfChunk>, half_chunk, row: &BlobRow| {
                    if node.blobs.contains(&row.address) {
                        found.insert(half_chunk);
                    }
                };
                let found = self.visit_rows(Lane::Node, &table, BTreeSet::new(), visit).await;
                found.into_iter().collect()
            }
        }
    }

    /// Frees half-chunks that are not in the keep set. The caller holds the dataset's lock.
    async fn free_half_chunks(
        self: &Arc<Self>,
        dataset: DatasetId,
        keep_set: &KeepSet,
        free: Free,
    ) {
        let half_chunks = match free {
            Free::These(half_chunks) => half_chunks,
            Free::AllOthers => {
                let mut here = self.half_chunks_here(dataset).await;
                here.retain(|half_chunk| keep_set.kept.binary_search(half_chunk).is_err());
                here
            }
        };
        for half_chunk in half_chunks {
            // A newer keep set may have it again.
            if self.managers.keeps_half_chunk(&dataset, half_chunk) {
                continue;
            }
            self.free_half_chunk(dataset, half_chunk).await;
        }
    }

    /// Frees a half-chunk. When this returns, none of its blobs is found. Without the table, the
    /// blobs of a shared group stay until their regions are evicted.
    async fn free_half_chunk(self: &Arc<Self>, dataset: DatasetId, half_chunk: HalfChunk) {
        if let Some(table) = self.table_of(dataset) {
            let node = Arc::clone(self);
            let visit = move |rows: &mut Vec<BlobRow>, of: HalfChunk, row: &BlobRow| {
                if of == half_chunk {
                    node.blobs.memory_cache().remove(&row.address);
                    if node.blobs.contains(&row.address) {
                        rows.push(*row);
                    }
                }
            };
            let rows = self.visit_rows(Lane::Node, &table, Vec::new(), visit).await;
            if !self.blobs.has_groups(&table) {
                return self.blobs.free_rows(&rows).await;
            }
        }
        if let Err(refusal) = self.blobs.free_group(dataset, half_chunk).await {
            // Its blobs are not found any more; the space is free when the regions are evicted.
            tracing::warn!(%refusal, "half-chunk not freed");
        }
    }

    fn refuse(&self, refusal: &ReportRefusal) -> Refused {
        self.counters.reports_refused.one();
        let code = match refusal {
            ReportRefusal::Fenced => ErrorCode::Fenced,
            ReportRefusal::TooManyDatasets
            | ReportRefusal::TooManyJobs
            | ReportRefusal::TooManyHalfChunks => ErrorCode::TooMuch,
            ReportRefusal::NamedTwice | ReportRefusal::InvalidEvent(_) => ErrorCode::Malformed,
        };
        (code, refusal.to_string())
    }
}

fn log_refusal(outcome: Result<(), ReportRefusal>) {
    if let Err(refusal) = outcome {
        tracing::error!(%refusal, "event refused by the managers");
    }
}
