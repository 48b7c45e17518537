//! Journals of interrupted builds: whatever lies there, a build goes on from what makes sense of it.
//!
//! The records are given the checksums that they need, so that what lies behind is reached, too.
#![no_main]

use std::{cell::OnceCell, fs, path::Path};

use forebay_core::digest::{Blob, plan::BlobPlan};
use forebay_digest::{Journal, JournalHeader};
use forebay_fuzz::{directory, rows, seed};
use libfuzzer_sys::fuzz_target;

/// The first byte of an input: what follows is a file, or one record of one.
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

thread_local!(static PLACE: OnceCell<(tempfile::TempDir, Vec<u8>)> = const { OnceCell::new() });

/// Makes a journal of these rows, and returns its bytes.
fn written(digest: &Path, rows: &[Blob]) -> Vec<u8> {
    let mut journal = Journal::open(digest, &header(), true).expect("a journal");
    assert_eq!(journal.recall(&BlobPlan::default()).expect("it can be read"), None);
    for row in rows {
        journal.push(row).expect("a row");
    }
    journal.flush().expect("the disk takes it");
    fs::read(Journal::path(digest)).expect("it is there")
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
        PLACE.with(|place| {
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
            fs::write(Journal::path(&digest), bytes).expect("the disk takes it");
            let Ok(mut journal) = Journal::open(&digest, &header(), false) else { return };
            let found: Vec<Blob> = journal.rows().expect("it can be read").collect();
            // What was understood is said in the same bytes.
            drop(journal);
            let before = fs::read(Journal::path(&digest)).expect("it is there");
            let again = written(&digest, &found);
            assert!(before.starts_with(&again), "{found:?}");
        });
    }
);
