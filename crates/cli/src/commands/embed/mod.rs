//! `forebay embed`: simulates policies for embedding rows on traces, and inspects files of tables.

mod inspect;
mod plan;
mod quantize;
mod synthetic;

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, anyhow, bail};
use forebay_core::embeddings::{PolicyKind, PolicyKindError, TableId};
use forebay_sim::embeddings::{
    self, CacheShare, Cost, Criteo, Report, Simulation, Trace, TraceError,
};
use serde::Serialize;

use crate::{
    generated_page::GeneratedPage,
    output::{self, Format, Verdict},
};

/// The name of the synthetic Criteo trace.
const SYNTHETIC: &str = "synthetic-criteo";

/// Default length of the synthetic trace.
const SYNTHETIC_REQUESTS: u64 = 200_000;

/// Largest number of requests. They are kept in memory: the keys of 20 million take 4 GB.
const REQUESTS_MAX: u64 = 20_000_000;

/// Pairs of runs whose median is the cost.
const COST_PAIRS: usize = 5;

/// Compare policies for embedding rows on traces; inspect and quantize files of tables.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run policies on a trace, and count perfect hits: requests with all rows in memory.
    ///
    /// TRACE is a CSV file, a file in another known format, plain or compressed, or a generated
    /// trace (`forebay embed traces` lists them). In a CSV file with a header, a column is a table
    /// and a line is a request. A cell such as `Comedy|Drama` names several rows, an empty cell
    /// none.
    ///
    /// The report shows perfect and individual hits. The first fifth of the trace is the warm-up
    /// and is not counted. For `made:all`, `made:tuning` and `made:held-out` it compares the policy
    /// `group` with the best other policy on many generated traces.
    #[command(after_help = EXAMPLES)]
    Sim(SimArgs),
    /// List the policies.
    #[command(after_help = "Examples:\n  forebay embed policies")]
    Policies(PoliciesArgs),
    /// List the generated traces.
    #[command(after_help = "Examples:\n  forebay embed traces")]
    Traces(synthetic::Args),
    /// Reproduce the claims about EVStore's cache, and compare with the published ones.
    ///
    /// Takes a few minutes. Prints Markdown, or replaces a section of a page and writes the plots
    /// beside it.
    #[command(after_help = REPRODUCE_EXAMPLES)]
    Reproduce(ReproduceArgs),
    /// Show what a memory size gives on a trace, or how much memory a goal takes.
    ///
    /// Simulates the policy `group`. The memory includes bookkeeping and kept buffers, as the
    /// `memory` of the tables does. The tables are the rows that the trace requests.
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::Args),
    /// Show the tables of a file, read from its header.
    #[command(after_help = inspect::EXAMPLES)]
    Inspect(inspect::Args),
    /// Write a table again in fewer bits, to be served without conversion.
    ///
    /// Reads float32, float16 or bfloat16. Prints the row error: the norm of the difference divided
    /// by the norm of the row. A row with NaN or infinity is an error, and no file is written.
    #[command(after_help = quantize::EXAMPLES)]
    Quantize(quantize::Args),
}

const EXAMPLES: &str = "\
Examples:
  forebay embed sim synthetic-criteo --requests 20000
  forebay embed sim lookups.csv --policy all --cache 1%,5%,20% --plot hits.svg
  forebay embed sim lookups.csv --policy s3-fifo,group --format json
  forebay embed sim lookups.csv --policy group --cache 5% --cost
  forebay embed sim synthetic-criteo --policy group --bundles --prefetch C3
  forebay embed sim made:all --policy all";

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  forebay embed reproduce
  forebay embed reproduce lookups.csv --page docs/results/reproductions.md";

/// What to simulate.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct SimArgs {
    /// A file, `synthetic-criteo`, or `made:NAME`.
    trace: PathBuf,
    /// Use these policies, separated by commas, or `all` (`forebay embed policies` lists them).
    #[arg(long, value_name = "NAMES", default_value = "lru,ev-lfu,group")]
    policy: Policies,
    /// Use these cache sizes, as shares of the working set of the trace.
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "1%,2%,5%,10%,20%")]
    cache: Vec<CacheShare>,
    /// Read the file in this format [default: by the name of the file].
    ///
    /// Formats: csv, nycflights, kdd99, movielens, u32, i64, pages.
    #[arg(long, value_name = "NAME")]
    trace_format: Option<embeddings::Format>,
    /// Use only the first N requests.
    ///
    /// [default: all of a file, 200000 of `synthetic-criteo`, up to 50000 of `made:NAME`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=REQUESTS_MAX))]
    requests: Option<u64>,
    /// Also run the trace a second time, and count all of it.
    #[arg(long)]
    replay: bool,
    /// Simulate prefetching for these tables, whose keys are known one request in advance.
    ///
    /// Their rows, and the rows of keys that they imply, are fetched ahead.
    #[arg(long, value_name = "TABLES", value_delimiter = ',')]
    prefetch: Vec<String>,
    /// Also show the implications between tables that `group` has learned.
    #[arg(long)]
    bundles: bool,
    /// Leave out the bounds, which take long to compute.
    ///
    /// They are an infinite cache, Belady's choice for each table alone, and the best fixed set of
    /// rows.
    #[arg(long)]
    no_bounds: bool,
    /// Measure the time of decisions compared with LRU, instead of counting hits.
    #[arg(long, conflicts_with_all = ["replay", "no_bounds", "plot", "prefetch", "bundles"])]
    cost: bool,
    /// Write a plot of perfect hits over cache sizes to this file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Use this random seed, for generated traces and for policies.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Options of `embed policies`.
#[derive(Debug, clap::Args)]
pub struct PoliciesArgs {
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What to reproduce, and where to write it.
#[derive(Debug, clap::Args)]
pub struct ReproduceArgs {
    /// Also use these traces.
    traces: Vec<PathBuf>,
    /// Use this number of requests of `synthetic-criteo`.
    #[arg(long, value_name = "N", default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(1..=REQUESTS_MAX))]
    requests: u64,
    /// Replace the section `<!-- begin embeddings … -->` to `<!-- end embeddings -->` of this page.
    #[arg(long, value_name = "FILE.md")]
    page: Option<PathBuf>,
}

/// Policies of the command line.
#[derive(Debug, Clone)]
struct Policies(Vec<PolicyKind>);

impl FromStr for Policies {
    type Err = PolicyKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self(PolicyKind::ALL.to_vec()));
        }
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

pub fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::Sim(args) => simulate(&args),
        Command::Policies(args) => list(&args),
        Command::Traces(args) => synthetic::list(&args),
        Command::Reproduce(args) => reproduce(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Quantize(args) => quantize::run(&args),
    }
}

fn simulate(args: &SimArgs) -> anyhow::Result<Verdict> {
    if let Some(plot) = &args.plot {
        output::check_plot_path(plot, &args.trace)?;
    }
    if let Some(group) = synthetic::find_group(&args.trace) {
        return synthetic::compare(&group, args);
    }
    let trace = load(&LoadArgs {
        trace: &args.trace,
        trace_format: args.trace_format,
        requests: args.requests,
        seed: args.seed,
    })?;
    let mut simulation = simulation(args);
    simulation.replay = args.replay;
    simulation.bounds = !args.no_bounds;
    simulation.prefetch = find_tables(&distinct(&args.prefetch), &trace)?;
    if args.cost {
        return report_costs(&simulation, &trace, args.format);
    }
    let report = run_with_bar(&simulation, &trace);
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text if args.bundles => output::data(&(report.text() + &report.bundles_text()))?,
        Format::Text => output::data(&report.text())?,
    }
    // Last, so that a failed write loses no result.
    if let Some(plot) = &args.plot {
        fs::write(plot, report.svg())
            .with_context(|| format!("cannot write `{}`", plot.display()))?;
    }
    Ok(Verdict::Yes)
}

/// The requested policies at the requested sizes.
fn simulation(args: &SimArgs) -> Simulation {
    let mut simulation = Simulation::new(distinct(&args.policy.0));
    simulation.shares = distinct(&args.cache);
    simulation.seed = args.seed;
    simulation
}

/// Finds tables of the trace by name.
fn find_tables(names: &[String], trace: &Trace) -> anyhow::Result<Vec<TableId>> {
    let find = |name: &String| {
        let position = trace.tables().iter().position(|table| table.name == name.trim());
        let id = position.and_then(|position| u16::try_from(position).ok());
        id.map(TableId).ok_or_else(|| {
            let known: Vec<&str> = trace.tables().iter().map(|table| &*table.name).collect();
            anyhow!(
                "the trace has no table `{}`; it has {}",
                name.escape_debug(),
                known.join(", ").escape_debug()
            )
        })
    };
    names.iter().map(find).collect()
}

/// Runs a simulation with a progress bar.
fn run_with_bar(simulation: &Simulation, trace: &Trace) -> Report {
    let bar = output::share_bar(trace.name());
    let report = simulation.run_watched(trace, &mut |share| output::set_share(&bar, share));
    bar.finish_and_clear();
    report
}

fn reproduce(args: &ReproduceArgs) -> anyhow::Result<Verdict> {
    // A page without the section is an error before the long computation.
    let page =
        args.page.as_deref().map(|path| GeneratedPage::read(path, "embeddings")).transpose()?;
    let requests = count(args.requests);
    let mut traces = vec![Criteo { requests, seed: 1 }.generate()];
    for path in &args.traces {
        traces.push(embeddings::load(path)?);
    }
    let section = embeddings::reproduce::embeddings(&traces, &mut |simulation, trace| {
        run_with_bar(simulation, trace)
    });
    match page {
        // Without a page there are no plots.
        None => {
            let lines = section.text.lines().filter(|line| !line.starts_with("!["));
            output::data(&lines.map(|line| format!("{line}\n")).collect::<String>())?;
        }
        Some(page) => page.write(&section)?,
    }
    Ok(Verdict::Yes)
}

/// Each value once, in the order of its first occurrence.
fn distinct<T: PartialEq + Clone>(values: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for value in values {
        if !kept.contains(value) {
            kept.push(value.clone());
        }
    }
    kept
}

fn count(requests: u64) -> usize {
    usize::try_from(requests).unwrap_or(usize::MAX)
}

/// Which trace, and how much of it.
struct LoadArgs<'a> {
    trace: &'a Path,
    trace_format: Option<embeddings::Format>,
    requests: Option<u64>,
    seed: u64,
}

fn load(args: &LoadArgs<'_>) -> anyhow::Result<Trace> {
    let generated = synthetic::find(args.trace)?;
    if args.trace_format.is_some() && (generated.is_some() || args.trace == Path::new(SYNTHETIC)) {
        let name = args.trace.display();
        bail!("--trace-format is for files, and `{name}` is generated; for a file, use ./{name}");
    }
    if let Some(generated) = generated {
        let requests = args.requests.map_or_else(|| generated.requests(), count);
        return Ok(generated.generate(requests, synthetic::seed(args.seed)));
    }
    if args.trace == Path::new(SYNTHETIC) {
        let requests = count(args.requests.unwrap_or(SYNTHETIC_REQUESTS));
        return Ok(Criteo { requests, seed: synthetic::seed(args.seed) }.generate());
    }
    let format = args.trace_format.unwrap_or_else(|| embeddings::Format::of(args.trace));
    let trace = embeddings::load_as(args.trace, format).map_err(|error| match &error {
        TraceError::Missing { path } => {
            anyhow!(
                "there is no file `{}`; use a file, or `{SYNTHETIC}`, or another generated trace \
                 (`forebay embed traces`)",
                path.display()
            )
        }
        TraceError::Line { .. } | TraceError::Content { .. } => {
            anyhow!("{error} (read as {}; --trace-format names another format)", format.name())
        }
        _ => error.into(),
    })?;
    Ok(match args.requests {
        Some(requests) => trace.first(count(requests)),
        None => trace,
    })
}

/// The cost of a policy at a cache size.
#[derive(Debug, Serialize)]
struct CostAt {
    share: CacheShare,
    #[serde(flatten)]
    cost: Cost,
}

fn report_costs(simulation: &Simulation, trace: &Trace, format: Format) -> anyhow::Result<Verdict> {
    let at = |&share: &CacheShare| {
        let costs = simulation.cost(trace, share, COST_PAIRS);
        costs.into_iter().map(move |cost| CostAt { share, cost })
    };
    let costs: Vec<CostAt> = simulation.shares.iter().flat_map(at).collect();
    let row = |CostAt { share, cost }: &CostAt| {
        vec![
            cost.policy.to_string(),
            share.to_string(),
            format!("{:.1}", cost.nanos_per_key),
            format!("{:.2}", cost.against_lru),
        ]
    };
    match format {
        Format::Json => output::json(&costs)?,
        Format::Text => {
            let rows: Vec<_> = costs.iter().map(row).collect();
            output::data(&output::table(&["POLICY", "CACHE", "NS PER KEY", "x LRU"], &rows))?;
        }
    }
    Ok(Verdict::Yes)
}

/// A policy of `embed policies`.
#[derive(Debug, Serialize)]
struct ListedPolicy {
    name: &'static str,
    about: &'static str,
}

fn list(args: &PoliciesArgs) -> anyhow::Result<Verdict> {
    let listed = PolicyKind::ALL.iter();
    let listed = listed.map(|kind| ListedPolicy { name: kind.name(), about: kind.about() });
    match args.format {
        Format::Json => output::json(&listed.collect::<Vec<_>>())?,
        Format::Text => {
            let lines = listed.map(|ListedPolicy { name, about }| format!("{name:<20}{about}\n"));
            output::data(&lines.collect::<String>())?;
        }
    }
    Ok(Verdict::Yes)
}
