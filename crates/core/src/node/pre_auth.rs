//! Connections that have not authenticated: which one is closed when there are too many.
//!
//! They have a small number of slots ([`super::connection_slots`]). When all are taken, the next
//! connection evicts the oldest one of the source that has the most. So a source that floods the
//! node evicts its own connections. A well-behaved client sends its hello at once and is not
//! affected.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

/// The origin of a connection, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An IPv4 address, or the /64 network of an IPv6 address.
    Address(IpAddr),
    /// A local user.
    User(u32),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        const NETWORK: u128 = !0 << 64;
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Identifies a connection that has not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PreAuthConnection {
    source: Source,
    number: u64,
}

impl PreAuthConnection {
    /// Where it comes from.
    pub fn source(self) -> Source {
        self.source
    }
}

/// All connections that have not authenticated, by source, oldest first.
#[derive(Debug, Default)]
pub struct PreAuthConnections {
    next: u64,
    count: usize,
    by_source: BTreeMap<Source, BTreeSet<u64>>,
}

impl PreAuthConnections {
    /// Registers a new connection.
    pub fn enter(&mut self, source: Source) -> PreAuthConnection {
        let number = self.next;
        self.next += 1;
        self.count += 1;
        self.by_source.entry(source).or_default().insert(number);
        PreAuthConnection { source, number }
    }

    /// Removes a connection that authenticated or closed. Returns whether it was registered.
    pub fn leave(&mut self, PreAuthConnection { source, number }: PreAuthConnection) -> bool {
        let Some(numbers) = self.by_source.get_mut(&source) else { return false };
        let was_registered = numbers.remove(&number);
        if numbers.is_empty() {
            self.by_source.remove(&source);
        }
        self.count -= usize::from(was_registered);
        was_registered
    }

    /// Number of registered connections.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Removes and returns the oldest connection of the busiest source.
    pub fn evict(&mut self) -> Option<PreAuthConnection> {
        let oldest = |(source, numbers): (&Source, &BTreeSet<u64>)| {
            Some((numbers.len(), Reverse(*numbers.first()?), *source))
        };
        let (_, Reverse(number), source) = self.by_source.iter().filter_map(oldest).max()?;
        let connection = PreAuthConnection { source, number };
        self.leave(connection);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_source_loses_its_oldest_connection() {
        let mut connections = PreAuthConnections::default();
        let quiet = connections.enter(IpAddr::from([10, 0, 0, 1]).into());
        let flood = [(); 3].map(|()| connections.enter(Source::User(7)));
        assert_eq!([connections.evict(), connections.evict()], [Some(flood[0]), Some(flood[1])]);
        assert_eq!(connections.count(), 2);
        assert_eq!(connections.evict(), Some(quiet), "one per source: the oldest is evicted");
        assert!(connections.leave(flood[2]) && !connections.leave(quiet));
        assert_eq!((connections.count(), connections.evict()), (0, None));
    }

    /// One machine can use every address of its IPv6 network.
    #[test]
    fn an_ipv6_network_is_one_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
