//! Limits: many writers of one family, and the memory of a store, counted by the allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use forebay_core::{ByteSize, streams::Lifetime};
use forebay_streams::{CreateOptions, FullPolicy, OpenOptions, StoreConfig};

use crate::sim::content;

/// Environment variable of the process whose memory is counted.
const MARK: &str = "FOREBAY_TEST_COUNTED_STORE";

/// Counts the bytes that are allocated on the heap. The buffers of a store are mapped, and counted
/// by the store itself.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator that passes every call on")]
// SAFETY: every call is the system allocator's; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// A thousand writers at a time in one family: their streams fill regions together.
#[test]
fn a_thousand_writers_of_one_family_share_regions() {
    const WRITERS: u64 = 1000;
    const LENGTH: usize = 20_000;
    let directory = tempfile::tempdir().unwrap();
    let store = StoreConfig::new(directory.path(), ByteSize::mib(129)).open().unwrap();
    let family = store.family("query", Lifetime::Process).unwrap();
    let mut writers: Vec<_> = (0..WRITERS)
        .map(|number| family.create(&number.to_string(), FullPolicy::Error).unwrap())
        .collect();
    for block in 0..3 {
        for (writer, number) in writers.iter_mut().zip(0..) {
            writer.append(&content(number * 3 + block, LENGTH)).unwrap();
        }
    }
    for writer in writers {
        assert_eq!(writer.seal().unwrap().blocks, 3);
    }
    let facts = store.facts();
    let used = facts.capacity.0 - facts.free.0;
    let payload = WRITERS * 3 * LENGTH as u64;
    // A block of 20,000 bytes is padded to 20,480; regions at both ends are partly filled.
    assert!(used < payload * 5 / 4, "{used} bytes of the device for {payload}");
    for number in [0, 1, 499, WRITERS - 1] {
        let options = OpenOptions { depth: 2, ..OpenOptions::default() };
        let blocks = store.open(&number.to_string(), options).unwrap().blocks();
        let mut count = 0;
        for (block, at) in blocks.zip(0..) {
            assert_eq!(block.unwrap()[..], content(number * 3 + at, LENGTH)[..]);
            count += 1;
        }
        assert_eq!(count, 3);
    }
    family.destroy().unwrap();
    assert_eq!(store.facts().free, store.facts().capacity);
}

/// Promise 6: with four streams open, a store holds its `memory` and 1 MiB of the heap at most.
///
/// Other tests may run in this process, so the store has one of its own.
#[test]
fn the_memory_of_a_store_is_what_it_was_given() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "limits::store_in_a_process_of_its_own", "--ignored", "--nocapture"]);
    let output = child.env(MARK, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

/// Run by the test above.
#[test]
#[ignore = "child process of another test"]
fn store_in_a_process_of_its_own() {
    if std::env::var_os(MARK).is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let before = HELD.load(Relaxed);
    let config = StoreConfig::new(directory.path(), ByteSize::mib(257));
    let store = config.open().unwrap();
    let length = usize::try_from(store.block_length()).unwrap();
    let payload = content(1, length);
    let heap = || HELD.load(Relaxed).saturating_sub(before + payload.capacity());
    let mut writers: Vec<_> = (0..4)
        .map(|number| store.create(&number.to_string(), CreateOptions::default()).unwrap())
        .collect();
    let mut most = 0;
    for _ in 0..12 {
        for writer in &mut writers {
            writer.append(&payload).unwrap();
            most = most.max(heap());
        }
    }
    for writer in writers {
        writer.seal().unwrap();
    }
    let options = OpenOptions { depth: 2, ..OpenOptions::default() };
    let mut readers: Vec<_> =
        (0..4).map(|number| store.open(&number.to_string(), options).unwrap()).collect();
    for _ in 0..12 {
        for reader in &mut readers {
            assert_eq!(reader.next().unwrap().unwrap().len(), length);
            most = most.max(heap());
        }
    }
    let facts = store.facts();
    assert_eq!(facts.outside_slots, ByteSize(0));
    let buffers = facts.write_memory.0 + facts.read_memory.0;
    // Buffers for headers, footers and records are 4 MiB.
    assert!(buffers + (4 << 20) <= config.memory.0, "{facts:?}");
    assert!(most <= 1 << 20, "{most} bytes of the heap");
}
