//! Behaviour of digest files, journals and catalogues on a real disk.

mod catalogue;
mod files;
mod journal;

use forebay_core::dataset::DatasetIdHasher;
use forebay_core::{ByteSize, Namespace, dataset::chunking::Chunking};
use forebay_digest::{Blob, ColumnType, Header, ItemSpan, Part, Summary};

/// A row whose blob contains the object's name.
fn row(index: usize) -> Blob {
    let object = format!("dir/{index:05} ü.bin");
    Blob {
        address: Namespace::public().address(object.as_bytes()),
        items: vec![ItemSpan { offset: 0, length: object.len() as u64 }],
        parts: vec![Part {
            length: object.len() as u64,
            object,
            version: "\"v\"".into(),
            offset: 0,
        }],
        tree: None,
    }
}

fn header(rows: &[Blob]) -> Header {
    let bytes = rows.iter().map(Blob::length).sum();
    let chunking = Chunking::for_dataset(ByteSize(bytes), rows.len() as u64);
    let mut id = DatasetIdHasher::new();
    for row in rows {
        id.push(&row.address, row.length());
    }
    let summary = Summary {
        dataset: id.finish(chunking),
        namespace: "public".into(),
        origin: "s3://bucket".into(),
        layout: "files".into(),
        chunking,
        items: rows.len() as u64,
        blobs: rows.len() as u64,
        bytes,
    };
    let columns = vec![("label".into(), ColumnType::Int)];
    Header { summary, columns, has_trees: rows.iter().any(|row| row.tree.is_some()) }
}
