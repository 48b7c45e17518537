//! What is on a device, and what becomes of it: a device of ours is opened, a blank one is formatted, and
//! anything else is left alone.

use std::{
    io::{ErrorKind, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use forebay_core::ByteSize;
use rustix::fs::FileType;

use crate::{
    io::{DeviceFile, OpenError},
    layout::{
        BLOCK_SIZE, DeviceId, Geometry, REGION_SIZE_MAX, REGION_SIZE_MIN, REGIONS_MAX, REGIONS_MIN,
        REGIONS_OFFSET, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
    },
};

/// The kernel takes a ring down after its process has ended, however that ended, and lets go of the device
/// only then; and a node that is stopping takes some seconds. Whoever starts again at once waits for that.
const LOCK_PATIENCE: Duration = Duration::from_secs(7);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How a device shall be.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// A file, which is made if it is not there, or a block device.
    pub path: PathBuf,
    /// How much of it is used.
    pub capacity: ByteSize,
    /// How large its regions are, if it is formatted now; one that is there keeps what it has.
    pub region_size: Option<ByteSize>,
    /// Whose it is.
    pub owner: [u8; 16],
}

/// Why a device is not used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum DeviceError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(
        "{} holds something that is not forebay's: name another file, or, if nobody needs it, remove it \
         (a block device: `blkdiscard`) and start again",
        path.display()
    )]
    Foreign { path: PathBuf },
    #[error(
        "both superblocks of {} are damaged: check the disk; to begin with an empty cache, remove the file \
         (a block device: `blkdiscard`) and start again",
        path.display()
    )]
    Damaged { path: PathBuf },
    #[error(
        "{} was written by a newer forebay (format {found}): use that one, or remove the file to begin \
         with an empty cache",
        path.display()
    )]
    Newer { path: PathBuf, found: u32 },
    #[error(
        "{} belongs to another forebay node: name another file, or, if that node is gone, remove this one \
         (a block device: `blkdiscard`) and start again",
        path.display()
    )]
    OtherOwner { path: PathBuf },
    #[error(
        "{} has {size}, but its superblock says {stated}: it was cut; restore it, or remove it to begin \
         with an empty cache",
        path.display()
    )]
    Cut { path: PathBuf, size: ByteSize, stated: ByteSize },
    #[error(
        "a device of {capacity} is too small: with regions of {region_size} it takes at least {min}"
    )]
    TooSmall { capacity: ByteSize, region_size: ByteSize, min: ByteSize },
    #[error("{} is named twice: name each device once", path.display())]
    Twice { path: PathBuf },
    #[error(
        "{} is a copy of {}: remove one of them, they cannot be told apart",
        path.display(), other.display()
    )]
    Copy { path: PathBuf, other: PathBuf },
    #[error(
        "regions of {0} are not possible: a power of two from {min} to {max}",
        min = ByteSize(REGION_SIZE_MIN),
        max = ByteSize(REGION_SIZE_MAX)
    )]
    RegionSize(ByteSize),
    #[error("read or write the superblocks of {}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// A device that may be used.
#[derive(Debug)]
pub struct Opened {
    /// It.
    pub file: DeviceFile,
    /// What it shall say of itself.
    pub superblock: Superblock,
    /// How many regions it has had until now.
    pub regions_before: u32,
    /// How long it shall be once it says so.
    pub shorten_to: Option<u64>,
    /// Whether it is a drive, and not a file on one.
    pub is_block_device: bool,
}

/// Opens a device, and formats it if it is blank.
pub fn open_device(config: &DeviceConfig) -> Result<Opened, DeviceError> {
    let region_size = region_size(config)?;
    let new = cut(config.capacity, region_size)?;
    let mut file = lock_and_open(&config.path, new.device_size())?;
    let path = || config.path.clone();
    let io = |source: std::io::Error| match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            DeviceError::Open(OpenError::NotWritable { path: path() })
        }
        _ => DeviceError::Io { path: path(), source },
    };
    let kind = rustix::fs::fstat(&file).map_err(|error| io(error.into()))?.st_mode;
    let is_block_device = FileType::from_raw_mode(kind) == FileType::BlockDevice;
    let mut found = Vec::new();
    for offset in SUPERBLOCK_OFFSETS {
        let fits = offset + BLOCK_SIZE as u64 <= file.size();
        let block = if fits { file.read_block(offset).map_err(io)? } else { vec![1; BLOCK_SIZE] };
        found.push(Superblock::decode(&block));
    }
    let version = found.iter().find_map(|copy| match copy {
        Err(SuperblockError::Version(version)) => Some(*version),
        _ => None,
    });
    if let Some(found) = version {
        return Err(DeviceError::Newer { path: path(), found });
    }
    let newest = found.iter().flatten().max_by_key(|copy| copy.epoch).copied();
    let Some(known) = newest else {
        if !file.is_blank().map_err(io)? {
            let damaged = found.contains(&Err(SuperblockError::Damaged));
            let path = path();
            return Err(if damaged {
                DeviceError::Damaged { path }
            } else {
                DeviceError::Foreign { path }
            });
        }
        let geometry = Geometry { device: DeviceId(fastrand::u64(1..)), ..new };
        file.resize(geometry.device_size())?;
        let first = Superblock { geometry, owner: config.owner, epoch: 0 };
        let mut block = vec![0; BLOCK_SIZE];
        first.encode(&mut block);
        file.write_blocks(&SUPERBLOCK_OFFSETS.map(|offset| (offset, &block[..]))).map_err(io)?;
        let (path, regions) = (config.path.display(), geometry.regions);
        let size = ByteSize(geometry.region_size);
        tracing::info!(%path, regions, region_size = %size, "a device is formatted");
        let superblock = Superblock { epoch: 1, ..first };
        let regions_before = geometry.regions;
        return Ok(Opened { file, superblock, regions_before, shorten_to: None, is_block_device });
    };
    // The one that is damaged may have been the newer one, and no two lives may have one number.
    let damaged = found.iter().any(Result::is_err);
    if damaged {
        tracing::warn!(path = %config.path.display(), "one of two superblocks was damaged, and is mended");
    }
    if known.owner != config.owner {
        return Err(DeviceError::OtherOwner { path: path() });
    }
    let stated = known.geometry.device_size();
    if stated > file.size() {
        let (size, stated) = (ByteSize(file.size()), ByteSize(stated));
        return Err(DeviceError::Cut { path: path(), size, stated });
    }
    let wanted = cut(config.capacity, known.geometry.region_size)?;
    let geometry = Geometry { device: known.geometry.device, ..wanted };
    // Longer before it says so, shorter afterwards: it never says more than there is.
    let size = geometry.device_size();
    let shorten_to = (size < file.size()).then_some(size);
    if size > file.size() {
        file.resize(size)?;
    }
    let epoch = known.epoch + if damaged { 2 } else { 1 };
    let superblock = Superblock { geometry, owner: known.owner, epoch };
    let regions_before = known.geometry.regions;
    Ok(Opened { file, superblock, regions_before, shorten_to, is_block_device })
}

fn lock_and_open(path: &Path, size: u64) -> Result<DeviceFile, OpenError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    let mut waiting = false;
    loop {
        match DeviceFile::open(path, size) {
            Err(error @ OpenError::Locked { .. }) if Instant::now() < deadline => {
                if !std::mem::replace(&mut waiting, true) {
                    tracing::info!(%error, patience = ?LOCK_PATIENCE, "waiting for a device");
                }
                sleep(LOCK_PAUSE);
            }
            opened => return opened,
        }
    }
}

fn region_size(config: &DeviceConfig) -> Result<u64, DeviceError> {
    if let Some(size) = config.region_size {
        return check_region_size(size).map(|()| size.0);
    }
    // Small enough to be evicted one by one, and enough of them to have a choice.
    let share = (config.capacity.0 / 256).clamp(REGION_SIZE_MIN, REGION_SIZE_MAX);
    Ok(1 << share.ilog2())
}

/// Whether regions can be so large.
pub fn check_region_size(size: ByteSize) -> Result<(), DeviceError> {
    let possible =
        size.0.is_power_of_two() && (REGION_SIZE_MIN..=REGION_SIZE_MAX).contains(&size.0);
    possible.then_some(()).ok_or(DeviceError::RegionSize(size))
}

/// How long a device is that is there, if anything is.
pub fn size_of(path: &Path) -> Option<ByteSize> {
    let mut file = std::fs::File::open(path).ok()?;
    let size = file.seek(SeekFrom::End(0)).ok()?;
    (size > 0).then_some(ByteSize(size))
}

/// Refuses a device that is named twice, by whatever names.
pub fn check_distinct(devices: &[PathBuf]) -> Result<(), DeviceError> {
    let mut seen = std::collections::BTreeSet::new();
    for path in devices {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let file = std::fs::metadata(path).ok().map(|there| (there.dev(), there.ino()));
        // Whatever is there has a number; what is not has only its name.
        let name = if file.is_some() { None } else { Some(absolute) };
        if !seen.insert((name, file)) {
            return Err(DeviceError::Twice { path: path.clone() });
        }
    }
    Ok(())
}

fn cut(capacity: ByteSize, region_size: u64) -> Result<Geometry, DeviceError> {
    let regions = capacity.0.saturating_sub(REGIONS_OFFSET) / region_size;
    let regions = u32::try_from(regions).unwrap_or(REGIONS_MAX).min(REGIONS_MAX);
    if regions < REGIONS_MIN {
        let min = ByteSize(REGIONS_OFFSET + u64::from(REGIONS_MIN) * region_size);
        return Err(DeviceError::TooSmall { capacity, region_size: ByteSize(region_size), min });
    }
    Ok(Geometry { device: DeviceId(0), region_size, regions })
}
