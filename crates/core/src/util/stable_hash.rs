//! Stable hashing: hash maps that behave the same in every run, because no decision may depend on a
//! random seed.
//!
//! The hash is fast and not resistant to chosen keys: keys are numbers that forebay assigns, or
//! already hashes.

use std::hash::{BuildHasherDefault, Hasher};

/// One folded multiplication: enough for hash tables and sketches whose keys no adversary chooses.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a hash is truncated on purpose")]
pub(crate) const fn mix(value: u64) -> u64 {
    let product = (value ^ 0x243f_6a88_85a3_08d3) as u128 * 0x9e37_79b9_7f4a_7c15_u128;
    (product as u64) ^ (product >> 64) as u64
}

/// Hashes small keys for hash tables.
#[derive(Debug, Clone, Copy, Default)]
pub struct StableHasher(u64);

impl Hasher for StableHasher {
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(self.0 ^ value);
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0 ^ u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map with the same iteration order and growth in every run.
pub type StableMap<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<StableHasher>>;

/// A set with the same iteration order and growth in every run.
pub(crate) type StableSet<K> = hashbrown::HashSet<K, BuildHasherDefault<StableHasher>>;
