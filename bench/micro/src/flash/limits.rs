//! Absolute limits: memory of the index, and the time until a device is open after a restart.

use std::{path::Path, time::Instant};

use anyhow::ensure;
use forebay_bench_stats::{Row, Target, evaluate};
use forebay_core::ByteSize;
use forebay_flash::{
    format::{EntryShape, REGION_SIZE_MAX, RegionId},
    index::{Fingerprint, GroupId, Index, Location},
    io::Backend,
};

use super::engine::{fill, key, open, payload};
use crate::note;

const ENTRIES: u64 = 10_000_000;

/// Bytes of memory per entry, with 10 million entries.
pub fn index() -> Vec<Row> {
    note(&format!("an index of {ENTRIES} entries"));
    let size = EntryShape::of(4 << 10).size();
    let in_region = REGION_SIZE_MAX / size - 1;
    let location = |number: u64| {
        let region = u32::try_from(number / in_region).expect("few regions");
        Location::new(RegionId(region), 4096 + number % in_region * size, size)
    };
    let mut hashed = Index::default();
    // Per region: the low halves of fingerprints, by which it finds its entries on eviction.
    let mut lows: Vec<Vec<u32>> = Vec::new();
    for number in 0..ENTRIES {
        let key = key(number);
        hashed.insert(&key, location(number));
        if number % in_region == 0 {
            lows.push(Vec::new());
        }
        lows.last_mut()
            .expect("the first entry of a region makes it")
            .push(Fingerprint::of(&key).low());
    }
    let lows: usize = lows.iter().map(|lows| lows.capacity() * size_of::<u32>()).sum();
    let mut dense = Index::default();
    for number in 0..ENTRIES {
        dense.insert_ordinal(GroupId(0), number, location(number));
    }
    let row = |name: &str, memory: usize, most: f64| {
        let each = memory as f64 / ENTRIES as f64;
        let title = format!("index, {name}, {ENTRIES} entries");
        let against = format!("{most} bytes an entry");
        evaluate(&title, "bytes", &against, Target::AtMost(1.0), &[(each, most)])
    };
    vec![row("dense", dense.memory(), 16.0), row("hashed", hashed.memory() + lows, 32.0)]
}

/// Seconds until a device with `sealed` bytes in sealed regions is open after a restart.
pub async fn restart(
    directory: &Path,
    title: &str,
    sealed: ByteSize,
    item: usize,
    times: usize,
) -> anyhow::Result<Row> {
    note(title);
    let path = directory.join("restart");
    let capacity = ByteSize(sealed.0 + sealed.0 / 8);
    let items = sealed.0 / item as u64;
    let flash = open(&path, capacity, Backend::Auto)?;
    let group = flash.group(b"sealed", 1, false).await?;
    fill(&group, &payload(item), 0..items, 32).await?;
    // A device in use always has an unsealed region.
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
        ensure!(
            last.is_some() && flash.recovery_reports()[0].entries >= items,
            "a sealed item is missing after the restart"
        );
        for number in (0..items).step_by(1000) {
            ensure!(flash.contains(&key(number)), "a sealed item is missing after the restart");
        }
    }
    std::fs::remove_file(&path)?;
    Ok(evaluate(title, "s", "1 s", Target::AtMost(1.0), &measured))
}
