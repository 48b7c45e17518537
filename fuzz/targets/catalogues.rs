//! Catalogues of what was seen: whatever lies there, it is opened or refused, and what is found is what somebody
//! has appended.
//!
//! The records are given the checksums that they need, so that what lies behind is reached, too.
#![no_main]

use std::{cell::OnceCell, fs, os::unix::fs::PermissionsExt as _, path::Path};

use forebay_core::Namespace;
use forebay_digest::{Catalogue, Key, Seen};
use forebay_fuzz::{content, directory, seed};
use libfuzzer_sys::fuzz_target;

/// The first byte of an input: what follows is a file, or records without their checksums.
const RAW: u8 = 0;
const RECORDS: u8 = 1;
/// A record without its checksum.
const FIELDS: usize = 84;

fn seen(blob: usize) -> (Key, Seen) {
    let (address, length) = (Namespace::public().address(&content(blob)), 10 + blob as u64);
    (*Namespace::public().address(&[b'k'; 3]).as_bytes(), Seen { address, length, index: 7, form: 1 })
}

/// Makes a catalogue of four sights, and returns its bytes.
fn written(path: &Path) -> Vec<u8> {
    let _ = fs::remove_file(path);
    let mut catalogue = Catalogue::open(path, Namespace::public().id()).expect("a catalogue");
    let all: Vec<_> = (0..4).map(seen).collect();
    catalogue.append(&all).expect("the disk takes it");
    fs::read(path).expect("it is there")
}

thread_local!(static PLACE: OnceCell<(tempfile::TempDir, Vec<u8>)> = const { OnceCell::new() });

fuzz_target!(
    init: {
        let place = directory();
        let whole = written(&place.path().join("x.catalogue"));
        seed("raw", &[&[RAW][..], &whole].concat());
        let header = whole.len() - 4 * (FIELDS + 4);
        let fields = whole[header..].chunks(FIELDS + 4).flat_map(|record| &record[..FIELDS]);
        seed("records", &[RECORDS].iter().chain(fields).copied().collect::<Vec<u8>>());
    },
    |data: &[u8]| {
        let Some((kind, data)) = data.split_first() else { return };
        PLACE.with(|place| {
            let (place, whole) = place.get_or_init(|| {
                let place = directory();
                let whole = written(&place.path().join("x.catalogue"));
                (place, whole)
            });
            let path = place.path().join("x.catalogue");
            let header = whole.len() - 4 * (FIELDS + 4);
            let bytes = if *kind == RAW {
                data.to_vec()
            } else {
                let summed = |fields: &[u8]| {
                    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, fields);
                    let sum = u32::try_from(sum).expect("a 32-bit sum").to_le_bytes();
                    [fields, &sum].concat()
                };
                let records = data.chunks(FIELDS).flat_map(summed);
                whole[..header].iter().copied().chain(records).collect()
            };
            let _ = fs::remove_file(&path);
            fs::write(&path, &bytes).expect("the disk takes it");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
            let Ok(mut catalogue) = Catalogue::open(&path, Namespace::public().id()) else { return };
            let keys: Vec<Key> = bytes
                .get(header..)
                .unwrap_or_default()
                .chunks_exact(FIELDS + 4)
                .map(|record| *record.first_chunk().expect("longer"))
                .collect();
            let found: Vec<Option<Seen>> = keys.iter().map(|key| catalogue.find(key)).collect();
            assert!(catalogue.len() <= keys.len());
            // It can be gone on with, and nothing is lost by that.
            let (key, sight) = seen(0);
            catalogue.append(&[(key, sight)]).expect("the disk takes it");
            let again = Catalogue::open(&path, Namespace::public().id()).expect("just opened");
            assert_eq!(again.find(&key), Some(sight));
            for (at, found) in keys.iter().zip(found) {
                let begins_alike = at[..8] == key[..8];
                assert!(begins_alike || again.find(at) == found, "{at:?}");
            }
        });
    }
);
