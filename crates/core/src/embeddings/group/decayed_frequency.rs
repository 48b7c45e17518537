//! Exponentially decayed sums, kept as logarithms so that nothing ever has to be decayed.
//!
//! A sum that halves every half-life is, up to a factor common to all keys, a sum of terms that *grow*:
//! an access now weighs 2^(now / half-life). [`Level`] is the logarithm (base 2) of such a sum. Levels of
//! different keys compare directly however long ago they were touched, and changing the half-life only
//! changes how fast "now" rises.

/// The logarithm of a decayed sum, in 256ths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::embedding) struct Level(pub u32);

impl Level {
    pub const STEPS: u32 = 256;

    /// "Now" begins here, so that much smaller terms can be told from nothing.
    pub const START: Level = Level(64 * Self::STEPS);

    /// The level of the sum of two terms.
    #[inline]
    #[must_use]
    pub fn plus(self, other: Level) -> Level {
        Level(self.0.max(other.0) + rise(self.0.abs_diff(other.0)))
    }

    /// Likewise for two terms relative to "now".
    #[inline]
    pub fn log_of_sum(one: i32, other: i32) -> i32 {
        one.max(other).wrapping_add(rise(one.abs_diff(other)).cast_signed())
    }

    /// The level of a fraction 2^-`halvings` of this sum, `halvings` in 256ths.
    #[inline]
    #[must_use]
    pub fn minus(self, halvings: u32) -> Level {
        Level(self.0.saturating_sub(halvings))
    }

    /// Gaps between two terms are looked up in steps of a 16th.
    const GAP_STEP: u32 = 16;
}

/// By how much a sum is above the greater of two terms that are so far apart.
#[inline]
fn rise(gap: u32) -> u32 {
    // No branch: whether terms are far apart cannot be foretold.
    u32::from(LOG_OF_SUM[((gap / Level::GAP_STEP) as usize).min(GAPS)])
}

/// The binary logarithm in 256ths, straight lines between powers of two.
#[inline]
pub(super) fn log2(value: u32) -> u32 {
    let whole = value.ilog2();
    let fraction = (value << (31 - whole) << 1) >> 24;
    whole * Level::STEPS + fraction
}

/// Gaps in 16ths of an octave whose sum is told from the greater term.
const GAPS: usize = 144;

/// log2(1 + 2^-gap) in 256ths, for gaps in 16ths of an octave; beyond 9 octaves it rounds to nought.
const LOG_OF_SUM: [u16; GAPS + 1] = {
    let mut table = [0; GAPS + 1];
    let mut index = 0;
    while index < GAPS {
        table[index] = log_of_sum(index);
        index += 1;
    }
    table
};

/// `256 * log2(1 + 2^(-index/16))`, by integer arithmetic so that every machine agrees.
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
    fn levels_add_like_the_sums_they_stand_for() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let [a, b] = [(); 2].map(|()| random.u32(0..20 * Level::STEPS));
            let sum = [a, b].map(|level| f64::from(level) / f64::from(Level::STEPS)).map(f64::exp2);
            let expected = (sum[0] + sum[1]).log2() * f64::from(Level::STEPS);
            let found = f64::from(Level(a).plus(Level(b)).0);
            assert!((found - expected).abs() < 10.0, "{a} and {b}: {found}, not {expected}");
        }
        assert_eq!(Level(512).plus(Level(512)), Level(768), "twice the sum is one more");
        assert_eq!(Level(512).minus(600), Level(0), "less than nothing is nothing");
    }
}
