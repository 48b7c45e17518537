//! One device engine for all of forebay: groups of regions on flash.

pub mod arena;
pub mod index;
pub mod io;
pub mod layout;
pub mod recovery;
pub mod shard;
