//! Decayed frequency: an exponentially decayed sum of accesses, stored as a logarithm so that no
//! stored value ever has to be decayed.
//!
//! A sum that halves every half-life is, up to a factor common to all keys, a sum of terms that
//! *grow*: an access now weighs 2^(now / half-life). [`DecayedFrequency`] is the *level* of such a
//! sum: its binary logarithm in 256ths. Levels of different keys compare directly, whenever they
//! were last updated. Changing the half-life only changes how fast "now" rises.

/// Level of a decayed sum: its binary logarithm, in 256ths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::embeddings) struct DecayedFrequency(pub u32);

impl DecayedFrequency {
    pub const STEPS: u32 = 256;

    /// Initial level of "now": leaves 64 doublings below it for smaller terms.
    pub const START: DecayedFrequency = DecayedFrequency(64 * Self::STEPS);

    /// The level of the sum of two terms.
    #[inline]
    #[must_use]
    pub fn plus(self, other: DecayedFrequency) -> DecayedFrequency {
        DecayedFrequency(self.0.max(other.0) + rise(self.0.abs_diff(other.0)))
    }

    /// The level of the sum of two terms, for signed levels relative to "now".
    #[inline]
    pub fn log_of_sum(one: i32, other: i32) -> i32 {
        one.max(other).wrapping_add(rise(one.abs_diff(other)).cast_signed())
    }

    /// The level of a fraction 2^-`halvings` of this sum, `halvings` in 256ths.
    #[inline]
    #[must_use]
    pub fn minus(self, halvings: u32) -> DecayedFrequency {
        DecayedFrequency(self.0.saturating_sub(halvings))
    }

    /// Resolution of gaps between two terms: a 16th of a doubling.
    const GAP_STEP: u32 = 16;
}

/// Level of a sum above the greater of its two terms, which are `gap` apart.
#[inline]
fn rise(gap: u32) -> u32 {
    // No branch, because it would be unpredictable.
    u32::from(LOG_OF_SUM[((gap / DecayedFrequency::GAP_STEP) as usize).min(GAPS)])
}

/// The binary logarithm in 256ths, interpolated linearly between powers of two.
#[inline]
pub(super) fn log2(value: u32) -> u32 {
    let whole = value.ilog2();
    let fraction = (value << (31 - whole) << 1) >> 24;
    whole * DecayedFrequency::STEPS + fraction
}

/// Gaps, in 16ths of a doubling, at which the smaller term still changes the sum.
const GAPS: usize = 144;

/// log2(1 + 2^-gap) in 256ths, for gaps in 16ths of a doubling; beyond 9 doublings it rounds to 0.
const LOG_OF_SUM: [u16; GAPS + 1] = {
    let mut table = [0; GAPS + 1];
    let mut index = 0;
    while index < GAPS {
        table[index] = log_of_sum(index);
        index += 1;
    }
    table
};

/// `256 * log2(1 + 2^(-index/16))`, in integer arithmetic so that it is the same on every machine.
const fn log_of_sum(index: usize) -> u16 {
    // 2^(-1/16) and powers of it in 32-bit fixed point.
    let mut power: u64 = 1 << 32;
    let mut step = 0;
    while step < index {
        power = (power * 4_112_874_773) >> 32; // 2^32 * 2^(-1/16)
        step += 1;
    }
    // Binary logarithm of x in [1, 2], bit by bit.
    let mut x = (1_u64 << 32) + power;
    let mut log = 0;
    if x >= 1 << 33 {
        return 256;
    }
    let mut bit = 128;
    while bit > 0 {
        x = ((x as u128 * x as u128) >> 32) as u64;
        if x >= 1 << 33 {
            x >>= 1;
            log += bit;
        }
        bit /= 2;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_add_like_the_sums_that_they_represent() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let [a, b] = [(); 2].map(|()| random.u32(0..20 * DecayedFrequency::STEPS));
            let sum = [a, b]
                .map(|level| f64::from(level) / f64::from(DecayedFrequency::STEPS))
                .map(f64::exp2);
            let expected = (sum[0] + sum[1]).log2() * f64::from(DecayedFrequency::STEPS);
            let found = f64::from(DecayedFrequency(a).plus(DecayedFrequency(b)).0);
            assert!((found - expected).abs() < 10.0, "{a} and {b}: {found}, not {expected}");
        }
        assert_eq!(
            DecayedFrequency(512).plus(DecayedFrequency(512)),
            DecayedFrequency(768),
            "twice the sum is one doubling more"
        );
        assert_eq!(
            DecayedFrequency(512).minus(600),
            DecayedFrequency(0),
            "levels do not fall below 0"
        );
    }
}
