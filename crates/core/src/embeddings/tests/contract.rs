//! Contract suite: what every policy promises, checked for all of them on the same random requests.

use crate::ByteSize;
use crate::embeddings::*;

/// A skewed random request over tables of different sizes: one key per table, a bag with repeats,
/// no keys at all, or a key of an undeclared table.
pub(crate) fn random_request(random: &mut fastrand::Rng, tables: &[TableShape]) -> Vec<Key> {
    let skewed =
        |random: &mut fastrand::Rng, rows: u64| (random.f64().powi(3) * rows as f64) as u64;
    let key = |random: &mut fastrand::Rng, table: usize| {
        let row = skewed(random, tables[table].rows);
        Key::new(TableId(u16::try_from(table).unwrap()), row).unwrap()
    };
    match random.u8(0..20) {
        0 => Vec::new(),
        1 => vec![Key::new(TableId(99), random.u64(0..4)).unwrap()],
        2..5 => {
            let table = random.usize(0..tables.len());
            (0..random.usize(1..30)).map(|_| key(random, table)).collect()
        }
        _ => (0..tables.len()).map(|table| key(random, table)).collect(),
    }
}

fn tables() -> Vec<TableShape> {
    [(5, 16), (40, 64), (200, 144), (1000, 32)]
        .map(|(rows, row_bytes)| TableShape { rows, row_bytes })
        .to_vec()
}

/// Tracks the residents by what a policy reports, and compares after every request.
fn obeys_the_contract(kind: PolicyKind, capacity: Capacity, seed: u64) {
    let budget = Budget::new(tables(), capacity);
    let mut policy = kind.build(&budget, seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut resident = std::collections::BTreeSet::new();
    let mut outcome = Outcome::default();
    for _ in 0..600 {
        let keys = random_request(&mut random, budget.tables());
        policy.request(&keys, &mut outcome);
        let expected: Vec<bool> = keys.iter().map(|key| resident.contains(key)).collect();
        assert_eq!(
            outcome.hits, expected,
            "{kind}: hits are judged by the state before the request"
        );
        assert_eq!(outcome.perfect(), expected.iter().all(|hit| *hit));

        for key in &outcome.admitted {
            assert!(resident.insert(*key), "{kind}: {key:?} was resident already");
            assert!(keys.contains(key), "{kind}: {key:?} is not in the request");
        }
        for Evicted { key, .. } in &outcome.evicted {
            assert!(resident.remove(key), "{kind}: {key:?} was not resident");
            let hit = keys.iter().zip(&expected).any(|(other, hit)| other == key && *hit);
            assert!(!hit, "{kind}: a key hit by a request is never evicted by that same request");
        }
        let reported: std::collections::BTreeSet<Key> = policy.residents().into_iter().collect();
        assert_eq!(reported, resident, "{kind}: the residents are what was reported");
        assert!(keys.iter().all(|key| policy.contains(*key) == resident.contains(key)));
        let used: u64 =
            resident.iter().map(|key| u64::from(budget.weight(key.table()).unwrap())).sum();
        assert_eq!(policy.used(), used, "{kind}");
        assert!(used <= policy.capacity(), "{kind}: capacity is never exceeded");
    }
}

#[test]
fn every_policy_obeys_the_contract_in_rows() {
    for &kind in PolicyKind::ALL {
        for (seed, rows) in [0, 1, 2, 3, 10, 60, 400, 5000].into_iter().enumerate() {
            obeys_the_contract(kind, Capacity::Rows(rows), seed as u64);
        }
    }
}

#[test]
fn every_policy_obeys_the_contract_in_bytes() {
    for &kind in PolicyKind::ALL {
        for (seed, bytes) in [0, 15, 100, 200, 3000, 20_000].into_iter().enumerate() {
            obeys_the_contract(kind, Capacity::Bytes(ByteSize(bytes)), seed as u64);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_decisions() {
    for &kind in PolicyKind::ALL {
        let run = || {
            let budget = Budget::new(tables(), Capacity::Rows(60));
            let mut policy = kind.build(&budget, 7);
            let mut random = fastrand::Rng::with_seed(3);
            let mut outcome = Outcome::default();
            let mut outcomes = Vec::new();
            for _ in 0..500 {
                policy.request(&random_request(&mut random, budget.tables()), &mut outcome);
                outcomes.push(outcome.clone());
            }
            outcomes
        };
        assert!(run() == run(), "{kind} decided differently");
    }
}

#[test]
fn if_all_rows_fit_none_is_read_twice() {
    for &kind in PolicyKind::ALL {
        let budget = Budget::new(tables(), Capacity::Rows(10_000));
        let mut policy = kind.build(&budget, 0);
        let mut random = fastrand::Rng::with_seed(5);
        let mut outcome = Outcome::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let keys = random_request(&mut random, budget.tables());
            policy.request(&keys, &mut outcome);
            for (key, hit) in keys.iter().zip(&outcome.hits) {
                let known = seen.contains(key) && budget.weight(key.table()).is_some();
                assert_eq!(*hit, known, "{kind}: {key:?}");
            }
            seen.extend(keys);
        }
    }
}

#[test]
fn names_parse_and_an_unknown_name_is_answered_with_the_list() {
    for &kind in PolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "lru2".parse::<PolicyKind>().unwrap_err().to_string();
    assert!(error.contains("`lru2`") && error.contains("lru, clock"), "{error}");
}

/// If a request needs more rows than fit, its misses are not admitted.
#[test]
fn a_bag_larger_than_the_cache_is_served() {
    let budget =
        Budget::new(vec![TableShape { rows: 1 << 20, row_bytes: 4 }], Capacity::Rows(2000));
    let bag: Vec<Key> = (0..6000).map(|row| Key::new(TableId(0), row).unwrap()).collect();
    for &kind in PolicyKind::ALL {
        let mut policy = kind.build(&budget, 0);
        let mut outcome = Outcome::default();
        policy.request(&bag[..2000], &mut outcome);
        policy.request(&bag[..4000], &mut outcome);
        let residents = policy.residents();
        policy.request(&bag, &mut outcome);
        assert_eq!(outcome.hits.iter().filter(|hit| **hit).count(), residents.len(), "{kind}");
        assert!(
            residents.iter().all(|key| policy.contains(*key)),
            "{kind}: the request hit them all"
        );
    }
}

/// Steps along lists per key, of many single-key requests and then of a bag of `keys` keys, half of
/// which hit. For each miss there are `spare` evictable rows. If these are few, nearly all rows
/// that a search meets are protected.
fn steps_per_key(kind: PolicyKind, keys: u64, spare: f64, prefetch: bool) -> [u64; 2] {
    let rows = keys / 2 + (keys as f64 / 2.0 * spare) as u64;
    let shape = TableShape { rows: 1 << 30, row_bytes: 4 };
    let budget = Budget::new(vec![shape, shape], Capacity::Rows(rows));
    let key = |row| Key::new(TableId(0), row).unwrap();
    let mut policy = kind.build(&budget, 0);
    let mut random = fastrand::Rng::with_seed(9);
    let mut outcome = Outcome::default();
    // Residents of all kinds: accessed often, once, and readmitted.
    let singly = slab_list::steps::of(|| {
        for _ in 0..3 * rows {
            let row = (random.f64().powi(2) * 1.5 * rows as f64) as u64;
            policy.request(&[key(row)], &mut outcome);
        }
    });
    let mut bag = policy.residents();
    bag.sort_unstable();
    random.shuffle(&mut bag);
    bag.truncate((keys / 2) as usize);
    bag.extend((0..keys / 2).map(|row| key((1 << 20) + row)));
    random.shuffle(&mut bag);
    let at_once = slab_list::steps::of(|| {
        if prefetch {
            policy.prefetch(&bag, &mut outcome);
        } else {
            policy.request(&bag, &mut outcome);
        }
    });
    assert!(!outcome.admitted.is_empty(), "{kind}: some rows are evictable");
    [singly / (3 * rows), at_once / keys]
}

/// A search passes over protected rows once per request, not at every miss.
#[test]
fn a_large_bag_costs_as_much_per_key_as_a_small_one() {
    for &kind in PolicyKind::ALL {
        for (spare, prefetch) in [(1.5, false), (0.5, false), (0.001, false), (0.5, true)] {
            let steps = steps_per_key(kind, 20_000, spare, prefetch);
            assert!(
                steps.iter().all(|steps| *steps <= 50),
                "{kind}, {spare}, {prefetch}: {steps:?}"
            );
        }
    }
}

/// "Small tables are pinned: their rows, once resident, stay."
#[test]
fn group_keeps_small_tables() {
    let shape = |rows| TableShape { rows, row_bytes: 4 };
    let budget = Budget::new(vec![shape(1 << 20), shape(3)], Capacity::Rows(640));
    let mut policy = PolicyKind::Group.build(&budget, 0);
    let mut outcome = Outcome::default();
    let small: Vec<Key> = (0..3).map(|row| Key::new(TableId(1), row).unwrap()).collect();
    policy.request(&small, &mut outcome);
    for row in 0..20_000 {
        policy.request(&[Key::new(TableId(0), row % 5000).unwrap()], &mut outcome);
    }
    assert!(small.iter().all(|key| policy.contains(*key)), "they are 3 of 640 rows");
}

/// "Bursts count once": rows accessed steadily outlive rows accessed often, but briefly.
#[test]
fn group_keeps_steady_rows_despite_bursts() {
    let budget = Budget::new(vec![TableShape { rows: 1 << 20, row_bytes: 4 }], Capacity::Rows(100));
    let mut policy = PolicyKind::Group.build(&budget, 0);
    let mut outcome = Outcome::default();
    let mut access = |row: u64| policy.request(&[Key::new(TableId(0), row).unwrap()], &mut outcome);
    let steady = 0..60_u64;
    let mut next = 1000;
    for round in 0..40 {
        steady.clone().for_each(&mut access);
        // A row accessed 50 times and never again, and 20 rows accessed once.
        (0..50).for_each(|_| access(500 + round));
        (0..20).for_each(|_| {
            next += 1;
            access(next);
        });
    }
    let kept = steady.filter(|row| policy.contains(Key::new(TableId(0), *row).unwrap())).count();
    assert!(kept >= 55, "{kept} of 60 steady rows are resident");
}

/// A prefetch admits missing rows, evicts none of its own, and never exceeds the capacity.
#[test]
fn every_policy_prefetches_within_its_capacity() {
    for &kind in PolicyKind::ALL {
        let budget = Budget::new(tables(), Capacity::Bytes(ByteSize(3000)));
        let mut policy = kind.build(&budget, 1);
        let mut random = fastrand::Rng::with_seed(8);
        let mut outcome = Outcome::default();
        let mut resident = std::collections::BTreeSet::new();
        for round in 0..400 {
            let keys = random_request(&mut random, budget.tables());
            if round % 2 == 0 {
                policy.prefetch(&keys, &mut outcome);
            } else {
                policy.request(&keys, &mut outcome);
            }
            let expected: Vec<bool> = keys.iter().map(|key| resident.contains(key)).collect();
            assert_eq!(outcome.hits, expected, "{kind}");
            resident.extend(&outcome.admitted);
            for Evicted { key, .. } in &outcome.evicted {
                assert!(resident.remove(key), "{kind}: {key:?} was not resident");
                let hit = keys.iter().zip(&expected).any(|(other, hit)| other == key && *hit);
                assert!(!hit, "{kind}: a prefetched key is not evicted");
            }
            assert!(policy.used() <= policy.capacity(), "{kind}");
        }
        let reported: std::collections::BTreeSet<Key> = policy.residents().into_iter().collect();
        assert_eq!(reported, resident, "{kind}");
    }
}

/// A prefetched row is admitted whichever residents are prefetched with it, since others can go.
#[test]
fn every_policy_admits_a_prefetched_row_if_any_row_is_evictable() {
    for &kind in PolicyKind::ALL {
        let budget =
            Budget::new(vec![TableShape { rows: 1 << 20, row_bytes: 4 }], Capacity::Rows(100));
        let mut policy = kind.build(&budget, 1);
        let mut random = fastrand::Rng::with_seed(4);
        let mut outcome = Outcome::default();
        let key = |row| Key::new(TableId(0), row).unwrap();
        for _ in 0..2000 {
            policy.request(&[key((random.f64().powi(2) * 300.0) as u64)], &mut outcome);
        }
        for row in 1000..1300 {
            let mut residents = policy.residents();
            residents.sort_unstable();
            random.shuffle(&mut residents);
            residents.truncate(random.usize(1..90));
            residents.push(key(row));
            policy.prefetch(&residents, &mut outcome);
            assert_eq!(outcome.admitted, [key(row)], "{kind}");
        }
    }
}

/// Rows of a bag do not belong together, even if their table is in a bundle: an evicted row does
/// not take the others along.
#[test]
fn group_does_not_bundle_a_bag() {
    let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
    let budget = Budget::new(vec![shape, shape], Capacity::Rows(1000));
    let key = |table, row| Key::new(TableId(table), row).unwrap();
    let mut policy = PolicyKind::Group.build(&budget, 0);
    let mut random = fastrand::Rng::with_seed(6);
    let mut outcome = Outcome::default();
    for _ in 0..50_000 {
        let row = (random.f64().powi(2) * 5000.0) as u64;
        policy.request(&[key(0, row), key(1, row / 4)], &mut outcome);
    }
    assert_eq!(policy.implications().len(), 1, "the first table implies the second");
    for prefetch in [false, true] {
        let first = 100_000 + u64::from(prefetch) * 100_000;
        let bag: Vec<Key> =
            (first..first + 300).flat_map(|row| [key(0, row), key(1, row / 4)]).collect();
        if prefetch {
            policy.prefetch(&bag, &mut outcome);
        } else {
            policy.request(&bag, &mut outcome);
        }
        for row in 0..400 {
            policy.request(&[key(0, 2 * first + row)], &mut outcome);
            assert!(outcome.evicted.len() <= 2, "{} evicted for one", outcome.evicted.len());
        }
    }
}

/// A prefetch does not count as an access: rows prefetched and never accessed leave, frequent rows
/// stay.
#[test]
fn group_does_not_count_prefetches_as_accesses() {
    let budget = Budget::new(vec![TableShape { rows: 1 << 20, row_bytes: 4 }], Capacity::Rows(100));
    let mut policy = PolicyKind::Group.build(&budget, 0);
    let mut outcome = Outcome::default();
    let key = |row| Key::new(TableId(0), row).unwrap();
    for round in 0..60_u64 {
        for row in 0..60 {
            policy.request(&[key(row)], &mut outcome);
            (0..5).for_each(|_| policy.prefetch(&[key(1000 + round)], &mut outcome));
        }
    }
    let kept = (0..60).filter(|row| policy.contains(key(*row))).count();
    assert!(kept >= 55, "{kept} of 60");
    policy.prefetch(&[key(5000)], &mut outcome);
    assert!(policy.contains(key(5000)), "a prefetched row is resident");
}

/// The dissertation claims that EV-LFU is a stack algorithm, so that a larger cache never has fewer
/// hits. It is not: the scores of a key depend on what else is resident.
#[test]
fn ev_lfu_may_have_fewer_hits_in_a_larger_cache() {
    let tables = vec![TableShape { rows: 12, row_bytes: 4 }; 3];
    let hits = |rows: u64, seed: u64| {
        let budget = Budget::new(tables.clone(), Capacity::Rows(rows));
        let mut policy = PolicyKind::EvLfu.build(&budget, 0);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut outcome = Outcome::default();
        let mut hits = 0;
        for _ in 0..60 {
            let keys: Vec<Key> = (0..3)
                .map(|table| {
                    Key::new(TableId(table), (random.f64().powi(2) * 12.0) as u64).unwrap()
                })
                .collect();
            policy.request(&keys, &mut outcome);
            hits += outcome.hits.iter().filter(|hit| **hit).count();
        }
        hits
    };
    let fewer = (0..200).filter(|seed| hits(9, *seed) < hits(8, *seed)).count();
    assert!(fewer > 0, "no trace of 200 has fewer hits in the larger cache");
    assert!(fewer < 100, "{fewer} of 200: a larger cache is better on most traces");
}

/// In a loop over more keys than fit, a share of them stays resident.
#[test]
fn group_retains_a_part_of_a_long_loop() {
    let budget = Budget::new(vec![TableShape { rows: 1 << 20, row_bytes: 4 }], Capacity::Rows(500));
    let hits = |kind: PolicyKind| {
        let mut policy = kind.build(&budget, 0);
        let mut outcome = Outcome::default();
        let mut hits = 0;
        for index in 0..100_000_u64 {
            policy.request(&[Key::new(TableId(0), index % 2000).unwrap()], &mut outcome);
            hits += usize::from(index >= 50_000 && outcome.perfect());
        }
        hits
    };
    assert_eq!(hits(PolicyKind::Lru), 0);
    let group_hits = hits(PolicyKind::Group);
    assert!(group_hits > 10_000, "{group_hits} of 50,000; 12,500 are possible");
}

/// If one table's key implies another's, a prefetch of the first brings in both.
#[test]
fn group_learns_which_keys_come_together() {
    let shape = |rows| TableShape { rows, row_bytes: 4 };
    let tables = vec![shape(5000), shape(5000), shape(5000)];
    let budget = Budget::new(tables, Capacity::Rows(500));
    let key = |table, row| Key::new(TableId(table), row).unwrap();
    // Requests in which the second table's row was resident after the prefetch.
    let resident = |with_bundles: bool| {
        let mut policy = PolicyKind::Group.build(&budget, 0);
        let mut random = fastrand::Rng::with_seed(4);
        let mut outcome = Outcome::default();
        let mut resident = 0;
        for index in 0..40_000 {
            let [user, item] = [(); 2].map(|()| (random.f64().powi(3) * 5000.0) as u64);
            let home = user * 7919 % 5000;
            let mut known = vec![key(0, user)];
            if with_bundles {
                policy.implied(&[key(0, user)], &mut known);
            }
            policy.prefetch(&known, &mut outcome);
            resident += usize::from(index >= 20_000 && policy.contains(key(1, home)));
            policy.request(&[key(0, user), key(1, home), key(2, item)], &mut outcome);
        }
        let learned = policy.implications();
        let pairs: Vec<_> = learned.iter().map(|one| (one.from.0, one.to.0)).collect();
        assert_eq!(pairs, [(0, 1)], "{learned:?}");
        resident
    };
    let (without, with) = (resident(false), resident(true));
    assert!(with > without * 3 / 2, "{with} of 20,000 with bundles, {without} without");
}
