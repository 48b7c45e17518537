//! Selections: which items an epoch reads, and how often.
//!
//! A split divides items into parts by a seeded shuffle. Weights decide how often each item occurs
//! in an epoch: the expected number, rounded down or up. Both are determined by their seed, so that
//! all ranks and a resumed job compute the same without communication.

use super::random::{Purpose, Random};

/// Largest difference between 1 and the sum of fractions that are meant to be everything.
const SUM_SLACK: f64 = 1e-9;

/// Why a selection is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// A fraction that is not between 0 and 1.
    #[error("the fraction {0} is not between 0 and 1; give fractions such as 0.9")]
    Fraction(String),
    /// The parts are more than everything.
    #[error("the fractions add up to {0}, so parts would overlap; give fractions of at most 1")]
    Overlap(String),
    /// A part gets no item.
    #[error("part {part} of the split, {fraction} of {items} items, is empty; give it more")]
    EmptyPart {
        /// Number of the part, from 0.
        part: usize,
        /// Its fraction.
        fraction: String,
        /// Items of the dataset.
        items: u32,
    },
    /// One weight per item is needed.
    #[error("there are {given} weights for {items} items; give one for each")]
    Weights {
        /// Weights that were given.
        given: usize,
        /// Items of the dataset.
        items: u64,
    },
    /// A weight that is negative or not finite.
    #[error("the weight of item {item} is {weight}; weights are finite and at least 0")]
    Weight {
        /// The item.
        item: usize,
        /// Its weight.
        weight: String,
    },
    /// All weights are 0, or their sum is not finite.
    #[error(
        "the weights add up to {0}; give at least one above 0, and smaller ones if they are huge"
    )]
    NoWeight(String),
}

/// Divides items into parts at random: ascending items of each part. Fractions of less than 1 leave
/// the rest as one more part.
pub fn split(items: u32, fractions: &[f64], seed: u64) -> Result<Vec<Vec<u32>>, SelectionError> {
    if let Some(wrong) = fractions.iter().find(|one| !(**one > 0.0 && **one <= 1.0)) {
        return Err(SelectionError::Fraction(wrong.to_string()));
    }
    let sum: f64 = fractions.iter().sum();
    if sum > 1.0 + SUM_SLACK {
        return Err(SelectionError::Overlap(sum.to_string()));
    }
    let mut fractions = fractions.to_vec();
    if sum < 1.0 - SUM_SLACK {
        fractions.push(1.0 - sum);
    }
    let mut order: Vec<u32> = (0..items).collect();
    Random::keyed(Purpose::Split, &[seed]).shuffle(&mut order);
    let mut parts = Vec::with_capacity(fractions.len());
    let (mut start, mut until) = (0, 0.0);
    for (part, fraction) in fractions.iter().enumerate() {
        until += fraction;
        let is_last = part + 1 == fractions.len();
        let end = if is_last { items } else { whole((until * f64::from(items)).round()) };
        let end = end.clamp(start, items);
        if start == end {
            let fraction = fraction.to_string();
            return Err(SelectionError::EmptyPart { part, fraction, items });
        }
        let mut own = order[start as usize..end as usize].to_vec();
        own.sort_unstable();
        parts.push(own);
        start = end;
    }
    Ok(parts)
}

/// How often each item occurs in an epoch of `draws` items. The number of an item is its share of
/// all draws by weight, rounded down or up at random, so that its mean over epochs is exact.
pub fn weighted_counts(
    weights: &[f64],
    draws: u32,
    seed: u64,
    epoch: u64,
) -> Result<Vec<u32>, SelectionError> {
    let is_weight = |weight: &f64| weight.is_finite() && *weight >= 0.0;
    if let Some(item) = weights.iter().position(|weight| !is_weight(weight)) {
        return Err(SelectionError::Weight { item, weight: weights[item].to_string() });
    }
    let total: f64 = weights.iter().sum();
    if !(total.is_finite() && total > 0.0) {
        return Err(SelectionError::NoWeight(total.to_string()));
    }
    // Systematic sampling along a random order: otherwise neighbours would be rounded up in turn.
    let mut random = Random::keyed(Purpose::Weights, &[seed, epoch]);
    let count = u32::try_from(weights.len()).expect("items are 32 bits wide");
    let mut order: Vec<u32> = (0..count).filter(|item| weights[*item as usize] > 0.0).collect();
    random.shuffle(&mut order);
    let offset = f64::from(random.below(u32::MAX)) / f64::from(u32::MAX);
    let mut counts = vec![0; weights.len()];
    let (mut sum, mut given) = (0.0, 0);
    for (position, item) in order.iter().enumerate() {
        sum += weights[*item as usize];
        // The last item with a weight takes what rounding has left.
        let is_last = position + 1 == order.len();
        let due = whole((sum / total * f64::from(draws) + offset).floor());
        let due = if is_last { draws } else { due.clamp(given, draws) };
        counts[*item as usize] = due - given;
        given = due;
    }
    Ok(counts)
}

/// A whole number of items.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^32 items")]
fn whole(items: f64) -> u32 {
    items as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn the_parts_of_a_split_are_disjoint_and_complete(
            items in 10_u32..500,
            first in 0.1_f64..0.5,
            second in 0.1_f64..0.4,
            seed in any::<u64>(),
        ) {
            let parts = split(items, &[first, second], seed).unwrap();
            prop_assert_eq!(parts.len(), 3);
            let size = |fraction: f64| fraction * f64::from(items);
            prop_assert!((parts[0].len() as f64 - size(first)).abs() <= 1.0);
            prop_assert!((parts[1].len() as f64 - size(second)).abs() <= 1.0);
            prop_assert!(parts.iter().all(|part| part.is_sorted()));
            let mut all = parts.concat();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..items));
            prop_assert_eq!(split(items, &[first, second], seed).unwrap(), parts);
        }

        #[test]
        fn the_number_of_an_item_is_its_share_by_weight(
            weights in proptest::collection::vec(0.0_f64..10.0, 1..200),
            draws in 1_u32..1000,
            seed in any::<u64>(),
        ) {
            let total: f64 = weights.iter().sum();
            prop_assume!(total > 0.0);
            let counts = weighted_counts(&weights, draws, seed, 3).unwrap();
            prop_assert_eq!(counts.iter().sum::<u32>(), draws);
            for (count, weight) in counts.iter().zip(&weights) {
                let expected = weight / total * f64::from(draws);
                prop_assert!((f64::from(*count) - expected).abs() < 1.0 + 1e-6);
                prop_assert!(*weight > 0.0 || *count == 0);
            }
        }
    }

    #[test]
    fn fractions_occur_at_random_and_are_right_in_the_mean() {
        let weights = [1.0, 2.0, 3.0, 4.0];
        let mut sums = [0; 4];
        for epoch in 0..5000 {
            let counts = weighted_counts(&weights, 5, 1, epoch).unwrap();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        // Expected: 0.5, 1, 1.5 and 2 times per epoch.
        for (sum, expected) in sums.into_iter().zip([2500_u32, 5000, 7500, 10_000]) {
            assert!(sum.abs_diff(expected) < 200, "{sum} instead of {expected}");
        }
    }

    #[test]
    fn impossible_selections_are_refused() {
        let refusal = |fractions: &[f64]| split(10, fractions, 0).unwrap_err().to_string();
        let remedy = "is not between 0 and 1; give fractions such as 0.9";
        for wrong in [-0.1, 0.0, 1.5, f64::NAN] {
            assert_eq!(refusal(&[wrong]), format!("the fraction {wrong} {remedy}"));
        }
        assert_eq!(
            refusal(&[0.75, 0.5]),
            "the fractions add up to 1.25, so parts would overlap; give fractions of at most 1"
        );
        assert_eq!(
            refusal(&[0.01]),
            "part 0 of the split, 0.01 of 10 items, is empty; give it more"
        );
        assert_eq!(split(10, &[1.0], 0).unwrap().len(), 1, "one part is everything");
        assert_eq!(split(10, &[0.1; 10], 0).unwrap().len(), 10, "rounding leaves no rest");

        let refusal = |weights: &[f64]| weighted_counts(weights, 4, 0, 0).unwrap_err().to_string();
        assert_eq!(
            refusal(&[1.0, -2.0]),
            "the weight of item 1 is -2; weights are finite and at least 0"
        );
        assert!(refusal(&[f64::INFINITY]).contains("is inf"));
        assert!(refusal(&[0.0, 0.0]).starts_with("the weights add up to 0; give at least one"));
        assert!(refusal(&[f64::MAX, f64::MAX]).starts_with("the weights add up to inf"));
        assert!(refusal(&[]).starts_with("the weights add up to"));
    }
}
