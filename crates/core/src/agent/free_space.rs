//! Free space of a node, as an agent estimates it.
//!
//! A node allocates space by the region, and each half-chunk fills regions of its own. So a node
//! may have many free bytes and no space for one more blob: only as many blobs are sure to fit as
//! there are empty regions. `forebay warm`, which must not evict anything, reserves empty regions
//! one by one ([`SpaceLedger`]). A build of a digest puts blobs one after the other into regions
//! that they fill in turn, and stops before the last ones ([`FillLedger`]). Prefetching goes by the
//! free bytes, with a margin.

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

/// A report of free space is trusted for this time during a build. Jobs may fill the node
/// meanwhile.
const FILL_AGE_MAX: Duration = Duration::from_millis(500);
/// Shortest region of a device: an empty one holds at least this.
const REGION_BYTES_MIN: u64 = 1 << 20;
/// Empty regions that a build leaves.
const REGIONS_LEFT: u64 = 2;
/// Batches in a row without an answer after which a build puts no more.
const UNANSWERED_MAX: u32 = 3;

/// Free space for the blobs of a build, which nothing is evicted for.
#[derive(Debug, Default)]
pub struct FillLedger {
    /// When space was last reported, and the regions that had been evicted at the first report.
    reported: Option<(Duration, u64)>,
    /// Bytes that fit into empty regions for certain.
    free: u64,
    unanswered: u32,
}

impl FillLedger {
    /// Whether the nodes should be asked for a new report before `bytes` more are put.
    pub fn is_stale(&self, now: Duration, bytes: u64) -> bool {
        self.free < bytes || self.reported.is_none_or(|(at, _)| now >= at + FILL_AGE_MAX)
    }

    /// Takes a report: empty regions, and regions evicted since the nodes started. A node that has
    /// evicted one since the first report is full.
    pub fn on_report(&mut self, now: Duration, regions: u64, evicted: u64) {
        let evicted_before = self.reported.map_or(evicted, |(_, before)| before);
        self.reported = Some((now, evicted_before));
        let regions = if evicted > evicted_before { 0 } else { regions };
        self.free = regions.saturating_sub(REGIONS_LEFT).saturating_mul(REGION_BYTES_MIN);
    }

    /// Takes space for a batch; false if it does not fit, and the build puts no more.
    pub fn take(&mut self, bytes: u64) -> bool {
        let left = self.free.checked_sub(bytes);
        self.free = left.unwrap_or(0);
        left.is_some()
    }

    /// The nodes have answered the claims of a batch, or none has. Returns whether to go on.
    pub fn on_batch(&mut self, is_answered: bool) -> bool {
        self.unanswered = if is_answered { 0 } else { self.unanswered + 1 };
        self.unanswered < UNANSWERED_MAX
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
    fn a_build_leaves_two_regions_and_evicts_none() {
        let (mut ledger, mib) = (FillLedger::default(), 1 << 20);
        assert!(ledger.is_stale(Duration::ZERO, 1) && !ledger.take(1), "no report yet");
        ledger.on_report(Duration::ZERO, 5, 7);
        assert!(!ledger.is_stale(Duration::ZERO, 3 * mib));
        assert!(ledger.is_stale(FILL_AGE_MAX, 1), "jobs may have filled it");
        assert!(ledger.take(2 * mib) && ledger.take(mib) && !ledger.take(1));
        ledger.on_report(FILL_AGE_MAX, 100, 8);
        assert!(!ledger.take(1), "a region was evicted");
    }

    #[test]
    fn a_build_gives_up_nodes_that_do_not_answer() {
        let mut ledger = FillLedger::default();
        let answers = [false, false, true, false, false, false];
        let goes_on = answers.map(|is_answered| ledger.on_batch(is_answered));
        assert_eq!(goes_on, [true, true, true, true, true, false]);
    }

    #[test]
    fn a_node_that_evicted_a_region_is_full() {
        let mut ledger = SpaceLedger::default();
        ledger.on_report(Duration::ZERO, space(4, 5, 0));
        ledger.on_report(FREE_SPACE_AGE_MAX, space(4, 6, 0));
        assert!(ledger.reserve(10).is_none() && ledger.is_idle());
    }
}
