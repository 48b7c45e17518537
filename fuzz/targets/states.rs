//! States and recordings of samplers, which come from checkpoints: refused, or read and written alike; and
//! a sampler that believes one yields no item twice.
//!
//! Under `cfg(fuzzing)` their checksums are not compared: nobody guesses one, and what lies behind it must
//! hold on its own.
#![no_main]

use forebay_core::{
    DatasetId,
    chunking::ChunkOrdinal,
    sampler::{Layout, Plan, Recording, Sampler, Source, State},
};
use forebay_fuzz::seed;
use libfuzzer_sys::fuzz_target;

const ITEMS: u32 = 60;

fn layout() -> Layout {
    let of_item = (0..ITEMS).map(|item| ChunkOrdinal(item % 4));
    let layout = Layout::new(DatasetId::from_bytes([7; 32]), 4, of_item).expect("four chunks");
    layout.with_units(|item| u32::try_from(item.0 / 6).expect("few units"))
}

fn yielded(sampler: &mut Sampler, batches: usize) -> Recording {
    let mut recording = Recording::new(sampler);
    for _ in 0..batches {
        let batch = sampler.draw(|item| item.0 % 3 == 0).expect("more than that");
        sampler.yielded(batch.number()).expect("just drawn");
        recording.push(&batch).expect("the next");
    }
    recording
}

/// Whatever it believes, no item comes twice.
fn run_to_the_end(mut sampler: Sampler) {
    let mut seen = [false; ITEMS as usize];
    while let Some(batch) = sampler.draw(|item| item.0 % 2 == 0) {
        for source in [Source::Resident, Source::Claimed, Source::Outside] {
            for item in batch.of(source) {
                let item = usize::try_from(item.0).expect("few items");
                assert!(!std::mem::replace(&mut seen[item], true), "item {item} came twice");
            }
        }
        sampler.yielded(batch.number()).expect("just drawn");
    }
}

fuzz_target!(
    init: {
        let layout = layout();
        let plan = Plan::new(1, 2, 8);
        let mut sampler = Sampler::new(&layout, plan).expect("a plan");
        let recording = yielded(&mut sampler, 3);
        seed("state", &sampler.state().encode());
        seed("recording", &recording.encode());
        let replay = Sampler::replay(&layout, &recording, None).expect("a recording");
        seed("replay", &replay.state().encode());
        let states = [sampler.state()];
        let plan = Plan { like_length: true, ..plan.on(1, 2) };
        let mut resized = Sampler::resize(&layout, &states, plan).expect("all ranks");
        yielded(&mut resized, 1);
        seed("resized", &resized.state().encode());
    },
    |data: &[u8]| {
        let layout = layout();
        if let Ok(state) = State::decode(data) {
            assert_eq!(State::decode(&state.encode()).as_ref(), Ok(&state));
            if let Ok(sampler) = Sampler::resume(&layout, &state) {
                assert_eq!(sampler.state(), state);
                run_to_the_end(sampler);
            }
            let plan = state.plan();
            if let Ok(sampler) = Sampler::resize(&layout, &[state], Plan { batch: 4, ..plan }.on(0, 1)) {
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
