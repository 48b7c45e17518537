//! Replays of a recorded order.

use super::*;

fn record(
    map: &HalfChunkMap,
    plan: EpochPlan,
    resident: impl Fn(ItemOrdinal) -> bool,
) -> Recording {
    let mut sampler = Sampler::new(map, plan).unwrap();
    sampler.set_draw_set(&draw_set(&[HalfChunk(2)], &[HalfChunk(3)])).unwrap();
    let mut recording = Recording::new(&sampler);
    while let Some(batch) = sampler.draw(&resident) {
        sampler.on_yielded(batch.number()).unwrap();
        recording.push(&batch).unwrap();
    }
    Recording::decode(&recording.encode()).unwrap()
}

fn batches(mut sampler: Sampler, resident: impl Fn(ItemOrdinal) -> bool) -> Vec<Batch> {
    let mut batches = Vec::new();
    let mut released = Vec::new();
    while let Some(batch) = sampler.draw(&resident) {
        released.extend(sampler.on_yielded(batch.number()).unwrap());
        batches.push(batch);
    }
    released.sort_unstable();
    assert_eq!(released, (0..10).map(HalfChunk).collect::<Vec<_>>(), "each once, and all");
    batches
}

#[test]
fn a_recorded_epoch_replays_bit_for_bit_whatever_is_resident() {
    let map = striped(1003, 10);
    for rank in 0..2 {
        let recording = record(&map, EpochPlan::new(5, 0, 16).on(rank, 2), |item| item.0 % 3 == 0);
        let replay = || Sampler::replay(&map, &recording, None).unwrap();
        let now = batches(replay(), |item| item.0 % 5 == 0);
        let then = batches(replay(), |_| false);
        let recorded: Vec<_> = recording.iter().collect();
        assert_eq!((now.len(), then.len()), (recorded.len(), recorded.len()));
        for ((now, then), (items, padding)) in now.iter().zip(&then).zip(recorded) {
            assert_eq!(
                ordinals(now.items().to_vec()),
                items.iter().map(|item| u64::from(*item)).collect::<Vec<_>>()
            );
            assert_eq!(now.items(), then.items());
            assert_eq!([now, then].map(|batch| batch.count(ItemSource::Padding)), [padding; 2]);
            assert!(now.of(ItemSource::Resident).all(|item| item.0 % 5 == 0));
            assert!(now.of(ItemSource::Claimed).all(|item| item.0 % 5 != 0));
        }
    }
}

#[test]
fn a_replay_resumes_where_it_was() {
    let map = striped(500, 10);
    let recording = record(&map, EpochPlan::new(5, 0, 16), |_| true);
    let mut sampler = Sampler::replay(&map, &recording, None).unwrap();
    let first: Vec<Batch> = (0..9).map(|_| sampler.draw(|_| true).unwrap()).collect();
    (0..7).for_each(|number| {
        sampler.on_yielded(number).unwrap();
    });
    let state = SamplerState::decode(&sampler.state().encode()).unwrap();
    let mut resumed = Sampler::replay(&map, &recording, Some(&state)).unwrap();
    assert_eq!(resumed.draw(|_| true).unwrap(), first[7]);
    let half_chunk = HalfChunk(0);
    assert_eq!(resumed.unyielded(half_chunk), sampler.unyielded(half_chunk));
    assert_eq!(resumed.clone().upcoming(3).len(), 3);

    assert_eq!(Sampler::resume(&map, &state).unwrap_err(), SamplerError::NeedsRecording);
    assert_eq!(
        Sampler::reshard(&map, std::slice::from_ref(&state), state.plan()).unwrap_err(),
        SamplerError::NeedsRecording
    );
    let other = record(&map, EpochPlan::new(6, 0, 16), |_| true);
    let refusal = Sampler::replay(&map, &other, Some(&state)).unwrap_err();
    assert_eq!(refusal, SamplerError::WrongRecording);
    let drawn = Sampler::new(&map, EpochPlan::new(5, 0, 16)).unwrap().state();
    let refusal = Sampler::replay(&map, &recording, Some(&drawn)).unwrap_err();
    assert_eq!(refusal, SamplerError::WrongRecording);
}

#[test]
fn a_recording_is_as_exact_as_a_state() {
    let map = striped(500, 10);
    let recording = record(&map, EpochPlan::new(5, 0, 16), |_| true);
    assert!(recording.encode().len() < 500 * 2 + 300, "two bytes an item");
    let bytes = recording.encode();
    for length in 0..bytes.len() {
        assert!(Recording::decode(&bytes[..length]).is_err());
    }
    let other = striped(501, 10);
    assert_eq!(Sampler::replay(&other, &recording, None).unwrap_err(), SamplerError::OtherMap);
    let state = Sampler::new(&map, EpochPlan::new(5, 0, 16)).unwrap().state().encode();
    let error = Recording::decode(&state).unwrap_err().to_string();
    assert_eq!(error, "this is not a recording of a sampler");

    // A batch that is not the next is refused.
    let mut sampler = Sampler::new(&map, EpochPlan::new(5, 0, 16)).unwrap();
    let mut recording = Recording::new(&sampler);
    let [first, second] = [0, 1].map(|_| sampler.draw(|_| true).unwrap());
    assert!(recording.push(&second).is_err());
    recording.push(&first).unwrap();
    assert!(recording.push(&first).is_err());
    assert_eq!(recording.batches(), 1);
}
