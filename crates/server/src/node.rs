//! A node: carries out what `core::node` decides, for those who have proved what they hold.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use forebay_core::{
    BlobOrdinal, Namespace, NamespaceId,
    claims::{Claim, Holder},
    node::{Claimed, Node, Renewal, Standing},
    table::{Row, Table, Upload},
};
use forebay_wire::{BlobProgress, ClaimAnswer, ErrorCode, RenewAnswer, Reply, Request};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    blobs::Blobs,
    counters::{self, Counters, Gauges},
    managing::Managing,
    open::{Opening, Tables},
    put::Puts,
    session::{Replies, Service},
};

/// Claims that one connection may hold (promise 5).
const CLAIMS_MAX: usize = 1024;
/// Datasets that one connection may have open.
const HANDLES_MAX: usize = 64;
/// Bytes of presence that are made while nobody else has a turn.
const PRESENCE_PIECE: usize = 512;

/// Why a request cannot be answered.
pub(crate) type Refused = (ErrorCode, String);

/// A node of the cache.
pub struct NodeService {
    pub(crate) state: Mutex<Node<oneshot::Sender<()>>>,
    pub(crate) blobs: Blobs,
    pub(crate) counters: Counters,
    namespaces: HashMap<NamespaceId, Namespace>,
    pub(crate) puts: Puts,
    pub(crate) tables: Tables,
    pub(crate) managing: Managing,
    started: Instant,
    holders: AtomicU64,
    open: AtomicU64,
}

/// One connection.
pub struct NodeSession {
    pub(crate) holder: Holder,
    job: String,
    handles: Vec<Arc<Table>>,
    opening: Opening,
}

impl NodeService {
    /// A node of these blobs.
    pub(crate) fn new(blobs: Blobs, lease: Duration, namespaces: Vec<Namespace>) -> Self {
        let namespaces = namespaces.into_iter().chain([Namespace::public()]);
        Self {
            state: Mutex::new(Node::new(lease, CLAIMS_MAX)),
            managing: Managing::new(blobs.capacity()),
            blobs,
            counters: Counters::default(),
            namespaces: namespaces.map(|namespace| (namespace.id(), namespace)).collect(),
            puts: Puts::default(),
            tables: Tables::default(),
            started: Instant::now(),
            holders: AtomicU64::new(0),
            open: AtomicU64::new(0),
        }
    }

    /// The time as `core` wants it.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What there is now.
    pub fn gauges(&self) -> Gauges {
        let flash = self.blobs.counters();
        Gauges {
            capacity_bytes: self.blobs.capacity().0,
            resident_bytes: flash.iter().map(|device| device.bytes).sum(),
            resident_blobs: flash.iter().map(|device| device.entries).sum(),
            devices_named: self.blobs.devices_named(),
            devices_well: flash.iter().filter(|device| device.well).count() as u64,
            memory_bytes: self.blobs.hot().bytes(),
            memory_hits: self.blobs.hot().hits.get(),
            claims_held: self.state.lock().claims() as u64,
            connections_open: self.open.load(Relaxed),
            datasets_open: self.tables.open(),
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
        let mut tick = tokio::time::interval(self.lease() / 8);
        loop {
            tick.tick().await;
            let mut wake = Vec::new();
            let expired = self.state.lock().expire(self.now(), &mut wake);
            self.counters.claims_expired.add(expired as u64);
            self.end_lost_puts();
            wake_all(wake);
        }
    }

    pub(crate) fn namespace(&self, id: &NamespaceId) -> Option<&Namespace> {
        self.namespaces.get(id)
    }

    fn presence(&self, table: &Table, first: u64, count: u32) -> Result<Reply, Refused> {
        let rows = rows_of(table, first, u64::from(count))?;
        let mut bits = vec![0_u8; rows.len().div_ceil(8)];
        // Piece by piece, so that the others have their turn in between.
        for (rows, bits) in rows.chunks(8 * PRESENCE_PIECE).zip(bits.chunks_mut(PRESENCE_PIECE)) {
            for (at, row) in rows.iter().enumerate() {
                if self.blobs.contains(&row.address) {
                    bits[at / 8] |= 1 << (at % 8);
                }
            }
        }
        Ok(Reply::Presence { bits: bits.into() })
    }

    fn claim(&self, table: &Table, holder: Holder, blobs: &[u64]) -> Result<Reply, Refused> {
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

    fn connected(self: &Arc<Self>, job: &str) -> NodeSession {
        let holder = Holder(self.holders.fetch_add(1, Relaxed));
        self.open.fetch_add(1, Relaxed);
        self.counters.connections.one();
        tracing::debug!(job, connection = holder.0, "connected");
        NodeSession {
            holder,
            job: job.to_owned(),
            handles: Vec::new(),
            opening: Opening::default(),
        }
    }

    async fn handle(
        self: &Arc<Self>,
        session: &mut NodeSession,
        request: Request,
        replies: Replies,
    ) {
        match self.answer_to(session, request, &replies).await {
            Ok(Some(reply)) => replies.send(&reply).await,
            Ok(None) => {}
            Err((code, text)) => replies.refuse(code, text).await,
        }
    }

    async fn gone(self: &Arc<Self>, session: NodeSession) {
        let mut wake = Vec::new();
        self.state.lock().abandon(session.holder, &mut wake);
        self.end_lost_puts();
        wake_all(wake);
        self.open.fetch_sub(1, Relaxed);
        tracing::debug!(connection = session.holder.0, "gone");
    }
}

impl NodeService {
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
                Reply::Show(session.opening.show(self, namespace, dataset)?)
            }
            Request::Prove { dataset, proof } => {
                let table = session.opening.prove(self, dataset, proof).await?;
                session.opened(table)?
            }
            Request::Upload { namespace, dataset, chunks, partitions, blobs, first, page } => {
                let new = || Upload::checked(namespace, dataset, (chunks, partitions), blobs);
                match session.opening.upload(self, dataset, new, first, &page)? {
                    Ok(table) => session.opened(table)?,
                    Err(next) => Reply::Uploaded { next },
                }
            }
            Request::Presence { handle, first, count } => {
                let (node, table) = (Arc::clone(self), Arc::clone(session.table(handle)?));
                let look = move || node.presence(&table, first, count);
                tokio::task::spawn_blocking(look).await.expect("looking does not panic")?
            }
            Request::Get { handle, wait_ms, ranges } => {
                let (node, replies) = (Arc::clone(self), replies.clone());
                let (table, wait) =
                    (Arc::clone(session.table(handle)?), Duration::from_millis(wait_ms.into()));
                let turn = replies.begin_get().await;
                tokio::spawn(node.get(table, wait, ranges, replies, turn));
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
                    self.state.lock().release(holder, &address, &mut wake);
                }
                wake_all(wake);
                Reply::Released
            }
            Request::Put { handle, blob, offset, payload } => {
                let table = session.table(handle)?;
                Reply::Put(self.put(holder, table, blob, offset, payload).await?)
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
                self.report(session.table(handle)?, &session.job, &report).await?
            }
            Request::Leave { handle } => self.leave(session.table(handle)?, &session.job)?,
            Request::Explain { handle } => self.explain(session.table(handle)?),
            Request::Evict { handle } => self.evict_all(session.table(handle)?).await?,
        }))
    }
}

impl NodeSession {
    fn table(&self, handle: u32) -> Result<&Arc<Table>, Refused> {
        self.handles
            .get(handle as usize)
            .ok_or_else(|| (ErrorCode::Unknown, format!("no dataset is open as {handle}")))
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

fn rows_of(table: &Table, first: u64, count: u64) -> Result<&[Row], Refused> {
    let end = first.checked_add(count).filter(|end| *end <= table.rows().len() as u64);
    let end = end.ok_or_else(|| (ErrorCode::Malformed, "not so many blobs".to_owned()))?;
    let index = |at: u64| usize::try_from(at).expect("rows are in memory");
    Ok(&table.rows()[index(first)..index(end)])
}
