//! A synthetic trace with the published properties of Criteo-Kaggle, whose rows may not be
//! redistributed.
//!
//! Published: the cardinalities of its 26 tables, that half of the rows of a small sample repeat a
//! key of the largest table, and which tables' keys determine others'. Everything else is invented:
//! keys are drawn by Zipf's law, independently per request, so there is no drift, no session and no
//! daily rhythm. Results show policies under stationary popularity only.

use super::trace::{Trace, TraceBuilder};

/// Rows of C1 to C26.
const CARDINALITIES: [u64; 26] = [
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194, 27,
    14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
];

/// `(from, to)`: the key of table C`from` determines that of C`to`. In topological order.
const IMPLIED: [(usize, usize); 10] = [
    (3, 12),
    (12, 21),
    (21, 16),
    (16, 4),
    (4, 24), // the chain of the largest tables
    (7, 13),
    (15, 18),
    (15, 14),
    (18, 2),
    (11, 13),
];

/// Exponent of the popularity. With it, about 7,230 of 14,624 requests repeat a key of C3, as in
/// the real sample.
const ZIPF: f64 = 1.09;

/// Parameters of the trace.
#[derive(Debug, Clone, Copy)]
pub struct Criteo {
    /// Number of requests.
    pub requests: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Criteo {
    /// Generates the trace, named `synthetic-criteo`.
    pub fn generate(self) -> Trace {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut builder = TraceBuilder::new("synthetic-criteo");
        builder.synthetic = true;
        for table in 1..=CARDINALITIES.len() {
            builder.table(&format!("C{table}"));
        }
        let mut keys = [0; CARDINALITIES.len()];
        for _ in 0..self.requests {
            for (key, rows) in keys.iter_mut().zip(CARDINALITIES) {
                *key = zipf(rows, ZIPF, &mut random);
            }
            for (from, to) in IMPLIED {
                if (from, to) == (11, 13) {
                    // C7 and C11 both determine C13: C11 is drawn among the keys that agree with
                    // C7.
                    let [c11, c13] = [11, 13].map(|table: usize| CARDINALITIES[table - 1]);
                    let drawn = keys[10] / c13 * c13 + keys[12];
                    keys[10] = if drawn < c11 { drawn } else { keys[12] };
                } else {
                    keys[to - 1] = image(keys[from - 1], from, CARDINALITIES[to - 1]);
                }
            }
            for (table, key) in keys.iter().enumerate() {
                builder.key(table, &key.to_le_bytes());
            }
            builder.end_request();
        }
        builder.build()
    }
}

/// A fixed pseudo-random function from the keys of one table to those of another.
fn image(key: u64, table: usize, rows: u64) -> u64 {
    let mixed = (key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (table as u64) << 56;
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 29)) % rows
}

/// A rank from 0 to `rows - 1`, by inversion of the continuous power law; `steepness` is not 1.
pub(super) fn zipf(rows: u64, steepness: f64, random: &mut fastrand::Rng) -> u64 {
    let power = 1.0 - steepness;
    let last = ((rows + 1) as f64).powf(power);
    let rank = (1.0 + random.f64() * (last - 1.0)).powf(1.0 / power);
    (rank as u64).clamp(1, rows) - 1
}
