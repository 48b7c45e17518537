//! Made traces: a catalogue of what lookups may be like, each pattern by itself.
//!
//! Real grouped traces are few, and a policy that is tuned on them learns them by heart. So here are thirty small
//! generators: popularity that stays, shifts and drifts, loops, scans, sessions, companions, fashions. None of them claims to
//! be like anybody's traffic; together they show which patterns a policy does not understand.
//!
//! **What is tuned on.** Patterns stand in pairs of one kind. The first of each pair may be used for tuning, the second is
//! held out: it is looked at to report, not to choose.

mod patterns;

use std::str::FromStr;

use super::trace::{Trace, TraceBuilder};

/// A pattern of the catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    /// As it is written on a command line.
    pub name: &'static str,
    /// What it is like.
    pub about: &'static str,
    tables: usize,
    request: fn(&mut Draw<'_>),
}

/// How long a made trace is unless told otherwise.
const REQUESTS: usize = 50_000;
/// So many keys are enough for all policies in some seconds; who asks for more keys at a time has fewer requests.
const KEYS: usize = 300_000;

impl Made {
    /// All of them, in pairs: the first for tuning, the second held out.
    pub const ALL: &[Made] = patterns::ALL;

    /// Is it to be looked at only to report?
    pub fn held_out(&self) -> bool {
        Self::ALL.iter().position(|made| made.name == self.name).is_some_and(|at| at % 2 == 1)
    }

    /// How long it is unless told otherwise.
    pub fn requests(&self) -> usize {
        REQUESTS.min(KEYS / self.tables)
    }

    /// The trace; its name says that it is made. A shorter one is the beginning of a longer one.
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

/// One request after the other is drawn from this.
struct Draw<'a> {
    random: fastrand::Rng,
    /// The number of the request.
    at: u64,
    builder: &'a mut TraceBuilder,
    /// What a pattern carries from request to request; empty at first.
    state: Vec<u64>,
}

impl Draw<'_> {
    fn key(&mut self, table: usize, value: u64) {
        self.builder.key(table, &value.to_le_bytes());
    }

    /// A rank from 0 to `rows - 1`, by inversion of the continuous power law; `steepness` is not 1.
    fn zipf(&mut self, rows: u64, steepness: f64) -> u64 {
        super::synthetic::zipf(rows, steepness, &mut self.random)
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.f64() < probability
    }

    /// How many times so many requests have passed.
    fn phase(&self, requests: u64) -> u64 {
        self.at / requests
    }

    /// Where a loop of this length is.
    fn looped(&self, length: u64) -> u64 {
        self.at % length
    }

    /// Who has this rank now, if each rank goes to another key once in so many requests, one rank after the other.
    fn drifted(&self, rank: u64, requests: u64) -> u64 {
        let turn = (self.at + scatter(rank, 0) % requests) / requests;
        scatter(rank, 1 + turn)
    }
}

/// A number without any structure for each pair; what is drawn by rank is strewn by it.
fn scatter(value: u64, salt: u64) -> u64 {
    let mixed = value.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.rotate_right(20);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}
