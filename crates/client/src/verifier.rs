//! Verifier: what is read to verify an item, and whether the bytes are right.
//!
//! A whole blob is hashed and compared with its address. A part of a blob is compared with the
//! blob's hash tree, which is itself compared with the address once per process.
//! [`forebay_core::dataset::verification`] decides which reads are verified.

use std::ops::Range;

use forebay_core::{
    BlobOrdinal, Namespace,
    dataset::verification::{BlobShape, ByteSource, Verification, VerifyPolicy},
};
use forebay_digest::{Digest, DigestError, ItemLocation};
use forebay_wire::{BlobRange, PAYLOAD_SIZE_MAX};

/// Verifies the reads of one reader.
#[derive(Debug)]
pub(crate) struct Verifier {
    /// `None` without the key of a private namespace: then no read can be verified.
    namespace: Option<Namespace>,
    verification: Verification,
    /// Blobs whose trees are those of their addresses.
    trees_checked: BlobSet,
    /// Reads that should have been verified and could not.
    pub unverifiable: u64,
}

/// An item, and what is read for it.
#[derive(Debug)]
pub(crate) struct PlannedRead {
    pub blob: BlobOrdinal,
    /// The item's bytes in the blob.
    item: Range<u64>,
    /// The bytes that are read: the item's, and what verifies them.
    pub extent: Range<u64>,
    is_verified: bool,
}

impl PlannedRead {
    /// Length of what is read.
    pub fn length(&self) -> u64 {
        self.extent.end - self.extent.start
    }

    /// The item within what is read.
    pub fn item_range(&self) -> Range<usize> {
        let at = |at: u64| usize::try_from(at - self.extent.start).expect("items fit into memory");
        at(self.item.start)..at(self.item.end)
    }

    /// The range to request. `None` if it does not fit into one frame.
    pub fn range(&self) -> Option<BlobRange> {
        let length = u32::try_from(self.length()).ok();
        let length = length.filter(|length| *length as usize <= PAYLOAD_SIZE_MAX)?;
        Some(BlobRange { blob: self.blob, offset: self.extent.start, length })
    }
}

impl Verifier {
    /// Without `namespace`, only datasets of the public namespace can be verified. `seed` differs
    /// between processes, so that together they verify different items.
    pub fn new(
        policy: VerifyPolicy,
        namespace: Option<Namespace>,
        digest: &Digest,
        seed: u64,
    ) -> Self {
        let namespace = namespace.unwrap_or_else(Namespace::public);
        let namespace = (digest.namespace() == Some(namespace.id())).then_some(namespace);
        let verification = Verification::new(policy, seed);
        Self { namespace, verification, trees_checked: BlobSet::default(), unverifiable: 0 }
    }

    /// Decides whether an item is verified, and what is read for it.
    pub fn plan(
        &mut self,
        digest: &Digest,
        ItemLocation { blob, offset, length }: ItemLocation,
        source: ByteSource,
    ) -> Result<PlannedRead, DigestError> {
        let item = offset..offset + length;
        let unverified = PlannedRead { blob, extent: item.clone(), item, is_verified: false };
        if length == 0 || !self.verification.is_due(source) {
            return Ok(unverified);
        }
        let row = digest.blob(blob)?;
        let shape = BlobShape { length: row.length, leaf: row.tree()?.map(|tree| tree.leaf()) };
        let extent = self.verification.extent(shape, &unverified.item);
        let Some(extent) = extent.filter(|_| self.namespace.is_some()) else {
            self.unverifiable += 1;
            return Ok(unverified);
        };
        Ok(PlannedRead { extent, is_verified: true, ..unverified })
    }

    /// Verifies what was read. `None` if this read is not verified.
    pub fn check(
        &mut self,
        digest: &Digest,
        read: &PlannedRead,
        bytes: &[u8],
    ) -> Result<Option<bool>, DigestError> {
        if !read.is_verified {
            return Ok(None);
        }
        let row = digest.blob(read.blob)?;
        let namespace = self.namespace.as_ref().expect("a verified read has a key");
        if read.extent == (0..row.length) {
            return Ok(Some(namespace.address(bytes) == row.address));
        }
        let tree = row.tree()?.expect("a part of a blob is verified by its tree");
        let is_of = || tree.is_of(namespace, &row.address);
        if !self.trees_checked.contains(read.blob) && !is_of() {
            return Err(DigestError::Damaged(format!(
                "the hash tree of blob {} is not that of its address",
                read.blob
            )));
        }
        self.trees_checked.insert(read.blob);
        Ok(Some(tree.has_slice(namespace, read.extent.start, bytes)))
    }
}

/// A set of blobs, with one bit for each up to the highest.
#[derive(Debug, Default)]
struct BlobSet(Vec<u64>);

impl BlobSet {
    fn contains(&self, blob: BlobOrdinal) -> bool {
        let (word, bit) = Self::place(blob);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn insert(&mut self, blob: BlobOrdinal) {
        let (word, bit) = Self::place(blob);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    fn place(blob: BlobOrdinal) -> (usize, u64) {
        (usize::try_from(blob.0 / 64).expect("rows are in memory"), 1 << (blob.0 % 64))
    }
}
