//! Leases that end while their store is open.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay_core::streams::{Lifetime, catalogue::CatalogueError};
use forebay_streams::{CreateOptions, FullPolicy, OpenOptions, Store, StreamError};
use futures::FutureExt as _;

use crate::sim::{SimEngine, content, new_disk, open_store_with};

const LEASE: Lifetime = Lifetime::Lease(Duration::from_secs(5));
const REGIONS: u32 = 8;

/// A store at a time that a test sets, in milliseconds.
fn open_at(now_ms: &Arc<AtomicU64>) -> (Arc<SimEngine>, Store) {
    let clock = Arc::clone(now_ms);
    open_store_with(new_disk(1, REGIONS), move || clock.load(Relaxed))
}

/// Writes a stream that is leased for 5 s.
fn write(engine: &SimEngine, store: &Store, name: &str, blocks: u64) {
    let options = CreateOptions { lifetime: LEASE, full: FullPolicy::Error };
    let mut writer = store.create(name, options).unwrap();
    let length = usize::try_from(store.block_length()).unwrap();
    for block in 0..blocks {
        engine.run(writer.append_async(&content(block, length))).unwrap();
    }
    engine.run(writer.seal_async()).unwrap();
}

#[test]
fn a_stream_whose_lease_has_ended_is_neither_listed_nor_opened() {
    let now_ms = Arc::new(AtomicU64::new(1000));
    let (engine, store) = open_at(&now_ms);
    write(&engine, &store, "listed", 1);
    write(&engine, &store, "opened", 1);
    let options = OpenOptions { depth: 1, ..OpenOptions::default() };
    let mut reader = store.open("opened", options).unwrap();
    now_ms.store(5999, Relaxed);
    assert_eq!(store.list().len(), 2, "the leases have not ended");
    now_ms.store(6000, Relaxed);
    let error = store.open("opened", options).err().unwrap();
    assert_eq!(error, StreamError::Catalogue(CatalogueError::NotFound("opened".into())));
    assert!(store.list().is_empty());
    let block = engine.run(reader.next_async()).unwrap().unwrap();
    let length = usize::try_from(store.block_length()).unwrap();
    assert_eq!(block[..], content(0, length)[..], "a reader that has it open may finish");
    assert!(engine.run(reader.next_async()).is_none());
    drop((block, reader));
    engine.settle();
    assert_eq!(store.facts().free, store.facts().capacity, "all space is back");
}

#[test]
fn an_append_takes_the_space_of_leases_that_have_ended() {
    for full in [FullPolicy::Error, FullPolicy::Wait] {
        let now_ms = Arc::new(AtomicU64::new(1000));
        let (engine, store) = open_at(&now_ms);
        let length = usize::try_from(store.block_length()).unwrap();
        let mut writer = store.create("w", CreateOptions { full, ..Default::default() }).unwrap();
        write(&engine, &store, "leased", u64::from(REGIONS) - 2);
        now_ms.store(6000, Relaxed);
        for block in 0..u64::from(REGIONS) {
            let appended = engine.run(writer.append_async(&content(block, length)));
            appended.unwrap_or_else(|error| panic!("{full:?}, block {block}: {error}"));
        }
        engine.run(writer.seal_async()).unwrap();
        assert_eq!(store.list().len(), 1);
    }
}

/// The end of a lease wakes a writer that waits, also of a lease that began after the wait.
#[test]
fn the_end_of_a_lease_wakes_a_waiting_writer() {
    for is_later in [false, true] {
        let engine = SimEngine::open(new_disk(1, REGIONS));
        let clock = Arc::downgrade(&engine);
        let now_ms = move || clock.upgrade().map_or(0, |engine| engine.now_ms());
        let store = engine.run(Store::on_engine(Arc::clone(&engine) as _, now_ms)).unwrap();
        let length = usize::try_from(store.block_length()).unwrap();
        let options = CreateOptions { full: FullPolicy::Wait, ..CreateOptions::default() };
        let mut waiting = store.create("waiting", options).unwrap();
        let options = CreateOptions { lifetime: LEASE, full: FullPolicy::Error };
        let mut leased = Some(store.create("leased", options).unwrap());
        // The last region has room for the record.
        for block in 0..u64::from(REGIONS) - 2 {
            let length = if block == u64::from(REGIONS) - 3 { 1000 } else { length };
            let bytes = content(block, length);
            engine.run(leased.as_mut().unwrap().append_async(&bytes)).unwrap();
        }
        let mut seal = || engine.run(leased.take().unwrap().seal_async()).unwrap();
        if !is_later {
            seal();
        }
        for block in 0..2 {
            engine.run(waiting.append_async(&content(block, length))).unwrap();
        }
        let bytes = content(3, length);
        let mut append = std::pin::pin!(waiting.append_async(&bytes));
        if is_later {
            for _ in 0..3 {
                assert!(append.as_mut().now_or_never().is_none(), "the store is full");
                engine.settle();
            }
            seal();
        }
        engine.run(append).unwrap();
        assert!(engine.now_ms() >= 5000, "the lease has ended");
        assert!(store.list().iter().all(|info| info.name.as_str() == "waiting"));
    }
}

/// A family outlives its streams, so that the end of a lease is recorded in it.
#[test]
fn an_append_takes_the_space_of_ended_leases_of_a_family() {
    let now_ms = Arc::new(AtomicU64::new(1000));
    let (engine, store) = open_at(&now_ms);
    let length = usize::try_from(store.block_length()).unwrap();
    let mut writer = store.create("w", CreateOptions::default()).unwrap();
    let family = store.family("family", LEASE).unwrap();
    let mut leased = family.create("leased", FullPolicy::Error).unwrap();
    for block in 0..u64::from(REGIONS) - 2 {
        engine.run(leased.append_async(&content(block, length))).unwrap();
    }
    engine.run(leased.seal_async()).unwrap();
    now_ms.store(6000, Relaxed);
    for block in 0..u64::from(REGIONS) - 2 {
        engine.run(writer.append_async(&content(block, length))).unwrap();
    }
    engine.run(writer.seal_async()).unwrap();
}
