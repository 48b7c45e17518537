//! What a rank has yet to read of one chunk, in the chunk's random order.
//!
//! A draw looks at candidates from the front, takes some and passes over others, which stay where they
//! are: the next draw looks at them first. So there are few of them, and to know what is left takes a
//! frontier, beyond which nothing was ever looked at, and the places before it that were passed over.

use super::runs::Runs;

/// Marks a place in `passed` that was taken by the draw at hand.
const TAKEN: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(super) struct Pending {
    /// The rank's items of this chunk; a place is an index into these.
    items: Vec<u32>,
    frontier: u32,
    /// Places before the frontier that are unread, in order.
    passed: Vec<u32>,
    /// How many of `passed` the draw at hand has looked at.
    looked: usize,
    /// Places before this one were told of.
    told: u32,
}

/// One that a draw looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) item: u32,
    pub(super) place: u32,
    /// Where it stands among those that were looked at.
    slot: usize,
}

impl Pending {
    pub(super) fn new(items: Vec<u32>) -> Self {
        Self { items, frontier: 0, passed: Vec::new(), looked: 0, told: 0 }
    }

    /// Leaves only what a state says is unread. `None` if the state is of another list.
    pub(super) fn resume(&mut self, unread: &Runs) -> Option<()> {
        if unread.length() != self.length() {
            return None;
        }
        self.frontier = self.length();
        self.passed.clear();
        for run in unread.iter() {
            if run.end == self.length() {
                self.frontier = run.start;
            } else {
                self.passed.extend(run);
            }
        }
        Some(())
    }

    /// How many are left to draw. Not while one draws.
    pub(super) fn unread(&self) -> u32 {
        self.length() - self.frontier + u32::try_from(self.passed.len()).expect("a part of `items`")
    }

    /// The items that are unread.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        let places = self.passed.iter().copied().chain(self.frontier..self.length());
        places.map(|place| self.items[place as usize])
    }

    fn length(&self) -> u32 {
        u32::try_from(self.items.len()).expect("a layout counts in 32 bits")
    }

    /// The next candidate of this draw.
    pub(super) fn look(&mut self) -> Option<Candidate> {
        let slot = self.looked;
        if slot == self.passed.len() {
            if self.frontier == self.length() {
                return None;
            }
            self.passed.push(self.frontier);
            self.frontier += 1;
        }
        self.looked += 1;
        let place = self.passed[slot];
        Some(Candidate { item: self.items[place as usize], place, slot })
    }

    pub(super) fn take(&mut self, candidate: Candidate) {
        self.passed[candidate.slot] = TAKEN;
    }

    /// Ends a draw: what was not taken stays, in order.
    pub(super) fn settle(&mut self) {
        if self.looked > 0 {
            self.passed.retain(|place| *place != TAKEN);
            self.looked = 0;
        }
    }

    /// What is unread if these places, in any order, are as well.
    pub(super) fn unread_with(&self, drawn: &mut Vec<u32>) -> Runs {
        drawn.extend_from_slice(&self.passed);
        drawn.sort_unstable();
        let beyond = self.frontier..self.length();
        Runs::new(self.length(), drawn.iter().copied().chain(beyond))
    }

    /// Of the next `count`, those that were not told of before.
    pub(super) fn tell(&mut self, count: usize) -> impl Iterator<Item = u32> {
        let told = self.told;
        let unread = self.passed.iter().copied().chain(self.frontier..self.length());
        let news: Vec<u32> = unread.take(count).filter(|place| *place >= told).collect();
        self.told = news.last().map_or(told, |last| last + 1);
        news.into_iter().map(|place| self.items[place as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws `count`, looking at no more than `look`, and takes those that `wanted` likes.
    fn draw(pending: &mut Pending, look: usize, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        for _ in 0..look {
            let Some(candidate) = pending.look() else { break };
            if wanted(candidate.item) {
                pending.take(candidate);
                taken.push(candidate.item);
            }
        }
        pending.settle();
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
    fn each_is_told_of_once() {
        let mut pending = Pending::new((10..20).collect());
        assert_eq!(pending.tell(3).collect::<Vec<_>>(), [10, 11, 12]);
        draw(&mut pending, 6, |item| item % 2 == 0);
        assert_eq!(pending.tell(4).collect::<Vec<_>>(), [13, 15, 16]);
        assert_eq!(pending.tell(4).count(), 0);
        draw(&mut pending, 10, |_| true);
        assert_eq!(pending.tell(4).count(), 0);
    }
}
