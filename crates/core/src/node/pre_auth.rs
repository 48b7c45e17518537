//! Connections of which nobody knows who is there.
//!
//! They have few places. When these are taken, the next one takes that of the one who has been silent the longest
//! of those who come from where most of them come from: whoever keeps knocking shuts itself out, not others. Whoever
//! means well says hello at once.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
};

/// Where somebody comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A machine, or a network of them where each has many addresses.
    Address(IpAddr),
    /// A user of this machine.
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

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    source: Source,
    number: u64,
}

/// All of them, by where they come from, oldest first.
#[derive(Debug, Default)]
pub struct Strangers {
    next: u64,
    count: usize,
    by_source: BTreeMap<Source, BTreeSet<u64>>,
}

impl Strangers {
    /// Somebody has come.
    pub fn enter(&mut self, source: Source) -> Stranger {
        let number = self.next;
        self.next += 1;
        self.count += 1;
        self.by_source.entry(source).or_default().insert(number);
        Stranger { source, number }
    }

    /// It is known, or gone. Whether it was there still.
    pub fn leave(&mut self, Stranger { source, number }: Stranger) -> bool {
        let Some(its) = self.by_source.get_mut(&source) else { return false };
        let was_there = its.remove(&number);
        if its.is_empty() {
            self.by_source.remove(&source);
        }
        self.count -= usize::from(was_there);
        was_there
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Who has to go, to make room; it has left.
    pub fn dismiss(&mut self) -> Option<Stranger> {
        let oldest = |(source, its): (&Source, &BTreeSet<u64>)| {
            Some((its.len(), Reverse(*its.first()?), *source))
        };
        let (_, Reverse(number), source) = self.by_source.iter().filter_map(oldest).max()?;
        let stranger = Stranger { source, number };
        self.leave(stranger);
        Some(stranger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever keeps knocking shuts itself out, not others.
    #[test]
    fn the_busiest_source_makes_room_first() {
        let mut strangers = Strangers::default();
        let quiet = strangers.enter(IpAddr::from([10, 0, 0, 1]).into());
        let flood = [(); 3].map(|()| strangers.enter(Source::User(7)));
        assert_eq!([strangers.dismiss(), strangers.dismiss()], [Some(flood[0]), Some(flood[1])]);
        assert_eq!(strangers.count(), 2);
        assert_eq!(strangers.dismiss(), Some(quiet), "one of each is left: the oldest goes");
        assert!(strangers.leave(flood[2]) && !strangers.leave(quiet));
        assert_eq!((strangers.count(), strangers.dismiss()), (0, None));
    }

    /// A machine has as many addresses of its network as it likes.
    #[test]
    fn a_network_is_one_source() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
