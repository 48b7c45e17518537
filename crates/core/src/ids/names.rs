//! What jobs, nodes and zones are called.

use super::plain::plain_name;

plain_name! {
    /// The name of one training or inference run. A restarted job keeps its name, so that it can be told
    /// from its neighbours and fence its predecessor.
    JobId, "a job"
}

plain_name! {
    /// The name of one node. A node that moves keeps its name, and with it its share of the ring.
    NodeName, "a node"
}

plain_name! {
    /// The name of a part of a network: a rack, a room, a region.
    Zone, "a zone"
}
