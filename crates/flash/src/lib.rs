//! forebay's device engine: groups of regions on flash.
//!
//! - [`Flash`] is the engine on one or several devices.
//! - [`device_thread`] is one thread per device; it owns the device's I/O.
//! - [`shard`] and [`recovery`] decide what is read and written. They are pure: their inputs are
//!   requests, completions and the time, so they also run on the simulated disk of [`io::sim`].
//! - [`format`](mod@format) is the bytes on the device (`docs/reference/flash-format.md`).
//! - [`index`] maps keys to locations, [`buffers`] is all memory for I/O.
//! - [`reservation`] is entries that callers fill in place; [`extent`] is where entries lie, for
//!   processes that read the device by themselves ([`io::ReadRing`]).

pub mod buffers;
pub mod device_open;
pub mod device_thread;
mod engine;
pub mod extent;
pub mod format;
pub mod index;
pub mod io;
pub mod recovery;
pub mod reservation;
pub mod shard;

pub use device_open::{DeviceConfig, DeviceError, check_distinct, check_region_size, size_of};
pub use engine::{Appended, Flash, FlashConfig, FlashError, Group, GroupGuard, open_engine};
pub use index::EntryKey;
pub use shard::{RegionRef, RequestError, VerifiedRead};
