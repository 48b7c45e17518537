//! Reference models: slow and obviously correct versions of some policies, for rows of equal
//! weight.
//!
//! A model has plain vectors, oldest first, and searches them from end to end.

use super::contract::random_request;
use crate::embeddings::*;

/// A policy in its simplest form. `hits` are the keys that the current request hit.
trait Model {
    fn is_resident(&self, key: Key) -> bool;
    fn hit(&mut self, key: Key, hits: &[Key], group: usize);
    fn miss(&mut self, key: Key, hits: &[Key], group: usize);
}

fn take(list: &mut Vec<Key>, key: Key) -> bool {
    let index = list.iter().position(|other| *other == key);
    index.map(|index| list.remove(index)).is_some()
}

/// FIFO, LRU and CLOCK.
struct QueueModel {
    queue: Vec<Key>,
    referenced: Vec<Key>,
    capacity: usize,
    moves_on_hit: bool,
    second_chance: bool,
}

impl Model for QueueModel {
    fn is_resident(&self, key: Key) -> bool {
        self.queue.contains(&key)
    }

    fn hit(&mut self, key: Key, _: &[Key], _: usize) {
        if self.moves_on_hit {
            take(&mut self.queue, key);
            self.queue.push(key);
        }
        if self.second_chance {
            self.referenced.push(key);
        }
    }

    fn miss(&mut self, key: Key, hits: &[Key], _: usize) {
        if self.queue.len() == self.capacity {
            loop {
                let oldest = self.queue.remove(0);
                let referenced = self.referenced.contains(&oldest);
                self.referenced.retain(|key| *key != oldest);
                if !referenced && !hits.contains(&oldest) {
                    break;
                }
                self.queue.push(oldest);
            }
        }
        self.queue.push(key);
    }
}

/// SIEVE: the hand is an index into the queue.
struct SieveModel {
    queue: Vec<Key>,
    visited: Vec<Key>,
    hand: usize,
    capacity: usize,
}

impl Model for SieveModel {
    fn is_resident(&self, key: Key) -> bool {
        self.queue.contains(&key)
    }

    fn hit(&mut self, key: Key, _: &[Key], _: usize) {
        self.visited.push(key);
    }

    fn miss(&mut self, key: Key, hits: &[Key], _: usize) {
        if self.queue.len() == self.capacity {
            loop {
                if self.hand >= self.queue.len() {
                    self.hand = 0;
                }
                let candidate = self.queue[self.hand];
                let visited = self.visited.contains(&candidate);
                self.visited.retain(|key| *key != candidate);
                if !visited && !hits.contains(&candidate) {
                    self.queue.remove(self.hand);
                    if self.hand >= self.queue.len() {
                        self.hand = 0;
                    }
                    break;
                }
                self.hand += 1;
            }
        }
        let is_at_end = self.hand >= self.queue.len();
        self.queue.push(key);
        if is_at_end {
            self.hand = 0;
        }
    }
}

/// LFU and EV-LFU: one vector of (key, score, time of that score).
struct ScoreModel {
    entries: Vec<(Key, usize, u64)>,
    capacity: usize,
    clock: u64,
    group: bool,
    tables: usize,
}

impl Model for ScoreModel {
    fn is_resident(&self, key: Key) -> bool {
        self.entries.iter().any(|entry| entry.0 == key)
    }

    fn hit(&mut self, key: Key, _: &[Key], group: usize) {
        self.clock += 1;
        let entry = self.entries.iter_mut().find(|entry| entry.0 == key).unwrap();
        let score = if self.group { entry.1.max(group) } else { entry.1 + 1 };
        if score != entry.1 {
            (entry.1, entry.2) = (score, self.clock);
        }
    }

    fn miss(&mut self, key: Key, hits: &[Key], group: usize) {
        self.clock += 1;
        let perfect = self.entries.iter().filter(|entry| entry.1 == self.tables).count();
        if self.group && perfect as f64 >= 0.9 * self.capacity as f64 {
            let flushed = (perfect as f64 * 0.1).ceil() as usize;
            let mut oldest: Vec<(u64, Key)> = self
                .entries
                .iter()
                .filter(|entry| entry.1 == self.tables && !hits.contains(&entry.0))
                .map(|entry| (entry.2, entry.0))
                .collect();
            oldest.sort_unstable();
            oldest.truncate(flushed);
            self.entries.retain(|entry| !oldest.contains(&(entry.2, entry.0)));
        }
        if self.entries.len() == self.capacity {
            let victim = self
                .entries
                .iter()
                .filter(|entry| !hits.contains(&entry.0))
                .min_by_key(|entry| (entry.1, entry.2))
                .copied();
            let Some(victim) = victim else { return };
            self.entries.retain(|entry| *entry != victim);
        }
        self.entries.push((key, if self.group { group } else { 1 }, self.clock));
    }
}

/// ARC, case by case as in its paper.
#[derive(Default)]
struct ArcModel {
    once: Vec<Key>,
    again: Vec<Key>,
    once_ghosts: Vec<Key>,
    again_ghosts: Vec<Key>,
    target: usize,
    capacity: usize,
}

impl ArcModel {
    fn replace(&mut self, in_again_ghosts: bool, hits: &[Key]) -> bool {
        if self.once.len() + self.again.len() < self.capacity {
            return true;
        }
        let from_once =
            self.once.len() > self.target || (in_again_ghosts && self.once.len() == self.target);
        let free = |list: &Vec<Key>| list.iter().position(|key| !hits.contains(key));
        let (once, again) = (free(&self.once), free(&self.again));
        if let Some(at) = once.filter(|_| from_once || again.is_none()) {
            self.once_ghosts.push(self.once.remove(at));
        } else if let Some(at) = again {
            self.again_ghosts.push(self.again.remove(at));
        } else {
            return false;
        }
        true
    }
}

impl Model for ArcModel {
    fn is_resident(&self, key: Key) -> bool {
        self.once.contains(&key) || self.again.contains(&key)
    }

    fn hit(&mut self, key: Key, _: &[Key], _: usize) {
        if !take(&mut self.once, key) {
            take(&mut self.again, key);
        }
        self.again.push(key);
    }

    fn miss(&mut self, key: Key, hits: &[Key], _: usize) {
        let (once_ghosts, again_ghosts) = (self.once_ghosts.len(), self.again_ghosts.len());
        if take(&mut self.once_ghosts, key) {
            self.target = self.capacity.min(self.target + (again_ghosts / once_ghosts).max(1));
            if self.replace(false, hits) {
                self.again.push(key);
            }
            return;
        }
        if take(&mut self.again_ghosts, key) {
            self.target = self.target.saturating_sub((once_ghosts / again_ghosts).max(1));
            if self.replace(true, hits) {
                self.again.push(key);
            }
            return;
        }
        if self.once.len() + self.once_ghosts.len() == self.capacity {
            if self.once.len() < self.capacity {
                self.once_ghosts.remove(0);
            } else if let Some(at) = self.once.iter().position(|key| !hits.contains(key)) {
                self.once.remove(at);
            }
        }
        if !self.replace(false, hits) {
            return;
        }
        let known = |model: &Self| {
            model.once.len()
                + model.again.len()
                + model.once_ghosts.len()
                + model.again_ghosts.len()
        };
        while known(self) >= 2 * self.capacity && !self.again_ghosts.is_empty() {
            self.again_ghosts.remove(0);
        }
        self.once.push(key);
    }
}

/// S3-FIFO as in its authors' simulator.
#[derive(Default)]
struct S3Model {
    small: Vec<(Key, u8)>,
    main: Vec<(Key, u8)>,
    ghosts: Vec<Key>,
    capacity: usize,
    evicted: bool,
}

impl Model for S3Model {
    fn is_resident(&self, key: Key) -> bool {
        self.small.iter().chain(&self.main).any(|entry| entry.0 == key)
    }

    fn hit(&mut self, key: Key, _: &[Key], _: usize) {
        let entry = self.small.iter_mut().chain(&mut self.main).find(|entry| entry.0 == key);
        let entry = entry.unwrap();
        entry.1 = (entry.1 + 1).min(3);
    }

    fn miss(&mut self, key: Key, hits: &[Key], _: usize) {
        let ghost = take(&mut self.ghosts, key);
        let small_max = self.capacity / 10;
        let main_max = self.capacity - small_max;
        while self.small.len() + self.main.len() == self.capacity {
            self.evicted = true;
            if self.main.len() <= main_max && !self.small.is_empty() {
                let (oldest, count) = self.small.remove(0);
                if count >= 2 || hits.contains(&oldest) {
                    self.main.push((oldest, 0));
                } else {
                    self.ghosts.push(oldest);
                    if self.ghosts.len() > main_max {
                        self.ghosts.remove(0);
                    }
                }
            } else {
                let (oldest, count) = self.main.remove(0);
                if count > 0 || hits.contains(&oldest) {
                    self.main.push((oldest, count.saturating_sub(1)));
                }
            }
        }
        if ghost || (!self.evicted && self.small.len() >= small_max) {
            self.main.push((key, 0));
        } else {
            self.small.push((key, 0));
        }
    }
}

fn agrees(kind: PolicyKind, model: impl Fn(usize) -> Box<dyn Model>) {
    let tables: Vec<TableShape> =
        [6, 50, 300].map(|rows| TableShape { rows, row_bytes: 4 }).to_vec();
    for (seed, capacity) in [7, 19, 41, 97, 150].into_iter().enumerate() {
        let budget = Budget::new(tables.clone(), Capacity::Rows(capacity));
        let mut policy = kind.build(&budget, 0);
        let mut model = model(usize::try_from(capacity).unwrap());
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let mut outcome = Outcome::default();
        for index in 0..3000 {
            let keys = random_request(&mut random, &tables);
            policy.request(&keys, &mut outcome);
            let hits: Vec<Key> =
                keys.iter().copied().filter(|key| model.is_resident(*key)).collect();
            let expected: Vec<bool> = keys.iter().map(|key| hits.contains(key)).collect();
            assert_eq!(outcome.hits, expected, "{kind}, {capacity} rows, request {index}");
            let group = hits.len() * tables.len() / keys.len().max(1);
            for key in &hits {
                model.hit(*key, &hits, group);
            }
            let mut distinct_hits = hits.clone();
            distinct_hits.sort_unstable();
            distinct_hits.dedup();
            if distinct_hits.len() as u64 == capacity {
                continue; // the request needs every resident: nothing may be admitted
            }
            // Policies with a clock hand do not evict rows that the same request admitted.
            let has_hand = matches!(
                kind,
                PolicyKind::Fifo
                    | PolicyKind::Lru
                    | PolicyKind::Clock
                    | PolicyKind::Sieve
                    | PolicyKind::S3Fifo
            );
            let room = usize::try_from(capacity).unwrap() - distinct_hits.len();
            let mut considered = Vec::new();
            for key in keys.iter().filter(|key| usize::from(key.table().0) < tables.len()) {
                let admits = !has_hand || considered.len() < room;
                if admits && !hits.contains(key) && !considered.contains(key) {
                    considered.push(*key);
                    model.miss(*key, &hits, group);
                }
            }
        }
    }
}

fn queue(moves_on_hit: bool, second_chance: bool) -> impl Fn(usize) -> Box<dyn Model> {
    move |capacity| {
        let (queue, referenced) = (Vec::new(), Vec::new());
        Box::new(QueueModel { queue, referenced, capacity, moves_on_hit, second_chance })
    }
}

#[test]
fn fifo_lru_and_clock_match_their_models() {
    agrees(PolicyKind::Fifo, queue(false, false));
    agrees(PolicyKind::Lru, queue(true, false));
    agrees(PolicyKind::Clock, queue(false, true));
}

#[test]
fn sieve_matches_its_model() {
    agrees(PolicyKind::Sieve, |capacity| {
        Box::new(SieveModel { queue: Vec::new(), visited: Vec::new(), hand: 0, capacity })
    });
}

#[test]
fn lfu_and_ev_lfu_match_their_models() {
    for (kind, group) in [(PolicyKind::Lfu, false), (PolicyKind::EvLfu, true)] {
        agrees(kind, |capacity| {
            Box::new(ScoreModel { entries: Vec::new(), capacity, clock: 0, group, tables: 3 })
        });
    }
}

#[test]
fn arc_matches_its_model() {
    agrees(PolicyKind::Arc, |capacity| Box::new(ArcModel { capacity, ..ArcModel::default() }));
}

#[test]
fn s3_fifo_matches_its_model() {
    agrees(PolicyKind::S3Fifo, |capacity| Box::new(S3Model { capacity, ..S3Model::default() }));
}
