//! Hashing that is the same in every run: no decision may depend on a random seed.
//!
//! Quick rather than guarded: keys here are numbers that we hand out, or hashes already.

use std::hash::{BuildHasherDefault, Hasher};

/// One folded multiplication: enough for hash tables and sketches, where nobody picks the keys to harm us.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a hash is cut on purpose")]
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

/// A map that iterates and grows alike in every run.
pub type StableMap<K, V> = hashbrown::HashMap<K, V, BuildHasherDefault<StableHasher>>;

/// A set likewise.
pub(crate) type StableSet<K> = hashbrown::HashSet<K, BuildHasherDefault<StableHasher>>;
