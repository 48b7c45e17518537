//! Blob table: what a node stores of a digest, namely the address and length of every blob and the
//! chunking. No names, no labels, no locations.
//!
//! A node accepts a table because it computes the dataset's id from it. It serves a client because
//! the client proves that it holds the same table. A dataset id alone opens nothing (promise 4).

use std::mem;

use super::{
    DatasetIdHasher,
    chunking::Chunking,
    possession::{NamespaceBinding, proof},
};
use crate::{Address, BlobOrdinal, ByteSize, DatasetId, HalfChunk, NamespaceId};

/// Longest blob: 256 TiB.
pub const LENGTH_MAX: u64 = 1 << 48;

/// Most bytes of all blobs of a table together, so that sums of lengths do not overflow: 1 EiB, as
/// in a digest.
pub const TOTAL_MAX: u64 = 1 << 60;

/// One blob of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobRow {
    /// The blob's address; in a [`BlobTable`], bound to its namespace.
    pub address: Address,
    /// Length in bytes.
    pub length: u64,
}

/// A complete table whose rows hash to its dataset's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobTable {
    namespace: NamespaceId,
    binding: NamespaceBinding,
    /// Bound to the namespace.
    dataset: DatasetId,
    chunking: Chunking,
    rows: Box<[BlobRow]>,
    /// Byte offset in the dataset of every [`STARTS_EVERY`]th blob, then the end of the last blob.
    starts: Box<[u64]>,
}

/// Blobs between two stored offsets.
pub const STARTS_EVERY: usize = 256;

impl BlobTable {
    /// A table of blobs that a client names by address, of any dataset. All such tables of a
    /// namespace share one dataset id, which belongs to no dataset: no rows hash to it.
    pub fn by_address(namespace: NamespaceId, rows: &[BlobRow]) -> Result<Self, UploadError> {
        check_lengths(0, rows)?;
        let binding = NamespaceBinding::new(namespace);
        let rows: Box<[BlobRow]> = rows.iter().map(|row| binding.row(*row)).collect();
        let (starts, chunking) = (starts(&rows), Chunking::for_dataset(ByteSize(0), 0));
        let no_dataset = blake3::derive_key("forebay 2026 picked blobs v1", b"");
        let dataset = binding.dataset(&DatasetId::from_bytes(no_dataset));
        Ok(Self { namespace, binding, dataset, chunking, rows, starts })
    }

    /// The namespace of the addresses.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// The dataset's id, bound to the namespace. The same id in another namespace is another
    /// dataset.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// Whether `address`, not yet bound to the namespace, is the address of `row`.
    pub fn is_at(&self, row: &BlobRow, address: &Address) -> bool {
        self.binding.address(address) == row.address
    }

    /// The dataset's chunking.
    pub fn chunking(&self) -> Chunking {
        self.chunking
    }

    /// All blobs, in order.
    pub fn rows(&self) -> &[BlobRow] {
        &self.rows
    }

    /// One blob, or `None` past the end.
    pub fn row(&self, blob: BlobOrdinal) -> Option<BlobRow> {
        usize::try_from(blob.0).ok().and_then(|at| self.rows.get(at)).copied()
    }

    /// Size of the dataset.
    pub fn total(&self) -> ByteSize {
        ByteSize(*self.starts.last().expect("the end of the last blob"))
    }

    /// The half-chunk of a blob, or `None` past the end.
    pub fn half_chunk_of(&self, blob: BlobOrdinal) -> Option<HalfChunk> {
        let at = usize::try_from(blob.0).ok().filter(|at| *at < self.rows.len())?;
        let stored = at / STARTS_EVERY;
        let between = &self.rows[stored * STARTS_EVERY..at];
        let start = self.starts[stored];
        let start = start + between.iter().map(|row| row.length).sum::<u64>();
        Some(self.chunking.half_chunk_of(start, self.total()))
    }

    /// All blobs in order, each with its half-chunk.
    pub fn rows_by_half_chunk(&self) -> impl Iterator<Item = (HalfChunk, BlobRow)> {
        self.rows_by_half_chunk_from(0)
    }

    /// The blobs from a multiple of [`STARTS_EVERY`], in order, each with its half-chunk.
    pub fn rows_by_half_chunk_from(
        &self,
        first: usize,
    ) -> impl Iterator<Item = (HalfChunk, BlobRow)> {
        assert!(first.is_multiple_of(STARTS_EVERY), "the offset of blob {first} is not stored");
        let rows = self.rows.get(first..).unwrap_or_default();
        let mut start = self.starts.get(first / STARTS_EVERY).copied().unwrap_or_default();
        rows.iter().map(move |row| {
            let half_chunk = self.chunking.half_chunk_of(start, self.total());
            start += row.length;
            (half_chunk, *row)
        })
    }

    /// Size of each half-chunk.
    pub fn half_chunk_sizes(&self) -> Vec<ByteSize> {
        let mut sizes = vec![ByteSize(0); self.chunking.half_chunks() as usize];
        for (half_chunk, row) in self.rows_by_half_chunk() {
            sizes[half_chunk.index()].0 += row.length;
        }
        sizes
    }

    /// The correct answer to a challenge with this nonce. Takes long for a large table:
    /// [`super::possession::ProofHasher`] computes it in parts.
    pub fn proof(&self, nonce: &[u8; 32]) -> [u8; 32] {
        proof(nonce, self.rows.iter().copied())
    }
}

/// Checks the next rows of a table, whose rows before have `total` bytes.
fn check_lengths(mut total: u64, rows: &[BlobRow]) -> Result<(), UploadError> {
    for row in rows {
        if row.length > LENGTH_MAX {
            return Err(UploadError::TooLong(row.length));
        }
        total += row.length;
        if total > TOTAL_MAX {
            return Err(UploadError::TotalTooLong);
        }
    }
    Ok(())
}

fn starts(rows: &[BlobRow]) -> Box<[u64]> {
    let (mut starts, mut next) = (Vec::new(), 0);
    for rows in rows.chunks(STARTS_EVERY) {
        starts.push(next);
        next += rows.iter().map(|row| row.length).sum::<u64>();
    }
    starts.push(next);
    starts.into()
}

/// An unfinished upload of a table, page by page.
pub struct Upload {
    namespace: NamespaceId,
    binding: NamespaceBinding,
    dataset: DatasetId,
    chunking: Chunking,
    blobs: u64,
    id: DatasetIdHasher,
    rows: Vec<BlobRow>,
    /// As in [`BlobTable`], without the end.
    starts: Vec<u64>,
    /// Offset of the next blob.
    end: u64,
}

/// Why a page is refused. The upload is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// A page that is out of order, repeated, too long or empty.
    #[error("a page begins at blob {found} instead of {expected}, is empty or is too long")]
    OutOfOrder {
        /// The blob that the page should begin with.
        expected: u64,
        /// The blob that the page begins with.
        found: u64,
    },
    /// A blob over the limit.
    #[error("a blob of {0} bytes is longer than the limit of {LENGTH_MAX}")]
    TooLong(u64),
    /// Blobs that are over the limit together.
    #[error("the blobs are longer together than the limit of {TOTAL_MAX} bytes")]
    TotalTooLong,
    /// A complete table of another dataset.
    #[error("the blob table does not hash to its dataset id")]
    WrongId,
}

impl Upload {
    /// An upload of `blobs` blobs, none of which has arrived. Memory is allocated as pages arrive,
    /// not by the announced count.
    pub fn new(namespace: NamespaceId, dataset: DatasetId, chunking: Chunking, blobs: u64) -> Self {
        let (binding, id) = (NamespaceBinding::new(namespace), DatasetIdHasher::new());
        let (rows, starts) = (Vec::new(), Vec::new());
        Self { namespace, binding, dataset, chunking, blobs, id, rows, starts, end: 0 }
    }

    /// As [`Upload::new`], from wire values. `None` if no dataset has such a chunking.
    pub fn checked(
        namespace: NamespaceId,
        dataset: DatasetId,
        (chunks, partitions): (u32, u32),
        blobs: u64,
    ) -> Option<Self> {
        let chunking = Chunking::from_parts(chunks, partitions)?;
        // No digest has more chunks than blobs.
        (u64::from(chunks) <= blobs.max(1)).then_some(())?;
        Some(Self::new(namespace, dataset, chunking, blobs))
    }

    /// The number of blobs that the client has announced.
    pub const fn blobs(&self) -> u64 {
        self.blobs
    }

    /// The namespace of the addresses.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// The ordinal that the next page begins with.
    pub fn next(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Adds the next page, of any length. The last one returns the complete table, checked against
    /// its id.
    pub fn page(&mut self, first: u64, page: &[BlobRow]) -> Result<Option<BlobTable>, UploadError> {
        let expected = self.next();
        let left = self.blobs - expected;
        if first != expected || page.len() as u64 > left || (page.is_empty() && left > 0) {
            return Err(UploadError::OutOfOrder { expected, found: first });
        }
        check_lengths(self.end, page)?;
        for row in page {
            self.id.push(&row.address, row.length);
            if self.rows.len().is_multiple_of(STARTS_EVERY) {
                self.starts.push(self.end);
            }
            self.rows.push(self.binding.row(*row));
            self.end += row.length;
        }
        if self.next() < self.blobs {
            return Ok(None);
        }
        let Self { namespace, dataset, chunking, .. } = *self;
        let id = mem::replace(&mut self.id, DatasetIdHasher::new());
        if id.finish(chunking) != dataset {
            return Err(UploadError::WrongId);
        }
        let rows: Box<[BlobRow]> = mem::take(&mut self.rows).into();
        self.starts.push(self.end);
        let (binding, starts) = (self.binding.clone(), mem::take(&mut self.starts).into());
        let dataset = binding.dataset(&dataset);
        Ok(Some(BlobTable { namespace, binding, dataset, chunking, rows, starts }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, dataset::possession::proofs_match};

    fn rows(count: u32) -> Vec<BlobRow> {
        let address = |n: u32| Namespace::public().address(&n.to_le_bytes());
        (0..count).map(|n| BlobRow { address: address(n), length: u64::from(n) + 1 }).collect()
    }

    fn dataset(rows: &[BlobRow]) -> (DatasetId, Chunking) {
        let total = rows.iter().map(|row| row.length).sum();
        let chunking = Chunking::for_dataset(ByteSize(total), rows.len() as u64);
        let mut id = DatasetIdHasher::new();
        for row in rows {
            id.push(&row.address, row.length);
        }
        (id.finish(chunking), chunking)
    }

    fn upload(rows: &[BlobRow], pages: &[&[BlobRow]]) -> Result<BlobTable, UploadError> {
        let (dataset, chunking) = dataset(rows);
        let namespace = Namespace::public().id();
        let mut upload = Upload::new(namespace, dataset, chunking, rows.len() as u64);
        for page in pages {
            let first = upload.next();
            if let Some(table) = upload.page(first, page)? {
                return Ok(table);
            }
        }
        panic!("the pages did not complete the table");
    }

    /// Promise 4: a client that receives bytes has proved that it holds the digest.
    #[test]
    fn only_a_holder_of_the_table_can_answer_a_challenge() {
        let rows = rows(5000);
        let table = upload(&rows, &[&rows[..4096], &rows[4096..]]).unwrap();
        let row = table.row(BlobOrdinal::new(4999)).unwrap();
        assert!(table.is_at(&row, &rows[4999].address) && row.length == rows[4999].length);
        assert!(!table.is_at(&row, &rows[4998].address));
        assert_eq!(table.row(BlobOrdinal::new(5000)), None);
        let (nonce, other) = ([1; 32], [2; 32]);
        let binding = NamespaceBinding::new(Namespace::public().id());
        let proof = |rows: &[BlobRow]| proof(&nonce, rows.iter().map(|row| binding.row(*row)));
        assert!(proofs_match(&table.proof(&nonce), &proof(&rows)));
        assert!(!proofs_match(&table.proof(&nonce), &table.proof(&other)), "no replays");
        let mut wrong = rows.clone();
        wrong[4321].length += 1;
        assert!(!proofs_match(&table.proof(&nonce), &proof(&wrong)));
    }

    /// Promise 4: a leaked digest opens nothing to a client that may not use its namespace.
    #[test]
    fn the_same_rows_in_two_namespaces_have_nothing_in_common() {
        let rows = rows(100);
        let (dataset, chunking) = dataset(&rows);
        let table = |namespace: &Namespace| {
            let mut upload = Upload::new(namespace.id(), dataset, chunking, 100);
            upload.page(0, &rows).unwrap().unwrap()
        };
        let (ours, theirs) =
            (table(&Namespace::secret([7; 32]).unwrap()), table(&Namespace::public()));
        assert_ne!(ours.dataset(), theirs.dataset());
        let both = ours.rows().iter().zip(theirs.rows());
        assert!(both.clone().all(|(ours, theirs)| ours.address != theirs.address));
        assert!(both.zip(&rows).all(|((ours, _), shown)| ours.address != shown.address));
    }

    #[test]
    fn every_blob_is_in_the_half_chunk_that_its_chunking_says() {
        let rows = rows(3000);
        let table = upload(&rows, &[&rows[..]]).unwrap();
        let mut start = 0;
        for (at, row) in (0..).zip(&rows) {
            let expected = table.chunking().half_chunk_of(start, table.total());
            assert_eq!(table.half_chunk_of(BlobOrdinal::new(at)), Some(expected), "blob {at}");
            start += row.length;
        }
        assert_eq!((table.total().0, table.half_chunk_of(BlobOrdinal::new(3000))), (start, None));
    }

    /// Promise 6: a sum of lengths must not overflow.
    #[test]
    fn a_length_over_the_limit_is_refused() {
        let mut rows = rows(3);
        rows[1].length = LENGTH_MAX + 1;
        let (dataset, chunking) = dataset(&rows);
        let mut upload = Upload::new(Namespace::public().id(), dataset, chunking, 3);
        assert_eq!(upload.page(0, &rows), Err(UploadError::TooLong(LENGTH_MAX + 1)));
        let by_address = BlobTable::by_address(Namespace::public().id(), &rows);
        assert_eq!(by_address, Err(UploadError::TooLong(LENGTH_MAX + 1)));
    }

    /// Promise 6: each length is allowed, and 2^16 of them are 2^64 bytes.
    #[test]
    fn lengths_over_the_limit_together_are_refused() {
        let most = usize::try_from(TOTAL_MAX / LENGTH_MAX).unwrap();
        let row = BlobRow { address: rows(1)[0].address, length: LENGTH_MAX };
        let (namespace, fits) = (Namespace::public().id(), vec![row; most]);
        let table = upload(&fits, &[&fits[..7], &fits[7..]]).unwrap();
        assert_eq!(table.total().0, TOTAL_MAX);
        assert_eq!(table.half_chunk_sizes().iter().map(|size| size.0).sum::<u64>(), TOTAL_MAX);
        let by_address = BlobTable::by_address(namespace, &[&fits[..], &[row]].concat());
        assert_eq!(by_address, Err(UploadError::TotalTooLong));
        let (dataset, chunking) = dataset(&fits);
        let mut upload = Upload::new(namespace, dataset, chunking, 1 << 16);
        assert_eq!(upload.page(0, &fits), Ok(None));
        assert_eq!(upload.page(upload.next(), &[row]), Err(UploadError::TotalTooLong));
    }

    /// A blob has one bound address, whether a client names it by ordinal or by address.
    #[test]
    fn blobs_by_address_belong_to_their_namespace_and_to_no_dataset() {
        let rows = rows(100);
        let table = upload(&rows, &[&rows[..]]).unwrap();
        let select =
            |namespace: &Namespace, rows| BlobTable::by_address(namespace.id(), rows).unwrap();
        let some = select(&Namespace::public(), &rows[40..50]);
        assert_eq!(some.rows(), &table.rows()[40..50]);
        let none = select(&Namespace::public(), &[]);
        assert_eq!(some.dataset(), none.dataset(), "one id for all");
        let empty = upload(&[], &[&[]]).unwrap();
        assert_ne!(none.dataset(), empty.dataset(), "not the id of an empty dataset");
        let elsewhere = select(&Namespace::secret([7; 32]).unwrap(), &rows[40..50]);
        assert_ne!(some.dataset(), elsewhere.dataset());
        assert!(some.rows().iter().zip(elsewhere.rows()).all(|(a, b)| a.address != b.address));
    }

    #[test]
    fn a_table_of_another_dataset_is_refused() {
        let rows = rows(10);
        let mut wrong = rows.clone();
        wrong.swap(3, 4);
        assert_eq!(upload(&rows, &[&wrong]), Err(UploadError::WrongId));
        let out_of_order = |result: Result<BlobTable, UploadError>| {
            assert!(matches!(result, Err(UploadError::OutOfOrder { .. })), "{result:?}");
        };
        out_of_order(upload(&rows, &[&rows[..5], &[]]));
        out_of_order(upload(&rows, &[&rows[..5], &rows[..6]]));
        let (dataset, chunking) = dataset(&rows);
        let mut upload = Upload::new(Namespace::public().id(), dataset, chunking, 10);
        assert!(upload.page(1, &rows[1..]).is_err(), "the first page begins at blob 0");
    }
}
