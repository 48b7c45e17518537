//! A job alone, whose cache has a fraction of the dataset. No order serves more than that fraction
//! of an epoch; LRU under a full shuffle serves far less.

use super::*;

const ITEMS: u64 = 50_000;
const CHUNKS: u64 = 10;

/// The share of items in each of `epochs` epochs that were resident, while `pinned` half-chunks are
/// kept as they are read. The rest rotates as well, or is uncached.
fn hits(pinned: u32, the_rest_rotates: bool, epochs: u64) -> Vec<f64> {
    let map = striped(ITEMS, CHUNKS);
    let half_chunk_of = map.half_chunk_of_items();
    let (kept, rest): (Vec<_>, Vec<_>) =
        (0..10).map(HalfChunk).partition(|half_chunk| half_chunk.0 < pinned);
    let rest = if the_rest_rotates { rest } else { Vec::new() };
    let mut resident = vec![false; half_chunk_of.len()];
    let one = |epoch| {
        let mut sampler = Sampler::new(&map, EpochPlan::new(11, epoch, 64)).unwrap();
        sampler.set_draw_set(&draw_set(&kept, &rest)).unwrap();
        while let Some(batch) = sampler.draw(|item| resident[index(item)]) {
            sampler.on_yielded(batch.number()).unwrap();
            for item in batch.items().iter().map(|item| index(*item)) {
                resident[item] = half_chunk_of[item] < pinned;
            }
        }
        assert!(sampler.shuffle_quality().distance() < 0.1, "{:?}", sampler.shuffle_quality());
        sampler.counts().resident as f64 / ITEMS as f64
    };
    (0..epochs).map(one).collect()
}

/// Hits of LRU in the second of two full shuffles, with space for this number of half-chunks.
fn lru(half_chunks: u32) -> f64 {
    let map = striped(ITEMS, CHUNKS);
    let capacity = u64::from(half_chunks) * ITEMS / CHUNKS;
    let mut used = vec![u64::MAX; map.half_chunk_of_items().len()];
    let mut order: VecDeque<(usize, u64)> = VecDeque::new();
    let (mut now, mut cached, mut hits) = (0_u64, 0_u64, 0_u64);
    for epoch in 0..2 {
        hits = 0;
        let mut sampler = Sampler::new(&map, EpochPlan::new(11, epoch, 64)).unwrap();
        while let Some(batch) = sampler.draw(|_| false) {
            for item in batch.items().iter().map(|item| index(*item)) {
                let hit = used[item] != u64::MAX;
                hits += u64::from(hit);
                cached += u64::from(!hit);
                used[item] = now;
                order.push_back((item, now));
                now += 1;
                while cached > capacity {
                    let (oldest, then) = order.pop_front().unwrap();
                    if used[oldest] == then {
                        used[oldest] = u64::MAX;
                        cached -= 1;
                    }
                }
            }
        }
    }
    hits as f64 / ITEMS as f64
}

#[test]
fn hits_reach_the_cache_fraction_where_lru_does_not() {
    for pinned in [1, 2, 5, 9] {
        let share = f64::from(pinned) / 10.0;
        for the_rest_rotates in [false, true] {
            let epochs = hits(pinned, the_rest_rotates, 3);
            assert!(epochs[0] < 1e-9, "nothing is there twice in an epoch");
            for hits in &epochs[1..] {
                assert!((hits / share - 1.0).abs() < 0.02, "{hits} instead of {share}");
            }
        }
        let formula = share + (1.0 - share) * (1.0 - share).ln();
        let lru = lru(pinned);
        assert!((lru - formula).abs() < 0.01, "LRU: {lru}, by the formula {formula}");
        assert!(lru < share - 0.08, "LRU: {lru} of {share}");
    }
}
