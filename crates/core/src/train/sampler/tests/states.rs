//! Invalid states, and the size of states.

use proptest::prelude::*;

use super::*;

fn started(map: &HalfChunkMap, plan: EpochPlan, batches: usize) -> Sampler {
    let mut sampler = Sampler::new(map, plan).unwrap();
    for _ in 0..batches {
        let batch = sampler.draw(|item| item.0 % 2 == 0).unwrap();
        sampler.on_yielded(batch.number()).unwrap();
    }
    sampler
}

#[test]
fn states_of_other_data_are_refused_by_name() {
    let map = striped(500, 10);
    let state = started(&map, EpochPlan::new(5, 0, 16), 9).state();
    assert!(Sampler::resume(&map, &state).is_ok());
    let of_item = map.half_chunk_of_items();
    let other = HalfChunkMap::new(
        DatasetId::from_bytes([2; 32]),
        10,
        of_item.iter().map(|half_chunk| HalfChunk(*half_chunk)),
    );
    let refusal = Sampler::resume(&other.unwrap(), &state).unwrap_err().to_string();
    assert!(refusal.contains(&"02".repeat(32)) && refusal.contains(&"01".repeat(32)), "{refusal}");
    for other in [striped(500, 5), striped(499, 10), map.clone().with_units(|_| 3)] {
        assert_eq!(Sampler::resume(&other, &state).unwrap_err(), SamplerError::OtherMap);
        let refusal = Sampler::reshard(&other, std::slice::from_ref(&state), state.plan());
        assert_eq!(refusal.unwrap_err(), SamplerError::OtherMap);
    }
}

#[test]
fn states_that_are_damaged_are_refused() {
    let bytes = started(&striped(500, 10), EpochPlan::new(5, 0, 16), 9).state().encode();
    for length in 0..bytes.len() {
        let cut = SamplerState::decode(&bytes[..length]).unwrap_err();
        assert!(matches!(cut, FormatError::Truncated { .. }), "{length}: {cut}");
    }
    for at in 0..bytes.len() * 8 {
        let mut wrong = bytes.clone();
        wrong[at / 8] ^= 1 << (at % 8);
        assert!(SamplerState::decode(&wrong).is_err(), "bit {at}");
    }
    let mut newer = bytes;
    newer[15] = 3;
    let error = SamplerState::decode(&newer).unwrap_err().to_string();
    assert_eq!(error, "this state is of version 3; this forebay reads versions up to 2");
}

/// The checksum may match although the numbers contradict each other.
#[test]
fn states_that_contradict_themselves_are_refused() {
    let map = striped(500, 10);
    let state = started(&map, EpochPlan::new(5, 0, 16), 9).state();
    let refused = |change: &dyn Fn(&mut SamplerState)| {
        let mut wrong = state.clone();
        change(&mut wrong);
        let refusal = Sampler::resume(&map, &wrong).unwrap_err();
        assert_eq!(refusal, SamplerError::Inconsistent);
    };
    refused(&|state| state.yielded += 1);
    refused(&|state| state.yielded = u64::MAX);
    refused(&|state| state.plan.batch -= 1);
    refused(&|state| state.plan.world = 2);
    refused(&|state| {
        let Progress::Drawn { unread, .. } = &mut state.progress else { unreachable!() };
        unread.pop();
    });
    refused(&|state| {
        let Progress::Drawn { base, .. } = &mut state.progress else { unreachable!() };
        *base = Some(vec![RunSet::new(3, 0..3); 10]);
    });
}

#[test]
fn another_number_of_ranks_needs_the_states_of_all() {
    let map = striped(500, 10);
    let state = |rank, world| started(&map, EpochPlan::new(5, 0, 16).on(rank, world), 3).state();
    let all: Vec<SamplerState> = (0..3).map(|rank| state(rank, 3)).collect();
    let plan = EpochPlan::new(5, 0, 16).on(1, 4);
    let refusal = |states: &[SamplerState], plan| Sampler::reshard(&map, states, plan).unwrap_err();
    assert!(Sampler::reshard(&map, &all, plan).is_ok());
    assert_eq!(refusal(&[], plan), SamplerError::MissingRank { rank: 0, world: 1 });
    assert_eq!(refusal(&all[..2], plan), SamplerError::MissingRank { rank: 2, world: 3 });
    assert_eq!(refusal(&all[1..], plan), SamplerError::MissingRank { rank: 0, world: 3 });
    let twice = [&all[..], &all[1..2]].concat();
    assert_eq!(refusal(&twice, plan), SamplerError::RankTwice { rank: 1 });
    let shuffle_quality = [all[0].clone(), state(1, 2), all[2].clone()];
    assert_eq!(refusal(&shuffle_quality, plan), SamplerError::Mismatch { first: 0, other: 1 });
    let epochs = EpochPlan { epoch: 1, ..plan };
    assert_eq!(refusal(&all, epochs), SamplerError::WrongEpoch { seed: 5, epoch: 0 });
    let no_ranks = EpochPlan { world: 0, ..plan };
    assert_eq!(refusal(&all, no_ranks), SamplerError::Plan(EpochPlanError::Zero("world")));
}

/// Positions that were passed over take space, and there are never more of them than a window.
#[test]
fn states_stay_small() {
    let map = striped(100_000, 10);
    let mut sampler = Sampler::new(&map, EpochPlan::new(5, 0, 256)).unwrap();
    let mut largest = 0;
    let mut states = sampler.clone();
    Rotation::new(&map, 2).epoch(&mut sampler, |batch, _| {
        // The same batches, by a sampler that never knows what is resident.
        if batch.number() % 16 == 0 {
            largest = largest.max(states.state().encode().len());
        }
        let again: std::collections::BTreeSet<u64> =
            ordinals(batch.items().to_vec()).into_iter().collect();
        let drawn = states.draw(|item| again.contains(&item.0)).unwrap();
        states.on_yielded(drawn.number()).unwrap();
    });
    assert!((200..8192).contains(&largest), "{largest} bytes");
}

proptest! {
    #![proptest_config(config(512))]

    /// Any state is refused, or no item comes twice.
    #[test]
    fn an_invalid_state_with_a_valid_checksum_repeats_nothing(
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0_u8..8), 1..4),
        like_length in any::<bool>(),
        resized in any::<bool>(),
        pack_window in 0_u32..4,
    ) {
        let map = striped(60, 4).with_units(|item| u32::try_from(item.0 / 6).unwrap());
        let packs = map.half_chunk_of_items().into_iter().zip(0_u32..);
        let map = map.with_packs(packs.map(|(half, item)| half * 100 + item / 20).collect());
        let plan = EpochPlan { like_length, pack_window, ..EpochPlan::new(1, 2, 8) };
        let mut sampler = started(&map, plan, 3);
        if resized {
            let plan = EpochPlan { batch: 4, ..plan };
            sampler = Sampler::reshard(&map, &[sampler.state()], plan.on(1, 2)).unwrap();
        }
        let mut bytes = sampler.state().encode();
        let body = 24 + 40..bytes.len() - 8;
        for (at, bit) in flips {
            bytes[body.clone()][at.index(body.len())] ^= 1 << bit;
        }
        let sum = *blake3::hash(&bytes[..body.end]).as_bytes();
        bytes[body.end..].copy_from_slice(&sum[..8]);
        if let Ok(state) = SamplerState::decode(&bytes) {
            prop_assert_eq!(SamplerState::decode(&state.encode()), Ok(state.clone()));
            let plan = EpochPlan { batch: 4, ..state.plan() }.on(0, 1);
            let resumed = Sampler::resume(&map, &state);
            let resized = Sampler::reshard(&map, &[state], plan);
            for mut sampler in [resumed, resized].into_iter().flatten() {
                let mut seen = std::collections::BTreeSet::new();
                while let Some(batch) = sampler.draw(|item| item.0 % 2 == 0) {
                    sampler.on_yielded(batch.number()).unwrap();
                    let own = batch.items().len() - batch.count(ItemSource::Padding) as usize;
                    prop_assert!(batch.items()[..own].iter().all(|item| seen.insert(*item)));
                }
            }
        }
    }
}
