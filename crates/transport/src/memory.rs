//! Connection memory: the bytes of requests and replies that wait on all connections of a process.
//!
//! `core::node::byte_budget` decides who may have how much, and which clients are too slow; this
//! module lets tasks wait and closes connections. There are two budgets, because a request in
//! progress waits for the space of its replies: with one budget, requests could take all of it and
//! wait for each other.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay_core::{
    ByteSize,
    node::byte_budget::{BudgetTicket, ByteBudget, Grant, HolderId, ShareId},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::Instant,
};

use crate::{Counter, Latch};

/// Parts of the memory, in sixteenths: the kernel's send buffers, replies, requests and waits.
const SEND_BUFFERS: u64 = 4;
const REPLIES: u64 = 8;
const REQUESTS: u64 = 3;
const WAITS: u64 = 1;
/// Memory of one range that waits for a claimed blob.
const WAIT_BYTES: u64 = 512;
/// While others wait, a client that does not read this long is closed.
const REPLIES_WINDOW: Duration = Duration::from_secs(2);
/// The same for a client that sends slowly. Longer, because its request may wait for replies.
const REQUESTS_WINDOW: Duration = Duration::from_secs(10);
/// Bytes of replies that may keep buffers of devices while they wait: half of one device's buffers.
/// Otherwise slow clients would take all of them, and no other read would find a buffer.
const BORROWED_MAX: usize = 32 << 20;
/// The shortest read of a device: a shorter payload keeps a buffer of this length.
const BORROWED_MIN: usize = 4096;
/// Interval of looking for clients that are too slow.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// One connection may have one part in this many of the replies.
const CONNECTION_SHARE: u64 = 4;
/// Send buffer of a Unix socket, as far as the system allows. With a larger one, writer and reader
/// wait for each other less often.
const SEND_BUFFER_MAX: u64 = 1 << 20;
const SEND_BUFFER_MIN: u64 = 64 << 10;

/// The memory for requests and replies of all connections.
pub struct ConnectionMemory {
    replies: Arc<Pool>,
    requests: Arc<Pool>,
    waits: Arc<Semaphore>,
    /// Bytes in buffers of devices that replies keep while they wait.
    borrowed: Arc<Semaphore>,
    send_buffer: usize,
    next: AtomicU64,
    accounts: Mutex<HashMap<HolderId, Weak<Account>>>,
    /// Connections closed because they were too slow while others waited for memory.
    pub stalled: Counter,
}

/// The memory of one connection.
pub(crate) struct Account {
    id: HolderId,
    memory: Arc<ConnectionMemory>,
    /// The tenant, after the hello.
    share: OnceLock<ShareId>,
    /// Bytes sent and received.
    moved: AtomicU64,
    /// The connection is to be closed because it is too slow.
    closed: Latch,
}

/// Bytes that count for a budget until this is dropped.
pub(crate) struct BudgetPermit {
    pool: Arc<Pool>,
    holder: HolderId,
    share: ShareId,
    bytes: u64,
}

struct Pool {
    started: Instant,
    state: Mutex<PoolState>,
}

struct PoolState {
    budget: ByteBudget,
    waiting: HashMap<BudgetTicket, oneshot::Sender<()>>,
    checked_at: Duration,
}

/// A request for bytes that waits. If it is dropped, the request is withdrawn.
struct WaitGuard<'a> {
    account: &'a Account,
    pool: &'a Arc<Pool>,
    ticket: BudgetTicket,
    bytes: u64,
    is_granted: bool,
}

impl ConnectionMemory {
    /// `memory` for about this number of connections. If there are `several_tenants`, one of them
    /// has at most half.
    pub fn new(memory: ByteSize, connections: usize, several_tenants: bool) -> Arc<Self> {
        let part = |sixteenths: u64| (memory.0 / 16 * sixteenths).max(1);
        let pool = |bytes: u64, window| {
            let share =
                if several_tenants { ByteBudget::share_of_two(bytes).max(1) } else { bytes };
            Arc::new(Pool {
                started: Instant::now(),
                state: Mutex::new(PoolState {
                    budget: ByteBudget::new(bytes, share, window),
                    waiting: HashMap::new(),
                    checked_at: Duration::ZERO,
                }),
            })
        };
        let buffer = part(SEND_BUFFERS) / connections.max(1) as u64;
        let waits = (part(WAITS) / WAIT_BYTES).min(Semaphore::MAX_PERMITS as u64);
        Arc::new(Self {
            replies: pool(part(REPLIES), REPLIES_WINDOW),
            requests: pool(part(REQUESTS), REQUESTS_WINDOW),
            waits: Arc::new(Semaphore::new(usize::try_from(waits).expect("at most MAX_PERMITS"))),
            borrowed: Arc::new(Semaphore::new(BORROWED_MAX)),
            send_buffer: usize::try_from(buffer.clamp(SEND_BUFFER_MIN, SEND_BUFFER_MAX))
                .expect("a small buffer"),
            next: AtomicU64::new(0),
            accounts: Mutex::default(),
            stalled: Counter::default(),
        })
    }

    /// Bytes of requests and replies that wait.
    pub fn taken(&self) -> u64 {
        let taken = |pool: &Pool| pool.state.lock().budget.taken();
        taken(&self.replies) + taken(&self.requests)
    }

    /// Most bytes of replies of one connection.
    pub(crate) fn replies_per_connection(&self) -> usize {
        let limit = self.replies.state.lock().budget.counted(u64::MAX);
        usize::try_from(limit / CONNECTION_SHARE).unwrap_or(usize::MAX)
    }

    /// Permission for a reply to keep the buffer that it was read into while it waits.
    fn try_borrow(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.max(BORROWED_MIN)).ok()?;
        Arc::clone(&self.borrowed).try_acquire_many_owned(bytes).ok()
    }

    /// The account of a new connection.
    pub(crate) fn open_account(self: &Arc<Self>) -> Arc<Account> {
        let id = HolderId(self.next.fetch_add(1, Relaxed));
        let (share, moved) = (OnceLock::new(), AtomicU64::new(0));
        let memory = Arc::clone(self);
        let account = Arc::new(Account { id, memory, share, moved, closed: Latch::default() });
        self.accounts.lock().insert(id, Arc::downgrade(&account));
        account
    }

    /// Closes connections that are too slow while others wait.
    fn close_stalled(&self, pool: &Pool) {
        let now = pool.started.elapsed();
        let accounts: Vec<Arc<Account>> = {
            let mut state = pool.state.lock();
            if now < state.checked_at + CHECK_INTERVAL {
                return;
            }
            state.checked_at = now;
            self.accounts.lock().values().filter_map(Weak::upgrade).collect()
        };
        let accounts: HashMap<HolderId, Arc<Account>> =
            accounts.into_iter().map(|account| (account.id, account)).collect();
        let moved = |holder| accounts.get(&holder).map_or(0, |account| account.moved());
        let stalled = pool.state.lock().budget.stalled(now, moved);
        for account in stalled.iter().filter_map(|holder| accounts.get(holder)) {
            if account.closed.set() {
                self.stalled.one();
                tracing::warn!(
                    connection = account.id.0,
                    "slow connection closed: others waited for its memory"
                );
            }
        }
    }
}

impl Account {
    /// The client has authenticated: its bytes count for this share.
    pub fn set_share(&self, share: ShareId) {
        let _ = self.share.set(share);
    }

    fn share(&self) -> ShareId {
        *self.share.get_or_init(|| ShareId(u64::MAX))
    }

    /// Size of the send buffer of a Unix socket.
    pub fn send_buffer(&self) -> usize {
        self.memory.send_buffer
    }

    /// Bytes were sent or received.
    pub fn add_moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes sent and received.
    pub fn moved(&self) -> u64 {
        self.moved.load(Relaxed)
    }

    /// Completes when the connection is to be closed because it is too slow.
    pub async fn closed(&self) {
        self.closed.wait().await;
    }

    /// See [`ConnectionMemory::try_borrow`].
    pub fn try_borrow(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.memory.try_borrow(bytes)
    }

    /// Space for a reply. `None` if the connection is closed.
    pub async fn take_reply(self: &Arc<Self>, bytes: usize) -> Option<BudgetPermit> {
        self.take(&self.memory.replies, bytes).await
    }

    /// Like [`Account::take_reply`], without waiting.
    pub fn try_take_reply(&self, bytes: usize) -> Option<BudgetPermit> {
        let pool = &self.memory.replies;
        let mut state = pool.state.lock();
        let bytes = state.budget.counted(bytes as u64);
        let is_taken = state.budget.try_take(pool.started.elapsed(), self.id, self.share(), bytes);
        drop(state);
        is_taken.then(|| self.permit(pool, bytes))
    }

    /// Space for a request. `None` if the connection is closed.
    pub async fn take_request(self: &Arc<Self>, bytes: usize) -> Option<BudgetPermit> {
        self.take(&self.memory.requests, bytes).await
    }

    /// Space for a range that waits, if there is some.
    pub fn try_take_wait(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.memory.waits).try_acquire_owned().ok()
    }

    fn permit(&self, pool: &Arc<Pool>, bytes: u64) -> BudgetPermit {
        BudgetPermit { pool: Arc::clone(pool), holder: self.id, share: self.share(), bytes }
    }

    async fn take(self: &Arc<Self>, pool: &Arc<Pool>, bytes: usize) -> Option<BudgetPermit> {
        let (bytes, ticket, mut granted) = {
            let mut state = pool.state.lock();
            let bytes = state.budget.counted(bytes as u64);
            match state.budget.take(pool.started.elapsed(), self.id, self.share(), bytes) {
                Grant::Taken => return Some(self.permit(pool, bytes)),
                Grant::Waits(ticket) => {
                    let (sender, receiver) = oneshot::channel();
                    state.waiting.insert(ticket, sender);
                    (bytes, ticket, receiver)
                }
            }
        };
        let mut wait = WaitGuard { account: self, pool, ticket, bytes, is_granted: false };
        loop {
            tokio::select! {
                biased;
                _ = &mut granted => {
                    wait.is_granted = true;
                    return Some(self.permit(pool, bytes));
                }
                () = self.closed() => return None,
                () = tokio::time::sleep(CHECK_INTERVAL) => self.memory.close_stalled(pool),
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.memory.accounts.lock().remove(&self.id);
    }
}

impl Pool {
    /// Wakes requests whose bytes are taken.
    fn wake(state: &mut PoolState, granted: Vec<BudgetTicket>) {
        for ticket in granted {
            if let Some(waiting) = state.waiting.remove(&ticket) {
                let _ = waiting.send(());
            }
        }
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        let Self { pool, holder, share, bytes } = self;
        let mut state = pool.state.lock();
        let granted = state.budget.give_back(pool.started.elapsed(), *holder, *share, *bytes);
        Pool::wake(&mut state, granted);
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        if self.is_granted {
            return;
        }
        let mut state = self.pool.state.lock();
        let (now, mut granted) = (self.pool.started.elapsed(), Vec::new());
        let is_withdrawn = state.budget.withdraw(now, self.ticket, &mut granted);
        state.waiting.remove(&self.ticket);
        Pool::wake(&mut state, granted);
        drop(state);
        if !is_withdrawn {
            // It was granted just now: returned at once.
            drop(self.account.permit(self.pool, self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise 6: clients that do not read leave half of the buffers to other reads.
    #[test]
    fn waiting_replies_keep_half_of_a_devices_buffers_at_most() {
        let memory = ConnectionMemory::new(ByteSize(1 << 30), 8, false);
        let account = memory.open_account();
        for payload in [1, 4096, 100_000, 1 << 20] {
            let kept: Vec<_> = std::iter::from_fn(|| account.try_borrow(payload)).collect();
            assert_eq!(kept.len(), BORROWED_MAX / payload.max(BORROWED_MIN), "{payload} bytes");
            drop(kept);
        }
        assert!(account.try_borrow(BORROWED_MAX + 1).is_none());
    }
}
