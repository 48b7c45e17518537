//! Concurrent lookups and replacements: no row is torn, and none is older than at the start of its
//! lookup.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    thread,
};

use forebay_core::{ByteSize, embeddings::PolicyKind};
use forebay_embeddings::{Bags, Io, Options, Pooling, Source, format::Dtype};

use crate::{lookups::is_within_memory, open, seeds};

const ROWS: usize = 3000;
/// More than a block per row, so that torn rows would be likely.
const DIMENSION: usize = 1200;

/// A row filled with a number made of its row number and version.
fn row(row: usize, version: u32) -> Vec<u8> {
    let number = (row * 1000) as f32 + version as f32;
    number.to_le_bytes().repeat(DIMENSION)
}

fn table(version: u32) -> Vec<u8> {
    (0..ROWS).flat_map(|number| row(number, version)).collect()
}

/// Lookups concurrent with replacements see no torn row.
#[test]
fn no_row_is_torn_or_stale_during_replacements() {
    for seed in seeds(4) {
        let mut random = fastrand::Rng::with_seed(seed);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        fs::write(&path, table(0)).unwrap();
        let source = Source::file(&path).raw(Dtype::F32, DIMENSION as u64);
        let memory = [0, 200, ROWS as u64 / 2, 2 * ROWS as u64][usize::try_from(seed).unwrap() % 4];
        let options = Options {
            io: if random.bool() { Io::Auto } else { Io::Pread },
            policy: [PolicyKind::Group, PolicyKind::Lru][random.usize(0..2)],
            ..Options::new(ByteSize::ZERO)
        };
        let tables = open(std::slice::from_ref(&source), options, memory * (DIMENSION as u64) * 4);
        // The version of each row when its last replacement returned.
        let versions: Vec<AtomicU32> = (0..ROWS).map(|_| AtomicU32::new(0)).collect();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..3 {
                let (tables, versions, over) = (&tables, &versions, &over);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 10 + reader);
                    let mut out = vec![0.0; 8 * DIMENSION];
                    while !over.load(SeqCst) {
                        // Half of the keys are among the 40 rows that are replaced most.
                        let keys: [i64; 8] = std::array::from_fn(|_| {
                            if random.bool() { random.i64(0..40) } else { random.i64(0..3000) }
                        });
                        let least =
                            keys.map(|key| versions[usize::try_from(key).unwrap()].load(SeqCst));
                        tables.lookup(&[Bags::single(&keys)], Pooling::Sum, &mut out).unwrap();
                        for ((key, least), row) in keys.iter().zip(least).zip(out.chunks(DIMENSION))
                        {
                            let torn =
                                row.iter().any(|number| number.to_bits() != row[0].to_bits());
                            assert!(!torn, "seed {seed}: a torn row {key}");
                            let version = row[0] - (key * 1000) as f32;
                            assert!(
                                (least as f32..1000.0).contains(&version),
                                "seed {seed}: row {key} has version {version}, before {least}"
                            );
                        }
                    }
                });
            }
            for version in 1..150_u32 {
                if version % 50 == 0 {
                    let next = directory.path().join("next");
                    fs::write(&next, table(version)).unwrap();
                    fs::rename(&next, &path).unwrap();
                    tables.replace_table(0, &source).unwrap();
                    for known in &versions {
                        known.store(version, SeqCst);
                    }
                } else {
                    let first = random.usize(0..36);
                    let rows = (first..first + 4).flat_map(|number| row(number, version));
                    tables.replace_rows(0, first as u64, &rows.collect::<Vec<u8>>()).unwrap();
                    (first..first + 4).for_each(|number| versions[number].store(version, SeqCst));
                }
            }
            over.store(true, SeqCst);
        });
        let stats = tables.stats();
        assert!(stats.lookups > 0 && is_within_memory(&stats), "{stats:?}");
    }
}
