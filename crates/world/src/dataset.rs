//! Datasets of a world: blobs with random content, their digest, and the items in them.

use std::ops::Range;

use bytes::Bytes;
use fastrand::Rng;
use forebay_core::{
    BlobOrdinal, ByteSize, Namespace,
    dataset::{DatasetIdHasher, chunking::Chunking},
};
use forebay_digest::{Blob, Digest, DigestWriter, Header, ItemSpan, Part, Summary};
use forebay_wire::BlobRange;

/// The version of every object.
pub const VERSION: &str = "\"1\"";

/// A dataset.
pub struct Dataset {
    /// Its table.
    pub digest: Digest,
    /// The namespace of its addresses.
    pub namespace: Namespace,
    /// The content of each blob, by ordinal. Each is one object.
    pub blobs: Vec<Bytes>,
    /// The items, in order.
    pub items: Vec<BlobRange>,
    name: &'static str,
}

impl Dataset {
    /// A dataset of blobs with these lengths.
    pub fn new(
        name: &'static str,
        namespace: Namespace,
        lengths: &[usize],
        random: &mut Rng,
    ) -> Self {
        let (mut blobs, mut rows, mut items) = (Vec::new(), Vec::new(), Vec::new());
        for (at, length) in lengths.iter().enumerate() {
            let mut content = vec![0; *length];
            random.fill(&mut content);
            let blob = BlobOrdinal::new(at as u64);
            let spans = spans(*length as u64, random.u64(1..4));
            items.extend(spans.iter().map(|span| BlobRange {
                blob,
                offset: span.offset,
                length: u32::try_from(span.length).expect("blobs are short"),
            }));
            let part = Part {
                object: object_of(name, blob),
                version: VERSION.to_owned(),
                offset: 0,
                length: *length as u64,
            };
            let address = namespace.address(&content);
            rows.push(Blob { address, parts: vec![part], items: spans, tree: None });
            blobs.push(Bytes::from(content));
        }
        let digest = digest_of(&namespace, &rows);
        Self { digest, namespace, blobs, items, name }
    }

    /// The object of a blob.
    pub fn object(&self, blob: BlobOrdinal) -> String {
        object_of(self.name, blob)
    }

    /// The bytes of a range.
    pub fn content(&self, range: &BlobRange) -> &[u8] {
        let start = usize::try_from(range.offset).expect("blobs are short");
        let blob = usize::try_from(range.blob.0).expect("blobs are few");
        &self.blobs[blob][start..start + range.length as usize]
    }

    /// All blobs.
    pub fn ordinals(&self) -> impl Iterator<Item = BlobOrdinal> + use<> {
        (0..self.blobs.len() as u64).map(BlobOrdinal::new)
    }

    /// The whole of a blob.
    pub fn whole(&self, blob: BlobOrdinal) -> BlobRange {
        let length = self.blobs[usize::try_from(blob.0).expect("blobs are few")].len();
        BlobRange { blob, offset: 0, length: u32::try_from(length).expect("blobs are short") }
    }
}

fn object_of(name: &str, blob: BlobOrdinal) -> String {
    format!("{name}/{:05}", blob.0)
}

/// `count` spans that cover `length` bytes.
fn spans(length: u64, count: u64) -> Vec<ItemSpan> {
    let count = count.min(length).max(1);
    let bound = |at: u64| at * length / count;
    let span = |Range { start, end }: Range<u64>| ItemSpan { offset: start, length: end - start };
    (0..count).map(|at| span(bound(at)..bound(at + 1))).collect()
}

fn digest_of(namespace: &Namespace, rows: &[Blob]) -> Digest {
    let bytes = rows.iter().map(Blob::length).sum();
    let chunking = Chunking::for_dataset(ByteSize(bytes), rows.len() as u64);
    let mut id = DatasetIdHasher::new();
    for row in rows {
        id.push(&row.address, row.length());
    }
    let public = namespace.is_public();
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: if public { "public".to_owned() } else { namespace.id().to_string() },
        origin: "s3://world".to_owned(),
        layout: "files".to_owned(),
        chunking,
        items: rows.iter().map(|row| row.items.len() as u64).sum(),
        blobs: rows.len() as u64,
        bytes,
    };
    let header = Header { summary, columns: Vec::new(), has_trees: false };
    let mut writer = DigestWriter::new(Vec::new(), header).expect("a header");
    for row in rows {
        writer.push(row, &vec![vec![]; row.items.len()]).expect("a row");
    }
    Digest::open(writer.finish().expect("a digest").into()).expect("a digest")
}
