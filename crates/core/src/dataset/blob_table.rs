//! What a node knows of a dataset: the address and length of every blob, and how it is cut. No names,
//! no labels, no locations.
//!
//! A node believes a table because it computes the dataset's id from it, and a client because it proves
//! that it holds the same table: knowing an id alone opens nothing (promise 4).

use std::{fmt, mem};

use crate::{
    Address, BlobOrdinal, ByteSize, DatasetId, Namespace, NamespaceId,
    chunking::Chunking,
    digest::{DatasetIdHasher, Digest, DigestError},
};

/// No blob is longer, so that lengths can be added without care.
const LENGTH_MAX: u64 = 1 << 48;

/// What a node knows things by: addresses and ids, bound to their namespace.
///
/// Somebody may have got hold of addresses of a namespace that is not its own. If it shows them as its own
/// namespace's, they are other names there, and nothing is found by them.
#[derive(Clone, PartialEq, Eq)]
pub struct Bound([u8; 32]);

impl Bound {
    /// To this namespace.
    pub fn to(namespace: NamespaceId) -> Self {
        Self(blake3::derive_key("forebay names bound to a namespace v1", namespace.as_bytes()))
    }

    /// What a blob is known by.
    pub fn address(&self, address: &Address) -> Address {
        Address::from_bytes(*blake3::keyed_hash(&self.0, address.as_bytes()).as_bytes())
    }

    /// What a dataset is known by.
    pub fn dataset(&self, dataset: &DatasetId) -> DatasetId {
        DatasetId::from_bytes(*blake3::keyed_hash(&self.0, dataset.as_bytes()).as_bytes())
    }

    fn row(&self, row: Row) -> Row {
        Row { address: self.address(&row.address), length: row.length }
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bound")
    }
}

/// A row: one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The blob's name; in a [`Table`], bound to its namespace.
    pub address: Address,
    /// How long it is.
    pub length: u64,
}

/// A whole table, known to belong to its dataset's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    namespace: NamespaceId,
    bound: Bound,
    /// Bound to the namespace.
    dataset: DatasetId,
    chunking: Chunking,
    rows: Box<[Row]>,
    /// Where in the dataset every so manyth blob begins, and where the last ends.
    starts: Box<[u64]>,
}

/// Blobs between two known beginnings.
const STARTS_EVERY: usize = 256;

impl Table {
    /// Blobs that somebody names one by one, whatever dataset they are of. All such tables of a namespace have one
    /// name, which is no dataset's: no rows hash to it.
    pub fn picked(namespace: NamespaceId, rows: &[Row]) -> Result<Self, UploadError> {
        check_lengths(rows)?;
        let bound = Bound::to(namespace);
        let rows: Box<[Row]> = rows.iter().map(|row| bound.row(*row)).collect();
        let (starts, chunking) = (starts(&rows), Chunking::for_dataset(ByteSize(0), 0));
        let nobody = DatasetId::from_bytes(blake3::derive_key("forebay 2026 picked blobs v1", b""));
        let dataset = bound.dataset(&nobody);
        Ok(Self { namespace, bound, dataset, chunking, rows, starts })
    }

    /// Whose key made the addresses.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// What a node knows the dataset by: its id, bound to the namespace. The same id in another namespace is another
    /// dataset.
    pub fn dataset(&self) -> DatasetId {
        self.dataset
    }

    /// Whether these bytes' address is the one that a row has.
    pub fn is_at(&self, row: &Row, address: &Address) -> bool {
        self.bound.address(address) == row.address
    }

    /// How it is cut.
    pub fn chunking(&self) -> Chunking {
        self.chunking
    }

    /// All blobs, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// One blob, if there are so many.
    pub fn row(&self, blob: BlobOrdinal) -> Option<Row> {
        usize::try_from(blob.0).ok().and_then(|at| self.rows.get(at)).copied()
    }

    /// How long the dataset is.
    pub fn total(&self) -> ByteSize {
        ByteSize(*self.starts.last().expect("where the last ends"))
    }

    /// The piece that a blob belongs to, if there are so many.
    pub fn piece_of(&self, blob: BlobOrdinal) -> Option<u32> {
        let at = usize::try_from(blob.0).ok().filter(|at| *at < self.rows.len())?;
        let known = at / STARTS_EVERY;
        let between = &self.rows[known * STARTS_EVERY..at];
        let start = self.starts[known];
        let start = between.iter().fold(start, |start, row| start.saturating_add(row.length));
        Some(self.chunking.piece_of(start, self.total()))
    }

    /// All blobs in order, each with the piece that it belongs to.
    pub fn rows_by_piece(&self) -> impl Iterator<Item = (u32, Row)> {
        let mut start: u64 = 0;
        self.rows.iter().map(move |row| {
            let piece = self.chunking.piece_of(start, self.total());
            start = start.saturating_add(row.length);
            (piece, *row)
        })
    }

    /// How long each piece is.
    pub fn piece_sizes(&self) -> Vec<ByteSize> {
        let mut sizes = vec![ByteSize(0); self.chunking.pieces() as usize];
        for (piece, row) in self.rows_by_piece() {
            let size = &mut sizes[piece as usize];
            size.0 = size.0.saturating_add(row.length);
        }
        sizes
    }

    /// What somebody who holds this table answers to a challenge.
    pub fn proof(&self, nonce: &[u8; 32]) -> [u8; 32] {
        proof(nonce, self.rows.iter().copied())
    }
}

fn check_lengths(rows: &[Row]) -> Result<(), UploadError> {
    let too_long = rows.iter().find(|row| row.length > LENGTH_MAX);
    too_long.map_or(Ok(()), |row| Err(UploadError::TooLong(row.length)))
}

fn starts(rows: &[Row]) -> Box<[u64]> {
    let (mut starts, mut next) = (Vec::new(), 0);
    for rows in rows.chunks(STARTS_EVERY) {
        starts.push(next);
        next = rows.iter().fold(next, |next: u64, row| next.saturating_add(row.length));
    }
    starts.push(next);
    starts.into()
}

/// The answer to a challenge: a hash of all rows, bound to their namespace, keyed with its nonce.
fn proof(nonce: &[u8; 32], rows: impl IntoIterator<Item = Row>) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_keyed(nonce);
    // Few large updates: BLAKE3 is several times faster on them.
    let mut buffer = Vec::with_capacity(1 << 16);
    for row in rows {
        buffer.extend_from_slice(row.address.as_bytes());
        buffer.extend_from_slice(&row.length.to_le_bytes());
        if buffer.len() > (1 << 16) - 64 {
            hash.update(&buffer);
            buffer.clear();
        }
    }
    hash.update(&buffer);
    *hash.finalize().as_bytes()
}

/// What a node is shown of a digest.
pub fn rows_of(digest: &Digest) -> impl Iterator<Item = Result<Row, DigestError>> {
    digest.blobs().map(|row| row.map(|row| Row { address: row.address, length: row.length }))
}

/// The proof of somebody who holds a digest, none of whose rows may be damaged.
pub fn proof_of(digest: &Digest, nonce: &[u8; 32]) -> Result<[u8; 32], DigestError> {
    let mut damaged = None;
    let rows = rows_of(digest).map_while(|row| row.map_err(|error| damaged = Some(error)).ok());
    let bound = Bound::to(digest.namespace().unwrap_or_else(|| Namespace::public().id()));
    let proof = proof(nonce, rows.map(|row| bound.row(row)));
    damaged.map_or(Ok(proof), Err)
}

/// Whether two proofs are the same, in a time that does not tell where they differ.
pub fn proofs_match(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

/// A table that is being uploaded, page by page.
pub struct Upload {
    namespace: NamespaceId,
    bound: Bound,
    dataset: DatasetId,
    chunking: Chunking,
    blobs: u64,
    id: DatasetIdHasher,
    rows: Vec<Row>,
}

/// Why a page is refused; the upload is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// Pages come in order, none twice, none too long, none empty.
    #[error("a page begins at blob {found} instead of {expected}, is empty or goes too far")]
    OutOfOrder {
        /// Where it should begin.
        expected: u64,
        /// Where it does.
        found: u64,
    },
    /// No blob is as long as that.
    #[error("a blob of {0} bytes is longer than any can be")]
    TooLong(u64),
    /// Complete, but of another dataset.
    #[error("the table is not the one its dataset id names")]
    WrongId,
}

impl Upload {
    /// Nothing yet, of so many blobs. Memory is taken as pages come, not on the caller's word.
    pub fn new(namespace: NamespaceId, dataset: DatasetId, chunking: Chunking, blobs: u64) -> Self {
        let (bound, id) = (Bound::to(namespace), DatasetIdHasher::new());
        Self { namespace, bound, dataset, chunking, blobs, id, rows: Vec::new() }
    }

    /// The same, from what came over the wire: `None` if no dataset is cut like that.
    pub fn checked(
        namespace: NamespaceId,
        dataset: DatasetId,
        (chunks, partitions): (u32, u32),
        blobs: u64,
    ) -> Option<Self> {
        let chunking = Chunking::from_parts(chunks, partitions)?;
        // No digest is cut into more chunks than it has blobs.
        (u64::from(chunks) <= blobs.max(1)).then_some(())?;
        Some(Self::new(namespace, dataset, chunking, blobs))
    }

    /// Whose key made the addresses.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// The ordinal that the next page begins with.
    pub fn next(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Takes the next page. With the last one the table is complete, and is what it says it is.
    pub fn page(&mut self, first: u64, page: &[Row]) -> Result<Option<Table>, UploadError> {
        let expected = self.next();
        let left = self.blobs - expected;
        if first != expected || page.len() as u64 > left || (page.is_empty() && left > 0) {
            return Err(UploadError::OutOfOrder { expected, found: first });
        }
        check_lengths(page)?;
        for row in page {
            self.id.push(&row.address, row.length);
        }
        self.rows.extend(page.iter().map(|row| self.bound.row(*row)));
        if self.next() < self.blobs {
            return Ok(None);
        }
        let Self { namespace, dataset, chunking, .. } = *self;
        let id = mem::replace(&mut self.id, DatasetIdHasher::new());
        if id.finish(chunking) != dataset {
            return Err(UploadError::WrongId);
        }
        let rows: Box<[Row]> = mem::take(&mut self.rows).into();
        let (bound, starts) = (self.bound.clone(), starts(&rows));
        let dataset = bound.dataset(&dataset);
        Ok(Some(Table { namespace, bound, dataset, chunking, rows, starts }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: u32) -> Vec<Row> {
        let address = |n: u32| Namespace::public().address(&n.to_le_bytes());
        (0..count).map(|n| Row { address: address(n), length: u64::from(n) + 1 }).collect()
    }

    fn dataset(rows: &[Row]) -> (DatasetId, Chunking) {
        let total = rows.iter().map(|row| row.length).sum();
        let chunking = Chunking::for_dataset(ByteSize(total), rows.len() as u64);
        let mut id = DatasetIdHasher::new();
        for row in rows {
            id.push(&row.address, row.length);
        }
        (id.finish(chunking), chunking)
    }

    fn upload(rows: &[Row], pages: &[&[Row]]) -> Result<Table, UploadError> {
        let (dataset, chunking) = dataset(rows);
        let namespace = Namespace::public().id();
        let mut upload = Upload::new(namespace, dataset, chunking, rows.len() as u64);
        for page in pages {
            let first = upload.next();
            if let Some(table) = upload.page(first, page)? {
                return Ok(table);
            }
        }
        panic!("the pages were too few");
    }

    /// Promise 4: whoever is given bytes has proved that it holds the digest.
    #[test]
    fn only_a_holder_of_the_table_can_answer_a_challenge() {
        let rows = rows(5000);
        let table = upload(&rows, &[&rows[..4096], &rows[4096..]]).unwrap();
        let row = table.row(BlobOrdinal::new(4999)).unwrap();
        assert!(table.is_at(&row, &rows[4999].address) && row.length == rows[4999].length);
        assert!(!table.is_at(&row, &rows[4998].address));
        assert_eq!(table.row(BlobOrdinal::new(5000)), None);
        let (nonce, other) = ([1; 32], [2; 32]);
        let bound = Bound::to(Namespace::public().id());
        let proof = |rows: &[Row]| proof(&nonce, rows.iter().map(|row| bound.row(*row)));
        assert!(proofs_match(&table.proof(&nonce), &proof(&rows)));
        assert!(!proofs_match(&table.proof(&nonce), &table.proof(&other)), "no replays");
        let mut wrong = rows.clone();
        wrong[4321].length += 1;
        assert!(!proofs_match(&table.proof(&nonce), &proof(&wrong)));
    }

    /// Promise 4: a digest that leaked opens nothing to those who may not use its namespace.
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
    fn every_blob_is_in_the_chunk_that_its_digest_says() {
        let rows = rows(3000);
        let table = upload(&rows, &[&rows[..]]).unwrap();
        let mut start = 0;
        for (at, row) in (0..).zip(&rows) {
            let expected = table.chunking().piece_of(start, table.total());
            assert_eq!(table.piece_of(BlobOrdinal::new(at)), Some(expected), "blob {at}");
            start += row.length;
        }
        assert_eq!((table.total().0, table.piece_of(BlobOrdinal::new(3000))), (start, None));
    }

    /// Promise 6: whoever adds such lengths up must not be led astray.
    #[test]
    fn a_length_that_cannot_be_is_refused() {
        let mut rows = rows(3);
        rows[1].length = LENGTH_MAX + 1;
        let (dataset, chunking) = dataset(&rows);
        let mut upload = Upload::new(Namespace::public().id(), dataset, chunking, 3);
        assert_eq!(upload.page(0, &rows), Err(UploadError::TooLong(LENGTH_MAX + 1)));
        let picked = Table::picked(Namespace::public().id(), &rows);
        assert_eq!(picked, Err(UploadError::TooLong(LENGTH_MAX + 1)));
    }

    /// A blob is the same whether it is named by its place in a dataset or picked; who picks names no dataset.
    #[test]
    fn picked_blobs_are_those_of_their_namespace_and_of_no_dataset() {
        let rows = rows(100);
        let table = upload(&rows, &[&rows[..]]).unwrap();
        let pick = |namespace: &Namespace, rows| Table::picked(namespace.id(), rows).unwrap();
        let some = pick(&Namespace::public(), &rows[40..50]);
        assert_eq!(some.rows(), &table.rows()[40..50]);
        let none = pick(&Namespace::public(), &[]);
        assert_eq!(some.dataset(), none.dataset(), "one name for all");
        let empty = upload(&[], &[&[]]).unwrap();
        assert_ne!(none.dataset(), empty.dataset(), "which is not that of an empty dataset");
        let elsewhere = pick(&Namespace::secret([7; 32]).unwrap(), &rows[40..50]);
        assert_ne!(some.dataset(), elsewhere.dataset());
        assert!(some.rows().iter().zip(elsewhere.rows()).all(|(a, b)| a.address != b.address));
    }

    #[test]
    fn a_table_that_is_not_its_dataset_is_refused() {
        let rows = rows(10);
        let mut wrong = rows.clone();
        wrong.swap(3, 4);
        assert_eq!(upload(&rows, &[&wrong]), Err(UploadError::WrongId));
        let out_of_order = |result: Result<Table, UploadError>| {
            assert!(matches!(result, Err(UploadError::OutOfOrder { .. })), "{result:?}");
        };
        out_of_order(upload(&rows, &[&rows[..5], &[]]));
        out_of_order(upload(&rows, &[&rows[..5], &rows[..6]]));
        let (dataset, chunking) = dataset(&rows);
        let mut upload = Upload::new(Namespace::public().id(), dataset, chunking, 10);
        assert!(upload.page(1, &rows[1..]).is_err(), "the first page begins at nought");
    }
}
