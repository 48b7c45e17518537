//! Free space of a node, as an agent estimates it.
//!
//! A node allocates space by the region, and each half-chunk fills regions of its own. So a node
//! may have many free bytes and no space for one more blob: only as many blobs are sure to fit as
//! there are empty regions. `forebay warm`, which must not evict anything, reserves empty regions
//! one by one ([`SpaceLedger`]). Prefetching goes by the free bytes, with a margin.

use std::time::Duration;

/// A report of free space is trusted for this long.
pub const FREE_SPACE_AGE_MAX: Duration = Duration::from_millis(50);

/// The free space that a node reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeSpace {
    /// Bytes below the node's capacity. Not all of them may fit: see the module head.
    pub bytes: u64,
    /// Empty regions on the healthy device that has the fewest.
    pub regions: u64,
    /// Regions evicted to make space since the node started.
    pub regions_evicted: u64,
    /// A longer blob is written in several parts of this length.
    pub part_bytes: u64,
    /// Claims that all agents hold on the node.
    pub claims: u64,
}

impl FreeSpace {
    /// Regions that a blob may need: one per part, and one for the list of parts.
    fn regions_for(&self, length: u64) -> u64 {
        match length.div_ceil(self.part_bytes.max(1)) {
            0 | 1 => 1,
            parts => parts + 1,
        }
    }
}

/// Reservations of free space for blobs in transit to one node.
#[derive(Debug, Default)]
pub struct SpaceLedger {
    /// The last report, and when it arrived.
    report: Option<(Duration, FreeSpace)>,
    /// Free regions of that report that are not reserved.
    unreserved: u64,
    /// Claims of other agents at that time.
    other_claims: u64,
    /// Regions evicted before the first report.
    evicted_before: u64,
    /// Blobs in transit, and the regions that they may need.
    blobs: u64,
    regions: u64,
}

/// Reserved regions for one blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation(u64);

impl SpaceLedger {
    /// Whether the node should be asked for a new report.
    pub fn is_stale(&self, now: Duration) -> bool {
        self.unreserved == 0 || self.report.is_none_or(|(at, _)| now >= at + FREE_SPACE_AGE_MAX)
    }

    /// Takes a report of the node.
    pub fn on_report(&mut self, now: Duration, space: FreeSpace) {
        if self.report.is_none() {
            self.evicted_before = space.regions_evicted;
        }
        self.unreserved = space.regions.saturating_sub(self.regions);
        self.other_claims = space.claims.saturating_sub(self.blobs);
        self.report = Some((now, space));
    }

    /// Reserves regions for a blob, if they are free even when every blob in transit needs its
    /// maximum.
    pub fn reserve(&mut self, length: u64) -> Option<Reservation> {
        let (_, space) = self.report?;
        // An agent with nothing in transit ignores the others, or it might never start.
        let others = if self.is_idle() { 0 } else { self.other_claims };
        let needed = space.regions_for(length);
        if space.regions_evicted > self.evicted_before
            || self.unreserved < needed.saturating_mul(others + 1)
        {
            return None;
        }
        self.unreserved -= needed;
        self.blobs += 1;
        self.regions += needed;
        Some(Reservation(needed))
    }

    /// Ends a reservation: the blob was stored, or will not be.
    pub fn release(&mut self, Reservation(needed): Reservation) {
        self.blobs -= 1;
        self.regions -= needed;
    }

    /// Whether no blob is in transit: then a failed reservation will not succeed later.
    pub fn is_idle(&self) -> bool {
        self.blobs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(regions: u64, evicted: u64, claims: u64) -> FreeSpace {
        FreeSpace { bytes: 1 << 30, regions, regions_evicted: evicted, part_bytes: 1000, claims }
    }

    #[test]
    fn each_free_region_is_reserved_once() {
        let mut ledger = SpaceLedger::default();
        assert_eq!(ledger.reserve(10), None, "no report yet");
        ledger.on_report(Duration::ZERO, space(3, 7, 0));
        let one = ledger.reserve(10).unwrap();
        assert_eq!(ledger.reserve(1500), None, "two parts and their list");
        let two = ledger.reserve(10).unwrap();
        assert!(ledger.reserve(1000).is_some() && ledger.reserve(1).is_none());
        // Blobs in transit are not in the second report.
        ledger.on_report(FREE_SPACE_AGE_MAX, space(3, 7, 3));
        assert_eq!(ledger.reserve(10), None);
        ledger.release(one);
        ledger.release(two);
        ledger.on_report(FREE_SPACE_AGE_MAX, space(2, 7, 1));
        assert!(ledger.reserve(10).is_some() && ledger.reserve(10).is_none());
    }

    #[test]
    fn claims_of_other_agents_are_counted() {
        let mut ledger = SpaceLedger::default();
        ledger.on_report(Duration::ZERO, space(4, 0, 2));
        assert!(ledger.reserve(10).is_some());
        ledger.on_report(FREE_SPACE_AGE_MAX, space(4, 0, 3));
        assert!(ledger.reserve(10).is_some() && ledger.reserve(10).is_none());
    }

    #[test]
    fn a_node_that_evicted_a_region_is_full() {
        let mut ledger = SpaceLedger::default();
        ledger.on_report(Duration::ZERO, space(4, 5, 0));
        ledger.on_report(FREE_SPACE_AGE_MAX, space(4, 6, 0));
        assert!(ledger.reserve(10).is_none() && ledger.is_idle());
    }
}
