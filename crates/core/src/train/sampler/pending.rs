//! Pending items: what a rank has yet to draw of one half-chunk, in the half-chunk's random order.
//!
//! A draw looks at candidates from the front, takes some and passes over others. Those stay in
//! place, and the next draw looks at them first, so there are few of them. What is left is
//! described by a frontier, beyond which no candidate was seen, and the positions before it that
//! were passed over.

use super::run_set::RunSet;

/// Marks a position in `passed` that the current draw has taken.
const TAKEN: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(super) struct Pending {
    /// The rank's items of this half-chunk. A position is an index into them.
    items: Vec<u32>,
    frontier: u32,
    /// Positions before the frontier that are unread, in order.
    passed: Vec<u32>,
    /// Entries of `passed` that the current draw has seen.
    candidates_seen: usize,
    /// Positions before this one were announced.
    announced: u32,
}

/// A candidate of a draw.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) item: u32,
    pub(super) position: u32,
    /// Its index in `passed`.
    slot: usize,
}

impl Pending {
    pub(super) fn new(items: Vec<u32>) -> Self {
        Self { items, frontier: 0, passed: Vec::new(), candidates_seen: 0, announced: 0 }
    }

    /// Keeps only what a state has as unread. `None` if the state belongs to another list.
    pub(super) fn resume(&mut self, unread: &RunSet) -> Option<()> {
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

    /// Number of items that are left to draw. Not valid during a draw.
    pub(super) fn unread(&self) -> u32 {
        self.length() - self.frontier + u32::try_from(self.passed.len()).expect("a part of `items`")
    }

    /// Items that are unread.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        let positions = self.passed.iter().copied().chain(self.frontier..self.length());
        positions.map(|position| self.items[position as usize])
    }

    fn length(&self) -> u32 {
        u32::try_from(self.items.len()).expect("items are 32 bits wide")
    }

    /// The next candidate of this draw.
    pub(super) fn look(&mut self) -> Option<Candidate> {
        let slot = self.candidates_seen;
        if slot == self.passed.len() {
            if self.frontier == self.length() {
                return None;
            }
            self.passed.push(self.frontier);
            self.frontier += 1;
        }
        self.candidates_seen += 1;
        let position = self.passed[slot];
        Some(Candidate { item: self.items[position as usize], position, slot })
    }

    pub(super) fn take(&mut self, candidate: Candidate) {
        self.passed[candidate.slot] = TAKEN;
    }

    /// Ends a draw: candidates that were not taken stay, in order.
    pub(super) fn end_draw(&mut self) {
        if self.candidates_seen > 0 {
            self.passed.retain(|position| *position != TAKEN);
            self.candidates_seen = 0;
        }
    }

    /// What is unread if these positions, in any order, are unread, too.
    pub(super) fn unread_with(&self, drawn: &mut Vec<u32>) -> RunSet {
        drawn.extend_from_slice(&self.passed);
        drawn.sort_unstable();
        let beyond = self.frontier..self.length();
        RunSet::new(self.length(), drawn.iter().copied().chain(beyond))
    }

    /// Of the next `count` items, those that were not announced before.
    pub(super) fn announce(&mut self, count: usize) -> impl Iterator<Item = u32> {
        let announced = self.announced;
        let unread = self.passed.iter().copied().chain(self.frontier..self.length());
        let news: Vec<u32> = unread.take(count).filter(|position| *position >= announced).collect();
        self.announced = news.last().map_or(announced, |last| last + 1);
        news.into_iter().map(|position| self.items[position as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws from at most `look` candidates, and takes those that `wanted` accepts.
    fn draw(pending: &mut Pending, look: usize, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut taken = Vec::new();
        for _ in 0..look {
            let Some(candidate) = pending.look() else { break };
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
        assert_eq!(pending.announce(3).collect::<Vec<_>>(), [10, 11, 12]);
        draw(&mut pending, 6, |item| item % 2 == 0);
        assert_eq!(pending.announce(4).collect::<Vec<_>>(), [13, 15, 16]);
        assert_eq!(pending.announce(4).count(), 0);
        draw(&mut pending, 10, |_| true);
        assert_eq!(pending.announce(4).count(), 0);
    }
}
