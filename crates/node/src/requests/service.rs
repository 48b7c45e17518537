//! A node: carries out what `core::node` decides, for those who have proved what they hold.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use forebay_core::{
    BlobOrdinal, Namespace, NamespaceId, NodeName,
    claims::{Claim, Holder},
    node::{Claimed, Node, Renewal, Standing},
    ring::Membership,
    table::{Row, Table, Upload},
};
use forebay_segment::Segment;
use forebay_wire::{
    BlobLength, BlobProgress, BlobRange, COUNCIL_KIND, ClaimAnswer, ErrorCode, Malformed, PICKED,
    Refusal, RenewAnswer, Reply, Request,
};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::{
    access::{Access, Guest},
    blobs::Blobs,
    config::Config,
    counters::{self, Counters, Gauges},
    get::Asker,
    managing::Managing,
    open::{Opening, Picked, Tables},
    peer::Peer,
    presence::{Stocks, TableStock},
    put::Puts,
    segments::{Own, Segments},
    session::{Replies, Service},
};

/// Claims that one connection may hold (promise 5).
const CLAIMS_MAX: usize = 1024;
/// Datasets that one connection may have open.
const HANDLES_MAX: usize = 64;
/// Claims that end within so little are ended together.
const EXPIRY_MIN: Duration = Duration::from_millis(5);

/// Why a request cannot be answered.
pub(crate) type Refused = (ErrorCode, String);

/// A node of the cache.
pub struct NodeService {
    pub(crate) state: Mutex<Node<oneshot::Sender<()>>>,
    pub(crate) blobs: Blobs,
    pub(crate) counters: Counters,
    pub(crate) access: Access,
    pub(crate) puts: Puts,
    pub(crate) tables: Tables,
    pub(crate) managing: Managing,
    segments: Arc<Segments>,
    membership: Option<Membership>,
    stocks: Stocks,
    started: Instant,
    holders: AtomicU64,
    open: AtomicU64,
    /// Gets that are not wholly answered.
    gets: AtomicU64,
    stopping: AtomicBool,
    closing: watch::Sender<bool>,
}

/// One connection.
pub struct NodeSession {
    pub(crate) holder: Holder,
    pub(crate) guest: Guest,
    job: String,
    /// Which node of the ring it is, if it is one.
    node: Option<NodeName>,
    handles: Vec<Arc<Table>>,
    /// What it has picked last.
    picked: Option<Picked>,
    /// Of those that it has asked about, what is here.
    stocks: HashMap<u32, Arc<TableStock>>,
    opening: Opening,
    /// A descriptor can be passed to it.
    is_local: bool,
    segment: Own,
}

/// A get that is under way.
pub(crate) struct UnderWay<'a>(&'a NodeService);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.gets.fetch_sub(1, Relaxed);
    }
}

impl NodeService {
    /// A node of these blobs, alone or among others.
    pub(crate) fn new(
        blobs: Blobs,
        config: &Config,
        access: Access,
        membership: Option<Membership>,
        managing: Managing,
    ) -> Self {
        Self {
            state: Mutex::new(Node::new(config.lease, CLAIMS_MAX)),
            managing,
            blobs,
            membership,
            counters: Counters::default(),
            access,
            puts: Puts::default(),
            tables: Tables::default(),
            segments: Segments::new(config.segments),
            stocks: Stocks::default(),
            started: Instant::now(),
            holders: AtomicU64::new(0),
            open: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            closing: watch::Sender::new(false),
        }
    }

    /// From now on no claim is granted.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Relaxed);
    }

    /// Connections are to end.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Whether somebody is still fetching for this node, or being answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.gets.load(Relaxed) > 0 || self.state.lock().claims() > 0
    }

    /// Counts a get, until it is dropped.
    pub(crate) fn begin_get(&self) -> UnderWay<'_> {
        self.gets.fetch_add(1, Relaxed);
        UnderWay(self)
    }

    /// Serves these private namespaces from now on. What is open stays open, but nothing is put any more
    /// for a namespace that went.
    pub(crate) fn serve_namespaces(&self, namespaces: Vec<Namespace>) {
        self.access.serve(namespaces);
    }

    /// The time as `core` wants it.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What there is now.
    pub fn gauges(&self) -> Gauges {
        let flash = self.blobs.counters();
        let [peers_named, peers_reachable, manager_term] = self.managing.gauges(self.now());
        Gauges {
            capacity_bytes: self.blobs.capacity().0,
            resident_bytes: flash.iter().map(|device| device.bytes).sum(),
            resident_blobs: flash.iter().map(|device| device.entries).sum(),
            devices_named: self.blobs.devices_named(),
            devices_well: flash.iter().filter(|device| device.well).count() as u64,
            memory_bytes: self.blobs.hot().bytes(),
            memory_hits: self.blobs.hot().hits(),
            memory_capacity_bytes: self.blobs.hot().capacity(),
            claims_held: self.state.lock().claims() as u64,
            segment_bytes: self.segments.bytes(),
            connections_open: self.open.load(Relaxed),
            datasets_open: self.tables.open(),
            peers_named,
            peers_reachable,
            manager_term,
            managed: self.managing.overview(),
            is_ready: !self.is_stopping() && flash.iter().any(|device| device.well),
            uptime_seconds: self.started.elapsed().as_secs(),
        }
    }

    /// Everything that is here will be there again after a restart.
    pub(crate) async fn flush(&self) {
        if let Err(refusal) = self.blobs.flush().await {
            tracing::warn!(%refusal, "what was written last may not be there after a restart");
        }
    }

    /// Where a blob stands. The lock is held, so that nothing changes between the two looks.
    pub(crate) fn standing(&self, state: &Node<oneshot::Sender<()>>, row: &Row) -> Standing {
        state.standing(&row.address, self.blobs.contains(&row.address))
    }

    /// What the engine has counted, device by device.
    pub fn flash_counters(&self) -> Vec<forebay_flash::shard::Counters> {
        self.blobs.counters()
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Ends claims that have not been renewed, for ever.
    pub async fn expire_claims(self: Arc<Self>) {
        loop {
            // No claim that is made meanwhile ends sooner.
            let lease = self.lease();
            let next = self.state.lock().wake_at().map(|at| at.saturating_sub(self.now()));
            tokio::time::sleep(next.map_or(lease, |next| next.min(lease)).max(EXPIRY_MIN)).await;
            let mut wake = Vec::new();
            let expired = self.state.lock().expire(self.now(), &mut wake);
            self.counters.claims_expired.add(expired as u64);
            self.end_lost_puts();
            wake_all(wake);
        }
    }

    fn claim(&self, table: &Table, holder: Holder, blobs: &[u64]) -> Result<Reply, Refused> {
        if self.is_stopping() {
            return Err((ErrorCode::Stopping, "the node is stopping".to_owned()));
        }
        // All or nothing: whoever is refused does not know what it would hold.
        let standing = |blob: &u64| Ok((row_of(table, *blob)?, self.managing.keeps(table, *blob)));
        let rows: Vec<(Row, bool)> = blobs.iter().map(standing).collect::<Result<_, Refused>>()?;
        let now = self.now();
        let mut state = self.state.lock();
        let answer = |(row, is_kept): &(Row, bool)| match state.claim(
            now,
            holder,
            row.address,
            self.blobs.contains(&row.address),
            *is_kept,
        ) {
            Claimed::Present => ClaimAnswer::Present,
            Claimed::Outside => {
                self.counters.claims_outside.one();
                ClaimAnswer::Outside
            }
            Claimed::Decided(Claim::Held) => ClaimAnswer::Held,
            Claimed::Decided(Claim::TooMany) => ClaimAnswer::TooMany,
            Claimed::Decided(Claim::Granted) => {
                self.counters.claims_granted.one();
                ClaimAnswer::Granted
            }
        };
        Ok(Reply::Claim { answers: rows.iter().map(answer).collect() })
    }

    fn renew(
        &self,
        table: &Table,
        holder: Holder,
        blobs: &[BlobProgress],
    ) -> Result<Reply, Refused> {
        let (now, mut wake) = (self.now(), Vec::new());
        let mut answers = Vec::with_capacity(blobs.len());
        for progress in blobs {
            let address = row_of(table, progress.blob)?.address;
            let mut state = self.state.lock();
            answers.push(match state.renew(now, holder, &address, progress.bytes, &mut wake) {
                Renewal::Renewed => RenewAnswer::Renewed,
                Renewal::NotHeld => RenewAnswer::Lost,
                Renewal::Ended => {
                    self.counters.claims_expired.one();
                    RenewAnswer::Lost
                }
            });
        }
        wake_all(wake);
        Ok(Reply::Renew { answers })
    }
}

impl Service for NodeService {
    type Session = NodeSession;

    fn lease(&self) -> Duration {
        self.state.lock().lease()
    }

    fn connected(
        self: &Arc<Self>,
        peer: &Peer,
        job: &str,
        token: &[u8],
    ) -> Result<NodeSession, Refusal> {
        let node = self.managing.peers().identify(job, token);
        let admitted = match node {
            // It may say what nodes say, and use nothing.
            Some(_) => Ok(Guest::owner()),
            // Whoever holds the cluster's token runs the cluster.
            None if self.managing.peers().is_their_token(token) => Ok(Guest::owner()),
            None => self.access.admit(peer, token),
        };
        let guest = admitted.inspect_err(|refusal| {
            self.counters.strangers_refused.one();
            tracing::debug!(code = ?refusal.code, "somebody was not let in");
        })?;
        let holder = Holder(self.holders.fetch_add(1, Relaxed));
        self.open.fetch_add(1, Relaxed);
        self.counters.connections.one();
        tracing::debug!(job, tenant = self.access.name(&guest), connection = holder.0, "connected");
        Ok(NodeSession {
            holder,
            job: self.access.job(&guest, job),
            guest,
            node,
            handles: Vec::new(),
            picked: None,
            stocks: HashMap::new(),
            opening: Opening::default(),
            is_local: matches!(peer, Peer::Unix { .. }),
            segment: Own::default(),
        })
    }

    async fn handle(
        self: &Arc<Self>,
        session: &mut NodeSession,
        request: Request,
        replies: Replies,
    ) {
        if session.node.is_some() && !matches!(request, Request::Council(_)) {
            let text = "nodes take counsel with each other, and nothing else";
            return replies.refuse(ErrorCode::Identity, text).await;
        }
        match self.answer_to(session, request, &replies).await {
            Ok(Some(reply)) => replies.send(&reply).await,
            Ok(None) => {}
            Err((code, text)) => replies.refuse(code, text).await,
        }
    }

    async fn closing(&self) {
        // It fails only if the node is gone.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    async fn gone(self: &Arc<Self>, session: NodeSession) {
        let mut wake = Vec::new();
        let abandoned = self.state.lock().abandon(session.holder, &mut wake);
        self.counters.claims_abandoned.add(abandoned as u64);
        self.end_lost_puts();
        wake_all(wake);
        self.open.fetch_sub(1, Relaxed);
        tracing::debug!(connection = session.holder.0, "gone");
    }
}

impl NodeService {
    /// Memory to be shared with a client of this machine, if there is any left.
    async fn lend(&self, size: u64) -> Option<(Arc<Segment>, OwnedFd)> {
        let segments = Arc::clone(&self.segments);
        let making = tokio::task::spawn_blocking(move || segments.make(size));
        let lent = making.await.expect("making does not panic");
        match lent {
            Some(_) => self.counters.segments_lent.one(),
            None => self.counters.segments_refused.one(),
        }
        lent
    }

    /// Somebody asks for bytes, which are answered when it is their turn.
    async fn asked(
        self: &Arc<Self>,
        table: &Table,
        wait_ms: u32,
        ranges: &[BlobRange],
        asker: Asker,
    ) -> Result<Option<Reply>, Refused> {
        let turn = asker.replies.begin_get(ranges.len()).await;
        self.get(table, Duration::from_millis(wait_ms.into()), ranges, asker, turn).await?;
        Ok(None)
    }

    async fn answer_to(
        self: &Arc<Self>,
        session: &mut NodeSession,
        request: Request,
        replies: &Replies,
    ) -> Result<Option<Reply>, Refused> {
        let holder = session.holder;
        Ok(Some(match request {
            Request::Hello { .. } => unreachable!("the session says hello itself"),
            Request::Show { namespace, dataset } => {
                Reply::Show(session.opening.show(self, &session.guest, namespace, dataset)?)
            }
            Request::Prove { dataset, proof } => {
                let table = session.opening.prove(self, dataset, proof).await?;
                session.opened(table)?
            }
            Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page } => {
                let new = || Upload::checked(namespace, dataset, (chunks, partitions), blobs);
                match session.opening.upload(self, &session.guest, dataset, new, first, &page)? {
                    Ok(table) => session.opened(table)?,
                    Err(next) => Reply::Uploaded { next },
                }
            }
            Request::Pick { namespace, blobs } => session.pick(self, namespace, &blobs)?,
            Request::Presence { handle, first, count, since } => {
                let (node, stock) = (Arc::clone(self), session.stock(self, handle)?);
                let look = move || node.presence(&stock, first, count, since);
                tokio::task::spawn_blocking(look).await.expect("looking does not panic")?
            }
            Request::Get { handle, wait_ms, ranges } => {
                let asker = Asker { replies: replies.clone(), segment: None };
                return self.asked(session.table(handle)?, wait_ms, &ranges, asker).await;
            }
            Request::Place { handle, wait_ms, released, ranges } => {
                let segment = session.segment.release(&released, &self.counters)?;
                let asker = Asker { replies: replies.clone(), segment };
                return self.asked(session.table(handle)?, wait_ms, &ranges, asker).await;
            }
            Request::Segment { size } => {
                session.segment.ask()?;
                let size = if session.is_local { size } else { 0 };
                let Some((segment, descriptor)) = self.lend(size).await else {
                    return Ok(Some(Reply::Segment { size: 0 }));
                };
                let reply = Reply::Segment { size: segment.size() as u64 };
                session.segment = Own::Lent(segment);
                replies.send_with(&reply, descriptor).await;
                return Ok(None);
            }
            Request::Claim { handle, blobs } => {
                self.claim(session.table(handle)?, holder, &blobs)?
            }
            Request::Renew { handle, blobs } => {
                self.renew(session.table(handle)?, holder, &blobs)?
            }
            Request::Release { handle, blobs } => {
                let table = session.table(handle)?;
                let mut wake = Vec::new();
                for blob in blobs {
                    let address = row_of(table, blob)?.address;
                    if self.state.lock().release(holder, &address, &mut wake) {
                        self.counters.claims_released.one();
                    }
                }
                wake_all(wake);
                Reply::Released
            }
            Request::Put { handle, blob, offset, payload } => {
                let (whose, table) = ((holder, session.guest.tenant()), session.table(handle)?);
                Reply::Put(self.put(whose, table, blob, offset, payload).await?)
            }
            Request::Stats => Reply::Stats {
                counters: counters::pairs(&self.gauges(), &self.counters, &self.blobs.counters()),
            },
            Request::Want { handle, .. } => {
                session.table(handle)?;
                Reply::Wanted
            }
            Request::Mode { .. } => {
                return Err((ErrorCode::Malformed, "modes are for agents".to_owned()));
            }
            Request::Report { handle, report } => {
                self.report(session.dataset(handle)?, &session.job, &report).await?
            }
            Request::Leave { handle } => self.leave(session.dataset(handle)?, &session.job)?,
            Request::Explain { handle } => self.explain(&session.guest, session.dataset(handle)?),
            Request::Council(request) => {
                // To others there is no such request.
                let unknown = || (ErrorCode::Malformed, Malformed::Kind(COUNCIL_KIND).to_string());
                let from = session.node.clone().ok_or_else(unknown)?;
                let turn = replies.begin_get(1).await;
                tokio::spawn(Arc::clone(self).counsel(from, request, replies.clone(), turn));
                return Ok(None);
            }
            Request::Evict { handle } => {
                let table = session.dataset(handle)?;
                if self.access.is_shared(&session.guest, table.namespace()) {
                    return Err(shared());
                }
                self.evict_all(table).await?
            }
            Request::Ring => Reply::Ring(self.membership.clone()),
        }))
    }
}

impl NodeSession {
    fn pick(
        &mut self,
        node: &NodeService,
        namespace: NamespaceId,
        blobs: &[BlobLength],
    ) -> Result<Reply, Refused> {
        self.picked = Some(Opening::pick(node, &self.guest, namespace, blobs)?);
        Ok(Reply::Open { handle: PICKED })
    }

    /// A dataset that is open, or what was picked.
    fn table(&self, handle: u32) -> Result<&Arc<Table>, Refused> {
        match &self.picked {
            Some(picked) if handle == PICKED => Ok(&picked.table),
            _ => self.dataset(handle),
        }
    }

    /// A dataset that is open.
    fn dataset(&self, handle: u32) -> Result<&Arc<Table>, Refused> {
        self.handles
            .get(handle as usize)
            .ok_or_else(|| (ErrorCode::Unknown, format!("no dataset is open as {handle}")))
    }

    fn stock(&mut self, node: &NodeService, handle: u32) -> Result<Arc<TableStock>, Refused> {
        if let Some(stock) = self.stocks.get(&handle) {
            return Ok(Arc::clone(stock));
        }
        let stock = node.stocks.of(self.dataset(handle)?)?;
        self.stocks.insert(handle, Arc::clone(&stock));
        Ok(stock)
    }

    fn opened(&mut self, table: Arc<Table>) -> Result<Reply, Refused> {
        let known = self.handles.iter().position(|open| open.dataset() == table.dataset());
        if known.is_none() {
            if self.handles.len() == HANDLES_MAX {
                return Err((
                    ErrorCode::TooMuch,
                    format!("{HANDLES_MAX} datasets are open already"),
                ));
            }
            self.handles.push(table);
        }
        let handle = known.unwrap_or(self.handles.len() - 1);
        Ok(Reply::Open { handle: u32::try_from(handle).expect("at most HANDLES_MAX") })
    }
}

fn shared() -> Refused {
    let text = "other tenants use this namespace, too; ask the node's user to evict the dataset";
    (ErrorCode::Identity, text.to_owned())
}

/// Wakes those who waited; some may have given up.
pub(crate) fn wake_all(waiters: Vec<oneshot::Sender<()>>) {
    for waiter in waiters {
        let _ = waiter.send(());
    }
}

pub(crate) fn row_of(table: &Table, blob: u64) -> Result<Row, Refused> {
    let row = table.row(BlobOrdinal::new(blob));
    row.ok_or_else(|| (ErrorCode::Malformed, format!("there is no blob {blob}")))
}
