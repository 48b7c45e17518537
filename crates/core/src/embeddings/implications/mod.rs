//! Implied bundles: where one table's key determines another's, their rows are of use only together.
//!
//! An advertisement has its campaign, the campaign its advertiser: whoever knows the first key knows the others.
//! [`Bundles`] finds such tables by itself, from a few requests and a few keys of each ([`witnesses`]), orders them
//! from the finer to the coarser, and, once somebody wants to prefetch, remembers which keys came together
//! ([`recall`]). Of a request it looks at the keys of one table after the other, so that a look costs no more than a
//! few steps per key.
//!
//! Not here: bags. A table that a request asks for several keys is left out of that look.

mod recall;
mod witnesses;

use serde::Serialize;

use self::{
    recall::Recall,
    witnesses::{Print, Witnesses},
};
use super::key::{Key, TableId};

/// Tables that are looked at, the largest first: a word has a bit for each.
const TABLES_MAX: usize = 64;
/// Every request is looked at until there were so many looks, later one of so many requests.
const LOOKS_FIRST: u64 = 16 << 10;
const REQUESTS_PER_LOOK: u32 = 8;
/// Looks between two conclusions.
const LOOKS_PER_REVIEW: u64 = 1024;
/// A table is found by way of so many others at most, so that remembering costs no more than that for each key.
const PARENTS_MAX: usize = 2;
/// Pairs of keys that are remembered, per row that fits: 64 bytes.
const REMEMBERED_PER_ROW: u64 = 8;

/// There are fewer bundles than this.
pub(super) const BUNDLES_MAX: usize = TABLES_MAX;

const NONE: u8 = u8::MAX;

/// The key of one table determines that of another.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Implication {
    /// The table whose key is known.
    pub from: TableId,
    /// The table whose key follows.
    pub to: TableId,
    /// How often it is the expected one.
    pub confidence: f64,
}

/// A table and the next coarser one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    from: usize,
    to: usize,
    confidence: f64,
}

/// What has been learned about the tables of a model.
#[derive(Debug)]
pub(super) struct Bundles {
    /// The tables that are looked at, the one with most rows first, and where each stands among them.
    tables: Vec<TableId>,
    places: Vec<u8>,
    witnesses: Witnesses,
    steps: Vec<Step>,
    /// Which bundle each table belongs to.
    membership: Vec<u8>,
    recall: Option<Recall>,
    pairs_max: u64,
    /// The keys of the request at hand.
    keys: Vec<Option<Key>>,
    prints: Vec<Print>,
    /// Whose turn it is to be looked at.
    turn: usize,
    looks: u64,
    until_look: u32,
}

impl Bundles {
    /// For tables of so many rows each, of which some need no looking at, and a cache of `rows_max` rows.
    pub fn new(rows: &[u64], left_out: &[bool], rows_max: u64) -> Self {
        let mut order: Vec<usize> = (0..rows.len()).filter(|table| !left_out[*table]).collect();
        order.sort_by_key(|table| std::cmp::Reverse(rows[*table]));
        order.truncate(TABLES_MAX);
        let mut places = vec![NONE; rows.len()];
        for (place, table) in order.iter().enumerate() {
            places[*table] = u8::try_from(place).expect("at most 64");
        }
        let id = |table: &usize| TableId(u16::try_from(*table).expect("table ids are 16-bit"));
        let count = order.len();
        Self {
            tables: order.iter().map(id).collect(),
            places,
            witnesses: Witnesses::new(count),
            steps: Vec::new(),
            membership: vec![NONE; count],
            recall: None,
            pairs_max: rows_max.saturating_mul(REMEMBERED_PER_ROW),
            keys: vec![None; count],
            prints: vec![0; count],
            turn: 0,
            looks: 0,
            until_look: 1,
        }
    }

    /// A request comes. Most of the time this does nothing.
    #[inline]
    pub fn request(&mut self, keys: &[Key]) {
        // Of a single table there is nothing to learn.
        if self.tables.len() < 2 {
            return;
        }
        self.until_look -= 1;
        let remembers = self.recall.is_some() && !self.steps.is_empty();
        if self.until_look == 0 || remembers {
            self.spread_out(keys);
            if self.until_look == 0 {
                self.look();
            }
            if remembers {
                self.remember();
            }
        }
    }

    /// The keys that these ones imply. Whoever asks is the reason to remember pairs from now on.
    pub fn implied(&mut self, keys: &[Key], into: &mut Vec<Key>) {
        let pairs = self.pairs_max;
        let recall = self.recall.get_or_insert_with(|| Recall::new(pairs));
        for key in keys {
            let Some(place) = place(&self.places, *key) else { continue };
            let mut next = into.len();
            let (mut at, mut from, mut seen) = (place, *key, 1_u64 << place);
            loop {
                for step in self.steps.iter().filter(|step| step.from == at) {
                    let found = recall.find(from, self.tables[step.to]);
                    if let Some(found) = found.filter(|_| seen >> step.to & 1 == 0) {
                        seen |= 1 << step.to;
                        into.push(found);
                    }
                }
                let Some(key) = into.get(next) else { break };
                from = *key;
                at = self.places[usize::from(from.table().0)].into();
                next += 1;
            }
        }
    }

    /// What has been found out, each table with the next coarser ones.
    pub fn implications(&self) -> Vec<Implication> {
        let implication = |step: &Step| Implication {
            from: self.tables[step.from],
            to: self.tables[step.to],
            confidence: step.confidence,
        };
        self.steps.iter().map(implication).collect()
    }

    /// Which bundle a table belongs to.
    #[inline]
    pub fn bundle(&self, table: TableId) -> Option<u8> {
        let place = *self.places.get(usize::from(table.0))?;
        self.membership.get(usize::from(place)).copied().filter(|bundle| *bundle != NONE)
    }

    /// Notes the key of each table; none where there are several.
    fn spread_out(&mut self, keys: &[Key]) {
        self.keys.fill(None);
        self.prints.fill(0);
        let mut has_bags = false;
        for key in keys {
            let Some(place) = place(&self.places, *key) else { continue };
            let repeated = self.prints[place] != 0;
            has_bags |= repeated;
            self.keys[place] = if repeated { None } else { Some(*key) };
            self.prints[place] = (key.mixed() >> 32) as u32 | 1;
        }
        if has_bags {
            let several = self.prints.iter_mut().zip(&self.keys).filter(|(_, key)| key.is_none());
            several.for_each(|(print, _)| *print = 0);
        }
    }

    fn look(&mut self) {
        if let Some(key) = self.keys[self.turn] {
            self.witnesses.hear(self.turn, key, &self.prints);
        }
        self.turn = (self.turn + 1) % self.tables.len();
        self.looks += 1;
        self.until_look = if self.looks < LOOKS_FIRST { 1 } else { REQUESTS_PER_LOOK };
        if self.looks.is_multiple_of(LOOKS_PER_REVIEW) {
            self.review();
        }
    }

    fn remember(&mut self) {
        let Some(recall) = &mut self.recall else { return };
        for step in &self.steps {
            if let (Some(from), Some(to)) = (self.keys[step.from], self.keys[step.to]) {
                recall.note(from, to);
            }
        }
    }

    /// Draws conclusions: which tables imply which, and by way of which others.
    fn review(&mut self) {
        let count = self.tables.len();
        let mut implies = vec![0_u64; count];
        for (from, implied) in implies.iter_mut().enumerate() {
            for to in (0..count).filter(|to| self.witnesses.confidence(from, *to).is_some()) {
                *implied |= 1 << to;
            }
        }
        // Where each implies the other, the one with more rows, which stands before it, is the finer.
        let finer = |from: usize, to: usize| {
            implies[from] >> to & 1 == 1 && (implies[to] >> from & 1 == 0 || from < to)
        };
        self.steps.clear();
        for to in 0..count {
            let parents: Vec<usize> = (0..count).filter(|from| finer(*from, to)).collect();
            let nearest = parents.iter().filter(|from| {
                parents.iter().all(|between| between == *from || !finer(**from, *between))
            });
            let mut steps: Vec<Step> = nearest
                .map(|&from| {
                    let confidence = self.witnesses.confidence(from, to).expect("it implies it");
                    Step { from, to, confidence }
                })
                .collect();
            steps.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
            self.steps.extend(steps.into_iter().take(PARENTS_MAX));
        }
        self.steps.sort_by_key(|step| (step.from, step.to));
        self.gather();
    }

    /// Tables that imply each other, by whatever way, are one bundle.
    fn gather(&mut self) {
        self.membership.fill(NONE);
        for step in &self.steps {
            let number = u8::try_from(step.from).expect("at most 64");
            let [from, to] = [step.from, step.to].map(|place| self.membership[place]);
            let joined = if from == NONE { number } else { from };
            for bundle in &mut self.membership {
                if to != NONE && *bundle == to {
                    *bundle = joined;
                }
            }
            (self.membership[step.from], self.membership[step.to]) = (joined, joined);
        }
    }
}

/// Where a key's table stands among those that are looked at.
#[inline]
fn place(places: &[u8], key: Key) -> Option<usize> {
    let place = *places.get(usize::from(key.table().0))?;
    (place != NONE).then_some(usize::from(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(table: u16, row: u64) -> Key {
        Key::new(TableId(table), row).unwrap()
    }

    /// Table 0 determines table 1, which determines table 2; table 3 is drawn by itself.
    struct World {
        random: fastrand::Rng,
        bundles: Bundles,
        /// How often table 1's key is another one.
        wrong: f64,
    }

    impl World {
        fn new() -> Self {
            let bundles =
                Bundles::new(&[5000, 900, 50, 5000, 3], &[false, false, false, false, true], 500);
            Self { random: fastrand::Rng::with_seed(1), bundles, wrong: 0.0 }
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
                self.bundles.request(&keys);
            }
        }

        fn learned(&self) -> Vec<(u16, u16)> {
            self.bundles.implications().iter().map(|step| (step.from.0, step.to.0)).collect()
        }
    }

    #[test]
    fn a_chain_is_found_and_nothing_else() {
        let mut world = World::new();
        world.requests(20_000);
        assert_eq!(world.learned(), [(0, 1), (1, 2)]);
        assert!(world.bundles.implications().iter().all(|step| step.confidence > 0.99));
        let bundle = |table| world.bundles.bundle(TableId(table));
        assert!(bundle(0).is_some() && bundle(0) == bundle(2) && bundle(3).is_none());
        assert_eq!(bundle(99), None);
    }

    #[test]
    fn what_is_nearly_so_is_found_and_what_stops_to_hold_is_forgotten() {
        let mut world = World::new();
        world.wrong = 0.02;
        world.requests(20_000);
        assert_eq!(world.learned(), [(0, 1), (1, 2)]);
        world.wrong = 1.0;
        world.requests(60_000);
        assert_eq!(world.learned(), [(1, 2)], "a city still has its country");
    }

    #[test]
    fn a_table_that_hardly_ever_changes_is_no_discovery() {
        let mut bundles = Bundles::new(&[100, 100], &[false; 2], 100);
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..20_000 {
            let rare = u64::from(random.u8(..) < 5);
            bundles.request(&[key(0, random.u64(0..100)), key(1, rare)]);
        }
        assert_eq!(bundles.implications(), []);
    }

    #[test]
    fn implied_keys_are_those_that_came_together_before() {
        let mut world = World::new();
        world.requests(20_000);
        let mut implied = Vec::new();
        world.bundles.implied(&[key(0, 3)], &mut implied);
        assert_eq!(implied, [], "nobody had asked, so nothing was remembered");
        world.requests(20_000);
        world.bundles.implied(&[key(0, 3), key(3, 3), key(4, 1), key(99, 0)], &mut implied);
        assert_eq!(implied, [key(1, 21), key(2, 21)], "its city, and its city's country");
    }

    #[test]
    fn bags_and_single_tables_are_left_alone() {
        let mut bundles = Bundles::new(&[100, 100], &[false; 2], 100);
        for row in 0..20_000 {
            bundles.request(&[key(0, row % 90), key(1, row % 90), key(1, (row + 1) % 90)]);
            bundles.request(&[]);
        }
        assert_eq!(bundles.implications(), []);
        let mut single = Bundles::new(&[100], &[false], 100);
        (0..20_000).for_each(|row| single.request(&[key(0, row % 90)]));
        assert_eq!(single.implications(), []);
    }
}
