//! Implications: "the key of this table determines the key of that one", learned from requests.
//!
//! An advertisement belongs to one campaign, and the campaign to one advertiser: the first key
//! implies the others. A prefetch of one key may therefore bring in the rows of all keys that it
//! implies.
//! [`Implications`] works in three steps:
//!
//! 1. It finds implications from samples of requests and a few keys of each table
//!    ([`sampled_keys`]). Each sample examines one table, so that it costs a few operations per
//!    key.
//! 2. It orders the tables from finer to coarser.
//! 3. From the first prefetch on, it records which keys came together ([`associations`]).
//!
//! Not here: bags. A sample ignores tables with more than one key in the request.

mod associations;
mod sampled_keys;

use serde::Serialize;

use self::{
    associations::Associations,
    sampled_keys::{Fingerprint, SampledKeys},
};
use super::key::{Key, TableId};

/// Tables that are examined, the largest first: one bit of a word for each.
const TABLES_MAX: usize = 64;
/// Samples taken at every request; after that, one of [`REQUESTS_PER_SAMPLE`] requests is sampled.
const SAMPLES_DENSE: u64 = 16 << 10;
const REQUESTS_PER_SAMPLE: u32 = 8;
/// Samples between two reviews.
const SAMPLES_PER_REVIEW: u64 = 1024;
/// Finer tables from which a table is implied, at most. Bounds the cost of recording per key.
const PARENTS_MAX: usize = 2;
/// Associations recorded per row that fits: 64 bytes.
const ASSOCIATIONS_PER_ROW: u64 = 8;

const NONE: u8 = u8::MAX;

/// An implication: the key of one table determines the key of another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Implication {
    /// The table whose key is known.
    pub from: TableId,
    /// The table whose key follows.
    pub to: TableId,
    /// Share of requests in which the implied key was right.
    pub confidence: f64,
}

/// An implication between a table and a next coarser one, by position in `tables`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Edge {
    from: usize,
    to: usize,
    confidence: f64,
}

/// The implications learned between the tables of a model.
#[derive(Debug)]
pub(super) struct Implications {
    /// The examined tables, by rows in descending order.
    tables: Vec<TableId>,
    /// Position of each table in `tables`, or `NONE`.
    positions: Vec<u8>,
    sampled_keys: SampledKeys,
    edges: Vec<Edge>,
    /// `None` until the first prefetch.
    associations: Option<Associations>,
    pairs_max: u64,
    /// The key of each table in the current request.
    keys: Vec<Option<Key>>,
    fingerprints: Vec<Fingerprint>,
    /// Position of the table that the next sample examines.
    next_table: usize,
    samples: u64,
    until_sample: u32,
}

impl Implications {
    /// For tables of `rows` rows each, without those in `excluded`, and a cache of `rows_max` rows.
    /// As many of the largest tables are examined as `bytes` allow.
    pub fn new(rows: &[u64], excluded: &[bool], rows_max: u64, bytes: u64) -> Self {
        let mut order: Vec<usize> = (0..rows.len()).filter(|table| !excluded[*table]).collect();
        order.sort_by_key(|table| std::cmp::Reverse(rows[*table]));
        order.truncate(TABLES_MAX);
        while SampledKeys::bytes_for(order.len()) > bytes {
            order.pop();
        }
        let mut positions = vec![NONE; rows.len()];
        for (position, table) in order.iter().enumerate() {
            positions[*table] = u8::try_from(position).expect("at most 64");
        }
        let id = |table: &usize| TableId(u16::try_from(*table).expect("table ids are 16-bit"));
        let count = order.len();
        Self {
            tables: order.iter().map(id).collect(),
            positions,
            sampled_keys: SampledKeys::new(count),
            edges: Vec::new(),
            associations: None,
            pairs_max: rows_max.saturating_mul(ASSOCIATIONS_PER_ROW),
            keys: vec![None; count],
            fingerprints: vec![0; count],
            next_table: 0,
            samples: 0,
            until_sample: 1,
        }
    }

    /// Learns from a request. Most requests are not sampled and cost nothing.
    #[inline]
    pub fn request(&mut self, keys: &[Key]) {
        // A single table has no implications.
        if self.tables.len() < 2 {
            return;
        }
        self.until_sample -= 1;
        let records = self.associations.is_some() && !self.edges.is_empty();
        if self.until_sample == 0 || records {
            self.collect_keys(keys);
            if self.until_sample == 0 {
                self.sample();
            }
            if records {
                self.record_associations();
            }
        }
    }

    /// Appends the keys that `keys` imply. Associations are recorded from the first call on.
    pub fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>) {
        let pairs = self.pairs_max;
        let associations = self.associations.get_or_insert_with(|| Associations::new(pairs));
        for key in keys {
            let Some(position) = position(&self.positions, *key) else { continue };
            let mut next = into.len();
            let (mut at, mut from, mut seen) = (position, *key, 1_u64 << position);
            loop {
                for edge in self.edges.iter().filter(|edge| edge.from == at) {
                    let found = associations.get(from, self.tables[edge.to]);
                    if let Some(found) = found.filter(|_| seen >> edge.to & 1 == 0) {
                        seen |= 1 << edge.to;
                        into.push(found);
                    }
                }
                let Some(key) = into.get(next) else { break };
                from = *key;
                at = self.positions[usize::from(from.table().0)].into();
                next += 1;
            }
        }
    }

    /// The implications, from each table to the next coarser ones.
    pub fn implications(&self) -> Vec<Implication> {
        let implication = |edge: &Edge| Implication {
            from: self.tables[edge.from],
            to: self.tables[edge.to],
            confidence: edge.confidence,
        };
        self.edges.iter().map(implication).collect()
    }

    /// Bytes of samples and associations.
    pub fn bytes(&self) -> u64 {
        self.sampled_keys.bytes() + self.associations.as_ref().map_or(0, Associations::bytes)
    }

    /// Stores the key of each table, or none for tables with several.
    fn collect_keys(&mut self, keys: &[Key]) {
        self.keys.fill(None);
        self.fingerprints.fill(0);
        let mut has_bags = false;
        for key in keys {
            let Some(position) = position(&self.positions, *key) else { continue };
            let repeated = self.fingerprints[position] != 0;
            has_bags |= repeated;
            self.keys[position] = if repeated { None } else { Some(*key) };
            self.fingerprints[position] = (key.mixed() >> 32) as u32 | 1;
        }
        if has_bags {
            let bags =
                self.fingerprints.iter_mut().zip(&self.keys).filter(|(_, key)| key.is_none());
            bags.for_each(|(fingerprint, _)| *fingerprint = 0);
        }
    }

    fn sample(&mut self) {
        if let Some(key) = self.keys[self.next_table] {
            self.sampled_keys.observe(self.next_table, key, &self.fingerprints);
        }
        self.next_table = (self.next_table + 1) % self.tables.len();
        self.samples += 1;
        self.until_sample = if self.samples < SAMPLES_DENSE { 1 } else { REQUESTS_PER_SAMPLE };
        if self.samples.is_multiple_of(SAMPLES_PER_REVIEW) {
            self.review();
        }
    }

    fn record_associations(&mut self) {
        let Some(associations) = &mut self.associations else { return };
        for edge in &self.edges {
            if let (Some(from), Some(to)) = (self.keys[edge.from], self.keys[edge.to]) {
                associations.insert(from, to);
            }
        }
    }

    /// Rebuilds the edges: direct implications only, without those that follow from others.
    fn review(&mut self) {
        let count = self.tables.len();
        let mut implies = vec![0_u64; count];
        for (from, implied) in implies.iter_mut().enumerate() {
            for to in (0..count).filter(|to| self.sampled_keys.confidence(from, *to).is_some()) {
                *implied |= 1 << to;
            }
        }
        // If each implies the other, the one with more rows, which comes first, is the finer.
        let finer = |from: usize, to: usize| {
            implies[from] >> to & 1 == 1 && (implies[to] >> from & 1 == 0 || from < to)
        };
        self.edges.clear();
        for to in 0..count {
            let parents: Vec<usize> = (0..count).filter(|from| finer(*from, to)).collect();
            let nearest = parents.iter().filter(|from| {
                parents.iter().all(|between| between == *from || !finer(**from, *between))
            });
            let mut edges: Vec<Edge> = nearest
                .map(|&from| {
                    let confidence =
                        self.sampled_keys.confidence(from, to).expect("an implication has one");
                    Edge { from, to, confidence }
                })
                .collect();
            edges.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
            self.edges.extend(edges.into_iter().take(PARENTS_MAX));
        }
        self.edges.sort_by_key(|edge| (edge.from, edge.to));
    }
}

/// Position of a key's table among the examined ones.
#[inline]
fn position(positions: &[u8], key: Key) -> Option<usize> {
    let position = *positions.get(usize::from(key.table().0))?;
    (position != NONE).then_some(usize::from(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(table: u16, row: u64) -> Key {
        Key::new(TableId(table), row).unwrap()
    }

    /// Table 0 determines table 1, which determines table 2; table 3 is independent.
    struct World {
        random: fastrand::Rng,
        implications: Implications,
        /// Share of requests in which table 1's key is another one.
        wrong: f64,
    }

    impl World {
        fn new() -> Self {
            let implications = Implications::new(
                &[5000, 900, 50, 5000, 3],
                &[false, false, false, false, true],
                500,
                u64::MAX,
            );
            Self { random: fastrand::Rng::with_seed(1), implications, wrong: 0.0 }
        }

        fn draw(&mut self) -> u64 {
            (self.random.f64().powi(4) * 5000.0) as u64
        }

        fn requests(&mut self, count: usize) {
            for _ in 0..count {
                let (user, other) = (self.draw(), self.draw());
                let broken = self.random.f64() < self.wrong;
                let city = if broken { self.random.u64(0..900) } else { user * 7 % 900 };
                let keys =
                    [key(0, user), key(1, city), key(2, city % 50), key(3, other), key(4, 1)];
                self.implications.request(&keys);
            }
        }

        fn learned(&self) -> Vec<(u16, u16)> {
            self.implications.implications().iter().map(|edge| (edge.from.0, edge.to.0)).collect()
        }
    }

    #[test]
    fn a_chain_is_found_and_nothing_else() {
        let mut world = World::new();
        world.requests(20_000);
        assert_eq!(world.learned(), [(0, 1), (1, 2)]);
        assert!(world.implications.implications().iter().all(|edge| edge.confidence > 0.99));
    }

    #[test]
    fn approximate_implications_are_found_and_outdated_ones_are_dropped() {
        let mut world = World::new();
        world.wrong = 0.02;
        world.requests(20_000);
        assert_eq!(world.learned(), [(0, 1), (1, 2)]);
        world.wrong = 1.0;
        world.requests(60_000);
        assert_eq!(world.learned(), [(1, 2)], "table 1 still implies table 2");
    }

    #[test]
    fn a_table_whose_key_is_nearly_constant_is_not_implied() {
        let mut implications = Implications::new(&[100, 100], &[false; 2], 100, u64::MAX);
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..20_000 {
            let rare = u64::from(random.u8(..) < 5);
            implications.request(&[key(0, random.u64(0..100)), key(1, rare)]);
        }
        assert_eq!(implications.implications(), []);
    }

    #[test]
    fn implied_keys_are_those_that_came_together_before_in_a_request() {
        let mut world = World::new();
        world.requests(20_000);
        let mut implied = Vec::new();
        world.implications.implied(&[key(0, 3)], &mut implied);
        assert_eq!(implied, [], "nothing is recorded before the first call");
        world.requests(20_000);
        world.implications.implied(&[key(0, 3), key(3, 3), key(4, 1), key(99, 0)], &mut implied);
        assert_eq!(
            implied,
            [key(1, 21), key(2, 21)],
            "the implied key, and the key that it implies"
        );
    }

    #[test]
    fn bags_and_single_tables_have_no_implications() {
        let mut implications = Implications::new(&[100, 100], &[false; 2], 100, u64::MAX);
        for row in 0..20_000 {
            implications.request(&[key(0, row % 90), key(1, row % 90), key(1, (row + 1) % 90)]);
            implications.request(&[]);
        }
        assert_eq!(implications.implications(), []);
        let mut single = Implications::new(&[100], &[false], 100, u64::MAX);
        (0..20_000).for_each(|row| single.request(&[key(0, row % 90)]));
        assert_eq!(single.implications(), []);
    }
}
