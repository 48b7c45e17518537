//! Power model: the power of storage (Shift 3.1, table 1), and when a flash tier saves power.
//!
//! The unit of power is that of the table: the power of disks that hold 100 PB. Disks are bought
//! for bytes or for bandwidth, whichever needs more of them.
//!
//! Table 1 has 1.88 for 10 TB/s of flash and 2.69 = 1.00 + 1.69 for both together. Of the 10 TB/s,
//! 1/9.92 comes from the disks that hold the bytes, and 1.88 × (1 − 1/9.92) is 1.69.

use serde::Serialize;

/// Storage of table 1.
const STORAGE: f64 = 100e15;
/// Bandwidth of table 1.
const BANDWIDTH: f64 = 10e12;
/// Power of disks that deliver [`BANDWIDTH`].
const DISKS_FOR_BANDWIDTH: f64 = 9.92;
/// Power of flash that holds [`STORAGE`].
const FLASH_FOR_STORAGE: f64 = 6.53;
/// Power of flash that delivers [`BANDWIDTH`].
const FLASH_FOR_BANDWIDTH: f64 = 1.88;

/// Demand on storage, and the tier in front of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Stored bytes.
    pub storage: f64,
    /// Delivered bytes per second.
    pub bandwidth: f64,
    /// Bytes of flash in the tier.
    pub flash: f64,
    /// Bytes per second that the tier absorbs.
    pub absorbed: f64,
}

/// Power of the alternatives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Power {
    /// Disks alone.
    pub disks_only: f64,
    /// Flash alone.
    pub flash_only: f64,
    /// Disks for the bytes, and flash for the rest of the bandwidth.
    pub ideal: f64,
    /// With this tier: the disks.
    pub disks: f64,
    /// With this tier: the flash.
    pub flash: f64,
    /// Share of `disks_only` that the tier saves; negative if it needs more power.
    pub saved: f64,
    /// Bytes per second that the tier must absorb to save as much power as it draws. May exceed the
    /// bandwidth.
    pub neutral_absorbed: f64,
}

/// Power of disks for this demand.
fn disks(storage: f64, bandwidth: f64) -> f64 {
    (storage / STORAGE).max(bandwidth / BANDWIDTH * DISKS_FOR_BANDWIDTH)
}

/// Power of flash for this demand.
fn flash(storage: f64, bandwidth: f64) -> f64 {
    (storage / STORAGE * FLASH_FOR_STORAGE).max(bandwidth / BANDWIDTH * FLASH_FOR_BANDWIDTH)
}

/// Computes the power of the alternatives for a demand.
pub fn power(demand: Demand) -> Power {
    let Demand { storage, bandwidth, flash: capacity, absorbed } = demand;
    let disks_only = disks(storage, bandwidth);
    let holding = disks(storage, 0.0);
    let left = (bandwidth - holding / DISKS_FOR_BANDWIDTH * BANDWIDTH).max(0.0);
    let tier = flash(capacity, absorbed);
    let behind = disks(storage, (bandwidth - absorbed).max(0.0));
    Power {
        disks_only,
        flash_only: flash(storage, bandwidth),
        ideal: holding + flash(0.0, left),
        disks: behind,
        flash: tier,
        saved: 1.0 - (behind + tier) / disks_only,
        // Bandwidth of the disks that draw as much as flash of this capacity.
        neutral_absorbed: flash(capacity, 0.0) / DISKS_FOR_BANDWIDTH * BANDWIDTH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 0.005
    }

    #[test]
    fn table_1_is_reproduced() {
        let table =
            |storage, bandwidth| power(Demand { storage, bandwidth, flash: 0.0, absorbed: 0.0 });
        let (both, bytes, io) = (table(100e15, 10e12), table(100e15, 0.0), table(0.0, 10e12));
        assert!(close(bytes.disks_only, 1.00) && close(io.disks_only, 9.92));
        assert!(close(both.disks_only, 9.92) && close(both.flash_only, 6.53));
        assert!(close(bytes.flash_only, 6.53) && close(io.flash_only, 1.88));
        assert!(close(bytes.ideal, 1.00) && close(io.ideal, 1.88) && close(both.ideal, 2.69));
        assert!(close(both.disks_only / both.ideal, 3.69), "\"by 3.69 x compared to Option 1\"");
    }

    #[test]
    fn at_the_neutral_point_nothing_is_saved() {
        let demand = Demand { storage: 100e15, bandwidth: 10e12, flash: 5e15, absorbed: 0.0 };
        let neutral = power(demand).neutral_absorbed;
        assert!(power(Demand { absorbed: neutral, ..demand }).saved.abs() < 1e-9);
        assert!(power(Demand { absorbed: 2.0 * neutral, ..demand }).saved > 0.0);
        assert!(power(demand).saved < 0.0);
    }
}
