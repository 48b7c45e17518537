//! Command that runs simulated worlds: some seeds, one seed with its events, or seeds without end.

#![expect(clippy::print_stdout, reason = "a command for a terminal")]

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Instant,
};

use clap::Parser;
use forebay_world::{Scale, run};

/// Run simulated worlds. Prints every failing seed. Example: `forebay-world --seeds 500`
#[derive(Debug, Parser)]
#[command(name = "forebay-world")]
struct Args {
    /// First seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Run seeds until one fails, or until this command is interrupted
    #[arg(long)]
    forever: bool,
    /// Run worlds of about 7,500 items and 50,000 messages
    #[arg(long)]
    large: bool,
    /// Print all events of each world
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scale = if args.large { Scale::Large } else { Scale::Ordinary };
    let end = if args.forever { u64::MAX } else { args.seed.saturating_add(args.seeds) };
    let (next, has_failed) = (AtomicU64::new(args.seed), AtomicBool::new(false));
    let (operations, began) = (AtomicU64::new(0), Instant::now());
    let messages = AtomicU64::new(0);
    let slowest_ms = AtomicU64::new(0);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end || (args.forever && has_failed.load(Relaxed)) {
                        return;
                    }
                    let outcome = run(seed, scale, args.trace);
                    let done = operations.fetch_add(outcome.operations, Relaxed);
                    messages.fetch_add(outcome.messages, Relaxed);
                    let took_ms = u64::try_from(outcome.slowest.as_millis()).unwrap_or(u64::MAX);
                    slowest_ms.fetch_max(took_ms, Relaxed);
                    outcome.kept.iter().for_each(|line| println!("{line}"));
                    if let Some(violation) = &outcome.violation {
                        println!("seed {seed} FAILED: {violation}");
                        has_failed.store(true, Relaxed);
                    } else if args.seeds == 1 && !args.forever {
                        let (events, items) = (outcome.events, outcome.operations);
                        let (hash, messages) = (&outcome.hash, outcome.messages);
                        println!(
                            "seed {seed}: hash {hash}, {events} events, {items} items, {messages} \
                             messages"
                        );
                    } else if seed % 100 == 99 {
                        println!("seeds up to {seed}, {done} items, {:?}", began.elapsed());
                    }
                }
            });
        }
    });
    let seeds = next.load(Relaxed).min(end) - args.seed;
    let (items, slowest) = (operations.load(Relaxed), slowest_ms.load(Relaxed));
    let took = began.elapsed();
    let messages = messages.load(Relaxed);
    println!(
        "{seeds} worlds, {items} items, {messages} messages, slowest batch {slowest} ms, {took:?}"
    );
    if has_failed.load(Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
