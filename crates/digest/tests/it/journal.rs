//! Journals: an interrupted build continues, and damaged rows are dropped.

use std::fs;

use forebay_digest::{Blob, BlobPlan, Journal, JournalError, JournalHeader};
use proptest::prelude::*;

use crate::row;

fn header() -> JournalHeader {
    JournalHeader {
        origin: "s3://bucket/x".into(),
        layout: "files".into(),
        namespace: "public".into(),
        filter: String::new(),
    }
}

fn plan(blob: &Blob) -> BlobPlan {
    BlobPlan { parts: blob.parts.clone(), items: blob.items.clone() }
}

/// Runs a build of `rows` against the journal. Returns the number of rows that were recalled.
fn build(digest: &std::path::Path, rows: &[Blob]) -> usize {
    let mut journal = Journal::open(digest, &header(), false).unwrap();
    let mut recalled = 0;
    for row in rows {
        match journal.recall(&plan(row)).unwrap() {
            Some(found) => {
                assert_eq!(found, *row);
                recalled += 1;
            }
            None => journal.push(row).unwrap(),
        }
    }
    assert_eq!(journal.rows().unwrap().collect::<Vec<_>>(), rows);
    recalled
}

#[test]
fn a_build_resumes_from_a_journal_that_is_truncated_at_any_byte() {
    let directory = tempfile::tempdir().unwrap();
    let digest = directory.path().join("x.digest");
    let journal = directory.path().join("x.digest.partial");
    let rows: Vec<_> = (0..6).map(row).collect();
    assert_eq!(build(&digest, &rows), 0);
    let whole = fs::read(&journal).unwrap();
    let mut last = 0;
    for length in 0..=whole.len() {
        fs::write(&journal, &whole[..length]).unwrap();
        let recalled = build(&digest, &rows);
        assert!(recalled == last || recalled == last + 1, "one more row at most per byte");
        assert_eq!(fs::read(&journal).unwrap(), whole, "the same final journal");
        last = recalled;
    }
    assert_eq!(last, rows.len());
}

#[test]
fn rows_after_a_change_of_the_origin_are_built_again() {
    let directory = tempfile::tempdir().unwrap();
    let digest = directory.path().join("x.digest");
    let mut rows: Vec<_> = (0..10).map(row).collect();
    build(&digest, &rows);
    rows[4].parts[0].version = "\"new\"".into();
    assert_eq!(build(&digest, &rows), 4, "all before the change");
    rows.remove(8);
    assert_eq!(build(&digest, &rows), 8, "all before the gap");
    rows.truncate(3);
    assert_eq!(build(&digest, &rows), 3, "and no row of a removed object");
}

#[test]
fn a_journal_belongs_to_one_build() {
    let directory = tempfile::tempdir().unwrap();
    let digest = directory.path().join("x.digest");
    let held = Journal::open(&digest, &header(), false).unwrap();
    let second = Journal::open(&digest, &header(), false);
    assert!(matches!(second, Err(JournalError::Locked { .. })));
    drop(held);
    let other = JournalHeader { layout: "pack:5".into(), ..header() };
    assert!(matches!(Journal::open(&digest, &other, false), Err(JournalError::Other { .. })));
    assert!(Journal::open(&digest, &other, true).is_ok(), "--restart drops it");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Promise 1 (never wrong bytes): a damaged journal costs work only.
    #[test]
    fn a_damaged_journal_yields_a_prefix_and_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 4]>()), 1..5),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let digest = directory.path().join("x.digest");
        let rows: Vec<_> = (0..6).map(row).collect();
        build(&digest, &rows);
        let path = directory.path().join("x.digest.partial");
        let mut bytes = fs::read(&path).unwrap();
        for (at, data) in edits {
            let at = at.index(bytes.len() - 4);
            bytes[at..at + 4].copy_from_slice(&data);
        }
        fs::write(&path, bytes).unwrap();
        if Journal::open(&digest, &header(), false).is_ok() {
            build(&digest, &rows);
        }
    }
}
