//! Pre-auth connections and the tasks that serve them. `core::node::pre_auth` chooses the one to
//! evict; this module aborts its task.

use std::{collections::BTreeMap, sync::Arc};

use forebay_core::node::pre_auth::{self, Source};
use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// All pre-auth connections of a node.
#[derive(Clone, Default)]
pub(crate) struct PreAuthConnections(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    all: pre_auth::PreAuthConnections,
    /// The task that serves each connection; `None` until it is spawned.
    tasks: BTreeMap<pre_auth::PreAuthConnection, Option<AbortHandle>>,
}

/// Registers one pre-auth connection. Dropped when the client has authenticated or disconnected.
pub(crate) struct PreAuthGuard {
    connections: PreAuthConnections,
    id: pre_auth::PreAuthConnection,
}

impl PreAuthConnections {
    pub fn enter(&self, source: Source) -> PreAuthGuard {
        let mut registry = self.0.lock();
        let id = registry.all.enter(source);
        registry.tasks.insert(id, None);
        PreAuthGuard { connections: self.clone(), id }
    }

    /// Sets the task that serves a connection, unless its guard was dropped meanwhile.
    pub fn set_task(&self, id: pre_auth::PreAuthConnection, task: AbortHandle) {
        if let Some(slot) = self.0.lock().tasks.get_mut(&id) {
            *slot = Some(task);
        }
    }

    pub fn count(&self) -> usize {
        self.0.lock().all.count()
    }

    /// Aborts one connection. Returns whether there was one.
    pub fn evict_one(&self) -> bool {
        let mut registry = self.0.lock();
        let task = registry.all.evict().and_then(|id| registry.tasks.remove(&id)).flatten();
        drop(registry);
        task.map(|task| task.abort()).is_some()
    }
}

impl PreAuthGuard {
    /// The id of the connection.
    pub fn id(&self) -> pre_auth::PreAuthConnection {
        self.id
    }
}

impl Drop for PreAuthGuard {
    fn drop(&mut self) {
        let mut registry = self.connections.0.lock();
        registry.all.leave(self.id);
        registry.tasks.remove(&self.id);
    }
}
