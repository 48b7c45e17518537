//! Presence: which blobs of a dataset a node holds, encoded in at most 2 bytes per drawn item.
//!
//! The first answer is complete: one bit per blob, or the ordinals of the resident blobs if that is
//! shorter. It has a **version**. A client that sends a version gets the bits that changed since.
//! The node keeps a log of changes for that, as long as sending it is shorter than sending all
//! bits. Versions start at a random number, so a version of another incarnation of the node, or of
//! another node, is not in the log and gets a complete answer.
//!
//! [`PresenceBudget`] limits how often a job asks: each drawn item adds to the budget, each answer
//! spends it. A job's bits may be slightly old. That costs hits, never wrong bytes.

mod packed;

use std::{collections::VecDeque, time::Duration};

use packed::{pack, unpack};

/// Minimum interval between requests for presence.
const AGE_MIN: Duration = Duration::from_millis(50);
/// Requests for presence take at most one part in this many of the time: answers about large
/// datasets take longer.
const TIME_SHARE: u32 = 20;
/// Budget per drawn item, in quarters of a byte. Together with all bits once per epoch it stays
/// below 2 bytes per item.
const QUARTERS_PER_ITEM: u64 = 7;
/// Initial budget in bytes, besides one bit per blob.
const CREDIT: u64 = 512;
/// The log keeps at most one change per this many blobs: beyond that, sending all bits is shorter.
const BLOBS_PER_CHANGE: usize = 8;
/// Changes that are always kept.
const CHANGES_MIN: usize = 64;

/// What a node sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresenceUpdate {
    /// One bit per blob, lowest ordinal first.
    Bits(Vec<u8>),
    /// Packed ordinals of the resident blobs.
    Only(Vec<u8>),
    /// Packed ordinals of the blobs whose bit changed.
    Changed(Vec<u8>),
}

impl PresenceUpdate {
    /// Encoded length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an update is never empty")]
    pub fn len(&self) -> usize {
        let (Self::Bits(bytes) | Self::Only(bytes) | Self::Changed(bytes)) = self;
        bytes.len()
    }
}

/// An update that cannot be decoded, or does not apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the node sent a malformed presence update")]
pub struct MalformedPresence;

/// The node's side: the bits of the newest version, and a log of earlier changes.
#[derive(Debug)]
pub struct PresenceLog {
    blobs: u32,
    bits: Vec<u8>,
    version: u64,
    /// Versions with the blobs that each changed; the last one is `version`.
    log: VecDeque<(u64, Vec<u32>)>,
    /// Number of changes in the log.
    logged: usize,
}

impl PresenceLog {
    /// No blob is resident. Versions count from `first_version`, which should be random.
    pub fn new(blobs: u32, first_version: u64) -> Self {
        let bits = vec![0; blobs.div_ceil(8) as usize];
        // 0 means no version. A clear top bit leaves room to count up.
        let version = (first_version >> 1).max(1);
        Self { blobs, bits, version, log: VecDeque::new(), logged: 0 }
    }

    /// The version of the updates from [`PresenceLog::update_since`].
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Sets the current bits. They are a new version if any changed.
    pub fn set(&mut self, bits: Vec<u8>) {
        assert_eq!(bits.len(), self.bits.len(), "one bit per blob");
        let mut changed = Vec::new();
        for (at, (now, was)) in bits.iter().zip(&self.bits).enumerate() {
            let mut differing = now ^ was;
            while differing != 0 {
                let bit = differing.trailing_zeros();
                changed.push(u32::try_from(at).expect("blobs fit") * 8 + bit);
                differing &= differing - 1;
            }
        }
        if changed.is_empty() {
            return;
        }
        self.bits = bits;
        self.version += 1;
        self.logged += changed.len();
        self.log.push_back((self.version, changed));
        let most = (self.blobs as usize / BLOBS_PER_CHANGE).max(CHANGES_MIN);
        while self.logged > most {
            let (_, oldest) = self.log.pop_front().expect("changes are logged");
            self.logged -= oldest.len();
        }
    }

    /// The shortest update of `count` blobs from `first` on for a client that has version `since`;
    /// 0 for a client that has none.
    pub fn update_since(&self, since: u64, first: u32, count: u32) -> PresenceUpdate {
        let end = first.checked_add(count).filter(|end| *end <= self.blobs);
        let end = end.expect("a range within the dataset");
        let within = |blob: &u32| (first..end).contains(blob);
        let bytes_max = count.div_ceil(8) as usize;
        if let Some(mut changed) = self.changed_since(since) {
            changed.retain(within);
            if let Some(packed) = pack(changed.iter().map(|blob| blob - first), bytes_max) {
                return PresenceUpdate::Changed(packed);
            }
        } else {
            let resident = (first..end).filter(|blob| has(&self.bits, *blob));
            if let Some(packed) = pack(resident.map(|blob| blob - first), bytes_max) {
                return PresenceUpdate::Only(packed);
            }
        }
        let mut bits = vec![0; bytes_max];
        for (to, blob) in (first..end).enumerate().filter(|(_, blob)| has(&self.bits, *blob)) {
            debug_assert!(blob < self.blobs);
            bits[to / 8] |= 1 << (to % 8);
        }
        PresenceUpdate::Bits(bits)
    }

    /// Blobs whose bits differ from version `since`, ascending; `None` if the log does not reach
    /// back to it.
    fn changed_since(&self, since: u64) -> Option<Vec<u32>> {
        let oldest = self.log.front().map_or(self.version, |(version, _)| version - 1);
        if !(oldest..=self.version).contains(&since) {
            return None;
        }
        let later = self.log.iter().rev().take_while(|(version, _)| *version > since);
        let mut all: Vec<u32> = later.flat_map(|(_, changed)| changed).copied().collect();
        all.sort_unstable();
        // A bit that changed twice is unchanged.
        let odd = |blobs: &[u32]| (blobs.len() % 2 == 1).then_some(blobs[0]);
        Some(all.chunk_by(|a, b| a == b).filter_map(odd).collect())
    }
}

/// The client's side: the bits of the last update.
#[derive(Debug, Clone, Default)]
pub struct KnownPresence {
    blobs: u32,
    bits: Vec<u8>,
    version: u64,
}

impl KnownPresence {
    /// No version yet, for a dataset of `blobs` blobs.
    pub fn new(blobs: u32) -> Self {
        Self { blobs, bits: vec![0; blobs.div_ceil(8) as usize], version: 0 }
    }

    /// Number of blobs.
    pub fn blobs(&self) -> u32 {
        self.blobs
    }

    /// The version to send to the node.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// One bit per blob, lowest ordinal first.
    pub fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// Resets to no version, with no blob resident.
    pub fn forget(&mut self) {
        *self = Self::new(self.blobs);
    }

    /// Sets the union of several nodes' bits. No node has a log of it, so the next update is
    /// complete.
    pub fn set_union(&mut self, bits: &[u8]) {
        assert_eq!(bits.len(), self.bits.len(), "one bit per blob");
        self.bits.copy_from_slice(bits);
        // No node's version reaches this.
        self.version = u64::MAX;
    }

    /// Applies an update of all blobs. A malformed one resets to no version.
    pub fn apply(
        &mut self,
        version: u64,
        update: &PresenceUpdate,
    ) -> Result<(), MalformedPresence> {
        let applied = match update {
            PresenceUpdate::Bits(bits) if bits.len() == self.bits.len() => {
                self.bits.copy_from_slice(bits);
                Ok(())
            }
            PresenceUpdate::Bits(_) => Err(MalformedPresence),
            PresenceUpdate::Changed(_) if self.version == 0 => Err(MalformedPresence),
            PresenceUpdate::Only(packed) | PresenceUpdate::Changed(packed) => {
                unpack(packed, self.blobs).map(|blobs| {
                    if matches!(update, PresenceUpdate::Only(_)) {
                        self.bits.fill(0);
                    }
                    for blob in blobs {
                        self.bits[blob as usize / 8] ^= 1 << (blob % 8);
                    }
                })
            }
        };
        self.version = version;
        if applied.is_err() {
            self.forget();
        }
        applied
    }
}

/// Limits how often a job requests presence.
#[derive(Debug, Clone, Copy, Default)]
pub struct PresenceBudget {
    blobs: u64,
    /// Bytes sent and received for presence.
    spent: u64,
    drawn: u64,
    not_before: Option<Duration>,
}

impl PresenceBudget {
    /// The initial budget for a dataset of `blobs` blobs.
    pub fn new(blobs: u64) -> Self {
        Self { blobs, ..Self::default() }
    }

    /// Whether a request is within the interval and the budget.
    pub fn is_due(&self, now: Duration) -> bool {
        let earned = (self.drawn * QUARTERS_PER_ITEM / 4).saturating_add(self.blobs / 8 + CREDIT);
        self.not_before.is_none_or(|at| now >= at && self.spent <= earned)
    }

    /// A request completed at `now` after `took`, and transferred `bytes`.
    pub fn on_request(&mut self, now: Duration, took: Duration, bytes: u64) {
        self.spent += bytes;
        self.not_before = Some(now + AGE_MIN.max(took * TIME_SHARE));
    }

    /// `items` items were drawn.
    pub fn on_drawn(&mut self, items: u64) {
        self.drawn += items;
    }

    /// Bytes spent and items drawn.
    pub fn totals(&self) -> (u64, u64) {
        (self.spent, self.drawn)
    }
}

fn has(bits: &[u8], blob: u32) -> bool {
    bits[blob as usize / 8] >> (blob % 8) & 1 == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits_of(blobs: u32, there: &[u32]) -> Vec<u8> {
        let mut bits = vec![0; blobs.div_ceil(8) as usize];
        for blob in there {
            bits[*blob as usize / 8] |= 1 << (blob % 8);
        }
        bits
    }

    #[test]
    fn the_shortest_encoding_is_chosen() {
        let mut log = PresenceLog::new(10_000, 99 << 1);
        let mut known = KnownPresence::new(10_000);
        let first = log.update_since(known.version(), 0, 10_000);
        assert!(matches!(&first, PresenceUpdate::Only(packed) if packed.len() == 5), "{first:?}");
        known.apply(log.version(), &first).unwrap();
        log.set(bits_of(10_000, &[3, 5000, 9999]));
        let few = log.update_since(known.version(), 0, 10_000);
        assert!(matches!(&few, PresenceUpdate::Changed(packed) if packed.len() < 12), "{few:?}");
        known.apply(log.version(), &few).unwrap();
        assert_eq!(known.bits(), bits_of(10_000, &[3, 5000, 9999]));
        let half: Vec<u32> = (0..10_000).filter(|blob| blob % 2 == 0).collect();
        log.set(bits_of(10_000, &half));
        let many = log.update_since(known.version(), 0, 10_000);
        assert!(
            matches!(&many, PresenceUpdate::Bits(bits) if bits.len() == 1250),
            "the log is too short"
        );
    }

    #[test]
    fn a_version_of_another_node_gets_a_complete_update() {
        let mut log = PresenceLog::new(100, 1 << 20);
        log.set(bits_of(100, &[1]));
        for since in [0, 1, log.version() + 1, u64::MAX] {
            assert!(
                !matches!(log.update_since(since, 0, 100), PresenceUpdate::Changed(_)),
                "{since}"
            );
        }
        assert!(matches!(log.update_since(log.version() - 1, 0, 100), PresenceUpdate::Changed(_)));
    }

    #[test]
    fn a_bit_that_changed_back_is_not_sent() {
        let mut log = PresenceLog::new(100, 8);
        let before = log.version();
        log.set(bits_of(100, &[1, 2]));
        log.set(bits_of(100, &[2]));
        let PresenceUpdate::Changed(packed) = log.update_since(before, 0, 100) else {
            panic!("in the log")
        };
        assert_eq!(unpack(&packed, 100).unwrap(), [2]);
        let PresenceUpdate::Changed(packed) = log.update_since(before, 1, 50) else {
            panic!("in the log")
        };
        assert_eq!(unpack(&packed, 50).unwrap(), [1], "ordinals count from `first`");
    }

    #[test]
    fn requests_stay_within_the_budget() {
        let mut budget = PresenceBudget::new(8000);
        let at = Duration::from_millis;
        assert!(budget.is_due(at(0)));
        budget.on_request(at(1), at(1), 3000);
        assert!(!budget.is_due(at(40)), "too soon");
        assert!(!budget.is_due(at(1000)), "beyond the budget");
        budget.on_drawn(1000);
        assert!(budget.is_due(at(1000)));
        budget.on_request(at(1100), at(100), 0);
        assert!(
            !budget.is_due(at(3000)) && budget.is_due(at(3100)),
            "the last request took 100 ms"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promise 1, for presence: after any changes and requests, the client has the node's bits.
        #[test]
        fn the_client_has_the_bits_of_the_node(
            blobs in 1_u32..3000,
            rounds in prop::collection::vec((0_u32..200, any::<u32>(), any::<bool>()), 1..40),
        ) {
            let (mut log, mut known) = (PresenceLog::new(blobs, 77), KnownPresence::new(blobs));
            let mut bits = vec![0; blobs.div_ceil(8) as usize];
            for (changes, seed, asks) in rounds {
                let mut random = u64::from(seed);
                for _ in 0..changes {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let blob = u32::try_from((random >> 33) % u64::from(blobs)).unwrap();
                    bits[blob as usize / 8] ^= 1 << (blob % 8);
                }
                log.set(bits.clone());
                if asks {
                    let update = log.update_since(known.version(), 0, blobs);
                    known.apply(log.version(), &update).unwrap();
                    prop_assert_eq!(known.bits(), &bits[..]);
                }
                let logged: usize = log.log.iter().map(|(_, changed)| changed.len()).sum();
                prop_assert_eq!(log.logged, logged);
                prop_assert!(logged <= (blobs as usize / BLOBS_PER_CHANGE).max(CHANGES_MIN));
            }
        }

        /// Any bytes are decoded or refused.
        #[test]
        fn malformed_updates_are_refused(
            packed in prop::collection::vec(any::<u8>(), 0..60),
            blobs in 0_u32..5000,
        ) {
            let mut known = KnownPresence::new(blobs);
            let updates = [
                PresenceUpdate::Bits(packed.clone()),
                PresenceUpdate::Only(packed.clone()),
                PresenceUpdate::Changed(packed),
            ];
            for update in updates {
                let _ = known.apply(1, &update);
                prop_assert_eq!(known.bits().len(), blobs.div_ceil(8) as usize);
            }
        }
    }
}
