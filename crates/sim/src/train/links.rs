//! Bandwidth that jobs share: the origin's, or that of all flash together.
//!
//! Every job has a link of its own with a limit of its own, and all links share one capacity, fairly:
//! nobody gets more than it can use, and what one cannot use the others share. A link carries one
//! transfer after the other, so a rate only changes when a link falls idle or wakes up. Between such
//! moments bytes flow evenly, and nothing needs to be simulated.

use std::collections::VecDeque;

use super::time::Nanos;

/// A byte's worth of progress: rates are bytes per second, times are nanoseconds.
const PARTS: u128 = 1_000_000_000;

/// Links with a capacity in common. `T` says what a transfer is for.
#[derive(Debug)]
pub(super) struct Links<T> {
    capacity: u64,
    all: Vec<Link<T>>,
    /// Busy links by their limits, smallest first: the order in which capacity is shared out.
    busy: Vec<usize>,
    now: Nanos,
    carried: u64,
}

#[derive(Debug)]
struct Link<T> {
    limit: u64,
    rate: u64,
    /// What the transfer at the front still lacks, in parts of a byte.
    left: u128,
    waiting: VecDeque<Transfer<T>>,
}

#[derive(Debug)]
struct Transfer<T> {
    bytes: u64,
    what: T,
}

impl<T> Links<T> {
    /// Links with these limits, in bytes per second, that share `capacity`.
    pub fn new(capacity: u64, limits: impl IntoIterator<Item = u64>) -> Self {
        let link = |limit| Link { limit, rate: 0, left: 0, waiting: VecDeque::new() };
        let all: Vec<_> = limits.into_iter().map(link).collect();
        assert!(capacity > 0 && all.iter().all(|link| link.limit > 0), "bytes must flow");
        Self { capacity, all, busy: Vec::new(), now: Nanos(0), carried: 0 }
    }

    /// Bytes that have arrived.
    pub fn carried(&self) -> u64 {
        self.carried
    }

    /// Sends bytes over a link, after all that is under way there.
    pub fn send(&mut self, now: Nanos, link: usize, bytes: u64, what: T) {
        assert!(bytes > 0, "an empty transfer");
        self.advance(now);
        let at = &mut self.all[link];
        at.waiting.push_back(Transfer { bytes, what });
        if at.waiting.len() == 1 {
            at.left = u128::from(bytes) * PARTS;
            let limit = at.limit;
            let place = self.busy.partition_point(|other| self.all[*other].limit <= limit);
            self.busy.insert(place, link);
            self.share_out();
        }
    }

    /// Changes what all links get together.
    pub fn set_capacity(&mut self, now: Nanos, capacity: u64) {
        assert!(capacity > 0, "bytes must flow");
        self.advance(now);
        self.capacity = capacity;
        self.share_out();
    }

    /// Drops all that is under way on a link, and returns what it was for.
    pub fn clear(&mut self, now: Nanos, link: usize) -> Vec<T> {
        self.advance(now);
        let dropped = self.all[link].waiting.drain(..).map(|transfer| transfer.what).collect();
        self.busy.retain(|other| *other != link);
        self.share_out();
        dropped
    }

    /// When the next transfer arrives, if nothing changes until then.
    pub fn next_arrival(&self) -> Option<Nanos> {
        self.busy.iter().map(|link| self.now + self.all[*link].ends_in()).min()
    }

    /// Takes one transfer that has arrived by now.
    pub fn arrived(&mut self, now: Nanos) -> Option<(usize, T)> {
        self.advance(now);
        let place = self.busy.iter().position(|link| self.all[*link].left == 0)?;
        let link = self.busy[place];
        let at = &mut self.all[link];
        let transfer = at.waiting.pop_front().expect("a busy link has a transfer");
        self.carried = self.carried.saturating_add(transfer.bytes);
        if let Some(next) = at.waiting.front() {
            at.left = u128::from(next.bytes) * PARTS;
        } else {
            self.busy.remove(place);
            self.share_out();
        }
        Some((link, transfer.what))
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

    /// Fair shares: whoever can use less than an equal share of what is left gets all it can use.
    fn share_out(&mut self) {
        let mut left = self.capacity;
        let mut sharers = self.busy.len() as u64;
        for link in &self.busy {
            let at = &mut self.all[*link];
            // A byte per second is less than fair where there are more links than bytes.
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

    /// Everything that arrives, and when.
    fn run(links: &mut Links<&'static str>) -> Vec<(Nanos, &'static str)> {
        let mut arrivals = Vec::new();
        while let Some(at) = links.next_arrival() {
            while let Some((_, what)) = links.arrived(at) {
                arrivals.push((at, what));
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

    /// Max-min: 100 for the slow one, the rest in halves, and its share back when it is done.
    #[test]
    fn what_one_cannot_use_the_others_share() {
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
