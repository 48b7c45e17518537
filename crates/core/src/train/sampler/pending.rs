//! Pending items: what a rank has yet to draw of one half-chunk.
//!
//! The items are in two orders. The **random** order is a permutation of all of them. The **pack**
//! order is one in which few packs are open at a time (`pack_window.rs`); it is made when the
//! half-chunk is first drawn in it. A draw looks at candidates from the front of one order, takes
//! some and passes over others. What is taken is gone from both orders. What is passed over stays
//! in place, and the next draw looks at it first.

use super::{pack_window::PackOrder, run_set::RunSet};

#[derive(Debug, Clone)]
pub(super) struct Pending {
    /// The rank's items of this half-chunk, in random order. A position is an index into them.
    items: Vec<u32>,
    /// A bit for each position that is unread.
    unread: Vec<u64>,
    left: u32,
    random: Cursor,
    packs: Option<(PackOrder, Cursor)>,
}

/// Where draws are in an order.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    /// Nothing before this place is unread.
    first: u32,
    /// The place at which the current draw looks next.
    next: u32,
    /// Places before this one were announced.
    announced: u32,
}

/// The order in which a draw looks at candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrawOrder {
    Random,
    /// Few packs at a time, if there are packs; else the random order.
    Packs,
}

/// A candidate of a draw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) item: u32,
    pub(super) position: u32,
}

impl Pending {
    pub(super) fn new(items: Vec<u32>) -> Self {
        let left = u32::try_from(items.len()).expect("items are 32 bits wide");
        let mut unread = vec![u64::MAX; items.len().div_ceil(64)];
        if let Some(last) = unread.last_mut().filter(|_| left % 64 > 0) {
            *last = (1 << (left % 64)) - 1;
        }
        Self { items, unread, left, random: Cursor::default(), packs: None }
    }

    /// Keeps only what a state has as unread. `None` if the state belongs to another list.
    pub(super) fn resume(&mut self, unread: &RunSet) -> Option<()> {
        if unread.length() != self.length() {
            return None;
        }
        (self.random, self.packs, self.left) = (Cursor::default(), None, 0);
        self.unread.fill(0);
        for position in unread.iter().flatten() {
            self.unread[position as usize / 64] |= 1 << (position % 64);
            self.left += 1;
        }
        self.end_draw();
        Some(())
    }

    /// Number of items that are left to draw.
    pub(super) fn unread(&self) -> u32 {
        self.left
    }

    /// Items that are unread, in random order.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        self.positions_from(self.random.first).map(|position| self.items[position as usize])
    }

    /// Whether the pack order is made.
    pub(super) fn has_pack_order(&self) -> bool {
        self.packs.is_some()
    }

    /// Makes the pack order of these items.
    pub(super) fn set_pack_order(&mut self, make: impl FnOnce(&[u32]) -> PackOrder) {
        self.packs = Some((make(&self.items), Cursor::default()));
        self.end_draw();
    }

    fn length(&self) -> u32 {
        u32::try_from(self.items.len()).expect("items are 32 bits wide")
    }

    fn is_unread(&self, position: u32) -> bool {
        self.unread[position as usize / 64] >> (position % 64) & 1 == 1
    }

    /// The first position that is unread, from `position` on; the length if there is none.
    fn first_unread(&self, position: u32) -> u32 {
        let mut word = position as usize / 64;
        let Some(bits) = self.unread.get(word) else { return self.length() };
        let mut bits = bits & (u64::MAX << (position % 64));
        while bits == 0 {
            word += 1;
            let Some(next) = self.unread.get(word) else { return self.length() };
            bits = *next;
        }
        u32::try_from(word * 64).expect("items are 32 bits wide") + bits.trailing_zeros()
    }

    fn positions_from(&self, start: u32) -> impl Iterator<Item = u32> {
        let first = self.first_unread(start);
        let next = |position: &u32| Some(self.first_unread(position + 1));
        std::iter::successors(Some(first), next).take_while(|position| *position < self.length())
    }

    /// The next candidate of this draw.
    pub(super) fn look(&mut self, order: DrawOrder) -> Option<Candidate> {
        let position = if let (DrawOrder::Packs, Some((packs, cursor))) = (order, &self.packs) {
            let rest = &packs.positions()[cursor.next as usize..];
            let skipped = rest.iter().position(|position| self.is_unread(*position))?;
            let position = rest[skipped];
            let (_, cursor) = self.packs.as_mut().expect("just seen");
            cursor.next += u32::try_from(skipped).expect("items are 32 bits wide") + 1;
            position
        } else {
            let position = self.first_unread(self.random.next);
            if position == self.length() {
                return None;
            }
            self.random.next = position + 1;
            position
        };
        Some(Candidate { item: self.items[position as usize], position })
    }

    pub(super) fn take(&mut self, Candidate { position, .. }: Candidate) {
        debug_assert!(self.is_unread(position), "an item is drawn once");
        self.unread[position as usize / 64] &= !(1 << (position % 64));
        self.left -= 1;
    }

    /// Ends a draw: candidates that were not taken stay, in order.
    pub(super) fn end_draw(&mut self) {
        self.random.first = self.first_unread(self.random.first);
        self.random.next = self.random.first;
        if let Some((packs, cursor)) = &self.packs {
            let rest = &packs.positions()[cursor.first as usize..];
            let taken = rest.iter().take_while(|position| !self.is_unread(**position)).count();
            let (_, cursor) = self.packs.as_mut().expect("just seen");
            cursor.first += u32::try_from(taken).expect("items are 32 bits wide");
            cursor.next = cursor.first;
        }
    }

    /// What is unread if these positions, in any order, are unread, too.
    pub(super) fn unread_with(&self, drawn: &mut Vec<u32>) -> RunSet {
        drawn.extend(self.positions_from(self.random.first));
        drawn.sort_unstable();
        RunSet::new(self.length(), drawn.iter().copied())
    }

    /// Of the next `count` items in random order, those that were not announced before.
    pub(super) fn announce(&mut self, count: usize) -> Vec<u32> {
        let announced = self.random.announced;
        let unread = self.positions_from(self.random.first).take(count);
        let news: Vec<u32> = unread.filter(|position| *position >= announced).collect();
        self.random.announced = news.last().map_or(announced, |last| last + 1);
        news.into_iter().map(|position| self.items[position as usize]).collect()
    }

    /// An item of each pack that opens soon in pack order and was not announced before. A pack
    /// whose first item is drawn is not announced: it is fetched, or exhausted.
    pub(super) fn announce_packs(&mut self) -> Vec<u32> {
        let Some((packs, cursor)) = &self.packs else { return Vec::new() };
        let places = cursor.announced..cursor.first.saturating_add(packs.ahead());
        let opened = packs.opened_within(places.clone());
        let opened = opened.filter(|position| self.is_unread(*position));
        let items = opened.map(|position| self.items[position as usize]).collect();
        let (_, cursor) = self.packs.as_mut().expect("just seen");
        cursor.announced = cursor.announced.max(places.end);
        items
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::sampler::random::{Purpose, Random};

    /// Draws from at most `look` candidates, and takes those that `wanted` accepts.
    fn draw(pending: &mut Pending, look: usize, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
        draw_in(DrawOrder::Random, pending, look, wanted)
    }

    fn draw_in(
        order: DrawOrder,
        pending: &mut Pending,
        look: usize,
        wanted: impl Fn(u32) -> bool,
    ) -> Vec<u32> {
        let mut taken = Vec::new();
        for _ in 0..look {
            let Some(candidate) = pending.look(order) else { break };
            if wanted(candidate.item) {
                pending.take(candidate);
                taken.push(candidate.item);
            }
        }
        pending.end_draw();
        taken
    }

    fn runs(pending: &Pending) -> Vec<std::ops::Range<u32>> {
        pending.unread_with(&mut Vec::new()).iter().collect()
    }

    #[test]
    fn what_is_passed_over_comes_first_next_time() {
        let mut pending = Pending::new((10..20).collect());
        assert_eq!(draw(&mut pending, 5, |item| item % 2 == 0), [10, 12, 14]);
        assert_eq!((pending.unread(), runs(&pending)), (7, vec![1..2, 3..4, 5..10]));
        assert_eq!(draw(&mut pending, 3, |_| true), [11, 13, 15]);
        assert_eq!(draw(&mut pending, 9, |_| true), [16, 17, 18, 19]);
        assert_eq!((pending.unread(), runs(&pending)), (0, vec![]));
    }

    #[test]
    fn what_was_not_yielded_is_unread_again_where_it_was() {
        let mut pending = Pending::new((10..20).collect());
        draw(&mut pending, 6, |item| item != 12);
        let state = pending.unread_with(&mut vec![4, 1]);
        assert_eq!(state.iter().collect::<Vec<_>>(), [1..3, 4..5, 6..10]);
        let mut resumed = Pending::new((10..20).collect());
        resumed.resume(&state).unwrap();
        assert_eq!(resumed.unread(), 7);
        assert_eq!(draw(&mut resumed, 10, |_| true), [11, 12, 14, 16, 17, 18, 19]);
        assert_eq!(Pending::new((10..19).collect()).resume(&state), None, "of another list");
    }

    #[test]
    fn each_item_is_announced_once() {
        let mut pending = Pending::new((10..20).collect());
        assert_eq!(pending.announce(3), [10, 11, 12]);
        draw(&mut pending, 6, |item| item % 2 == 0);
        assert_eq!(pending.announce(4), [13, 15, 16]);
        assert_eq!(pending.announce(4).len(), 0);
        draw(&mut pending, 10, |_| true);
        assert_eq!(pending.announce(4).len(), 0);
    }

    /// Promise 2: a half-chunk may change between the orders at any time.
    #[test]
    fn what_is_drawn_in_one_order_is_gone_from_the_other() {
        let mut pending = Pending::new((0..200).rev().collect());
        let mut random = Random::keyed(Purpose::Packs, &[1]);
        pending.set_pack_order(|items| PackOrder::new(items, |item| item / 10, 3, &mut random));
        let mut seen = Vec::new();
        for turn in 0..20 {
            let order = if turn % 2 == 0 { DrawOrder::Packs } else { DrawOrder::Random };
            seen.extend(draw_in(order, &mut pending, 20, |item| (item + turn) % 3 > 0));
            assert_eq!(pending.unread() as usize, 200 - seen.len());
        }
        seen.extend(draw_in(DrawOrder::Packs, &mut pending, 200, |_| true));
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..200));
    }
}
