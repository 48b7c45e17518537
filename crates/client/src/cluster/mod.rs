//! Several nodes as one cache: connections, discovery, routing and presence.

mod discovery;
pub(crate) mod nodes;
mod presence;
pub(crate) mod presence_cache;
pub(crate) mod routing;

#[cfg(test)]
mod tests;
