//! Eligibility: which tables use the tier at all (Shift 5.3).
//!
//! The disks that hold a table's bytes deliver a certain bandwidth anyway. A table whose readers
//! need no more than that gains nothing from flash, and its requests would crowd out others.

use std::time::Duration;

use crate::{ByteSize, units::ByteRate, util::stable_hash::StableMap};

/// A warehouse table, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(pub u32);

/// The disks of the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disks {
    /// Bytes of a table that one disk holds, without redundancy.
    pub capacity: ByteSize,
    /// Bandwidth of one disk.
    pub bandwidth: ByteRate,
}

/// Half-life of measured demand.
const HALF_LIFE: Duration = Duration::from_mins(30);

#[derive(Debug, Default)]
struct Demand {
    stored: u64,
    /// Bytes read, decayed to the time `at`.
    bytes: f64,
    at: Duration,
    excluded: bool,
}

/// Measures the demand for each table.
#[derive(Debug)]
pub struct Eligibility {
    disks: Disks,
    tables: StableMap<Table, Demand>,
}

impl Eligibility {
    /// Without tables. An unknown table is not eligible.
    pub fn new(disks: Disks) -> Self {
        Self { disks, tables: StableMap::default() }
    }

    /// Sets the size of a table.
    pub fn set_stored(&mut self, table: Table, bytes: ByteSize) {
        self.tables.entry(table).or_default().stored = bytes.0;
    }

    /// Excludes a table from the tier whatever its demand, because it has not been onboarded or
    /// holds no training data.
    pub fn exclude(&mut self, table: Table) {
        self.tables.entry(table).or_default().excluded = true;
    }

    /// Records a read. Returns whether the table is eligible for the tier.
    pub fn on_read(&mut self, now: Duration, table: Table, bytes: u64) -> bool {
        let Some(demand) = self.tables.get_mut(&table) else { return false };
        let elapsed = now.saturating_sub(demand.at);
        if !elapsed.is_zero() {
            demand.bytes *= (-elapsed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
            demand.at = now;
        }
        demand.bytes += bytes as f64;
        // A steady rate r gives a decayed sum of r × half-life / ln 2.
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
        eligibility.set_stored(Table(1), ByteSize::gb(100_000));
        eligibility
    }

    /// Reads the table at a constant rate. Returns the last answer.
    fn read(eligibility: &mut Eligibility, from_min: u32, minutes: u32, mb_per_s: u64) -> bool {
        let seconds = from_min * 60..(from_min + minutes) * 60;
        let mut eligible = false;
        for second in seconds {
            let now = Duration::from_secs(second.into());
            eligible = eligibility.on_read(now, Table(1), mb_per_s * 1_000_000);
        }
        eligible
    }

    #[test]
    fn a_table_that_its_own_disks_can_serve_is_not_eligible() {
        let mut eligibility = eligibility();
        assert!(!read(&mut eligibility, 0, 600, 900), "ten disks deliver 1 GB/s");
        assert!(read(&mut eligibility, 600, 600, 1100));
        assert!(!read(&mut eligibility, 1200, 600, 100), "old demand has decayed");
    }

    #[test]
    fn unknown_and_excluded_tables_are_not_eligible() {
        let mut eligibility = eligibility();
        assert!(!eligibility.on_read(Duration::ZERO, Table(9), u64::MAX));
        assert!(read(&mut eligibility, 0, 600, 5000));
        eligibility.exclude(Table(1));
        assert!(!read(&mut eligibility, 600, 600, 5000));
    }
}
