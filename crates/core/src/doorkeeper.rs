//! Who is let into memory: what is asked for a second time.
//!
//! Most blobs are read once in an epoch, and to copy each of them into memory would cost more than it saves.
//! Those that several jobs read are asked for again soon. So a doorkeeper remembers roughly who was here of
//! late, in a table of fixed size in which newcomers overwrite those who were here before.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::Address;

/// Remembers roughly who was here of late.
#[derive(Debug)]
pub struct Doorkeeper {
    seen: Box<[AtomicU32]>,
}

impl Doorkeeper {
    /// One that remembers about so many.
    pub fn new(count: usize) -> Self {
        let slots = count.clamp(1, 1 << 24).next_power_of_two();
        Self { seen: (0..slots).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Somebody is at the door. Says whether it was here before.
    pub fn knows(&self, address: &Address) -> bool {
        // Addresses are hashes: any part of one is as good as another.
        let (place, rest) = address.as_bytes().split_first_chunk::<8>().expect("32 bytes");
        let place = u64::from_le_bytes(*place) & (self.seen.len() as u64 - 1);
        let mark = u32::from_le_bytes(*rest.first_chunk().expect("24 bytes")).max(1);
        let slot = &self.seen[usize::try_from(place).expect("a slot in memory")];
        slot.swap(mark, Relaxed) == mark
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
        let door = Doorkeeper::new(1000);
        assert!(!door.knows(&address(1)) && !door.knows(&address(2)));
        assert!(door.knows(&address(1)) && door.knows(&address(2)) && door.knows(&address(1)));
    }

    #[test]
    fn who_was_here_long_ago_is_forgotten() {
        let door = Doorkeeper::new(1000);
        let visit = |numbers: std::ops::Range<u64>| {
            numbers.filter(|number| door.knows(&address(*number))).count()
        };
        visit(0..1000);
        let known = visit(0..1000);
        assert!((300..700).contains(&known), "many of as many as it has room for: {known}");
        visit(1000..20_000);
        assert_eq!(visit(0..1000), 0);
    }
}
