//! Rows of numbers, in two forms: serialised row by row as a general serialiser does, and flat.
//!
//! A serialised row is its number of columns and the columns. It is decoded into a row of its own.
//! Flat rows are used where they lie.

use std::{io::Write as _, path::Path};

use anyhow::{Context as _, ensure};
use forebay_core::{ByteSize, streams::Lifetime};
use forebay_streams::{CreateOptions, FullPolicy, StoreConfig};

use crate::workload::COLUMNS;

/// Rows of a block. A block of either form is shorter than 4 MiB.
pub const BLOCK_ROWS: usize = 28_000;
/// Length of a flat block, and of a serialised one.
pub const FLAT_LENGTH: usize = BLOCK_ROWS * COLUMNS * 8;
pub const SERIALISED_LENGTH: usize = BLOCK_ROWS * (4 + COLUMNS * 8);

/// Names of the files and of the streams.
pub const FLAT: &str = "flat";
pub const SERIALISED: &str = "serialised";
/// Name of the store's directory.
pub const STORE: &str = "store";

type Row = [f64; COLUMNS];

/// Blocks of random rows whose features tell their label, the same in every run.
fn blocks(count: u64) -> impl Iterator<Item = Vec<Row>> {
    let mut random = fastrand::Rng::with_seed(5);
    let mut noise = move || random.f64() + random.f64() + random.f64() - 1.5;
    let direction: Row = std::array::from_fn(|_| noise());
    (0..count).map(move |_| {
        let row = |_| {
            let mut row: Row = std::array::from_fn(|_| 2.0 * noise());
            let side: f64 = row.iter().zip(&direction).skip(1).map(|(x, y)| x * y).sum();
            row[0] = if side + noise() > 0.0 { 1.0 } else { -1.0 };
            row
        };
        (0..BLOCK_ROWS).map(row).collect()
    })
}

fn flat(rows: &[Row]) -> Vec<u8> {
    rows.iter().flatten().flat_map(|number| number.to_le_bytes()).collect()
}

fn serialised(rows: &[Row]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SERIALISED_LENGTH);
    for row in rows {
        bytes.extend(u32::try_from(COLUMNS).expect("few").to_le_bytes());
        bytes.extend(row.iter().flat_map(|number| number.to_le_bytes()));
    }
    bytes
}

/// Decodes a serialised block into rows of their own.
pub fn decode(mut block: &[u8]) -> anyhow::Result<Vec<Vec<f64>>> {
    let mut rows = Vec::new();
    while let Some((count, rest)) = block.split_first_chunk() {
        let length = u32::from_le_bytes(*count) as usize * 8;
        ensure!(length <= rest.len(), "a row of {length} bytes ends after {}", rest.len());
        let (row, rest) = rest.split_at(length);
        rows.push(row.as_chunks().0.iter().map(|number| f64::from_le_bytes(*number)).collect());
        block = rest;
    }
    Ok(rows)
}

/// Writes `size` of rows into a directory: two files, and a store with two streams.
pub fn write(directory: &Path, size: ByteSize) -> anyhow::Result<()> {
    let count = size.0.div_ceil(FLAT_LENGTH as u64);
    let capacity = ByteSize((2 * count + 34) * (4 << 20));
    let store = StoreConfig::new(directory.join(STORE), capacity).open()?;
    let kept = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };
    let write = |name: &str, encode: fn(&[Row]) -> Vec<u8>| -> anyhow::Result<()> {
        let mut file = std::fs::File::create(directory.join(name)).context("write the rows")?;
        let mut stream = store.create(name, kept)?;
        for rows in blocks(count) {
            let block = encode(&rows);
            file.write_all(&block)?;
            stream.append(&block)?;
        }
        file.sync_all()?;
        stream.seal()?;
        Ok(())
    };
    write(FLAT, flat)?;
    write(SERIALISED, serialised)
}
