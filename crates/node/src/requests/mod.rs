//! Request handlers, one module per operation, and the state that they share.

pub(crate) mod access;
pub(crate) mod claims;
pub(crate) mod dispatch;
pub(crate) mod get;
pub(crate) mod open;
pub(crate) mod presence;
pub(crate) mod put;
pub(crate) mod recheck;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod streams;
