//! Stores whose device was overwritten from outside, or has no room for a record: what was sealed
//! is reported lost, and what was destroyed stays destroyed.

use std::{
    fs::{File, OpenOptions as FileOptions},
    os::unix::fs::FileExt as _,
    path::Path,
    time::Duration,
};

use forebay_core::{
    ByteSize,
    streams::{Lifetime, catalogue::CatalogueError},
};
use forebay_streams::{
    CreateOptions, FullPolicy, OpenOptions, Store, StoreConfig, StreamError, Writer,
};

use crate::sim::content;

const KEPT: CreateOptions = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };
const LEASE: Lifetime = Lifetime::Lease(Duration::from_hours(1));
/// Before the regions, which are 4 MiB long.
const HEAD: u64 = 1 << 20;

fn open(directory: &Path) -> Store {
    StoreConfig::new(directory, ByteSize::mib(65)).open().unwrap()
}

fn write(mut writer: Writer, blocks: u64) {
    for block in 0..blocks {
        writer.append(&content(block, 100_000)).unwrap();
    }
    writer.seal().unwrap();
}

/// Overwrites all regions.
fn overwrite(directory: &Path) {
    let file = FileOptions::new().write(true).open(directory.join("store.flash")).unwrap();
    let length = file.metadata().unwrap().len();
    for at in (HEAD..length).step_by(1 << 20) {
        file.write_all_at(&vec![0; 1 << 20], at).unwrap();
    }
}

/// Names of the streams, and how many of their blocks are lost.
fn listed(store: &Store) -> Vec<(String, u64)> {
    let streams = store.list().into_iter();
    let lost = streams.map(|info| {
        let lost = info.lost.iter().map(|range| range.end - range.start).sum();
        (info.name.to_string(), lost)
    });
    lost.collect()
}

/// Promise 9: sealed streams of which nothing is left on the device are lost, and nothing that was
/// destroyed is.
#[test]
fn streams_whose_records_are_overwritten_are_lost_until_they_are_destroyed() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let family = store.family("f", Lifetime::Kept).unwrap();
    write(store.create("alone", KEPT).unwrap(), 3);
    write(family.create("one", FullPolicy::Error).unwrap(), 2);
    write(family.create("empty", FullPolicy::Error).unwrap(), 0);
    let leased = CreateOptions { lifetime: LEASE, ..KEPT };
    write(store.create("leased", leased).unwrap(), 1);
    let ended = CreateOptions { lifetime: Lifetime::Lease(Duration::from_millis(1)), ..KEPT };
    write(store.create("ended", ended).unwrap(), 1);
    write(store.create("process", CreateOptions::default()).unwrap(), 1);
    for (name, lifetime) in [("destroyed", Lifetime::Kept), ("consumed", LEASE)] {
        write(store.create(name, CreateOptions { lifetime, ..KEPT }).unwrap(), 2);
    }
    write(family.create("destroyed too", FullPolicy::Error).unwrap(), 2);
    store.destroy("destroyed", Duration::ZERO).unwrap();
    store.destroy("destroyed too", Duration::ZERO).unwrap();
    let consume = OpenOptions { consume: true, ..OpenOptions::default() };
    assert_eq!(store.open("consumed", consume).unwrap().blocks().count(), 2);
    let dropped = store.family("dropped", Lifetime::Kept).unwrap();
    write(dropped.create("dropped", FullPolicy::Error).unwrap(), 1);
    dropped.destroy().unwrap();
    write(store.create("again", KEPT).unwrap(), 1);
    store.destroy("again", Duration::ZERO).unwrap();
    write(store.create("again", KEPT).unwrap(), 2);
    drop((family, store));

    // Without damage, all are there.
    let store = open(directory.path());
    let whole = ["again", "alone", "empty", "leased", "one"].map(|name| (name.to_owned(), 0));
    assert_eq!(listed(&store), whole);
    let lifetime = |store: &Store, name: &str| {
        store.list().into_iter().find(|info| info.name.as_str() == name).unwrap().lifetime
    };
    assert_eq!((lifetime(&store, "leased"), lifetime(&store, "one")), (LEASE, Lifetime::Kept));
    drop(store);
    overwrite(directory.path());

    let lost = [("again", 2), ("alone", 3), ("empty", 1), ("leased", 1), ("one", 2)];
    let mut lost: Vec<_> = lost.map(|(name, blocks)| (name.to_owned(), blocks)).into();
    for _ in 0..2 {
        let store = open(directory.path());
        assert_eq!(listed(&store), lost);
        assert_eq!(lifetime(&store, "leased"), LEASE);
        for (name, _) in &lost {
            let error = store.open(name, OpenOptions::default()).err().unwrap();
            let is_lost = matches!(&error, StreamError::Catalogue(error) if error.is_lost());
            assert!(is_lost, "{name}: {error}");
        }
        let taken = store.create("alone", KEPT).err().unwrap();
        assert!(matches!(taken, StreamError::Catalogue(CatalogueError::Taken(_))), "{taken}");
    }
    let store = open(directory.path());
    store.destroy("alone", Duration::ZERO).unwrap();
    store.destroy("leased", Duration::ZERO).unwrap();
    write(store.create("alone", KEPT).unwrap(), 1);
    drop(store);
    let store = open(directory.path());
    lost.retain(|(name, _)| name != "leased");
    lost[1].1 = 0;
    assert_eq!(listed(&store), lost);
    assert_eq!(store.open("alone", OpenOptions::default()).unwrap().blocks().count(), 1);
}

/// A list that is gone or damaged costs nothing but that report.
#[test]
fn a_damaged_list_of_seals_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.sealed");
    for damage in 0..4 {
        let store = open(directory.path());
        let name = format!("stream {damage}");
        write(store.create(&name, KEPT).unwrap(), 1);
        drop(store);
        match damage {
            0 => std::fs::remove_file(&path).unwrap(),
            1 => std::fs::write(&path, [0xff; 1000]).unwrap(),
            2 => File::options().write(true).open(&path).unwrap().set_len(50).unwrap(),
            _ => {
                std::fs::remove_file(&path).unwrap();
                std::fs::create_dir(&path).unwrap();
            }
        }
        let store = open(directory.path());
        assert_eq!(listed(&store).len(), damage + 1);
        assert!(listed(&store).iter().all(|(_, lost)| *lost == 0));
    }
}

/// The device has no room for the record of a destruction, before the stream's own regions are free
/// or also after that.
#[test]
fn a_stream_of_a_full_family_is_destroyed_for_good() {
    for has_region_alone in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let family = store.family("f", Lifetime::Kept).unwrap();
        write(family.create("a", FullPolicy::Error).unwrap(), 1);
        let mut filler = family.create("filler", FullPolicy::Error).unwrap();
        if !has_region_alone {
            filler.append(b"in the region of a").unwrap();
        }
        // Blocks of this length leave no room in a region.
        let block = content(9, usize::try_from(store.block_length()).unwrap());
        let full = (0..17).find_map(|_| filler.append(&block).err()).unwrap();
        assert!(matches!(full, StreamError::Full { .. }), "{full}");
        store.destroy("a", Duration::ZERO).unwrap();
        // A seal needs room, too: a full store is the same error as for an append.
        let sealed = filler.seal();
        if has_region_alone {
            assert_eq!(sealed.map(|info| info.lost), Ok(Vec::new()));
        } else {
            assert!(matches!(sealed, Err(StreamError::Full { .. })), "{sealed:?}");
        }
        drop((family, store));
        for _ in 0..2 {
            let store = open(directory.path());
            let left: Vec<_> =
                has_region_alone.then(|| ("filler".to_owned(), 0)).into_iter().collect();
            assert_eq!(listed(&store), left);
        }
    }
}
