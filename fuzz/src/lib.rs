//! Shared code of the fuzz targets: seeds made by the real encoders, and a small dataset.
//!
//! A fuzzer without seeds spends hours on finding the first magic number. Each target writes its
//! seeds before libFuzzer reads its corpus, so that no binary file has to be kept up to date.

use std::{env, fs, path::PathBuf};

use bytes::Bytes;
use forebay_core::dataset::{
    DatasetIdHasher,
    hash_tree::{LeafLength, HashedContent, TreeHasher},
};
use forebay_core::{ByteSize, Namespace, dataset::chunking::Chunking};
use forebay_digest::{
    Blob, ColumnType, Digest, DigestWriter, Header, ItemSpan, Part, Summary, Value,
};
use tempfile::TempDir;

/// Writes a seed, if `FOREBAY_FUZZ_SEEDS` names a directory.
pub fn seed(name: &str, bytes: &[u8]) {
    if let Some(directory) = env::var_os("FOREBAY_FUZZ_SEEDS").map(PathBuf::from) {
        fs::create_dir_all(&directory).expect("make the directory for seeds");
        fs::write(directory.join(format!("seed-{name}")), bytes).expect("write a seed");
    }
}

/// A temporary directory, in memory if possible: a fuzzer writes thousands of files a second.
pub fn directory() -> TempDir {
    let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    made.expect("make a directory")
}

/// The content of a blob of the small dataset. The last two have hash trees.
pub fn content(blob: usize) -> Bytes {
    Bytes::from(vec![b'a' + u8::try_from(blob).expect("few blobs"); 10 + blob * 700])
}

fn hashed(content: &[u8]) -> HashedContent {
    let mut hasher = TreeHasher::new(&Namespace::public(), LeafLength::new(LeafLength::MIN));
    hasher.update(content);
    hasher.finish()
}

/// The four rows of the small dataset, as in journals and digests.
pub fn rows() -> Vec<Blob> {
    let row = |blob: usize| {
        let content = content(blob);
        let length = content.len() as u64;
        let part = |at: usize, offset, length| Part {
            object: format!("folder/{blob}-{at}.bin"),
            version: "\"0123456789abcdef\"".to_owned(),
            offset,
            length,
        };
        let hashed = hashed(&content);
        Blob {
            address: hashed.address,
            parts: vec![part(0, 0, 4), part(1, 7, length - 4)],
            items: vec![
                ItemSpan { offset: 0, length: 4 },
                ItemSpan { offset: 4, length: length - 4 },
            ],
            tree: hashed.tree,
        }
    };
    (0..4).map(row).collect()
}

/// The bytes of a digest of those rows, with or without columns and hash trees.
pub fn digest_bytes(with_columns: bool, has_trees: bool) -> Vec<u8> {
    let mut rows = rows();
    for row in rows.iter_mut().filter(|_| !has_trees) {
        row.tree = None;
    }
    let bytes = rows.iter().map(Blob::length).sum();
    let chunking = Chunking::for_dataset(ByteSize(bytes), rows.len() as u64);
    let mut id = DatasetIdHasher::new();
    for row in &rows {
        id.push(&row.address, row.length());
    }
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: "public".to_owned(),
        origin: "file:///nowhere".to_owned(),
        layout: "files".to_owned(),
        chunking,
        items: 2 * rows.len() as u64,
        blobs: rows.len() as u64,
        bytes,
    };
    let columns = [("label", ColumnType::Text), ("frames", ColumnType::Int)];
    let columns = columns.map(|(name, kind)| (name.to_owned(), kind)).to_vec();
    let columns = if with_columns { columns } else { Vec::new() };
    let header = Header { summary, columns, has_trees };
    let mut writer = DigestWriter::new(Vec::new(), header).expect("a header");
    for row in &rows {
        let values = [Value::Text("cat"), Value::Int(7)];
        let values = if with_columns { values.to_vec() } else { Vec::new() };
        writer.push(row, &[values.clone(), values]).expect("a row");
    }
    writer.finish().expect("a digest")
}

/// A digest of those rows.
pub fn digest() -> Digest {
    Digest::open(digest_bytes(false, true).into()).expect("just written")
}
