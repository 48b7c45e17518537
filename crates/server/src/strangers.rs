//! Connections of which nobody knows who is there.
//!
//! They have few places. When these are taken, the next one takes that of the one who has been silent the longest
//! of those who come from where most of them come from: whoever keeps knocking shuts itself out, not others. Whoever
//! means well says hello at once.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::task::AbortHandle;

/// Where somebody comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
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

/// All of them.
#[derive(Clone, Default)]
pub(crate) struct Strangers(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    next: u64,
    count: usize,
    /// By where they come from, oldest first.
    tasks: BTreeMap<Source, BTreeMap<u64, Option<AbortHandle>>>,
}

impl Waiting {
    fn remove(&mut self, source: Source, number: u64) -> Option<AbortHandle> {
        let its = self.tasks.get_mut(&source)?;
        let task = its.remove(&number)?;
        if its.is_empty() {
            self.tasks.remove(&source);
        }
        self.count -= 1;
        task
    }
}

/// One of them; dropped when it is known, or gone.
pub(crate) struct Stranger {
    strangers: Strangers,
    source: Source,
    number: u64,
}

impl Strangers {
    pub fn enter(&self, source: Source) -> Stranger {
        let mut waiting = self.0.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.count += 1;
        waiting.tasks.entry(source).or_default().insert(number, None);
        Stranger { strangers: self.clone(), source, number }
    }

    /// The task that serves one, unless it is known or gone by now.
    pub fn served_by(&self, (source, number): (Source, u64), task: AbortHandle) {
        let mut waiting = self.0.lock();
        if let Some(place) = waiting.tasks.get_mut(&source).and_then(|its| its.get_mut(&number)) {
            *place = Some(task);
        }
    }

    pub fn count(&self) -> usize {
        self.0.lock().count
    }

    /// Ends one, to make room. Whether there was one.
    pub fn dismiss_one(&self) -> bool {
        let mut waiting = self.0.lock();
        let most = waiting.tasks.iter().max_by_key(|(_, its)| {
            let oldest = its.first_key_value().map(|(number, _)| *number);
            (its.len(), Reverse(oldest))
        });
        let Some((source, number)) =
            most.and_then(|(source, its)| Some((*source, *its.first_key_value()?.0)))
        else {
            return false;
        };
        let task = waiting.remove(source, number);
        drop(waiting);
        task.map(|task| task.abort()).is_some()
    }
}

impl Stranger {
    /// By what it is known.
    pub fn place(&self) -> (Source, u64) {
        (self.source, self.number)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.0.lock().remove(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn knocks(strangers: &Strangers, source: Source) -> (Stranger, tokio::task::JoinHandle<()>) {
        let (stranger, task) = (strangers.enter(source), tokio::spawn(pending()));
        strangers.served_by(stranger.place(), task.abort_handle());
        (stranger, task)
    }

    async fn is_dismissed(task: &mut tokio::task::JoinHandle<()>) -> bool {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        task.is_finished()
    }

    /// Whoever keeps knocking shuts itself out, not others.
    #[tokio::test]
    async fn the_busiest_source_makes_room_first() {
        let strangers = Strangers::default();
        let noisy = Source::User(7);
        let (quiet, mut quiet_task) = knocks(&strangers, IpAddr::from([10, 0, 0, 1]).into());
        let mut flood: Vec<_> = (0..3).map(|_| knocks(&strangers, noisy)).collect();
        for (_, task) in &mut flood[..2] {
            assert!(strangers.dismiss_one());
            assert!(is_dismissed(task).await, "its oldest");
        }
        assert!(!is_dismissed(&mut quiet_task).await);
        assert_eq!(strangers.count(), 2);
        assert!(strangers.dismiss_one(), "one of each is left: the oldest goes");
        assert!(is_dismissed(&mut quiet_task).await && !is_dismissed(&mut flood[2].1).await);
        drop((quiet, flood));
        assert_eq!(strangers.count(), 0);
        assert!(!strangers.dismiss_one());
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
