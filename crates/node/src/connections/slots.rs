//! Slots of connections, and the tasks that serve those that have not authenticated.
//!
//! `core::node::connection_slots` decides who gets a slot, and `core::node::pre_auth` which
//! connection is evicted; this module aborts its task, and counts what was rejected.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use forebay_core::node::{
    connection_slots::{ConnectionSlots, SlotClass, SlotRefusal},
    pre_auth::{PreAuthConnection, PreAuthConnections, Source},
};
use parking_lot::Mutex;
use tokio::{task::AbortHandle, time::Instant};

use crate::ops::metrics::Counters;

/// Shortest time between two log lines about rejected connections.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// All slots of a node.
#[derive(Clone)]
pub(crate) struct SlotRegistry(Arc<Mutex<Registry>>);

struct Registry {
    slots: ConnectionSlots,
    pre_auth: PreAuthConnections,
    tasks: BTreeMap<PreAuthConnection, PreAuthTask>,
    counters: Arc<Counters>,
    /// Rejected connections since the last log line.
    unlogged: u64,
    logged_at: Option<Instant>,
}

/// The task that serves a pre-auth connection.
#[derive(Default)]
struct PreAuthTask {
    /// `None` until it is spawned.
    handle: Option<AbortHandle>,
    /// The client was refused at its hello, and is counted.
    is_rejected: bool,
}

/// The slot of one connection. Dropped when both directions of the connection have ended.
pub struct ConnectionSlot {
    registry: SlotRegistry,
    class: SlotClass,
    pre_auth: Option<PreAuthConnection>,
}

impl SlotRegistry {
    /// The slots of a node with this number of peers.
    pub fn new(max: usize, peers: usize, counters: Arc<Counters>) -> Self {
        Self(Arc::new(Mutex::new(Registry {
            slots: ConnectionSlots::new(max, peers),
            pre_auth: PreAuthConnections::default(),
            tasks: BTreeMap::new(),
            counters,
            unlogged: 0,
            logged_at: None,
        })))
    }

    /// Number of slots held.
    pub fn held(&self) -> usize {
        self.0.lock().slots.held()
    }

    /// Changes the number of slots.
    pub fn set_max(&self, max: usize) {
        self.0.lock().slots.set_max(max);
    }

    /// A slot for a new connection. A pre-auth connection is evicted if that makes space.
    pub fn enter(&self, class: SlotClass, source: Source) -> Result<ConnectionSlot, SlotRefusal> {
        let mut registry = self.0.lock();
        let evicted = if registry.slots.needs_eviction(class) { registry.evict() } else { None };
        let entered = registry.slots.enter(class);
        let pre_auth = (entered.is_ok() && class == SlotClass::PreAuth).then(|| {
            let id = registry.pre_auth.enter(source);
            registry.tasks.insert(id, PreAuthTask::default());
            id
        });
        drop(registry);
        // Outside of the lock: dropping the task may drop its slot.
        if let Some(task) = evicted {
            task.abort();
        }
        entered.map(|()| {
            let registry = self.clone();
            ConnectionSlot { registry, class, pre_auth }
        })
    }

    /// Sets the task that serves a connection, in case it has to be evicted.
    pub fn set_task(&self, id: Option<PreAuthConnection>, task: AbortHandle) {
        let mut registry = self.0.lock();
        if let Some(entry) = id.and_then(|id| registry.tasks.get_mut(&id)) {
            entry.handle = Some(task);
        }
    }
}

impl Registry {
    /// Frees the slot of one pre-auth connection. Returns its task, to be aborted.
    fn evict(&mut self) -> Option<AbortHandle> {
        let id = self.pre_auth.evict()?;
        let task = self.tasks.remove(&id).expect("registered");
        self.slots.leave(SlotClass::PreAuth);
        self.on_closed(id, &task);
        task.handle
    }

    /// A pre-auth connection has ended.
    fn on_closed(&mut self, id: PreAuthConnection, task: &PreAuthTask) {
        if !task.is_rejected {
            self.on_rejected(id.source());
        }
    }

    /// Counts a connection that did not authenticate. Logs at most one line per interval.
    fn on_rejected(&mut self, source: Source) {
        self.counters.preauth_rejected.one();
        self.unlogged += 1;
        if self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            let connections = std::mem::take(&mut self.unlogged);
            self.logged_at = Some(Instant::now());
            tracing::warn!(connections, last = ?source, "connections closed before authentication");
        }
    }
}

impl ConnectionSlot {
    /// Identifies the connection while it has not authenticated.
    pub(crate) fn pre_auth(&self) -> Option<PreAuthConnection> {
        self.pre_auth
    }

    /// The client has authenticated as one of this class.
    pub(crate) fn authenticate(&mut self, class: SlotClass) -> Result<(), SlotRefusal> {
        let mut registry = self.registry.0.lock();
        if let Some(id) = self.pre_auth {
            if !registry.tasks.contains_key(&id) {
                // It was evicted just now.
                return Err(SlotRefusal::Full);
            }
            registry.slots.change(self.class, class)?;
            registry.tasks.remove(&id);
            registry.pre_auth.leave(id);
            self.pre_auth = None;
        } else {
            registry.slots.change(self.class, class)?;
        }
        self.class = class;
        Ok(())
    }

    /// The client is refused at its hello. It is counted before it gets the answer.
    pub(crate) fn reject(&mut self) {
        let mut registry = self.registry.0.lock();
        let Some(id) = self.pre_auth else { return registry.counters.preauth_rejected.one() };
        if let Some(task) = registry.tasks.get_mut(&id)
            && !std::mem::replace(&mut task.is_rejected, true)
        {
            registry.on_rejected(id.source());
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut registry = self.registry.0.lock();
        let Some(id) = self.pre_auth else {
            registry.slots.leave(self.class);
            return;
        };
        // An evicted connection has left its slot already.
        if let Some(task) = registry.tasks.remove(&id) {
            registry.pre_auth.leave(id);
            registry.slots.leave(self.class);
            registry.on_closed(id, &task);
        }
    }
}
