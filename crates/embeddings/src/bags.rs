//! What a lookup asks for: for each table a bag of keys per sample, in PyTorch's layout.

use crate::error::LookupError;

/// The bags of one table: keys in one row, and how they are cut.
#[derive(Debug, Clone, Copy)]
pub struct Bags<'a> {
    keys: &'a [i64],
    cut: Cut<'a>,
    padding: Option<i64>,
}

/// How keys are cut into bags.
#[derive(Debug, Clone, Copy)]
enum Cut<'a> {
    /// So many bags of one length.
    Even { bags: usize, length: usize },
    /// Where each bag begins; the last one ends with the keys.
    Starts(&'a [i64]),
    /// Where each bag begins, and where the last one ends.
    Bounds(&'a [i64]),
}

impl<'a> Bags<'a> {
    /// One key for each sample.
    pub fn single(keys: &'a [i64]) -> Self {
        Self::even(keys, keys.len(), 1)
    }

    /// `bags` bags of `length` keys each.
    pub fn even(keys: &'a [i64], bags: usize, length: usize) -> Self {
        Self { keys, cut: Cut::Even { bags, length }, padding: None }
    }

    /// A bag begins at each offset; the last one ends with the keys.
    pub fn from_starts(keys: &'a [i64], offsets: &'a [i64]) -> Self {
        Self { keys, cut: Cut::Starts(offsets), padding: None }
    }

    /// A bag lies between any two offsets.
    pub fn from_bounds(keys: &'a [i64], offsets: &'a [i64]) -> Self {
        Self { keys, cut: Cut::Bounds(offsets), padding: None }
    }

    /// Keys equal to this one are there to fill bags up, and count for nothing.
    #[must_use]
    pub fn padded_with(mut self, key: Option<i64>) -> Self {
        self.padding = key;
        self
    }

    /// All keys.
    pub fn keys(&self) -> &'a [i64] {
        self.keys
    }

    /// How many bags.
    pub fn len(&self) -> usize {
        match self.cut {
            Cut::Even { bags, .. } => bags,
            Cut::Starts(offsets) => offsets.len(),
            Cut::Bounds(offsets) => offsets.len().saturating_sub(1),
        }
    }

    /// Whether there is no bag at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a bag begins among the keys, and the bag. The bags have been checked.
    #[expect(clippy::inline_always, reason = "once for every bag; the compiler left it a call")]
    #[inline(always)]
    pub(crate) fn bag(&self, number: usize) -> (usize, &'a [i64]) {
        let at = |offset: i64| usize::try_from(offset).expect("checked");
        let (start, end) = match self.cut {
            Cut::Even { length, .. } => (number * length, (number + 1) * length),
            Cut::Starts(offsets) => (
                at(offsets[number]),
                offsets.get(number + 1).map_or(self.keys.len(), |end| at(*end)),
            ),
            Cut::Bounds(offsets) => (at(offsets[number]), at(offsets[number + 1])),
        };
        (start, &self.keys[start..end])
    }

    /// The keys that come `by` places after the `count` keys at `start`, as far as there are any.
    #[inline]
    pub(crate) fn ahead(&self, start: usize, count: usize, by: usize) -> &'a [i64] {
        let from = (start + by).min(self.keys.len());
        &self.keys[from..(from + count).min(self.keys.len())]
    }

    /// The row that a checked key names, unless it is padding.
    #[inline]
    pub(crate) fn row(&self, key: i64) -> Option<u64> {
        if self.padding == Some(key) { None } else { Some(key.cast_unsigned()) }
    }

    /// Refuses keys that a table of so many rows does not have, and bags that cannot be.
    pub(crate) fn check(&self, table: usize, rows: u64) -> Result<(), LookupError> {
        let problem = |problem| Err(LookupError::Offsets { table, problem });
        match self.cut {
            Cut::Even { bags, length } if bags.checked_mul(length) != Some(self.keys.len()) => {
                return problem("the keys cannot be cut into so many bags of that length");
            }
            Cut::Bounds([]) => return problem("there must be at least one, the end"),
            Cut::Even { .. } | Cut::Starts([]) if self.keys.is_empty() => {}
            Cut::Starts([]) => return problem("there are keys, but no bag"),
            Cut::Even { .. } => {}
            Cut::Starts(offsets) | Cut::Bounds(offsets) => {
                if offsets.first() != Some(&0) {
                    return problem("the first bag must begin at 0");
                }
                if !offsets.is_sorted() {
                    return problem("a bag ends before it begins");
                }
                let last = usize::try_from(*offsets.last().expect("not empty"));
                let last = last.expect("at least as large as the first");
                if last > self.keys.len() {
                    return problem("a bag lies beyond the last key");
                }
                if matches!(self.cut, Cut::Bounds(_)) && last != self.keys.len() {
                    return problem("the last one must be the number of keys");
                }
            }
        }
        // A negative key is a huge one without its sign: one comparison for both ends.
        if self.keys.iter().any(|key| key.cast_unsigned() >= rows) {
            let place = self.keys.iter().position(|key| key.cast_unsigned() >= rows);
            let place = place.expect("just seen");
            return Err(LookupError::Key { table, place, key: self.keys[place], rows });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bags_are_cut_as_pytorch_cuts_them() {
        let keys = [5, 6, 7, 8];
        let cut = |bags: Bags<'static>| {
            bags.check(0, 9).unwrap();
            (0..bags.len()).map(|number| bags.bag(number).1.to_vec()).collect::<Vec<_>>()
        };
        let keys: &'static [i64] = Box::leak(Box::new(keys));
        assert_eq!(cut(Bags::single(keys)), [[5], [6], [7], [8]]);
        assert_eq!(cut(Bags::even(keys, 2, 2)), [[5, 6], [7, 8]]);
        assert_eq!(cut(Bags::from_starts(keys, &[0, 3, 3])), [vec![5, 6, 7], vec![], vec![8]]);
        assert_eq!(cut(Bags::from_bounds(keys, &[0, 0, 4])), [vec![], vec![5, 6, 7, 8]]);
        assert_eq!(cut(Bags::even(&[], 3, 0)), [[0; 0]; 3]);
        assert_eq!(cut(Bags::from_bounds(&[], &[0])).len(), 0);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |bags: Bags<'_>| bags.check(3, 9).unwrap_err().to_string();
        assert_eq!(
            refused(Bags::single(&[0, 9])),
            "key 9 at place 1 of table 3 is outside its 9 rows"
        );
        assert!(refused(Bags::single(&[-1])).contains("key -1 at place 0"));
        assert!(refused(Bags::single(&[i64::MIN])).contains(&i64::MIN.to_string()));
        assert!(refused(Bags::from_starts(&[1], &[1])).contains("begin at 0"));
        assert!(refused(Bags::from_starts(&[1], &[0, -5])).contains("before it begins"));
        assert!(refused(Bags::from_starts(&[1], &[0, 2])).contains("beyond"));
        assert!(refused(Bags::from_starts(&[1], &[])).contains("no bag"));
        assert!(refused(Bags::from_bounds(&[1, 2], &[0, 1])).contains("number of keys"));
        assert!(refused(Bags::from_bounds(&[], &[])).contains("at least one"));
        assert!(refused(Bags::even(&[1, 2, 3], 2, 2)).contains("that length"));
        assert!(refused(Bags::even(&[1], usize::MAX, usize::MAX)).contains("that length"));
    }
}
