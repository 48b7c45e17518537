//! Device opening: a forebay device is opened, a blank one is formatted, anything else is rejected
//! unchanged.

use std::{
    io::{ErrorKind, Read as _, Seek as _, SeekFrom},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use forebay_core::ByteSize;
use rustix::fs::{FileType, OFlags};

use crate::{
    format::{
        BLOCK_SIZE, CLASS_STREAM, DeviceId, EntryHeader, Footer, Geometry, REGION_SIZE_MAX,
        REGION_SIZE_MIN, REGIONS_MAX, REGIONS_MIN, REGIONS_OFFSET, RegionHeader, RegionId,
        RegionUse, SUPERBLOCK_OFFSETS, Superblock, SuperblockError,
    },
    io::{DeviceFile, DeviceFileError},
};

/// Time to wait for a locked device. The kernel tears down an `io_uring`, and with it releases the
/// lock, only after the process has ended. A node that is stopping also takes some seconds. A
/// restarted node waits for both.
const LOCK_TIMEOUT: Duration = Duration::from_secs(7);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Configuration of a device.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// A block device, or a file, which is created if it is missing.
    pub path: PathBuf,
    /// Bytes of the device to use.
    pub capacity: ByteSize,
    /// Size of the regions, used when the device is formatted. A formatted device keeps its own.
    pub region_size: Option<ByteSize>,
    /// Id of the node that owns the device.
    pub owner: [u8; 16],
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum DeviceError {
    #[error(transparent)]
    Open(#[from] DeviceFileError),
    #[error(
        "{} holds data that is not forebay's: name another file, or remove this one if it is not \
         needed (a block device: `blkdiscard`) and start again",
        path.display()
    )]
    Foreign { path: PathBuf },
    #[error(
        "both superblocks of {} are damaged: check the disk; to start with an empty cache, remove \
         the file (a block device: `blkdiscard`) and start again",
        path.display()
    )]
    Damaged { path: PathBuf },
    #[error(
        "{} was written by a newer forebay (format {found}): use that version, or remove the file \
         to start with an empty cache",
        path.display()
    )]
    Newer { path: PathBuf, found: u32 },
    #[error(
        "{} belongs to another forebay node: name another file, or, if that node is gone, remove \
         this one (a block device: `blkdiscard`) and start again",
        path.display()
    )]
    OtherOwner { path: PathBuf },
    #[error(
        "{} has {size}, but its superblock says {recorded}: it was truncated; restore it, or \
         remove it to start with an empty cache",
        path.display()
    )]
    Truncated { path: PathBuf, size: ByteSize, recorded: ByteSize },
    #[error("capacity {capacity} is too small: with regions of {region_size}, set at least {min}")]
    TooSmall { capacity: ByteSize, region_size: ByteSize, min: ByteSize },
    #[error(
        "streams lie beyond {capacity} of {}: remove them, or set a capacity of at least {} MiB",
        path.display(), min.0 >> 20
    )]
    StreamsBeyond { path: PathBuf, capacity: ByteSize, min: ByteSize },
    #[error("{} is named twice: name each device once", path.display())]
    Duplicate { path: PathBuf },
    #[error(
        "{} is a copy of {}: remove one of them",
        path.display(), other.display()
    )]
    Copy { path: PathBuf, other: PathBuf },
    #[error(
        "region size {0} is not possible: use a power of two from {min} to {max}",
        min = ByteSize(REGION_SIZE_MIN),
        max = ByteSize(REGION_SIZE_MAX)
    )]
    RegionSize(ByteSize),
    #[error("cannot read or write the superblocks of {}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// An opened device.
#[derive(Debug)]
pub struct OpenedDevice {
    /// The file or block device.
    pub file: DeviceFile,
    /// The superblock that recovery writes.
    pub superblock: Superblock,
    /// Number of regions before this opening.
    pub regions_before: u32,
    /// Size to shorten the file to, once the superblock says so.
    pub shorten_to: Option<u64>,
    /// Whether it is a block device.
    pub is_block_device: bool,
}

/// Opens a device; formats it if it is blank.
pub fn open_device(config: &DeviceConfig) -> Result<OpenedDevice, DeviceError> {
    let region_size = region_size(config)?;
    // The size of a file is the capacity unless one is set, so a short file of another program is
    // too small as well.
    let new = geometry_for(config.capacity, region_size).map_err(|error| {
        let path = config.path.clone();
        if is_foreign_file(&path) { DeviceError::Foreign { path } } else { error }
    })?;
    let mut file = lock_and_open(&config.path, new.device_size())?;
    let path = || config.path.clone();
    let io = |source: std::io::Error| match source.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            DeviceError::Open(DeviceFileError::NotWritable { path: path() })
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
        tracing::info!(%path, regions, region_size = %size, "device formatted");
        let superblock = Superblock { epoch: 1, ..first };
        let regions_before = geometry.regions;
        return Ok(OpenedDevice {
            file,
            superblock,
            regions_before,
            shorten_to: None,
            is_block_device,
        });
    };
    // The damaged copy may have been the newer one, so its epoch is skipped: no generation is used
    // twice.
    let damaged = found.iter().any(Result::is_err);
    if damaged {
        tracing::warn!(path = %config.path.display(), "damaged superblock copy rewritten");
    }
    if known.owner != config.owner {
        return Err(DeviceError::OtherOwner { path: path() });
    }
    let recorded = known.geometry.device_size();
    if recorded > file.size() {
        let (size, recorded) = (ByteSize(file.size()), ByteSize(recorded));
        return Err(DeviceError::Truncated { path: path(), size, recorded });
    }
    let wanted = geometry_for(config.capacity, known.geometry.region_size)?;
    let geometry = Geometry { device: known.geometry.device, ..wanted };
    if let Some(RegionId(last)) = last_stream_region(&file, known.geometry, wanted.regions) {
        let min = Geometry { regions: last + 1, ..geometry }.device_size();
        let (capacity, min) = (config.capacity, ByteSize(min));
        return Err(DeviceError::StreamsBeyond { path: path(), capacity, min });
    }
    // A file grows before the superblock is written and shrinks afterwards, so that the superblock
    // never describes more than there is.
    let size = geometry.device_size();
    let shorten_to = (size < file.size()).then_some(size);
    if size > file.size() {
        file.resize(size)?;
    }
    let epoch = known.epoch + if damaged { 2 } else { 1 };
    let superblock = Superblock { geometry, owner: known.owner, epoch };
    let regions_before = known.geometry.regions;
    Ok(OpenedDevice { file, superblock, regions_before, shorten_to, is_block_device })
}

/// The last region, from `first` on, in which a restart would find entries of streams. They exist
/// nowhere else, so they are not cut off. Entries of a cache are.
fn last_stream_region(file: &DeviceFile, geometry: Geometry, first: u32) -> Option<RegionId> {
    (first..geometry.regions).rev().map(RegionId).find(|region| {
        has_stream_entries(file, geometry, geometry.region_offset(*region)).unwrap_or(false)
    })
}

/// Whether the region at this offset has an entry of a stream that outlives its process. A region
/// has a header before its first entry, so the header alone does not show it. A region that cannot
/// be read has none: a restart would not find them either.
fn has_stream_entries(file: &DeviceFile, geometry: Geometry, offset: u64) -> std::io::Result<bool> {
    let Geometry { device, region_size, .. } = geometry;
    let header = RegionHeader::decode(&file.read_block(offset)?);
    let of_stream = |header: &RegionHeader| {
        let of_class =
            matches!(header.usage, RegionUse::Group { class, .. } if class == CLASS_STREAM);
        of_class && header.device == device
    };
    let Some(header) = header.filter(of_stream) else { return Ok(false) };
    let end = file.read_block(offset + region_size - BLOCK_SIZE as u64)?;
    if Footer::size_at(&end, device, header.generation).is_some() {
        return Ok(true);
    }
    let first = EntryHeader::peek(&file.read_block(offset + BLOCK_SIZE as u64)?);
    Ok(first.is_some_and(|first| first.device == device && first.generation == header.generation))
}

/// Whether it is a file that starts with other data than a superblock or zeros.
fn is_foreign_file(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let Some(file) = is_file.then(|| std::fs::File::open(path).ok()).flatten() else {
        return false;
    };
    let mut block = Vec::new();
    if file.take(BLOCK_SIZE as u64).read_to_end(&mut block).is_err() {
        return false;
    }
    block.resize(BLOCK_SIZE, 0);
    Superblock::decode(&block) == Err(SuperblockError::Foreign)
}

fn lock_and_open(path: &Path, size: u64) -> Result<DeviceFile, DeviceFileError> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let mut waiting = false;
    loop {
        match DeviceFile::open(path, size) {
            Err(DeviceFileError::Locked { .. } | DeviceFileError::Busy { .. })
                if Instant::now() < deadline =>
            {
                if !std::mem::replace(&mut waiting, true) {
                    let path = path.display();
                    tracing::info!(%path, timeout = ?LOCK_TIMEOUT, "device locked, waiting");
                }
                sleep(LOCK_RETRY);
            }
            opened => return opened,
        }
    }
}

fn region_size(config: &DeviceConfig) -> Result<u64, DeviceError> {
    if let Some(size) = config.region_size {
        return check_region_size(size).map(|()| size.0);
    }
    // At least 256 regions from 256 MiB on, so that eviction has a choice.
    let share = (config.capacity.0 / 256).clamp(REGION_SIZE_MIN, REGION_SIZE_MAX);
    Ok(1 << share.ilog2())
}

/// Checks that a region size is a power of two within the limits.
pub fn check_region_size(size: ByteSize) -> Result<(), DeviceError> {
    let possible =
        size.0.is_power_of_two() && (REGION_SIZE_MIN..=REGION_SIZE_MAX).contains(&size.0);
    possible.then_some(()).ok_or(DeviceError::RegionSize(size))
}

/// Size of an existing file or device; `None` if it is missing or empty, or neither.
pub fn size_of(path: &Path) -> std::io::Result<Option<ByteSize>> {
    // Opening a pipe without a writer would block.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
    let mut file = match std::fs::File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) => {
            return match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(None),
                _ => Err(error),
            };
        }
    };
    // A pipe has no size.
    let size = file.seek(SeekFrom::End(0)).unwrap_or(0);
    Ok((size > 0).then_some(ByteSize(size)))
}

/// Rejects lists in which one device occurs twice, under one name or several.
pub fn check_distinct(devices: &[PathBuf]) -> Result<(), DeviceError> {
    let mut seen = std::collections::BTreeSet::new();
    for path in devices {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let file = std::fs::metadata(path).ok().map(|there| (there.dev(), there.ino()));
        // Existing files are compared by inode, missing ones by path.
        let name = if file.is_some() { None } else { Some(absolute) };
        if !seen.insert((name, file)) {
            return Err(DeviceError::Duplicate { path: path.clone() });
        }
    }
    Ok(())
}

fn geometry_for(capacity: ByteSize, region_size: u64) -> Result<Geometry, DeviceError> {
    let regions = capacity.0.saturating_sub(REGIONS_OFFSET) / region_size;
    let regions = u32::try_from(regions).unwrap_or(REGIONS_MAX).min(REGIONS_MAX);
    if regions < REGIONS_MIN {
        let min = ByteSize(REGIONS_OFFSET + u64::from(REGIONS_MIN) * region_size);
        return Err(DeviceError::TooSmall { capacity, region_size: ByteSize(region_size), min });
    }
    Ok(Geometry { device: DeviceId(0), region_size, regions })
}
