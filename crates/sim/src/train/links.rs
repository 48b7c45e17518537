//! Links: bandwidth of the origin, or of all flash, shared by jobs.
//!
//! Every job has its own link with its own limit, and all links share one capacity by max-min
//! fairness: no link gets more than it can use, and the others share the rest. A link carries one
//! transfer after the other, so rates change only when a link becomes idle or busy. Between such
//! times bytes flow evenly, and nothing needs to be simulated.

use std::collections::VecDeque;

use super::time::Nanos;

/// Parts of a byte, since rates are in bytes per second and times in nanoseconds.
const PARTS: u128 = 1_000_000_000;

/// Links with a common capacity. `T` is the tag of a transfer.
#[derive(Debug)]
pub(super) struct Links<T> {
    capacity: u64,
    all: Vec<Link<T>>,
    /// Busy links by their limits, smallest first: the order of max-min sharing.
    busy: Vec<usize>,
    now: Nanos,
    carried: u64,
}

#[derive(Debug)]
struct Link<T> {
    limit: u64,
    rate: u64,
    /// Rest of the first transfer, in parts of a byte.
    left: u128,
    waiting: VecDeque<Transfer<T>>,
}

#[derive(Debug)]
struct Transfer<T> {
    bytes: u64,
    tag: T,
}

impl<T> Links<T> {
    /// Links with these limits, in bytes per second, that share `capacity`.
    pub fn new(capacity: u64, limits: impl IntoIterator<Item = u64>) -> Self {
        let link = |limit| Link { limit, rate: 0, left: 0, waiting: VecDeque::new() };
        let all: Vec<_> = limits.into_iter().map(link).collect();
        assert!(
            capacity > 0 && all.iter().all(|link| link.limit > 0),
            "capacities and limits are positive"
        );
        Self { capacity, all, busy: Vec::new(), now: Nanos(0), carried: 0 }
    }

    /// Bytes that have arrived.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Sends bytes over a link, after its earlier transfers.
    pub fn send(&mut self, now: Nanos, link: usize, bytes: u64, tag: T) {
        assert!(bytes > 0, "an empty transfer");
        self.advance(now);
        let at = &mut self.all[link];
        at.waiting.push_back(Transfer { bytes, tag });
        if at.waiting.len() == 1 {
            at.left = u128::from(bytes) * PARTS;
            let limit = at.limit;
            let position = self.busy.partition_point(|other| self.all[*other].limit <= limit);
            self.busy.insert(position, link);
            self.update_rates();
        }
    }

    /// Changes the common capacity.
    pub fn set_capacity(&mut self, now: Nanos, capacity: u64) {
        assert!(capacity > 0, "capacities and limits are positive");
        self.advance(now);
        self.capacity = capacity;
        self.update_rates();
    }

    /// Drops all transfers of a link. Returns their tags.
    pub fn clear(&mut self, now: Nanos, link: usize) -> Vec<T> {
        self.advance(now);
        let dropped = self.all[link].waiting.drain(..).map(|transfer| transfer.tag).collect();
        self.busy.retain(|other| *other != link);
        self.update_rates();
        dropped
    }

    /// Time of the next arrival, if nothing changes before.
    pub fn next_arrival(&self) -> Option<Nanos> {
        self.busy.iter().map(|link| self.now + self.all[*link].ends_in()).min()
    }

    /// Takes one transfer that has arrived.
    pub fn arrived(&mut self, now: Nanos) -> Option<(usize, T)> {
        self.advance(now);
        let position = self.busy.iter().position(|link| self.all[*link].left == 0)?;
        let link = self.busy[position];
        let at = &mut self.all[link];
        let transfer = at.waiting.pop_front().expect("a busy link has a transfer");
        self.carried = self.carried.saturating_add(transfer.bytes);
        if let Some(next) = at.waiting.front() {
            at.left = u128::from(next.bytes) * PARTS;
        } else {
            self.busy.remove(position);
            self.update_rates();
        }
        Some((link, transfer.tag))
    }

    fn advance(&mut self, now: Nanos) {
        let passed = (now - self.now).0;
        self.now = now;
        if passed == 0 {
            return;
        }
        for link in &self.busy {
            let at = &mut self.all[*link];
            at.left = at.left.saturating_sub(u128::from(at.rate) * u128::from(passed));
        }
    }

    /// Max-min fairness: a link that can use less than an equal share of the rest gets all it can
    /// use.
    fn update_rates(&mut self) {
        let mut left = self.capacity;
        let mut sharers = self.busy.len() as u64;
        for link in &self.busy {
            let at = &mut self.all[*link];
            // At least a byte per second, even if there are more links than bytes.
            at.rate = at.limit.min(left / sharers).max(1);
            left = left.saturating_sub(at.rate);
            sharers -= 1;
        }
    }
}

impl<T> Link<T> {
    fn ends_in(&self) -> Nanos {
        let nanos = self.left.div_ceil(u128::from(self.rate));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Nanos {
        Nanos(seconds * 1_000_000_000)
    }

    /// All arrivals with their times.
    fn run(links: &mut Links<&'static str>) -> Vec<(Nanos, &'static str)> {
        let mut arrivals = Vec::new();
        while let Some(at) = links.next_arrival() {
            while let Some((_, tag)) = links.arrived(at) {
                arrivals.push((at, tag));
            }
        }
        arrivals
    }

    #[test]
    fn a_link_alone_runs_at_its_limit_and_keeps_order() {
        let mut links = Links::new(1000, [100, 2000]);
        links.send(seconds(0), 0, 300, "first");
        links.send(seconds(1), 0, 100, "second");
        assert_eq!(run(&mut links), [(seconds(3), "first"), (seconds(4), "second")]);
        links.send(seconds(10), 1, 3000, "at the capacity");
        assert_eq!(run(&mut links), [(seconds(13), "at the capacity")]);
        assert_eq!(links.carried(), 3400);
    }

    /// Max-min: 100 for the slow link, the rest in halves, and its share back when it is done.
    #[test]
    fn links_share_what_another_cannot_use() {
        let mut links = Links::new(1000, [600, 100, 5000]);
        links.send(seconds(0), 0, 900, "half");
        links.send(seconds(0), 1, 200, "slow");
        links.send(seconds(0), 2, 900 + 550, "half, then the rest");
        let arrivals = run(&mut links);
        assert_eq!(arrivals[..2], [(seconds(2), "slow"), (seconds(2), "half")]);
        assert_eq!(arrivals[2], (Nanos(2_550_000_000), "half, then the rest"));
    }

    #[test]
    fn a_dropped_link_frees_its_share() {
        let mut links = Links::new(100, [100, 100]);
        links.send(seconds(0), 0, 100, "dropped");
        links.send(seconds(0), 0, 100, "dropped as well");
        links.send(seconds(0), 1, 150, "kept");
        assert_eq!(links.clear(seconds(1), 0), ["dropped", "dropped as well"]);
        assert_eq!(run(&mut links), [(seconds(2), "kept")]);
        assert_eq!(links.carried(), 150);
    }

    #[test]
    fn a_slower_origin_delays_what_is_left() {
        let mut links = Links::new(100, [100]);
        links.send(seconds(0), 0, 200, "slowed");
        links.set_capacity(seconds(1), 50);
        assert_eq!(run(&mut links), [(seconds(3), "slowed")]);
    }
}
