//! Batches of like length, from one stripe unit as far as possible, where a job asks for them.

use super::*;

/// Sorted by length; units of 40 neighbours.
fn layout() -> Layout {
    let chunk_of = (0..4000_u32).map(|item| ChunkOrdinal(item / 40 % 10));
    let layout = Layout::new(DatasetId::from_bytes([1; 32]), 10, chunk_of).unwrap();
    layout.with_units(|item| u32::try_from(item.0 / 40).unwrap())
}

fn plan(batch: u32) -> Plan {
    Plan { like_length: true, ..Plan::new(9, 0, batch) }
}

/// How many units each batch touches, and how far apart its items are at most.
fn spreads(mut sampler: Sampler, open: impl Fn(u32) -> Vec<ChunkOrdinal>) -> Vec<(usize, u64)> {
    let mut spreads = Vec::new();
    loop {
        sampler.open(&[], &open(u32::try_from(spreads.len()).unwrap())).unwrap();
        let Some(batch) = sampler.draw(|_| true) else { break };
        let items = ordinals(batch.items().to_vec());
        let units: std::collections::BTreeSet<u64> = items.iter().map(|item| item / 40).collect();
        spreads.push((units.len(), items.iter().max().unwrap() - items.iter().min().unwrap()));
    }
    spreads
}

#[test]
fn batches_come_from_one_unit_where_they_fit() {
    let sampler = Sampler::new(&layout(), plan(20)).unwrap();
    let spreads = spreads(sampler, |_| (0..10).map(ChunkOrdinal).collect());
    assert_eq!(spreads.len(), 200);
    assert!(spreads.iter().all(|(units, spread)| *units == 1 && *spread < 40), "{spreads:?}");
}

/// A unit is too small for these, so that neighbours in the same chunk help out.
#[test]
fn batches_come_from_neighbouring_units_where_they_do_not() {
    for (batch, world) in [(100, 1), (64, 1), (20, 4)] {
        let sampler = Sampler::new(&layout(), plan(batch).on(0, world)).unwrap();
        let spreads = spreads(sampler, |number| {
            [number / 7 % 10, (number / 7 + 1) % 10].map(ChunkOrdinal).to_vec()
        });
        // A chunk has a unit every 400 items.
        let near = spreads.iter().filter(|(units, spread)| *units <= 4 && *spread <= 1300).count();
        assert!(near * 10 >= spreads.len() * 8, "{batch}, {world}: {spreads:?}");
    }
}

/// A chunk's last run is too short, and is completed by the one that lies nearest.
#[test]
fn what_completes_a_batch_is_near() {
    let mut spreads: Vec<u64> = (0..50)
        .flat_map(|seed| {
            let plan = Plan { seed, ..plan(64) };
            let sampler = Sampler::new(&layout(), plan).unwrap();
            spreads(sampler, |_| (0..10).map(ChunkOrdinal).collect())
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
    let mut sampler = Sampler::new(&layout(), plan(20)).unwrap();
    let batch = sampler.draw(|item| item.0 / 400 % 4 == 0).unwrap();
    assert_eq!(
        batch.count(Source::Resident),
        20,
        "three of ten units, and there are ten runs to choose from"
    );
    let random = Sampler::new(&layout(), plan(20)).unwrap().draw(|_| false).unwrap();
    assert_ne!(random.items(), batch.items());
}

#[test]
fn without_units_it_is_refused() {
    let refusal = Sampler::new(&striped(100, 10), plan(5)).unwrap_err();
    assert_eq!(refusal, Refusal::NoUnits);
}
