//! Devices that cannot be used: each is refused in words that name the fix, and nothing of somebody else's
//! is touched.

use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::Path,
};

use forebay_core::ByteSize;
use forebay_flash::{Config, Flash, io::Backend, layout::SUPERBLOCK_OFFSETS};

use crate::{
    devices::{Place, wait},
    world::{content, key},
};

/// The refusal, with all its causes; it must say all of this.
#[track_caller]
fn refused(config: &Config, words: &[&str]) -> String {
    let Err(error) = Flash::open(config) else { panic!("it was opened") };
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        text += &format!(": {deeper}");
        cause = deeper.source();
    }
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
    assert!(!text.contains('\n'), "one line: {text:?}");
    text
}

fn place() -> Place {
    Place::new(Backend::Threads, &[6])
}

/// A device with something on it.
fn filled() -> Place {
    let place = place();
    let flash = place.open();
    wait(async {
        let group = flash.group(b"a", 1, false).await.unwrap();
        group.append(key(1), 0, content(1, 50_000)).await.unwrap();
        group.seal().await.unwrap();
    });
    place
}

fn patch(path: &Path, offset: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// The superblocks of a device, changed and given the right checksum again.
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

/// Refused, and not a byte is different afterwards.
#[track_caller]
fn left_alone(place: &Place, words: &[&str]) {
    let path = place.path(0);
    let before = fs::read(&path).unwrap();
    let name = path.display().to_string();
    refused(&place.config, &[words, &[&name]].concat());
    assert!(fs::read(&path).unwrap() == before, "it was changed");
}

/// Promise: never a silent wipe of a foreign file.
#[test]
fn a_foreign_file_is_left_alone() {
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
        let place = place();
        fs::write(place.path(0), content).unwrap();
        left_alone(&place, &["not forebay's", "name another file", "remove it"]);
    }
}

/// Something else begins where the first superblock was, or both are damaged.
#[test]
fn a_damaged_superblock_is_survived_and_two_are_not_guessed_at() {
    let place = filled();
    let path = place.path(0);
    for offset in SUPERBLOCK_OFFSETS {
        let good = fs::read(&path).unwrap();
        patch(&path, offset + 20, b"scribble");
        let flash = place.open();
        assert!(wait(flash.read(key(1), None)).unwrap().is_some(), "the other copy is enough");
        drop(flash);
        fs::write(&path, good).unwrap();
    }
    for offset in SUPERBLOCK_OFFSETS {
        patch(&path, offset + 20, b"scribble");
    }
    left_alone(&place, &["damaged", "check the disk", "remove the file"]);
}

#[test]
fn a_newer_version_is_left_alone() {
    let place = filled();
    change_superblocks(&place.path(0), |block| block[8..12].copy_from_slice(&9_u32.to_le_bytes()));
    left_alone(&place, &["newer forebay", "format 9", "use that one", "remove the file"]);
}

#[test]
fn another_nodes_device_is_left_alone() {
    let mut place = filled();
    place.config.devices[0].owner = [8; 16];
    left_alone(&place, &["another forebay node", "name another file", "remove"]);
    place.config.devices[0].owner = [7; 16];
    assert!(wait(place.open().read(key(1), None)).unwrap().is_some(), "its own node has it");
}

#[test]
fn a_cut_file_is_left_alone() {
    let place = filled();
    let path = place.path(0);
    for length in [5 << 20, 3_000_000, 700_000] {
        fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        left_alone(&place, &["it was cut", "restore it", "remove it"]);
    }
    // Not even a superblock is left whole.
    fs::File::options().write(true).open(&path).unwrap().set_len(2000).unwrap();
    left_alone(&place, &["remove"]);
}

#[test]
fn a_device_in_use_is_refused() {
    let mut place = filled();
    let flash = place.open();
    refused(&place.config, &["in use", "stop that", "use another"]);
    assert!(wait(flash.read(key(1), None)).unwrap().is_some(), "its user is not disturbed");
    drop(flash);
    place.config.devices.push(place.device(0, 6));
    refused(&place.config, &["named twice", "once"]);
    place.config.devices.pop();
    fs::copy(place.path(0), place.path(1)).unwrap();
    place.config.devices.push(place.device(1, 6));
    refused(&place.config, &["is a copy of", "remove one"]);
    place.config.devices.pop();
    assert!(wait(place.open().read(key(1), None)).unwrap().is_some());
}

#[test]
fn a_capacity_below_the_minimum_is_refused() {
    for exists in [false, true] {
        let mut place = if exists { filled() } else { place() };
        place.config.devices[0].capacity = ByteSize((5 << 20) - 1);
        refused(&place.config, &["too small", "at least 5"]);
        place.config.devices[0].capacity = ByteSize(0);
        place.config.devices[0].region_size = None;
        refused(&place.config, &["too small", "at least 5"]);
        assert_eq!(place.path(0).exists(), exists, "nothing is left behind");
    }
    // A device keeps its regions, and these are what the capacity is judged by.
    let mut place = place();
    place.config.devices[0].capacity = ByteSize::mib(33);
    place.config.devices[0].region_size = Some(ByteSize::mib(8));
    drop(place.open());
    place.config.devices[0] = place.device(0, 32);
    refused(&place.config, &["too small", "regions of 8", "at least 33"]);
}

#[test]
fn impossible_region_sizes_are_refused() {
    for size in [0, 1, 4096, 512 << 10, (1 << 20) + 1, 3 << 20, 128 << 20, u64::MAX] {
        let mut place = place();
        place.config.devices[0].region_size = Some(ByteSize(size));
        refused(&place.config, &["not possible", "power of two", "1 MiB", "64 MiB"]);
        assert!(!place.path(0).exists());
    }
}

#[test]
fn what_cannot_be_a_device_is_refused() {
    let mut place = place();
    let mut at = |path: &Path, words: &[&str]| {
        place.config.devices[0].path = path.to_owned();
        let name = path.display().to_string();
        refused(&place.config, &[words, &[&name]].concat());
    };
    let directory = tempfile::tempdir().unwrap();
    at(directory.path(), &["neither a file nor a block device", "name one of these"]);
    at(Path::new("/dev/null"), &["neither a file nor a block device"]);
    at(Path::new("/sys/kernel/uevent_seqnum"), &["cannot be written", "owner"]);
    at(Path::new("/proc/self/comm"), &["no direct I/O", "ext4 or XFS"]);
    place.config.devices[0].path = directory.path().join("nowhere/device");
    refused(&place.config, &["no directory", "nowhere", "make it"]);
    place.config.devices[0] = place.device(0, 1 << 40);
    refused(&place.config, &["free", "make room there, or ask for less"]);
    assert!(!place.path(0).exists());
    place.config.devices.clear();
    refused(&place.config, &["name at least one"]);
}

/// Whoever is not root may not write what is not its own.
#[test]
fn a_file_that_cannot_be_written_is_refused() {
    let place = filled();
    let path = place.path(0);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    if fs::File::options().write(true).open(&path).is_err() {
        left_alone(&place, &["cannot be written", "owner", "writable"]);
    }
}

/// An error about one device does not keep the others from being themselves.
#[test]
fn a_refusal_leaves_the_other_devices_as_they_were() {
    let mut place = Place::new(Backend::Threads, &[6, 6]);
    let flash = place.open();
    wait(async {
        let group = flash.group(b"a", 1, false).await.unwrap();
        for number in 0..20 {
            group.append(key(number), 0, content(number, 50_000)).await.unwrap();
        }
        group.seal().await.unwrap();
    });
    drop(flash);
    let good = fs::read(place.path(1)).unwrap();
    fs::write(place.path(1), b"a letter to a friend").unwrap();
    let name = place.path(1).display().to_string();
    refused(&place.config, &["not forebay's", &name]);
    // The way out that it names: another file.
    place.config.devices[1] = place.device(2, 6);
    let flash = place.open();
    let there = |flash: &Flash| (0..20).filter(|number| flash.contains(&key(*number))).count();
    assert!((1..20).contains(&there(&flash)), "what was on the first");
    drop(flash);
    fs::write(place.path(1), good).unwrap();
    place.config.devices[1] = place.device(1, 6);
    assert_eq!(there(&place.open()), 20);
}
