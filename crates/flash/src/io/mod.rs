//! What the engine asks of a device, and how it is carried out: by a ring, by threads, or by a simulated
//! disk. A command owns its memory until it has been completed, so nothing is ever freed under a device.

pub mod sim;

use std::{sync::Arc, time::Duration};

use crate::arena::{Buffer, View};

/// Tells commands apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoId(pub u64);

/// Something to be done on a device. Offsets and lengths are multiples of a block.
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

/// Wakes whoever waits in [`Disk::wait`], from any thread.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// Carries commands out, in any order, many at a time.
pub trait Disk: Send {
    /// Begins to carry out all of these; the list is empty afterwards.
    fn submit(&mut self, commands: &mut Vec<Command>);

    /// Adds what has been completed; if that is nothing, waits until something is, or the time is over, or
    /// the waker is used.
    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>);

    /// Wakes whoever waits.
    fn waker(&self) -> Waker;
}
