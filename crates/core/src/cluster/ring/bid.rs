//! Weighted rendezvous hashing: the bid of a node for a key. The highest bid owns the key.
//!
//! A bid is `weight / -ln(u)`, where `u` is between 0 and 1 and follows from the node's name and
//! the key. So the probability of the highest bid is in proportion to the weight, and a bid does
//! not depend on the other nodes.
//!
//! All machines and all versions must compute the same bids. Hence the hash is defined here, and
//! the logarithm consists of sums, products and quotients, which IEEE 754 rounds alike everywhere.
//! The standard library's logarithm differs between platforms in the last place.

use super::{Key, Weight};
use crate::NodeName;

/// The hash of a node's name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seed([u64; 4]);

impl Seed {
    pub fn of(name: &NodeName) -> Self {
        let hash = blake3::derive_key("forebay 2026 ring node", name.as_str().as_bytes());
        Self(words(&hash))
    }

    /// The bid for a key. Always positive.
    pub fn bid(&self, key: &Key, weight: Weight) -> f64 {
        f64::from(weight.thousandths()) / -ln(self.draw(key))
    }

    /// A number between 0 and 1, both excluded.
    fn draw(&self, Key(key): &Key) -> f64 {
        let (seed, key) = (&self.0, words(key));
        let halves =
            folded(seed[0] ^ key[0], seed[1] ^ key[1]) ^ folded(seed[2] ^ key[2], seed[3] ^ key[3]);
        let hash = folded(halves ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
        // 52 bits and a half: no rounding, and neither end is reached.
        ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }
}

fn words(bytes: &[u8; 32]) -> [u64; 4] {
    let word = |at: usize| bytes[8 * at..8 * at + 8].try_into().expect("eight bytes");
    std::array::from_fn(|at| u64::from_le_bytes(word(at)))
}

/// The exclusive or of a product's halves. Names are hashed and keys are hashes, so this mixes
/// enough.
#[expect(clippy::cast_possible_truncation, reason = "a hash is cut on purpose")]
const fn folded(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The natural logarithm of a normal number between 0 and 1, to some ulps.
fn ln(u: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    const BIAS: u64 = 1023;
    let bits = u.to_bits();
    let (mut exponent, mut fraction) =
        ((bits >> 52) as f64 - BIAS as f64, f64::from_bits(bits & MANTISSA | BIAS << 52));
    // Around 1, where the series is short; exact at 1 itself.
    if fraction > std::f64::consts::SQRT_2 {
        (exponent, fraction) = (exponent + 1.0, fraction / 2.0);
    }
    // ln(f) = 2·artanh((f - 1) / (f + 1)), and |s| is below 0.172: eleven terms reach the last
    // place.
    let s = (fraction - 1.0) / (fraction + 1.0);
    let square = s * s;
    let series = (0..11).rev().fold(0.0, |sum, term| sum * square + 1.0 / f64::from(2 * term + 1));
    exponent * std::f64::consts::LN_2 + 2.0 * s * series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_agrees_with_the_standard_library() {
        let mut u = 1.0 - f64::EPSILON;
        while u > 1e-15 {
            let (ours, theirs) = (ln(u), u.ln());
            assert!((ours / theirs - 1.0).abs() < 1e-13, "{u}: {ours} {theirs}");
            u *= 0.999;
        }
        assert!(ln(1.0 - f64::EPSILON / 2.0) < 0.0);
    }
}
