//! What the engine asks of a device, and how it is carried out: by a ring, by threads, or by a simulated
//! disk. A command owns its memory until it has been completed, so nothing is ever freed under a device.

#[cfg(test)]
mod contract;
mod file;
#[cfg(test)]
mod opening;
pub mod sim;
mod threads;
mod uring;

use std::{sync::Arc, time::Duration};

use rustix::io::Errno;

use self::{threads::Threads, uring::Uring};
use crate::{
    arena::{Arena, Buffer, View},
    layout::BLOCK_SIZE,
};

pub use self::file::{DeviceFile, OpenError};

/// Tells commands apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// Something to be done on a device. Offsets, lengths and addresses are multiples of a block.
#[derive(Debug)]
pub enum Command {
    /// Fills the first bytes of a buffer.
    Read {
        /// Its number.
        id: IoId,
        /// Where.
        offset: u64,
        /// Where to.
        buffer: Buffer,
        /// How many.
        length: usize,
    },
    /// Writes the whole view.
    Write {
        /// Its number.
        id: IoId,
        /// Where.
        offset: u64,
        /// What.
        bytes: View,
    },
    /// Makes durable every write that was completed before this was submitted.
    Sync {
        /// Its number.
        id: IoId,
    },
    /// Tells the device that nobody wants these bytes any more; what is read from there afterwards is
    /// anything.
    Discard {
        /// Its number.
        id: IoId,
        /// From where.
        offset: u64,
        /// How much.
        length: u64,
    },
}

impl Command {
    fn assert_aligned(&self) {
        let (offset, length, address) = match self {
            Self::Read { offset, buffer, length, .. } => {
                assert!(*length <= buffer.len(), "inside the buffer");
                (*offset, *length as u64, buffer.as_ptr())
            }
            Self::Write { offset, bytes, .. } => (*offset, bytes.len() as u64, bytes.as_ptr()),
            Self::Discard { offset, length, .. } => (*offset, *length, std::ptr::null()),
            Self::Sync { .. } => return,
        };
        let parts = offset | length | address as u64;
        assert!(parts.is_multiple_of(BLOCK_SIZE as u64), "direct I/O is in whole blocks: {self:?}");
    }
}

/// A command has been carried out, or has failed.
#[derive(Debug)]
pub struct Completion {
    /// The number of the command.
    pub id: IoId,
    /// A read's buffer, also if it failed.
    pub buffer: Option<Buffer>,
    /// How it went.
    pub result: Result<(), Fault>,
}

/// What can be wrong with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no space under the file.
    #[error("no space is left under the device")]
    NoSpace,
    /// Fewer bytes were read or written than asked for.
    #[error("the device read or wrote fewer bytes than it was asked for")]
    Short,
    /// Anything else, with the system's number for it.
    #[error("the device failed (error {0})")]
    Failed(i32),
}

impl From<Errno> for Fault {
    fn from(error: Errno) -> Self {
        match error {
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace,
            other => Self::Failed(other.raw_os_error()),
        }
    }
}

/// Wakes whoever waits in [`Disk::wait`], from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Carries commands out, in any order, many at a time.
pub trait Disk: Send {
    /// Takes all of these over, to be begun in the next [`Disk::wait`] at the latest; the list is empty
    /// afterwards.
    fn submit(&mut self, commands: &mut Vec<Command>);

    /// Adds what has been completed; if that is nothing, waits until something is, or the time is over, or
    /// the waker is used, or was since the last wait. It may also return earlier.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>);

    /// Wakes whoever waits.
    fn waker(&self) -> Waker;
}

/// How commands are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// By a ring if that works here, else by threads.
    #[default]
    Auto,
    /// By `io_uring`.
    Uring,
    /// By threads that read and write.
    Threads,
}

/// A disk on this device. The arenas are all those whose buffers it will be given. It stays with the thread
/// that first waits for it.
pub fn open_disk(
    file: &Arc<DeviceFile>,
    backend: Backend,
    arenas: &[Arc<Arena>],
) -> Result<Box<dyn Disk>, OpenError> {
    let device = file.path().display();
    let ring = match backend {
        Backend::Threads => Err(std::io::Error::other("threads were asked for")),
        Backend::Auto | Backend::Uring => {
            Uring::probe(file).and_then(|()| Uring::start(file, arenas))
        }
    };
    match ring {
        Ok(ring) => {
            tracing::info!(%device, "I/O by io_uring");
            return Ok(Box::new(ring));
        }
        Err(source) if backend == Backend::Uring => return Err(OpenError::NoRing { source }),
        Err(reason) => tracing::info!(%device, %reason, "I/O by threads"),
    }
    let threads = Threads::start(Arc::clone(file)).map_err(|source| OpenError::Failed {
        path: file.path().to_owned(),
        what: "start threads for",
        source,
    })?;
    Ok(Box::new(threads))
}
