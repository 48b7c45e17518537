//! Micro-benchmarks: parts of the product against raw limits of this machine, Redis and nginx.
//!
//! `cargo xtask bench digest|embed|flash|stream|wire` builds this binary and `forebay`, and runs
//! it.
//! Both sides of a comparison run in adjacent pairs (`forebay-bench-stats`). Progress goes to
//! standard error, results to standard output. Exit codes: 0 if no target is missed, 1 if one is,
//! 2 if a benchmark failed.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

mod digest;
mod embed;
mod flash;
mod limited_side;
mod memory_limit;
mod product;
mod stream;
mod wire;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use forebay_bench_stats::{PAIRS, PAIRS_QUICK, Row, Verdict};

/// Measure parts of forebay against raw limits of this machine, Redis and nginx.
#[derive(Debug, Parser)]
#[command(name = "forebay-bench", version, after_help = EXAMPLES, max_term_width = 100)]
enum Command {
    /// Measure building and opening digests, against plain reads and plain hashing.
    ///
    /// Exit code 1 if a target is missed.
    Digest(digest::Args),
    /// Measure the device engine, against a bare loop of direct I/O on a file of the same size.
    ///
    /// Exit code 1 if a target is missed.
    Flash(flash::Args),
    /// Measure embedding lookups, against a copy in memory and a mapped file under one limit.
    ///
    /// The memory limit is a control group, which only root can make. Exit code 1 if a target is
    /// missed.
    Embed(embed::Args),
    #[command(hide = true)]
    EmbedSide(embed::side::Args),
    /// Measure streams, against bare loops, and under a memory limit against the page cache.
    ///
    /// The memory limit is a control group, which only root can make. Exit code 1 if a target is
    /// missed.
    Stream(stream::Args),
    #[command(hide = true)]
    StreamSide(stream::side::Args),
    /// Measure hits over TCP, Unix sockets and shared memory, against bare loops and the engine.
    ///
    /// Exit code 1 if a target is missed.
    Wire(wire::Args),
    #[command(hide = true)]
    WireBare(wire::BareArgs),
}

const EXAMPLES: &str = "\
Examples:
  forebay-bench digest --quick
  forebay-bench flash --device /mnt/nvme --only 'read 128 KiB'
  forebay-bench stream --device /mnt/nvme --size 8GiB
  forebay-bench wire --redis /usr/bin/redis-server --nginx /usr/sbin/nginx --format json";

/// Options of every benchmark.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Run 5 pairs instead of 15, with less data.
    #[arg(long)]
    quick: bool,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Common {
    fn pairs(&self) -> usize {
        if self.quick { PAIRS_QUICK } else { PAIRS }
    }
}

/// Format of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Format {
    /// A table.
    #[default]
    Text,
    /// An array of rows.
    Json,
}

/// Prints a line of progress.
fn note(text: &str) {
    eprintln!("{text}");
}

fn main() -> ExitCode {
    let outcome = run(Command::parse());
    match outcome {
        Ok(is_met) => ExitCode::from(u8::from(!is_met)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs a benchmark and prints its rows. Returns whether no target is missed.
fn run(command: Command) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (rows, format): (Vec<Row>, Format) = match command {
        Command::Digest(args) => (digest::run(&args)?, args.common.format),
        Command::Flash(args) => (runtime.block_on(flash::run(&args))?, args.common.format),
        Command::Embed(args) => (embed::run(&args)?, args.common.format),
        Command::Stream(args) => (stream::run(&args)?, args.common.format),
        Command::Wire(args) => (runtime.block_on(wire::run(&args))?, args.common.format),
        Command::WireBare(args) => return wire::serve_bare(&args).map(|()| true),
        Command::EmbedSide(args) => return embed::side::run(&args).map(|()| true),
        Command::StreamSide(args) => return stream::side::run(&args).map(|()| true),
    };
    match format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
        Format::Text => print!("{}", forebay_bench_stats::table(&rows)),
    }
    Ok(rows.iter().all(|row| row.verdict != Verdict::Missed))
}
