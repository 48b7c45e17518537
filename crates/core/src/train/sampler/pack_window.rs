//! The pack window: how items outside the cache are drawn if they lie in packs.
//!
//! A batch of random items lies in as many packs. If no node keeps these packs, each is fetched for
//! one item. So what is not cached is drawn from a **window** of packs that the agent keeps until
//! their last item is drawn: each pack is fetched once, and its items are spread over the draws
//! while it is open.
//!
//! The packs of a half-chunk come in random order. Pack `k` of `n` is open from `k - w + 1` to
//! `k + 1`, where `w` is the width of the window, and each of its items is drawn at a random time
//! in between. So `w` packs are open at any time, and one closes when another opens: the origin is
//! read at an even rate. The first packs are open from the start, for a shorter time, and the last
//! until the end, for a longer time. Otherwise an epoch would begin and end with few packs.
//!
//! The order is fixed when the epoch begins, and follows from its seed. A state needs nothing more
//! than what is unread.
//!
//! A window over all half-chunks has at least one pack of each. If memory has no room for that,
//! fewer half-chunks are drawn from at a time ([`WindowShape`]).
//!
//! Not here: what the agent keeps ([`crate::agent::agent_cache`]).

use std::{collections::BTreeMap, ops::Range};

use super::random::Random;
use crate::ByteSize;

/// The window takes at most one part in this many of the agent's memory. Half as much again is for
/// packs that are prefetched, and the rest for packs whose last items are drawn and not yet read.
const MEMORY_PER_WINDOW: u64 = 3;

/// Packs that are open at a time, for packs of about `pack_bytes` and an agent of this memory.
pub fn packs_open_max(agent_memory: ByteSize, pack_bytes: u64) -> u32 {
    let packs = agent_memory.0 / MEMORY_PER_WINDOW / pack_bytes.max(1);
    u32::try_from(packs.max(1)).unwrap_or(u32::MAX)
}

/// How a window is divided among half-chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowShape {
    /// Packs of a half-chunk that are open at a time.
    pub(super) width: u32,
    /// Half-chunks that are drawn from at a time.
    pub(super) half_chunks: u32,
}

impl WindowShape {
    /// For `packs` open packs of a dataset of `half_chunks` half-chunks.
    pub(super) fn new(packs: u32, half_chunks: u32) -> Self {
        let width = (packs / half_chunks.max(1)).max(1);
        Self { width, half_chunks: (packs / width).max(1) }
    }
}

/// The pack order of a half-chunk.
#[derive(Debug, Clone)]
pub(super) struct PackOrder {
    /// Positions in the random order.
    positions: Vec<u32>,
    /// Places in `positions` of the first item of each pack.
    opens: Vec<u32>,
    ahead: u32,
}

impl PackOrder {
    /// Of these items, which are in random order, with `width` packs open at a time.
    pub(super) fn new(
        items: &[u32],
        pack_of: impl Fn(u32) -> u32,
        width: u32,
        random: &mut Random,
    ) -> Self {
        // Packs are numbered in the order in which they occur, which is random.
        let mut numbers = BTreeMap::new();
        let narrow = |number: usize| u32::try_from(number).expect("items are 32 bits wide");
        let numbered: Vec<u32> = items
            .iter()
            .map(|item| {
                let next = narrow(numbers.len());
                *numbers.entry(pack_of(*item)).or_insert(next)
            })
            .collect();
        let packs = narrow(numbers.len());
        let width = width.clamp(1, packs.max(1));
        let mut timed: Vec<(u64, u32)> = (0_u32..)
            .zip(&numbered)
            .map(|(position, pack)| (draw_time(*pack, packs, width, random), position))
            .collect();
        timed.sort_unstable();
        let positions: Vec<u32> = timed.into_iter().map(|(_, position)| position).collect();
        let mut is_open = vec![false; packs as usize];
        let opens = (0_u32..).zip(&positions).filter(|(_, position)| {
            let pack = numbered[**position as usize];
            !std::mem::replace(&mut is_open[pack as usize], true)
        });
        let opens = opens.map(|(place, _)| place).collect();
        let of_window = u64::from(width) * items.len() as u64 / u64::from(packs.max(1));
        let ahead = u32::try_from(of_window.div_ceil(2)).expect("a part of the items");
        Self { positions, opens, ahead }
    }

    pub(super) fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Items ahead of a draw within which packs are announced: half a window.
    pub(super) fn ahead(&self) -> u32 {
        self.ahead
    }

    /// The first item of each pack that opens within these places, as positions.
    pub(super) fn opened_within(&self, places: Range<u32>) -> impl Iterator<Item = u32> {
        let start = self.opens.partition_point(|place| *place < places.start);
        let end = self.opens.partition_point(|place| *place < places.end).max(start);
        self.opens[start..end].iter().map(|place| self.positions[*place as usize])
    }
}

/// A random time while a pack is open. One unit is 2^32.
fn draw_time(pack: u32, packs: u32, width: u32, random: &mut Random) -> u64 {
    let start = (pack + 1).saturating_sub(width);
    let end = if packs - pack <= width { packs } else { pack + 1 };
    let within = u64::from(end - start) * u64::from(random.below(u32::MAX));
    (u64::from(start) << 32) + within
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::sampler::random::Purpose;

    fn order(packs: u32, items: u32, width: u32) -> (Vec<u32>, PackOrder) {
        let mut list: Vec<u32> = (0..packs * items).collect();
        let mut random = Random::keyed(Purpose::Packs, &[7, 1]);
        random.shuffle(&mut list);
        let order = PackOrder::new(&list, |item| item / items, width, &mut random);
        (list, order)
    }

    /// The largest number of packs that are begun and not exhausted.
    fn open_max(packs: u32, items: u32, width: u32) -> usize {
        let (list, order) = order(packs, items, width);
        let mut left = BTreeMap::new();
        let mut most = 0;
        for position in order.positions() {
            let pack = list[*position as usize] / items;
            *left.entry(pack).or_insert(items) -= 1;
            left.retain(|_, left| *left > 0);
            most = most.max(left.len());
        }
        most
    }

    #[test]
    fn few_packs_are_open_at_a_time() {
        for (packs, items, width) in [(100, 32, 10), (100, 512, 1), (40, 8, 3), (3, 100, 8)] {
            let most = open_max(packs, items, width);
            assert!(most <= width.min(packs) as usize + 1, "{most} of {width} packs");
        }
    }

    /// An epoch neither begins nor ends with the items of one pack.
    #[test]
    fn all_packs_of_the_window_are_open_from_the_first_draw_to_the_last() {
        let (list, order) = order(100, 512, 16);
        let packs_of = |positions: &[u32]| {
            let packs = positions.iter().map(|position| list[*position as usize] / 512);
            packs.collect::<std::collections::BTreeSet<_>>().len()
        };
        for batch in order.positions().chunks(256) {
            assert!(packs_of(batch) >= 12, "{} packs", packs_of(batch));
        }
    }

    #[test]
    fn each_pack_is_announced_once_before_it_opens() {
        let (list, order) = order(50, 20, 5);
        let announced: Vec<u32> = order.opened_within(0..1000).collect();
        let mut packs: Vec<u32> = announced.iter().map(|at| list[*at as usize] / 20).collect();
        packs.sort_unstable();
        assert!(packs.into_iter().eq(0..50));
        assert_eq!(order.opened_within(0..0).count(), 0);
        assert_eq!(order.ahead(), 50);
    }

    #[test]
    fn the_window_fits_the_memory_of_the_agent() {
        assert_eq!(packs_open_max(ByteSize::mib(256), 1 << 20), 85);
        assert_eq!(packs_open_max(ByteSize::mib(32), 64 << 10), 170);
        assert_eq!(packs_open_max(ByteSize::mib(1), 1 << 30), 1, "at least one");
        let shape = |packs, half_chunks| {
            let WindowShape { width, half_chunks } = WindowShape::new(packs, half_chunks);
            (width, half_chunks)
        };
        assert_eq!(shape(85, 20), (4, 21));
        assert_eq!(shape(10, 20), (1, 10), "not all half-chunks at a time");
        assert_eq!(shape(1, 1), (1, 1));
    }
}
