//! Sampler states and recordings, which come from checkpoints: refused, or encoded again to an
//! equal value. A sampler that resumes from one yields no item twice.
//!
//! Under `cfg(fuzzing)` their checksums are not compared: a fuzzer cannot guess one, and the code
//! behind the check must be safe without it.
#![no_main]

use forebay_core::{
    DatasetId, HalfChunk,
    train::sampler::{HalfChunkMap, EpochPlan, Recording, Sampler, ItemSource, SamplerState},
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

const ITEMS: u32 = 60;

fn layout() -> HalfChunkMap {
    let of_item = (0..ITEMS).map(|item| HalfChunk(item % 4));
    let dataset = DatasetId::from_bytes([7; 32]);
    let layout = HalfChunkMap::new(dataset, 4, of_item).expect("four half-chunks");
    layout.with_units(|item| u32::try_from(item.0 / 6).expect("few units"))
}

fn yielded(sampler: &mut Sampler, batches: usize) -> Recording {
    let mut recording = Recording::new(sampler);
    for _ in 0..batches {
        let batch = sampler.draw(|item| item.0 % 3 == 0).expect("more than that");
        sampler.on_yielded(batch.number()).expect("just drawn");
        recording.push(&batch).expect("the next");
    }
    recording
}

/// Draws all batches, and checks that no item is drawn twice.
fn run_to_the_end(mut sampler: Sampler) {
    let mut seen = [false; ITEMS as usize];
    while let Some(batch) = sampler.draw(|item| item.0 % 2 == 0) {
        for source in [ItemSource::Resident, ItemSource::Claimed, ItemSource::Uncached] {
            for item in batch.of(source) {
                let item = usize::try_from(item.0).expect("few items");
                assert!(!std::mem::replace(&mut seen[item], true), "item {item} drawn twice");
            }
        }
        sampler.on_yielded(batch.number()).expect("just drawn");
    }
}

fuzz_target!(
    init: {
        let layout = layout();
        let plan = EpochPlan::new(1, 2, 8);
        let mut sampler = Sampler::new(&layout, plan).expect("a plan");
        let recording = yielded(&mut sampler, 3);
        seed("state", &sampler.state().encode());
        seed("recording", &recording.encode());
        let replay = Sampler::replay(&layout, &recording, None).expect("a recording");
        seed("replay", &replay.state().encode());
        let states = [sampler.state()];
        let plan = EpochPlan { like_length: true, ..plan.on(1, 2) };
        let mut resized = Sampler::reshard(&layout, &states, plan).expect("all ranks");
        yielded(&mut resized, 1);
        seed("resized", &resized.state().encode());
    },
    |data: &[u8]| {
        let layout = layout();
        if let Ok(state) = SamplerState::decode(data) {
            assert_eq!(SamplerState::decode(&state.encode()).as_ref(), Ok(&state));
            if let Ok(sampler) = Sampler::resume(&layout, &state) {
                assert_eq!(sampler.state(), state);
                run_to_the_end(sampler);
            }
            let plan = EpochPlan { batch: 4, ..state.plan() }.on(0, 1);
            if let Ok(sampler) = Sampler::reshard(&layout, &[state], plan) {
                run_to_the_end(sampler);
            }
        }
        if let Ok(recording) = Recording::decode(data) {
            assert_eq!(Recording::decode(&recording.encode()).as_ref(), Ok(&recording));
            if let Ok(sampler) = Sampler::replay(&layout, &recording, None) {
                run_to_the_end(sampler);
            }
        }
    }
);
