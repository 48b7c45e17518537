//! The configuration while the node runs: what can be taken up is, the rest waits for a restart.

use std::sync::Arc;

use forebay_core::Namespace;
use parking_lot::RwLock;

use crate::{Config, node::NodeService};

/// The configuration of a running node, and the way to change it.
#[derive(Clone)]
pub struct Reloads {
    node: Arc<NodeService>,
    config: Arc<RwLock<Arc<Config>>>,
}

impl Reloads {
    pub(crate) fn new(node: Arc<NodeService>, config: Config) -> Self {
        Self { node, config: Arc::new(RwLock::new(Arc::new(config))) }
    }

    /// As it is now.
    pub fn now(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Takes up what can be of a configuration that was checked. Returns the keys that only a restart would
    /// change.
    pub fn take_up(&self, new: &Config, namespaces: Vec<Namespace>) -> Vec<&'static str> {
        let (taken, rest) = self.now().taking_up(new);
        self.node.blobs.hot().resize(taken.memory);
        self.node.serve_namespaces(namespaces);
        self.node.access.share(taken.connections);
        *self.config.write() = Arc::new(taken);
        self.node.counters.reloads.one();
        rest
    }

    /// A new configuration could not be used.
    pub fn refused(&self) {
        self.node.counters.reloads_refused.one();
    }
}
