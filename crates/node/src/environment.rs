//! Environment: what a node uses of the outside beside its devices: random bytes, connections to
//! other nodes, and workers. The clock is tokio's, which a simulated world can move.

use std::sync::Arc;

use forebay_transport::{Connector, Entropy, Sockets};

use crate::ops::work_queue::WorkQueue;

/// The outside of a node.
pub struct Environment {
    /// Source of nonces and keys.
    pub entropy: Entropy,
    /// Opens connections to other nodes.
    pub connector: Arc<dyn Connector>,
    /// Does work of more than 1 ms.
    pub work: WorkQueue,
}

impl Environment {
    /// The kernel, sockets, and threads.
    pub fn of_this_machine() -> Self {
        let (entropy, connector) = (Entropy::kernel(), Arc::new(Sockets));
        Self { entropy, connector, work: WorkQueue::on_threads() }
    }
}
