//! Promise 8: batches under substitution look like draws of a full shuffle, and the shuffle quality
//! shows when they do not.

use super::*;

const ITEMS: u32 = 40_000;
const BATCH: u32 = 64;

fn rotated(half_chunks: u64, pinned: u32, epoch: u64) -> (Vec<u32>, ShuffleQuality) {
    let map = striped(ITEMS.into(), half_chunks);
    run(Rotation::new(&map, pinned), &map, epoch)
}

fn run(rotation: Rotation, map: &HalfChunkMap, epoch: u64) -> (Vec<u32>, ShuffleQuality) {
    let mut sampler = Sampler::new(map, EpochPlan::new(21, epoch, BATCH)).unwrap();
    let mut order = Vec::new();
    rotation.epoch(&mut sampler, |batch, _| {
        order.extend(batch.items().iter().map(|item| u32::try_from(item.0).unwrap()));
    });
    assert_eq!(sampler.counts().uncached, 0, "the next half-chunk is always loading");
    (order, sampler.shuffle_quality())
}

fn shuffled(seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..ITEMS).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    order
}

/// A shuffle buffer of `size` items over the dataset's own order.
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

/// By class, as if there were ten, one after the other; random in each.
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

/// Where the items of each twentieth of the epoch are in the dataset.
fn positions(order: &[u32]) -> f64 {
    let mut found = vec![0.0; 400];
    for (at, item) in order.iter().enumerate() {
        found[at * 20 / order.len() * 20 + *item as usize * 20 / order.len()] += 1.0;
    }
    surprise(&found, &vec![order.len() as f64 / 400.0; 400])
}

/// Distance of items that follow one another.
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
    // Otherwise this test would prove nothing.
    for (name, order) in [("buffer", buffered(4000)), ("packs", in_packs())] {
        assert!(positions(&order).max(pairs(&order)) > 5.0, "{name} should be noticed");
    }
}

/// The shuffle quality of an order that is cut into batches, of which the first `pinned` items are
/// pinned.
fn measured(order: &[u32], pinned: impl Fn(u32) -> bool) -> ShuffleQuality {
    let mut shuffle = ShuffleMeter::new(ITEMS);
    let mut unread = u32::try_from(order.iter().filter(|item| pinned(**item)).count()).unwrap();
    let mut unread_total = ITEMS;
    for batch in order.chunks(BATCH as usize) {
        let time = 1.0 - (f64::from(unread_total) - batch.len() as f64 / 2.0) / f64::from(ITEMS);
        let drawn = u32::try_from(batch.iter().filter(|item| pinned(**item)).count()).unwrap();
        shuffle.on_batch(time, batch.iter().copied(), PinnedShare { drawn, unread, unread_total });
        unread -= drawn;
        unread_total -= u32::try_from(batch.len()).unwrap();
    }
    shuffle.measured()
}

#[test]
fn the_measure_tells_good_from_bad() {
    let pinned = |item: u32| item % 10 == 3;
    let mut good = vec![("full", measured(&shuffled(1), pinned))];
    good.push(("two of ten", rotated(10, 0, 0).1));
    good.push(("two of twenty", rotated(20, 0, 0).1));
    good.push(("three pinned, two of seven", rotated(10, 3, 0).1));
    for (name, shuffle_quality) in good {
        assert!(shuffle_quality.distance() < 0.1, "{name}: {shuffle_quality:?}");
    }

    let in_order: Vec<u32> = (0..ITEMS).collect();
    let backwards: Vec<u32> = in_order.iter().rev().copied().collect();
    let mut resident_first = shuffled(2);
    resident_first.sort_by_key(|item| !pinned(*item));
    let bad = [
        ("in order", measured(&in_order, |_| false)),
        ("backwards", measured(&backwards, |_| false)),
        ("by class", measured(&by_class(), |_| false)),
        ("a buffer of 1 %", measured(&buffered(400), |_| false)),
        ("a buffer of 10 %", measured(&buffered(4000), |_| false)),
        ("whole packs", measured(&in_packs(), |_| false)),
        ("resident first", measured(&resident_first, pinned)),
    ];
    for (name, shuffle_quality) in bad {
        assert!(shuffle_quality.distance() > 0.5, "{name}: {shuffle_quality:?}");
    }
}

/// Resident items go first, so the order in which a half-chunk arrives shows in the batches.
#[test]
fn half_chunks_that_arrive_in_order_are_noticed() {
    let map = striped(ITEMS.into(), 10);
    let (order, shuffle_quality) = run(Rotation::arriving(&map, 0, true), &map, 0);
    assert!(pairs(&order) > 5.0);
    assert!((0.2..0.9).contains(&shuffle_quality.distance()), "{shuffle_quality:?}");
}

/// Each number means what its description promises.
#[test]
fn each_number_means_what_it_says() {
    let in_order: Vec<u32> = (0..ITEMS).collect();
    let shuffle_quality = measured(&in_order, |_| false);
    assert!(
        (30.0..64.0).contains(&shuffle_quality.neighbours) && shuffle_quality.displacement < 0.01,
        "{shuffle_quality:?}"
    );
    let backwards: Vec<u32> = in_order.iter().rev().copied().collect();
    let shuffle_quality = measured(&backwards, |_| false);
    assert!((shuffle_quality.displacement - 1.5).abs() < 0.01, "{shuffle_quality:?}");
    let half: Vec<u32> = shuffled(1)[..ITEMS as usize / 2].to_vec();
    assert!(measured(&half, |_| false).distance() < 0.1, "in mid-epoch as well");
    for items in [0, 1] {
        assert!(
            ShuffleMeter::new(items).measured().distance() < 1e-9,
            "an empty measurement is perfect"
        );
    }
}
