//! Presence over all nodes: which blobs their owners hold.
//!
//! The requests go to all nodes at once; the replies are received one after the other. A blob
//! counts as present if its owner has it: reads go to the owner only.

use std::{cell::RefCell, mem};

use forebay_core::node::presence::KnownPresence;

use super::{
    discovery::{Topology, address_in},
    nodes::{Nodes, RequestContext},
};

impl Nodes {
    /// Updates the presence of all blobs; without a node none is present. Returns the number of
    /// bytes sent and received.
    pub fn presence(&mut self, context: &RequestContext<'_>, known: &mut KnownPresence) -> u64 {
        if !self.discover(context) {
            known.forget();
            return 0;
        }
        let Some(Topology::Cluster(cluster)) = &self.topology else {
            let began = self.health.now();
            let bytes =
                self.with(context, 0, began, |open| open.client.presence_since(open.handle, known));
            return bytes.unwrap_or_else(|| {
                known.forget();
                0
            });
        };
        // Before the requests, whose timeouts run while this takes its time.
        cluster.owners.compute(context.digest().summary().blobs, address_in(context.digest()));
        let each = RefCell::new(self.take_presence(known.blobs()));
        let received = self.ask_all(
            context,
            |node, open| open.client.ask_presence(open.handle, &each.borrow()[node]),
            |node, open, id, timeout| {
                open.client.take_presence(id, &mut each.borrow_mut()[node], Some(timeout))
            },
        );
        let (mut each, mut bytes) = (each.into_inner(), 0);
        for (known, received) in each.iter_mut().zip(received) {
            match received {
                Some(received) => bytes += received,
                None => known.forget(),
            }
        }
        self.put_presence(each, known);
        bytes
    }

    /// The last answer of each node.
    fn take_presence(&mut self, blobs: u32) -> Vec<KnownPresence> {
        let Some(Topology::Cluster(cluster)) = &mut self.topology else { return Vec::new() };
        let mut each = mem::take(&mut cluster.presence);
        each.resize_with(cluster.connections.len(), || KnownPresence::new(blobs));
        each
    }

    /// Keeps the answers, and sets `all` to the blobs that their owners have. If the ring has
    /// changed meanwhile, its owners are not computed yet and no blob counts as present until the
    /// next call.
    fn put_presence(&mut self, each: Vec<KnownPresence>, all: &mut KnownPresence) {
        let Some(Topology::Cluster(cluster)) = &mut self.topology else { return };
        let mut bits = vec![0; all.bits().len()];
        for (blob, owner) in cluster.owners.computed().iter().enumerate() {
            let (at, bit) = (blob / 8, 1 << (blob % 8));
            let is_present =
                |known: &KnownPresence| known.bits().get(at).is_some_and(|bits| bits & bit > 0);
            if each.get(usize::from(*owner)).is_some_and(is_present) {
                bits[at] |= bit;
            }
        }
        all.set_union(&bits);
        cluster.presence = each;
    }
}
