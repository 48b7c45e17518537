//! Batches of like length, on request: from one stripe unit as far as possible, or by lengths that
//! have nothing to do with the dataset's order.

use super::*;

/// Sorted by length; units of 40 neighbours.
fn map() -> HalfChunkMap {
    let half_chunk_of = (0..4000_u32).map(|item| HalfChunk(item / 40 % 10));
    let map = HalfChunkMap::new(DatasetId::from_bytes([1; 32]), 10, half_chunk_of).unwrap();
    map.with_units(|item| u32::try_from(item.0 / 40).unwrap())
}

fn plan(batch: u32) -> EpochPlan {
    EpochPlan { like_length: true, ..EpochPlan::new(9, 0, batch) }
}

/// Number of units that each batch touches, and the largest distance of its items.
fn spreads(mut sampler: Sampler, open: impl Fn(u32) -> Vec<HalfChunk>) -> Vec<(usize, u64)> {
    let mut spreads = Vec::new();
    loop {
        let rotating = open(u32::try_from(spreads.len()).unwrap());
        sampler.set_draw_set(&draw_set(&[], &rotating)).unwrap();
        let Some(batch) = sampler.draw(|_| true) else { break };
        let items = ordinals(batch.items().to_vec());
        let units: std::collections::BTreeSet<u64> = items.iter().map(|item| item / 40).collect();
        spreads.push((units.len(), items.iter().max().unwrap() - items.iter().min().unwrap()));
    }
    spreads
}

#[test]
fn batches_come_from_one_unit_where_they_fit() {
    let sampler = Sampler::new(&map(), plan(20)).unwrap();
    let spreads = spreads(sampler, |_| (0..10).map(HalfChunk).collect());
    assert_eq!(spreads.len(), 200);
    assert!(spreads.iter().all(|(units, spread)| *units == 1 && *spread < 40), "{spreads:?}");
}

/// A unit is too small for these batches, so that neighbours in the same half-chunk complete them.
#[test]
fn batches_come_from_neighbouring_units_where_they_do_not() {
    for (batch, world) in [(100, 1), (64, 1), (20, 4)] {
        let sampler = Sampler::new(&map(), plan(batch).on(0, world)).unwrap();
        let spreads = spreads(sampler, |number| {
            [number / 7 % 10, (number / 7 + 1) % 10].map(HalfChunk).to_vec()
        });
        // A half-chunk has a unit every 400 items.
        let near = spreads.iter().filter(|(units, spread)| *units <= 4 && *spread <= 1300).count();
        assert!(near * 10 >= spreads.len() * 8, "{batch}, {world}: {spreads:?}");
    }
}

/// A half-chunk's last run is too short, and is completed by the nearest one.
#[test]
fn what_completes_a_batch_is_near() {
    let mut spreads: Vec<u64> = (0..50)
        .flat_map(|seed| {
            let plan = EpochPlan { seed, ..plan(64) };
            let sampler = Sampler::new(&map(), plan).unwrap();
            spreads(sampler, |_| (0..10).map(HalfChunk).collect())
        })
        .map(|(_, spread)| spread)
        .collect();
    spreads.sort_unstable();
    // A run of 64 touches three units of 40, 400 apart.
    let most = spreads[spreads.len() * 95 / 100];
    assert!(most < 900, "nineteen of twenty batches span up to {most} items");
}

#[test]
fn of_several_runs_the_most_resident_is_taken() {
    let mut sampler = Sampler::new(&map(), plan(20)).unwrap();
    let batch = sampler.draw(|item| item.0 / 400 % 4 == 0).unwrap();
    assert_eq!(
        batch.count(ItemSource::Resident),
        20,
        "three of ten units, and there are ten runs to choose from"
    );
    let random = Sampler::new(&map(), plan(20)).unwrap().draw(|_| false).unwrap();
    assert_ne!(random.items(), batch.items());
}

#[test]
fn without_lengths_it_is_refused() {
    let refusal = Sampler::new(&striped(100, 10), plan(5)).unwrap_err();
    assert_eq!(refusal, SamplerError::NoLengths);
}

/// Lengths in no order, in half-chunks of 200 items.
fn by_length() -> (HalfChunkMap, Vec<f64>) {
    let mut random = fastrand::Rng::with_seed(5);
    let lengths: Vec<f64> = (0..4000).map(|_| random.f64().powi(2) * 30.0).collect();
    (striped(4000, 20).with_lengths(&lengths).unwrap(), lengths)
}

/// The share of a batch that would be padding, if all its items had the length of the longest.
fn padding(lengths: &[f64], batches: &[Vec<u64>]) -> f64 {
    let (mut positions, mut filled) = (0.0, 0.0);
    for batch in batches {
        let of_items = batch.iter().map(|item| lengths[usize::try_from(*item).unwrap()]);
        positions += of_items.clone().fold(0.0, f64::max) * batch.len() as f64;
        filled += of_items.sum::<f64>();
    }
    1.0 - filled / positions
}

/// An epoch while half-chunks rotate, two at a time.
fn epoch(map: &HalfChunkMap, plan: EpochPlan) -> Vec<Vec<u64>> {
    let mut sampler = Sampler::new(map, plan).unwrap();
    let mut batches = Vec::new();
    Rotation::new(map, 2).epoch(&mut sampler, |batch, _| {
        batches.push(ordinals(batch.items().to_vec()));
    });
    batches
}

#[test]
fn lengths_in_no_order_make_batches_with_little_padding() {
    let (map, lengths) = by_length();
    for world in [1, 2] {
        let wasted = |like_length| {
            let plan = EpochPlan { like_length, ..plan(20).on(0, world) };
            padding(&lengths, &epoch(&map, plan))
        };
        let [apart, similar] = [false, true].map(wasted);
        assert!(apart > 0.6, "at random it is {apart}");
        assert!(similar < 0.3, "{similar} of all places are padding");
    }
}

/// A short run is completed by items of similar length, wherever they are in the dataset: all
/// batches together span little of all lengths.
#[test]
fn what_completes_a_batch_is_near_by_length() {
    let (map, lengths) = by_length();
    let mut spans: Vec<f64> = (0..20)
        .flat_map(|seed| epoch(&map, EpochPlan { seed, ..plan(30) }))
        .map(|batch| {
            let of_items = batch.iter().map(|item| lengths[usize::try_from(*item).unwrap()]);
            of_items.clone().fold(0.0, f64::max) - of_items.fold(f64::MAX, f64::min)
        })
        .collect();
    spans.sort_unstable_by(f64::total_cmp);
    let [half, most] = [50, 90].map(|percent| spans[spans.len() * percent / 100]);
    assert!(half < 9.0 && most < 16.0, "half of the batches span {half}, nine of ten {most} of 30");
}

/// Promise 8, as far as it applies here: the other items of an item's batch differ from epoch to
/// epoch.
#[test]
fn batches_of_like_length_differ_between_epochs() {
    let (map, _) = by_length();
    let mates = |epoch_number| {
        let mut of_item = vec![Vec::new(); 4000];
        for batch in epoch(&map, EpochPlan { epoch: epoch_number, ..plan(20) }) {
            for item in &batch {
                of_item[usize::try_from(*item).unwrap()] = batch.clone();
            }
        }
        of_item
    };
    let (one, other) = (mates(0), mates(1));
    let again = |(one, other): (&Vec<u64>, &Vec<u64>)| {
        one.iter().filter(|item| other.contains(item)).count() - 1
    };
    let shared: usize = one.iter().zip(&other).map(again).sum();
    // A half-chunk has only ten batches, so that about half of 19 other items are the same.
    assert!(shared < 4000 * 12, "{} of 19 come again together", shared as f64 / 4000.0);
}

/// The longest items of a half-chunk are not always its last.
#[test]
fn long_items_come_neither_first_nor_last() {
    let (map, lengths) = by_length();
    let (mut early, mut late) = (0.0, 0.0);
    for seed in 0..20 {
        let items = epoch(&map, EpochPlan { seed, ..plan(32) }).concat();
        let sum = |items: &[u64]| -> f64 {
            items.iter().map(|item| lengths[usize::try_from(*item).unwrap()]).sum()
        };
        early += sum(&items[..1000]);
        late += sum(&items[3000..]);
    }
    let ratio: f64 = early / late;
    assert!((0.9..1.1).contains(&ratio), "the first quarter is {ratio} as long as the last");
}
