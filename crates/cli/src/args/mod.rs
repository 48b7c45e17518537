//! Options that several commands share.

pub(crate) mod node;
pub(crate) mod origin;
