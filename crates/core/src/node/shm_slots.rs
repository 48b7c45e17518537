//! Which parts of a segment are free, being filled, or the client's.
//!
//! A node places bytes in memory that it shares with one client. A slot is taken for them, filled, given to
//! the client by telling it where it lies, and comes back when the client lets go. What the client says about
//! its slots is believed only where it can be true: it can let go of what it was given, once.

use std::collections::BTreeMap;

use crate::ByteSize;

/// Slots begin at multiples of this, and take whole ones.
pub const PAGE: u32 = 4096;
/// Free runs that are looked at before a segment counts as full: one that a client has cut into thousands of
/// little runs must not cost the node its time.
const RUNS_LOOKED_AT: usize = 64;

/// The slots of one segment.
#[derive(Debug)]
pub struct Slots {
    pages: u32,
    /// Free runs: first page to count. No two of them touch.
    free: BTreeMap<u32, u32>,
    /// What the client holds: first page to count.
    given: BTreeMap<u32, u32>,
    /// Pages that are being filled.
    filling: u32,
}

/// Part of a segment that is being filled, and nobody else's. It is returned by [`Slots::give`] or
/// [`Slots::give_back`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "dropped, its pages are lost to the segment"]
pub struct Slot {
    first: u32,
    pages: u32,
}

impl Slot {
    /// Where it begins, in bytes: also its name.
    pub fn offset(&self) -> u32 {
        self.first * PAGE
    }

    /// How much fits, in bytes.
    pub fn size(&self) -> u32 {
        self.pages * PAGE
    }
}

/// The client let go of what it was not given, or had let go of before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nothing was given to you at {0}; let go of every slot once")]
pub struct NotGiven(pub u32);

impl Slots {
    /// A segment of this size, all of it free. What is not a whole page is left out.
    pub fn new(size: ByteSize) -> Self {
        let pages = u32::try_from(size.0).expect("a segment is small") / PAGE;
        let free = if pages > 0 { BTreeMap::from([(0, pages)]) } else { BTreeMap::new() };
        Self { pages, free, given: BTreeMap::new(), filling: 0 }
    }

    /// Takes a slot for so many bytes; nothing, if there is no room or nothing to place. The lowest that fits:
    /// it was used last, most likely, and lies in the processor's caches.
    pub fn take(&mut self, length: u32) -> Option<Slot> {
        let pages = length.div_ceil(PAGE);
        if pages == 0 {
            return None;
        }
        let mut runs = self.free.iter().take(RUNS_LOOKED_AT);
        let (first, count) =
            runs.find(|(_, count)| **count >= pages).map(|(first, count)| (*first, *count))?;
        self.free.remove(&first);
        if count > pages {
            self.free.insert(first + pages, count - pages);
        }
        self.filling += pages;
        Some(Slot { first, pages })
    }

    /// The client is being told of it.
    #[expect(clippy::needless_pass_by_value, reason = "a slot is used up")]
    pub fn give(&mut self, slot: Slot) {
        let Slot { first, pages } = slot;
        self.filling -= pages;
        let before = self.given.insert(first, pages);
        assert!(before.is_none(), "a slot is somebody's alone");
    }

    /// It was taken in vain.
    #[expect(clippy::needless_pass_by_value, reason = "a slot is used up")]
    pub fn give_back(&mut self, slot: Slot) {
        let Slot { first, pages } = slot;
        self.filling -= pages;
        self.put(first, pages);
    }

    /// The client lets go of what lies there.
    pub fn release(&mut self, offset: u32) -> Result<(), NotGiven> {
        let is_ours = offset.is_multiple_of(PAGE);
        let pages = is_ours.then(|| self.given.remove(&(offset / PAGE))).flatten();
        self.put(offset / PAGE, pages.ok_or(NotGiven(offset))?);
        Ok(())
    }

    /// What is taken, in bytes.
    pub fn taken(&self) -> u64 {
        let free: u32 = self.free.values().sum();
        u64::from(self.pages - free) * u64::from(PAGE)
    }

    /// Puts a run back, joined with those that touch it.
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
        /// Whatever a client may say.
        Wild(u32),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0..40_000_u32).prop_map(Act::Take),
            3 => any::<Index>().prop_map(Act::Give),
            1 => any::<Index>().prop_map(Act::GiveBack),
            3 => any::<Index>().prop_map(Act::Release),
            1 => prop_oneof![any::<u32>(), (0..70_u32).prop_map(|page| page * PAGE)].prop_map(Act::Wild),
        ]
    }

    fn pick<T>(from: &mut Vec<T>, index: Index) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(index.index(from.len())))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..Default::default() })]

        /// Slots never overlap and never leave the segment, whatever the client says; and everything is
        /// returned in the end.
        #[test]
        fn slots_are_disjoint_and_all_come_back(acts in vec(act(), 0..200)) {
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
                prop_assert!(held.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{:?}", held);
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
            prop_assert!(whole.is_some(), "in one piece again");
        }
    }

    #[test]
    fn a_client_cannot_let_go_of_what_it_was_not_told_of() {
        let mut slots = Slots::new(SIZE);
        let slot = slots.take(1).unwrap();
        let offset = slot.offset();
        assert_eq!(slots.release(offset), Err(NotGiven(offset)), "still being filled");
        slots.give(slot);
        assert_eq!(slots.release(offset + 1), Err(NotGiven(offset + 1)), "not where it begins");
        assert_eq!(slots.release(offset), Ok(()));
    }

    #[test]
    fn nothing_is_placed_where_there_is_no_room() {
        let mut slots = Slots::new(SIZE);
        assert_eq!(slots.take(0), None, "nothing to place");
        assert_eq!(slots.take(u32::try_from(SIZE.0).unwrap() + 1), None);
        assert_eq!(slots.take(u32::MAX), None);
        let all = slots.take(u32::try_from(SIZE.0).unwrap()).unwrap();
        assert_eq!(slots.take(1), None);
        slots.give_back(all);
        assert_eq!(Slots::new(ByteSize(100)).take(1), None, "less than a page");
    }

    /// A segment in little pieces is full for whoever wants more than one of them, and says so quickly.
    #[test]
    fn a_segment_in_pieces_counts_as_full() {
        let mut slots = Slots::new(ByteSize::mib(64));
        let all: Vec<Slot> = std::iter::from_fn(|| slots.take(1)).collect();
        for (at, slot) in all.into_iter().enumerate() {
            if at % 2 == 0 { slots.give_back(slot) } else { slots.give(slot) }
        }
        assert_eq!(slots.take(2 * PAGE), None);
        assert!(slots.take(PAGE).is_some());
    }
}
