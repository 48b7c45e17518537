//! Windows of packs: what is not cached is fetched once per pack, and batches stay random.

use std::collections::BTreeSet;

use super::*;

const ITEMS: u64 = 40_000;
const PACK: u64 = 100;

/// Striped half-chunks of whole packs.
fn packed() -> HalfChunkMap {
    let chunking = Chunking::into_chunks(20, ITEMS / PACK).unwrap();
    let total = ByteSize(ITEMS * ITEM);
    let chunk_of = |item: u64| chunking.chunk_of(item / PACK * PACK * ITEM, total).0;
    let of_item = (0..ITEMS).map(|item| HalfChunk(chunk_of(item)));
    let map = HalfChunkMap::new(DatasetId::from_bytes([1; 32]), 20, of_item).unwrap();
    map.with_packs((0..ITEMS).map(|item| u32::try_from(item / PACK).unwrap()).collect())
}

fn pack_of(item: ItemOrdinal) -> u64 {
    item.0 / PACK
}

/// An agent that keeps packs until their last item is read, and the oldest of the others as long
/// as it has space.
struct Agent {
    space: usize,
    kept: VecDeque<u64>,
    left: Vec<u64>,
    fetches: u64,
}

impl Agent {
    fn new(space: usize) -> Self {
        let left = vec![PACK; usize::try_from(ITEMS / PACK).unwrap()];
        Self { space, kept: VecDeque::new(), left, fetches: 0 }
    }

    fn read(&mut self, item: ItemOrdinal) {
        let pack = pack_of(item);
        if !self.kept.contains(&pack) {
            self.fetches += 1;
            self.kept.push_back(pack);
        }
        let left = &mut self.left[usize::try_from(pack).unwrap()];
        *left -= 1;
        if *left == 0 {
            self.kept.retain(|kept| *kept != pack);
        } else if self.kept.len() > self.space {
            self.kept.pop_front();
        }
    }
}

/// Fetches of an epoch in which these half-chunks are pinned, and its shuffle quality.
fn epoch(map: &HalfChunkMap, plan: EpochPlan, pinned: Option<u32>) -> (u64, ShuffleQuality) {
    let mut sampler = Sampler::new(map, plan).unwrap();
    let half_chunk_of = map.half_chunk_of_items();
    let is_pinned = |item: ItemOrdinal| pinned.is_some_and(|end| half_chunk_of[index(item)] < end);
    if let Some(end) = pinned {
        let pinned: Vec<HalfChunk> = (0..end).map(HalfChunk).collect();
        sampler.set_draw_set(&draw_set(&pinned, &[])).unwrap();
    }
    let mut agent = Agent::new(2 * plan.pack_window.max(40) as usize);
    let mut seen = BTreeSet::new();
    while let Some(batch) = sampler.draw(is_pinned) {
        for item in batch.items() {
            assert!(seen.insert(*item), "an item comes once (promise 2)");
            if !is_pinned(*item) {
                agent.read(*item);
            }
        }
        sampler.on_yielded(batch.number()).unwrap();
    }
    assert_eq!(seen.len() as u64, ITEMS);
    (agent.fetches, sampler.shuffle_quality())
}

/// With no node, with one that keeps a fifth, and with one that keeps half.
#[test]
fn a_pack_outside_the_cache_is_fetched_once() {
    let map = packed();
    for (pinned, packs) in [(None, 400), (Some(0), 400), (Some(4), 320), (Some(10), 200)] {
        for pack_window in [1, 7, 40, 100] {
            let plan = EpochPlan { pack_window, ..EpochPlan::new(7, 0, 64) };
            let (fetches, _) = epoch(&map, plan, pinned);
            assert_eq!(fetches, packs, "{pinned:?}, window of {pack_window}");
        }
        let (fetches, _) = epoch(&map, EpochPlan::new(7, 0, 64), pinned);
        assert!(fetches > 20 * packs, "without a window: {fetches} fetches of {packs} packs");
    }
}

/// Promise 8, and what the window costs: with `w` open packs, two items share a pack in one case of
/// `w`, and there are about `1 + 30 / w` times the neighbours of a shuffle.
#[test]
fn the_cost_of_a_window_is_its_number_of_packs() {
    let map = packed();
    let quality =
        |pack_window| epoch(&map, EpochPlan { pack_window, ..EpochPlan::new(7, 0, 64) }, Some(0)).1;
    for (pack_window, distance) in [(400, 0.1), (200, 0.3), (100, 0.5), (40, 1.2)] {
        let quality = quality(pack_window);
        assert!(quality.distance() < distance, "{pack_window} packs: {quality:?}");
    }
    assert!(quality(4).neighbours > 5.0, "a window of 1 % is noticed: {:?}", quality(4));
}

/// Loaders announce packs before they open, each once.
#[test]
fn packs_are_announced_once_and_before_they_are_drawn() {
    let map = packed();
    let plan = EpochPlan { pack_window: 40, ..EpochPlan::new(7, 0, 64) };
    let mut sampler = Sampler::new(&map, plan).unwrap();
    sampler.set_draw_set(&draw_set(&[HalfChunk(0)], &[])).unwrap();
    let half_chunk_of = map.half_chunk_of_items();
    let is_pinned = |item: ItemOrdinal| half_chunk_of[index(item)] == 0;
    let mut announced = BTreeSet::new();
    loop {
        for item in sampler.upcoming(0) {
            assert!(is_pinned(item) || announced.insert(pack_of(item)), "announced twice");
        }
        let Some(batch) = sampler.draw(is_pinned) else { break };
        for item in batch.of(ItemSource::Uncached) {
            assert!(announced.contains(&pack_of(item)), "pack {} of {item}", pack_of(item));
        }
        sampler.on_yielded(batch.number()).unwrap();
    }
    assert_eq!(announced.len(), 380);
}

/// Two ranks, each with an agent of its own, fetch hardly more than one.
#[test]
fn ranks_fetch_packs_of_their_own() {
    let map = packed();
    let plan = EpochPlan { pack_window: 40, ..EpochPlan::new(7, 0, 64) };
    let mut fetches = 0;
    for rank in 0..4 {
        let mut sampler = Sampler::new(&map, plan.on(rank, 4)).unwrap();
        let mut packs = BTreeSet::new();
        while let Some(batch) = sampler.draw(|_| false) {
            packs.extend(batch.items().iter().map(|item| pack_of(*item)));
            sampler.on_yielded(batch.number()).unwrap();
        }
        fetches += packs.len();
    }
    assert!((400..=404).contains(&fetches), "{fetches} fetches of 400 packs");
}

/// A pinned half-chunk that the node cannot store, or has not loaded yet, costs a fetch per pack.
#[test]
fn a_pack_that_should_be_cached_and_is_not_is_fetched_once() {
    let map = packed();
    let plan = EpochPlan { pack_window: 40, ..EpochPlan::new(7, 0, 64) };
    let mut sampler = Sampler::new(&map, plan).unwrap();
    let pinned: Vec<HalfChunk> = (0..10).map(HalfChunk).collect();
    sampler.set_draw_set(&draw_set(&pinned, &[])).unwrap();
    let mut agent = Agent::new(80);
    while let Some(batch) = sampler.draw(|_| false) {
        batch.items().iter().for_each(|item| agent.read(*item));
        sampler.on_yielded(batch.number()).unwrap();
    }
    assert_eq!(agent.fetches, 400);
}
