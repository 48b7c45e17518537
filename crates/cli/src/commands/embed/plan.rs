//! `forebay embed plan`: what a memory size gives on a trace, or what a goal takes.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use forebay_core::ByteSize;
use forebay_embeddings::{format::Dtype, memory_without_buffers};
use forebay_sim::embeddings::{self, CacheShare, MemoryPlanner, PlannedMemory};
use serde::Serialize;

use super::{LoadArgs, load};
use crate::output::{self, Format, Verdict};

pub const EXAMPLES: &str = "\
Examples:
  forebay embed plan lookups.csv --dimension 36 --memory 256MiB,1GiB,2GiB
  forebay embed plan lookups.csv --dimension 64 --dtype int4 --perfect 50%";

/// What to plan.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("goal").required(true).args(["memory", "perfect"]))]
pub struct Args {
    /// A file, `synthetic-criteo`, or `made:NAME`, as for `forebay embed sim`.
    trace: PathBuf,
    /// Numbers in a row of every table.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    dimension: u32,
    /// Type of the rows.
    ///
    /// Types: float32, float64, float16, bfloat16, int8, int4, int8-tbe, int4-tbe.
    #[arg(long, value_name = "NAME", default_value = "float32")]
    dtype: Dtype,
    /// Show what these memory sizes give.
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    memory: Vec<ByteSize>,
    /// Find the least memory with this share of perfect hits.
    #[arg(long, value_name = "SHARE")]
    perfect: Option<CacheShare>,
    /// Read the file in this format [default: by the name of the file].
    #[arg(long, value_name = "NAME")]
    trace_format: Option<embeddings::Format>,
    /// Use only the first N requests.
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=super::REQUESTS_MAX))]
    requests: Option<u64>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// A plan, with the `memory` to give to the tables.
#[derive(Debug, Serialize)]
struct Planned {
    memory: u64,
    #[serde(flatten)]
    plan: PlannedMemory,
}

pub fn run(args: &Args) -> anyhow::Result<Verdict> {
    let trace = load(&LoadArgs {
        trace: &args.trace,
        trace_format: args.trace_format,
        requests: args.requests,
        seed: 0,
    })?;
    let row_bytes = args.dtype.row_bytes(u64::from(args.dimension));
    let row_bytes = u32::try_from(row_bytes).map_err(|_| anyhow!("a row is too long"))?;
    let planner = MemoryPlanner { trace: &trace, row_bytes };
    let mut plans = Vec::new();
    for memory in &args.memory {
        let Some(plan) = planner.at(memory_without_buffers(*memory)) else {
            bail!("`--memory {memory}` is too little for a row and its bookkeeping; give more");
        };
        plans.push(Planned { memory: memory.0, plan });
    }
    if let Some(goal) = args.perfect {
        let share = goal.of(1_000_000) as f64 / 1e6;
        let Some(plan) = planner.for_perfect(share) else {
            bail!(
                "{goal} of perfect hits is out of reach: with all rows in memory, requests for new \
                 rows still miss; ask for less"
            );
        };
        plans.push(Planned { memory: with_buffers(plan.memory_bytes), plan });
    }
    match args.format {
        Format::Json => output::json(&plans)?,
        Format::Text => output::data(&describe(&plans))?,
    }
    Ok(Verdict::Yes)
}

/// The memory that leaves this much beside the buffers.
fn with_buffers(memory: u64) -> u64 {
    let mut with = memory;
    while memory_without_buffers(ByteSize(with)).0 < memory {
        with += memory - memory_without_buffers(ByteSize(with)).0;
    }
    with
}

fn describe(plans: &[Planned]) -> String {
    let percent = |share: f64| format!("{:.2}", share * 100.0);
    let row = |Planned { memory, plan }: &Planned| {
        let books = plan.bookkeeping;
        vec![
            ByteSize(*memory).rounded(),
            percent(plan.hits.perfect_rate()),
            percent(plan.hits.hit_rate()),
            plan.rows.to_string(),
            percent(plan.row_bytes as f64 / plan.tables_bytes as f64),
            ByteSize(plan.row_bytes).rounded(),
            ByteSize(books.directory).rounded(),
            ByteSize(books.ghosts).rounded(),
            ByteSize(books.tuning).rounded(),
        ]
    };
    let header = [
        "MEMORY",
        "PERFECT %",
        "HITS %",
        "ROWS",
        "% OF ALL",
        "IN ROWS",
        "DIRECTORY",
        "GHOSTS",
        "TUNING",
    ];
    output::table(&header, &plans.iter().map(row).collect::<Vec<_>>())
}
