//! Lookups: every row is right and memory is never exceeded, for all policies and random requests.

use forebay_core::{ByteSize, embeddings::PolicyKind};
use forebay_embeddings::{
    Bags, Io, LookupError, Options, Pooling, Source, Stats, Tables, format::Dtype,
};

use crate::{
    model::{OwnedBags, Written, pooled},
    open, seeds,
};

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn options(random: &mut fastrand::Rng) -> Options {
    let policy = PolicyKind::ALL[random.usize(..PolicyKind::ALL.len())];
    let io = if random.bool() { Io::Auto } else { Io::Pread };
    Options { policy, io, direct: random.bool(), ..Options::new(ByteSize::ZERO) }
}

/// Below 32 MiB, up to 1 MiB of buffers comes on top.
pub fn is_within_memory(stats: &Stats) -> bool {
    stats.buffer_bytes <= 1 << 20 && stats.bytes() - stats.buffer_bytes <= stats.memory_bytes
}

/// The memory limit is never exceeded, and every row is right.
#[test]
fn pooled_bags_match_the_model_bit_for_bit_and_memory_is_bounded() {
    for seed in seeds(60) {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let written: Vec<Written> = (0..random.usize(1..6))
            .map(|table| {
                let name = format!("table{table}");
                Written::random(&mut random, directory.path(), &name, Dtype::F32)
            })
            .collect();
        let sources: Vec<Source> = written.iter().map(|table| table.source.clone()).collect();
        let size: usize = written.iter().map(|table| table.rows.concat().len()).sum();
        let memory = random.u64(0..size as u64 + 1000);
        let tables = open(&sources, options(&mut random), memory);
        let mut expected_keys = 0;
        for _ in 0..30 {
            let samples = random.usize(0..20);
            let requested: Vec<OwnedBags> = written
                .iter()
                .map(|table| OwnedBags::random(&mut random, table.rows.len(), samples))
                .collect();
            let pooling = [Pooling::Sum, Pooling::Mean, Pooling::Max][random.usize(0..3)];
            let bags: Vec<Bags<'_>> = requested.iter().map(OwnedBags::bags).collect();
            let mut out = vec![7.0; samples * tables.columns()];
            tables.lookup(&bags, pooling, &mut out).unwrap();
            let mut expected = Vec::new();
            for (table, requested) in written.iter().zip(&requested) {
                for sample in 0..samples {
                    expected.extend(pooled(table, requested.rows(sample), pooling));
                    expected_keys += requested.rows(sample).count() as u64;
                }
            }
            assert_eq!(bits(&out), bits(&expected), "seed {seed}, {pooling:?}");
            let stats = tables.stats();
            assert!(is_within_memory(&stats), "seed {seed}: {stats:?}");
            assert_eq!(stats.keys, expected_keys, "seed {seed}");
            assert!(stats.hits <= stats.keys && stats.perfect <= stats.samples, "{stats:?}");
            assert!(stats.keys - stats.hits >= stats.rows_read || stats.pinned_tables > 0);
        }
    }
}

#[test]
fn gathered_rows_have_the_bytes_of_the_file_in_any_dtype() {
    for seed in seeds(40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let written: Vec<Written> = (0..random.usize(1..4))
            .map(|table| {
                let (name, dtype) = (format!("t{table}"), Dtype::ALL[random.usize(0..4)]);
                Written::random(&mut random, directory.path(), &name, dtype)
            })
            .collect();
        let sources: Vec<Source> = written.iter().map(|table| table.source.clone()).collect();
        let memory = random.u64(0..20_000);
        let tables = open(&sources, options(&mut random), memory);
        for _ in 0..20 {
            let samples = random.usize(0..20);
            let requested: Vec<OwnedBags> = written
                .iter()
                .map(|table| OwnedBags::random(&mut random, table.rows.len(), samples))
                .collect();
            let bags: Vec<Bags<'_>> = requested.iter().map(OwnedBags::bags).collect();
            let mut expected = Vec::new();
            for (table, requested) in written.iter().zip(&requested) {
                for key in &requested.keys {
                    let row = &table.rows[usize::try_from(*key).unwrap()];
                    let padding = Some(*key) == requested.padding;
                    expected.extend(if padding { vec![3; row.len()] } else { row.clone() });
                }
            }
            let mut out = vec![3; expected.len()];
            tables.gather(&bags, &mut out).unwrap();
            assert_eq!(out, expected, "seed {seed}");
        }
        let floats = written.iter().all(|table| table.dtype == Dtype::F32);
        let none: Vec<Bags<'_>> = written.iter().map(|_| Bags::single(&[])).collect();
        let pooled = tables.lookup(&none, Pooling::Sum, &mut []);
        assert_eq!(matches!(pooled, Err(LookupError::Dtype { .. })), !floats, "seed {seed}");
    }
}

/// A table of `rows` rows of `dimension` numbers, each row filled with its row number.
pub fn numbered(directory: &std::path::Path, rows: u16, dimension: usize) -> Source {
    let path = directory.join(format!("numbered-{rows}-{dimension}"));
    let row = |row: u16| f32::from(row).to_le_bytes().repeat(dimension);
    std::fs::write(&path, (0..rows).flat_map(row).collect::<Vec<u8>>()).unwrap();
    Source::file(path).raw(Dtype::F32, dimension as u64)
}

#[test]
fn a_pinned_table_is_read_once_and_block_by_block() {
    let directory = tempfile::tempdir().unwrap();
    let source = numbered(directory.path(), 1024, 16);
    let tables = Tables::open(&[source], &Options::new(ByteSize::kib(65))).unwrap();
    assert_eq!(tables.stats().resident_bytes, 0, "opening reads no rows");
    let mut out = [0.0; 16];
    for key in [0, 1, 63, 0, 1023, 1000] {
        tables.lookup(&[Bags::single(&[key])], Pooling::Sum, &mut out).unwrap();
        assert!(out.iter().all(|number| *number == key as f32));
    }
    let stats = tables.stats();
    assert_eq!((stats.reads, stats.rows_read), (2, 128), "64 rows lie in a block: {stats:?}");
    assert_eq!((stats.samples, stats.perfect, stats.hits), (6, 4, 4), "{stats:?}");
}

/// All missing rows are read in one batch, each once, and neighbours together.
#[test]
fn a_batch_reads_each_missing_row_once_and_neighbours_together() {
    let directory = tempfile::tempdir().unwrap();
    let source = numbered(directory.path(), 60_000, 64);
    for io in [Io::Auto, Io::Pread] {
        let options = Options { io, ..Options::new(ByteSize::kib(64)) };
        let tables = Tables::open(std::slice::from_ref(&source), &options).unwrap();
        let keys = [5, 6, 5, 7, 40_000, 6, 40_001, 59_999];
        let mut out = [0.0; 8 * 64];
        tables.lookup(&[Bags::single(&keys)], Pooling::Sum, &mut out).unwrap();
        for (row, key) in out.chunks(64).zip(keys) {
            assert!(row.iter().all(|number| *number == key as f32));
        }
        let stats = tables.stats();
        assert_eq!((stats.rows_read, stats.reads), (6, 3), "{io:?}: {stats:?}");
    }
}

/// Invariant: a key that a request hit is never evicted by that same request.
#[test]
fn a_row_that_a_sample_hit_is_still_resident_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let source = numbered(directory.path(), 5000, 16);
    for &policy in PolicyKind::ALL {
        let options = Options { policy, ..Options::new(ByteSize::ZERO) };
        let tables = open(std::slice::from_ref(&source), options, 64 * 200);
        let mut random = fastrand::Rng::with_seed(3);
        let mut out = [0.0; 16];
        for round in 0..200 {
            let hit = random.i64(0..300);
            let mut look_up = |keys: &[i64]| {
                tables.lookup(&[Bags::even(keys, 1, keys.len())], Pooling::Sum, &mut out).unwrap();
                tables.stats()
            };
            let before = look_up(&[hit]);
            let bag: Vec<i64> =
                [hit].into_iter().chain((0..50).map(|_| random.i64(0..5000))).collect();
            let during = look_up(&bag);
            let was_hit = during.hits > before.hits;
            let after = look_up(&[hit]);
            assert!(!was_hit || after.hits > during.hits, "{policy}, round {round}");
            if was_hit && during.hits - before.hits == 1 {
                assert_eq!(after.rows_read, during.rows_read, "{policy}, round {round}");
            }
        }
    }
}

/// A lookup with several threads gives the same result as a small one.
#[test]
fn large_lookups_are_divided_among_threads_correctly() {
    let directory = tempfile::tempdir().unwrap();
    let sources = [numbered(directory.path(), 900, 3), numbered(directory.path(), 60_000, 2)];
    for memory in [ByteSize::kib(64), ByteSize::mib(4)] {
        let tables = Tables::open(&sources, &Options::new(memory)).unwrap();
        let mut random = fastrand::Rng::with_seed(4);
        let keys: [Vec<i64>; 2] =
            [900, 60_000].map(|rows| (0..50_001).map(|_| random.i64(0..rows)).collect());
        let mut out = vec![0.0; 5 * 50_001];
        for _ in 0..2 {
            out.fill(-1.0);
            let bags = keys.each_ref().map(|keys| Bags::single(keys));
            tables.lookup(&bags, Pooling::Sum, &mut out).unwrap();
            let (first, second) = out.split_at(3 * 50_001);
            let rows = first.chunks(3).zip(second.chunks(2));
            for (sample, (one, other)) in rows.enumerate() {
                let [a, b] = keys.each_ref().map(|keys| keys[sample] as f32);
                assert_eq!((one, other), (&[a; 3][..], &[b; 2][..]), "sample {sample}");
            }
        }
        let stats = tables.stats();
        assert_eq!((stats.samples, stats.keys), (2 * 50_001, 4 * 50_001));
        assert!(is_within_memory(&stats), "{stats:?}");
    }
}

#[test]
fn invalid_arguments_are_rejected_before_any_read() {
    let directory = tempfile::tempdir().unwrap();
    let sources = [numbered(directory.path(), 10, 2), numbered(directory.path(), 20, 3)];
    let tables = Tables::open(&sources, &Options::new(ByteSize::mib(1))).unwrap();
    let one = Bags::single(&[1]);
    let look_up = |bags: &[Bags<'_>], length| {
        let mut out = vec![0.0; length];
        tables.lookup(bags, Pooling::Sum, &mut out).unwrap_err().to_string()
    };
    assert!(look_up(&[one], 5).contains("bags for 1 tables; give bags for all 2"));
    assert!(look_up(&[one, Bags::single(&[1, 2])], 5).contains("2 bags for table 1"));
    assert!(look_up(&[one, Bags::single(&[20])], 5).contains("key 20 at index 0 of table 1"));
    assert!(look_up(&[Bags::single(&[-3]), one], 5).contains("key -3"));
    assert!(look_up(&[one, one], 6).contains("length 6 for bags that need 5"));
    assert_eq!(tables.stats().lookups, 0);
    assert_eq!(tables.stats().rows_read, 0);
}

#[test]
fn empty_bags_give_zeros_and_no_samples_give_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let source = numbered(directory.path(), 10, 4);
    let tables = Tables::open(&[source], &Options::new(ByteSize::ZERO)).unwrap();
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Max] {
        let mut out = [9.0; 8];
        tables.lookup(&[Bags::from_starts(&[3], &[0, 0])], pooling, &mut out).unwrap();
        assert_eq!(out, [0.0, 0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0]);
        tables.lookup(&[Bags::single(&[])], pooling, &mut []).unwrap();
    }
    assert_eq!(tables.stats().resident_rows, 0, "no row fits into memory");
}
