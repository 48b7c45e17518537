//! Promise 8: batches under substitution look like draws of a full shuffle, and the live measure says when
//! they do not.

use super::*;

const ITEMS: u32 = 40_000;
const BATCH: u32 = 64;

fn rotated(chunks: u64, held: u32, epoch: u64) -> (Vec<u32>, Mixed) {
    let layout = striped(ITEMS.into(), chunks);
    run(Rotation::new(&layout, held), &layout, epoch)
}

fn run(rotation: Rotation, layout: &Layout, epoch: u64) -> (Vec<u32>, Mixed) {
    let mut sampler = Sampler::new(layout, Plan::new(21, epoch, BATCH)).unwrap();
    let mut order = Vec::new();
    rotation.epoch(&mut sampler, |batch, _| {
        order.extend(batch.items().iter().map(|item| u32::try_from(item.0).unwrap()));
    });
    assert_eq!(sampler.counts().outside, 0, "the next chunk is always on its way");
    (order, sampler.mixed())
}

fn shuffled(seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ITEMS).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

/// A shuffle buffer of so many items over the dataset's own order.
fn buffered(size: usize) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut buffer: Vec<u32> = Vec::new();
    let mut order = Vec::new();
    for item in 0..ITEMS {
        buffer.push(item);
        if buffer.len() > size {
            order.push(buffer.swap_remove(random.usize(..buffer.len())));
        }
    }
    random.shuffle(&mut buffer);
    order.extend(buffer);
    order
}

/// By class, as if there were ten and the dataset went through them in turn; random in each.
fn by_class() -> Vec<u32> {
    let mut order = shuffled(4);
    order.sort_by_key(|item| item / 400 % 10);
    order
}

/// Neighbours in packs of 16, packs in random order.
fn in_packs() -> Vec<u32> {
    let mut packs: Vec<u32> = (0..ITEMS / 16).collect();
    fastrand::Rng::with_seed(5).shuffle(&mut packs);
    packs.into_iter().flat_map(|pack| pack * 16..pack * 16 + 16).collect()
}

/// Chi-squared, less its expectation, in standard deviations: beyond 5 is no accident.
fn surprise(found: &[f64], expected: &[f64]) -> f64 {
    let squares = found.iter().zip(expected).map(|(found, fair)| (found - fair).powi(2) / fair);
    let freedom = found.len() as f64 - 1.0;
    (squares.sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
}

/// Where the items of each twentieth of the epoch lie in the dataset.
fn positions(order: &[u32]) -> f64 {
    let mut found = vec![0.0; 400];
    for (at, item) in order.iter().enumerate() {
        found[at * 20 / order.len() * 20 + *item as usize * 20 / order.len()] += 1.0;
    }
    surprise(&found, &vec![order.len() as f64 / 400.0; 400])
}

/// How far apart items lie that follow one another.
fn pairs(order: &[u32]) -> f64 {
    let bins = 50;
    let mut found = vec![0.0; bins];
    for pair in order.windows(2) {
        found[pair[0].abs_diff(pair[1]) as usize * bins / order.len()] += 1.0;
    }
    // The distance of two random points has a density that falls from 2 to 0.
    let fair = |bin: usize| {
        let at = |x: f64| 2.0 * x - x * x;
        let edge = |bin: usize| bin as f64 / bins as f64;
        (at(edge(bin + 1)) - at(edge(bin))) * (order.len() - 1) as f64
    };
    surprise(&found, &(0..bins).map(fair).collect::<Vec<_>>())
}

#[test]
fn substitution_at_10_and_20_percent_is_as_random_as_a_full_shuffle() {
    for epoch in 0..3 {
        let orders = [
            ("full", shuffled(epoch)),
            ("10 %", rotated(20, 0, epoch).0),
            ("20 %", rotated(10, 0, epoch).0),
        ];
        for (name, order) in &orders {
            let (positions, pairs) = (positions(order), pairs(order));
            assert!(positions < 5.0, "{name}: positions are {positions} deviations off");
            assert!(pairs < 5.0, "{name}: pairs are {pairs} deviations off");
        }
    }
    // Or this test would prove nothing.
    for (name, order) in [("buffer", buffered(4000)), ("packs", in_packs())] {
        assert!(positions(&order).max(pairs(&order)) > 5.0, "{name} should be noticed");
    }
}

/// The measure of an order that is cut into batches, of which the first `held` items are held.
fn measured(order: &[u32], held: impl Fn(u32) -> bool) -> Mixed {
    let mut mixing = Mixing::new(ITEMS);
    let mut unread = u32::try_from(order.iter().filter(|item| held(**item)).count()).unwrap();
    let mut unread_total = ITEMS;
    for batch in order.chunks(BATCH as usize) {
        let time = 1.0 - (f64::from(unread_total) - batch.len() as f64 / 2.0) / f64::from(ITEMS);
        let drawn = u32::try_from(batch.iter().filter(|item| held(**item)).count()).unwrap();
        mixing.batch(time, batch.iter().copied(), HeldShare { drawn, unread, unread_total });
        unread -= drawn;
        unread_total -= u32::try_from(batch.len()).unwrap();
    }
    mixing.measured()
}

#[test]
fn the_measure_tells_good_from_bad() {
    let held = |item: u32| item % 10 == 3;
    let mut good = vec![("full", measured(&shuffled(1), held))];
    good.push(("two of ten", rotated(10, 0, 0).1));
    good.push(("two of twenty", rotated(20, 0, 0).1));
    good.push(("three held, two of seven", rotated(10, 3, 0).1));
    for (name, mixed) in good {
        assert!(mixed.distance() < 0.1, "{name}: {mixed:?}");
    }

    let in_order: Vec<u32> = (0..ITEMS).collect();
    let backwards: Vec<u32> = in_order.iter().rev().copied().collect();
    let mut resident_first = shuffled(2);
    resident_first.sort_by_key(|item| !held(*item));
    let bad = [
        ("in order", measured(&in_order, |_| false)),
        ("backwards", measured(&backwards, |_| false)),
        ("by class", measured(&by_class(), |_| false)),
        ("a buffer of 1 %", measured(&buffered(400), |_| false)),
        ("a buffer of 10 %", measured(&buffered(4000), |_| false)),
        ("whole packs", measured(&in_packs(), |_| false)),
        ("resident first", measured(&resident_first, held)),
    ];
    for (name, mixed) in bad {
        assert!(mixed.distance() > 0.5, "{name}: {mixed:?}");
    }
}

/// What is resident goes first, so the order in which a chunk arrives shows in the batches.
#[test]
fn chunks_that_arrive_in_order_are_noticed() {
    let layout = striped(ITEMS.into(), 10);
    let (order, mixed) = run(Rotation::arriving(&layout, 0, true), &layout, 0);
    assert!(pairs(&order) > 5.0);
    assert!((0.2..0.9).contains(&mixed.distance()), "{mixed:?}");
}

/// Each number says what its description promises.
#[test]
fn the_measure_means_what_it_says() {
    let in_order: Vec<u32> = (0..ITEMS).collect();
    let mixed = measured(&in_order, |_| false);
    assert!((30.0..64.0).contains(&mixed.neighbours) && mixed.displacement < 0.01, "{mixed:?}");
    let backwards: Vec<u32> = in_order.iter().rev().copied().collect();
    let mixed = measured(&backwards, |_| false);
    assert!((mixed.displacement - 1.5).abs() < 0.01, "{mixed:?}");
    let half: Vec<u32> = shuffled(1)[..ITEMS as usize / 2].to_vec();
    assert!(measured(&half, |_| false).distance() < 0.1, "in mid-epoch as well");
    for items in [0, 1] {
        assert!(Mixing::new(items).measured().distance() < 1e-9, "nothing is perfectly mixed");
    }
}
