//! One device engine for all of forebay: groups of regions on flash.
//!
//! [`Flash`] is the engine on one or several devices. Each has a thread ([`driver`]) that owns its index and
//! its I/O; what that thread does is decided by [`shard`] and [`recovery`], which are pure: they are given
//! requests, completions and the time, and run on the simulated disk of [`io::sim`] as well. [`layout`] is
//! the bytes on the device (`docs/flash-format.md`), [`index`] where entries lie, [`arena`] all memory for
//! I/O.

pub mod arena;
pub mod driver;
mod flash;
pub mod index;
pub mod io;
pub mod layout;
pub mod open;
pub mod recovery;
pub mod shard;

pub use flash::{Config, Flash, FlashError, Group, Held};
pub use index::Key;
pub use open::{DeviceConfig, DeviceError, check_distinct, check_region_size, size_of};
pub use shard::{Proved, Refusal};
