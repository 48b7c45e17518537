//! Stores on real files: both I/O backends, threads, restarts, and errors.

use std::time::{Duration, Instant};

use forebay_core::{
    ByteSize,
    streams::{Lifetime, StreamNameError, catalogue::CatalogueError},
};
use forebay_flash::io::Backend;
use forebay_streams::{
    CreateOptions, FullPolicy, OpenOptions, Store, StoreConfig, StoreError, StreamError, WhenHeld,
};

use crate::sim::content;

const KEPT: CreateOptions = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };
/// Generous: the tests' machines are slow.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Waits for what the device's thread does after a call has returned.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn config(directory: &tempfile::TempDir, backend: Backend) -> StoreConfig {
    let capacity = ByteSize::mib(65);
    StoreConfig { backend, ..StoreConfig::new(directory.path().join("store"), capacity) }
}

fn write(store: &Store, name: &str, options: CreateOptions, blocks: u64, length: usize) {
    let mut writer = store.create(name, options).unwrap();
    for block in 0..blocks {
        writer.append(&content(block, length)).unwrap();
    }
    assert_eq!(writer.seal().unwrap().blocks, blocks);
}

fn read(store: &Store, name: &str, options: OpenOptions, length: usize) -> u64 {
    let mut blocks = 0;
    for block in store.open(name, options).unwrap().blocks() {
        assert_eq!(block.unwrap()[..], content(blocks, length)[..]);
        blocks += 1;
    }
    blocks
}

/// Promise 9, on both backends and across a restart, in blocks of the default length.
#[test]
fn a_kept_stream_is_read_back_after_a_restart() {
    for backend in [Backend::Auto, Backend::Threads] {
        let directory = tempfile::tempdir().unwrap();
        let store = config(&directory, backend).open().unwrap();
        let length = usize::try_from(store.block_length()).unwrap();
        assert_eq!(length, (4 << 20) - (12 << 10));
        write(&store, "kept", KEPT, 5, length);
        write(&store, "spill", CreateOptions::default(), 3, length);
        for in_flight in [1, 4] {
            let options = OpenOptions { in_flight, ..OpenOptions::default() };
            assert_eq!(read(&store, "kept", options, length), 5);
        }
        let facts = store.facts();
        assert_eq!(facts.outside_slots, ByteSize(0));
        assert!(facts.device_written.0 * 100 <= facts.written.0 * 101, "{facts:?}");
        drop(store);
        let store = config(&directory, backend).open().unwrap();
        assert_eq!(store.list().len(), 1);
        assert_eq!(read(&store, "kept", OpenOptions::default(), length), 5);
        let consume = OpenOptions { consume: true, ..OpenOptions::default() };
        assert_eq!(read(&store, "kept", consume, length), 5);
        assert!(store.list().is_empty());
        drop(store);
        let store = config(&directory, backend).open().unwrap();
        assert!(store.list().is_empty(), "what was consumed does not return");
        assert_eq!(store.facts().free, store.facts().capacity);
    }
}

/// A consumer that holds every slot gets more, in counted memory; its blocks stay valid.
#[test]
fn a_consumer_that_holds_all_slots_gets_blocks_outside_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = config(&directory, Backend::Auto).open().unwrap();
    write(&store, "s", CreateOptions::default(), 10, 100_000);
    let options = OpenOptions { depth: 3, ..OpenOptions::default() };
    let reader = store.open("s", options).unwrap();
    let held: Vec<_> = reader.blocks().map(Result::unwrap).collect();
    assert_eq!(held.len(), 10);
    assert_eq!(held.iter().filter(|block| block.is_outside_slots()).count(), 7);
    assert!(store.facts().outside_slots.0 >= 7 * 100_000);
    let threads: Vec<_> = (0..)
        .zip(held)
        .map(|(number, block)| {
            std::thread::spawn(move || assert_eq!(block[..], content(number, 100_000)[..]))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    eventually("all slots are back", || {
        let facts = store.facts();
        facts.read_memory_free == facts.read_memory
    });
    // By choice it waits for the slot that another thread drops.
    let options = OpenOptions { depth: 1, when_held: WhenHeld::Wait, ..OpenOptions::default() };
    let mut reader = store.open("s", options).unwrap();
    for number in 0..10 {
        let block = reader.next().unwrap().unwrap();
        assert!(!block.is_outside_slots());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(block[..], content(number, 100_000)[..]);
        });
    }
}

/// Many writers in one family, and readers of their own.
#[test]
fn many_threads_write_and_read_one_family() {
    let directory = tempfile::tempdir().unwrap();
    let store = config(&directory, Backend::Auto).open().unwrap();
    let family = store.family("query", Lifetime::Process).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, family) = (&store, &family);
            scope.spawn(move || {
                for stream in 0..12 {
                    let name = format!("{thread}-{stream}");
                    let mut writer = family.create(&name, FullPolicy::Error).unwrap();
                    for block in 0..5 {
                        writer.append(&content(block, 64 << 10)).unwrap();
                    }
                    writer.seal().unwrap();
                    let options = OpenOptions { depth: 1, ..OpenOptions::default() };
                    assert_eq!(read(store, &name, options, 64 << 10), 5);
                }
            });
        }
    });
    assert_eq!(store.list().len(), 96);
    family.destroy().unwrap();
    assert!(store.list().is_empty());
}

/// A destroy waits for readers up to a timeout, then they get a clear error.
#[test]
fn a_reader_that_races_a_destroy_gets_its_blocks_or_a_clear_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = config(&directory, Backend::Auto).open().unwrap();
    write(&store, "s", CreateOptions::default(), 20, 300_000);
    let options = OpenOptions { depth: 1, ..OpenOptions::default() };
    let mut reader = store.open("s", options).unwrap();
    let first = reader.next().unwrap().unwrap();
    store.destroy("s", Duration::from_millis(10)).unwrap();
    assert_eq!(first[..], content(0, 300_000)[..], "a block is valid while it is held");
    assert_eq!(reader.next().unwrap().unwrap_err(), StreamError::Destroyed("s".into()));
    drop((first, reader));
    write(&store, "s", CreateOptions::default(), 20, 300_000);
    std::thread::scope(|scope| {
        let reader = store.open("s", OpenOptions::default()).unwrap();
        let destroyer = scope.spawn(|| store.destroy("s", TIMEOUT).unwrap());
        assert_eq!(reader.blocks().map(Result::unwrap).count(), 20, "the destroy waits");
        destroyer.join().unwrap();
    });
    eventually("all space is back", || store.facts().free == store.facts().capacity);
}

#[test]
fn a_writer_of_a_destroyed_stream_hears_that_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    let store = config(&directory, Backend::Auto).open().unwrap();
    let mut writers = ["append", "seal"].map(|name| store.create(name, KEPT).unwrap());
    for name in ["append", "seal"] {
        store.destroy(name, Duration::ZERO).unwrap();
    }
    let appended = writers[0].append(b"block").unwrap_err().to_string();
    assert!(appended.contains("\"append\" was destroyed while it was written"), "{appended}");
    let [_, writer] = writers;
    let sealed = writer.seal().unwrap_err().to_string();
    assert!(sealed.contains("\"seal\" was destroyed while it was written"), "{sealed}");
}

/// Bad input: one line that says what and what to do.
#[test]
fn bad_input_is_refused_with_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let store = config(&directory, Backend::Auto).open().unwrap();
    let create = |name: &str| store.create(name, CreateOptions::default()).err().unwrap();
    assert_eq!(create(""), StreamError::Name(StreamNameError::Empty));
    assert_eq!(create(&"x".repeat(129)), StreamError::Name(StreamNameError::TooLong(129)));
    assert!(create("a\nb").to_string().contains("control character"));
    for direction in ['\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}'] {
        let text = create(&format!("a{direction}b")).to_string();
        assert!(text.contains("direction of text") && !text.contains(direction), "{text}");
        assert!(store.family(&format!("a{direction}b"), Lifetime::Kept).is_err());
    }
    let mut writer = store.create("s", KEPT).unwrap();
    assert_eq!(create("s"), CatalogueError::Taken("s".into()).into());
    let long = vec![0; usize::try_from(store.block_length()).unwrap() + 1];
    assert!(matches!(writer.append(&long), Err(StreamError::TooLong { .. })));
    let open = |name: &str, options| store.open(name, options).err().unwrap();
    assert_eq!(open("s", OpenOptions::default()), CatalogueError::Unsealed("s".into()).into());
    assert_eq!(open("t", OpenOptions::default()), CatalogueError::NotFound("t".into()).into());
    writer.append(b"block").unwrap();
    writer.seal().unwrap();
    let deep = open("s", OpenOptions { depth: 1000, ..OpenOptions::default() });
    assert!(deep.to_string().contains("1000 slots"), "{deep}");
    let refused = |config: StoreConfig| match config.open() {
        Err(error) => error,
        Ok(_) => panic!("opened"),
    };
    let other = tempfile::tempdir().unwrap();
    let small = StoreConfig { memory: ByteSize::mib(8), ..config(&other, Backend::Auto) };
    assert!(matches!(refused(small), StoreError::Memory { .. }));
    let tiny = StoreConfig { capacity: ByteSize::mib(2), ..config(&other, Backend::Auto) };
    assert!(refused(tiny).to_string().contains("too small"));
    let file = other.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let on_file = StoreConfig { directory: file, ..config(&other, Backend::Auto) };
    assert!(matches!(refused(on_file), StoreError::Directory { .. }));
    let in_use = refused(config(&directory, Backend::Auto)).to_string();
    assert!(in_use.contains("in use") || in_use.contains("locked"), "{in_use}");
}

/// The slots of a reader that was closed in the middle of its reads come back.
#[test]
fn a_reader_opens_right_after_another_was_closed() {
    let directory = tempfile::tempdir().unwrap();
    let store = config(&directory, Backend::Auto).open().unwrap();
    let mut writer = store.create("s", CreateOptions::default()).unwrap();
    for _ in 0..6 {
        writer.append(&vec![7; 1 << 20]).unwrap();
    }
    writer.seal().unwrap();
    let depths = (1..100).map(|depth| OpenOptions { depth, ..OpenOptions::default() });
    let deepest = depths.take_while(|options| store.open("s", *options).is_ok()).last().unwrap();
    for time in 0..100 {
        let reader = store.open("s", deepest);
        assert!(reader.is_ok(), "time {time}: {}", reader.err().unwrap());
    }
}

/// Promise 9: a smaller capacity cuts off no stream that is kept. What ends with the process may be
/// cut off, and so may regions that no stream uses any more.
#[test]
fn a_store_does_not_become_smaller_than_its_kept_streams() {
    for backend in [Backend::Auto, Backend::Threads] {
        let directory = tempfile::tempdir().unwrap();
        let sized = |capacity| StoreConfig { capacity, ..config(&directory, backend) };
        let large = ByteSize::mib(65);
        let store = sized(large).open().unwrap();
        let length = usize::try_from(store.block_length()).unwrap();
        write(&store, "a", KEPT, 3, length);
        write(&store, "b", KEPT, 6, length);
        write(&store, "spill", CreateOptions::default(), 4, length);
        drop(store);
        let path = directory.path().join("store/store.flash");
        let before = std::fs::read(&path).unwrap();
        let small = ByteSize::mib(21);
        let error = sized(small).open().err().expect("refused").to_string();
        assert!(error.contains("streams lie beyond 21 MiB"), "{error}");
        assert!(std::fs::read(&path).unwrap() == before, "the refusal changes nothing");
        let (_, least) = error.rsplit_once("at least ").unwrap();
        let least: ByteSize = least.parse().unwrap();
        assert!(small < least && least < large, "{error}");
        assert!(sized(ByteSize(least.0 - 1)).open().is_err(), "{least} is the least");
        let store = sized(least).open().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), least.0);
        assert_eq!(read(&store, "a", OpenOptions::default(), length), 3);
        assert_eq!(read(&store, "b", OpenOptions::default(), length), 6);
        store.destroy("b", TIMEOUT).unwrap();
        drop(store);
        let store = sized(small).open().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), small.0);
        assert_eq!(read(&store, "a", OpenOptions::default(), length), 3);
    }
}
