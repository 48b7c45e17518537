//! Integration tests: tables on real files, compared with a model that has every row in memory.
//!
//! Every test is seeded: `SEED=n` replays one seed, `SEEDS=n` runs `n` of them.

#![expect(clippy::float_cmp, reason = "rows are copied, or sums of few small numbers")]

use forebay_core::ByteSize;
use forebay_embeddings::{OpenError, Options, Source, Tables};

mod concurrent;
mod files;
mod lookups;
mod memory;
mod model;
mod prefetch;
mod quantised;

/// Opens tables with `rows_bytes` of memory for rows beside what the bookkeeping takes at least.
fn open(sources: &[Source], options: Options, rows_bytes: u64) -> Tables {
    let least = match Tables::open(sources, &Options { memory: ByteSize(1), ..options }) {
        Err(OpenError::TooLittle { least, .. }) => least,
        Err(error) => panic!("{error}"),
        Ok(_) => 0,
    };
    let memory = ByteSize(if rows_bytes == 0 { 0 } else { least + rows_bytes });
    Tables::open(sources, &Options { memory, ..options }).expect("the memory is enough")
}

/// The seeds of one test, `count` by default.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}
