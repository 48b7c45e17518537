//! How an epoch is dealt to ranks: all compute the same, so nobody has to ask.
//!
//! Each chunk has a random order. The chunks' orders, one after another, are dealt like cards, so that
//! ranks have equally much of every chunk, give or take one, and of the whole. What is already yielded
//! when the number of ranks changes is left out, and the rest is dealt anew.

use super::{
    Plan, Refusal,
    layout::{Layout, Likeness},
    random::{Purpose, Random},
    runs::Runs,
};

/// What is left of an epoch, chunk by chunk, each in its random order.
#[derive(Debug, Clone)]
pub(super) struct Deal {
    chunks: Vec<Vec<u32>>,
}

/// One rank's share.
#[derive(Debug)]
pub(super) struct Share {
    /// Its items of each chunk.
    pub(super) chunks: Vec<Vec<u32>>,
    /// What it repeats at the end, if others have an item more.
    pub(super) padding: Option<u32>,
}

/// The random order of a chunk, the same on all ranks. For batches of like length it goes from one end to
/// the other, and is random among those that are alike.
pub(super) fn order(layout: &Layout, plan: &Plan, chunk: u32) -> Result<Vec<u32>, Refusal> {
    let mut items = layout.members(chunk).to_vec();
    let mut random = Random::keyed(Purpose::Order, &[plan.seed, plan.epoch, chunk.into()]);
    random.shuffle(&mut items);
    if plan.like_length {
        let Likeness { numbers, slack } = layout.likeness()?;
        items.sort_by_cached_key(|item| {
            u64::from(numbers[*item as usize]) + u64::from(random.below(*slack))
        });
    }
    Ok(items)
}

impl Deal {
    /// All items, or those at the places that `base` names in each chunk's order.
    pub(super) fn new(
        layout: &Layout,
        plan: &Plan,
        base: Option<&[Runs]>,
    ) -> Result<Self, Refusal> {
        if base.is_some_and(|base| base.len() != layout.chunks() as usize) {
            return Err(Refusal::Inconsistent);
        }
        let left = |chunk: u32| {
            let order = order(layout, plan, chunk)?;
            let Some(base) = base.map(|base| &base[chunk as usize]) else { return Ok(order) };
            if base.length() as usize != order.len() {
                return Err(Refusal::Inconsistent);
            }
            Ok(base.iter().flatten().map(|place| order[place as usize]).collect())
        };
        let chunks = (0..layout.chunks()).map(left).collect::<Result<_, Refusal>>()?;
        Ok(Self { chunks })
    }

    /// All items that are dealt.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().flatten().copied()
    }

    /// How many items are dealt.
    pub(super) fn items(&self) -> u32 {
        let items = self.chunks.iter().map(Vec::len).sum::<usize>();
        u32::try_from(items).expect("a layout counts in 32 bits")
    }

    /// What a rank is dealt; `stage` counts how often the epoch was dealt anew.
    pub(super) fn share(&self, plan: &Plan, stage: u32) -> Share {
        let (rank, world) = (plan.rank as usize, plan.world as usize);
        let mut dealt = 0;
        let mut chunks = Vec::with_capacity(self.chunks.len());
        for (chunk, items) in (0_u32..).zip(&self.chunks) {
            // The first whose place among all is the rank's.
            let first = (rank + world - dealt % world) % world;
            let mut own: Vec<u32> = items.iter().skip(first).step_by(world).copied().collect();
            if plan.like_length {
                let key = [plan.seed, plan.epoch, stage.into(), plan.rank.into(), chunk.into()];
                let [of_epoch, of_chunk] =
                    [&key[..3], &key].map(|key| Random::keyed(Purpose::Runs, key));
                shuffle_runs(&mut own, plan.batch as usize, of_epoch, of_chunk);
            }
            chunks.push(own);
            dealt += items.len();
        }
        // Dealing goes on from the first card until all ranks have equally many.
        let last = dealt.saturating_sub(1) / world * world + rank;
        let padding = (dealt > 0 && last >= dealt).then(|| self.at((last - dealt) % dealt));
        Share { chunks, padding }
    }

    /// The item at a place among all that are dealt.
    fn at(&self, mut place: usize) -> u32 {
        for chunk in &self.chunks {
            match chunk.get(place) {
                Some(item) => return *item,
                None => place -= chunk.len(),
            }
        }
        unreachable!("fewer places than items are asked for")
    }
}

/// Shuffles whole runs of `length` items. If they do not divide, a shorter run is the last, and is read when
/// the chunk is nearly exhausted, together with those of other chunks. So all chunks of an epoch take it
/// from the same part of their lengths, and every epoch from another: it is not always the longest that
/// come at the end.
fn shuffle_runs(items: &mut [u32], length: usize, mut of_epoch: Random, mut of_chunk: Random) {
    let (whole, rest) = (items.len() / length, items.len() % length);
    let whole = u32::try_from(whole).expect("a layout counts in 32 bits");
    items[of_epoch.below(whole + 1) as usize * length..].rotate_left(rest);
    let mut runs: Vec<&[u32]> = items.chunks_exact(length).collect();
    of_chunk.shuffle(&mut runs);
    let shuffled = runs.concat();
    items[..shuffled.len()].copy_from_slice(&shuffled);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DatasetId, chunking::ChunkOrdinal};

    fn layout(of: &[u32], chunks: u32) -> Layout {
        let of = of.iter().map(|chunk| ChunkOrdinal(*chunk));
        Layout::new(DatasetId::from_bytes([1; 32]), chunks, of).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promise 2, and that all ranks yield equally many batches.
        #[test]
        fn ranks_share_all_items_evenly(
            of in proptest::collection::vec(0_u32..7, 0..200),
            world in 1_u32..12,
            batch in 1_u32..9,
            seed in any::<u64>(),
            like_length in any::<bool>(),
        ) {
            let layout = layout(&of, 7).with_units(|item| u32::try_from(item.0).unwrap() / 5);
            let plan = Plan { like_length, ..Plan::new(seed, 3, batch) };
            let deal = Deal::new(&layout, &plan, None).unwrap();
            let (length, _) = plan.on(0, world).length(deal.items());
            let mut dealt = Vec::new();
            for rank in 0..world {
                let share = deal.share(&plan.on(rank, world), 0);
                for (chunk, own) in (0..).zip(&share.chunks) {
                    let fair = layout.members(chunk).len() / world as usize;
                    prop_assert!((fair..=fair + 1).contains(&own.len()));
                    prop_assert!(own.iter().all(|item| of[*item as usize] == chunk));
                }
                let own: Vec<u32> = share.chunks.concat();
                prop_assert_eq!(own.len() + usize::from(share.padding.is_some()), length as usize);
                dealt.extend(own);
            }
            dealt.sort_unstable();
            prop_assert!(dealt.into_iter().eq(0..u32::try_from(of.len()).unwrap()));
        }
    }

    #[test]
    fn seeds_and_epochs_have_orders_of_their_own() {
        let layout = layout(&[0; 50], 1);
        let order = |seed, epoch| order(&layout, &Plan::new(seed, epoch, 8), 0).unwrap();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn runs_stay_whole() {
        let mut last = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut items: Vec<u32> = (0..23).collect();
            let [epoch, chunk] = [seed, 1000].map(|key| Random::keyed(Purpose::Runs, &[key]));
            shuffle_runs(&mut items, 5, epoch, chunk);
            assert!(items.chunks(5).all(|run| run.windows(2).all(|pair| pair[0] + 1 == pair[1])));
            last.insert(items[20]);
        }
        assert_eq!(Vec::from_iter(last), [0, 5, 10, 15, 20], "the short run may be any");
    }
}
