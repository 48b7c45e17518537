//! Unusable devices: each error names the remedy, and foreign data stays unchanged.

use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::Path,
};

use forebay_core::ByteSize;
use forebay_flash::{Flash, FlashConfig, format::SUPERBLOCK_OFFSETS, io::Backend};

use crate::{
    devices::{TestDevices, wait},
    world::{content, key},
};

/// The error with all its causes, which must contain these words.
#[track_caller]
fn rejected(config: &FlashConfig, words: &[&str]) -> String {
    let Err(error) = Flash::open(config) else { panic!("it opened") };
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        text += &format!(": {deeper}");
        cause = deeper.source();
    }
    for word in words {
        assert!(text.contains(word), "{text:?} does not contain {word:?}");
    }
    assert!(!text.contains('\n'), "one line: {text:?}");
    text
}

fn one_device() -> TestDevices {
    TestDevices::new(Backend::Threads, &[6])
}

/// A device with an entry.
fn filled() -> TestDevices {
    let setup = one_device();
    let flash = setup.open();
    wait(async {
        let group = flash.group(b"a", 1, false).await.unwrap();
        group.append(key(1), 0, content(1, 50_000)).await.unwrap();
        group.seal().await.unwrap();
    });
    setup
}

fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Changes the superblocks and corrects their checksums.
fn change_superblocks(path: &Path, change: impl Fn(&mut [u8])) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    for offset in SUPERBLOCK_OFFSETS {
        let mut block = [0; 64];
        file.read_exact_at(&mut block, offset).unwrap();
        change(&mut block[..60]);
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &block[..60]);
        block[60..].copy_from_slice(&u32::try_from(crc).unwrap().to_le_bytes());
        file.write_all_at(&block, offset).unwrap();
    }
}

/// Expects an error and an unchanged file.
#[track_caller]
fn left_unchanged(setup: &TestDevices, words: &[&str]) {
    let path = setup.path(0);
    let before = fs::read(&path).unwrap();
    let name = path.display().to_string();
    rejected(&setup.config, &[words, &[&name]].concat());
    assert!(fs::read(&path).unwrap() == before, "it was changed");
}

/// Promise: never a silent wipe of a foreign file.
#[test]
fn a_foreign_file_is_left_unchanged() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut noise = vec![0; 7 << 20];
    random.fill(&mut noise);
    let mut zeros_first = vec![0; 3 << 20];
    zeros_first.extend(b"a letter to a friend");
    let contents = [
        b"a letter to a friend".to_vec(),
        b"\0".to_vec(),
        noise[..4096].to_vec(),
        noise[..600_000].to_vec(),
        noise,
        zeros_first,
    ];
    for content in contents {
        let setup = one_device();
        fs::write(setup.path(0), content).unwrap();
        left_unchanged(&setup, &["not forebay's", "name another file", "remove this one"]);
    }
}

/// One damaged superblock, then two.
#[test]
fn one_damaged_superblock_is_tolerated_and_two_are_an_error() {
    let setup = filled();
    let path = setup.path(0);
    for offset in SUPERBLOCK_OFFSETS {
        let good = fs::read(&path).unwrap();
        patch(&path, offset + 20, b"scribble");
        let flash = setup.open();
        assert!(wait(flash.read(key(1), None)).unwrap().is_some(), "the other copy is enough");
        drop(flash);
        fs::write(&path, good).unwrap();
    }
    for offset in SUPERBLOCK_OFFSETS {
        patch(&path, offset + 20, b"scribble");
    }
    left_unchanged(&setup, &["damaged", "check the disk", "remove the file"]);
}

#[test]
fn a_newer_version_is_left_unchanged() {
    let setup = filled();
    change_superblocks(&setup.path(0), |block| block[8..12].copy_from_slice(&9_u32.to_le_bytes()));
    left_unchanged(&setup, &["newer forebay", "format 9", "use that version", "remove the file"]);
}

#[test]
fn another_nodes_device_is_left_unchanged() {
    let mut setup = filled();
    setup.config.devices[0].owner = [8; 16];
    left_unchanged(&setup, &["another forebay node", "name another file", "remove"]);
    setup.config.devices[0].owner = [7; 16];
    assert!(wait(setup.open().read(key(1), None)).unwrap().is_some(), "its own node can open it");
}

#[test]
fn a_truncated_file_is_left_unchanged() {
    let setup = filled();
    let path = setup.path(0);
    for length in [5 << 20, 3_000_000, 700_000] {
        fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        left_unchanged(&setup, &["truncated", "restore it", "remove it"]);
    }
    // Less than one superblock is left.
    fs::File::options().write(true).open(&path).unwrap().set_len(2000).unwrap();
    left_unchanged(&setup, &["remove"]);
}

#[test]
fn a_device_in_use_is_rejected() {
    let mut setup = filled();
    let flash = setup.open();
    rejected(&setup.config, &["in use", "stop that process", "use another"]);
    assert!(wait(flash.read(key(1), None)).unwrap().is_some(), "its user is not affected");
    drop(flash);
    setup.config.devices.push(setup.device(0, 6));
    rejected(&setup.config, &["named twice", "once"]);
    setup.config.devices.pop();
    fs::copy(setup.path(0), setup.path(1)).unwrap();
    setup.config.devices.push(setup.device(1, 6));
    rejected(&setup.config, &["is a copy of", "remove one"]);
    setup.config.devices.pop();
    assert!(wait(setup.open().read(key(1), None)).unwrap().is_some());
}

#[test]
fn a_capacity_below_the_minimum_is_rejected() {
    for exists in [false, true] {
        let mut setup = if exists { filled() } else { one_device() };
        setup.config.devices[0].capacity = ByteSize((5 << 20) - 1);
        rejected(&setup.config, &["too small", "at least 5"]);
        setup.config.devices[0].capacity = ByteSize(0);
        setup.config.devices[0].region_size = None;
        rejected(&setup.config, &["too small", "at least 5"]);
        assert_eq!(setup.path(0).exists(), exists, "no file is left behind");
    }
    // A formatted device keeps its region size, which decides the least capacity.
    let mut setup = one_device();
    setup.config.devices[0].capacity = ByteSize::mib(33);
    setup.config.devices[0].region_size = Some(ByteSize::mib(8));
    drop(setup.open());
    setup.config.devices[0] = setup.device(0, 32);
    rejected(&setup.config, &["too small", "regions of 8", "at least 33"]);
}

#[test]
fn invalid_region_sizes_are_rejected() {
    for size in [0, 1, 4096, 512 << 10, (1 << 20) + 1, 3 << 20, 128 << 20, u64::MAX] {
        let mut setup = one_device();
        setup.config.devices[0].region_size = Some(ByteSize(size));
        rejected(&setup.config, &["not possible", "power of two", "1 MiB", "64 MiB"]);
        assert!(!setup.path(0).exists());
    }
}

#[test]
fn unusable_paths_are_rejected() {
    let mut setup = one_device();
    let mut at = |path: &Path, words: &[&str]| {
        setup.config.devices[0].path = path.to_owned();
        let name = path.display().to_string();
        rejected(&setup.config, &[words, &[&name]].concat());
    };
    let directory = tempfile::tempdir().unwrap();
    at(directory.path(), &["neither a file nor a block device", "name one of these"]);
    at(Path::new("/dev/null"), &["neither a file nor a block device"]);
    at(Path::new("/sys/kernel/uevent_seqnum"), &["cannot be written", "owner"]);
    at(Path::new("/proc/self/comm"), &["no direct I/O", "ext4 or XFS"]);
    setup.config.devices[0].path = directory.path().join("nowhere/device");
    rejected(&setup.config, &["no directory", "nowhere", "create it"]);
    setup.config.devices[0] = setup.device(0, 1 << 40);
    rejected(&setup.config, &["free", "free space, or set a smaller capacity"]);
    assert!(!setup.path(0).exists());
    setup.config.devices.clear();
    rejected(&setup.config, &["name at least one"]);
}

/// Only checked if this process cannot write the file, that is, not as root.
#[test]
fn a_read_only_file_is_rejected() {
    let setup = filled();
    let path = setup.path(0);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    if fs::File::options().write(true).open(&path).is_err() {
        left_unchanged(&setup, &["cannot be written", "owner", "writable"]);
    }
}

/// An error about one device leaves the others unchanged.
#[test]
fn an_error_leaves_the_other_devices_unchanged() {
    let mut setup = TestDevices::new(Backend::Threads, &[6, 6]);
    let flash = setup.open();
    wait(async {
        let group = flash.group(b"a", 1, false).await.unwrap();
        for number in 0..20 {
            group.append(key(number), 0, content(number, 50_000)).await.unwrap();
        }
        group.seal().await.unwrap();
    });
    drop(flash);
    let good = fs::read(setup.path(1)).unwrap();
    fs::write(setup.path(1), b"a letter to a friend").unwrap();
    let name = setup.path(1).display().to_string();
    rejected(&setup.config, &["not forebay's", &name]);
    // The remedy in the error: another file.
    setup.config.devices[1] = setup.device(2, 6);
    let flash = setup.open();
    let there = |flash: &Flash| (0..20).filter(|number| flash.contains(&key(*number))).count();
    assert!((1..20).contains(&there(&flash)), "entries of the first device");
    drop(flash);
    fs::write(setup.path(1), good).unwrap();
    setup.config.devices[1] = setup.device(1, 6);
    assert_eq!(there(&setup.open()), 20);
}
