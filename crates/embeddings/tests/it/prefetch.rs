//! Prefetches: of known keys and of the keys that they imply.

use forebay_core::{ByteSize, embeddings::PolicyKind};
use forebay_embeddings::{Bags, Io, Options, Pooling, Source, Tables};

use crate::{
    lookups::{is_within_memory, numbered},
    open, seeds,
};

/// Three tables: the key of table 0, a user, implies that of table 1, its home. Items are
/// independent.
struct World {
    _directory: tempfile::TempDir,
    tables: Tables,
    random: fastrand::Rng,
}

impl World {
    fn new(policy: PolicyKind, io: Io, memory: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let sources: [Source; 3] =
            [5000, 4999, 4998].map(|rows| numbered(directory.path(), rows, 16));
        let options = Options { policy, io, ..Options::new(ByteSize::ZERO) };
        let tables = open(&sources, options, memory);
        Self { _directory: directory, tables, random: fastrand::Rng::with_seed(1) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a row of a small table")]
    fn draw(&mut self) -> i64 {
        (self.random.f64().powi(3) * 4998.0) as i64
    }

    fn home(user: i64) -> i64 {
        user * 7 % 4999
    }

    /// Looks up one request and checks its rows.
    fn look_up(&mut self, user: i64, item: i64) {
        let keys = [[user], [Self::home(user)], [item]];
        let mut out = [0.0; 48];
        let bags = keys.each_ref().map(|keys| Bags::single(keys));
        self.tables.lookup(&bags, Pooling::Sum, &mut out).unwrap();
        for (key, row) in keys.iter().zip(out.chunks(16)) {
            assert!(row.iter().all(|number| *number == key[0] as f32), "{key:?}: {row:?}");
        }
    }
}

#[test]
fn rows_of_known_and_implied_keys_are_resident_at_their_lookup() {
    for io in [Io::Auto, Io::Pread] {
        let mut world = World::new(PolicyKind::Group, io, 4000 * 64);
        let mut missed = [0; 2];
        for index in 0..30_000 {
            let (user, item) = (world.draw(), world.draw());
            world.tables.prefetch(&[(0, &[user]), (2, &[item])]).unwrap();
            let before = world.tables.stats();
            world.look_up(user, item);
            let after = world.tables.stats();
            missed[usize::from(index >= 15_000)] += after.rows_read - before.rows_read;
            assert!(is_within_memory(&after), "{after:?}");
        }
        let [at_first, later] = missed;
        let learned = world.tables.implications();
        let pairs: Vec<_> = learned.iter().map(|one| (one.from.0, one.to.0)).collect();
        assert_eq!(pairs, [(0, 1)], "{learned:?}");
        assert!(
            later * 2 < at_first,
            "{later} rows missed in the second half, {at_first} in the first"
        );
        assert!(world.tables.stats().rows_prefetched > 10_000);
    }
}

/// With prefetches between lookups, every row is right and the memory limit is never exceeded.
#[test]
fn rows_are_right_and_memory_is_bounded_with_prefetches() {
    for seed in seeds(1) {
        for &policy in PolicyKind::ALL {
            let memory = [0, 64 * 20, 64 * 800, 1 << 20][usize::try_from(seed).unwrap() % 4 + 1];
            let mut world = World::new(policy, Io::Auto, memory);
            for _ in 0..150 {
                let known: Vec<i64> =
                    (0..world.random.usize(0..40)).map(|_| world.draw()).collect();
                let table = world.random.usize(0..3);
                world.tables.prefetch(&[(table, &known)]).unwrap();
                let (user, item) = (world.draw(), world.draw());
                world.look_up(user, item);
                let stats = world.tables.stats();
                assert!(is_within_memory(&stats), "{policy}: {stats:?}");
            }
        }
    }
}

#[test]
fn rows_that_are_resident_or_do_not_fit_are_not_read() {
    let world = World::new(PolicyKind::Group, Io::Auto, 64 * 100);
    assert_eq!(world.tables.prefetch(&[(1, &[7, 7, 8])]).unwrap(), 2);
    assert_eq!(world.tables.prefetch(&[(1, &[8, 7])]).unwrap(), 0);
    assert_eq!(world.tables.prefetch(&[]).unwrap(), 0);
    let all: Vec<i64> = (0..4000).collect();
    let read = world.tables.prefetch(&[(1, &all)]).unwrap();
    assert!(read < 2000, "only admitted rows are read, not {read}");
    let none = World::new(PolicyKind::Group, Io::Auto, 0);
    assert_eq!(none.tables.prefetch(&[(0, &[1])]).unwrap(), 0);
    let pinned = World::new(PolicyKind::Group, Io::Auto, 2 << 20);
    assert_eq!(pinned.tables.prefetch(&[(0, &[1])]).unwrap(), 64, "a block of a pinned table");
    assert_eq!(pinned.tables.prefetch(&[(0, &[2])]).unwrap(), 0);
}

#[test]
fn keys_that_no_table_has_are_rejected() {
    let world = World::new(PolicyKind::Group, Io::Auto, 64 * 100);
    let rejected =
        |known: &[(usize, &[i64])]| world.tables.prefetch(known).unwrap_err().to_string();
    assert!(rejected(&[(3, &[0])]).contains("there is no table 3; there are 3"));
    assert!(rejected(&[(0, &[1]), (1, &[4999])]).contains("key 4999 at index 0 of table 1"));
    assert!(rejected(&[(0, &[-1])]).contains("key -1"));
    assert_eq!(world.tables.stats().rows_prefetched, 0, "no row was read before the check");
}
