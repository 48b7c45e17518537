//! Going on with more or fewer ranks: what none of them has yielded is dealt anew.

use super::{
    Layout, Plan, Refusal, Sampler, State,
    deal::{self, Deal},
    runs::Runs,
    state::Progress,
};

impl Sampler {
    /// One rank's part in the rest of an epoch, from the states of all ranks that it had. Whatever they
    /// yielded is left out, the rest is dealt to `plan.world` ranks; batches count from nought again. The
    /// plan's seed and epoch are those of the states; all else may differ.
    pub fn resize(layout: &Layout, states: &[State], plan: Plan) -> Result<Self, Refusal> {
        plan.check()?;
        let first = first_of_all(states)?;
        first.of.check(layout)?;
        let Plan { seed, epoch, .. } = first.plan;
        if (plan.seed, plan.epoch) != (seed, epoch) {
            return Err(Refusal::OtherEpoch { seed, epoch });
        }
        let Progress::Drawn { base, .. } = &first.progress else {
            return Err(Refusal::NeedsRecording);
        };
        let deal = Deal::new(layout, &first.plan, base.as_deref())?;
        let items = usize::try_from(layout.items()).expect("a layout fits in memory");
        let mut left = vec![false; items];
        deal.all().for_each(|item| left[item as usize] = true);
        for state in states {
            let Progress::Drawn { unread, .. } = &state.progress else {
                return Err(Refusal::NeedsRecording);
            };
            let share = deal.share(&state.plan, state.stage);
            if share.chunks.len() != unread.len() {
                return Err(Refusal::Inconsistent);
            }
            for (items, unread) in share.chunks.iter().zip(unread) {
                if items.len() != unread.length() as usize {
                    return Err(Refusal::Inconsistent);
                }
                let yielded = unread.gaps().flatten();
                yielded.for_each(|place| left[items[place as usize] as usize] = false);
            }
        }
        let base = (0..layout.chunks()).map(|chunk| {
            let order = deal::order(layout, &plan, chunk)?;
            let places = (0_u32..).zip(&order).filter(|(_, item)| left[**item as usize]);
            let length = u32::try_from(order.len()).expect("a layout counts in 32 bits");
            Ok(Runs::new(length, places.map(|(place, _)| place)))
        });
        let base = base.collect::<Result<Vec<_>, Refusal>>()?;
        let stage = first.stage.checked_add(1).ok_or(Refusal::Inconsistent)?;
        Self::dealt(layout, plan, stage, Some(base))
    }
}

/// Sees to it that these are the states of all ranks of one job in one epoch.
fn first_of_all(states: &[State]) -> Result<&State, Refusal> {
    let Some(first) = states.first() else {
        return Err(Refusal::MissingRank { rank: 0, world: 1 });
    };
    let world = first.plan.world;
    let alike = |state: &State| {
        let base = |state: &State| match &state.progress {
            Progress::Drawn { base, .. } => base.clone(),
            Progress::Replayed { .. } => None,
        };
        state.of == first.of
            && state.stage == first.stage
            && state.plan.on(0, world) == first.plan.on(0, world)
            && state.plan.world == world
            && base(state) == base(first)
    };
    if let Some(other) = states.iter().find(|state| !alike(state)) {
        return Err(Refusal::Differ { first: first.plan.rank, other: other.plan.rank });
    }
    let mut ranks: Vec<u32> = states.iter().map(|state| state.plan.rank).collect();
    ranks.sort_unstable();
    if let Some(pair) = ranks.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Refusal::RankTwice { rank: pair[0] });
    }
    let missing = (0..world).zip(ranks.iter().map(Some).chain(std::iter::repeat(None)));
    match missing.into_iter().find(|(rank, found)| Some(rank) != *found) {
        Some((rank, _)) => Err(Refusal::MissingRank { rank, world }),
        None => Ok(first),
    }
}
