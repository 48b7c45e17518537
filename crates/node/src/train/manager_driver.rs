//! Manager driver: runs the managers of this node's datasets and the replication of their keep
//! sets.
//!
//! `core::cluster::replication` and `core::train::manager` decide. The driver passes them reports,
//! cluster messages and the time, sends their messages, and frees half-chunks that are not kept.
//!
//! A dataset without a report has no manager: every blob that is put is kept, until its dataset is
//! the least recently used one of a full device. After the first report, to any node, all nodes
//! keep only the half-chunks of the manager's keep set.
//!
//! Not here: the connections to other nodes (`cluster::peers`).

use std::{
    collections::HashMap,
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
    dataset::blob_table::BlobTable,
    train::{
        manager::{Overview, PlacementRule, Report, ReportAnswer, ReportRefusal},
        placement::Placement,
    },
    units::ByteRate,
};
use forebay_transport::session::Replies;
use forebay_wire::{ErrorCode, Reply};
use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as TaskMutex, Notify, OwnedSemaphorePermit},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    cluster::peers::Peers,
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
const TICK_MIN: Duration = Duration::from_millis(5);

/// The managers of a node, and the state for driving them.
pub(crate) struct ManagerDriver {
    replicator: Mutex<Replicator>,
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
        Self {
            replicator: Mutex::new(Replicator::new(Duration::ZERO, settings)),
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
        half_chunk
            .is_none_or(|half_chunk| self.replicator.lock().keeps(&table.dataset(), half_chunk))
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

impl NodeService {
    /// Handles a job's report. Waits for a takeover, if this node is to manage the dataset.
    pub(crate) async fn report(
        self: &Arc<Self>,
        table: &Arc<BlobTable>,
        job: &str,
        report: &Report,
    ) -> Result<Reply, Refused> {
        let dataset = table.dataset();
        let until = Instant::now() + PREPARE_TIMEOUT;
        loop {
            let progress = self.managers.takeover_progress.notified();
            let mut progress = std::pin::pin!(progress);
            progress.as_mut().enable();
            let readiness = self.with_replicator(|replicator, now| {
                replicator.prepare(now, dataset, || table.half_chunk_sizes())
            });
            match readiness {
                Readiness::Ready => {
                    let answer = self.with_replicator(|replicator, now| {
                        replicator.report(now, dataset, job, report)
                    });
                    let answer = answer.map_err(|refusal| self.refuse(&refusal))?;
                    self.counters.reports.one();
                    if let ReportAnswer::Draw { probe_batches, .. } = &answer {
                        self.counters.probe_batches.add(u64::from(*probe_batches));
                    }
                    return Ok(Reply::Report(answer));
                }
                Readiness::Elsewhere(node) => {
                    return Ok(Reply::Report(ReportAnswer::Redirect(node)));
                }
                Readiness::TooMany => return Err(self.refuse(&ReportRefusal::TooManyDatasets)),
                Readiness::Waiting => {
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
    pub(crate) fn leave(self: &Arc<Self>, table: &BlobTable, job: &str) -> Result<Reply, Refused> {
        let left =
            self.with_replicator(|replicator, now| replicator.left(now, table.dataset(), job));
        left.map_err(|refusal| self.refuse(&refusal))?;
        self.blobs.on_leave(&table.dataset());
        Ok(Reply::Left)
    }

    /// The state of a dataset and the reasons for it, without other tenants' jobs.
    pub(crate) fn explain(&self, identity: &Identity, table: &BlobTable) -> Reply {
        let half_chunks = table.chunking().half_chunks();
        let explanation = self.managers.replicator.lock().explain(&table.dataset(), half_chunks);
        let explanation = explanation.map(|all| self.access.redact_for(identity, all));
        let json = serde_json::to_vec(&explanation).expect("plain data");
        Reply::Explain { json: json.into() }
    }

    /// Evicts a dataset. It has no manager until a job reports again.
    pub(crate) async fn evict_all(&self, table: &BlobTable) -> Result<Reply, Refused> {
        self.managers.replicator.lock().forget(&table.dataset());
        self.managers.tables.lock().remove(&table.dataset());
        let bytes = self.blobs.free_all(table).await.map_err(|refusal| {
            tracing::warn!(%refusal, "eviction of a dataset failed");
            (ErrorCode::Failed, "the node's device failed; its log has the cause".to_owned())
        })?;
        Ok(Reply::Evicted { bytes })
    }

    /// A blob was put.
    pub(crate) fn on_put(self: &Arc<Self>, table: &BlobTable, blob: BlobOrdinal, bytes: u64) {
        let Some(half_chunk) = table.half_chunk_of(blob) else { return };
        log_refusal(self.with_replicator(|replicator, now| {
            replicator.arrived(now, table.dataset(), half_chunk, ByteSize(bytes))
        }));
    }

    /// Ticks the replicator at its deadlines. Does not return.
    pub(crate) async fn drive_managers(self: Arc<Self>) {
        loop {
            let deadline_changed = self.managers.deadline_changed.notified();
            let deadline = self.managers.replicator.lock().next_deadline();
            match deadline.map(|at| at.saturating_sub(self.now())) {
                Some(wait) => drop(timeout(wait.max(TICK_MIN), deadline_changed).await),
                None => deadline_changed.await,
            }
            log_refusal(self.with_replicator_unnotified(Replicator::tick));
            self.managers.takeover_progress.notify_waiters();
            let (replicator, mut tables) =
                (self.managers.replicator.lock(), self.managers.tables.lock());
            tables.retain(|dataset, _| replicator.manages_or_takes_over(dataset));
        }
    }

    /// A peer has answered.
    pub(crate) fn on_cluster_reply(
        self: &Arc<Self>,
        from: &NodeName,
        capacity: ByteSize,
        reply: forebay_core::cluster::replication::Reply,
    ) {
        log_refusal(
            self.with_replicator(|replicator, now| replicator.on_reply(now, from, capacity, reply)),
        );
        self.managers.takeover_progress.notify_waiters();
    }

    /// A peer has sent a request. `_permit` counts it as in flight.
    pub(crate) async fn on_cluster_request(
        self: Arc<Self>,
        from: NodeName,
        request: Request,
        replies: Replies,
        _permit: OwnedSemaphorePermit,
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
        let handling =
            self.with_replicator(|replicator, now| replicator.on_request(now, &from, request));
        let reply = match handling {
            Handling::Reply(reply) => reply,
            Handling::Find(dataset) => {
                let found = self.half_chunks_here(dataset).await;
                self.managers.replicator.lock().query_reply(self.now(), dataset, found)
            }
            Handling::Free(dataset, keep_set, free) => {
                self.free_half_chunks(dataset, &keep_set, free).await;
                self.managers.replicator.lock().replicate_reply(dataset, keep_set)
            }
        };
        let capacity = self.managers.space;
        replies.send(&Reply::Cluster { capacity, reply }).await;
    }

    /// Runs an action on the replicator, applies its effects, and wakes the driver in case the
    /// deadline has changed.
    fn with_replicator<T>(
        self: &Arc<Self>,
        action: impl FnOnce(&mut Replicator, Duration) -> T,
    ) -> T {
        let answer = self.with_replicator_unnotified(action);
        self.managers.deadline_changed.notify_one();
        answer
    }

    /// Like [`Self::with_replicator`], without waking the driver.
    fn with_replicator_unnotified<T>(
        self: &Arc<Self>,
        action: impl FnOnce(&mut Replicator, Duration) -> T,
    ) -> T {
        let (answer, effects) = {
            let mut replicator = self.managers.replicator.lock();
            let answer = action(&mut replicator, self.now());
            self.count(replicator.counters());
            (answer, replicator.effects())
        };
        self.apply(effects);
        answer
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
                node.with_replicator(|replicator, now| replicator.found(now, dataset, &found));
                node.managers.takeover_progress.notify_waiters();
            });
        }
        for (dataset, keep_set, free) in free {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let lock = node.managers.dataset_lock(dataset);
                let _guard = lock.lock().await;
                node.free_half_chunks(dataset, &keep_set, free).await;
                node.with_replicator(|replicator, now| replicator.freed(now, dataset, &keep_set));
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

    async fn half_chunks_here(&self, dataset: DatasetId) -> Vec<HalfChunk> {
        self.blobs.half_chunks_of(dataset, self.table_of(dataset).as_deref()).await
    }

    /// Frees half-chunks that are not in the keep set. The caller holds the dataset's lock.
    async fn free_half_chunks(&self, dataset: DatasetId, keep_set: &KeepSet, free: Free) {
        let table = self.table_of(dataset);
        let half_chunks = match free {
            Free::These(half_chunks) => half_chunks,
            Free::AllOthers => {
                let mut here = self.blobs.half_chunks_of(dataset, table.as_deref()).await;
                here.retain(|half_chunk| keep_set.kept.binary_search(half_chunk).is_err());
                here
            }
        };
        for half_chunk in half_chunks {
            // A newer keep set may have it again.
            if self.managers.replicator.lock().keeps(&dataset, half_chunk) {
                continue;
            }
            if let Err(refusal) = self.blobs.free(dataset, table.as_deref(), half_chunk).await {
                // Its blobs are not found any more; the space is free when the regions are evicted.
                tracing::warn!(%refusal, "half-chunk not freed");
            }
        }
    }

    fn refuse(&self, refusal: &ReportRefusal) -> Refused {
        self.counters.reports_refused.one();
        let code = match refusal {
            ReportRefusal::Fenced => ErrorCode::Fenced,
            ReportRefusal::TooManyDatasets | ReportRefusal::TooManyJobs => ErrorCode::TooMuch,
            ReportRefusal::InvalidEvent(_) => ErrorCode::Malformed,
        };
        (code, refusal.to_string())
    }
}

fn log_refusal(outcome: Result<(), ReportRefusal>) {
    if let Err(refusal) = outcome {
        tracing::error!(%refusal, "event refused by the managers");
    }
}
