//! How a node is, for those who ask over HTTP: while it recovers there is no node to ask yet.

use std::sync::{Arc, OnceLock};

use crate::node::NodeService;

/// How a node is.
#[derive(Default)]
pub(crate) struct Health(OnceLock<Arc<NodeService>>);

impl Health {
    /// The node has taken up what lies on its devices.
    pub fn recovered(&self, node: Arc<NodeService>) {
        assert!(self.0.set(node).is_ok(), "a node recovers once");
    }

    /// The node, once there is one.
    pub fn node(&self) -> Option<&Arc<NodeService>> {
        self.0.get()
    }

    /// Why nobody should be sent here; nothing, if it is ready.
    pub fn unready(&self) -> Option<&'static str> {
        let Some(node) = self.0.get() else { return Some("recovering") };
        if node.is_stopping() {
            return Some("stopping");
        }
        let is_well = node.flash_counters().iter().any(|device| device.well);
        (!is_well).then_some("no device is well")
    }
}
