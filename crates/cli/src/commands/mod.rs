//! The subcommands of `forebay`, one module each.

pub(crate) mod agent;
pub(crate) mod cluster_status;
pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod digest;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod explain;
pub(crate) mod list;
pub(crate) mod namespace;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod stream;
pub(crate) mod top;
pub(crate) mod warm;
