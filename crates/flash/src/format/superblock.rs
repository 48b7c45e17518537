//! The superblock: a device's identity and geometry, stored twice. The newer valid copy counts, so
//! a torn write of one copy does not cost the device.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use super::{
    BLOCK_SIZE, DeviceId, Geometry, REGION_SIZE_MAX, REGION_SIZE_MIN, REGIONS_MAX, REGIONS_MIN, crc,
};

/// Offsets of the two copies, which are written alternately.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 512 << 10];

const MAGIC: [u8; 8] = *b"forebay\x1f";
const VERSION: u32 = 1;

/// Identity and geometry of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Id of the device, size and number of its regions.
    pub geometry: Geometry,
    /// Id of the owning node, a random number.
    pub owner: [u8; 16],
    /// Number of times the device has been opened. It is part of every generation, so that no two
    /// openings share one.
    pub epoch: u32,
}

/// Why a block is not a usable superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockError {
    /// All zeros: never written.
    Blank,
    /// Not a forebay superblock.
    Foreign,
    /// A damaged or torn forebay superblock.
    Damaged,
    /// A forebay superblock of an unsupported version.
    Version(u32),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    region_size: U32,
    regions: U32,
    epoch: U32,
    device: U64,
    owner: [u8; 16],
    reserved: [u8; 12],
    crc: U32,
}

const SIZE: usize = size_of::<Raw>();
const _: () = assert!(SIZE == 64);

impl Superblock {
    /// Encodes into the beginning of a block, and zeros the rest.
    pub fn encode(&self, block: &mut [u8]) {
        let Geometry { device, region_size, regions } = self.geometry;
        let mut raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            region_size: u32::try_from(region_size).expect("at most REGION_SIZE_MAX").into(),
            regions: regions.into(),
            epoch: self.epoch.into(),
            device: device.0.into(),
            owner: self.owner,
            reserved: [0; 12],
            crc: 0.into(),
        };
        raw.crc = crc(&raw.as_bytes()[..SIZE - 4]).into();
        block.fill(0);
        block[..SIZE].copy_from_slice(raw.as_bytes());
    }

    /// Decodes a superblock.
    pub fn decode(block: &[u8]) -> Result<Self, SuperblockError> {
        assert!(block.len() >= BLOCK_SIZE, "a superblock is a block");
        if block[..BLOCK_SIZE].iter().all(|byte| *byte == 0) {
            return Err(SuperblockError::Blank);
        }
        let (raw, _) = Raw::read_from_prefix(block).expect("a block is longer");
        if raw.magic != MAGIC {
            return Err(SuperblockError::Foreign);
        }
        if raw.crc.get() != crc(&block[..SIZE - 4]) {
            return Err(SuperblockError::Damaged);
        }
        if raw.version.get() != VERSION {
            return Err(SuperblockError::Version(raw.version.get()));
        }
        let geometry = Geometry {
            device: DeviceId(raw.device.get()),
            region_size: u64::from(raw.region_size.get()),
            regions: raw.regions.get(),
        };
        let possible = geometry.region_size.is_power_of_two()
            && (REGION_SIZE_MIN..=REGION_SIZE_MAX).contains(&geometry.region_size)
            && (REGIONS_MIN..=REGIONS_MAX).contains(&geometry.regions);
        if !possible {
            return Err(SuperblockError::Damaged);
        }
        Ok(Self { geometry, owner: raw.owner, epoch: raw.epoch.get() })
    }
}
