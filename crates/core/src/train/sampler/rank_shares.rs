//! Rank shares: how the items of an epoch are divided among ranks. All ranks compute the same,
//! without communication.
//!
//! Each half-chunk has a random order. These orders, one after the other, are distributed
//! round-robin, so that ranks have equally many items of every half-chunk and of the epoch, plus or
//! minus one. When the number of ranks changes, what was yielded is left out, and the rest is
//! divided again.
//!
//! With a window of packs, whole packs are distributed, each to the rank that has the least: every
//! rank has an agent of its own, and each would fetch a pack that is shared. Only as many packs as
//! there are ranks are cut, so that ranks have equally many items of the epoch. Of a half-chunk
//! they have equally many plus or minus a pack.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use super::{
    EpochPlan, SamplerError,
    half_chunk_map::{HalfChunkMap, Similarity},
    random::{Purpose, Random},
    run_set::RunSet,
};

/// What is left of an epoch: the items of each half-chunk, in its random order.
#[derive(Debug, Clone)]
pub(super) struct RankShares {
    half_chunks: Vec<Vec<u32>>,
    /// The pack of each item of the dataset, if whole packs are distributed.
    packs: Option<Arc<[u32]>>,
}

/// One rank's share.
#[derive(Debug)]
pub(super) struct RankShare {
    /// Its items of each half-chunk.
    pub(super) half_chunks: Vec<Vec<u32>>,
    /// The item that it repeats at the end, if other ranks have one more.
    pub(super) padding: Option<u32>,
}

/// The random order of a half-chunk, the same on all ranks. For batches of like length it is sorted
/// by length, and random among similar items.
pub(super) fn order(
    map: &HalfChunkMap,
    plan: &EpochPlan,
    half_chunk: u32,
) -> Result<Vec<u32>, SamplerError> {
    let mut items = map.items_of_half_chunk(half_chunk).to_vec();
    let mut random = Random::keyed(Purpose::Order, &[plan.seed, plan.epoch, half_chunk.into()]);
    random.shuffle(&mut items);
    if plan.like_length {
        let Similarity { numbers, slack } = map.similarity()?;
        items.sort_by_cached_key(|item| {
            u64::from(numbers[*item as usize]) + u64::from(random.below(*slack))
        });
    }
    Ok(items)
}

impl RankShares {
    /// All items, or those at the positions of `base` in each half-chunk's order.
    pub(super) fn new(
        map: &HalfChunkMap,
        plan: &EpochPlan,
        base: Option<&[RunSet]>,
    ) -> Result<Self, SamplerError> {
        if base.is_some_and(|base| base.len() != map.half_chunks() as usize) {
            return Err(SamplerError::Inconsistent);
        }
        let left = |half_chunk: u32| {
            let order = order(map, plan, half_chunk)?;
            let Some(base) = base.map(|base| &base[half_chunk as usize]) else { return Ok(order) };
            if base.length() as usize != order.len() {
                return Err(SamplerError::Inconsistent);
            }
            Ok(base.iter().flatten().map(|position| order[position as usize]).collect())
        };
        let half_chunks = (0..map.half_chunks()).map(left).collect::<Result<_, SamplerError>>()?;
        let packs = map.packs(plan).map(|packs| Arc::clone(&packs.of_items));
        Ok(Self { half_chunks, packs })
    }

    /// All items that are divided.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        self.half_chunks.iter().flatten().copied()
    }

    /// Number of items that are divided.
    pub(super) fn items(&self) -> u32 {
        let items = self.half_chunks.iter().map(Vec::len).sum::<usize>();
        u32::try_from(items).expect("items are 32 bits wide")
    }

    /// The share of a rank; `stage` counts how often the epoch was resharded.
    pub(super) fn share(&self, plan: &EpochPlan, stage: u32) -> RankShare {
        let (rank, world) = (plan.rank as usize, plan.world as usize);
        if let Some(packs) = self.packs.as_ref().filter(|_| world > 1) {
            let half_chunks = self.whole_packs(packs, plan);
            return RankShare { half_chunks, padding: self.padding(rank, world) };
        }
        let mut sharded = 0;
        let mut half_chunks = Vec::with_capacity(self.half_chunks.len());
        for (half_chunk, items) in (0_u32..).zip(&self.half_chunks) {
            // The first item whose position among all is the rank's.
            let first = (rank + world - sharded % world) % world;
            let mut own: Vec<u32> = items.iter().skip(first).step_by(world).copied().collect();
            if plan.like_length {
                let key =
                    [plan.seed, plan.epoch, stage.into(), plan.rank.into(), half_chunk.into()];
                let [of_epoch, of_half_chunk] =
                    [&key[..3], &key].map(|key| Random::keyed(Purpose::Runs, key));
                shuffle_runs(&mut own, plan.batch as usize, of_epoch, of_half_chunk);
            }
            half_chunks.push(own);
            sharded += items.len();
        }
        RankShare { half_chunks, padding: self.padding(rank, world) }
    }

    /// The item that a rank repeats. Padding goes on from the first item until all ranks have
    /// equally many.
    fn padding(&self, rank: usize, world: usize) -> Option<u32> {
        let sharded = self.items() as usize;
        let last = sharded.saturating_sub(1) / world * world + rank;
        (sharded > 0 && last >= sharded).then(|| self.at((last - sharded) % sharded))
    }

    /// The items of whole packs that a rank has of each half-chunk.
    fn whole_packs(&self, packs: &[u32], plan: &EpochPlan) -> Vec<Vec<u32>> {
        let items = self.items();
        let quota = |rank: u32| items / plan.world + u32::from(rank < items % plan.world);
        let mut room: BinaryHeap<(u32, Reverse<u32>)> =
            (0..plan.world).map(|rank| (quota(rank), Reverse(rank))).collect();
        let mut share = |items: &Vec<u32>| {
            let mut own: Vec<u32> = Vec::new();
            for pack in positions_by_pack(items, packs) {
                let mut left = &pack[..];
                while !left.is_empty() {
                    let (space, Reverse(rank)) = room.pop().expect("quotas add up to all items");
                    let (given, rest) = left.split_at(left.len().min(space as usize));
                    if rank == plan.rank {
                        own.extend(given);
                    }
                    let given = u32::try_from(given.len()).expect("items are 32 bits wide");
                    room.push((space - given, Reverse(rank)));
                    left = rest;
                }
            }
            own.sort_unstable();
            own.into_iter().map(|position| items[position as usize]).collect()
        };
        self.half_chunks.iter().map(&mut share).collect()
    }

    /// The item at a position among all that are divided.
    fn at(&self, mut position: usize) -> u32 {
        for half_chunk in &self.half_chunks {
            match half_chunk.get(position) {
                Some(item) => return *item,
                None => position -= half_chunk.len(),
            }
        }
        unreachable!("fewer places than items are asked for")
    }
}

/// The positions of each pack in a list of items. Packs are in the order in which they occur.
fn positions_by_pack(items: &[u32], packs: &[u32]) -> Vec<Vec<u32>> {
    let mut numbers = BTreeMap::new();
    let mut positions: Vec<Vec<u32>> = Vec::new();
    for (position, item) in (0_u32..).zip(items) {
        let number = *numbers.entry(packs[*item as usize]).or_insert(positions.len());
        if number == positions.len() {
            positions.push(Vec::new());
        }
        positions[number].push(position);
    }
    positions
}

/// Shuffles whole runs of `length` items. If they do not divide, the last run is shorter. It is
/// read when the half-chunk is nearly exhausted, together with those of other half-chunks. All
/// half-chunks of an epoch take the short run from the same part of their lengths, and every epoch
/// from another part. So the longest items do not always come last.
fn shuffle_runs(items: &mut [u32], length: usize, mut of_epoch: Random, mut of_half_chunk: Random) {
    let (whole, rest) = (items.len() / length, items.len() % length);
    let whole = u32::try_from(whole).expect("items are 32 bits wide");
    items[of_epoch.below(whole + 1) as usize * length..].rotate_left(rest);
    let mut runs: Vec<&[u32]> = items.chunks_exact(length).collect();
    of_half_chunk.shuffle(&mut runs);
    let shuffled = runs.concat();
    items[..shuffled.len()].copy_from_slice(&shuffled);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DatasetId, HalfChunk};

    fn map(of: &[u32], half_chunks: u32) -> HalfChunkMap {
        let of = of.iter().map(|half_chunk| HalfChunk(*half_chunk));
        HalfChunkMap::new(DatasetId::from_bytes([1; 32]), half_chunks, of).unwrap()
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
            let map = map(&of, 7).with_units(|item| u32::try_from(item.0).unwrap() / 5);
            let plan = EpochPlan { like_length, ..EpochPlan::new(seed, 3, batch) };
            let shares = RankShares::new(&map, &plan, None).unwrap();
            let (length, _) = plan.on(0, world).length(shares.items());
            let mut sharded = Vec::new();
            for rank in 0..world {
                let share = shares.share(&plan.on(rank, world), 0);
                for (half_chunk, own) in (0..).zip(&share.half_chunks) {
                    let fair = map.items_of_half_chunk(half_chunk).len() / world as usize;
                    prop_assert!((fair..=fair + 1).contains(&own.len()));
                    prop_assert!(own.iter().all(|item| of[*item as usize] == half_chunk));
                }
                let own: Vec<u32> = share.half_chunks.concat();
                prop_assert_eq!(own.len() + usize::from(share.padding.is_some()), length as usize);
                sharded.extend(own);
            }
            sharded.sort_unstable();
            prop_assert!(sharded.into_iter().eq(0..u32::try_from(of.len()).unwrap()));
        }
    }

    /// Every rank has an agent of its own, so a pack that two ranks share is fetched twice.
    #[test]
    fn ranks_have_whole_packs() {
        let of: Vec<u32> = (0..2003).map(|item| item / 10 % 7).collect();
        let map = map(&of, 7).with_packs((0..2003).map(|item| item / 10).collect());
        let plan = EpochPlan { pack_window: 4, ..EpochPlan::new(5, 0, 8) };
        for world in [2, 3, 5] {
            let shares = RankShares::new(&map, &plan, None).unwrap();
            let mut readers = vec![0; 201];
            let mut sharded = Vec::new();
            for rank in 0..world {
                let share = shares.share(&plan.on(rank, world), 0);
                let own = share.half_chunks.concat();
                let packs: std::collections::BTreeSet<u32> =
                    own.iter().map(|item| item / 10).collect();
                for pack in packs {
                    readers[pack as usize] += 1;
                }
                let (length, _) = plan.on(rank, world).length(2003);
                assert_eq!(own.len() + usize::from(share.padding.is_some()), length as usize);
                sharded.extend(own);
            }
            sharded.sort_unstable();
            assert!(sharded.into_iter().eq(0..2003));
            let cut: u32 = readers.iter().map(|readers| readers - 1).sum();
            assert!(cut <= world, "{cut} packs are read by two ranks");
        }
    }

    #[test]
    fn seeds_and_epochs_have_orders_of_their_own() {
        let map = map(&[0; 50], 1);
        let order = |seed, epoch| order(&map, &EpochPlan::new(seed, epoch, 8), 0).unwrap();
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn runs_stay_whole() {
        let mut last = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let mut items: Vec<u32> = (0..23).collect();
            let [of_epoch, of_half_chunk] =
                [seed, 1000].map(|key| Random::keyed(Purpose::Runs, &[key]));
            shuffle_runs(&mut items, 5, of_epoch, of_half_chunk);
            assert!(items.chunks(5).all(|run| run.windows(2).all(|pair| pair[0] + 1 == pair[1])));
            last.insert(items[20]);
        }
        assert_eq!(Vec::from_iter(last), [0, 5, 10, 15, 20], "the short run may be any");
    }
}
