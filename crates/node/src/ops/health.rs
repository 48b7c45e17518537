//! Health: whether the node is ready, for `/readyz`. While it recovers there is no service yet.

use std::sync::{Arc, OnceLock};

use crate::requests::service::NodeService;

/// The health of a node.
#[derive(Default)]
pub(crate) struct Health(OnceLock<Arc<NodeService>>);

impl Health {
    /// The node has recovered its devices.
    pub fn on_recovered(&self, node: Arc<NodeService>) {
        assert!(self.0.set(node).is_ok(), "a node recovers once");
    }

    /// The service, after recovery.
    pub fn node(&self) -> Option<&Arc<NodeService>> {
        self.0.get()
    }

    /// Why the node is not ready, or `None` if it is.
    pub fn unready_reason(&self) -> Option<&'static str> {
        let Some(node) = self.0.get() else { return Some("recovering") };
        if node.is_stopping() {
            return Some("stopping");
        }
        let has_healthy_device = node.flash_counters().iter().any(|device| device.healthy);
        (!has_healthy_device).then_some("no healthy device")
    }
}
