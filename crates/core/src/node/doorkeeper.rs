//! Who is let into memory: what is asked for again before the memory would have turned over.
//!
//! Most blobs are read once in an epoch. To copy each of them into a full memory would cost more than it saves: it would
//! be gone before it is asked for again, and have displaced another that is as good. Those that several jobs read are
//! asked for again soon. So a doorkeeper remembers roughly who was here, and how much was asked for since: only
//! who returns within as many bytes as the memory holds is let in. Its table has a fixed size, in which newcomers
//! overwrite those who were here before.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::{Address, ByteSize};

/// Time, in bytes that were asked for, is told in so many steps to a memory,
const STEPS: u64 = 64;
/// by so many bits of a mark: who was here 64 memories ago, to the step, is taken for somebody who was just here.
const STEP_BITS: u32 = 12;
const STEP_MASK: u32 = (1 << STEP_BITS) - 1;

/// Remembers roughly who was here, and when.
#[derive(Debug)]
pub struct Doorkeeper {
    seen: Box<[AtomicU32]>,
    asked: AtomicU64,
    step: u64,
}

impl Doorkeeper {
    /// For a memory of this size, in which about so many find a place.
    pub fn new(memory: ByteSize, count: usize) -> Self {
        let slots = count.clamp(1, 1 << 24).next_power_of_two();
        Self {
            seen: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            asked: AtomicU64::new(0),
            step: (memory.0 / STEPS).max(1),
        }
    }

    /// So much was asked for, and found in the memory.
    pub fn found(&self, length: u64) {
        self.asked.fetch_add(length, Relaxed);
    }

    /// Somebody of this length is at the door. Says whether it was here a short while ago.
    pub fn knows(&self, address: &Address, length: u64) -> bool {
        // What is lost by going round is lost from both moments alike.
        let step = self.asked.fetch_add(length, Relaxed) / self.step;
        let now = u32::try_from(step & u64::from(STEP_MASK)).expect("a few bits");
        // Addresses are hashes: any part of one is as good as another.
        let (place, rest) = address.as_bytes().split_first_chunk::<8>().expect("32 bytes");
        let place = u64::from_le_bytes(*place) & (self.seen.len() as u64 - 1);
        // Nought is nobody.
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
    fn the_second_time_it_is_known() {
        let door = Doorkeeper::new(ByteSize(1000), 1000);
        assert!(!door.knows(&address(1), 9) && !door.knows(&address(2), 9));
        assert!(door.knows(&address(1), 9) && door.knows(&address(2), 9));
        assert!(door.knows(&address(1), 9));
    }

    #[test]
    fn who_returns_after_the_memory_has_turned_over_is_not() {
        let memory = 100_000;
        for (between, is_known) in [(90_000, true), (110_000, false), (900_000, false)] {
            let door = Doorkeeper::new(ByteSize(memory), 1000);
            for number in 0..100 {
                door.knows(&address(number), 10);
            }
            // Whether it was found in memory or had to be read, what was asked for in between counts.
            door.found(between / 2);
            for number in 1000..1100 {
                door.knows(&address(number), between / 200);
            }
            let known = (0..100).filter(|number| door.knows(&address(*number), 10)).count();
            assert_eq!(known > 50, is_known, "{known} of 100 after {between} bytes");
        }
    }

    #[test]
    fn who_was_here_long_ago_is_forgotten() {
        let door = Doorkeeper::new(ByteSize(1 << 40), 1000);
        let visit = |numbers: std::ops::Range<u64>| {
            numbers.filter(|number| door.knows(&address(*number), 1)).count()
        };
        visit(0..1000);
        let known = visit(0..1000);
        assert!((300..700).contains(&known), "many of as many as it has room for: {known}");
        visit(1000..20_000);
        assert_eq!(visit(0..1000), 0);
    }
}
