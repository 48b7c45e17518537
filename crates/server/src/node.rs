//! A node: carries out what `core::node` decides, for those who have proved what they hold.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_core::{
    BlobOrdinal, ByteSize, DatasetId, Namespace, NamespaceId,
    claims::{Claim, Holder},
    node::{Claimed, Node, Standing},
    table::{Row, Table, Upload},
};
use forebay_wire::{BlobRange, ClaimAnswer, ErrorCode, GetAnswer, RenewAnswer, Reply, Request};
use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout_at};

use crate::{
    counters::{self, Counters, Gauges},
    open::Opening,
    put::Puts,
    session::{Replies, Service},
    store::{ReadError, Store},
};

/// Claims that one connection may hold (promise 5).
const CLAIMS_MAX: usize = 1024;
/// Datasets that one connection may have open.
const HANDLES_MAX: usize = 64;
/// Rows of all tables together: 40 bytes each.
const ROWS_MAX: u64 = 1 << 26;

/// Bytes of presence that are made while nobody else has a turn.
const PRESENCE_PIECE: usize = 512;

/// Why a request cannot be answered.
pub(crate) type Refused = (ErrorCode, String);

/// A node of the cache.
pub struct NodeService {
    pub(crate) state: Mutex<Node<oneshot::Sender<()>>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) counters: Counters,
    namespaces: HashMap<NamespaceId, Namespace>,
    /// Tables that somebody has open.
    tables: Mutex<HashMap<DatasetId, Weak<Table>>>,
    started: Instant,
    holders: AtomicU64,
    open: AtomicU64,
}

/// One connection.
pub struct NodeSession {
    pub(crate) holder: Holder,
    handles: Vec<Arc<Table>>,
    opening: Opening,
    puts: Puts,
}

impl NodeService {
    /// Takes up what the store holds.
    pub fn new(
        store: Arc<dyn Store>,
        capacity: ByteSize,
        lease: Duration,
        namespaces: Vec<Namespace>,
    ) -> std::io::Result<Self> {
        let mut state = Node::new(capacity, lease, CLAIMS_MAX);
        for (address, length) in store.recover()? {
            for leaving in state.recover(address, store.footprint(length)) {
                store.remove(&leaving)?;
            }
        }
        let namespaces = namespaces.into_iter().chain([Namespace::public()]);
        Ok(Self {
            state: Mutex::new(state),
            store,
            counters: Counters::default(),
            namespaces: namespaces.map(|namespace| (namespace.id(), namespace)).collect(),
            tables: Mutex::default(),
            started: Instant::now(),
            holders: AtomicU64::new(0),
            open: AtomicU64::new(0),
        })
    }

    /// The time as `core` wants it.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What there is now.
    pub fn gauges(&self) -> Gauges {
        let state = self.state.lock();
        let resident = state.resident();
        Gauges {
            capacity_bytes: state.capacity().0,
            resident_bytes: resident.bytes,
            resident_blobs: resident.blobs,
            claims_held: state.claims() as u64,
            connections_open: self.open.load(Relaxed),
            datasets_open: self.tables.lock().values().filter(|t| t.strong_count() > 0).count()
                as u64,
            uptime_seconds: self.started.elapsed().as_secs(),
        }
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many connections there are.
    pub fn connections(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// Ends claims that have not been renewed, for ever.
    pub async fn expire_claims(self: Arc<Self>) {
        let mut tick = tokio::time::interval(self.lease() / 8);
        loop {
            tick.tick().await;
            let mut wake = Vec::new();
            let expired = self.state.lock().expire(self.now(), &mut wake);
            self.counters.claims_expired.add(expired as u64);
            wake_all(wake);
        }
    }

    pub(crate) fn namespace(&self, id: &NamespaceId) -> Option<&Namespace> {
        self.namespaces.get(id)
    }

    pub(crate) fn table(&self, dataset: &DatasetId) -> Option<Arc<Table>> {
        self.tables.lock().get(dataset).and_then(Weak::upgrade)
    }

    /// Whether so many rows more would be too many.
    pub(crate) fn has_room_for_rows(&self, more: u64) -> bool {
        let tables = self.tables.lock();
        let rows: u64 =
            tables.values().filter_map(Weak::upgrade).map(|t| t.rows().len() as u64).sum();
        rows.saturating_add(more) <= ROWS_MAX
    }

    /// Keeps a table for as long as somebody has it open.
    pub(crate) fn keep(&self, table: Table) -> Arc<Table> {
        let mut tables = self.tables.lock();
        tables.retain(|_, table| table.strong_count() > 0);
        let dataset = table.dataset();
        if let Some(known) = tables.get(&dataset).and_then(Weak::upgrade) {
            return known;
        }
        let table = Arc::new(table);
        tables.insert(dataset, Arc::downgrade(&table));
        table
    }

    fn presence(&self, table: &Table, first: u64, count: u32) -> Result<Reply, Refused> {
        let rows = rows_of(table, first, u64::from(count))?;
        let mut bits = vec![0_u8; rows.len().div_ceil(8)];
        // Piece by piece, so that the others have their turn in between.
        for (rows, bits) in rows.chunks(8 * PRESENCE_PIECE).zip(bits.chunks_mut(PRESENCE_PIECE)) {
            let state = self.state.lock();
            for (at, row) in rows.iter().enumerate() {
                if state.standing(&row.address) == Standing::Resident {
                    bits[at / 8] |= 1 << (at % 8);
                }
            }
        }
        Ok(Reply::Presence { bits: bits.into() })
    }

    fn claim(&self, table: &Table, holder: Holder, blobs: &[u64]) -> Result<Reply, Refused> {
        let now = self.now();
        let mut state = self.state.lock();
        let answer = |blob: &u64| {
            Ok(match state.claim(now, holder, row_of(table, *blob)?.address) {
                Claimed::Present => ClaimAnswer::Present,
                Claimed::Decided(Claim::Held) => ClaimAnswer::Held,
                Claimed::Decided(Claim::TooMany) => ClaimAnswer::TooMany,
                Claimed::Decided(Claim::Granted) => {
                    self.counters.claims_granted.one();
                    ClaimAnswer::Granted
                }
            })
        };
        blobs.iter().map(answer).collect::<Result<_, _>>().map(|answers| Reply::Claim { answers })
    }

    /// Reads a range of a resident blob, on a thread that may block. Whatever is wrong with it is a miss.
    fn read(&self, row: Row, range: Range<u64>) -> Option<Bytes> {
        match self.store.read(&row.address, row.length, range) {
            Ok(bytes) => return Some(bytes),
            Err(ReadError::Gone) => {}
            // Whoever uploads a table with wrong lengths must not cost others their blobs.
            Err(ReadError::OtherLength) => return None,
            Err(ReadError::Damaged(problem)) => {
                tracing::warn!(problem, "a blob is damaged and is dropped");
                self.counters.reads_damaged.one();
            }
            Err(ReadError::Io(error)) => {
                tracing::warn!(%error, "a blob cannot be read and is dropped");
                self.counters.reads_failed.one();
            }
        }
        if self.state.lock().lose(&row.address) {
            let _ = self.store.remove(&row.address);
        }
        None
    }

    async fn get(
        self: Arc<Self>,
        table: Arc<Table>,
        wait: Duration,
        ranges: Vec<BlobRange>,
        replies: Replies,
    ) {
        let checked: Result<Vec<Wanted>, Refused> =
            ranges.iter().enumerate().map(|(at, range)| Wanted::new(&table, at, *range)).collect();
        let wanted = match checked {
            Ok(wanted) => wanted,
            Err((code, text)) => return replies.refuse(code, text).await,
        };
        let deadline = tokio::time::Instant::now() + wait;
        let (mut ready, mut waiting) = (Vec::new(), FuturesUnordered::new());
        {
            let mut state = self.state.lock();
            for wanted in wanted {
                match state.standing(&wanted.row.address) {
                    Standing::Claimed if !wait.is_zero() => {
                        let (waker, woken) = oneshot::channel();
                        state.wait(wanted.row.address, waker);
                        self.counters.waits.one();
                        waiting.push(async move { (timeout_at(deadline, woken).await, wanted) });
                    }
                    standing => ready.push((standing, wanted)),
                }
            }
        }
        self.answer(ready, &replies).await;
        // A claim that ends without its blob is a miss for those who waited: whoever asks next claims it.
        while let Some((woken, wanted)) = waiting.next().await {
            let standing = match woken {
                Ok(_) => self.state.lock().standing(&wanted.row.address),
                Err(_elapsed) => Standing::Claimed,
            };
            self.answer(vec![(standing, wanted)], &replies).await;
        }
    }

    /// Answers what need not wait any more.
    async fn answer(self: &Arc<Self>, ready: Vec<(Standing, Wanted)>, replies: &Replies) {
        let mut resident = Vec::new();
        for (standing, wanted) in ready {
            match standing {
                Standing::Resident => resident.push(wanted),
                Standing::Absent => self.no_bytes(GetAnswer::Miss, wanted.index, replies).await,
                Standing::Claimed => self.no_bytes(GetAnswer::Claimed, wanted.index, replies).await,
            }
        }
        if resident.is_empty() {
            return;
        }
        let (node, replies) = (Arc::clone(self), replies.clone());
        let runtime = tokio::runtime::Handle::current();
        let read = move || {
            for Wanted { index, row, range } in resident {
                let length = usize::try_from(range.end - range.start).expect("a range of a frame");
                let room = runtime.block_on(replies.room_for(length));
                match node.read(row, range) {
                    Some(payload) => {
                        node.counters.hits.one();
                        node.counters.hit_bytes.add(length as u64);
                        let reply = Reply::Get { index, answer: GetAnswer::Hit, payload };
                        runtime.block_on(replies.send_payload(&reply, room));
                    }
                    None => runtime.block_on(node.no_bytes(GetAnswer::Miss, index, &replies)),
                }
            }
        };
        tokio::task::spawn_blocking(read).await.expect("reading does not panic");
    }

    async fn no_bytes(&self, answer: GetAnswer, index: u32, replies: &Replies) {
        match answer {
            GetAnswer::Claimed => self.counters.waits_in_vain.one(),
            _ => self.counters.misses.one(),
        }
        replies.send(&Reply::Get { index, answer, payload: Bytes::new() }).await;
    }
}

/// One range of a get, known to lie within its blob.
struct Wanted {
    index: u32,
    row: Row,
    range: Range<u64>,
}

impl Wanted {
    fn new(table: &Table, index: usize, range: BlobRange) -> Result<Self, Refused> {
        let row = row_of(table, range.blob)?;
        let end = range.offset.checked_add(u64::from(range.length));
        let end = end
            .filter(|end| *end <= row.length)
            .ok_or_else(|| (ErrorCode::Malformed, format!("a range leaves blob {}", range.blob)))?;
        let index = u32::try_from(index).expect("batches are bounded");
        Ok(Self { index, row, range: range.offset..end })
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
        let (opening, puts) = (Opening::default(), Puts::default());
        NodeSession { holder, handles: Vec::new(), opening, puts }
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
        session.puts.abort(self);
        self.state.lock().abandon(session.holder, &mut wake);
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
                let permit = replies.begin_get().await;
                tokio::spawn(async move {
                    node.get(table, wait, ranges, replies).await;
                    drop(permit);
                });
                return Ok(None);
            }
            Request::Claim { handle, blobs } => {
                self.claim(session.table(handle)?, holder, &blobs)?
            }
            Request::Renew { handle, blobs } => {
                let table = session.table(handle)?;
                let (now, mut wake) = (self.now(), Vec::new());
                let mut answers = Vec::with_capacity(blobs.len());
                for progress in blobs {
                    let address = row_of(table, progress.blob)?.address;
                    let mut state = self.state.lock();
                    let renewed = state.renew(now, holder, &address, progress.bytes, &mut wake);
                    answers.push(if renewed { RenewAnswer::Renewed } else { RenewAnswer::Lost });
                }
                wake_all(wake);
                Reply::Renew { answers }
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
                let (row, namespace) = (row_of(table, blob)?, table.namespace());
                Reply::Put(session.puts.piece(self, holder, namespace, row, offset, payload).await?)
            }
            Request::Stats => {
                Reply::Stats { counters: counters::pairs(&self.gauges(), &self.counters) }
            }
            Request::Want { handle, .. } => {
                session.table(handle)?;
                Reply::Wanted
            }
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

fn row_of(table: &Table, blob: u64) -> Result<Row, Refused> {
    let row = table.row(BlobOrdinal::new(blob));
    row.ok_or_else(|| (ErrorCode::Malformed, format!("there is no blob {blob}")))
}

fn rows_of(table: &Table, first: u64, count: u64) -> Result<&[Row], Refused> {
    let end = first.checked_add(count).filter(|end| *end <= table.rows().len() as u64);
    let end = end.ok_or_else(|| (ErrorCode::Malformed, "not so many blobs".to_owned()))?;
    let index = |at: u64| usize::try_from(at).expect("rows are in memory");
    Ok(&table.rows()[index(first)..index(end)])
}
