//! Digest files: written atomically, mapped, and refused when damaged.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, thread, time::Duration};

use forebay_digest::{DigestFileError, PendingDigest, Value, open, open_unchecked};

use crate::{header, row};

fn publish(path: &Path, count: usize) {
    let rows: Vec<_> = (0..count).map(row).collect();
    let mut pending = PendingDigest::create(path, header(&rows)).unwrap();
    for row in &rows {
        pending.push(row, &[vec![Value::Int(7)]]).unwrap();
    }
    pending.publish().unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_digest_appears_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.digest");
    let rows: Vec<_> = (0..3).map(row).collect();
    let mut pending = PendingDigest::create(&path, header(&rows)).unwrap();
    pending.push(&rows[0], &[vec![Value::Int(7)]]).unwrap();
    assert!(!path.exists());
    assert!(
        matches!(pending.publish(), Err(DigestFileError::Unwritable { .. })),
        "two rows are missing"
    );
    assert!(names(directory.path()).is_empty(), "no partial file is left");
    publish(&path, 3);
    assert_eq!(names(directory.path()), ["x.digest", "x.digest.checked"]);
}

/// A digest is the right to read its dataset from the nodes of this machine.
#[test]
fn only_the_owner_may_read_a_new_digest() {
    let directory = tempfile::tempdir().unwrap();
    publish(&directory.path().join("x.digest"), 3);
    for name in names(directory.path()) {
        let mode = fs::metadata(directory.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_full_check_is_recorded_for_one_state_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.digest");
    publish(&path, 100);
    assert!(open_unchecked(&path).unwrap().was_checked(), "publishing checks");

    // Opening by metadata cannot detect a flipped bit in a row; the full check must.
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(32).position(|window| window == row(50).address.as_bytes()).unwrap();
    bytes[at] ^= 1;
    thread::sleep(Duration::from_millis(10));
    fs::write(&path, &bytes).unwrap();
    let damaged = open_unchecked(&path).expect("its metadata is intact");
    assert!(!damaged.was_checked(), "another state of the file");
    assert!(matches!(open(&path), Err(DigestFileError::Digest { .. })));
    assert!(matches!(open(&path), Err(DigestFileError::Digest { .. })), "at every open");

    fs::remove_file(directory.path().join("x.digest.checked")).unwrap();
    publish(&path, 100);
    fs::remove_file(directory.path().join("x.digest.checked")).unwrap();
    open(&path).unwrap();
    assert!(open_unchecked(&path).unwrap().was_checked(), "opening checks once");
}

/// Another user who can write to the directory can put anything under the names.
#[test]
fn a_pipe_or_an_endless_device_is_never_waited_for() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let directory = tempfile::tempdir().unwrap();
    let (path, memo) =
        (directory.path().join("x.digest"), directory.path().join("x.digest.checked"));
    publish(&path, 3);
    let pipe =
        |path: &Path| mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for endless in [false, true] {
        fs::remove_file(&memo).unwrap();
        if endless {
            std::os::unix::fs::symlink("/dev/zero", &memo).unwrap();
        } else {
            pipe(&memo);
        }
        assert!(!open_unchecked(&path).unwrap().was_checked());
        open(&path).unwrap();
        assert!(open_unchecked(&path).unwrap().was_checked(), "the record replaces it");
    }
    let mut longer = fs::read(&memo).unwrap();
    longer.push(b'\n');
    fs::write(&memo, &longer).unwrap();
    assert!(!open_unchecked(&path).unwrap().was_checked(), "another record");
    fs::remove_file(&path).unwrap();
    pipe(&path);
    let refused = open(&path).unwrap_err().to_string();
    assert!(refused.contains("x.digest`: it is not a regular file"), "{refused}");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let refused = open(&path).unwrap_err().to_string();
    assert!(refused.contains("x.digest`: it is not a regular file"), "{refused}");
}

#[test]
fn the_error_says_why_a_file_is_not_a_digest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.digest");
    let message = |path: &Path| open(path).unwrap_err().to_string();
    assert!(message(&path).contains("there is no file"), "missing");
    assert!(message(directory.path()).contains("directory"), "a directory");
    fs::write(&path, "").unwrap();
    assert!(message(&path).contains("not a forebay digest"), "empty");
    publish(&path, 10);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(message(&path).contains("cut short"), "truncated");
}
