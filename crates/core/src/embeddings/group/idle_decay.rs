//! A favourite that stays away is a favourite no longer.
//!
//! A level fades by halves, so the more a key was asked for, the longer it stays after everybody has turned to others. Yet
//! the more it was asked for, the sooner one can tell: of whom one expects an access every hundred, a thousand
//! without any say enough. So no key is believed to come more often than a few times in the time since it was last seen.

use super::level::Level;

/// Accesses that were due while none came, and it is still thought chance. One is better where favourites shift, two
/// with the films of `MovieLens`.
const EXPECTED_MAX: f64 = 1.5;

/// The highest level that is believed of a key, relative to "now", plus the logarithm of the accesses since it was last
/// seen.
pub(super) fn bound(half_life: f64) -> u32 {
    // At a constant rate, the decayed sum of all accesses is that rate times half-life / ln 2.
    let level = (EXPECTED_MAX * half_life / std::f64::consts::LN_2).log2();
    (level * f64::from(Level::STEPS)) as u32
}
