//! Names of jobs, nodes and zones, chosen by users.

use super::plain_name::plain_name;

plain_name! {
    /// The name of one training or inference run. A restarted job keeps its name, so that it can
    /// fence its predecessor.
    JobName, "a job"
}

plain_name! {
    /// The name of one node. A node that moves to another machine keeps its name, and with it its
    /// part of the ring.
    NodeName, "a node"
}

plain_name! {
    /// The name of a part of the network, such as a rack or an availability zone.
    Zone, "a zone"
}
