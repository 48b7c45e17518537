//! What is counted rather than compared: memory of the index, and the time until a device is open again.

use std::{path::Path, time::Instant};

use anyhow::ensure;
use forebay_core::ByteSize;
use forebay_flash::{
    index::{Fingerprint, GroupId, Index, Location},
    io::Backend,
    layout::{EntryShape, REGION_SIZE_MAX, RegionId},
};
use forebay_measure::{Row, Target, evaluate};

use super::engine::{fill, key, open, payload};
use crate::output;

const ENTRIES: u64 = 10_000_000;

/// Bytes of memory for an entry, with ten million of them.
pub fn index() -> Vec<Row> {
    output::note(&format!("an index of {ENTRIES} entries"));
    let size = EntryShape::of(4 << 10).size();
    let in_region = REGION_SIZE_MAX / size - 1;
    let place = |number: u64| {
        let region = u32::try_from(number / in_region).expect("few regions");
        Location::new(RegionId(region), 4096 + number % in_region * size, size)
    };
    let mut hashed = Index::default();
    // What a region keeps to find its entries again when it goes.
    let mut lows: Vec<Vec<u32>> = Vec::new();
    for number in 0..ENTRIES {
        let key = key(number);
        hashed.insert(&key, place(number));
        if number % in_region == 0 {
            lows.push(Vec::new());
        }
        lows.last_mut().expect("just made").push(Fingerprint::of(&key).low());
    }
    let lows: usize = lows.iter().map(|lows| lows.capacity() * size_of::<u32>()).sum();
    let mut dense = Index::default();
    for number in 0..ENTRIES {
        dense.insert_ordinal(GroupId(0), number, place(number));
    }
    let row = |name: &str, memory: usize, most: f64| {
        let each = memory as f64 / ENTRIES as f64;
        let title = format!("index, {name}, {ENTRIES} entries");
        let against = format!("{most} bytes an entry");
        evaluate(&title, "bytes", &against, Target::AtMost(1.0), &[(each, most)])
    };
    vec![row("dense", dense.memory(), 16.0), row("hashed", hashed.memory() + lows, 32.0)]
}

/// Seconds until a device is open again on which so much is sealed.
pub async fn restart(
    directory: &Path,
    title: &str,
    sealed: ByteSize,
    item: usize,
    times: usize,
) -> anyhow::Result<Row> {
    output::note(title);
    let path = directory.join("restart");
    let capacity = ByteSize(sealed.0 + sealed.0 / 8);
    let items = sealed.0 / item as u64;
    let flash = open(&path, capacity, Backend::Auto)?;
    let group = flash.group(b"sealed", 1, false).await?;
    fill(&group, &payload(item), 0..items, 32).await?;
    // Something that nobody has sealed, as there always is.
    let other = flash.group(b"open", 1, false).await?;
    for number in items..items + 100 {
        other.append(key(number), 0, payload(item)).await?;
    }
    drop((group, other, flash));
    let mut measured = Vec::new();
    for _ in 0..times {
        let started = Instant::now();
        let flash = open(&path, capacity, Backend::Auto)?;
        let last = flash.read(key(items - 1), None).await?;
        measured.push((started.elapsed().as_secs_f64(), 1.0));
        ensure!(last.is_some() && flash.found()[0].entries >= items, "sealed, and not found again");
        for number in (0..items).step_by(1000) {
            ensure!(flash.contains(&key(number)), "sealed, and not found again");
        }
    }
    std::fs::remove_file(&path)?;
    Ok(evaluate(title, "s", "1 s", Target::AtMost(1.0), &measured))
}
