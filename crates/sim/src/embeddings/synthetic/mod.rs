//! Synthetic traces: thirty generators, each with one access pattern.
//!
//! Real grouped traces are few, and a policy that is tuned on them overfits. The patterns: stable,
//! shifting and drifting popularity, loops, scans, sessions, companions (keys that come together),
//! and short-lived topics. None of them imitates a particular workload. Together they show which
//! patterns a policy handles badly.
//!
//! **Tuning and held-out sets.** Patterns come in pairs of one kind. The first of each pair may be
//! used for tuning. The second is held out: it is used to report, not to choose.

mod patterns;

use std::str::FromStr;

use super::trace::{Trace, TraceBuilder};

/// A pattern of the catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// Its name on the command line.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    tables: usize,
    request: fn(&mut Draw<'_>),
}

/// Default number of requests.
const REQUESTS: usize = 50_000;
/// Most keys of a trace of default length, so that all policies run in seconds. Traces with many
/// keys per request have fewer requests.
const KEYS: usize = 300_000;

impl Made {
    /// All patterns, in pairs: the first for tuning, the second held out.
    pub const ALL: &[Made] = patterns::ALL;

    /// Whether it is held out.
    pub fn held_out(&self) -> bool {
        Self::ALL.iter().position(|made| made.name == self.name).is_some_and(|at| at % 2 == 1)
    }

    /// Default number of requests.
    pub fn requests(&self) -> usize {
        REQUESTS.min(KEYS / self.tables)
    }

    /// Generates the trace, named `made:` and the pattern. A shorter trace is a prefix of a longer
    /// one.
    pub fn generate(&self, requests: usize, seed: u64) -> Trace {
        let mut builder = TraceBuilder::new(format!("made:{}", self.name));
        builder.synthetic = true;
        for table in 0..self.tables {
            builder.table(&format!("t{table}"));
        }
        let random = fastrand::Rng::with_seed(seed);
        let mut draw = Draw { random, at: 0, builder: &mut builder, state: Vec::new() };
        for at in 0..requests as u64 {
            draw.at = at;
            (self.request)(&mut draw);
            draw.builder.end_request();
        }
        builder.build()
    }
}

impl FromStr for Made {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|made| made.name == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|made| made.name).collect();
            format!(
                "there is no made trace `{}`; there are {}",
                text.escape_debug(),
                names.join(", ")
            )
        })
    }
}

/// State of a generator.
struct Draw<'a> {
    random: fastrand::Rng,
    /// Number of the request.
    at: u64,
    builder: &'a mut TraceBuilder,
    /// State that a pattern carries from request to request; initially empty.
    state: Vec<u64>,
}

impl Draw<'_> {
    fn key(&mut self, table: usize, value: u64) {
        self.builder.key(table, &value.to_le_bytes());
    }

    /// A rank from 0 to `rows - 1`, by inversion of the continuous power law; `steepness` is not 1.
    fn zipf(&mut self, rows: u64, steepness: f64) -> u64 {
        super::criteo_like::zipf(rows, steepness, &mut self.random)
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// Number of whole periods of `requests` requests that have passed.
    fn phase(&self, requests: u64) -> u64 {
        self.at / requests
    }

    /// Position in a loop of this length.
    fn looped(&self, length: u64) -> u64 {
        self.at % length
    }

    /// The key that has this rank now, if each rank moves to another key once in `requests`
    /// requests, at different times.
    fn drifted(&self, rank: u64, requests: u64) -> u64 {
        let period = (self.at + scatter(rank, 0) % requests) / requests;
        scatter(rank, 1 + period)
    }
}

/// Hash of a value and a salt, to spread ranks over keys without structure.
fn scatter(value: u64, salt: u64) -> u64 {
    let mixed = value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.rotate_right(20);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}
