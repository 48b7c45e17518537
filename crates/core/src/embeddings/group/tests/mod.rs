//! Tests of `group`: levels, victims, idle decay and memory.

use super::*;
use crate::{
    ByteSize,
    embeddings::{Capacity, TableShape},
};

fn key(row: u64) -> Key {
    Key::new(TableId(0), row).unwrap()
}

/// A policy with a capacity of 100 rows of one table.
fn group() -> Group {
    let shape = TableShape { rows: 1 << 20, row_bytes: 4 };
    Group::new(&Budget::new(vec![shape], Capacity::Rows(100)))
}

/// Nothing overflows and no row is lost over long runs, most of which are skipped here.
#[test]
fn levels_are_rebased_before_they_overflow() {
    let (mut group, mut outcome) = (group(), Outcome::default());
    for round in 0..64 {
        group.time += 1 << 24;
        group.now += 1 << 60;
        for row in 0..2000 {
            group.request(&[key(row % 90)], &mut outcome);
            assert!(outcome.perfect() || round == 0 && row < 90, "round {round}, row {row}");
            assert!(group.now_level().0 <= NOW_MAX);
        }
    }
    let gone = key(5000);
    let now = group.now_level();
    group.ghosts.insert(gone, now, now);
    group.now = u64::from(NOW_MAX) << 32;
    let below = |group: &Group| {
        let now = group.now_level();
        now.0 - group.ghosts.get(gone, now).0
    };
    let before = below(&group);
    group.rebase();
    assert!(below(&group).abs_diff(before) <= DecayedFrequency::STEPS / 16, "ghosts too");
}

/// "The half that is carried over makes the victim one of the lowest 3 % of all rows."
#[test]
fn the_victim_is_one_of_the_lowest_rows() {
    let table = TableShape { rows: 1 << 20, row_bytes: 4 };
    let mut group = Group::new(&Budget::new(vec![table], Capacity::Rows(10_000)));
    let (mut random, mut outcome) = (fastrand::Rng::with_seed(3), Outcome::default());
    let (mut share, mut victims) = (0.0, 0);
    for index in 0..200_000 {
        let row = (random.f64().powi(4) * 100_000.0) as u64;
        let sampled = index > 100_000 && index % 500 == 0;
        let all: Vec<u32> = if sampled {
            let slots = group.rows.slots();
            let main = slots.filter(|slot| group.rows.place(*slot) == Place::Main);
            main.map(|slot| group.rows.level(slot).0).collect()
        } else {
            Vec::new()
        };
        if sampled {
            let (now, time) = (group.now_level(), group.time as u32);
            let lowest = group.rows.lowest(now, time, group.idle_bound).unwrap();
            let level = group.rows.level(lowest).0;
            let lower = all.iter().filter(|other| **other < level).count();
            share += lower as f64 / all.len() as f64;
            victims += 1;
        }
        group.request(&[key(row)], &mut outcome);
    }
    let share = share / f64::from(victims);
    assert!(share < 0.03, "{share} of the rows are lower than the victim, on average");
}

/// "Idle rows lose their frequency, the sooner, the more frequent they were."
#[test]
fn an_idle_row_loses_its_frequency() {
    let (mut group, mut outcome) = (group(), Outcome::default());
    for round in 0..2000 {
        (0..90).for_each(|row| group.request(&[key(row)], &mut outcome));
        group.request(&[key(1000 + round)], &mut outcome);
    }
    let before = group.rows.level(group.slot(key(0)).expect("it is frequent")).0;
    assert!(before > group.idle_bound.after(group.now_level(), log2(8000)).0);
    (10_000..20_000).for_each(|row| group.request(&[key(row)], &mut outcome));
    let idle = (0..90).filter_map(|row| group.slot(key(row)));
    // A row may have been drawn a while ago.
    let highest = group.idle_bound.after(group.now_level(), log2(8000)).0;
    assert!(idle.map(|slot| group.rows.level(slot).0).all(|level| level <= highest));
}

/// A budget of memory bounds rows and bookkeeping together.
#[test]
fn rows_and_bookkeeping_stay_within_the_memory() {
    let tables = [(3000, 16), (200_000, 144), (100_000, 40)]
        .map(|(rows, row_bytes)| TableShape { rows, row_bytes });
    for memory in [0, 1000, 300_000, 2_000_000, 20_000_000] {
        let limit = Capacity::Memory(ByteSize(memory));
        let budget = Budget::new(tables.to_vec(), limit);
        let mut group = Group::new(&budget);
        let (mut random, mut outcome) = (fastrand::Rng::with_seed(5), Outcome::default());
        let mut implied = Vec::new();
        for index in 0..60_000 {
            let keys: Vec<Key> = (0..3)
                .map(|table| {
                    let rows = tables[table].rows as f64;
                    let row = (random.f64().powi(3) * rows) as u64;
                    Key::new(TableId(u16::try_from(table).unwrap()), row).unwrap()
                })
                .collect();
            if index == 30_000 {
                group.implied(&keys, &mut implied);
            }
            group.request(&keys, &mut outcome);
            if index % 1000 == 0 || index == 30_001 {
                let residents = group.residents();
                let rows: u64 = residents
                    .iter()
                    .map(|key| u64::from(budget.weight(key.table()).unwrap()))
                    .sum();
                let Bookkeeping { directory, ghosts, tuning } = group.bookkeeping();
                let used = rows + directory + ghosts + tuning;
                assert!(used <= memory || residents.is_empty(), "{used} of {memory} after {index}");
            }
        }
        // The largest has room for more rows than are requested.
        if memory == 2_000_000 {
            assert!(group.used() > group.capacity() * 9 / 10, "{memory} is used");
        }
    }
}
