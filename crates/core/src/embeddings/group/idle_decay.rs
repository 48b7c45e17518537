//! Idle decay: an upper bound on the level of a key by the time since its last access.
//!
//! A level decays by halves, so a frequent key stays long after its last access. Yet the more
//! frequent a key was, the sooner its absence is significant: of a key expected once per 100
//! accesses, 1,000 accesses without it are enough evidence. A level is therefore bounded by the
//! rate that would give
//! [`EXPECTED_MAX`] accesses in the time since the last one.

use super::decayed_frequency::DecayedFrequency;

/// Expected accesses without any that still count as chance. 1 is better where popular keys shift,
/// 2 on `MovieLens`.
const EXPECTED_MAX: f64 = 1.5;

/// The bound, relative to "now", on a key's level plus the logarithm of the accesses since its last
/// one.
pub(super) fn bound(half_life: f64) -> u32 {
    // At a constant rate, the decayed sum of all accesses is that rate times half-life / ln 2.
    let level = (EXPECTED_MAX * half_life / std::f64::consts::LN_2).log2();
    (level * f64::from(DecayedFrequency::STEPS)) as u32
}

/// [`bound`] under the half-life in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleBound(pub u32);

impl IdleBound {
    /// The bound on a level if the logarithm of the accesses since the last one is `since`.
    #[inline]
    pub fn after(self, now: DecayedFrequency, since: u32) -> DecayedFrequency {
        DecayedFrequency(now.0 + self.0).minus(since)
    }
}
