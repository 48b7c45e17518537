//! Which tables are worth asking the tier for at all (Shift 5.3).
//!
//! The disks that a table needs for its bytes deliver a certain bandwidth anyway. A table whose readers want no
//! more than that gains nothing from flash, and its requests would only crowd out others.

use std::time::Duration;

use crate::{ByteSize, stable::StableMap, units::ByteRate};

/// A table, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(pub u32);

/// The disks under a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disks {
    /// What one holds of a table's own bytes, redundancy taken off.
    pub capacity: ByteSize,
    /// What one delivers.
    pub bandwidth: ByteRate,
}

/// Demand is forgotten by half in this time.
const HALF_LIFE: Duration = Duration::from_mins(30);

#[derive(Debug, Default)]
struct Demand {
    stored: u64,
    /// Bytes read, older ones counting less, and when that was computed.
    bytes: f64,
    at: Duration,
    excluded: bool,
}

/// Measures what tables are asked for.
#[derive(Debug)]
pub struct Eligibility {
    disks: Disks,
    tables: StableMap<Table, Demand>,
}

impl Eligibility {
    /// No table is known yet, and none that is not known is eligible.
    pub fn new(disks: Disks) -> Self {
        Self { disks, tables: StableMap::default() }
    }

    /// A table has this many bytes.
    pub fn stored(&mut self, table: Table, bytes: ByteSize) {
        self.tables.entry(table).or_default().stored = bytes.0;
    }

    /// A table is not for the tier, whatever its demand: it has not been taken on, or is no training data.
    pub fn exclude(&mut self, table: Table) {
        self.tables.entry(table).or_default().excluded = true;
    }

    /// Somebody wants bytes of a table. Says whether the tier should be asked for them.
    pub fn wants(&mut self, now: Duration, table: Table, bytes: u64) -> bool {
        let Some(demand) = self.tables.get_mut(&table) else { return false };
        let elapsed = now.saturating_sub(demand.at);
        if !elapsed.is_zero() {
            demand.bytes *= (-elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
            demand.at = now;
        }
        demand.bytes += bytes as f64;
        // In a steady stream of r bytes a second the sum comes to r × half-life / ln 2.
        let rate = demand.bytes * std::f64::consts::LN_2 / HALF_LIFE.as_secs_f64();
        let disks = demand.stored as f64 / self.disks.capacity.0.max(1) as f64;
        !demand.excluded && rate > disks * self.disks.bandwidth.0.0 as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 TB disks of 100 MB/s; a table of 100 TB has ten of them.
    fn eligibility() -> Eligibility {
        let disks =
            Disks { capacity: ByteSize::gb(10_000), bandwidth: ByteRate(ByteSize(100_000_000)) };
        let mut eligibility = Eligibility::new(disks);
        eligibility.stored(Table(1), ByteSize::gb(100_000));
        eligibility
    }

    /// Reads a table at a rate, for so many minutes; what was said last.
    fn read(eligibility: &mut Eligibility, from_min: u32, minutes: u32, mb_per_s: u64) -> bool {
        let seconds = from_min * 60..(from_min + minutes) * 60;
        let mut said = false;
        for second in seconds {
            let now = Duration::from_secs(second.into());
            said = eligibility.wants(now, Table(1), mb_per_s * 1_000_000);
        }
        said
    }

    #[test]
    fn a_table_that_its_own_disks_can_serve_is_left_to_them() {
        let mut eligibility = eligibility();
        assert!(!read(&mut eligibility, 0, 600, 900), "ten disks deliver 1 GB/s");
        assert!(read(&mut eligibility, 600, 600, 1100));
        assert!(!read(&mut eligibility, 1200, 600, 100), "and demand is forgotten");
    }

    #[test]
    fn what_is_not_known_or_not_taken_on_is_not_asked_for() {
        let mut eligibility = eligibility();
        assert!(!eligibility.wants(Duration::ZERO, Table(9), u64::MAX));
        assert!(read(&mut eligibility, 0, 600, 5000));
        eligibility.exclude(Table(1));
        assert!(!read(&mut eligibility, 600, 600, 5000));
    }
}
