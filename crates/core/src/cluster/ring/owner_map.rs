//! Owner map: the owner of every blob of a dataset, computed once.
//!
//! Clients and agents route by it. The owner of a single blob is computed when it is needed. The
//! owners of all blobs are computed on first use and kept, at 2 bytes per blob; a dataset with
//! millions of blobs takes long enough that they are not computed before.

use std::sync::OnceLock;

use super::{Key, NODES_MAX, Ring};
use crate::{Address, BlobOrdinal, NodeName};

/// The owners of a dataset's blobs: a ring, or one node that owns all of them.
///
/// The caller passes the address of a blob as a function of its ordinal. A blob without an address,
/// because its row of the digest cannot be read, belongs to node 0; reading it fails elsewhere.
#[derive(Debug)]
pub struct OwnerMap {
    ring: Option<Ring>,
    /// By blob ordinal, once all of them have been needed.
    owners: OnceLock<Vec<u16>>,
}

impl OwnerMap {
    /// The owners on a ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring: Some(ring), owners: OnceLock::new() }
    }

    /// One node that is not part of a cluster.
    pub fn single() -> Self {
        Self { ring: None, owners: OnceLock::new() }
    }

    /// The ring; `None` for a single node.
    pub fn ring(&self) -> Option<&Ring> {
        self.ring.as_ref()
    }

    /// The index of the node that owns this address.
    pub fn owner_of(&self, address: &Address) -> usize {
        self.ring.as_ref().map_or(0, |ring| ring.owner(address))
    }

    /// The index of the node that owns a blob.
    pub fn owner(
        &self,
        blob: BlobOrdinal,
        address: impl FnOnce(BlobOrdinal) -> Option<Address>,
    ) -> usize {
        if self.ring.is_none() {
            return 0;
        }
        if let Some(owner) = usize::try_from(blob.0).ok().and_then(|at| self.computed().get(at)) {
            return usize::from(*owner);
        }
        address(blob).map_or(0, |address| self.owner_of(&address))
    }

    /// The owners of all blobs by ordinal, computed on the first call. `blobs` is the number of
    /// blobs of the dataset. Empty for a single node.
    pub fn compute(&self, blobs: u64, address: impl Fn(BlobOrdinal) -> Option<Address>) -> &[u16] {
        const { assert!(NODES_MAX <= 1 << 16, "an index fits into a u16") };
        if self.ring.is_none() {
            return &[];
        }
        self.owners.get_or_init(|| {
            let owner = |blob| self.owner(BlobOrdinal::new(blob), &address);
            let owner = |blob| u16::try_from(owner(blob)).expect("at most NODES_MAX");
            (0..blobs).map(owner).collect()
        })
    }

    /// The same, as far as it is computed: empty before the first [`OwnerMap::compute`].
    pub fn computed(&self) -> &[u16] {
        self.owners.get().map_or(&[], Vec::as_slice)
    }

    /// The blobs that a node owns, in order. Computes all owners on the first call.
    pub fn owned_by(
        &self,
        node: usize,
        blobs: u64,
        address: impl Fn(BlobOrdinal) -> Option<Address>,
    ) -> impl Iterator<Item = BlobOrdinal> {
        let owners = self.compute(blobs, address);
        let owner = |blob: u64| usize::try_from(blob).ok().and_then(|at| owners.get(at));
        let is_owned =
            move |blob: &u64| owner(*blob).map_or(0, |owner| usize::from(*owner)) == node;
        (0..blobs).filter(is_owned).map(BlobOrdinal::new)
    }

    /// The indices of all nodes in the order of a key, its owner first.
    pub fn order(&self, key: impl Into<Key>) -> Vec<usize> {
        self.ring.as_ref().map_or_else(|| vec![0], |ring| ring.order(key))
    }

    /// The index of a node of the ring.
    pub fn index_of(&self, name: &NodeName) -> Option<usize> {
        self.ring.as_ref()?.index_of(name)
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.ring.as_ref().map_or(1, |ring| ring.members().len())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{super::tests, *};

    const BLOBS: u64 = 100;

    #[expect(clippy::unnecessary_wraps, reason = "the signature of a lookup")]
    fn address(blob: BlobOrdinal) -> Option<Address> {
        Some(Address::from_bytes([u8::try_from(blob.0).unwrap(); 32]))
    }

    #[test]
    fn owners_are_those_of_the_ring_and_are_computed_once() {
        let ring = tests::ring(tests::nodes(&[1.0, 2.0, 3.0]));
        let expected: Vec<usize> =
            (0..BLOBS).map(|blob| ring.owner(&address(BlobOrdinal::new(blob)).unwrap())).collect();
        let map = OwnerMap::new(ring);
        let lookups = Cell::new(0);
        let counted = |blob| {
            lookups.set(lookups.get() + 1);
            address(blob)
        };
        assert_eq!(map.owner(BlobOrdinal::new(7), counted), expected[7]);
        assert_eq!(lookups.take(), 1);
        assert!(map.computed().is_empty());
        let owners = |map: &OwnerMap| -> Vec<usize> {
            map.compute(BLOBS, counted).iter().map(|owner| usize::from(*owner)).collect()
        };
        assert_eq!(owners(&map), expected);
        assert_eq!(lookups.take(), BLOBS);
        assert_eq!(owners(&map), expected);
        assert_eq!(map.computed().len(), expected.len());
        assert_eq!(map.owner(BlobOrdinal::new(7), counted), expected[7]);
        let mut owned: Vec<BlobOrdinal> =
            (0..map.nodes()).flat_map(|node| map.owned_by(node, BLOBS, counted)).collect();
        assert!(map.owned_by(1, BLOBS, counted).all(|blob| map.owner(blob, counted) == 1));
        owned.sort();
        assert_eq!(owned, (0..BLOBS).map(BlobOrdinal::new).collect::<Vec<_>>(), "one owner each");
        assert_eq!(lookups.take(), 0, "cached");
    }

    #[test]
    fn a_blob_without_an_address_belongs_to_the_first_node() {
        let map = OwnerMap::new(tests::ring(tests::nodes(&[1.0, 1.0])));
        assert_eq!(map.owner(BlobOrdinal::new(0), |_| None), 0);
        assert!(map.compute(BLOBS, |_| None).iter().all(|owner| *owner == 0));
    }

    #[test]
    fn a_single_node_owns_everything() {
        let map = OwnerMap::single();
        assert!(map.ring().is_none());
        let never = |_| unreachable!("no address is needed");
        assert_eq!(map.owner(BlobOrdinal::new(7), never), 0);
        assert_eq!(map.owned_by(0, BLOBS, never).count() as u64, BLOBS);
        assert_eq!((map.nodes(), map.order(Key::named("any"))), (1, vec![0]));
    }
}
