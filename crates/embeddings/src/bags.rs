//! Bags: the argument of a lookup. Each table has a bag of keys per sample, in PyTorch's layout.

use crate::error::LookupError;

/// The bags of one table: all keys in sequence, and where bags begin.
#[derive(Debug, Clone, Copy)]
pub struct Bags<'a> {
    keys: &'a [i64],
    division: Division<'a>,
    padding: Option<i64>,
}

/// How keys are divided into bags.
#[derive(Debug, Clone, Copy)]
enum Division<'a> {
    /// `bags` bags of `length` keys each.
    Even { bags: usize, length: usize },
    /// Start of each bag; the last one ends with the keys.
    Starts(&'a [i64]),
    /// Start of each bag, and the end of the last one.
    Bounds(&'a [i64]),
}

impl<'a> Bags<'a> {
    /// One key for each sample.
    pub fn single(keys: &'a [i64]) -> Self {
        Self::even(keys, keys.len(), 1)
    }

    /// `bags` bags of `length` keys each.
    pub fn even(keys: &'a [i64], bags: usize, length: usize) -> Self {
        Self { keys, division: Division::Even { bags, length }, padding: None }
    }

    /// Bags that begin at these offsets; the last one ends with the keys.
    pub fn from_starts(keys: &'a [i64], offsets: &'a [i64]) -> Self {
        Self { keys, division: Division::Starts(offsets), padding: None }
    }

    /// Bags between consecutive offsets.
    pub fn from_bounds(keys: &'a [i64], offsets: &'a [i64]) -> Self {
        Self { keys, division: Division::Bounds(offsets), padding: None }
    }

    /// Sets the padding key, which is ignored.
    #[must_use]
    pub fn padded_with(mut self, key: Option<i64>) -> Self {
        self.padding = key;
        self
    }

    /// All keys.
    pub fn keys(&self) -> &'a [i64] {
        self.keys
    }

    /// Number of bags.
    pub fn len(&self) -> usize {
        match self.division {
            Division::Even { bags, .. } => bags,
            Division::Starts(offsets) => offsets.len(),
            Division::Bounds(offsets) => offsets.len().saturating_sub(1),
        }
    }

    /// Whether there are no bags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index of a bag's first key, and the bag. [`Bags::check`] must have passed.
    #[expect(clippy::inline_always, reason = "once for every bag; the compiler left it a call")]
    #[inline(always)]
    pub(crate) fn bag(&self, number: usize) -> (usize, &'a [i64]) {
        let at = |offset: i64| usize::try_from(offset).expect("checked");
        let (start, end) = match self.division {
            Division::Even { length, .. } => (number * length, (number + 1) * length),
            Division::Starts(offsets) => (
                at(offsets[number]),
                offsets.get(number + 1).map_or(self.keys.len(), |end| at(*end)),
            ),
            Division::Bounds(offsets) => (at(offsets[number]), at(offsets[number + 1])),
        };
        (start, &self.keys[start..end])
    }

    /// The existing keys among the `count` keys from `start + by` on.
    #[inline]
    pub(crate) fn ahead(&self, start: usize, count: usize, by: usize) -> &'a [i64] {
        let from = (start + by).min(self.keys.len());
        &self.keys[from..(from + count).min(self.keys.len())]
    }

    /// The row of a checked key; `None` for padding.
    #[inline]
    pub(crate) fn row(&self, key: i64) -> Option<u64> {
        if self.padding == Some(key) { None } else { Some(key.cast_unsigned()) }
    }

    /// Checks that all keys are below `rows` and that the offsets are valid.
    pub(crate) fn check(&self, table: usize, rows: u64) -> Result<(), LookupError> {
        let problem = |problem| Err(LookupError::Offsets { table, problem });
        match self.division {
            Division::Even { bags, length }
                if bags.checked_mul(length) != Some(self.keys.len()) =>
            {
                return problem("the number of keys is not bags times length");
            }
            Division::Bounds([]) => {
                return problem("there must be at least one, the end of the last bag");
            }
            Division::Even { .. } | Division::Starts([]) if self.keys.is_empty() => {}
            Division::Starts([]) => return problem("there are keys but no bags"),
            Division::Even { .. } => {}
            Division::Starts(offsets) | Division::Bounds(offsets) => {
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
                if matches!(self.division, Division::Bounds(_)) && last != self.keys.len() {
                    return problem("the last offset must be the number of keys");
                }
            }
        }
        // A negative key is a huge unsigned one, so one comparison checks both bounds.
        if self.keys.iter().any(|key| key.cast_unsigned() >= rows) {
            let index = self.keys.iter().position(|key| key.cast_unsigned() >= rows);
            let index = index.expect("just seen");
            return Err(LookupError::Key { table, index, key: self.keys[index], rows });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_divided_as_pytorch_divides_them() {
        let keys = [5, 6, 7, 8];
        let divided = |bags: Bags<'static>| {
            bags.check(0, 9).unwrap();
            (0..bags.len()).map(|number| bags.bag(number).1.to_vec()).collect::<Vec<_>>()
        };
        let keys: &'static [i64] = Box::leak(Box::new(keys));
        assert_eq!(divided(Bags::single(keys)), [[5], [6], [7], [8]]);
        assert_eq!(divided(Bags::even(keys, 2, 2)), [[5, 6], [7, 8]]);
        assert_eq!(divided(Bags::from_starts(keys, &[0, 3, 3])), [vec![5, 6, 7], vec![], vec![8]]);
        assert_eq!(divided(Bags::from_bounds(keys, &[0, 0, 4])), [vec![], vec![5, 6, 7, 8]]);
        assert_eq!(divided(Bags::even(&[], 3, 0)), [[0; 0]; 3]);
        assert_eq!(divided(Bags::from_bounds(&[], &[0])).len(), 0);
    }

    #[test]
    fn invalid_keys_and_offsets_are_rejected() {
        let rejected = |bags: Bags<'_>| bags.check(3, 9).unwrap_err().to_string();
        assert_eq!(
            rejected(Bags::single(&[0, 9])),
            "key 9 at index 1 of table 3 is outside its 9 rows"
        );
        assert!(rejected(Bags::single(&[-1])).contains("key -1 at index 0"));
        assert!(rejected(Bags::single(&[i64::MIN])).contains(&i64::MIN.to_string()));
        assert!(rejected(Bags::from_starts(&[1], &[1])).contains("begin at 0"));
        assert!(rejected(Bags::from_starts(&[1], &[0, -5])).contains("before it begins"));
        assert!(rejected(Bags::from_starts(&[1], &[0, 2])).contains("beyond"));
        assert!(rejected(Bags::from_starts(&[1], &[])).contains("no bags"));
        assert!(rejected(Bags::from_bounds(&[1, 2], &[0, 1])).contains("number of keys"));
        assert!(rejected(Bags::from_bounds(&[], &[])).contains("at least one"));
        assert!(rejected(Bags::even(&[1, 2, 3], 2, 2)).contains("bags times length"));
        assert!(rejected(Bags::even(&[1], usize::MAX, usize::MAX)).contains("bags times length"));
    }
}
