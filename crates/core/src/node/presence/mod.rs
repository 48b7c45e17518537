//! Presence: which blobs of a dataset a node holds, told in few bytes (DESIGN 4.3: at most 2 for each item
//! that is drawn).
//!
//! Whoever asks for the first time is told everything: a bit for each blob, or the few that are there. That is
//! a **version**. Whoever comes back with one is told which bits are others now. The node keeps a log of
//! changes for that, and no more of it than is cheaper to send than all bits would be. Versions begin
//! anywhere, so one of another life of the node, or of another node, is not in the log, and everything is told.
//!
//! [`Thrift`] is the other half of the bargain: a job asks again when what it was told before has been paid for
//! by items that it drew. What it knows may be a little old; that costs a less good choice, never wrong bytes.

mod packed;

use std::{collections::VecDeque, time::Duration};

use packed::{pack, unpack};

/// Presence is not asked for more often,
const AGE_MIN: Duration = Duration::from_millis(50);
/// nor for more than one part in so many of the time: large datasets take longer to answer.
const TIME_SHARE: u32 = 20;
/// An item that was drawn pays for so many quarters of a byte; with all bits once an epoch, that is below two
/// bytes for each.
const QUARTERS_PER_ITEM: u64 = 7;
/// What may be spent before anything is drawn, besides a bit for each blob.
const CREDIT: u64 = 512;
/// A log is not worth keeping once it has a change for so many blobs: all bits are shorter.
const BLOBS_PER_CHANGE: usize = 8;
/// But so many are always kept.
const CHANGES_MIN: usize = 64;

/// What a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// A bit for each blob, lowest first.
    Bits(Vec<u8>),
    /// Packed ordinals: these are there, the others are not.
    Only(Vec<u8>),
    /// Packed ordinals: of these it is the other way round than it was.
    Changed(Vec<u8>),
}

impl Told {
    /// How many bytes it takes to say it.
    #[expect(clippy::len_without_is_empty, reason = "nothing is said in no bytes")]
    pub fn len(&self) -> usize {
        let (Self::Bits(said) | Self::Only(said) | Self::Changed(said)) = self;
        said.len()
    }
}

/// What came from a node makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what the node says of its blobs makes no sense")]
pub struct Nonsense;

/// The node's side: how things stood when it last took stock, and what changed before.
#[derive(Debug)]
pub struct Stock {
    blobs: u32,
    bits: Vec<u8>,
    version: u64,
    /// Versions, each with the blobs whose bits it changed; the last is `version`.
    log: VecDeque<(u64, Vec<u32>)>,
    /// Changes in all of it.
    logged: usize,
}

impl Stock {
    /// Nothing is there yet. Versions count from `first_version`, which no other stock should use.
    pub fn new(blobs: u32, first_version: u64) -> Self {
        let bits = vec![0; blobs.div_ceil(8) as usize];
        // Nought is what those say who know nothing; the top bit leaves room to count.
        let version = (first_version >> 1).max(1);
        Self { blobs, bits, version, log: VecDeque::new(), logged: 0 }
    }

    /// Which version [`Stock::told`] tells.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Takes stock: these bits are so now.
    pub fn take(&mut self, bits: Vec<u8>) {
        assert_eq!(bits.len(), self.bits.len(), "a bit for each blob");
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
            let (_, oldest) = self.log.pop_front().expect("something is logged");
            self.logged -= oldest.len();
        }
    }

    /// How `count` blobs from `first` on stand, to somebody who knows how they stood at `since`; nought is
    /// somebody who knows nothing. The shortest way of saying it.
    pub fn told(&self, since: u64, first: u32, count: u32) -> Told {
        let end = first.checked_add(count).filter(|end| *end <= self.blobs);
        let end = end.expect("the caller has looked");
        let within = |blob: &u32| (first..end).contains(blob);
        let bytes_max = count.div_ceil(8) as usize;
        if let Some(mut changed) = self.changed_since(since) {
            changed.retain(within);
            if let Some(packed) = pack(changed.iter().map(|blob| blob - first), bytes_max) {
                return Told::Changed(packed);
            }
        } else {
            let there = (first..end).filter(|blob| has(&self.bits, *blob));
            if let Some(packed) = pack(there.map(|blob| blob - first), bytes_max) {
                return Told::Only(packed);
            }
        }
        let mut bits = vec![0; bytes_max];
        for (to, blob) in (first..end).enumerate().filter(|(_, blob)| has(&self.bits, *blob)) {
            debug_assert!(blob < self.blobs);
            bits[to / 8] |= 1 << (to % 8);
        }
        Told::Bits(bits)
    }

    /// Blobs whose bits are others than at `since`, in order; nothing, if the log does not go back so far.
    fn changed_since(&self, since: u64) -> Option<Vec<u32>> {
        let oldest = self.log.front().map_or(self.version, |(version, _)| version - 1);
        if !(oldest..=self.version).contains(&since) {
            return None;
        }
        let later = self.log.iter().rev().take_while(|(version, _)| *version > since);
        let mut all: Vec<u32> = later.flat_map(|(_, changed)| changed).copied().collect();
        all.sort_unstable();
        // What changed and changed back is as it was.
        let odd = |blobs: &[u32]| (blobs.len() % 2 == 1).then_some(blobs[0]);
        Some(all.chunk_by(|a, b| a == b).filter_map(odd).collect())
    }
}

/// The job's side: what it was told last.
#[derive(Debug, Clone, Default)]
pub struct Known {
    blobs: u32,
    bits: Vec<u8>,
    version: u64,
}

impl Known {
    /// Nothing, of so many blobs.
    pub fn new(blobs: u32) -> Self {
        Self { blobs, bits: vec![0; blobs.div_ceil(8) as usize], version: 0 }
    }

    /// Of how many blobs.
    pub fn blobs(&self) -> u32 {
        self.blobs
    }

    /// What to say to the node.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A bit for each blob, lowest first.
    pub fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// The node has gone: nothing is there.
    pub fn forget(&mut self) {
        *self = Self::new(self.blobs);
    }

    /// Several nodes together hold these; none of them can say what changed since.
    pub fn put_together(&mut self, bits: &[u8]) {
        assert_eq!(bits.len(), self.bits.len(), "a bit for each blob");
        self.bits.copy_from_slice(bits);
        // No node counts so far.
        self.version = u64::MAX;
    }

    /// Takes in what a node said of all blobs. If it makes no sense, nothing is known any more.
    pub fn hear(&mut self, version: u64, told: &Told) -> Result<(), Nonsense> {
        let heard = match told {
            Told::Bits(bits) if bits.len() == self.bits.len() => {
                self.bits.copy_from_slice(bits);
                Ok(())
            }
            Told::Bits(_) => Err(Nonsense),
            Told::Changed(_) if self.version == 0 => Err(Nonsense),
            Told::Only(packed) | Told::Changed(packed) => unpack(packed, self.blobs).map(|blobs| {
                if matches!(told, Told::Only(_)) {
                    self.bits.fill(0);
                }
                for blob in blobs {
                    self.bits[blob as usize / 8] ^= 1 << (blob % 8);
                }
            }),
        };
        self.version = version;
        if heard.is_err() {
            self.forget();
        }
        heard
    }
}

/// When presence is worth asking for again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Thrift {
    blobs: u64,
    /// Bytes that were sent and received for it.
    spent: u64,
    drawn: u64,
    not_before: Option<Duration>,
}

impl Thrift {
    /// Of a dataset of so many blobs, nothing has been asked yet.
    pub fn new(blobs: u64) -> Self {
        Self { blobs, ..Self::default() }
    }

    /// Whether it is time, and paid for.
    pub fn is_due(&self, now: Duration) -> bool {
        let earned = (self.drawn * QUARTERS_PER_ITEM / 4).saturating_add(self.blobs / 8 + CREDIT);
        self.not_before.is_none_or(|at| now >= at && self.spent <= earned)
    }

    /// It was asked for, which took this time and these bytes.
    pub fn asked(&mut self, began: Duration, now: Duration, bytes: u64) {
        self.spent += bytes;
        self.not_before = Some(now + AGE_MIN.max(now.saturating_sub(began) * TIME_SHARE));
    }

    /// So many items were drawn.
    pub fn drew(&mut self, items: u64) {
        self.drawn += items;
    }

    /// Bytes spent, and items drawn.
    pub fn account(&self) -> (u64, u64) {
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
    fn the_shortest_way_is_taken() {
        let mut stock = Stock::new(10_000, 99 << 1);
        let mut known = Known::new(10_000);
        let first = stock.told(known.version(), 0, 10_000);
        assert!(matches!(&first, Told::Only(packed) if packed.len() == 5), "{first:?}");
        known.hear(stock.version(), &first).unwrap();
        stock.take(bits_of(10_000, &[3, 5000, 9999]));
        let few = stock.told(known.version(), 0, 10_000);
        assert!(matches!(&few, Told::Changed(packed) if packed.len() < 12), "{few:?}");
        known.hear(stock.version(), &few).unwrap();
        assert_eq!(known.bits(), bits_of(10_000, &[3, 5000, 9999]));
        let half: Vec<u32> = (0..10_000).filter(|blob| blob % 2 == 0).collect();
        stock.take(bits_of(10_000, &half));
        let many = stock.told(known.version(), 0, 10_000);
        assert!(matches!(&many, Told::Bits(bits) if bits.len() == 1250), "the log is too short");
    }

    #[test]
    fn a_version_of_another_life_is_none() {
        let mut stock = Stock::new(100, 1 << 20);
        stock.take(bits_of(100, &[1]));
        for since in [0, 1, stock.version() + 1, u64::MAX] {
            assert!(!matches!(stock.told(since, 0, 100), Told::Changed(_)), "{since}");
        }
        assert!(matches!(stock.told(stock.version() - 1, 0, 100), Told::Changed(_)));
    }

    #[test]
    fn what_changed_back_is_not_told() {
        let mut stock = Stock::new(100, 8);
        let before = stock.version();
        stock.take(bits_of(100, &[1, 2]));
        stock.take(bits_of(100, &[2]));
        let Told::Changed(packed) = stock.told(before, 0, 100) else { panic!("it is logged") };
        assert_eq!(unpack(&packed, 100).unwrap(), [2]);
        let Told::Changed(packed) = stock.told(before, 1, 50) else { panic!("it is logged") };
        assert_eq!(unpack(&packed, 50).unwrap(), [1], "counted from the first that was asked for");
    }

    #[test]
    fn thrift_asks_when_it_is_paid_for() {
        let mut thrift = Thrift::new(8000);
        let at = Duration::from_millis;
        assert!(thrift.is_due(at(0)));
        thrift.asked(at(0), at(1), 3000);
        assert!(!thrift.is_due(at(40)), "too soon");
        assert!(!thrift.is_due(at(1000)), "not earned");
        thrift.drew(1000);
        assert!(thrift.is_due(at(1000)));
        thrift.asked(at(1000), at(1100), 0);
        assert!(!thrift.is_due(at(3000)) && thrift.is_due(at(3100)), "it took long to answer");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// Promise 1, for what is said of blobs: however things change and whenever somebody asks, it
        /// knows what the node knew.
        #[test]
        fn whoever_asks_knows_what_the_node_knows(
            blobs in 1_u32..3000,
            rounds in prop::collection::vec((0_u32..200, any::<u32>(), any::<bool>()), 1..40),
        ) {
            let (mut stock, mut known) = (Stock::new(blobs, 77), Known::new(blobs));
            let mut bits = vec![0; blobs.div_ceil(8) as usize];
            for (changes, seed, asks) in rounds {
                let mut random = u64::from(seed);
                for _ in 0..changes {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let blob = u32::try_from((random >> 33) % u64::from(blobs)).unwrap();
                    bits[blob as usize / 8] ^= 1 << (blob % 8);
                }
                stock.take(bits.clone());
                if asks {
                    let told = stock.told(known.version(), 0, blobs);
                    known.hear(stock.version(), &told).unwrap();
                    prop_assert_eq!(known.bits(), &bits[..]);
                }
                let logged: usize = stock.log.iter().map(|(_, changed)| changed.len()).sum();
                prop_assert_eq!(stock.logged, logged);
                prop_assert!(logged <= (blobs as usize / BLOBS_PER_CHANGE).max(CHANGES_MIN));
            }
        }

        /// Whatever a node sends, it is understood or refused.
        #[test]
        fn garbage_is_refused(packed in prop::collection::vec(any::<u8>(), 0..60), blobs in 0_u32..5000) {
            let mut known = Known::new(blobs);
            for told in [Told::Bits(packed.clone()), Told::Only(packed.clone()), Told::Changed(packed)] {
                let _ = known.hear(1, &told);
                prop_assert_eq!(known.bits().len(), blobs.div_ceil(8) as usize);
            }
        }
    }
}
