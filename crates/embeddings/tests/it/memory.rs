//! Memory: the limit covers rows, bookkeeping and kept buffers, and the process grows by no more.

use forebay_core::{ByteSize, embeddings::PolicyKind};
use forebay_embeddings::{Bags, OpenError, Options, Pooling, Source, Tables, format::Dtype};

use crate::{lookups::numbered, open};

/// Resident set of this process in bytes.
fn resident_set() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// "At most 48 bytes of bookkeeping per exact row", in the resident set and not in our own count.
#[test]
fn a_million_rows_cost_at_most_48_bytes_each_beside_themselves() {
    const WIDTH: u64 = 16 * 4;
    const ROWS: u64 = 4_000_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse");
    // A sparse file: its rows are zeros, and reading them allocates nothing on disk.
    std::fs::File::create(&path).unwrap().set_len(ROWS * WIDTH).unwrap();
    let source = Source::file(&path).raw(Dtype::F32, 16);
    let memory = 120_000_000;
    let before = resident_set();
    let tables = Tables::open(&[source], &Options::new(ByteSize(memory))).unwrap();
    let mut out = vec![0.0; 16 * 8192];
    for batch in 0..180 {
        let keys: Vec<i64> = (batch * 8192..(batch + 1) * 8192).collect();
        tables.lookup(&[Bags::single(&keys)], Pooling::Sum, &mut out).unwrap();
    }
    let grown = resident_set() - before;
    let stats = tables.stats();
    assert!(stats.resident_rows > 1_000_000, "{stats:?}");
    assert!(stats.bytes() <= memory, "{stats:?}");
    assert!(grown <= memory * 105 / 100 + (16 << 20), "{grown} bytes for {stats:?}");
    let books = stats.directory_bytes + stats.ghost_bytes + stats.tuning_bytes;
    let per_row = books as f64 / stats.resident_rows as f64;
    assert!(per_row <= 48.0 + 2.0, "{per_row} bytes, with the tuning: {stats:?}");
    let grown = grown - stats.buffer_bytes - stats.tuning_bytes;
    let per_row = grown as f64 / stats.resident_rows as f64 - WIDTH as f64;
    assert!(per_row <= 52.0, "{per_row:.1} bytes of the resident set per row beside {WIDTH}");
}

/// "Memory too small (say how much it takes)".
#[test]
fn too_little_memory_is_rejected_with_the_least_that_works() {
    let directory = tempfile::tempdir().unwrap();
    let sources = [
        numbered(directory.path(), 60_000, 30),
        numbered(directory.path(), 50_000, 30),
        numbered(directory.path(), 40_000, 7),
    ];
    for &policy in PolicyKind::ALL {
        for sources in [&sources[..], &sources[..2], &sources[..1]] {
            let open = |memory| {
                let options = Options { policy, ..Options::new(ByteSize(memory)) };
                Tables::open(sources, &options)
            };
            let Err(OpenError::TooLittle { memory, least }) = open(1) else {
                panic!("{policy}: a byte is too little")
            };
            let text = open(1).unwrap_err().to_string();
            assert!(memory == 1 && text.contains(&format!("give at least {least}")), "{text}");
            assert!(least < 1 << 20, "{policy}: {least}");
            let tables = open(least).unwrap();
            let key = [7];
            let bags = vec![Bags::single(&key); sources.len()];
            for round in 0..2 {
                let mut out = vec![0.0; tables.columns()];
                tables.lookup(&bags, Pooling::Sum, &mut out).unwrap();
                let hits = tables.stats().hits;
                assert!(round == 0 || hits > 0, "{policy}: a row fits into {least}");
            }
        }
    }
}

/// What a lookup leaves behind for the next one is bounded, and reported.
#[test]
fn buffers_of_large_lookups_are_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let source = numbered(directory.path(), 60_000, 64);
    let tables = open(&[source], Options::new(ByteSize::ZERO), 100_000);
    let keys: Vec<i64> = (0..40_000).collect();
    let mut out = vec![0.0; 64 * keys.len()];
    for count in [10, 40_000, 10] {
        let (keys, out) = (&keys[..count], &mut out[..64 * count]);
        tables.lookup(&[Bags::single(keys)], Pooling::Sum, out).unwrap();
        let kept = tables.stats().buffer_bytes;
        assert!(kept <= 1 << 20, "{kept} bytes after {count} keys");
        assert!(kept > 0 || count > 10, "small buffers are kept");
    }
}
