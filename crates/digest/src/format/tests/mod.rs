//! Round trips of digests, and digests with damaged bytes.

mod hostile;

use arrow_array::{Array, StringArray};
use bytes::Bytes;
use proptest::prelude::*;

use super::{Blob, ColumnType, Digest, DigestError, DigestWriter, Header, Part, Summary, Value};
use crate::plan::{BlobPlan, Planner};
use forebay_core::dataset::ListedObject;
use forebay_core::dataset::{
    DatasetIdHasher,
    hash_tree::{HashTree, LeafLength, verify_slice},
};
use forebay_core::{
    BlobOrdinal, ByteSize, ItemOrdinal, Namespace,
    dataset::chunking::{ChunkOrdinal, Chunking},
};

/// The rows of a dataset whose `i`th object has `lengths[i]` bytes. Contents do not matter here.
fn rows(pack: Option<u64>, lengths: &[u64]) -> Vec<Blob> {
    let mut planner = Planner::new(pack.map(ByteSize));
    let mut plans: Vec<BlobPlan> = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        let object = format!("class {}/Bild-{index:07}.jpg", index * 3 / lengths.len());
        plans.extend(planner.push(ListedObject {
            object,
            length: *length,
            version: format!("\"{index}\""),
        }));
    }
    plans.extend(planner.finish());
    plans
        .into_iter()
        .map(|BlobPlan { parts, items }| Blob {
            address: Namespace::public().address(parts[0].object.as_bytes()),
            parts,
            items,
            tree: None,
        })
        .collect()
}

/// The same with hash trees, of blobs that are long enough. The nodes belong to no content.
fn rows_with_trees(pack: Option<u64>, lengths: &[u64]) -> Vec<Blob> {
    let mut rows = rows(pack, lengths);
    let leaf = LeafLength::new(LeafLength::MIN).unwrap();
    for row in rows.iter_mut().filter(|row| row.length() > LeafLength::MIN.into()) {
        let node = |at: u64| *blake3::hash(&(row.length() + at).to_le_bytes()).as_bytes();
        let nodes = (0..leaf.count(row.length())).map(node).collect();
        row.tree = Some(HashTree { leaf, nodes });
    }
    rows
}

fn header(rows: &[Blob], columns: &[(&str, ColumnType)]) -> Header {
    let bytes = rows.iter().map(Blob::length).sum();
    let chunking = Chunking::for_dataset(ByteSize(bytes), rows.len() as u64);
    let mut id = DatasetIdHasher::new();
    for row in rows {
        id.push(&row.address, row.length());
    }
    Header {
        summary: Summary {
            dataset: id.finish(chunking),
            namespace: "public".to_owned(),
            origin: "s3://bucket/prefix".to_owned(),
            layout: "files".to_owned(),
            chunking,
            items: rows.iter().map(|row| row.items.len() as u64).sum(),
            blobs: rows.len() as u64,
            bytes,
        },
        columns: columns.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect(),
        has_trees: rows.iter().any(|row| row.tree.is_some()),
    }
}

fn written(rows: &[Blob]) -> Vec<u8> {
    let columns = [
        ("label", ColumnType::Text),
        ("frames", ColumnType::Int),
        ("sharp", ColumnType::Bool),
        ("score", ColumnType::Float),
    ];
    let mut writer = DigestWriter::new(Vec::new(), header(rows, &columns)).unwrap();
    for row in rows {
        let values: Vec<_> = row
            .parts
            .iter()
            .map(|part| {
                let frames = match part.length {
                    0 => Value::Missing,
                    length => Value::Int(length.cast_signed()),
                };
                vec![Value::Text(&part.object[..7]), frames, Value::Bool(true), Value::Float(0.5)]
            })
            .collect();
        writer.push(row, &values).unwrap();
    }
    writer.finish().unwrap()
}

fn read_back(digest: &Digest) -> Vec<Blob> {
    let owned = |part: super::PartView<'_>| Part {
        object: part.object.to_owned(),
        version: part.version.to_owned(),
        offset: part.offset,
        length: part.length,
    };
    digest
        .blobs()
        .map(|blob| {
            let blob = blob.unwrap();
            let items = blob.items().map(Result::unwrap);
            Blob {
                address: blob.address,
                parts: blob.parts().map(|part| owned(part.unwrap())).collect(),
                items: items.map(|(offset, length)| super::ItemSpan { offset, length }).collect(),
                tree: blob
                    .tree()
                    .unwrap()
                    .map(|tree| HashTree { leaf: tree.leaf(), nodes: tree.nodes().to_vec() }),
            }
        })
        .collect()
}

/// Calls every method of a digest. A damaged digest may return errors, but must not panic.
fn exercise(digest: &Digest) -> Result<(), DigestError> {
    let mut first_problem = digest.check();
    let mut record = |result: Result<(), DigestError>| {
        if first_problem.is_ok() {
            first_problem = result;
        }
    };
    for blob in digest.blobs() {
        record(blob.and_then(|blob| {
            blob.parts().try_for_each(|part| part.map(drop))?;
            blob.items().try_for_each(|item| item.map(drop))?;
            assert!(blob.chunk().0 < digest.chunking().chunks());
            if let Some(tree) = blob.tree()? {
                let (namespace, bytes) = (Namespace::public(), [7; 3000]);
                assert!(!verify_slice(&namespace, &blob.address, &tree, 0, &bytes));
            }
            Ok(())
        }));
    }
    for item in 0..digest.summary().items.min(2000) {
        record(digest.item(ItemOrdinal::new(item)).map(drop));
    }
    for chunk in 0..digest.chunking().chunks() {
        let _ = digest.chunk(ChunkOrdinal(chunk));
    }
    for (name, _) in digest.columns().to_vec() {
        record(digest.column(&name).map(drop));
    }
    first_problem
}

#[test]
fn rows_survive_a_round_trip_across_batches() {
    let lengths: Vec<u64> = (0..40_000).map(|i| i * 7919 % 1000).collect();
    for pack in [None, Some(5000)] {
        let rows = rows(pack, &lengths);
        let digest = Digest::open(written(&rows).into()).unwrap();
        digest.check().unwrap();
        assert!(digest.batches.len() > 1 || pack.is_some(), "several batches");
        assert_eq!(read_back(&digest), rows);
        assert_eq!(digest.summary(), &header(&rows, &[]).summary);

        let mut item = 0;
        for (at, row) in rows.iter().enumerate() {
            for span in &row.items {
                let location = digest.item(ItemOrdinal::new(item)).unwrap();
                let expected = (BlobOrdinal::new(at as u64), span.offset, span.length);
                assert_eq!((location.blob, location.offset, location.length), expected);
                item += 1;
            }
        }
        let labels = digest.column("label").unwrap().unwrap();
        let first = labels[0].as_any().downcast_ref::<StringArray>().unwrap();
        assert_eq!(first.value(0), "class 0");
        assert_eq!(labels.iter().map(Array::len).sum::<usize>(), 40_000);
        assert!(digest.column("colour").unwrap().is_none());
    }
}

/// Blobs with and without trees, in batches that are full of nodes. Without any tree the format is
/// 1, which a forebay of before can read.
#[test]
fn hash_trees_survive_a_round_trip_and_set_the_format() {
    let lengths: Vec<u64> = (0..300).map(|i| if i % 5 == 0 { 3 << 20 } else { i * 7 }).collect();
    for (rows, format) in
        [(rows_with_trees(Some(5000), &lengths), "2"), (rows(Some(5000), &lengths), "1")]
    {
        let digest = Digest::open(written(&rows).into()).unwrap();
        digest.check().unwrap();
        assert_eq!(read_back(&digest), rows);
        assert_eq!(digest.has_trees(), format == "2");
        assert_eq!(digest.schema.metadata["forebay.format"], format);
        assert_eq!(digest.batches.len() > 1, format == "2", "184,000 nodes are two batches");
        assert_eq!(digest.column("label").unwrap().unwrap().len(), digest.batches.len());
    }
}

#[test]
fn a_tree_that_does_not_fit_its_blob_is_not_written() {
    let rows = rows_with_trees(None, &[5000]);
    let push = |has_trees: bool, nodes: usize| {
        let header = Header { has_trees, ..header(&rows, &[]) };
        let mut row = rows[0].clone();
        row.tree.as_mut().unwrap().nodes.truncate(nodes);
        DigestWriter::new(Vec::new(), header).unwrap().push(&row, &[vec![]]).is_ok()
    };
    assert_eq!([push(true, 5), push(true, 4), push(false, 5)], [true, false, false]);
}

#[test]
fn the_chunks_of_a_digest_hold_every_blob_once() {
    let rows = rows(None, &(0..5000).map(|i| i % 97).collect::<Vec<_>>());
    let digest = Digest::open(written(&rows).into()).unwrap();
    let mut seen = vec![0; rows.len()];
    for chunk in 0..digest.chunking().chunks() {
        for blob in digest.chunk(ChunkOrdinal(chunk)).into_iter().flatten() {
            seen[usize::try_from(blob).unwrap()] += 1;
            assert_eq!(digest.blob(BlobOrdinal::new(blob)).unwrap().chunk(), ChunkOrdinal(chunk));
        }
    }
    assert!(seen.iter().all(|count| *count == 1));
}

#[test]
fn equal_rows_make_equal_files() {
    let rows = rows(None, &[1, 2, 3]);
    assert_eq!(written(&rows), written(&rows));
}

/// A mirror, or the same blobs with other labels or items, is the same dataset to a cache. Other
/// content or another chunking is not.
#[test]
fn the_dataset_id_covers_content_and_chunking_but_not_locations() {
    let id = |rows: &[Blob]| header(rows, &[]).summary.dataset;
    let original = rows(None, &[100; 50]);
    let mut moved = original.clone();
    moved[7].parts[0].object = "class 0/elsewhere".to_owned();
    moved[8].items = vec![super::ItemSpan { offset: 0, length: 50 }];
    assert_eq!(id(&moved), id(&original));
    let mut other = original.clone();
    other[7].address = Namespace::public().address(b"other bytes");
    assert_ne!(id(&other), id(&original));
    other.clone_from(&original);
    other.swap(3, 4);
    assert_ne!(id(&other), id(&original));
    let cut = |chunks| {
        let mut hasher = DatasetIdHasher::new();
        for row in &original {
            hasher.push(&row.address, row.length());
        }
        hasher.finish(Chunking::into_chunks(chunks, 50).unwrap())
    };
    assert_ne!(cut(10), cut(5));
}

#[test]
fn rows_that_do_not_match_their_header_are_not_published() {
    let rows = rows(None, &[1, 2, 3]);
    let mut writer = DigestWriter::new(Vec::new(), header(&rows, &[])).unwrap();
    writer.push(&rows[0], &[]).unwrap();
    assert!(matches!(writer.finish(), Err(DigestError::Unwritable(_))));
}

#[test]
fn foreign_and_newer_files_are_distinguished_from_damaged_ones() {
    let open = |bytes: Vec<u8>| Digest::open(Bytes::from(bytes)).unwrap_err();
    assert!(matches!(open(b"PK\x03\x04 some archive".to_vec()), DigestError::Foreign(_)));
    assert!(matches!(open(Vec::new()), DigestError::Foreign(_)));

    let good = written(&rows(None, &[5; 10]));
    let cut = open(good[..good.len() - 100].to_vec());
    assert!(cut.to_string().contains("cut short"), "{cut}");

    // A later format may change everything but its number, so the number alone must cause the
    // error.
    let mut newer = good.clone();
    let key = b"forebay.format";
    for at in 0..newer.len() - key.len() {
        if newer[at..].starts_with(key) {
            // In both copies of the schema the value is within a few bytes of its key.
            let value = newer[at.saturating_sub(24)..at + 40]
                .windows(6)
                .position(|bytes| bytes == [1, 0, 0, 0, b'1', 0])
                .expect("the format's value is beside its key");
            newer[at.saturating_sub(24) + value + 4] = b'7';
        }
    }
    let newer = open(newer);
    assert!(matches!(&newer, DigestError::Newer(format) if format == "7"), "{newer}");
}

/// Promise 1 (never wrong bytes), for digests: a change of any byte is detected or has no effect.
#[test]
fn every_flipped_byte_is_detected_or_harmless() {
    check_flipped_bytes(&rows(None, &[5; 12]));
    check_flipped_bytes(&rows_with_trees(None, &[5, 2000, 5, 1025]));
}

fn check_flipped_bytes(rows: &[Blob]) {
    let good = written(rows);
    let original = Digest::open(good.clone().into()).unwrap();
    let mut harmless = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        match Digest::open(bad.into()).and_then(|digest| exercise(&digest).map(|()| digest)) {
            Err(_) => {}
            Ok(digest) => {
                assert_eq!(read_back(&digest), rows, "byte {at} changed the rows");
                assert_eq!(digest.summary(), original.summary(), "byte {at} changed the summary");
                harmless += 1;
            }
        }
    }
    // Padding between messages, and padding inside the footer.
    assert!(harmless < good.len() / 3, "{harmless} of {} bytes are not covered", good.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Hostile files: no edit of the bytes causes a panic or a read out of bounds.
    #[test]
    fn mutated_digests_never_panic(
        edits in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<[u8; 4]>(), 0_u8..6),
            1..6,
        ),
    ) {
        let mut bytes = written(&rows_with_trees(Some(40), &[11, 0, 30, 7, 7, 7, 9900, 1]));
        for (at, data, kind) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len().saturating_sub(4));
            match kind {
                0 if bytes.len() > 4 => bytes[at] = data[0],
                1 if bytes.len() > 4 => bytes[at..at + 4].copy_from_slice(&data),
                2 if bytes.len() > 4 => bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes()),
                3 => bytes.truncate(at),
                4 => { bytes.splice(at..at, data); }
                _ => { bytes.drain(at..(at + usize::from(data[0])).min(bytes.len())); }
            }
        }
        if let Ok(digest) = Digest::open(bytes.into()) {
            let _ = exercise(&digest);
        }
    }

    /// Opening does not read rows, so every method that reads rows must handle damage there.
    #[test]
    fn mutated_rows_never_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 1..8),
    ) {
        let mut bytes = written(&rows_with_trees(Some(40), &[11, 0, 30, 7, 7, 7, 9900, 1]));
        let body = Digest::open(bytes.clone().into()).unwrap().batches[0].body.clone();
        for (at, data) in edits {
            let at = body.start + at.index(body.len() - 4) / 4 * 4;
            bytes[at..at + 4].copy_from_slice(&data.to_le_bytes());
        }
        let digest = Digest::open(bytes.into()).expect("the metadata is intact");
        let _ = exercise(&digest);
    }
}
