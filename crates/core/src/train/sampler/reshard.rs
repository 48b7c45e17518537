//! Resharding: an epoch goes on with more or fewer ranks. What none of them has yielded is divided
//! again.

use super::{
    EpochPlan, HalfChunkMap, Sampler, SamplerError, SamplerState,
    rank_shares::{self, RankShares},
    run_set::RunSet,
    state::Progress,
};

impl Sampler {
    /// One rank's part in the rest of an epoch, from the states of all ranks that it had. What they
    /// yielded is left out, and the rest is divided among `plan.world` ranks. Batches count from 0
    /// again. Seed and epoch of the plan are those of the states; the rest may differ.
    pub fn reshard(
        map: &HalfChunkMap,
        states: &[SamplerState],
        plan: EpochPlan,
    ) -> Result<Self, SamplerError> {
        plan.check()?;
        let first = check_ranks(states)?;
        first.of.check(map, &first.plan)?;
        let EpochPlan { seed, epoch, .. } = first.plan;
        if (plan.seed, plan.epoch) != (seed, epoch) {
            return Err(SamplerError::WrongEpoch { seed, epoch });
        }
        let Progress::Drawn { base, .. } = &first.progress else {
            return Err(SamplerError::NeedsRecording);
        };
        let shares = RankShares::new(map, &first.plan, base.as_deref())?;
        let items = usize::try_from(map.items()).expect("the map fits in memory");
        let mut left = vec![false; items];
        shares.all().for_each(|item| left[item as usize] = true);
        for state in states {
            let Progress::Drawn { unread, .. } = &state.progress else {
                return Err(SamplerError::NeedsRecording);
            };
            let share = shares.share(&state.plan, state.stage);
            if share.half_chunks.len() != unread.len() {
                return Err(SamplerError::Inconsistent);
            }
            for (items, unread) in share.half_chunks.iter().zip(unread) {
                if items.len() != unread.length() as usize {
                    return Err(SamplerError::Inconsistent);
                }
                let yielded = unread.gaps().flatten();
                yielded.for_each(|position| left[items[position as usize] as usize] = false);
            }
        }
        let base = (0..map.half_chunks()).map(|half_chunk| {
            let order = rank_shares::order(map, &plan, half_chunk)?;
            let positions = (0_u32..).zip(&order).filter(|(_, item)| left[**item as usize]);
            let length = u32::try_from(order.len()).expect("items are 32 bits wide");
            Ok(RunSet::new(length, positions.map(|(position, _)| position)))
        });
        let base = base.collect::<Result<Vec<_>, SamplerError>>()?;
        let stage = first.stage.checked_add(1).ok_or(SamplerError::Inconsistent)?;
        Self::sharded(map, plan, stage, Some(base))
    }
}

/// Checks that these are the states of all ranks of one job in one epoch.
fn check_ranks(states: &[SamplerState]) -> Result<&SamplerState, SamplerError> {
    let Some(first) = states.first() else {
        return Err(SamplerError::MissingRank { rank: 0, world: 1 });
    };
    let world = first.plan.world;
    let similar = |state: &SamplerState| {
        let base = |state: &SamplerState| match &state.progress {
            Progress::Drawn { base, .. } => base.clone(),
            Progress::Replayed { .. } => None,
        };
        state.of == first.of
            && state.stage == first.stage
            && state.plan.on(0, world) == first.plan.on(0, world)
            && state.plan.world == world
            && base(state) == base(first)
    };
    if let Some(other) = states.iter().find(|state| !similar(state)) {
        return Err(SamplerError::Mismatch { first: first.plan.rank, other: other.plan.rank });
    }
    let mut ranks: Vec<u32> = states.iter().map(|state| state.plan.rank).collect();
    ranks.sort_unstable();
    if let Some(pair) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(SamplerError::RankTwice { rank: pair[0] });
    }
    let missing = (0..world).zip(ranks.iter().map(Some).chain(std::iter::repeat(None)));
    match missing.into_iter().find(|(rank, found)| Some(rank) != *found) {
        Some((rank, _)) => Err(SamplerError::MissingRank { rank, world }),
        None => Ok(first),
    }
}
