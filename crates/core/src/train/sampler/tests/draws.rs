//! What a batch consists of.

use super::*;

fn map() -> HalfChunkMap {
    striped(1000, 10)
}

#[test]
fn resident_items_go_first_and_the_rest_completes_the_batch() {
    let map = HalfChunkMap::undivided(DatasetId::from_bytes([1; 32]), 100).unwrap();
    let sampler = Sampler::new(&map, EpochPlan::new(7, 0, 4)).unwrap();
    let window = ordinals(sampler.clone().upcoming(100));
    let mut random = sampler.clone();
    assert_eq!(ordinals(random.draw(|_| true).unwrap().items().to_vec()), window[..4]);
    let resident = [window[3], window[39], window[40]];
    let mut sampler = sampler;
    let batch = sampler.draw(|item| resident.contains(&item.0)).unwrap();
    assert_eq!(
        ordinals(batch.of(ItemSource::Resident)),
        [window[3], window[39]],
        "40 is too far away"
    );
    assert_eq!(ordinals(batch.of(ItemSource::Claimed)), [window[0], window[1]]);
    let batch = sampler.draw(|_| true).unwrap();
    assert_eq!(ordinals(batch.items().to_vec())[0], window[2], "passed over, but next");
}

/// With everything resident, or nothing, the random order is the same.
#[test]
fn residency_alone_does_not_change_the_order() {
    let order = |seed, resident| {
        let mut sampler = Sampler::new(&map(), EpochPlan::new(seed, 0, 8)).unwrap();
        let mut drawn = Vec::new();
        while let Some(batch) = sampler.draw(|_| resident) {
            drawn.extend(ordinals(batch.items().to_vec()));
        }
        drawn
    };
    assert_eq!(order(3, true), order(3, false));
    assert_ne!(order(3, true), order(4, true), "another seed, another order");
}

/// Promise 8: pinned items are drawn in proportion, not first.
#[test]
fn pinned_items_come_in_proportion_all_epoch_long() {
    let map = striped(20_000, 10);
    let mut sampler = Sampler::new(&map, EpochPlan::new(5, 0, 100)).unwrap();
    let mut held_by_tenth = [0_u32; 10];
    let mut at = 0;
    Rotation::new(&map, 3).epoch(&mut sampler, |batch, half_chunk_of| {
        let pinned = batch.items().iter().filter(|item| half_chunk_of[index(**item)] < 3).count();
        held_by_tenth[at / 20] += u32::try_from(pinned).unwrap();
        at += 1;
    });
    assert!(held_by_tenth.iter().all(|pinned| pinned.abs_diff(600) < 100), "{held_by_tenth:?}");
    assert!(sampler.shuffle_quality().pinned_lead < 0.05, "{:?}", sampler.shuffle_quality());
}

/// Promise 8: when too little is resident, claimed reads complete the batch, and it never waits for
/// rotation. Then come pinned half-chunks, and uncached reads only when nothing else is left.
#[test]
fn a_batch_is_completed_from_rotating_then_pinned_then_uncached() {
    let map = map();
    let mut sampler = Sampler::new(&map, EpochPlan::new(5, 0, 50)).unwrap();
    sampler.set_draw_set(&draw_set(&[HalfChunk(0)], &[HalfChunk(1)])).unwrap();
    let half_chunk_of = map.half_chunk_of_items();
    let mut of_half_chunk = [0; 10];
    let mut last = None;
    while last.is_none_or(|last| last == 0) {
        let batch = sampler.draw(|item| half_chunk_of[index(item)] == 0).unwrap();
        assert_eq!(batch.items().len(), 50);
        batch
            .items()
            .iter()
            .for_each(|item| of_half_chunk[half_chunk_of[index(*item)] as usize] += 1);
        assert!(batch.of(ItemSource::Claimed).all(|item| half_chunk_of[index(item)] == 1));
        assert!(batch.of(ItemSource::Uncached).all(|item| half_chunk_of[index(item)] > 1));
        sampler.on_yielded(batch.number()).unwrap();
        last = Some(batch.count(ItemSource::Uncached));
    }
    assert_eq!(of_half_chunk[..2], [100, 100], "the whole draw set, before anything uncached");
    let counts = sampler.counts();
    assert_eq!((counts.resident, counts.claimed, counts.invalid_calls), (100, 100, 0));
    assert_eq!(counts.items, 200 + counts.uncached);
}

/// Of two rotating half-chunks, one is exhausted in time for the next to arrive.
#[test]
fn a_leaving_half_chunk_is_exhausted_first() {
    let map = striped(20_000, 10);
    let mut sampler = Sampler::new(&map, EpochPlan::new(5, 0, 50)).unwrap();
    let (mut there, mut next) = ([HalfChunk(0), HalfChunk(1)], 2);
    while next < 10 {
        let leaving = Some(there[0]);
        sampler.set_draw_set(&BatchDrawSet { leaving, ..draw_set(&[], &there) }).unwrap();
        while sampler.unread(there[0]) > 0 {
            let batch = sampler.draw(|_| true).unwrap();
            assert_eq!(batch.count(ItemSource::Resident), 50);
            sampler.on_yielded(batch.number()).unwrap();
        }
        let left = sampler.unread(there[1]);
        assert!((800..1600).contains(&left), "{left} of 2000 are left of the other");
        there = [there[1], HalfChunk(next)];
        next += 1;
    }
}

#[test]
fn candidates_can_be_few_or_many() {
    let hits = |over_ask, window| {
        let plan = EpochPlan { over_ask, window, ..EpochPlan::new(5, 0, 10) };
        let mut sampler = Sampler::new(&map(), plan).unwrap();
        sampler.draw(|item| item.0 % 10 == 0).unwrap().count(ItemSource::Resident)
    };
    assert!(hits(1, 2048) < 5);
    assert_eq!(hits(1000, 1000), 10, "there are a hundred");
    assert_eq!(hits(1000, 1), hits(1, 2048), "a window is never shorter than a batch");
}

#[test]
fn invalid_calls_change_nothing_and_are_counted() {
    let mut sampler = Sampler::new(&map(), EpochPlan::new(5, 0, 50)).unwrap();
    let half_chunk = HalfChunk;
    let known = draw_set(&[half_chunk(1)], &[half_chunk(2)]);
    sampler.set_draw_set(&known).unwrap();
    let first = sampler.draw(|_| false).unwrap();
    let second = sampler.draw(|_| false).unwrap();
    let before = sampler.state();
    let expected = [
        "batch 1 cannot be yielded: 0 is next, and 2 are in flight",
        "batch 7 cannot be yielded: 0 is next, and 2 are in flight",
        "half-chunk 10 of 10 cannot be in a draw set: half-chunks count from 0",
        "half-chunk 3 is named twice in a draw set",
        "half-chunk 1 cannot leave: it does not rotate",
    ];
    let refused = [
        sampler.on_yielded(second.number()).unwrap_err(),
        sampler.on_yielded(7).unwrap_err(),
        sampler.set_draw_set(&draw_set(&[half_chunk(3)], &[half_chunk(10)])).unwrap_err(),
        sampler.set_draw_set(&draw_set(&[half_chunk(3)], &[half_chunk(3)])).unwrap_err(),
        sampler.set_draw_set(&BatchDrawSet { leaving: Some(half_chunk(1)), ..known }).unwrap_err(),
    ];
    assert_eq!(refused.map(|refused| refused.to_string()), expected);
    assert_eq!((sampler.state(), sampler.counts().invalid_calls), (before, 5));
    sampler.on_yielded(first.number()).unwrap();
    assert!(sampler.on_yielded(first.number()).is_err(), "not twice");
    sampler.on_yielded(second.number()).unwrap();
    assert!(sampler.on_yielded(2).is_err(), "not before it is drawn");
    let third = sampler.draw(|_| false).unwrap();
    let open = map().half_chunk_of_items();
    assert!(
        third.of(ItemSource::Claimed).all(|item| [1, 2].contains(&open[index(item)])),
        "as before"
    );
}

#[test]
fn unread_and_unyielded_items_are_known_for_every_half_chunk() {
    let mut sampler = Sampler::new(&map(), EpochPlan::new(5, 0, 30)).unwrap();
    let half_chunk = HalfChunk(4);
    sampler.set_draw_set(&draw_set(&[], &[half_chunk])).unwrap();
    let known = |sampler: &Sampler| (sampler.unread(half_chunk), sampler.unyielded(half_chunk));
    assert_eq!(known(&sampler), (100, 100));
    let batches: Vec<Batch> = (0..4).map(|_| sampler.draw(|_| true).unwrap()).collect();
    assert_eq!(known(&sampler), (0, 100));
    let released: Vec<_> =
        batches.iter().map(|batch| sampler.on_yielded(batch.number()).unwrap()).collect();
    assert_eq!(released, [vec![], vec![], vec![], vec![half_chunk]], "with its last item");
    assert_eq!(known(&sampler), (0, 0));
    assert_eq!(sampler.unread(HalfChunk(99)), 0);
}
