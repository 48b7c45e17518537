//! Generator: days of independent jobs as Shift characterises them (3.2.1).
//!
//! The paper's figures are not published as numbers. The generator keeps to their text:
//!
//! - Figure 3: a few tables get most of the traffic, with a long tail.
//! - Figure 4a: most jobs read a few partitions; most bytes are read by jobs that read 20 or more.
//! - Figure 4b: much is read from the newest day, the rest from a few ranges of days that many jobs
//!   share.
//! - Figure 5a: three quarters of a partition's bytes are read at all, and half of them get nearly
//!   all reads.
//! - Figure 5b: jobs start at any time, run for hours to days, and read their rows once.

use std::time::Duration;

use forebay_core::{ByteSize, units::ByteRate};

use super::workload::{Announced, Order, Part, Reader};

/// Column groups of a partition.
pub(super) const COLUMNS: u32 = 8;
/// Probability that a job reads each group: half of the bytes nearly always, a quarter never
/// (figure 5a).
const READ_PROBABILITY: [f64; COLUMNS as usize] = [1.0, 1.0, 0.95, 0.9, 0.12, 0.05, 0.0, 0.0];
/// The popularity of the n-th table is n^-this (figure 3: a power law with a long tail).
const TABLE_EXPONENT: f64 = 1.3;
/// Share of jobs that read few partitions (figure 4a).
const SMALL_JOBS: f64 = 0.7;
/// Most partitions of such a job.
const SMALL_MAX: u32 = 5;
/// Partitions of the other jobs.
const LARGE: std::ops::Range<u32> = 20..40;
/// Share of jobs whose range ends with the newest day (figure 4b).
const NEWEST: f64 = 0.4;
/// Ranges of days per table that the other jobs share.
const RANGES: u32 = 3;

/// Parameters of the generator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub tables: u32,
    pub days: u32,
    pub partition: ByteSize,
    pub jobs: u32,
    /// Time over which jobs start.
    pub over: Duration,
    pub rate: ByteRate,
}

/// Generates parts and jobs. Tables are numbered by popularity, most popular first.
pub(super) fn generate(plan: &Plan, segment: ByteSize, seed: u64) -> (Vec<Part>, Vec<Reader>) {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5417);
    let segments = plan.partition.0 / u64::from(COLUMNS) / segment.0;
    let segments = u32::try_from(segments).expect("checked before");
    let mut parts = Vec::new();
    for table in 0..plan.tables {
        for day in 0..plan.days {
            for column in 0..COLUMNS {
                let first = u32::try_from(parts.len()).expect("checked before") * segments;
                let name = format!("table-{}-day-{}-columns-{}", table + 1, day + 1, column + 1);
                parts.push(Part { name, segments, first, table });
            }
        }
    }
    let weights: Vec<f64> =
        (1..=plan.tables).map(|rank| f64::from(rank).powf(-TABLE_EXPONENT)).collect();
    let all: f64 = weights.iter().sum();
    // Last days of the shared ranges of each table.
    let shared: Vec<u32> = (0..plan.tables * RANGES).map(|_| random.u32(1..=plan.days)).collect();
    let mut jobs: Vec<Reader> = (0..plan.jobs)
        .map(|_| {
            let mut drawn = random.f64() * all;
            let table = weights.iter().position(|weight| {
                drawn -= weight;
                drawn < 0.0
            });
            let table = u32::try_from(table.unwrap_or(0)).expect("at most 1000 tables");
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
            let columns: Vec<u32> = (0..COLUMNS)
                .filter(|column| random.f64() < READ_PROBABILITY[*column as usize])
                .collect();
            let part = |day: u32, column: u32| (table * plan.days + day) * COLUMNS + column;
            let stages = (begins..ends)
                .map(|day| columns.iter().map(|column| part(day, *column)).collect())
                .collect();
            let starts = plan.over.mul_f64(random.f64());
            // From half to twice the mean rate.
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
