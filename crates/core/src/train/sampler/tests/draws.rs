//! What a batch is made of.

use super::*;

fn layout() -> Layout {
    striped(1000, 10)
}

#[test]
fn resident_items_go_first_and_the_rest_completes_the_batch() {
    let layout = Layout::in_one_chunk(DatasetId::from_bytes([1; 32]), 100).unwrap();
    let sampler = Sampler::new(&layout, Plan::new(7, 0, 4)).unwrap();
    let window = ordinals(sampler.clone().upcoming(100));
    let mut random = sampler.clone();
    assert_eq!(ordinals(random.draw(|_| true).unwrap().items().to_vec()), window[..4]);
    let resident = [window[3], window[39], window[40]];
    let mut sampler = sampler;
    let batch = sampler.draw(|item| resident.contains(&item.0)).unwrap();
    assert_eq!(ordinals(batch.of(Source::Resident)), [window[3], window[39]], "40 is too far away");
    assert_eq!(ordinals(batch.of(Source::Claimed)), [window[0], window[1]]);
    let batch = sampler.draw(|_| true).unwrap();
    assert_eq!(ordinals(batch.items().to_vec())[0], window[2], "passed over, but next");
}

/// With everything resident, or nothing, it is the same random order.
#[test]
fn without_a_reason_nothing_is_reordered() {
    let order = |seed, resident| {
        let mut sampler = Sampler::new(&layout(), Plan::new(seed, 0, 8)).unwrap();
        let mut drawn = Vec::new();
        while let Some(batch) = sampler.draw(|_| resident) {
            drawn.extend(ordinals(batch.items().to_vec()));
        }
        drawn
    };
    assert_eq!(order(3, true), order(3, false));
    assert_ne!(order(3, true), order(4, true), "another seed, another order");
}

/// Promise 8: "held items are drawn in proportion, not first".
#[test]
fn held_items_come_in_proportion_all_epoch_long() {
    let layout = striped(20_000, 10);
    let mut sampler = Sampler::new(&layout, Plan::new(5, 0, 100)).unwrap();
    let mut held_by_tenth = [0_u32; 10];
    let mut at = 0;
    Rotation::new(&layout, 3).epoch(&mut sampler, |batch, chunk_of| {
        let held = batch.items().iter().filter(|item| chunk_of[index(**item)] < 3).count();
        held_by_tenth[at / 20] += u32::try_from(held).unwrap();
        at += 1;
    });
    assert!(held_by_tenth.iter().all(|held| held.abs_diff(600) < 100), "{held_by_tenth:?}");
    assert!(sampler.mixed().held_lead < 0.05, "{:?}", sampler.mixed());
}

/// Promise 8: "when too little is resident the batch is completed by claimed reads, and never waits for
/// rotation"; then by held chunks, and by reads outside only when there is nothing else.
#[test]
fn a_batch_is_completed_from_farther_and_farther_away() {
    let layout = layout();
    let mut sampler = Sampler::new(&layout, Plan::new(5, 0, 50)).unwrap();
    sampler.open(&[ChunkOrdinal(0)], &[ChunkOrdinal(1)]).unwrap();
    let chunk_of = layout.chunk_of_items();
    let mut of_chunk = [0; 10];
    let mut last = None;
    while last.is_none_or(|last| last == 0) {
        let batch = sampler.draw(|item| chunk_of[index(item)] == 0).unwrap();
        assert_eq!(batch.items().len(), 50);
        batch.items().iter().for_each(|item| of_chunk[chunk_of[index(*item)] as usize] += 1);
        assert!(batch.of(Source::Claimed).all(|item| chunk_of[index(item)] == 1));
        assert!(batch.of(Source::Outside).all(|item| chunk_of[index(item)] > 1));
        sampler.yielded(batch.number()).unwrap();
        last = Some(batch.count(Source::Outside));
    }
    assert_eq!(of_chunk[..2], [100, 100], "all that is open, before anything outside");
    let counts = sampler.counts();
    assert_eq!((counts.resident, counts.claimed, counts.contradictions), (100, 100, 0));
    assert_eq!(counts.items, 200 + counts.outside);
}

/// Of two rotating chunks one is exhausted in time for the next to arrive.
#[test]
fn a_chunk_that_leaves_is_exhausted_first() {
    let layout = striped(20_000, 10);
    let mut sampler = Sampler::new(&layout, Plan::new(5, 0, 50)).unwrap();
    let (mut there, mut next) = ([ChunkOrdinal(0), ChunkOrdinal(1)], 2);
    while next < 10 {
        sampler.open(&[], &there).unwrap();
        sampler.leaving(Some(there[0])).unwrap();
        while sampler.unread(there[0]) > 0 {
            let batch = sampler.draw(|_| true).unwrap();
            assert_eq!(batch.count(Source::Resident), 50);
            sampler.yielded(batch.number()).unwrap();
        }
        let left = sampler.unread(there[1]);
        assert!((800..1600).contains(&left), "{left} of 2000 are left of the other");
        there = [there[1], ChunkOrdinal(next)];
        next += 1;
    }
}

#[test]
fn candidates_can_be_few_or_many() {
    let hits = |over_ask, window| {
        let plan = Plan { over_ask, window, ..Plan::new(5, 0, 10) };
        let mut sampler = Sampler::new(&layout(), plan).unwrap();
        sampler.draw(|item| item.0 % 10 == 0).unwrap().count(Source::Resident)
    };
    assert!(hits(1, 2048) < 5);
    assert_eq!(hits(1000, 1000), 10, "there are a hundred");
    assert_eq!(hits(1000, 1), hits(1, 2048), "a window is never shorter than a batch");
}

#[test]
fn contradictions_change_nothing_and_are_counted() {
    let mut sampler = Sampler::new(&layout(), Plan::new(5, 0, 50)).unwrap();
    let chunk = ChunkOrdinal;
    sampler.open(&[chunk(1)], &[chunk(2)]).unwrap();
    let first = sampler.draw(|_| false).unwrap();
    let second = sampler.draw(|_| false).unwrap();
    let before = sampler.state();
    let expected = [
        "batch 1 cannot have been yielded: 0 is next, and 2 are on their way",
        "batch 7 cannot have been yielded: 0 is next, and 2 are on their way",
        "chunk 10 of 10 cannot be open: chunks count from 0",
        "chunk 3 cannot be open twice",
        "chunk 1 cannot leave: it does not rotate",
    ];
    let refused = [
        sampler.yielded(second.number()).unwrap_err(),
        sampler.yielded(7).unwrap_err(),
        sampler.open(&[chunk(3)], &[chunk(10)]).unwrap_err(),
        sampler.open(&[chunk(3)], &[chunk(3)]).unwrap_err(),
        sampler.leaving(Some(chunk(1))).unwrap_err(),
    ];
    assert_eq!(refused.map(|refused| refused.to_string()), expected);
    assert_eq!((sampler.state(), sampler.counts().contradictions), (before, 5));
    sampler.yielded(first.number()).unwrap();
    assert!(sampler.yielded(first.number()).is_err(), "not twice");
    sampler.yielded(second.number()).unwrap();
    assert!(sampler.yielded(2).is_err(), "not before it is drawn");
    let third = sampler.draw(|_| false).unwrap();
    let open = layout().chunk_of_items();
    assert!(third.of(Source::Claimed).all(|item| [1, 2].contains(&open[index(item)])), "as before");
}

#[test]
fn what_is_unread_and_unyielded_is_known_for_every_chunk() {
    let mut sampler = Sampler::new(&layout(), Plan::new(5, 0, 30)).unwrap();
    let chunk = ChunkOrdinal(4);
    sampler.open(&[], &[chunk]).unwrap();
    let known = |sampler: &Sampler| (sampler.unread(chunk), sampler.unyielded(chunk));
    assert_eq!(known(&sampler), (100, 100));
    let batches: Vec<Batch> = (0..4).map(|_| sampler.draw(|_| true).unwrap()).collect();
    assert_eq!(known(&sampler), (0, 100));
    let released: Vec<_> =
        batches.iter().map(|batch| sampler.yielded(batch.number()).unwrap()).collect();
    assert_eq!(released, [vec![], vec![], vec![], vec![chunk]], "with its last item");
    assert_eq!(known(&sampler), (0, 0));
    assert_eq!(sampler.unread(ChunkOrdinal(99)), 0);
}
