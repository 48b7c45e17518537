//! How much a node could still take, as far as can be told from elsewhere.
//!
//! A node gives out its space by the region, and each piece of a dataset fills regions of its own. So it may
//! have room for many bytes and none for one more blob: only as many blobs are sure of a place as there are regions with
//! nothing in them. Whoever must not drop anything goes by those ([`Places`]), and asks for one place after
//! the other when there are few. Whoever fetches ahead goes by the bytes, and leaves a margin.

use std::time::Duration;

/// What the node said is believed for so long.
pub const ROOM_AGE: Duration = Duration::from_millis(50);

/// What a node said of its room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that may still come, if they happen to fit.
    pub bytes: u64,
    /// Regions with nothing in them, on each of its devices.
    pub regions: u64,
    /// Regions that it has dropped to make room, since its start.
    pub evicted: u64,
    /// A longer blob is written in several parts.
    part: u64,
    /// Claims of all who fetch for it.
    claims: u64,
}

impl Room {
    /// From a node's counters.
    pub fn of(counters: &[(String, u64)]) -> Self {
        let value = |name: &str| counters.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v);
        Self {
            bytes: value("capacity_bytes").saturating_sub(value("resident_bytes")),
            regions: value("flash_regions_free_min"),
            evicted: value("flash_regions_evicted"),
            part: value("flash_part_bytes"),
            claims: value("claims_held"),
        }
    }

    /// Regions that a blob may need: one for each part, and one for what names the parts.
    fn regions_for(&self, length: u64) -> u64 {
        match length.div_ceil(self.part.max(1)) {
            0 | 1 => 1,
            parts => parts + 1,
        }
    }
}

/// The places of blobs that are on their way to one node.
#[derive(Debug, Default)]
pub struct Places {
    /// What the node said, and when.
    said: Option<(Duration, Room)>,
    /// Of the regions that were free then, those that nobody was promised.
    left: u64,
    /// Claims of others at that time.
    others: u64,
    /// What the node had dropped when it was first asked.
    evicted_before: u64,
    /// Blobs on their way, and the regions that they may need.
    under_way: (u64, u64),
}

/// A place for one blob: so many regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promised(u64);

impl Places {
    /// Whether the node should be asked again.
    pub fn is_stale(&self, now: Duration) -> bool {
        self.left == 0 || self.said.is_none_or(|(at, _)| now >= at + ROOM_AGE)
    }

    /// The node was asked.
    pub fn hear(&mut self, now: Duration, room: Room) {
        if self.said.is_none() {
            self.evicted_before = room.evicted;
        }
        let (blobs, regions) = self.under_way;
        self.left = room.regions.saturating_sub(regions);
        self.others = room.claims.saturating_sub(blobs);
        self.said = Some((now, room));
    }

    /// A place that is sure, also if all that is on its way needs what it may.
    pub fn take(&mut self, length: u64) -> Option<Promised> {
        let (_, room) = self.said?;
        let (blobs, regions) = self.under_way;
        // Whoever always leaves it to others never comes to anything.
        let others = if self.is_idle() { 0 } else { self.others };
        let needed = room.regions_for(length);
        if room.evicted > self.evicted_before || self.left < needed.saturating_mul(others + 1) {
            return None;
        }
        self.left -= needed;
        self.under_way = (blobs + 1, regions + needed);
        Some(Promised(needed))
    }

    /// A blob has arrived, or will not.
    pub fn done(&mut self, Promised(needed): Promised) {
        self.under_way.0 -= 1;
        self.under_way.1 -= needed;
    }

    /// Whether nothing is on its way: then a place that is not to be had now is not to be had at all.
    pub fn is_idle(&self) -> bool {
        self.under_way.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(regions: u64, evicted: u64, claims: u64) -> Room {
        Room { bytes: 1 << 30, regions, evicted, part: 1000, claims }
    }

    #[test]
    fn only_free_regions_are_promised_and_each_once() {
        let mut places = Places::default();
        assert_eq!(places.take(10), None, "nothing was said");
        places.hear(Duration::ZERO, room(3, 7, 0));
        let one = places.take(10).unwrap();
        assert_eq!(places.take(1500), None, "two parts and their head");
        let two = places.take(10).unwrap();
        assert!(places.take(1000).is_some() && places.take(1).is_none());
        // Those on their way have not arrived when the node is asked again.
        places.hear(ROOM_AGE, room(3, 7, 3));
        assert_eq!(places.take(10), None);
        places.done(one);
        places.done(two);
        places.hear(ROOM_AGE, room(2, 7, 1));
        assert!(places.take(10).is_some() && places.take(10).is_none());
    }

    #[test]
    fn what_others_fetch_needs_room_too() {
        let mut places = Places::default();
        places.hear(Duration::ZERO, room(4, 0, 2));
        assert!(places.take(10).is_some());
        places.hear(ROOM_AGE, room(4, 0, 3));
        assert!(places.take(10).is_some() && places.take(10).is_none());
    }

    #[test]
    fn whoever_has_dropped_something_is_full() {
        let mut places = Places::default();
        places.hear(Duration::ZERO, room(4, 5, 0));
        places.hear(ROOM_AGE, room(4, 6, 0));
        assert!(places.take(10).is_none() && places.is_idle());
    }
}
