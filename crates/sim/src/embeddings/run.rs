//! Simulation of policies on traces: perfect hits, individual hits and cost.

use std::{fmt, str::FromStr, time::Instant};

use forebay_core::embeddings::{
    Budget, Capacity, Implication, Key, Outcome, Policy, PolicyKind, TableId,
};
use serde::Serialize;

use super::{
    bounds,
    report::{Bundle, Prefetched, Report, Row},
    trace::Trace,
};

/// The first fifth of a trace warms the cache up and is not counted.
const WARM_UP_DIVISOR: usize = 5;

/// A cache size as a share of the trace's working set.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
pub struct CacheShare(f64);

impl CacheShare {
    /// Default sizes: 1, 2, 5, 10 and 20 %.
    pub const DEFAULT: [CacheShare; 5] =
        [CacheShare(0.01), CacheShare(0.02), CacheShare(0.05), CacheShare(0.1), CacheShare(0.2)];

    pub(super) fn new(share: f64) -> Self {
        Self(share)
    }

    /// As a number from 0 to 1.
    pub(super) fn share(self) -> f64 {
        self.0
    }

    /// Number of rows for a trace, at least one.
    pub fn rows(self, trace: &Trace) -> u64 {
        self.of(trace.rows())
    }

    /// This share of a count, at least one.
    pub fn of(self, count: u64) -> u64 {
        ((count as f64 * self.0).round() as u64).max(1)
    }
}

impl fmt::Display for CacheShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = (self.0 * 1e6).round() / 1e4;
        f.pad(&format!("{percent}%"))
    }
}

/// An invalid cache size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no cache size; write a share of the working set above 0% and up to 100%, such as 5%"
)]
pub struct CacheShareError(String);

impl FromStr for CacheShare {
    type Err = CacheShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || CacheShareError(text.to_owned());
        let percent = text.trim().strip_suffix('%').ok_or_else(error)?;
        let percent: f64 = percent.trim().parse().map_err(|_| error())?;
        if percent > 0.0 && percent <= 100.0 { Ok(Self(percent / 100.0)) } else { Err(error()) }
    }
}

/// Counts of a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Requests all of whose keys were resident.
    pub perfect: u64,
    /// Keys.
    pub keys: u64,
    /// Keys that were resident.
    pub hits: u64,
}

impl Tally {
    /// Share of perfect hits.
    pub fn perfect_rate(&self) -> f64 {
        self.perfect as f64 / self.requests.max(1) as f64
    }

    /// Share of keys that hit.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.keys.max(1) as f64
    }

    pub(super) fn record(&mut self, hits: &[bool]) {
        let hit_count = hits.iter().filter(|hit| **hit).count();
        self.requests += 1;
        self.keys += hits.len() as u64;
        self.hits += hit_count as u64;
        self.perfect += u64::from(hit_count == hits.len());
    }
}

/// Cost of a policy's decisions, relative to LRU's.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Cost {
    /// The policy.
    pub policy: PolicyKind,
    /// Median nanoseconds per key.
    pub nanos_per_key: f64,
    /// Median ratio to LRU's cost in the adjacent run.
    pub against_lru: f64,
}

/// Parameters of a simulation.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// Policies to compare.
    pub policies: Vec<PolicyKind>,
    /// Cache sizes.
    pub shares: Vec<CacheShare>,
    /// Seed of random choices of the policies.
    pub seed: u64,
    /// Whether to add the dissertation's method: the whole trace as warm-up, then a counted pass.
    pub replay: bool,
    /// Tables whose keys are known one request early, to measure prefetching.
    pub prefetch: Vec<TableId>,
    /// Whether to compute bounds.
    pub bounds: bool,
}

impl Simulation {
    /// A simulation at the default sizes, with bounds, without replay.
    pub fn new(policies: Vec<PolicyKind>) -> Self {
        Self {
            policies,
            shares: CacheShare::DEFAULT.to_vec(),
            seed: 0,
            replay: false,
            prefetch: Vec::new(),
            bounds: true,
        }
    }

    /// Runs every policy at every size.
    pub fn run(&self, trace: &Trace) -> Report {
        self.run_watched(trace, &mut |_| {})
    }

    /// Runs every policy at every size; `watch` is called with the share that is done.
    pub fn run_watched(&self, trace: &Trace, watch: &mut dyn FnMut(f64)) -> Report {
        let runs = self.shares.len() * self.policies.len();
        let steps = (runs + usize::from(self.bounds)).max(1) as f64;
        let mut rows = Vec::new();
        for &share in &self.shares {
            for &policy in &self.policies {
                watch(rows.len() as f64 / steps);
                let mut built = self.build(policy, share, trace);
                let started = Instant::now();
                let single = single_pass(&mut *built, trace);
                let nanos = started.elapsed().as_nanos() as f64;
                let replay = self.replay.then(|| replayed(&mut *built, trace));
                let bundles = bundles_of(&built.implications(), trace);
                let prefetch = (!self.prefetch.is_empty()).then(|| {
                    let [known, bundles] = [false, true].map(|with_bundles| {
                        let mut built = self.build(policy, share, trace);
                        prefetched(&mut *built, trace, &self.prefetch, with_bundles)
                    });
                    Prefetched { known, bundles }
                });
                let nanos_per_key = nanos / trace.key_count().max(1) as f64;
                let capacity_rows = share.rows(trace);
                rows.push(Row {
                    policy,
                    share,
                    capacity_rows,
                    single,
                    replay,
                    prefetch,
                    bundles,
                    nanos_per_key,
                });
            }
        }
        watch(runs as f64 / steps);
        let bounds = if self.bounds { bounds::all(trace, &self.shares) } else { Vec::new() };
        Report::new(trace, rows, bounds)
    }

    /// Cost of the policies. Each run is next to a run of LRU, so that noise affects both.
    pub fn cost(&self, trace: &Trace, share: CacheShare, pairs: usize) -> Vec<Cost> {
        let nanos = |policy| {
            let mut built = self.build(policy, share, trace);
            let started = Instant::now();
            std::hint::black_box(single_pass(&mut *built, trace));
            started.elapsed().as_nanos() as f64 / trace.key_count().max(1) as f64
        };
        let costs = self.policies.iter().map(|&policy| {
            let runs = (0..pairs.max(1)).map(|_| (nanos(PolicyKind::Lru), nanos(policy)));
            let (lru, own): (Vec<f64>, Vec<f64>) = runs.unzip();
            let ratios = lru.iter().zip(&own).map(|(lru, own)| own / lru).collect();
            Cost { policy, nanos_per_key: median(own), against_lru: median(ratios) }
        });
        costs.collect()
    }

    fn build(&self, policy: PolicyKind, share: CacheShare, trace: &Trace) -> Box<dyn Policy> {
        let budget = Budget::new(trace.shapes(), Capacity::Rows(share.rows(trace)));
        policy.build(&budget, self.seed)
    }
}

/// Number of warm-up requests.
pub(super) fn warm_up(trace: &Trace) -> usize {
    trace.len() / WARM_UP_DIVISOR
}

pub(super) fn single_pass(policy: &mut dyn Policy, trace: &Trace) -> Tally {
    let mut tally = Tally::default();
    let mut outcome = Outcome::default();
    let warm_up = warm_up(trace);
    for (index, request) in trace.requests().enumerate() {
        policy.request(request, &mut outcome);
        if index >= warm_up {
            tally.record(&outcome.hits);
        }
    }
    tally
}

/// A single pass in which the next request's keys of some tables are prefetched; with bundles, the
/// keys that they imply as well.
fn prefetched(
    policy: &mut dyn Policy,
    trace: &Trace,
    tables: &[TableId],
    with_bundles: bool,
) -> Tally {
    let mut tally = Tally::default();
    let mut outcome = Outcome::default();
    let (mut known, mut implied): (Vec<Key>, Vec<Key>) = (Vec::new(), Vec::new());
    let warm_up = warm_up(trace);
    for (index, request) in trace.requests().enumerate() {
        if index + 1 < trace.len() {
            let next = trace.request(index + 1).iter();
            known.clear();
            known.extend(next.filter(|key| tables.contains(&key.table())));
            if with_bundles {
                policy.implied(&known, &mut implied);
                known.append(&mut implied);
            }
            policy.prefetch(&known, &mut outcome);
        }
        policy.request(request, &mut outcome);
        if index >= warm_up {
            tally.record(&outcome.hits);
        }
    }
    tally
}

/// Implications with the table names of the trace.
fn bundles_of(learned: &[Implication], trace: &Trace) -> Vec<Bundle> {
    let name = |table: TableId| trace.tables()[usize::from(table.0)].name.clone();
    let bundle = |one: &Implication| Bundle {
        from: name(one.from),
        to: name(one.to),
        confidence: one.confidence,
    };
    learned.iter().map(bundle).collect()
}

/// A second pass over the trace, all of it counted.
fn replayed(policy: &mut dyn Policy, trace: &Trace) -> Tally {
    let mut tally = Tally::default();
    let mut outcome = Outcome::default();
    for request in trace.requests() {
        policy.request(request, &mut outcome);
        tally.record(&outcome.hits);
    }
    tally
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
