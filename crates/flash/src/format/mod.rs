//! The bytes on a device, as `docs/reference/flash-format.md` specifies them. All numbers are
//! little-endian, all structures have checksums, and all lengths are bounded before use.

mod entry;
mod region;
mod superblock;
#[cfg(test)]
mod tests;

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest, checksum};

pub use entry::{EntryHeader, EntryShape, FRAME_SIZE, HEADER_SIZE, copy_frame, frame_checksums};
pub use region::{Descriptor, Footer, GROUP_NAME_MAX, RegionHeader, RegionUse};
pub use superblock::{SUPERBLOCK_OFFSETS, Superblock, SuperblockError};

/// Unit of device I/O, and alignment of direct I/O.
pub const BLOCK_SIZE: usize = 4096;
/// Alignment of entries. A block may hold the end of one entry and the beginning of the next. That
/// costs reads nothing: a header and a payload of whole blocks span one block more than the payload
/// either way.
pub const UNIT: usize = 64;
/// Offset of the first region.
pub const REGIONS_OFFSET: u64 = 1 << 20;
/// Smallest region size.
pub const REGION_SIZE_MIN: u64 = 1 << 20;
/// Largest region size.
pub const REGION_SIZE_MAX: u64 = 64 << 20;
/// Fewest regions of a device: some are filled while others are read and evicted.
pub const REGIONS_MIN: u32 = 4;
/// Most regions of a device; a location has 24 bits for the region.
pub const REGIONS_MAX: u32 = 1 << 24;

/// Lifetime classes below this one have no meaning to the engine: their groups are a cache.
pub const CLASS_STREAM: u8 = 128;
/// Lifetime class of streams that end with the process: their regions need no syncs, are not
/// scrubbed, and are free after a restart.
pub const CLASS_EPHEMERAL: u8 = 129;

/// Whether groups of this class are streams: no region of theirs is evicted.
pub const fn is_stream_class(class: u8) -> bool {
    class == CLASS_STREAM || class == CLASS_EPHEMERAL
}

/// Random id of a device, drawn when it is formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(pub u64);

/// Number of one use of a region. No two uses of any regions of a device share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// Number of a region on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// Id of a device and the size and number of its regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The device's id.
    pub device: DeviceId,
    /// Bytes per region: a power of two.
    pub region_size: u64,
    /// Number of regions.
    pub regions: u32,
}

impl Geometry {
    /// Offset of a region on the device.
    pub fn region_offset(&self, RegionId(region): RegionId) -> u64 {
        assert!(region < self.regions, "region {region} of {}", self.regions);
        REGIONS_OFFSET + u64::from(region) * self.region_size
    }

    /// Bytes of the device that are used.
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

/// Rounds up to a multiple of `unit`, which is a power of two.
pub const fn round_up(value: u64, unit: u64) -> u64 {
    (value + unit - 1) & !(unit - 1)
}

/// Rounds down to a multiple of `unit`, which is a power of two.
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
