//! Node service: the state of a node, and its side of a connection.
//!
//! The decisions are made in `core::node`. The handlers of requests are in the sibling modules.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use forebay_core::{
    BlobOrdinal, ByteSize, Namespace,
    agent::free_space::FreeSpace,
    cluster::ring::RingMembership,
    dataset::blob_table::{BlobRow, BlobTable},
    node::{
        byte_budget::ShareId,
        claims::Holder,
        connection_slots::{SlotClass, SlotRefusal},
        fetch_pace::Party,
        fetch_table::{BlobState, FetchTable},
        pre_auth::Source,
    },
};
use forebay_flash::Flash;
use forebay_transport::{
    ConnectionMemory, Entropy, Latch, Peer,
    session::{Replies, Service},
};
use forebay_wire::{ErrorCode, Refusal, Request};
use parking_lot::Mutex;
use tokio::{sync::oneshot, task::JoinSet, time::Instant};

use crate::{
    cluster::peers::Peers,
    config::Config,
    connections::slots::{ConnectionSlot, SlotRegistry},
    environment::Environment,
    ops::{
        memory_budget::memory_max,
        metrics::{self, Counters, Gauges},
        slow_requests::SlowRequestLog,
        work_queue::{Lane, WorkQueue},
    },
    requests::{
        access::{Access, Identity},
        claims::wake_all,
        open::{OpenTables, PendingOpens},
        presence::PresenceRegistry,
        put::PutsInProgress,
        recheck::Rechecks,
        session::NodeSession,
        streams::SessionStreams,
    },
    store::{
        blob_store::BlobStore,
        eviction::EvictionPolicy,
        shm_regions::{ShmGrant, ShmRegions},
        stream_store::StreamStore,
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
    /// `None` if no client has a budget for streams.
    pub(crate) streams: Option<StreamStore>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) access: Access,
    pub(crate) slots: SlotRegistry,
    pub(crate) connection_memory: Arc<ConnectionMemory>,
    pub(crate) puts: PutsInProgress,
    pub(crate) rechecks: Rechecks,
    pub(crate) tables: OpenTables,
    pub(crate) managers: ManagerDriver,
    pub(crate) shm_regions: Arc<ShmRegions>,
    pub(crate) membership: Option<RingMembership>,
    pub(crate) presence: PresenceRegistry,
    pub(crate) work: WorkQueue,
    pub(crate) slow_requests: SlowRequestLog,
    pub(crate) entropy: Entropy,
    started: Instant,
    next_holder: AtomicU64,
    /// The most memory that the node uses.
    memory_max: ByteSize,
    /// Gets that are not completely answered.
    gets_in_flight: AtomicU64,
    stopping: AtomicBool,
    closing: Latch,
    /// Metrics of what runs in the same process.
    extra_metrics: OnceLock<ExtraMetrics>,
}

/// Counts a get as in flight until it is dropped.
pub(crate) struct GetInFlight<'a>(&'a NodeService);

impl Drop for GetInFlight<'_> {
    fn drop(&mut self) {
        self.0.gets_in_flight.fetch_sub(1, Relaxed);
    }
}

/// Reads the metrics of another component of the process.
pub type ExtraMetrics = Box<dyn Fn() -> metrics::ExtraRows + Send + Sync>;

impl NodeService {
    /// Shows the metrics of another component beside the node's. The first call counts.
    pub fn show_metrics(&self, read: ExtraMetrics) {
        drop(self.extra_metrics.set(read));
    }

    /// The metrics of the other component.
    pub(crate) fn extra_rows(&self) -> metrics::ExtraRows {
        self.extra_metrics.get().map(|read| read()).unwrap_or_default()
    }

    /// A node on devices that `open` opens with the node's eviction policy.
    pub fn on_devices(
        config: &Config,
        namespaces: Vec<Namespace>,
        environment: Environment,
        open: impl FnOnce(EvictionPolicy) -> Flash,
    ) -> anyhow::Result<Arc<Self>> {
        let access = Access::load(config, namespaces)?;
        let blobs = BlobStore::on_devices(config, environment.entropy.clone(), open);
        Self::new(blobs, None, config, access, environment)
    }

    /// A node with these blobs and streams.
    pub(crate) fn new(
        blobs: BlobStore,
        streams: Option<StreamStore>,
        config: &Config,
        access: Access,
        environment: Environment,
    ) -> anyhow::Result<Arc<Self>> {
        let Environment { entropy, connector, work } = environment;
        let membership = config.membership()?;
        let peers = Peers::load(config, membership.as_ref(), connector)?;
        let incarnation = entropy.number().context("cannot read random bytes from the kernel")?;
        let managers =
            ManagerDriver::new(blobs.capacity(), incarnation, membership.as_ref(), peers);
        let counters = Arc::new(Counters::default());
        let peers = managers.peers().names().count();
        let blobs_capacity = blobs.capacity();
        Ok(Arc::new(Self {
            slots: SlotRegistry::new(config.max_connections, peers, Arc::clone(&counters)),
            connection_memory: ConnectionMemory::new(
                config.connection_memory_size(),
                config.max_connections,
                access.tenants() > 1,
            ),
            fetch_table: Mutex::new(FetchTable::new(config.claim_lease, CLAIMS_MAX)),
            managers,
            blobs,
            streams,
            membership,
            counters,
            access,
            puts: PutsInProgress::default(),
            rechecks: Rechecks::default(),
            tables: OpenTables::new(config.table_memory()),
            shm_regions: ShmRegions::new(config.shared_memory_size()),
            presence: PresenceRegistry::default(),
            work,
            slow_requests: SlowRequestLog::default(),
            entropy,
            started: Instant::now(),
            next_holder: AtomicU64::new(0),
            memory_max: memory_max(config, blobs_capacity),
            gets_in_flight: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            closing: Latch::default(),
            extra_metrics: OnceLock::new(),
        }))
    }

    /// Starts the tasks beside the connections.
    pub fn spawn_background(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        tasks.spawn(Arc::clone(self).expire_claims());
        tasks.spawn(Arc::clone(self).drive_managers());
        tasks.spawn(Peers::run(Arc::clone(self)));
    }

    /// Makes all blobs durable and ends the work queue, after the last connection.
    pub async fn finish(&self) {
        self.flush().await;
        self.work.close().await;
    }

    /// A slot for a connection of this node's own user.
    pub fn owner_slot(&self) -> Result<ConnectionSlot, SlotRefusal> {
        self.slots.enter(SlotClass::Owner, Source::User(rustix::process::geteuid().as_raw()))
    }

    /// Stops granting claims.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.closing.set();
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
        let streams = self.streams.as_ref().map(|streams| streams.decide(|all| all.totals()));
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
            connections_open: self.slots.held() as u64,
            connection_bytes: self.connection_memory.taken(),
            memory_max_bytes: self.memory_max.0,
            connections_stalled: self.connection_memory.stalled.get(),
            datasets_open: self.tables.count(),
            peers_configured,
            peers_reachable,
            manager_term,
            managed: self.managers.overview(),
            is_ready: !self.is_stopping() && flash.iter().any(|device| device.healthy),
            uptime_seconds: self.started.elapsed().as_secs(),
            streams: streams.unwrap_or_default(),
        }
    }

    /// The current gauges, collected in the work queue: the managers may be busy.
    pub(crate) async fn gauges_in_queue(self: &Arc<Self>, lane: Lane) -> Gauges {
        let node = Arc::clone(self);
        self.work.run_once(lane, move || node.gauges()).await
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
    type Slot = ConnectionSlot;

    fn memory(&self) -> &Arc<ConnectionMemory> {
        &self.connection_memory
    }

    fn share(&self, session: &NodeSession) -> ShareId {
        ShareId(session.identity.tenant().map_or(0, |tenant| tenant.0 as u64 + 1))
    }

    fn lease(&self) -> Duration {
        self.fetch_table.lock().lease()
    }

    fn on_hello(
        self: &Arc<Self>,
        peer: &Peer,
        job: &str,
        token: &[u8],
        slot: &mut ConnectionSlot,
    ) -> Result<NodeSession, Refusal> {
        let node = self.managers.peers().identify(job, token);
        let authenticated = match node {
            // It may send cluster messages only: see `handle`.
            Some(_) => Ok((Identity::owner(), SlotClass::Node)),
            // A client with the cluster token is an operator.
            None if self.managers.peers().is_cluster_token(token) => {
                Ok((Identity::owner(), SlotClass::Owner))
            }
            None => self
                .access
                .authenticate(peer, token)
                .map(|identity| (identity, identity.class(peer))),
        };
        let entered = authenticated.and_then(|(identity, class)| {
            let too_much = |refusal: SlotRefusal| Refusal {
                code: ErrorCode::TooMuch,
                text: refusal.to_string(),
            };
            slot.authenticate(class).map(|()| identity).map_err(too_much)
        });
        let identity = entered.inspect_err(|refusal| {
            slot.reject();
            tracing::debug!(code = ?refusal.code, "client rejected");
        })?;
        let holder = Holder(self.next_holder.fetch_add(1, Relaxed));
        self.counters.connections.one();
        let tenant = self.access.name(&identity);
        let party = Party {
            tenant: identity.tenant().map_or(0, |tenant| tenant.0 as u64 + 1),
            job: Some(hash_of(job)),
        };
        self.fetch_table.lock().register(holder, party);
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
            streams: SessionStreams::default(),
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
        let (operation, began) = (request.name(), Instant::now());
        // A get waits for its client and for other jobs, a request about streams for its client and
        // for syncs of the device.
        let is_timed =
            !matches!(request, Request::Get { .. } | Request::GetShm { .. } | Request::Stream(_));
        let outcome = match request {
            Request::Stream(request) => self.on_stream_request(session, request, &replies).await,
            request => self.dispatch(session, request, &replies).await,
        };
        if is_timed {
            let tenant = self.access.name(&session.identity);
            self.slow_requests.on_request(&self.counters, operation, tenant, began.elapsed());
        }
        match outcome {
            Ok(Some(reply)) => replies.send(&reply).await,
            Ok(None) => {}
            Err((code, text)) => replies.refuse(code, text).await,
        }
    }

    async fn closing(&self) {
        self.closing.wait().await;
    }

    async fn on_disconnect(self: &Arc<Self>, mut session: NodeSession) {
        self.end_streams(&mut session);
        let mut wake = Vec::new();
        let abandoned = self.fetch_table.lock().abandon(session.holder, &mut wake);
        self.counters.claims_abandoned.add(abandoned as u64);
        self.end_lost_puts();
        wake_all(wake);
        tracing::debug!(connection = session.holder.0, "connection closed");
        // Large tables and shm regions take long to free.
        self.work.post(session.lane(), move || drop(session));
    }
}

/// The same number for the same name.
fn hash_of(name: &str) -> u64 {
    let hash = blake3::hash(name.as_bytes());
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("longer"))
}

/// The row of a blob, or a refusal if the table has no such blob.
pub(crate) fn row_of(table: &BlobTable, blob: BlobOrdinal) -> Result<BlobRow, Refused> {
    let row = table.row(blob);
    row.ok_or_else(|| (ErrorCode::Malformed, format!("the dataset has no blob {blob}")))
}
