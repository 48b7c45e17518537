//! Days of jobs as Shift characterises them (3.2.1): tables, partitions and columns of uneven popularity, read
//! by jobs that know nothing of each other.
//!
//! The figures are not published as numbers. What their text says is kept: a few tables get most of the
//! traffic, with a long tail (figure 3); most jobs read a few partitions, and most bytes are read by those that read twenty
//! or more (4a); much of it from the newest day, the rest from a few ranges of days that many jobs share (4b);
//! three quarters of a partition's bytes are read at all, and half of them get nearly all reads (5a); jobs come at any time and
//! run for hours to days, each reading its rows once (5b).

use std::time::Duration;

use forebay_core::{ByteSize, units::ByteRate};

use super::workload::{Announced, Order, Part, Reader};

/// How many groups the columns of a partition fall into.
pub(super) const COLUMNS: u32 = 8;
/// How likely a job wants each group: half of the bytes nearly always, a quarter never (figure 5a).
const WANTED: [f64; COLUMNS as usize] = [1.0, 1.0, 0.95, 0.9, 0.12, 0.05, 0.0, 0.0];
/// Popularity of the n-th table is n^-this (figure 3: a power law with a long tail).
const TABLE_EXPONENT: f64 = 1.3;
/// Of jobs that read only a few partitions, and how many those are (figure 4a).
const SMALL_JOBS: f64 = 0.7;
const SMALL_MAX: u32 = 5;
const LARGE: std::ops::Range<u32> = 20..40;
/// Of jobs that end with the newest day (figure 4b); the others share one of a few ranges.
const NEWEST: f64 = 0.4;
const RANGES: u32 = 3;

/// What to generate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub tables: u32,
    pub days: u32,
    pub partition: ByteSize,
    pub jobs: u32,
    pub over: Duration,
    pub rate: ByteRate,
}

/// Parts and jobs; the tables are numbered from the most popular on.
pub(super) fn generate(plan: &Plan, segment: ByteSize, seed: u64) -> (Vec<Part>, Vec<Reader>) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5417);
    let segments = plan.partition.0 / u64::from(COLUMNS) / segment.0;
    let segments = u32::try_from(segments).expect("checked");
    let mut parts = Vec::new();
    for table in 0..plan.tables {
        for day in 0..plan.days {
            for column in 0..COLUMNS {
                let first = u32::try_from(parts.len()).expect("checked") * segments;
                let name = format!("table-{}-day-{}-columns-{}", table + 1, day + 1, column + 1);
                parts.push(Part { name, segments, first, table });
            }
        }
    }
    let weights: Vec<f64> =
        (1..=plan.tables).map(|rank| f64::from(rank).powf(-TABLE_EXPONENT)).collect();
    let all: f64 = weights.iter().sum();
    // Ranges of days that many jobs of a table share, by the day they end on.
    let shared: Vec<u32> = (0..plan.tables * RANGES).map(|_| random.u32(1..=plan.days)).collect();
    let mut jobs: Vec<Reader> = (0..plan.jobs)
        .map(|_| {
            let mut drawn = random.f64() * all;
            let table = weights.iter().position(|weight| {
                drawn -= weight;
                drawn < 0.0
            });
            let table = u32::try_from(table.unwrap_or(0)).expect("few tables");
            let length = if random.f64() < SMALL_JOBS {
                random.u32(1..=SMALL_MAX)
            } else {
                random.u32(LARGE)
            };
            let ends = if random.f64() < NEWEST {
                plan.days
            } else {
                shared[(table * RANGES + random.u32(..RANGES)) as usize]
            };
            let begins = ends.saturating_sub(length);
            let wanted: Vec<u32> =
                (0..COLUMNS).filter(|column| random.f64() < WANTED[*column as usize]).collect();
            let part = |day: u32, column: u32| (table * plan.days + day) * COLUMNS + column;
            let stages = (begins..ends)
                .map(|day| wanted.iter().map(|column| part(day, *column)).collect())
                .collect();
            let starts = plan.over.mul_f64(random.f64());
            // From half to twice as fast as the mean.
            let rate = plan.rate.0.0 as f64 * (random.f64() * 2.0 - 1.0).exp2();
            Reader {
                name: String::new(),
                stages,
                says: None,
                launched: starts,
                starts,
                rate: ByteRate(ByteSize(super::workload::share(1, rate).max(1))),
                readers: random.u32(2..9),
                order: Order::Sequence,
                announced: Announced::Start,
                stops_after: if random.f64() < 0.1 { 0.1 + 0.8 * random.f64() } else { 1.0 },
            }
        })
        .collect();
    jobs.sort_by_key(|job| job.starts);
    for (number, job) in jobs.iter_mut().enumerate() {
        job.name = format!("job-{}", number + 1);
    }
    (parts, jobs)
}
