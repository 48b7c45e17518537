//! Connections of clients: acceptance, limits, and the connections that have not authenticated.

pub(crate) mod acceptor;
pub(crate) mod slots;
