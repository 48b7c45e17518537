//! What [`DeviceFile`] makes, leaves alone and refuses.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

use tempfile::TempDir;

use super::{
    Backend, Command, DeviceFile, Disk, IoId, OpenError,
    contract::{run_one, say},
    open_disk,
};
use crate::{arena::Arena, layout::BLOCK_SIZE};

const SIZE: u64 = 1 << 20;

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    (directory, path)
}

fn reserved(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// The error, in words; they must name the path.
#[track_caller]
fn refused(path: &Path, size: u64) -> (OpenError, String) {
    let error = DeviceFile::open(path, size).expect_err("refused");
    let text = error.to_string();
    assert!(text.contains(path.file_name().unwrap().to_str().unwrap()), "{text}");
    (error, text)
}

#[test]
fn a_file_is_made_reserved_and_found_again() {
    let (_directory, path) = place();
    let made = DeviceFile::open(&path, SIZE).unwrap();
    assert!(made.created());
    assert_eq!((made.size(), fs::metadata(&path).unwrap().len()), (SIZE, SIZE));
    assert!(reserved(&path) >= SIZE, "all of it is reserved");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "for nobody else to read");
    drop(made);
    let found = DeviceFile::open(&path, 2 * SIZE).unwrap();
    assert!(!found.created());
    assert_eq!(found.size(), SIZE, "whoever opened it decides what to do with it");
}

#[test]
fn an_empty_file_counts_as_not_there() {
    let (directory, path) = place();
    fs::write(&path, b"").unwrap();
    let made = DeviceFile::open(&path, SIZE).unwrap();
    assert!(made.created() && made.size() == SIZE);
    let link = directory.path().join("link");
    symlink(directory.path().join("elsewhere"), &link).unwrap();
    assert!(DeviceFile::open(&link, SIZE).unwrap().created(), "a link to what is not there");
}

/// Promise: never a silent wipe of a foreign file.
#[test]
fn a_file_with_anything_in_it_is_left_as_it_is() {
    let (_directory, path) = place();
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
    let (_directory, path) = place();
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
    let (_directory, path) = place();
    fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let mut file = DeviceFile::open(&path, SIZE).unwrap();
    assert!(!file.created() && reserved(&path) < SIZE);
    file.resize(SIZE).unwrap();
    assert!(reserved(&path) >= SIZE);
}

#[test]
fn what_another_has_open_is_refused() {
    let (_directory, path) = place();
    let held = DeviceFile::open(&path, SIZE).unwrap();
    let (error, text) = refused(&path, SIZE);
    assert!(matches!(error, OpenError::Locked { .. }), "{text}");
    assert!(path.exists(), "it is the other's");
    drop(held);
    assert!(DeviceFile::open(&path, SIZE).is_ok());
}

/// Many at once for a file that is not there: one makes it, the others are refused, nobody finds half of it.
#[test]
fn of_many_makers_one_succeeds() {
    let (_directory, path) = place();
    for _ in 0..20 {
        let makers: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || DeviceFile::open(&path, SIZE))
            })
            .collect();
        let opened: Vec<_> = makers.into_iter().map(|maker| maker.join().unwrap()).collect();
        let mut made = 0;
        for one in &opened {
            match one {
                Ok(file) if file.created() && file.size() == SIZE => made += 1,
                other => assert!(matches!(other, Err(OpenError::Locked { .. })), "{other:?}"),
            }
        }
        assert_eq!(made, 1);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn too_little_space_is_refused_and_leaves_nothing_behind() {
    let (_directory, path) = place();
    let (error, text) = refused(&path, 1 << 60);
    assert!(matches!(error, OpenError::NoSpace { .. }), "{text}");
    assert!(!path.exists(), "no half-made file");
    let mut file = DeviceFile::open(&path, SIZE).unwrap();
    assert!(matches!(file.resize(1 << 60), Err(OpenError::NoSpace { .. })));
    assert_eq!((file.size(), fs::metadata(&path).unwrap().len()), (SIZE, SIZE), "as before");
}

#[test]
fn what_is_no_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path(), Path::new("/dev/null")] {
        let (error, text) = refused(path, SIZE);
        assert!(matches!(error, OpenError::NotAFile { .. }), "{text}");
    }
    let (error, text) = {
        let path = directory.path().join("nowhere/device");
        let error = DeviceFile::open(&path, SIZE).expect_err("refused");
        let text = error.to_string();
        (error, text)
    };
    assert!(matches!(error, OpenError::NoDirectory { .. }), "{text}");
    assert!(text.contains("nowhere") && !text.contains("device"), "{text}");
}

/// A file of the kernel's that not even root can write.
#[test]
fn what_cannot_be_written_is_refused() {
    let (error, text) = refused(Path::new("/sys/kernel/uevent_seqnum"), SIZE);
    assert!(matches!(error, OpenError::NotWritable { .. }), "{text}");
}

/// A file that can be written, but not directly. Being empty, it would have been taken for a new one.
#[test]
fn no_direct_io_is_refused() {
    let path = Path::new("/proc/self/comm");
    let before = fs::read(path).unwrap();
    let (error, text) = refused(path, SIZE);
    assert!(matches!(error, OpenError::NoDirectIo { .. }), "{text}");
    assert!(text.contains("ext4"), "it names the fix: {text}");
    assert_eq!(fs::read(path).unwrap(), before);
}

/// A block device made from a file, which goes away when the last user closes it.
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
            say("block devices are not tried: there is no losetup, or it is not allowed");
            None
        }
    }
}

fn detach(device: &Path) {
    let detached = process::Command::new("losetup").arg("--detach").arg(device).status();
    assert!(detached.is_ok_and(|status| status.success()));
}

#[test]
fn a_block_device_is_used_as_it_is() {
    let (_directory, path) = place();
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let Some(device) = loop_device(&path, 512) else { return };
    let too_large = DeviceFile::open(&device, 8 << 20);
    let opened = DeviceFile::open(&device, 1 << 20);
    let second = DeviceFile::open(&device, 1 << 20);
    detach(&device);
    assert!(matches!(too_large, Err(OpenError::TooSmall { .. })), "{too_large:?}");
    assert!(matches!(second, Err(OpenError::Locked { .. })), "{second:?}");
    let mut file = opened.unwrap();
    assert!(!file.created());
    assert_eq!(file.size(), 4 << 20);
    file.resize(2 << 20).unwrap();
    assert_eq!(file.size(), 4 << 20, "a drive does not change its size");

    let arena = Arena::new(1 << 20).unwrap();
    let mut disk =
        open_disk(&Arc::new(file), Backend::Auto, &[Arc::clone(&arena)]).expect("opened");
    let first_byte = |disk: &mut dyn Disk| {
        let buffer = arena.take(1 << 20).unwrap();
        let length = buffer.len();
        let read = Command::Read { id: IoId(0), offset: 1 << 20, buffer, length };
        run_one(disk, read).buffer.unwrap()[0]
    };
    assert_eq!(first_byte(disk.as_mut()), 7);
    let discard = Command::Discard { id: IoId(1), offset: 1 << 20, length: 1 << 20 };
    assert_eq!(run_one(disk.as_mut(), discard).result, Ok(()));
    assert_eq!(first_byte(disk.as_mut()), 0, "this kind of device forgets what was discarded");
}

#[test]
fn a_drive_with_larger_blocks_is_refused() {
    let (_directory, path) = place();
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let Some(device) = loop_device(&path, 16384) else { return };
    let opened = DeviceFile::open(&device, 1 << 20);
    detach(&device);
    assert!(
        matches!(opened, Err(OpenError::BlocksTooLarge { block_size: 16384, .. })),
        "{opened:?}"
    );
}
