//! Catalogues: entries survive a reopen, and damage is reported.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use forebay_core::{Namespace, NamespaceId};
use forebay_digest::{Catalogue, CatalogueEntry, CatalogueError, CatalogueKey};

fn public() -> NamespaceId {
    Namespace::public().id()
}

fn key(number: u64) -> CatalogueKey {
    *Namespace::public().address(&number.to_le_bytes()).as_bytes()
}

/// The entry of an item after its `time`th read.
fn seen(number: u64, time: u64) -> CatalogueEntry {
    let address = Namespace::public().address(&[number, time].map(u64::to_le_bytes).concat());
    CatalogueEntry { address, length: 10 + number, index: number, form: 1 }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.catalogue");
    (directory, path)
}

fn open(path: &Path) -> Catalogue {
    Catalogue::open(path, public()).unwrap()
}

#[test]
fn entries_of_one_process_are_found_by_others() {
    let (_directory, path) = place();
    let (mut one, mut other) = (open(&path), open(&path));
    assert_eq!(one.id(), other.id());
    one.append(&[(key(1), seen(1, 0)), (key(2), seen(2, 0))]).unwrap();
    assert_eq!((one.find(&key(2)), one.find(&key(3))), (Some(seen(2, 0)), None));
    assert_eq!(other.find(&key(1)), None, "not refreshed yet");
    other.append(&[(key(2), seen(2, 1))]).unwrap();
    assert_eq!(other.find(&key(1)), Some(seen(1, 0)));
    one.refresh().unwrap();
    assert_eq!(one.find(&key(2)), Some(seen(2, 1)), "the newest counts");
    assert_eq!((one.len(), open(&path).find(&key(2))), (2, Some(seen(2, 1))));
}

/// A process that is killed while it appends leaves a prefix of its bytes.
#[test]
fn a_catalogue_that_is_truncated_at_any_byte_recovers() {
    let (_directory, path) = place();
    let numbers = 0..4;
    let mut whole = open(&path);
    for number in numbers.clone() {
        whole.append(&[(key(number), seen(number, 0))]).unwrap();
    }
    let bytes = fs::read(&path).unwrap();
    let mut last = 0;
    for length in 0..=bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let (mut cut, mut other) = (open(&path), open(&path));
        let found = numbers.clone().filter(|number| cut.find(&key(*number)).is_some()).count();
        assert!(found == last || found == last + 1, "one more entry at most per byte");
        last = found;
        cut.append(&[(key(9), seen(9, 0))]).unwrap();
        // A process that has read up to the torn tail also sees the new entry.
        other.refresh().unwrap();
        for again in [&open(&path), &other] {
            assert_eq!((again.len(), again.find(&key(9))), (found + 1, Some(seen(9, 0))));
            for number in 0..found as u64 {
                assert_eq!(again.find(&key(number)), Some(seen(number, 0)));
            }
        }
    }
    assert_eq!(last, 4);
}

/// Promise 1: an entry that does not match its checksum is a miss, never data.
#[test]
fn damage_to_any_byte_costs_one_key_at_most() {
    let (_directory, path) = place();
    let all: Vec<(CatalogueKey, CatalogueEntry)> =
        (0..5).map(|number| (key(number), seen(number, 0))).collect();
    let mut catalogue = open(&path);
    catalogue.append(&all).unwrap();
    let bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        fs::write(&path, &damaged).unwrap();
        let found = match Catalogue::open(&path, public()) {
            Ok(found) => found,
            Err(CatalogueError::Foreign { .. }) => continue,
            Err(other) => panic!("byte {at}: {other}"),
        };
        let right = all.iter().filter(|(key, seen)| found.find(key) == Some(*seen)).count();
        let wrong = all.iter().filter(|(key, _)| found.find(key).is_some()).count() - right;
        // With a damaged header the catalogue is empty.
        assert!(wrong == 0 && (right == 4 || right == 0 && at < 68), "byte {at}: {right}");
    }
    // Damage to an open catalogue is detected when the record is read.
    let mut damaged = bytes.clone();
    damaged[100 + 88] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert_eq!(catalogue.find(&key(1)), None);
    assert_eq!(catalogue.find(&key(2)), Some(seen(2, 0)));
}

#[test]
fn concurrent_appends_lose_nothing() {
    let (_directory, path) = place();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let mut catalogue = open(path);
                for number in thread * 100..thread * 100 + 100 {
                    catalogue.append(&[(key(number), seen(number, 0))]).unwrap();
                }
            });
        }
    });
    let catalogue = open(&path);
    assert!((0..400).all(|number| catalogue.find(&key(number)) == Some(seen(number, 0))));
}

#[test]
fn superseded_records_do_not_pile_up() {
    let (_directory, path) = place();
    let mut before = open(&path);
    for time in 0..500 {
        let again: Vec<_> = (0..10).map(|number| (key(number), seen(number, time))).collect();
        before.append(&again).unwrap();
    }
    let length = fs::metadata(&path).unwrap().len();
    let after = open(&path);
    assert!(fs::metadata(&path).unwrap().len() < length / 100);
    assert_eq!((after.len(), after.id()), (10, before.id()));
    // A process that had the old file open continues with the new one.
    before.append(&[(key(77), seen(77, 0))]).unwrap();
    for catalogue in [&before, &open(&path)] {
        assert!((0..10).all(|number| catalogue.find(&key(number)) == Some(seen(number, 499))));
        assert_eq!(catalogue.find(&key(77)), Some(seen(77, 0)));
    }
}

/// A process that can write a catalogue decides which bytes an item has.
#[test]
fn a_catalogue_that_other_users_can_access_is_refused() {
    let (_directory, path) = place();
    drop(open(&path));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for mode in [0o620, 0o602, 0o640, 0o604] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = Catalogue::open(&path, public()).unwrap_err();
        assert!(matches!(refused, CatalogueError::Shared { .. }), "{refused}");
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
    }
}

#[test]
fn a_file_that_is_not_a_catalogue_is_not_changed() {
    let (directory, path) = place();
    let other = Namespace::secret([7; 32]).unwrap().id();
    drop(Catalogue::open(&path, other).unwrap());
    let strange = directory.path().join("strange");
    fs::write(&strange, b"the only copy of a thesis").unwrap();
    fs::set_permissions(&strange, fs::Permissions::from_mode(0o600)).unwrap();
    for path in [&path, &strange] {
        let before = fs::read(path).unwrap();
        let refused = Catalogue::open(path, public()).unwrap_err();
        assert!(matches!(refused, CatalogueError::Foreign { .. }), "{refused}");
        assert_eq!(fs::read(path).unwrap(), before);
    }
}

/// Promise 5: a process that was stopped while it held the lock costs others the timeout and their
/// entries.
#[test]
fn waiting_for_a_lock_times_out() {
    let (_directory, path) = place();
    let mut catalogue = open(&path);
    let stopped = fs::File::open(&path).unwrap();
    stopped.lock().unwrap();
    let refused = catalogue.append(&[(key(1), seen(1, 0))]).unwrap_err();
    assert!(matches!(refused, CatalogueError::Locked { .. }), "{refused}");
    drop(stopped);
    catalogue.append(&[(key(1), seen(1, 0))]).unwrap();
    assert_eq!(catalogue.find(&key(1)), Some(seen(1, 0)));
}

#[test]
fn a_snapshot_is_a_digest_that_passes_the_full_check() {
    let (directory, _) = place();
    let path = directory.path().join("x.digest");
    let rows: Vec<_> = [5, 0, 9, 5].map(|at| (seen(at, 0).address, at)).into();
    let secret = Namespace::secret([7; 32]).unwrap().id();
    forebay_digest::publish_snapshot(&path, secret, "a dataset of one's own", &rows).unwrap();
    let file = forebay_digest::open_unchecked(&path).unwrap();
    file.check().unwrap();
    let found: Vec<_> =
        file.digest.blobs().map(|row| row.map(|row| (row.address, row.length)).unwrap()).collect();
    assert_eq!((found, file.digest.summary().items), (rows, 4));
    assert_eq!(file.digest.namespace(), Some(secret));
}
