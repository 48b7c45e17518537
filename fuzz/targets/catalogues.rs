//! Catalogues: any file is opened or refused, and a lookup returns an appended entry or nothing.
//!
//! Records get correct checksums, so that the fuzzer reaches the code behind the check.
#![no_main]

use std::{cell::OnceCell, fs, os::unix::fs::PermissionsExt as _, path::Path};

use forebay_core::Namespace;
use forebay_digest::{Catalogue, CatalogueEntry, CatalogueKey};
use forebay_fuzz::{content, directory, seed};
use libfuzzer_sys::fuzz_target;

/// The first byte of an input: a file follows, or records without their checksums.
const RAW: u8 = 0;
const RECORDS: u8 = 1;
/// Bytes of a record without its checksum.
const FIELDS: usize = 84;

fn entry(blob: usize) -> (CatalogueKey, CatalogueEntry) {
    let content = content(blob);
    let (address, length) = (Namespace::public().address(&content), content.len() as u64);
    (
        *Namespace::public().address(&[b'k'; 3]).as_bytes(),
        CatalogueEntry { address, length, index: 7, form: 1 },
    )
}

/// Writes a catalogue of four entries, and returns its bytes.
fn written(path: &Path) -> Vec<u8> {
    let _ = fs::remove_file(path);
    let mut catalogue = Catalogue::open(path, Namespace::public().id()).expect("a catalogue");
    let all: Vec<_> = (0..4).map(entry).collect();
    catalogue.append(&all).expect("append");
    fs::read(path).expect("read the catalogue")
}

thread_local!(static STATE: OnceCell<(tempfile::TempDir, Vec<u8>)> = const { OnceCell::new() });

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
        STATE.with(|place| {
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
            fs::write(&path, &bytes).expect("write the catalogue");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
            let namespace = Namespace::public().id();
            let Ok(mut catalogue) = Catalogue::open(&path, namespace) else { return };
            let keys: Vec<CatalogueKey> = bytes
                .get(header..)
                .unwrap_or_default()
                .chunks_exact(FIELDS + 4)
                .map(|record| *record.first_chunk().expect("longer"))
                .collect();
            let found: Vec<Option<CatalogueEntry>> =
                keys.iter().map(|key| catalogue.find(key)).collect();
            assert!(catalogue.len() <= keys.len());
            // An append loses no entry.
            let (key, new) = entry(0);
            catalogue.append(&[(key, new)]).expect("append");
            let again = Catalogue::open(&path, namespace).expect("just opened");
            assert_eq!(again.find(&key), Some(new));
            for (other, found) in keys.iter().zip(found) {
                let has_same_prefix = other[..8] == key[..8];
                assert!(has_same_prefix || again.find(other) == found, "{other:?}");
            }
        });
    }
);
