//! Reload: changes the configuration of a running node. Live keys are applied; the others need a
//! restart.

use std::sync::Arc;

use forebay_core::Namespace;
use parking_lot::RwLock;

use crate::{Config, requests::service::NodeService};

/// The configuration of a running node.
#[derive(Clone)]
pub struct Reloads {
    node: Arc<NodeService>,
    config: Arc<RwLock<Arc<Config>>>,
}

impl Reloads {
    pub(crate) fn new(node: Arc<NodeService>, config: Config) -> Self {
        Self { node, config: Arc::new(RwLock::new(Arc::new(config))) }
    }

    /// The current configuration.
    pub fn now(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Applies the live keys of a checked configuration. Returns the changed keys that need a
    /// restart.
    pub fn apply(&self, new: &Config, namespaces: Vec<Namespace>) -> Vec<&'static str> {
        let (applied, restart) = self.now().reloaded_with(new);
        self.node.blobs.memory_cache().resize(applied.memory_cache_size());
        self.node.set_namespaces(namespaces);
        self.node.slots.set_max(applied.max_connections);
        *self.config.write() = Arc::new(applied);
        self.node.counters.reloads.one();
        restart
    }

    /// A new configuration was invalid.
    pub fn on_invalid(&self) {
        self.node.counters.reloads_refused.one();
    }
}
