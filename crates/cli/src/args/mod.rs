//! Options that several commands share.

pub(crate) mod digest;
pub(crate) mod node;
pub(crate) mod origin;
