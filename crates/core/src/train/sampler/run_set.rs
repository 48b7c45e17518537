//! A run set: positions of a half-chunk, as runs. What is unread is a long run beyond the frontier
//! and a few positions that were passed over, so there are few runs.

use std::ops::Range;

/// Some of the positions `0..length`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunSet {
    length: u32,
    /// In order, neither empty nor adjacent.
    runs: Vec<Range<u32>>,
}

impl RunSet {
    /// These positions, in order, of `length`.
    pub(super) fn new(length: u32, positions: impl Iterator<Item = u32>) -> Self {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for position in positions {
            match runs.last_mut() {
                Some(run) if run.end == position => run.end += 1,
                _ => runs.push(position..position + 1),
            }
        }
        Self { length, runs }
    }

    /// From alternating lengths of gaps and runs. `None` if they are invalid.
    pub(super) fn from_lengths(
        length: u32,
        lengths: impl IntoIterator<Item = u32>,
    ) -> Option<Self> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        let mut end = 0_u32;
        for (at, run) in lengths.into_iter().enumerate() {
            if run == 0 && at > 0 {
                return None;
            }
            let start = end;
            end = start.checked_add(run)?;
            if at % 2 == 1 {
                runs.push(start..end);
            }
        }
        (end <= length).then_some(Self { length, runs })
    }

    /// What [`RunSet::from_lengths`] takes.
    pub(super) fn lengths(&self) -> impl Iterator<Item = u32> {
        let mut end = 0;
        self.runs.iter().flat_map(move |run| {
            let gap = run.start - end;
            end = run.end;
            [gap, run.end - run.start]
        })
    }

    pub(super) fn length(&self) -> u32 {
        self.length
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u32>> {
        self.runs.iter().cloned()
    }

    /// Runs of positions that are not in the set.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Range<u32>> {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|run| run.end));
        let ends = self.runs.iter().map(|run| run.start).chain([self.length]);
        starts.zip(ends).map(|(start, end)| start..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lengths_say_all(positions in proptest::collection::btree_set(0_u32..60, 0..40)) {
            let set = RunSet::new(60, positions.iter().copied());
            prop_assert!(set.iter().flatten().eq(positions.iter().copied()));
            let others = (0..60).filter(|position| !positions.contains(position));
            prop_assert!(set.gaps().flatten().eq(others));
            let lengths: Vec<u32> = set.lengths().collect();
            prop_assert_eq!(RunSet::from_lengths(60, lengths), Some(set));
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let of = |lengths: &[u32]| RunSet::from_lengths(10, lengths.iter().copied());
        assert!(of(&[0, 10]).is_some());
        assert_eq!(of(&[3, 2, 4]), of(&[3, 2]), "what follows is not in the set");
        assert_eq!(of(&[1, 10]), None, "too long");
        assert_eq!(of(&[1, 0, 2, 1]), None, "empty");
        assert_eq!(of(&[1, 2, 0, 1]), None, "touching");
        assert_eq!(of(&[u32::MAX, 1]), None);
    }
}
