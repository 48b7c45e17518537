//! Node service: the state of a node, and its side of a connection.
//!
//! The decisions are made in `core::node`. The handlers of requests are in the sibling modules.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use forebay_core::{
    BlobOrdinal, Namespace,
    agent::free_space::FreeSpace,
    cluster::ring::RingMembership,
    dataset::blob_table::{BlobRow, BlobTable},
    node::{
        claims::Holder,
        fetch_table::{BlobState, FetchTable},
    },
};
use forebay_transport::{
    Peer,
    session::{Replies, Service},
};
use forebay_wire::{ErrorCode, Refusal, Request};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::{
    config::Config,
    ops::metrics::{self, Counters, Gauges},
    requests::{
        access::{Access, Identity},
        claims::wake_all,
        open::{OpenTables, PendingOpens},
        presence::PresenceRegistry,
        put::PutsInProgress,
        session::NodeSession,
    },
    store::{
        blob_store::BlobStore,
        shm_regions::{ShmGrant, ShmRegions},
    },
    train::manager_driver::{ClusterGauges, ManagerDriver},
};

/// Claims that one connection may hold (promise 5).
const CLAIMS_MAX: usize = 1024;

/// Code and text of a refusal.
pub(crate) type Refused = (ErrorCode, String);

/// Claims, waiters and writes; a waiter is woken through its channel.
pub(crate) type NodeFetchTable = FetchTable<oneshot::Sender<()>>;

/// The state of a node.
pub struct NodeService {
    pub(crate) fetch_table: Mutex<NodeFetchTable>,
    pub(crate) blobs: BlobStore,
    pub(crate) counters: Counters,
    pub(crate) access: Access,
    pub(crate) puts: PutsInProgress,
    pub(crate) tables: OpenTables,
    pub(crate) managers: ManagerDriver,
    pub(crate) shm_regions: Arc<ShmRegions>,
    pub(crate) membership: Option<RingMembership>,
    pub(crate) presence: PresenceRegistry,
    started: Instant,
    next_holder: AtomicU64,
    connections_open: AtomicU64,
    /// Gets that are not completely answered.
    gets_in_flight: AtomicU64,
    stopping: AtomicBool,
    closing: watch::Sender<bool>,
}

/// Counts a get as in flight until it is dropped.
pub(crate) struct GetInFlight<'a>(&'a NodeService);

impl Drop for GetInFlight<'_> {
    fn drop(&mut self) {
        self.0.gets_in_flight.fetch_sub(1, Relaxed);
    }
}

impl NodeService {
    /// A node with these blobs. `membership` is `None` for a single node.
    pub(crate) fn new(
        blobs: BlobStore,
        config: &Config,
        access: Access,
        membership: Option<RingMembership>,
        managers: ManagerDriver,
    ) -> Self {
        Self {
            fetch_table: Mutex::new(FetchTable::new(config.claim_lease, CLAIMS_MAX)),
            managers,
            blobs,
            membership,
            counters: Counters::default(),
            access,
            puts: PutsInProgress::default(),
            tables: OpenTables::default(),
            shm_regions: ShmRegions::new(config.shared_memory),
            presence: PresenceRegistry::default(),
            started: Instant::now(),
            next_holder: AtomicU64::new(0),
            connections_open: AtomicU64::new(0),
            gets_in_flight: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            closing: watch::Sender::new(false),
        }
    }

    /// Stops granting claims.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Whether a get is in flight or a claim is held.
    pub(crate) fn is_busy(&self) -> bool {
        self.gets_in_flight.load(Relaxed) > 0 || self.fetch_table.lock().claims() > 0
    }

    /// Counts a get as in flight.
    pub(crate) fn count_get(&self) -> GetInFlight<'_> {
        self.gets_in_flight.fetch_add(1, Relaxed);
        GetInFlight(self)
    }

    /// Replaces the private namespaces of a node without tenants. Datasets that are open stay open,
    /// but no blob is put for a namespace that was removed.
    pub(crate) fn set_namespaces(&self, namespaces: Vec<Namespace>) {
        self.access.set_namespaces(namespaces);
    }

    /// Time since the start: the clock of `core`.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The current gauges.
    pub fn gauges(&self) -> Gauges {
        let flash = self.blobs.counters();
        let ClusterGauges { peers_configured, peers_reachable, manager_term } =
            self.managers.cluster_gauges(self.now());
        Gauges {
            capacity_bytes: self.blobs.capacity().0,
            resident_bytes: flash.iter().map(|device| device.bytes).sum(),
            resident_blobs: flash.iter().map(|device| device.entries).sum(),
            devices_configured: self.blobs.devices_configured(),
            devices_healthy: flash.iter().filter(|device| device.healthy).count() as u64,
            memory_bytes: self.blobs.memory_cache().bytes(),
            memory_hits: self.blobs.memory_cache().hits(),
            memory_capacity_bytes: self.blobs.memory_cache().capacity(),
            claims_held: self.fetch_table.lock().claims() as u64,
            shm_bytes: self.shm_regions.bytes(),
            connections_open: self.connections_open.load(Relaxed),
            datasets_open: self.tables.count(),
            peers_configured,
            peers_reachable,
            manager_term,
            managed: self.managers.overview(),
            is_ready: !self.is_stopping() && flash.iter().any(|device| device.healthy),
            uptime_seconds: self.started.elapsed().as_secs(),
        }
    }

    /// The space that agents may prefetch into.
    pub(crate) fn free_space(&self) -> FreeSpace {
        let claims = self.fetch_table.lock().claims() as u64;
        metrics::free_space(self.blobs.capacity(), &self.blobs.counters(), claims)
    }

    /// Makes all blobs durable.
    pub(crate) async fn flush(&self) {
        if let Err(refusal) = self.blobs.flush().await {
            tracing::warn!(%refusal, "flush failed; the last blobs may be lost");
        }
    }

    /// The state of a blob. The caller holds the lock of the fetch table, so that a blob cannot
    /// change from claimed to resident in between.
    pub(crate) fn blob_state(&self, fetches: &NodeFetchTable, row: &BlobRow) -> BlobState {
        fetches.state(&row.address, self.blobs.contains(&row.address))
    }

    /// Counters of the flash engine, per device.
    pub fn flash_counters(&self) -> Vec<forebay_flash::shard::Counters> {
        self.blobs.counters()
    }

    /// The counters of the node.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

impl Service for NodeService {
    type Session = NodeSession;

    fn lease(&self) -> Duration {
        self.fetch_table.lock().lease()
    }

    fn on_hello(
        self: &Arc<Self>,
        peer: &Peer,
        job: &str,
        token: &[u8],
    ) -> Result<NodeSession, Refusal> {
        let node = self.managers.peers().identify(job, token);
        let authenticated = match node {
            // It may send cluster messages only: see `handle`.
            Some(_) => Ok(Identity::owner()),
            // A client with the cluster token is an operator.
            None if self.managers.peers().is_cluster_token(token) => Ok(Identity::owner()),
            None => self.access.authenticate(peer, token),
        };
        let identity = authenticated.inspect_err(|refusal| {
            self.counters.preauth_rejected.one();
            tracing::debug!(code = ?refusal.code, "client rejected");
        })?;
        let holder = Holder(self.next_holder.fetch_add(1, Relaxed));
        self.connections_open.fetch_add(1, Relaxed);
        self.counters.connections.one();
        let tenant = self.access.name(&identity);
        tracing::debug!(job, tenant, connection = holder.0, "client connected");
        Ok(NodeSession {
            holder,
            job: self.access.job_name(&identity, job),
            identity,
            peer: node,
            handles: Vec::new(),
            selection: None,
            presence: HashMap::new(),
            pending_opens: PendingOpens::default(),
            is_local: matches!(peer, Peer::Unix { .. }),
            shm: ShmGrant::default(),
        })
    }

    async fn handle(
        self: &Arc<Self>,
        session: &mut NodeSession,
        request: Request,
        replies: Replies,
    ) {
        if session.peer.is_some() && !matches!(request, Request::Cluster(_)) {
            let text = "a node may send cluster messages only";
            return replies.refuse(ErrorCode::Identity, text).await;
        }
        match self.dispatch(session, request, &replies).await {
            Ok(Some(reply)) => replies.send(&reply).await,
            Ok(None) => {}
            Err((code, text)) => replies.refuse(code, text).await,
        }
    }

    async fn closing(&self) {
        // An error means that the sender, and so the node, was dropped.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    async fn on_disconnect(self: &Arc<Self>, session: NodeSession) {
        let mut wake = Vec::new();
        let abandoned = self.fetch_table.lock().abandon(session.holder, &mut wake);
        self.counters.claims_abandoned.add(abandoned as u64);
        self.end_lost_puts();
        wake_all(wake);
        self.connections_open.fetch_sub(1, Relaxed);
        tracing::debug!(connection = session.holder.0, "connection closed");
    }
}

/// The row of a blob, or a refusal if the table has no such blob.
pub(crate) fn row_of(table: &BlobTable, blob: BlobOrdinal) -> Result<BlobRow, Refused> {
    let row = table.row(blob);
    row.ok_or_else(|| (ErrorCode::Malformed, format!("the dataset has no blob {blob}")))
}
