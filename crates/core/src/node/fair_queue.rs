//! Fair queue: which tenant's work is next, so that no tenant stalls the others (promise 5).
//!
//! Work that takes long is done in slices, away from the threads that serve hits. Every tenant has
//! a lane. The next slice is of the lane that has used the least time. So a tenant with a thousand
//! requests has the same share as one with a single request, which waits for one slice of each
//! other tenant at most. A lane that was idle starts level with the others: idle time is not saved.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Work in lanes with keys `K`.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    lanes: BTreeMap<K, Lane<T>>,
    /// Time that the lane of the last slice had used before it.
    level: Duration,
    length: usize,
}

#[derive(Debug)]
struct Lane<T> {
    work: VecDeque<T>,
    used: Duration,
    /// Slices that are being done.
    running: usize,
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self { lanes: BTreeMap::new(), level: Duration::ZERO, length: 0 }
    }
}

impl<K: Copy + Ord, T> FairQueue<K, T> {
    /// Number of works that wait.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no work waits.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds work to the end of a lane.
    pub fn push(&mut self, key: K, work: T) {
        let level = self.level;
        let new = || Lane { work: VecDeque::new(), used: level, running: 0 };
        let lane = self.lanes.entry(key).or_insert_with(new);
        if lane.work.is_empty() && lane.running == 0 {
            lane.used = lane.used.max(level);
        }
        lane.work.push_back(work);
        self.length += 1;
    }

    /// Takes the work whose slice is next. The caller reports the slice with
    /// [`FairQueue::on_ran`].
    pub fn pop(&mut self) -> Option<(K, T)> {
        let waiting = self.lanes.iter_mut().filter(|(_, lane)| !lane.work.is_empty());
        let (key, lane) = waiting.min_by_key(|(key, lane)| (lane.used, **key))?;
        self.level = self.level.max(lane.used);
        lane.running += 1;
        self.length -= 1;
        Some((*key, lane.work.pop_front()?))
    }

    /// A slice took this long. Work that is not complete goes to the end of its lane.
    pub fn on_ran(&mut self, key: K, took: Duration, rest: Option<T>) {
        let lane = self.lanes.get_mut(&key).expect("it has a running slice");
        lane.used = lane.used.saturating_add(took);
        lane.running -= 1;
        if let Some(rest) = rest {
            lane.work.push_back(rest);
            self.length += 1;
        } else if lane.work.is_empty() && lane.running == 0 && lane.used <= self.level {
            self.lanes.remove(&key);
        }
        // A lane that is ahead is remembered until the others have caught up.
        if self.length == 0 {
            let level = self.level;
            self.lanes.retain(|_, lane| lane.running > 0 || lane.used > level);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Promise 5: one request waits for one slice of a tenant with a thousand.
    #[test]
    fn a_tenant_with_many_requests_does_not_delay_one_with_few() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|number| queue.push("greedy", number));
        for _ in 0..50 {
            let (key, work) = queue.pop().unwrap();
            queue.on_ran(key, ms(1), Some(work));
        }
        queue.push("honest", 7);
        let (key, work) = queue.pop().unwrap();
        let first = (key, work);
        queue.on_ran(key, ms(1), (key == "greedy").then_some(work));
        let second = queue.pop().unwrap();
        assert!([first, second].contains(&("honest", 7)), "{first:?}, {second:?}");
    }

    #[test]
    fn time_counts_and_not_the_number_of_slices() {
        let mut queue = FairQueue::default();
        queue.push("long", ());
        queue.push("short", ());
        let mut slices = BTreeMap::new();
        for _ in 0..110 {
            let (key, ()) = queue.pop().unwrap();
            *slices.entry(key).or_insert(0) += 1;
            queue.on_ran(key, ms(if key == "long" { 10 } else { 1 }), Some(()));
        }
        assert!((9..=11).contains(&slices["long"]), "{slices:?}");
    }

    /// A tenant that did nothing for an hour does not get the next hour alone.
    #[test]
    fn idle_time_is_not_saved() {
        let mut queue = FairQueue::default();
        queue.push("busy", ());
        for _ in 0..1000 {
            let (key, ()) = queue.pop().unwrap();
            queue.on_ran(key, ms(1), Some(()));
        }
        queue.push("late", ());
        let late = (0..100)
            .filter(|_| {
                let (key, ()) = queue.pop().unwrap();
                queue.on_ran(key, ms(1), Some(()));
                key == "late"
            })
            .count();
        assert!((49..=51).contains(&late), "{late} of 100");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        /// For any arrivals and durations: no work is lost, and the memory of idle lanes is freed.
        #[test]
        fn all_work_is_done(
            arrivals in proptest::collection::vec((0_u8..5, 1_u64..10, 1_u32..4), 1..100),
        ) {
            let mut queue = FairQueue::default();
            let mut slices: u32 = 0;
            for (tenant, took, count) in arrivals {
                queue.push(tenant, count);
                slices += count;
                let (key, left) = queue.pop().unwrap();
                slices -= 1;
                queue.on_ran(key, ms(took), (left > 1).then_some(left - 1));
            }
            while let Some((key, left)) = queue.pop() {
                slices -= 1;
                queue.on_ran(key, ms(1), (left > 1).then_some(left - 1));
            }
            prop_assert!(slices == 0 && queue.is_empty());
            prop_assert!(queue.lanes.len() <= 5);
        }
    }
}
