//! Device files: a file whose space is reserved in advance, or a block device. It is locked while
//! it is open, and uses direct I/O.
//!
//! Opening never changes a file that has contents. The caller identifies it first.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use forebay_core::ByteSize;
use rustix::{
    fs::{AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags},
    io::Errno,
};

use super::Uninherited;
use crate::format::{BLOCK_SIZE, REGIONS_OFFSET};

/// Blocks of a block device, spread evenly, that are checked before it counts as blank.
const SAMPLES: u64 = 1024;

/// An open device.
#[derive(Debug)]
pub struct DeviceFile {
    /// A forked child would keep the lock.
    file: Uninherited<OwnedFd>,
    path: PathBuf,
    kind: Kind,
    size: u64,
    created: bool,
    /// Whether a failed discard has been logged.
    discard_failed: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Block,
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum DeviceFileError {
    #[error(
        "{} is in use by another process: stop that process, or use another directory or device",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "{} is in use, by another process or as a mounted file system: stop that process, unmount \
         it, or use another device",
        path.display()
    )]
    Busy { path: PathBuf },
    #[error(
        "{} cannot be written: run as its owner, make it and its directory writable, or, if it is \
         a read-only drive, use another",
        path.display()
    )]
    NotWritable { path: PathBuf },
    #[error(
        "{} is neither a file nor a block device: name one of these, or a file to create",
        path.display()
    )]
    NotAFile { path: PathBuf },
    #[error("there is no directory {}: create it, or name another", path.display())]
    NoDirectory { path: PathBuf },
    #[error(
        "there is no device {}: look up its name in /dev/disk/by-id, or wait until it appears",
        path.display()
    )]
    NoDevice { path: PathBuf },
    #[error(
        "the file system of {} has no direct I/O: put the file on ext4 or XFS, or use a block \
         device",
        path.display()
    )]
    NoDirectIo { path: PathBuf },
    #[error(
        "the file system of {} cannot reserve space: put the file on ext4 or XFS, or use a block \
         device",
        path.display()
    )]
    NoReservation { path: PathBuf },
    #[error(
        "{} has blocks of {block_size} bytes, more than {BLOCK_SIZE}: format the drive with \
         smaller blocks, or use another",
        path.display()
    )]
    BlocksTooLarge { path: PathBuf, block_size: u32 },
    #[error(
        "{} has {size}, less than the requested {requested}: set a smaller capacity, or none to \
         use all of it",
        path.display()
    )]
    TooSmall { path: PathBuf, size: ByteSize, requested: ByteSize },
    #[error(
        "{free} are free for {}, less than the requested {requested}: free space, or set a \
         smaller capacity",
        path.display()
    )]
    NoSpace { path: PathBuf, free: ByteSize, requested: ByteSize },
    #[error(
        "io_uring is not available ({source}): use `threads` or `auto`, or allow it in the \
         system or container"
    )]
    NoUring { source: io::Error },
    #[error("cannot {what} {}", path.display())]
    Failed { path: PathBuf, what: &'static str, source: io::Error },
}

impl DeviceFile {
    /// Opens a file or a block device exclusively. A missing or empty file is created with `size`
    /// bytes, all reserved. A block device must have at least `size` bytes. Any other file stays
    /// unchanged.
    pub fn open(path: &Path, size: u64) -> Result<Self, DeviceFileError> {
        let at = DevicePath(path);
        loop {
            let kind = at.kind()?;
            let file = at.open(kind)?;
            at.lock(&file)?;
            // Its creator may have failed and removed it between the opening and the lock.
            if !at.is_same_file(&file)? {
                continue;
            }
            // Keeps the lock until it is decided whether the file stays.
            let lock = Uninherited::new(|| file.try_clone()).map_err(at.failed("open"))?;
            let opened = Self::prepare(at, file, kind.unwrap_or(Kind::File), size);
            if opened.is_err() && kind.is_none() {
                let _ = std::fs::remove_file(path);
            }
            drop(lock);
            return opened;
        }
    }

    fn prepare(
        at: DevicePath<'_>,
        file: Uninherited<OwnedFd>,
        kind: Kind,
        size: u64,
    ) -> Result<Self, DeviceFileError> {
        at.make_direct(&file, kind)?;
        let found = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(at.failed("measure"))?;
        let mut opened = Self {
            file,
            path: at.0.to_owned(),
            kind,
            size: found,
            created: kind == Kind::File && found == 0,
            discard_failed: AtomicBool::new(false),
        };
        if opened.created || kind == Kind::Block {
            opened.resize(size)?;
        }
        if opened.created {
            // An existing empty file may be readable by others.
            let owner_only = Mode::RUSR | Mode::WUSR;
            rustix::fs::fchmod(&opened.file, owner_only)
                .map_err(at.failed("set the permissions of"))?;
            at.make_durable(&opened.file)?;
        }
        at.try_direct_read(&opened.file)?;
        Ok(opened)
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether this opening created the file.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::Block
    }

    /// Path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives a file this size, with all its space reserved. A block device must have at least this
    /// size. On an error, the size stays the same.
    pub fn resize(&mut self, size: u64) -> Result<(), DeviceFileError> {
        let at = DevicePath(&self.path);
        match self.kind {
            Kind::Block if self.size < size => {
                let path = self.path.clone();
                let (size, requested) = (ByteSize(self.size), ByteSize(size));
                return Err(DeviceFileError::TooSmall { path, size, requested });
            }
            Kind::Block => {}
            Kind::File if size < self.size => {
                rustix::fs::ftruncate(&self.file, size).map_err(at.failed("shorten"))?;
                self.size = size;
                // A file that another program created may be sparse.
                at.reserve(&self.file, size)?;
            }
            Kind::File => {
                at.reserve(&self.file, size).inspect_err(|_| {
                    let _ = rustix::fs::ftruncate(&self.file, self.size);
                })?;
                self.size = size;
            }
        }
        Ok(())
    }

    /// Shortens a file while it is in use.
    pub fn shorten(&self, size: u64) -> Result<(), DeviceFileError> {
        if self.kind == Kind::File {
            let at = DevicePath(&self.path);
            rustix::fs::ftruncate(&self.file, size).map_err(at.failed("shorten"))?;
        }
        Ok(())
    }

    /// Whether the device was never written. A file must have no data. A block device must have
    /// only zeros in its first and last MiB and in sampled blocks between them.
    pub fn is_blank(&self) -> io::Result<bool> {
        match self.kind {
            Kind::File => match rustix::fs::seek(&self.file, SeekFrom::Data(0)) {
                Err(Errno::NXIO) => Ok(true),
                Err(error) => Err(error.into()),
                Ok(_) => Ok(false),
            },
            Kind::Block => {
                let (block, size) = (BLOCK_SIZE as u64, self.size - self.size % BLOCK_SIZE as u64);
                let stride = (size / SAMPLES).next_multiple_of(block).max(block);
                let ends = (0..REGIONS_OFFSET).chain(size.saturating_sub(REGIONS_OFFSET)..size);
                let between = (0..size).step_by(usize::try_from(stride).unwrap_or(usize::MAX));
                for offset in ends.step_by(BLOCK_SIZE).chain(between) {
                    if self.read_block(offset)?.iter().any(|byte| *byte != 0) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Reads one block, before there is a disk.
    pub fn read_block(&self, offset: u64) -> io::Result<Vec<u8>> {
        let mut memory = AlignedBlock::new();
        let read = rustix::io::pread(&self.file, memory.block(), offset)?;
        if read != BLOCK_SIZE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(memory.block().to_vec())
    }

    /// Writes blocks and makes them durable.
    pub fn write_blocks(&self, blocks: &[(u64, &[u8])]) -> io::Result<()> {
        let mut memory = AlignedBlock::new();
        for (offset, bytes) in blocks {
            memory.block().copy_from_slice(bytes);
            if rustix::io::pwrite(&self.file, memory.block(), *offset)? != BLOCK_SIZE {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    /// Discards bytes, so that the drive need not keep them; a file reserves the space again.
    /// Failures are logged once and otherwise ignored, since a discard is only a hint.
    pub(super) fn discard(&self, offset: u64, length: u64) {
        let (punch, reserve) =
            (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::KEEP_SIZE);
        let result = match self.kind {
            Kind::File => rustix::fs::fallocate(&self.file, punch, offset, length)
                .and_then(|()| rustix::fs::fallocate(&self.file, reserve, offset, length)),
            Kind::Block => discard_blocks(self.file.as_fd(), offset, length),
        };
        if let Err(error) = result
            && !self.discard_failed.swap(true, Relaxed)
        {
            let path = self.path.display();
            tracing::warn!(%path, %error, "discard failed; further failures are not logged");
        }
    }
}

impl AsFd for DeviceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Path of a device that may not exist yet.
#[derive(Clone, Copy)]
struct DevicePath<'a>(&'a Path);

impl DevicePath<'_> {
    /// Uses `stat`, because opening some devices has side effects.
    fn kind(self) -> Result<Option<Kind>, DeviceFileError> {
        match rustix::fs::stat(self.0) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(Some(Kind::File)),
                FileType::BlockDevice => Ok(Some(Kind::Block)),
                _ => Err(DeviceFileError::NotAFile { path: self.0.to_owned() }),
            },
            // A missing drive must not become a file in devtmpfs.
            Err(Errno::NOENT) if self.0.starts_with("/dev") && !self.0.starts_with("/dev/shm") => {
                Err(DeviceFileError::NoDevice { path: self.0.to_owned() })
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::ACCESS) => Err(DeviceFileError::NotWritable { path: self.0.to_owned() }),
            Err(error) => Err(self.failed("stat")(error)),
        }
    }

    fn open(self, kind: Option<Kind>) -> Result<Uninherited<OwnedFd>, DeviceFileError> {
        let flags = OFlags::RDWR
            | OFlags::CLOEXEC
            | match kind {
                None => OFlags::CREATE,
                Some(Kind::File) => OFlags::empty(),
                // Fails if the block device is mounted or otherwise in use.
                Some(Kind::Block) => OFlags::EXCL,
            };
        let path = self.0.to_owned();
        let open = || rustix::fs::open(self.0, flags, Mode::RUSR | Mode::WUSR);
        let opened = Uninherited::new(|| open().map_err(io::Error::from));
        opened.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                DeviceFileError::NotWritable { path }
            }
            Some(Errno::BUSY) => DeviceFileError::Busy { path },
            Some(Errno::NOENT) => {
                DeviceFileError::NoDirectory { path: directory(self.0).to_owned() }
            }
            _ => self.failed("open")(error),
        })
    }

    /// The kernel releases the lock when the process ends for any reason.
    fn lock(self, file: &OwnedFd) -> Result<(), DeviceFileError> {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            match error {
                Errno::WOULDBLOCK => DeviceFileError::Locked { path: self.0.to_owned() },
                other => self.failed("lock")(other),
            }
        })
    }

    fn is_same_file(self, file: &OwnedFd) -> Result<bool, DeviceFileError> {
        let opened = rustix::fs::fstat(file).map_err(self.failed("stat"))?;
        Ok(rustix::fs::stat(self.0)
            .is_ok_and(|named| (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)))
    }

    /// Sets `O_DIRECT` after the file is open: with a file system that rejects it, `open` would
    /// leave a new file behind.
    fn make_direct(self, file: &OwnedFd, kind: Kind) -> Result<(), DeviceFileError> {
        let no_direct_io = || DeviceFileError::NoDirectIo { path: self.0.to_owned() };
        let flags = rustix::fs::fcntl_getfl(file).map_err(self.failed("open"))?;
        rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).map_err(|_| no_direct_io())?;
        let block_size = match kind {
            Kind::Block => {
                rustix::fs::ioctl_blksszget(file).map_err(self.failed("read the block size of"))?
            }
            Kind::File => {
                let known = StatxFlags::DIOALIGN;
                match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, known) {
                    Ok(stat) if stat.stx_mask & known.bits() != 0 => {
                        // Some file systems accept the flag but use the page cache.
                        if stat.stx_dio_offset_align == 0 {
                            return Err(no_direct_io());
                        }
                        stat.stx_dio_offset_align
                    }
                    _ => 0,
                }
            }
        };
        if block_size as usize > BLOCK_SIZE {
            return Err(DeviceFileError::BlocksTooLarge { path: self.0.to_owned(), block_size });
        }
        Ok(())
    }

    /// The last check of direct I/O. Other errors are left to the first real read.
    fn try_direct_read(self, file: &OwnedFd) -> Result<(), DeviceFileError> {
        match rustix::io::pread(file, AlignedBlock::new().block(), 0) {
            Err(Errno::INVAL) => Err(DeviceFileError::NoDirectIo { path: self.0.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Compares with the free space first, so that a file system is not filled only to find that it
    /// is too small.
    fn reserve(self, file: &OwnedFd, size: u64) -> Result<(), DeviceFileError> {
        let reserved = rustix::fs::fstat(file).map_err(self.failed("stat"))?.st_blocks;
        let reserved = u64::try_from(reserved).unwrap_or(0) * 512;
        let system = rustix::fs::fstatvfs(file).map_err(self.failed("stat"))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let no_space = || DeviceFileError::NoSpace {
            path: self.0.to_owned(),
            free: ByteSize(free),
            requested: ByteSize(size),
        };
        if size.saturating_sub(reserved) > free {
            return Err(no_space());
        }
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size).map_err(|error| match error {
            Errno::NOSPC | Errno::DQUOT => no_space(),
            Errno::OPNOTSUPP => DeviceFileError::NoReservation { path: self.0.to_owned() },
            other => self.failed("reserve space for")(other),
        })
    }

    fn make_durable(self, file: &OwnedFd) -> Result<(), DeviceFileError> {
        rustix::fs::fsync(file).map_err(self.failed("sync"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(directory(self.0), flags, Mode::empty())
            .and_then(rustix::fs::fsync)
            .map_err(self.failed("sync the directory of"))
    }

    fn failed<E: Into<io::Error>>(self, what: &'static str) -> impl FnOnce(E) -> DeviceFileError {
        move |error| DeviceFileError::Failed { path: self.0.to_owned(), what, source: error.into() }
    }
}

/// Memory for one block.
struct AlignedBlock(Vec<u8>);

impl AlignedBlock {
    fn new() -> Self {
        Self(vec![0; 2 * BLOCK_SIZE])
    }

    fn block(&mut self) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK_SIZE);
        &mut self.0[start..start + BLOCK_SIZE]
    }
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Discards bytes of a block device.
#[expect(unsafe_code, reason = "rustix has no BLKDISCARD")]
fn discard_blocks(device: BorrowedFd<'_>, offset: u64, length: u64) -> rustix::io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, offset and length, through its pointer. It
    // writes nothing to memory, and fails on anything but a block device.
    unsafe {
        let request = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, length]);
        rustix::ioctl::ioctl(device, request)
    }
}
