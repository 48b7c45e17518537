//! Device I/O: commands, completions, and the disks that run them: `io_uring`, threads, or a
//! simulated disk. A command owns its memory until it has completed, so no buffer is released while
//! a device may use it.

mod file;
mod read_ring;
pub mod sim;
#[cfg(test)]
mod tests;
mod threads;
mod uninherited;
mod uring;

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::io::Errno;

use self::{threads::Threads, uring::Uring};
use crate::{
    buffers::{Buffer, BufferPool, View},
    format::BLOCK_SIZE,
};

pub use self::{
    file::{DeviceFile, DeviceFileError},
    read_ring::ReadRing,
    uninherited::Uninherited,
};

/// Number of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// A command for a device. Offsets, lengths and addresses are multiples of a block.
#[derive(Debug)]
pub enum IoCommand {
    /// Reads into the first bytes of a buffer.
    Read {
        /// The command's number.
        id: IoId,
        /// Offset on the device.
        offset: u64,
        /// The buffer to fill.
        buffer: Buffer,
        /// Bytes to read.
        length: usize,
    },
    /// Writes the whole view.
    Write {
        /// The command's number.
        id: IoId,
        /// Offset on the device.
        offset: u64,
        /// The bytes to write.
        bytes: View,
    },
    /// Makes durable all writes that completed before this command was submitted.
    Sync {
        /// The command's number.
        id: IoId,
    },
    /// Discards bytes. Later reads of this range return arbitrary bytes.
    Discard {
        /// The command's number.
        id: IoId,
        /// Offset on the device.
        offset: u64,
        /// Bytes to discard.
        length: u64,
    },
}

impl IoCommand {
    fn assert_aligned(&self) {
        let (offset, length, address) = match self {
            Self::Read { offset, buffer, length, .. } => {
                assert!(*length <= buffer.len(), "the read fits into the buffer");
                (*offset, *length as u64, buffer.as_ptr())
            }
            Self::Write { offset, bytes, .. } => (*offset, bytes.len() as u64, bytes.as_ptr()),
            Self::Discard { offset, length, .. } => (*offset, *length, std::ptr::null()),
            Self::Sync { .. } => return,
        };
        let parts = offset | length | address as u64;
        assert!(parts.is_multiple_of(BLOCK_SIZE as u64), "direct I/O uses whole blocks: {self:?}");
    }
}

/// The end of a command.
#[derive(Debug)]
pub struct Completion {
    /// The command's number.
    pub id: IoId,
    /// The buffer of a read, even if it failed.
    pub buffer: Option<Buffer>,
    /// The command's result.
    pub result: Result<(), IoFault>,
}

/// Why a command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IoFault {
    /// The file system is full.
    #[error("the file system of the device is full")]
    NoSpace,
    /// Fewer bytes were read or written than requested.
    #[error("the device read or wrote fewer bytes than requested")]
    Short,
    /// Another error, with its `errno`.
    #[error("the device failed (errno {0})")]
    Failed(i32),
}

impl From<Errno> for IoFault {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            other => Self::Failed(other.raw_os_error()),
        }
    }
}

/// Ends a [`Disk::wait`] from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A descriptor that a disk watches beside its commands, so that it needs no thread of its own.
#[derive(Clone)]
pub struct Watch {
    /// What to watch.
    pub descriptor: Arc<OwnedFd>,
    /// Called once, on the thread that waits for the disk, when the descriptor is readable.
    pub on_readable: Waker,
}

/// Runs commands, in any order and in parallel.
pub trait Disk: Send {
    /// Takes over all commands, which leaves the list empty. They start in the next [`Disk::wait`]
    /// at the latest.
    fn submit(&mut self, commands: &mut Vec<IoCommand>);

    /// Appends completions to `done`. If there are none, waits for one, for the timeout, or for a
    /// use of the waker since the last wait. May return early.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>);

    /// The waker of this disk.
    fn waker(&self) -> Waker;

    /// Watches a descriptor. A disk that cannot calls `on_readable` at once.
    fn watch(&mut self, watch: Watch) {
        (watch.on_readable)();
    }
}

/// How commands are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// `io_uring` if it works here, else threads.
    #[default]
    Auto,
    /// `io_uring`.
    Uring,
    /// Threads with blocking reads and writes.
    Threads,
}

/// A disk on this device. `pools` are all pools whose buffers it will be given. The disk belongs to
/// the thread that first waits on it.
pub fn open_disk(
    file: &Arc<DeviceFile>,
    backend: Backend,
    pools: &[Arc<BufferPool>],
) -> Result<Box<dyn Disk>, DeviceFileError> {
    let device = file.path().display();
    let uring = match backend {
        Backend::Threads => Err(std::io::Error::other("threads are configured")),
        Backend::Auto | Backend::Uring => {
            Uring::probe(file).and_then(|()| Uring::start(file, pools))
        }
    };
    match uring {
        Ok(uring) => {
            tracing::info!(%device, "I/O by io_uring");
            return Ok(Box::new(uring));
        }
        Err(source) if backend == Backend::Uring => {
            return Err(DeviceFileError::NoUring { source });
        }
        Err(reason) => tracing::info!(%device, %reason, "I/O by threads"),
    }
    let threads = Threads::start(Arc::clone(file)).map_err(|source| DeviceFileError::Failed {
        path: file.path().to_owned(),
        what: "start threads for",
        source,
    })?;
    Ok(Box::new(threads))
}
