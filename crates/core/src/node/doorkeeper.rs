//! Doorkeeper: admits a blob to the memory cache when it is requested again soon.
//!
//! Most blobs are read once per epoch. Copying each into a full memory would cost more than it
//! saves: the blob would be evicted before its next read, and would displace an equally good one.
//! Blobs that several jobs read are requested again soon. The doorkeeper remembers approximately
//! which addresses were requested and how many bytes were requested since. It admits a blob that is
//! requested again within as many bytes as the memory holds. Its table has a fixed size; new
//! entries overwrite old ones.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{Address, ByteSize};

/// The clock counts requested bytes. It advances by this many steps while bytes equal to the size
/// of the memory are requested.
const STEPS: u64 = 64;
/// Bits of an entry that hold the step. The step wraps after 64 memory sizes: an address that was
/// requested exactly that long ago is taken for a recent one.
const STEP_BITS: u32 = 12;
const STEP_MASK: u32 = (1 << STEP_BITS) - 1;

/// Remembers approximately which addresses were requested, and when.
#[derive(Debug)]
pub struct Doorkeeper {
    seen: Box<[AtomicU32]>,
    requested_bytes: AtomicU64,
    step: u64,
}

impl Doorkeeper {
    /// For a memory of this size that holds about `count` blobs.
    pub fn new(memory: ByteSize, count: usize) -> Self {
        let slots = count.clamp(1, 1 << 24).next_power_of_two();
        Self {
            seen: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            requested_bytes: AtomicU64::new(0),
            step: (memory.0 / STEPS).max(1),
        }
    }

    /// A request of `length` bytes was answered from the memory.
    pub fn on_hit(&self, length: u64) {
        self.requested_bytes.fetch_add(length, Relaxed);
    }

    /// Records a request that missed the memory. Returns whether the blob should be admitted:
    /// whether it was requested recently.
    pub fn admits(&self, address: &Address, length: u64) -> bool {
        // Both steps wrap alike, so their difference is right.
        let step = self.requested_bytes.fetch_add(length, Relaxed) / self.step;
        let now = u32::try_from(step & u64::from(STEP_MASK)).expect("masked to 12 bits");
        // Addresses are hashes: any part of one is uniformly distributed.
        let (place, rest) = address.as_bytes().split_first_chunk::<8>().expect("32 bytes");
        let place = u64::from_le_bytes(*place) & (self.seen.len() as u64 - 1);
        // An empty slot is 0, so a mark is never 0.
        let mark = u32::from_le_bytes(*rest.first_chunk().expect("24 bytes")) | 1 << STEP_BITS;
        let mark = mark & !STEP_MASK;
        let slot = &self.seen[usize::try_from(place).expect("a slot in memory")];
        let before = slot.swap(mark | now, Relaxed);
        let since = now.wrapping_sub(before) & STEP_MASK;
        before & !STEP_MASK == mark && u64::from(since) <= STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u64) -> Address {
        Address::from_bytes(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    #[test]
    fn a_repeated_request_is_admitted() {
        let doorkeeper = Doorkeeper::new(ByteSize(1000), 1000);
        assert!(!doorkeeper.admits(&address(1), 9) && !doorkeeper.admits(&address(2), 9));
        assert!(doorkeeper.admits(&address(1), 9) && doorkeeper.admits(&address(2), 9));
        assert!(doorkeeper.admits(&address(1), 9));
    }

    #[test]
    fn a_request_repeated_after_one_memory_size_is_not_admitted() {
        let memory = 100_000;
        for (between, is_known) in [(90_000, true), (110_000, false), (900_000, false)] {
            let doorkeeper = Doorkeeper::new(ByteSize(memory), 1000);
            for number in 0..100 {
                doorkeeper.admits(&address(number), 10);
            }
            // Hits and misses both advance the clock.
            doorkeeper.on_hit(between / 2);
            for number in 1000..1100 {
                doorkeeper.admits(&address(number), between / 200);
            }
            let known = (0..100).filter(|number| doorkeeper.admits(&address(*number), 10)).count();
            assert_eq!(known > 50, is_known, "{known} of 100 after {between} bytes");
        }
    }

    #[test]
    fn old_requests_are_overwritten() {
        let doorkeeper = Doorkeeper::new(ByteSize(1 << 40), 1000);
        let visit = |numbers: std::ops::Range<u64>| {
            numbers.filter(|number| doorkeeper.admits(&address(*number), 1)).count()
        };
        visit(0..1000);
        let known = visit(0..1000);
        assert!((300..700).contains(&known), "most of a table of 1024 slots: {known}");
        visit(1000..20_000);
        assert_eq!(visit(0..1000), 0);
    }
}
