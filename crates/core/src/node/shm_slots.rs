//! Slots of a shared-memory region: free, being filled, or held by the client.
//!
//! The node shares a memory region with one client. To answer a get it allocates a slot, fills it
//! and sends its offset; the client releases the slot when it has used the bytes. The node trusts a
//! release only if the client holds that slot.

use std::collections::BTreeMap;

use crate::ByteSize;

/// Slots are aligned to this and are multiples of it.
pub const PAGE: u32 = 4096;
/// Free runs that are searched before the region counts as full. A client that fragments its region
/// into thousands of runs must not cost the node time.
const RUNS_SEARCHED_MAX: usize = 64;

/// The slots of one shared-memory region.
#[derive(Debug)]
pub struct Slots {
    pages: u32,
    /// Free runs, first page to page count. Adjacent runs are merged.
    free: BTreeMap<u32, u32>,
    /// Slots that the client holds, first page to page count.
    given: BTreeMap<u32, u32>,
    /// Pages of slots that are being filled.
    filling: u32,
}

/// A slot that is being filled. [`Slots::give`] or [`Slots::give_back`] ends it.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped slot leaks its pages"]
pub struct Slot {
    first: u32,
    pages: u32,
}

impl Slot {
    /// Offset in the region, in bytes. It also identifies the slot.
    pub fn offset(&self) -> u32 {
        self.first * PAGE
    }

    /// Size in bytes.
    pub fn size(&self) -> u32 {
        self.pages * PAGE
    }
}

/// The client released a slot that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("you hold no slot at offset {0}; release every slot once")]
pub struct NotGiven(pub u32);

impl Slots {
    /// A free region of this size, rounded down to whole pages.
    pub fn new(size: ByteSize) -> Self {
        let pages = u32::try_from(size.0).expect("a region is smaller than 4 GiB") / PAGE;
        let free = if pages > 0 { BTreeMap::from([(0, pages)]) } else { BTreeMap::new() };
        Self { pages, free, given: BTreeMap::new(), filling: 0 }
    }

    /// Allocates the lowest slot that fits `length` bytes: it was probably used last, and is in the
    /// processor's caches. `None` if no run fits or `length` is 0.
    pub fn take(&mut self, length: u32) -> Option<Slot> {
        let pages = length.div_ceil(PAGE);
        if pages == 0 {
            return None;
        }
        let mut runs = self.free.iter().take(RUNS_SEARCHED_MAX);
        let (first, count) =
            runs.find(|(_, count)| **count >= pages).map(|(first, count)| (*first, *count))?;
        self.free.remove(&first);
        if count > pages {
            self.free.insert(first + pages, count - pages);
        }
        self.filling += pages;
        Some(Slot { first, pages })
    }

    /// Passes a filled slot to the client.
    #[expect(clippy::needless_pass_by_value, reason = "consumes the slot")]
    pub fn give(&mut self, slot: Slot) {
        let Slot { first, pages } = slot;
        self.filling -= pages;
        let before = self.given.insert(first, pages);
        assert!(before.is_none(), "slots do not overlap");
    }

    /// Frees a slot that was not passed to the client.
    #[expect(clippy::needless_pass_by_value, reason = "consumes the slot")]
    pub fn give_back(&mut self, slot: Slot) {
        let Slot { first, pages } = slot;
        self.filling -= pages;
        self.put(first, pages);
    }

    /// Frees a slot that the client holds.
    pub fn release(&mut self, offset: u32) -> Result<(), NotGiven> {
        let is_aligned = offset.is_multiple_of(PAGE);
        let pages = is_aligned.then(|| self.given.remove(&(offset / PAGE))).flatten();
        self.put(offset / PAGE, pages.ok_or(NotGiven(offset))?);
        Ok(())
    }

    /// Bytes allocated.
    pub fn taken(&self) -> u64 {
        let free: u32 = self.free.values().sum();
        u64::from(self.pages - free) * u64::from(PAGE)
    }

    /// Returns a run to the free list, merged with its neighbours.
    fn put(&mut self, mut first: u32, mut pages: u32) {
        if let Some((before, count)) = self.free.range(..first).next_back()
            && before + count == first
        {
            (first, pages) = (*before, count + pages);
        }
        if let Some(after) = self.free.remove(&(first + pages)) {
            pages += after;
        }
        self.free.insert(first, pages);
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::Index};

    use super::*;

    const SIZE: ByteSize = ByteSize::kib(256);

    #[derive(Debug, Clone)]
    enum Act {
        Take(u32),
        Give(Index),
        GiveBack(Index),
        Release(Index),
        /// Any offset that a client may send.
        Wild(u32),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..40_000_u32).prop_map(Act::Take),
            3 => any::<Index>().prop_map(Act::Give),
            1 => any::<Index>().prop_map(Act::GiveBack),
            3 => any::<Index>().prop_map(Act::Release),
            1 => prop_oneof![any::<u32>(), (0..70_u32).prop_map(|page| page * PAGE)]
                .prop_map(Act::Wild),
        ]
    }

    fn pick<T>(from: &mut Vec<T>, index: Index) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(index.index(from.len())))
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            cases: 500,
            ..Default::default()
        })]

        /// Slots never overlap and never leave the region, whatever the client sends, and all of
        /// them are freed in the end.
        #[test]
        fn slots_are_disjoint_and_all_are_freed(acts in vec(act(), 0..200)) {
            let mut slots = Slots::new(SIZE);
            let (mut filling, mut given): (Vec<Slot>, Vec<(u32, u32)>) = (Vec::new(), Vec::new());
            for act in acts {
                match act {
                    Act::Take(length) => if let Some(slot) = slots.take(length) {
                        prop_assert!(slot.size() >= length && slot.size() < length + PAGE);
                        filling.push(slot);
                    },
                    Act::Give(index) => if let Some(slot) = pick(&mut filling, index) {
                        given.push((slot.offset(), slot.size()));
                        slots.give(slot);
                    },
                    Act::GiveBack(index) => if let Some(slot) = pick(&mut filling, index) {
                        slots.give_back(slot);
                    },
                    Act::Release(index) => if let Some((offset, _)) = pick(&mut given, index) {
                        prop_assert_eq!(slots.release(offset), Ok(()));
                        prop_assert_eq!(slots.release(offset), Err(NotGiven(offset)), "twice");
                    },
                    Act::Wild(offset) => {
                        let known = given.iter().position(|(at, _)| *at == offset);
                        prop_assert_eq!(slots.release(offset).is_ok(), known.is_some());
                        known.map(|at| given.swap_remove(at));
                    }
                }
                let held = filling.iter().map(|slot| (slot.offset(), slot.size()));
                let mut held: Vec<(u32, u32)> = held.chain(given.iter().copied()).collect();
                held.sort_unstable();
                let is_disjoint = held.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0);
                prop_assert!(is_disjoint, "{:?}", held);
                prop_assert!(held.last().is_none_or(|(at, size)| u64::from(at + size) <= SIZE.0));
                let sum: u32 = held.iter().map(|(_, size)| size).sum();
                prop_assert_eq!(slots.taken(), u64::from(sum));
            }
            for slot in filling {
                slots.give_back(slot);
            }
            for (offset, _) in given {
                prop_assert_eq!(slots.release(offset), Ok(()));
            }
            prop_assert_eq!((slots.taken(), slots.filling), (0, 0));
            let whole = slots.take(u32::try_from(SIZE.0).unwrap());
            prop_assert!(whole.is_some(), "one free run again");
        }
    }

    #[test]
    fn a_client_can_release_only_slots_that_it_holds() {
        let mut slots = Slots::new(SIZE);
        let slot = slots.take(1).unwrap();
        let offset = slot.offset();
        assert_eq!(slots.release(offset), Err(NotGiven(offset)), "still being filled");
        slots.give(slot);
        assert_eq!(
            slots.release(offset + 1),
            Err(NotGiven(offset + 1)),
            "not the start of the slot"
        );
        assert_eq!(slots.release(offset), Ok(()));
    }

    #[test]
    fn a_full_region_allocates_nothing() {
        let mut slots = Slots::new(SIZE);
        assert_eq!(slots.take(0), None, "no bytes");
        assert_eq!(slots.take(u32::try_from(SIZE.0).unwrap() + 1), None);
        assert_eq!(slots.take(u32::MAX), None);
        let all = slots.take(u32::try_from(SIZE.0).unwrap()).unwrap();
        assert_eq!(slots.take(1), None);
        slots.give_back(all);
        assert_eq!(Slots::new(ByteSize(100)).take(1), None, "less than a page");
    }

    /// The search for a run is bounded.
    #[test]
    fn a_fragmented_region_counts_as_full() {
        let mut slots = Slots::new(ByteSize::mib(64));
        let all: Vec<Slot> = std::iter::from_fn(|| slots.take(1)).collect();
        for (at, slot) in all.into_iter().enumerate() {
            if at % 2 == 0 { slots.give_back(slot) } else { slots.give(slot) }
        }
        assert_eq!(slots.take(2 * PAGE), None);
        assert!(slots.take(PAGE).is_some());
    }
}
