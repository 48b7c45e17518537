//! The bytes on a device, as `docs/flash-format.md` describes them: everything little-endian, everything
//! with a checksum, every length bounded before it is believed.

mod entry;
mod region;
mod superblock;
#[cfg(test)]
mod tests;

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest, checksum};

pub use entry::{EntryHeader, EntryShape, FRAME_SIZE, HEADER_SIZE, frame_checksums};
pub use region::{Descriptor, Footer, GROUP_NAME_MAX, RegionHeader, Use};
pub use superblock::{SUPERBLOCK_OFFSETS, Superblock, SuperblockError};

/// What a device reads and writes at once, and what direct I/O is aligned to.
pub const BLOCK_SIZE: usize = 4096;
/// What entries are aligned to. A block may hold the end of one entry and the beginning of the next, which
/// costs a read nothing: header and payload of a whole number of blocks span one block more either way.
pub const UNIT: usize = 64;
/// Where the first region begins.
pub const REGIONS_OFFSET: u64 = 1 << 20;
/// The smallest region.
pub const REGION_SIZE_MIN: u64 = 1 << 20;
/// The largest region.
pub const REGION_SIZE_MAX: u64 = 64 << 20;
/// The fewest regions a device may have: some are being filled while others are being read and evicted.
pub const REGIONS_MIN: u32 = 4;
/// The most.
pub const REGIONS_MAX: u32 = 1 << 24;

/// Tells a device from every other; drawn at random when it is formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(pub u64);

/// One life of a region, different from every other life of any region of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// The number of a region on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// How a device is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Which device it is.
    pub device: DeviceId,
    /// Bytes of a region: a power of two.
    pub region_size: u64,
    /// How many there are.
    pub regions: u32,
}

impl Geometry {
    /// Where a region begins.
    pub fn region_offset(&self, RegionId(region): RegionId) -> u64 {
        assert!(region < self.regions, "region {region} of {}", self.regions);
        REGIONS_OFFSET + u64::from(region) * self.region_size
    }

    /// How long the device is at least.
    pub fn device_size(&self) -> u64 {
        REGIONS_OFFSET + u64::from(self.regions) * self.region_size
    }

    /// The longest payload that fits into a region.
    pub fn entry_length_max(&self) -> u64 {
        let room = self.region_size - BLOCK_SIZE as u64 - Footer::size(1);
        let frames = room.div_ceil(FRAME_SIZE as u64);
        room - (HEADER_SIZE as u64) - round_up(4 * frames, UNIT as u64)
    }
}

/// The next multiple of `unit`, which is a power of two.
pub const fn round_up(value: u64, unit: u64) -> u64 {
    (value + unit - 1) & !(unit - 1)
}

/// The multiple of `unit` at or before `value`; `unit` is a power of two.
pub const fn round_down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}

fn crc(bytes: &[u8]) -> u32 {
    low_half(checksum(Crc32Iscsi, bytes))
}

fn crc_of_all(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    low_half(digest.finalize())
}

fn low_half(checksum: u64) -> u32 {
    u32::try_from(checksum).expect("CRC32C has 32 bits")
}
