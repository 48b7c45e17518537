//! What holds a device: a file, made and reserved in advance, or a block device. It is ours alone while it
//! is open, and it is read and written past the page cache.
//!
//! Opening never changes a file that has anything in it: whoever opened it has to recognise it first.

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

use crate::layout::{BLOCK_SIZE, REGIONS_OFFSET};

/// Between its ends, so many blocks of a drive are looked at before it is taken for blank.
const SAMPLES: u64 = 1024;

/// An open device.
#[derive(Debug)]
pub struct DeviceFile {
    file: OwnedFd,
    path: PathBuf,
    kind: Kind,
    size: u64,
    created: bool,
    /// Whether it has been logged that space cannot be given back.
    discard_failed: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Block,
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each says what it is about")]
pub enum OpenError {
    #[error(
        "{} is in use, by another process or as a file system that is mounted: stop that, or use another",
        path.display()
    )]
    Locked { path: PathBuf },
    #[error(
        "{} cannot be written: run as its owner, make it and its directory writable, or, if it is a drive \
         that is read-only, use another",
        path.display()
    )]
    NotWritable { path: PathBuf },
    #[error(
        "{} is neither a file nor a block device: name one of these, or a file that is not there yet",
        path.display()
    )]
    NotAFile { path: PathBuf },
    #[error("there is no directory {}: make it, or name another", path.display())]
    NoDirectory { path: PathBuf },
    #[error(
        "there is no device {}: look for its name in /dev/disk/by-id, or wait until it is there",
        path.display()
    )]
    NoDevice { path: PathBuf },
    #[error(
        "the file system of {} offers no direct I/O: put the device on ext4 or XFS, or use a block device",
        path.display()
    )]
    NoDirectIo { path: PathBuf },
    #[error(
        "the file system of {} cannot reserve space: put the device on ext4 or XFS, or use a block device",
        path.display()
    )]
    NoReserving { path: PathBuf },
    #[error(
        "{} reads and writes {block_size} bytes at once, more than the {BLOCK_SIZE} of the engine: format \
         the drive with smaller blocks, or use another",
        path.display()
    )]
    BlocksTooLarge { path: PathBuf, block_size: u32 },
    #[error(
        "{} has {size}, less than the {asked} that it was to take: set a smaller capacity, or none, which \
         means all of it",
        path.display()
    )]
    TooSmall { path: PathBuf, size: ByteSize, asked: ByteSize },
    #[error(
        "{free} are free for {}, too little for {asked}: make room there, or ask for less",
        path.display()
    )]
    NoSpace { path: PathBuf, free: ByteSize, asked: ByteSize },
    #[error(
        "io_uring is not available ({source}): choose threads, or let the system or its container allow it"
    )]
    NoRing { source: io::Error },
    #[error("cannot {what} {}", path.display())]
    Failed { path: PathBuf, what: &'static str, source: io::Error },
}

impl DeviceFile {
    /// Opens a file or a block device for one user. A file that is not there, or that is empty, is made
    /// `size` long with all its space reserved; a block device must be at least so long. Any other file is
    /// left as it is.
    pub fn open(path: &Path, size: u64) -> Result<Self, OpenError> {
        let at = At(path);
        loop {
            let kind = at.kind()?;
            let file = at.open(kind)?;
            at.lock(&file)?;
            // Between opening and locking, its maker may have failed and removed it.
            if !at.is_still(&file)? {
                continue;
            }
            // Holds the lock until it is decided whether the file stays.
            let held = file.try_clone().map_err(at.failed("open"))?;
            let opened = Self::prepare(at, file, kind.unwrap_or(Kind::File), size);
            if opened.is_err() && kind.is_none() {
                let _ = std::fs::remove_file(path);
            }
            drop(held);
            return opened;
        }
    }

    fn prepare(at: At<'_>, file: OwnedFd, kind: Kind, size: u64) -> Result<Self, OpenError> {
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
            // It may have been there, empty, for everybody to read.
            let owner_only = Mode::RUSR | Mode::WUSR;
            rustix::fs::fchmod(&opened.file, owner_only).map_err(at.failed("close to others"))?;
            at.make_durable(&opened.file)?;
        }
        at.try_direct_read(&opened.file)?;
        Ok(opened)
    }

    /// How long it is.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether there was nothing before it was opened.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a file so long, with all its space reserved; a block device must be at least so long already.
    /// If that fails, it is as long as before.
    pub fn resize(&mut self, size: u64) -> Result<(), OpenError> {
        let at = At(&self.path);
        match self.kind {
            Kind::Block if self.size < size => {
                let path = self.path.clone();
                let (size, asked) = (ByteSize(self.size), ByteSize(size));
                return Err(OpenError::TooSmall { path, size, asked });
            }
            Kind::Block => {}
            Kind::File if size < self.size => {
                rustix::fs::ftruncate(&self.file, size).map_err(at.failed("shorten"))?;
                self.size = size;
                // Its space may never have been reserved, if somebody else made it.
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

    /// Cuts off what nobody needs any more; while it is in use, too.
    pub fn shorten(&self, size: u64) -> Result<(), OpenError> {
        if self.kind == Kind::File {
            let at = At(&self.path);
            rustix::fs::ftruncate(&self.file, size).map_err(at.failed("shorten"))?;
        }
        Ok(())
    }

    /// Whether nothing was ever written here: a file without data; a block device on which there are only
    /// zeros where everybody begins and ends, and at many places in between.
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

    /// One block, before there is a disk to ask.
    pub fn read_block(&self, offset: u64) -> io::Result<Vec<u8>> {
        let mut memory = Aligned::new();
        let read = rustix::io::pread(&self.file, memory.block(), offset)?;
        if read != BLOCK_SIZE {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(memory.block().to_vec())
    }

    /// Writes some blocks, and waits until they are durable.
    pub fn write_blocks(&self, blocks: &[(u64, &[u8])]) -> io::Result<()> {
        let mut memory = Aligned::new();
        for (offset, bytes) in blocks {
            memory.block().copy_from_slice(bytes);
            if rustix::io::pwrite(&self.file, memory.block(), *offset)? != BLOCK_SIZE {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    /// Gives the space below these bytes back, so that the flash need not keep them; a file reserves it
    /// again. It is a favour to the drive: where it is not possible, that is logged once and nothing more.
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
            tracing::warn!(%path, %error, "freed space cannot be discarded; said once");
        }
    }
}

impl AsFd for DeviceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A place where a device is, or shall be.
#[derive(Clone, Copy)]
struct At<'a>(&'a Path);

impl At<'_> {
    /// What is there, without touching it: merely opening some devices does something.
    fn kind(self) -> Result<Option<Kind>, OpenError> {
        match rustix::fs::stat(self.0) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(Some(Kind::File)),
                FileType::BlockDevice => Ok(Some(Kind::Block)),
                _ => Err(OpenError::NotAFile { path: self.0.to_owned() }),
            },
            // A drive that is missing must not become a file in memory.
            Err(Errno::NOENT) if self.0.starts_with("/dev") && !self.0.starts_with("/dev/shm") => {
                Err(OpenError::NoDevice { path: self.0.to_owned() })
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::ACCESS) => Err(OpenError::NotWritable { path: self.0.to_owned() }),
            Err(error) => Err(self.failed("look at")(error)),
        }
    }

    fn open(self, kind: Option<Kind>) -> Result<OwnedFd, OpenError> {
        let flags = OFlags::RDWR
            | OFlags::CLOEXEC
            | match kind {
                None => OFlags::CREATE,
                Some(Kind::File) => OFlags::empty(),
                // A block device that is mounted, or in another such use, refuses.
                Some(Kind::Block) => OFlags::EXCL,
            };
        let path = self.0.to_owned();
        rustix::fs::open(self.0, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => OpenError::NotWritable { path },
            Errno::BUSY => OpenError::Locked { path },
            Errno::NOENT => OpenError::NoDirectory { path: directory(self.0).to_owned() },
            other => self.failed("open")(other),
        })
    }

    /// The lock ends with the process, however that ends.
    fn lock(self, file: &OwnedFd) -> Result<(), OpenError> {
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            match error {
                Errno::WOULDBLOCK => OpenError::Locked { path: self.0.to_owned() },
                other => self.failed("lock")(other),
            }
        })
    }

    fn is_still(self, file: &OwnedFd) -> Result<bool, OpenError> {
        let ours = rustix::fs::fstat(file).map_err(self.failed("look at"))?;
        Ok(rustix::fs::stat(self.0)
            .is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)))
    }

    /// Asked for after opening: a file system that refuses must not leave a file behind.
    fn make_direct(self, file: &OwnedFd, kind: Kind) -> Result<(), OpenError> {
        let no_direct_io = || OpenError::NoDirectIo { path: self.0.to_owned() };
        let flags = rustix::fs::fcntl_getfl(file).map_err(self.failed("open"))?;
        rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT).map_err(|_| no_direct_io())?;
        let block_size = match kind {
            Kind::Block => {
                rustix::fs::ioctl_blksszget(file).map_err(self.failed("ask for the blocks of"))?
            }
            Kind::File => {
                let known = StatxFlags::DIOALIGN;
                match rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, known) {
                    Ok(stat) if stat.stx_mask & known.bits() != 0 => {
                        // Some file systems take the flag and go through the page cache all the same.
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
            return Err(OpenError::BlocksTooLarge { path: self.0.to_owned(), block_size });
        }
        Ok(())
    }

    /// The last doubt about direct I/O. Other errors are for whoever reads.
    fn try_direct_read(self, file: &OwnedFd) -> Result<(), OpenError> {
        match rustix::io::pread(file, Aligned::new().block(), 0) {
            Err(Errno::INVAL) => Err(OpenError::NoDirectIo { path: self.0.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Looks before it asks: a file system must not be filled only to find that it is too small.
    fn reserve(self, file: &OwnedFd, size: u64) -> Result<(), OpenError> {
        let held = rustix::fs::fstat(file).map_err(self.failed("look at"))?.st_blocks;
        let held = u64::try_from(held).unwrap_or(0) * 512;
        let system = rustix::fs::fstatvfs(file).map_err(self.failed("look at"))?;
        let free = system.f_bavail.saturating_mul(system.f_frsize);
        let no_space = || OpenError::NoSpace {
            path: self.0.to_owned(),
            free: ByteSize(free),
            asked: ByteSize(size),
        };
        if size.saturating_sub(held) > free {
            return Err(no_space());
        }
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size).map_err(|error| match error {
            Errno::NOSPC | Errno::DQUOT => no_space(),
            Errno::OPNOTSUPP => OpenError::NoReserving { path: self.0.to_owned() },
            other => self.failed("reserve space for")(other),
        })
    }

    fn make_durable(self, file: &OwnedFd) -> Result<(), OpenError> {
        rustix::fs::fsync(file).map_err(self.failed("sync"))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(directory(self.0), flags, Mode::empty())
            .and_then(rustix::fs::fsync)
            .map_err(self.failed("sync the directory of"))
    }

    fn failed<E: Into<io::Error>>(self, what: &'static str) -> impl FnOnce(E) -> OpenError {
        move |error| OpenError::Failed { path: self.0.to_owned(), what, source: error.into() }
    }
}

/// Memory for one block.
struct Aligned(Vec<u8>);

impl Aligned {
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

/// Tells a block device that nobody wants these bytes.
#[expect(unsafe_code, reason = "this request is not among those that rustix knows")]
fn discard_blocks(device: BorrowedFd<'_>, offset: u64, length: u64) -> rustix::io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, offset and length, through its pointer; it writes
    // nothing to memory, and on anything but a block device it is refused.
    unsafe {
        let request = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, length]);
        rustix::ioctl::ioctl(device, request)
    }
}
