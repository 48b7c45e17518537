//! Hash trees: a range of a blob is verified without the rest of the blob.
//!
//! BLAKE3 is itself a tree over chunks of 1 KiB, and a blob's address is its root. A blob is cut
//! into *leaves* of a power of two of chunks. The chaining values of the leaves are the nodes of
//! BLAKE3's tree at one level, and merging them gives the address. So a list of nodes needs no
//! trust: either it belongs to the address, or it is refused. A range that covers whole leaves is
//! then compared with their nodes.
//!
//! Short leaves make the list longer, long leaves make a reader of a small item read more. An item
//! has four leaves on average, within the limits of [`LeafLength`].
//!
//! Not here: where the nodes are stored (the digest), and which reads are verified
//! ([`super::verification`]).

use std::ops::Range;

use blake3::hazmat::{HasherExt as _, Mode, merge_subtrees_non_root, merge_subtrees_root};

use crate::{Address, Namespace};

/// A chaining value of BLAKE3: the node of one leaf.
pub type TreeNode = [u8; 32];

/// Leaves per item that are aimed at.
const LEAVES_PER_ITEM: u64 = 4;
/// Shortest leaf of a new tree: one block of a device.
const SHORTEST: u64 = 4 << 10;
/// Longest leaf of a new tree, if its blob has at most [`LEAVES_MAX`] of them. BLAKE3 hashes 16
/// chunks at once.
const LONGEST: u64 = 16 << 10;
/// Most leaves of a blob: 2 MiB of nodes.
pub const LEAVES_MAX: u64 = 1 << 16;

/// Length of all leaves of a blob but the last: a power of two from 1 KiB to 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafLength(u32);

impl LeafLength {
    /// The shortest length: one chunk of BLAKE3.
    pub const MIN: u32 = 1 << 10;
    /// The longest length.
    pub const MAX: u32 = 1 << 20;

    /// A length, if it is a power of two within the limits.
    pub fn new(bytes: u32) -> Option<Self> {
        let is_valid = bytes.is_power_of_two() && (Self::MIN..=Self::MAX).contains(&bytes);
        is_valid.then_some(Self(bytes))
    }

    /// The length for a new tree of a blob with several items. `None` if the blob is one leaf, or
    /// has more than [`LEAVES_MAX`] leaves of [`LeafLength::MAX`].
    pub fn for_pack(length: u64, items: u64) -> Option<Self> {
        let mean = length / items.max(1);
        let aimed = (mean / LEAVES_PER_ITEM).clamp(SHORTEST, LONGEST);
        let few = length.div_ceil(LEAVES_MAX).next_power_of_two();
        let leaf = (1 << aimed.ilog2()).max(few);
        Self::new(u32::try_from(leaf).ok()?).filter(|_| length > leaf)
    }

    /// The length in bytes.
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// Number of leaves of a blob.
    pub fn count(self, length: u64) -> u64 {
        length.div_ceil(self.0.into())
    }

    /// The shortest range of whole leaves of a blob that contains `range`.
    pub fn cover(self, range: &Range<u64>, length: u64) -> Range<u64> {
        let leaf = u64::from(self.0);
        let start = range.start / leaf * leaf;
        start..(range.end.div_ceil(leaf) * leaf).min(length)
    }
}

/// The tree of one blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashTree {
    /// Length of the leaves.
    pub leaf: LeafLength,
    /// One node per leaf, in order.
    pub nodes: Vec<TreeNode>,
}

impl HashTree {
    /// A view for a blob of this length; `None` if the nodes are too many or too few.
    pub fn view(&self, length: u64) -> Option<HashTreeView<'_>> {
        HashTreeView::new(self.leaf, length, &self.nodes)
    }
}

/// The tree of one blob, read in place. It may be any tree until [`HashTreeView::is_of`] is true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashTreeView<'a> {
    leaf: LeafLength,
    length: u64,
    nodes: &'a [TreeNode],
}

impl<'a> HashTreeView<'a> {
    /// A tree of a blob of `length` bytes. `None` unless there are two leaves or more, and one node
    /// for each.
    pub fn new(leaf: LeafLength, length: u64, nodes: &'a [TreeNode]) -> Option<Self> {
        let count = leaf.count(length);
        let is_valid = (2..=LEAVES_MAX).contains(&count) && nodes.len() as u64 == count;
        is_valid.then_some(Self { leaf, length, nodes })
    }

    /// Length of the leaves.
    pub fn leaf(&self) -> LeafLength {
        self.leaf
    }

    /// The nodes.
    pub fn nodes(&self) -> &'a [TreeNode] {
        self.nodes
    }

    /// Whether this is the tree of the blob at `address`.
    pub fn is_of(&self, namespace: &Namespace, address: &Address) -> bool {
        root(self.nodes, namespace.mode()) == *address
    }

    /// Whether `bytes` are those of the blob from `start` on, if this is the blob's tree. False for
    /// a slice that is not of whole leaves.
    pub fn has_slice(&self, namespace: &Namespace, start: u64, bytes: &[u8]) -> bool {
        let leaf = u64::from(self.leaf.0);
        let end = start.checked_add(bytes.len() as u64).filter(|end| *end <= self.length);
        let is_whole = |end: u64| end.is_multiple_of(leaf) || end == self.length;
        if !start.is_multiple_of(leaf) || !end.is_some_and(is_whole) {
            return false;
        }
        let first = usize::try_from(start / leaf).expect("at most LEAVES_MAX");
        let leaves = bytes.chunks(self.leaf.0 as usize);
        self.nodes[first..].iter().zip(leaves).zip((start..).step_by(self.leaf.0 as usize)).all(
            |((node, bytes), offset)| {
                let mut hasher = namespace.keyed();
                hasher.set_input_offset(offset).update(bytes);
                hasher.finalize_non_root() == *node
            },
        )
    }
}

/// Whether `bytes` are those from `start` on of the blob at `address`. Nothing but the address is
/// trusted. A caller that verifies several slices of one blob checks the tree once, with
/// [`HashTreeView::is_of`], and then each slice with [`HashTreeView::has_slice`].
pub fn verify_slice(
    namespace: &Namespace,
    address: &Address,
    tree: &HashTreeView<'_>,
    start: u64,
    bytes: &[u8],
) -> bool {
    tree.has_slice(namespace, start, bytes) && tree.is_of(namespace, address)
}

/// The root above two nodes or more.
fn root(nodes: &[TreeNode], mode: Mode<'_>) -> Address {
    let (left, right) = nodes.split_at(left_nodes(nodes.len()));
    let hash = merge_subtrees_root(&subtree(left, mode), &subtree(right, mode), mode);
    Address::from_bytes(*hash.as_bytes())
}

/// The node above some nodes.
fn subtree(nodes: &[TreeNode], mode: Mode<'_>) -> TreeNode {
    let [node] = nodes else {
        let (left, right) = nodes.split_at(left_nodes(nodes.len()));
        return merge_subtrees_non_root(&subtree(left, mode), &subtree(right, mode), mode);
    };
    *node
}

/// Nodes of the left subtree: the largest power of two that leaves some for the right one. All
/// leaves but the last are full, so this is where BLAKE3 divides the chunks.
fn left_nodes(nodes: usize) -> usize {
    1 << (nodes - 1).ilog2()
}

/// A blob's address, and its tree if it was computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedContent {
    /// The address.
    pub address: Address,
    /// The tree.
    pub tree: Option<HashTree>,
}

/// Computes the address and the tree of content that arrives in several buffers.
pub struct TreeHasher {
    namespace: Namespace,
    /// `None` if only the address is computed.
    leaf: Option<LeafLength>,
    /// The leaf that is being hashed.
    hasher: blake3::Hasher,
    /// Bytes of that leaf so far.
    filled: u64,
    /// Nodes of the leaves before it.
    nodes: Vec<TreeNode>,
}

impl TreeHasher {
    /// A hasher of no content yet. Without `leaf` it computes the address only.
    pub fn new(namespace: &Namespace, leaf: Option<LeafLength>) -> Self {
        let hasher = namespace.keyed();
        Self { namespace: namespace.clone(), leaf, hasher, filled: 0, nodes: Vec::new() }
    }

    /// Adds the next bytes of the content.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let Some(leaf) = self.leaf else {
            self.hasher.update(bytes);
            return;
        };
        let leaf = u64::from(leaf.0);
        while !bytes.is_empty() {
            // A leaf is closed only when another follows: the only leaf of a blob is its root.
            if self.filled == leaf {
                self.close_leaf(leaf);
            }
            let free = usize::try_from(leaf - self.filled).expect("at most 1 MiB");
            let (now, rest) = bytes.split_at(free.min(bytes.len()));
            self.hasher.update(now);
            self.filled += now.len() as u64;
            bytes = rest;
        }
    }

    fn close_leaf(&mut self, leaf: u64) {
        self.nodes.push(self.hasher.finalize_non_root());
        self.hasher = self.namespace.keyed();
        self.hasher.set_input_offset(self.nodes.len() as u64 * leaf);
        self.filled = 0;
    }

    /// The address and the tree of all bytes so far. Content of one leaf has no tree.
    pub fn finish(mut self) -> HashedContent {
        let Some(leaf) = self.leaf.filter(|_| !self.nodes.is_empty()) else {
            let address = Address::from_bytes(*self.hasher.finalize().as_bytes());
            return HashedContent { address, tree: None };
        };
        self.close_leaf(leaf.0.into());
        let address = root(&self.nodes, self.namespace.mode());
        HashedContent { address, tree: Some(HashTree { leaf, nodes: self.nodes }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn namespaces() -> [Namespace; 2] {
        [Namespace::public(), Namespace::secret([7; 32]).unwrap()]
    }

    fn content(length: u64) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(length);
        (0..length).map(|_| random.u8(..)).collect()
    }

    fn leaf(bytes: u64) -> LeafLength {
        LeafLength::new(u32::try_from(bytes).unwrap()).unwrap()
    }

    fn hashed(namespace: &Namespace, leaf: LeafLength, content: &[u8]) -> HashedContent {
        let mut hasher = TreeHasher::new(namespace, Some(leaf));
        // Pieces that agree with no boundary.
        content.chunks(1501).for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    /// For each length around the boundaries of chunks and leaves: the root is the address that
    /// plain BLAKE3 computes, and each slice of whole leaves is verified.
    #[test]
    fn the_root_of_a_tree_is_the_address() {
        let lengths = [0, 1, KIB, KIB + 1, 4 * KIB, 4 * KIB + 1, 8 * KIB, 20 * KIB - 1, 77 * KIB];
        for namespace in namespaces() {
            for (length, bytes) in lengths.into_iter().flat_map(|l| [(l, 1), (l, 4), (l, 16)]) {
                let (content, leaf) = (content(length), leaf(bytes * KIB));
                let HashedContent { address, tree } = hashed(&namespace, leaf, &content);
                assert_eq!(address, namespace.address(&content), "{length} in leaves of {leaf:?}");
                assert_eq!(tree.is_some(), length > bytes * KIB);
                let Some(tree) = tree else { continue };
                let view = tree.view(length).expect("one node per leaf");
                assert!(view.is_of(&namespace, &address));
                for start in (0..length).step_by(leaf.0 as usize) {
                    for end in (start + 1..length).step_by(2500).chain([length]) {
                        let range = leaf.cover(&(start..end), length);
                        let at = |at: u64| usize::try_from(at).unwrap();
                        let slice = &content[at(range.start)..at(range.end)];
                        assert!(verify_slice(&namespace, &address, &view, range.start, slice));
                    }
                }
            }
        }
    }

    /// Promise 1: no changed byte, no other place, no other key, and no other tree passes.
    #[test]
    fn a_slice_that_is_not_the_blobs_is_refused() {
        let (length, leaf) = (50 * KIB + 3, leaf(4 * KIB));
        let [namespace, other] = namespaces();
        let content = content(length);
        let HashedContent { address, tree } = hashed(&namespace, leaf, &content);
        let tree = tree.unwrap();
        let view = tree.view(length).unwrap();
        let slice = &content[4096..12_288];
        assert!(verify_slice(&namespace, &address, &view, 4096, slice));
        for at in [0, 4095, 4096, 8191] {
            let mut changed = slice.to_vec();
            changed[at] ^= 0x10;
            assert!(!verify_slice(&namespace, &address, &view, 4096, &changed), "byte {at}");
        }
        for start in [0, 1, 8192, length, u64::MAX] {
            assert!(!verify_slice(&namespace, &address, &view, start, slice), "from {start}");
        }
        assert!(!verify_slice(&namespace, &address, &view, 4096, &slice[..5000]), "half a leaf");
        assert!(!verify_slice(&other, &address, &view, 4096, slice), "another key");
        // A node that agrees with wrong bytes does not agree with the address.
        let mut wrong = content.clone();
        wrong[5000] ^= 1;
        let forged = hashed(&namespace, leaf, &wrong).tree.unwrap();
        let forged = forged.view(length).unwrap();
        assert!(forged.has_slice(&namespace, 4096, &wrong[4096..12_288]));
        assert!(!verify_slice(&namespace, &address, &forged, 4096, &wrong[4096..12_288]));
    }

    #[test]
    fn trees_with_too_many_or_too_few_nodes_are_refused() {
        let tree = |nodes| HashTree { leaf: leaf(4 * KIB), nodes: vec![[0; 32]; nodes] };
        assert!(tree(3).view(8 * KIB + 1).is_some() && tree(3).view(12 * KIB).is_some());
        for (nodes, length) in [(0, 0), (0, 9), (1, 9), (2, 8 * KIB + 1), (4, 12 * KIB), (2, 0)] {
            assert!(tree(nodes).view(length).is_none(), "{nodes} for {length} bytes");
        }
        let most = usize::try_from(LEAVES_MAX).unwrap();
        assert!(tree(most).view(LEAVES_MAX * 4 * KIB).is_some());
        assert!(tree(most + 1).view((LEAVES_MAX + 1) * 4 * KIB).is_none());
    }

    #[test]
    fn leaves_follow_the_items_within_limits() {
        let bytes = |length, items| LeafLength::for_pack(length, items).map(LeafLength::bytes);
        assert_eq!(bytes(1 << 20, 10), Some(16 << 10), "105 KB per item");
        assert_eq!(bytes(1 << 20, 30), Some(8 << 10), "35 KB per item");
        assert_eq!(bytes(1 << 20, 1 << 20), Some(4 << 10), "one byte per item");
        assert_eq!(bytes(4 << 10, 2), None, "one leaf");
        assert_eq!(bytes((4 << 10) + 1, 2), Some(4 << 10));
        assert_eq!(bytes(1 << 34, 2), Some(1 << 18), "at most 65,536 leaves");
        assert_eq!(bytes(1 << 36, 2), Some(1 << 20));
        assert_eq!(bytes((1 << 36) + 1, 2), None, "too long");
        for length in [0, 1000, 1025, 3 << 10, 2 << 20] {
            assert_eq!(LeafLength::new(length), None, "{length}");
        }
    }
}
