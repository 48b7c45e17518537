//! Journals of interrupted builds: from any file a build resumes with the valid rows of it.
//!
//! Records get correct checksums, so that the fuzzer reaches the code behind the check.
#![no_main]

use std::{cell::OnceCell, fs, path::Path};

use forebay_digest::{Blob, BlobPlan, Journal, JournalHeader};
use forebay_fuzz::{directory, rows, seed};
use libfuzzer_sys::fuzz_target;

/// The first byte of an input: a file follows, or one record.
const RAW: u8 = 0;
const RECORD: u8 = 1;

fn header() -> JournalHeader {
    let text = |text: &str| text.to_owned();
    JournalHeader {
        origin: text("file:///data"),
        layout: text("files"),
        namespace: text("public"),
        filter: String::new(),
    }
}

thread_local!(static STATE: OnceCell<(tempfile::TempDir, Vec<u8>)> = const { OnceCell::new() });

/// Writes a journal of these rows, and returns its bytes.
fn written(digest: &Path, rows: &[Blob]) -> Vec<u8> {
    let mut journal = Journal::open(digest, &header(), true).expect("a journal");
    assert_eq!(journal.recall(&BlobPlan::default()).expect("recall"), None);
    for row in rows {
        journal.push(row).expect("a row");
    }
    journal.flush().expect("flush");
    fs::read(Journal::path(digest)).expect("read the journal")
}

fuzz_target!(
    init: {
        let place = directory();
        let digest = place.path().join("x.digest");
        let (begun, whole) = (written(&digest, &[]), written(&digest, &rows()));
        seed("raw", &[&[RAW][..], &whole].concat());
        let one = written(&digest, &rows()[..1]);
        seed("record", &[&[RECORD][..], &one[begun.len() + 8..]].concat());
    },
    |data: &[u8]| {
        let Some((kind, data)) = data.split_first() else { return };
        STATE.with(|place| {
            let (place, begun) = place.get_or_init(|| {
                let place = directory();
                let begun = written(&place.path().join("x.digest"), &[]);
                (place, begun)
            });
            let digest = place.path().join("x.digest");
            let bytes = if *kind == RAW {
                data.to_vec()
            } else {
                let length = u32::try_from(data.len()).expect("inputs are small").to_le_bytes();
                let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, data);
                let sum = u32::try_from(sum).expect("a 32-bit sum").to_le_bytes();
                [&begun[..], &length, &sum, data].concat()
            };
            fs::write(Journal::path(&digest), bytes).expect("write the journal");
            let Ok(mut journal) = Journal::open(&digest, &header(), false) else { return };
            let found: Vec<Blob> = journal.rows().expect("rows").collect();
            // Decoded rows are encoded as the same bytes.
            drop(journal);
            let before = fs::read(Journal::path(&digest)).expect("read the journal");
            let again = written(&digest, &found);
            assert!(before.starts_with(&again), "{found:?}");
        });
    }
);
