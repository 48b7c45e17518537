//! How fast batches are drawn and yielded: `cargo run --release -p forebay-core --example sampler_rate`.
//!
//! 1.3 million items, about as many as the best-known dataset of images has, in 10 and 35 chunks, under what costs a sampler least and
//! most: everything resident, a share of it held, two chunks rotating, nothing resident at all.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and tells")]

use std::{error::Error, time::Instant};

use forebay_core::{
    DatasetId, ItemOrdinal,
    chunking::ChunkOrdinal,
    sampler::{Layout, Plan, Sampler, Source},
};

const ITEMS: u32 = 1_300_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!("chunks  batch  resident             items/s  hits    state");
    for chunks in [10, 35] {
        let of_item = (0..ITEMS).map(|item| ChunkOrdinal(item % chunks));
        let layout = Layout::new(DatasetId::from_bytes([1; 32]), chunks, of_item)?;
        for batch in [32, 256] {
            for case in ["everything", "half held", "two rotate", "nothing"] {
                run(&layout, batch, case)?;
            }
        }
    }
    Ok(())
}

fn run(layout: &Layout, batch: u32, case: &str) -> Result<(), Box<dyn Error>> {
    let chunks = layout.chunks();
    let began = Instant::now();
    let mut sampler = Sampler::new(layout, Plan::new(7, 0, batch))?;
    let held: Vec<ChunkOrdinal> = (0..chunks / 2).map(ChunkOrdinal).collect();
    if case == "half held" {
        sampler.open(&held, &[])?;
    }
    let mut next = 2;
    let mut rotating = vec![ChunkOrdinal(0), ChunkOrdinal(1)];
    if case == "two rotate" {
        sampler.open(&[], &rotating)?;
    }
    let mut state = 0;
    let mut hits = 0_u64;
    loop {
        let drawn = match case {
            "everything" => sampler.draw(|_| true),
            "nothing" => sampler.draw(|_| false),
            "half held" => sampler.draw(|item| chunk(item, chunks) < chunks / 2),
            // A third has not arrived yet.
            _ => sampler.draw(|item| (item.0 / u64::from(chunks)) % 3 > 0),
        };
        let Some(drawn) = drawn else { break };
        hits += u64::from(drawn.count(Source::Resident));
        let released = sampler.yielded(drawn.number())?;
        if drawn.number() == sampler.batches() / 2 {
            state = sampler.state().encode().len();
        }
        if case == "two rotate" && !released.is_empty() {
            rotating.retain(|chunk| !released.contains(chunk));
            while rotating.len() < 2 && next < chunks {
                rotating.push(ChunkOrdinal(next));
                next += 1;
            }
            sampler.open(&[], &rotating)?;
        }
    }
    let rate = f64::from(ITEMS) / began.elapsed().as_secs_f64();
    let share = hits as f64 / f64::from(ITEMS) * 100.0;
    println!("{chunks:6}  {batch:5}  {case:14} {rate:13.0}  {share:3.0} %  {state:6} B");
    Ok(())
}

fn chunk(item: ItemOrdinal, chunks: u32) -> u32 {
    u32::try_from(item.0).unwrap_or(u32::MAX) % chunks
}
