//! Verification: which reads of a client are hashed before the job gets their bytes.
//!
//! A job holds the address of every blob, so it can verify what a node returns, whatever damaged
//! the bytes: a fault of the node's memory, a network, or a hostile node. Reads from other machines
//! are always verified by default. Reads from a node of this machine are sampled: such a node has
//! the same owner and the same memory as the job, and sampling finds a fault that lasts.
//!
//! An item that is a part of a blob is verified with the blob's [hash tree](super::hash_tree), from
//! a range of whole leaves. Without a tree the whole blob must be read; only
//! [`VerifyPolicy::Always`] does that for a long one.

use std::{fmt, ops::Range, str::FromStr};

use super::hash_tree::LeafLength;

/// Longest blob that is read whole to verify a part of it: the longest leaf of a new tree.
const WHOLE_LENGTH_MAX: u64 = 16 << 10;
/// The same with [`VerifyPolicy::Always`]: a job holds all of it in memory for each item.
const WHOLE_LENGTH_MAX_ALWAYS: u64 = 64 << 20;
/// Share of the reads from nodes of this machine that is verified by default. Hashing costs as much
/// processor time as a hit in shared memory, so this adds 2 % to its cost.
const LOCAL_SHARE: f64 = 0.02;

/// Which reads are verified.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum VerifyPolicy {
    /// All.
    Always,
    /// None.
    Never,
    /// All reads from other machines, and this share of those from a node of this machine.
    Sampled(SampleShare),
}

/// A share from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleShare(f64);

/// A text that is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a way to verify; use \"always\", \"remote\", \"never\" or a share from 0 to 1",
    text.escape_debug()
)]
pub struct VerifyPolicyError {
    text: String,
}

impl Default for VerifyPolicy {
    fn default() -> Self {
        Self::Sampled(SampleShare(LOCAL_SHARE))
    }
}

impl FromStr for VerifyPolicy {
    type Err = VerifyPolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            "remote" => Ok(Self::Sampled(SampleShare(0.0))),
            share => {
                let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                let invalid = || VerifyPolicyError { text: text.to_owned() };
                share.map(|share| Self::Sampled(SampleShare(share))).ok_or_else(invalid)
            }
        }
    }
}

impl fmt::Display for VerifyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::Never => f.write_str("never"),
            Self::Sampled(SampleShare(share)) => write!(f, "{share}"),
        }
    }
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteSource {
    /// A node of this machine, or the job's agent.
    Local,
    /// A node that is reached over a network.
    Remote,
}

/// What must be known of a blob to verify a range of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobShape {
    /// Length in bytes.
    pub length: u64,
    /// Length of the leaves of its tree, if it has one.
    pub leaf: Option<LeafLength>,
}

/// Decides which reads are verified. The same seed makes the same decisions.
#[derive(Debug, Clone)]
pub struct Verification {
    policy: VerifyPolicy,
    random: fastrand::Rng,
}

impl Verification {
    /// No read is decided yet.
    pub fn new(policy: VerifyPolicy, seed: u64) -> Self {
        Self { policy, random: fastrand::Rng::with_seed(seed) }
    }

    /// Whether the next read, from this source, is verified if it can be.
    pub fn is_due(&mut self, source: ByteSource) -> bool {
        match (self.policy, source) {
            (VerifyPolicy::Always, _) | (VerifyPolicy::Sampled(_), ByteSource::Remote) => true,
            (VerifyPolicy::Never, _) => false,
            (VerifyPolicy::Sampled(SampleShare(share)), ByteSource::Local) => {
                self.random.f64() < share
            }
        }
    }

    /// The range that has to be read to verify `range` of a blob. `None` if that takes the whole of
    /// a blob that is too long for this policy.
    pub fn extent(&self, blob: BlobShape, range: &Range<u64>) -> Option<Range<u64>> {
        let whole = 0..blob.length;
        match blob.leaf {
            _ if *range == whole => Some(whole),
            Some(leaf) => Some(leaf.cover(range, blob.length)),
            None if self.policy == VerifyPolicy::Always => {
                (blob.length <= WHOLE_LENGTH_MAX_ALWAYS).then_some(whole)
            }
            None => (blob.length <= WHOLE_LENGTH_MAX).then_some(whole),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [ByteSource; 2] = [ByteSource::Local, ByteSource::Remote];

    fn verified(policy: &str, source: ByteSource, seed: u64) -> usize {
        let mut verification = Verification::new(policy.parse().unwrap(), seed);
        (0..100_000).filter(|_| verification.is_due(source)).count()
    }

    #[test]
    fn the_policy_decides_by_the_source() {
        let counts = |policy| BOTH.map(|source| verified(policy, source, 1));
        assert_eq!(counts("always"), [100_000, 100_000]);
        assert_eq!(counts("never"), [0, 0]);
        assert_eq!(counts("remote"), [0, 100_000]);
        assert_eq!(counts("0"), [0, 100_000]);
        assert_eq!(counts("1"), [100_000, 100_000]);
    }

    /// 100,000 draws at 2 % have a standard deviation of 44.
    #[test]
    fn a_share_of_local_reads_is_verified() {
        let default = VerifyPolicy::default().to_string();
        for seed in 0..20 {
            let verified = verified(&default, ByteSource::Local, seed);
            assert!((1750..2250).contains(&verified), "{verified} of 100,000 with seed {seed}");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_decisions() {
        let run = |seed| {
            let mut verification = Verification::new("0.5".parse().unwrap(), seed);
            (0..64).map(|_| verification.is_due(ByteSource::Local)).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn policies_survive_a_round_trip_and_nonsense_is_refused() {
        for text in ["always", "never", "0", "0.25", "1"] {
            assert_eq!(text.parse::<VerifyPolicy>().unwrap().to_string(), text);
        }
        for text in ["", "sometimes", "-0.1", "1.5", "nan", "inf", "True"] {
            assert!(text.parse::<VerifyPolicy>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_extent_is_of_whole_leaves_or_the_whole_blob() {
        let extent = |policy: &str, length, leaf: Option<u32>, range: Range<u64>| {
            let leaf = leaf.and_then(LeafLength::new);
            Verification::new(policy.parse().unwrap(), 0).extent(BlobShape { length, leaf }, &range)
        };
        let leaf = Some(4096);
        assert_eq!(extent("remote", 100_000, leaf, 5000..9000), Some(4096..12_288));
        assert_eq!(extent("remote", 100_000, leaf, 98_000..100_000), Some(94_208..100_000));
        assert_eq!(extent("remote", 100_000, leaf, 8192..12_288), Some(8192..12_288));
        assert_eq!(extent("remote", 100_000, None, 0..100_000), Some(0..100_000));
        assert_eq!(extent("remote", 100_000, None, 5000..9000), None);
        assert_eq!(extent("always", 100_000, None, 5000..9000), Some(0..100_000));
        assert_eq!(extent("always", (64 << 20) + 1, None, 5000..9000), None);
        assert_eq!(extent("remote", 9000, None, 5000..8000), Some(0..9000));
    }
}
