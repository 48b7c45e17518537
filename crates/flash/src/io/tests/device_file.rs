//! Tests of [`DeviceFile`]: what it creates, leaves unchanged and rejects.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use tempfile::TempDir;

use super::contract::{note, run_one};
use crate::io::{Backend, DeviceFile, DeviceFileError, Disk, IoCommand, IoId, open_disk};
use crate::{buffers::BufferPool, format::BLOCK_SIZE};

const SIZE: u64 = 1 << 20;

fn temporary_path() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    (directory, path)
}

fn reserved(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// The error and its text, which must name the path.
#[track_caller]
fn rejected(path: &Path, size: u64) -> (DeviceFileError, String) {
    let error = DeviceFile::open(path, size).expect_err("rejected");
    let text = error.to_string();
    assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "{text}");
    (error, text)
}

#[test]
fn a_file_is_created_reserved_and_reopened() {
    let (_directory, path) = temporary_path();
    let created = DeviceFile::open(&path, SIZE).unwrap();
    assert!(created.created());
    assert_eq!((created.size(), fs::metadata(&path).unwrap().len()), (SIZE, SIZE));
    assert!(reserved(&path) >= SIZE, "all of it is reserved");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "readable by its owner only");
    drop(created);
    let found = DeviceFile::open(&path, 2 * SIZE).unwrap();
    assert!(!found.created());
    assert_eq!(found.size(), SIZE, "opening does not resize it");
}

#[test]
fn an_empty_file_counts_as_missing() {
    let (directory, path) = temporary_path();
    fs::write(&path, b"").unwrap();
    let created = DeviceFile::open(&path, SIZE).unwrap();
    assert!(created.created() && created.size() == SIZE);
    let link = directory.path().join("link");
    symlink(directory.path().join("elsewhere"), &link).unwrap();
    assert!(DeviceFile::open(&link, SIZE).unwrap().created(), "a dangling link");
}

/// Promise: never a silent wipe of a foreign file.
#[test]
fn a_file_with_contents_is_left_unchanged() {
    let (_directory, path) = temporary_path();
    for content in [&b"a letter to a friend"[..], &[7; 3 * BLOCK_SIZE + 5]] {
        fs::write(&path, content).unwrap();
        let found = DeviceFile::open(&path, SIZE).unwrap();
        assert!(!found.created());
        assert_eq!(found.size(), content.len() as u64);
        drop(found);
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[test]
fn a_file_grows_and_shrinks_on_request() {
    let (_directory, path) = temporary_path();
    let mut file = DeviceFile::open(&path, SIZE).unwrap();
    fs::File::options().write(true).open(&path).unwrap().write_all_at(b"kept", 0).unwrap();
    for size in [4 * SIZE, 4 * SIZE, SIZE / 2, 2 * SIZE] {
        file.resize(size).unwrap();
        assert_eq!((file.size(), fs::metadata(&path).unwrap().len()), (size, size));
        assert!(reserved(&path) >= size);
    }
    assert!(fs::read(&path).unwrap().starts_with(b"kept"));
}

#[test]
fn a_sparse_file_is_reserved_on_request() {
    let (_directory, path) = temporary_path();
    fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let mut file = DeviceFile::open(&path, SIZE).unwrap();
    assert!(!file.created() && reserved(&path) < SIZE);
    file.resize(SIZE).unwrap();
    assert!(reserved(&path) >= SIZE);
}

#[test]
fn an_open_device_is_locked() {
    let (_directory, path) = temporary_path();
    let first = DeviceFile::open(&path, SIZE).unwrap();
    let (error, text) = rejected(&path, SIZE);
    assert!(matches!(error, DeviceFileError::Locked { .. }), "{text}");
    assert!(path.exists(), "the loser does not remove it");
    drop(first);
    assert!(DeviceFile::open(&path, SIZE).is_ok());
}

/// Several threads open a missing file at once: one creates it, the others find it locked, none
/// sees it half-made.
#[test]
fn of_several_creators_one_succeeds() {
    let (_directory, path) = temporary_path();
    for _ in 0..20 {
        let creators: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || DeviceFile::open(&path, SIZE))
            })
            .collect();
        let opened: Vec<_> = creators.into_iter().map(|creator| creator.join().unwrap()).collect();
        let mut made = 0;
        for one in &opened {
            match one {
                Ok(file) if file.created() && file.size() == SIZE => made += 1,
                other => assert!(matches!(other, Err(DeviceFileError::Locked { .. })), "{other:?}"),
            }
        }
        assert_eq!(made, 1);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn too_little_space_is_an_error_and_leaves_no_file() {
    let (_directory, path) = temporary_path();
    let (error, text) = rejected(&path, 1 << 60);
    assert!(matches!(error, DeviceFileError::NoSpace { .. }), "{text}");
    assert!(!path.exists(), "no half-made file");
    let mut file = DeviceFile::open(&path, SIZE).unwrap();
    assert!(matches!(file.resize(1 << 60), Err(DeviceFileError::NoSpace { .. })));
    assert_eq!((file.size(), fs::metadata(&path).unwrap().len()), (SIZE, SIZE), "unchanged");
}

#[test]
fn a_directory_or_character_device_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path(), Path::new("/dev/null")] {
        let (error, text) = rejected(path, SIZE);
        assert!(matches!(error, DeviceFileError::NotAFile { .. }), "{text}");
    }
    let (error, text) = {
        let path = directory.path().join("nowhere/device");
        let error = DeviceFile::open(&path, SIZE).expect_err("rejected");
        let text = error.to_string();
        (error, text)
    };
    assert!(matches!(error, DeviceFileError::NoDirectory { .. }), "{text}");
    assert!(text.contains("nowhere") && !text.contains("device"), "{text}");
}

/// A kernel file that not even root can write.
#[test]
fn a_read_only_file_is_rejected() {
    let (error, text) = rejected(Path::new("/sys/kernel/uevent_seqnum"), SIZE);
    assert!(matches!(error, DeviceFileError::NotWritable { .. }), "{text}");
}

/// A file that is writable but lacks direct I/O. It is empty, so it would count as new.
#[test]
fn a_file_without_direct_io_is_rejected() {
    let path = Path::new("/proc/self/comm");
    let before = fs::read(path).unwrap();
    let (error, text) = rejected(path, SIZE);
    assert!(matches!(error, DeviceFileError::NoDirectIo { .. }), "{text}");
    assert!(text.contains("ext4"), "the error names the remedy: {text}");
    assert_eq!(fs::read(path).unwrap(), before);
}

/// A loop device on a file; it disappears when its last user closes it.
fn loop_device(file: &Path, sector_size: u32) -> Option<PathBuf> {
    let output = process::Command::new("losetup")
        .args(["--find", "--show", "--sector-size", &sector_size.to_string()])
        .arg(file)
        .output();
    match output {
        Ok(output) if output.status.success() => {
            Some(PathBuf::from(String::from_utf8(output.stdout).unwrap().trim()))
        }
        _ => {
            note("skipped: losetup is missing or not permitted");
            None
        }
    }
}

fn detach(device: &Path) {
    let detached = process::Command::new("losetup").arg("--detach").arg(device).status();
    assert!(detached.is_ok_and(|status| status.success()));
}

#[test]
fn a_block_device_is_used_unchanged() {
    let (_directory, path) = temporary_path();
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let Some(device) = loop_device(&path, 512) else { return };
    let too_large = DeviceFile::open(&device, 8 << 20);
    let opened = DeviceFile::open(&device, 1 << 20);
    let second = DeviceFile::open(&device, 1 << 20);
    detach(&device);
    assert!(matches!(too_large, Err(DeviceFileError::TooSmall { .. })), "{too_large:?}");
    assert!(matches!(second, Err(DeviceFileError::Busy { .. })), "{second:?}");
    let mut file = opened.unwrap();
    assert!(!file.created());
    assert_eq!(file.size(), 4 << 20);
    file.resize(2 << 20).unwrap();
    assert_eq!(file.size(), 4 << 20, "a drive does not change its size");

    let pool = BufferPool::new(1 << 20).unwrap();
    let mut disk = open_disk(&Arc::new(file), Backend::Auto, &[Arc::clone(&pool)]).expect("opened");
    let first_byte = |disk: &mut dyn Disk| {
        let buffer = pool.take(1 << 20).unwrap();
        let length = buffer.len();
        let read = IoCommand::Read { id: IoId(0), offset: 1 << 20, buffer, length };
        run_one(disk, read).buffer.unwrap()[0]
    };
    assert_eq!(first_byte(disk.as_mut()), 7);
    let discard = IoCommand::Discard { id: IoId(1), offset: 1 << 20, length: 1 << 20 };
    assert_eq!(run_one(disk.as_mut(), discard).result, Ok(()));
    assert_eq!(first_byte(disk.as_mut()), 0, "loop devices zero discarded blocks");
}

#[test]
fn a_drive_with_larger_blocks_is_rejected() {
    let (_directory, path) = temporary_path();
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let Some(device) = loop_device(&path, 16384) else { return };
    let opened = DeviceFile::open(&device, 1 << 20);
    detach(&device);
    assert!(
        matches!(opened, Err(DeviceFileError::BlocksTooLarge { block_size: 16384, .. })),
        "{opened:?}"
    );
}

/// A child that was forked while the device was open does not keep it locked, neither by the file
/// nor by a uring.
#[test]
#[expect(unsafe_code, reason = "forks")]
fn a_forked_child_does_not_keep_the_lock() {
    let (_directory, path) = temporary_path();
    let file = Arc::new(DeviceFile::open(&path, SIZE).unwrap());
    let disk = open_disk(&file, Backend::Auto, &[]).unwrap();
    // SAFETY: the child calls nothing but `alarm` and `pause`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child if this test has failed.
        unsafe { libc::alarm(120) };
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    assert!(child > 0);
    assert!(matches!(DeviceFile::open(&path, SIZE), Err(DeviceFileError::Locked { .. })));
    drop((disk, file));
    // The kernel tears down a uring later, so the lock may stay for a moment.
    let began = std::time::Instant::now();
    let reopened = loop {
        match DeviceFile::open(&path, SIZE) {
            Err(DeviceFileError::Locked { .. }) if began.elapsed().as_secs() < 30 => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            opened => break opened,
        }
    };
    // SAFETY: the child is this test's own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: as above; its status is of no interest.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert!(reopened.is_ok(), "{reopened:?}");
}
