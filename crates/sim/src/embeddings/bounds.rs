//! Bounds: perfect hits that no policy can exceed, and those of the best fixed set of rows.
//!
//! - **Infinite cache:** a request can be perfect only if each of its keys was requested before.
//! - **Per-table Belady:** every table gets the whole cache and the future accesses (MIN with
//!   bypass). A perfect hit needs a hit in every table, so no policy has more perfect hits than the
//!   table with the fewest.
//! - **Static:** the best fixed set of rows that greedy peeling finds with the whole trace known.
//!   It is no bound: an adaptive policy may have more.

use std::{cmp::Reverse, collections::BinaryHeap};

use forebay_core::embeddings::{Key, TableId};
use serde::Serialize;

use super::{
    run::{CacheShare, Tally, warm_up},
    trace::Trace,
};
use crate::belady::{Belady, next_uses};

/// Bounds at one cache size, over the same requests as the single pass.
#[derive(Debug, Clone, Serialize)]
pub struct Bounds {
    /// The cache size.
    pub share: CacheShare,
    /// With an infinite cache.
    pub infinite: Tally,
    /// Perfect hits of the table with the fewest under Belady.
    pub table_belady_perfect: u64,
    /// The best static set found by peeling.
    pub fixed: Tally,
}

/// Bounds at every size.
pub(super) fn all(trace: &Trace, shares: &[CacheShare]) -> Vec<Bounds> {
    let numbering = Numbering::of(trace);
    let infinite = infinite(trace, &numbering);
    let capacities: Vec<u64> = shares.iter().map(|share| share.rows(trace)).collect();
    let fixed = peel(trace, &numbering, &capacities);
    let belady = table_belady(trace, &capacities);
    shares
        .iter()
        .zip(fixed.into_iter().zip(belady))
        .map(|(&share, (fixed, perfect))| Bounds {
            share,
            infinite,
            table_belady_perfect: perfect.min(infinite.perfect),
            fixed,
        })
        .collect()
}

/// Dense numbers for all keys of a trace. Its builder numbers the rows of each table from 0.
struct Numbering {
    first: Vec<usize>,
    count: usize,
}

impl Numbering {
    fn of(trace: &Trace) -> Self {
        let mut count = 0;
        let first = trace.tables().iter().map(|table| {
            let first = count;
            count += usize::try_from(table.rows).expect("the trace is in memory");
            first
        });
        Self { first: first.collect(), count }
    }

    fn number(&self, key: Key) -> usize {
        self.first[usize::from(key.table().0)]
            + usize::try_from(key.row()).expect("the trace is in memory")
    }
}

fn infinite(trace: &Trace, numbering: &Numbering) -> Tally {
    let mut seen = vec![false; numbering.count];
    let mut tally = Tally::default();
    let mut hits = Vec::new();
    for (index, request) in trace.requests().enumerate() {
        hits.clear();
        hits.extend(request.iter().map(|key| seen[numbering.number(*key)]));
        for key in request {
            seen[numbering.number(*key)] = true;
        }
        if index >= warm_up(trace) {
            tally.record(&hits);
        }
    }
    tally
}

/// Tallies of the best fixed set per capacity. Rows are removed one by one, always the one that the
/// fewest still-perfect requests need. The rows left at a capacity are its set.
fn peel(trace: &Trace, numbering: &Numbering, capacities: &[u64]) -> Vec<Tally> {
    let counted = warm_up(trace)..trace.len();
    let mut needed_by = vec![Vec::new(); numbering.count];
    for index in counted.clone() {
        let request = u32::try_from(index).expect("fewer than 2^32 requests");
        for key in trace.request(index) {
            let requests: &mut Vec<u32> = &mut needed_by[numbering.number(*key)];
            if requests.last() != Some(&request) {
                requests.push(request);
            }
        }
    }
    let mut need: Vec<usize> = needed_by.iter().map(Vec::len).collect();
    let mut kept = vec![true; numbering.count];
    let mut perfect = vec![true; trace.len()];
    let mut reduced_by: Vec<Option<u32>> = vec![None; numbering.count];
    let mut queue: BinaryHeap<_> =
        need.iter().enumerate().map(|(key, need)| Reverse((*need, key))).collect();
    let mut left = numbering.count as u64;

    let mut sets: Vec<(usize, u64)> = capacities.iter().copied().enumerate().collect();
    sets.sort_by_key(|(_, capacity)| Reverse(*capacity));
    let mut tallies = vec![Tally::default(); capacities.len()];
    for (index, capacity) in sets {
        while left > capacity {
            let Reverse((known_need, key)) = queue.pop().expect("keys are left");
            if !kept[key] || known_need != need[key] {
                continue; // outdated; a newer entry is in the queue
            }
            kept[key] = false;
            left -= 1;
            for request in std::mem::take(&mut needed_by[key]) {
                if std::mem::replace(&mut perfect[request as usize], false) {
                    for other in trace.request(request as usize) {
                        let other = numbering.number(*other);
                        // A bag may contain a key twice; the request needs it once.
                        let is_new = reduced_by[other].replace(request) != Some(request);
                        if kept[other] && is_new {
                            need[other] -= 1;
                            queue.push(Reverse((need[other], other)));
                        }
                    }
                }
            }
        }
        let mut hits = Vec::new();
        for request in counted.clone() {
            hits.clear();
            hits.extend(trace.request(request).iter().map(|key| kept[numbering.number(*key)]));
            tallies[index].record(&hits);
        }
    }
    tallies
}

/// Per capacity, the fewest perfect requests of any table under MIN.
fn table_belady(trace: &Trace, capacities: &[u64]) -> Vec<u64> {
    let mut fewest = vec![u64::MAX; capacities.len()];
    for (index, table) in trace.tables().iter().enumerate() {
        let table_id = TableId(u16::try_from(index).expect("table ids are 16-bit"));
        for (fewest, &capacity) in fewest.iter_mut().zip(capacities) {
            // If the whole table fits, the bound of the infinite cache applies.
            if table.rows > capacity {
                *fewest = (*fewest).min(belady(trace, table_id, capacity));
            }
        }
    }
    fewest
}

/// Requests whose keys of one table all hit when that table has the whole cache.
fn belady(trace: &Trace, table: TableId, capacity: u64) -> u64 {
    let (requests, rows): (Vec<usize>, Vec<u32>) = trace
        .requests()
        .enumerate()
        .flat_map(|(request, keys)| keys.iter().map(move |key| (request, *key)))
        .filter(|(_, key)| key.table() == table)
        .map(|(request, key)| (request, u32::try_from(key.row()).expect("rows are in memory")))
        .unzip();
    let mut belady = Belady::new(capacity);
    let mut missed = vec![false; trace.len()];
    for ((request, row), next) in requests.iter().zip(&rows).zip(next_uses(&rows)) {
        if !belady.access(*row, next) {
            missed[*request] = true;
        }
    }
    missed[warm_up(trace)..].iter().filter(|missed| !**missed).count() as u64
}
