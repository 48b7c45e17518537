//! Data structures that more than one face uses.

pub(crate) mod policy_names;
pub mod printable;
pub(crate) mod slab_list;
pub(crate) mod stable_hash;
pub mod token_bucket;
