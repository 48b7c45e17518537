//! `forebay embed`: which embedding rows stay in memory, simulated on traces; and what table files hold.

mod inspect;
mod made;

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, anyhow, bail};
use forebay_core::embedding::{PolicyKind, PolicyKindError, TableId};
use forebay_sim::grouped::{self, CacheShare, Cost, Criteo, Report, Simulation, Trace, TraceError};
use serde::Serialize;

use crate::{
    output::{self, Format, Verdict},
    page::Page,
};

/// The trace that needs no file.
const SYNTHETIC: &str = "synthetic-criteo";

/// How long the synthetic trace is unless told otherwise.
const SYNTHETIC_REQUESTS: u64 = 200_000;

/// Requests are kept in memory; the keys alone of so many synthetic ones take 4 GB.
const REQUESTS_MAX: u64 = 20_000_000;

/// Costs are the median of so many pairs.
const COST_PAIRS: usize = 5;

/// Which embedding rows stay in memory.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run policies on a trace, and count the requests all of whose rows were in memory.
    ///
    /// TRACE is a file of columns (CSV with a header line: a column is a table, a line a request, a
    /// cell with bars such as `Comedy|Drama` several rows, an empty one none), a file of another
    /// format that we know, plain or packed, `synthetic-criteo`, or a made one (`forebay embed traces` lists
    /// these). Cells of the report are perfect and individual hits; the first fifth of the trace warms up and is
    /// not counted. Of many made ones (`made:all`, `made:tuning`, `made:held-out`) it is told how our policy does
    /// beside the best other.
    #[command(after_help = EXAMPLES)]
    Sim(SimArgs),
    /// List the policies.
    Policies(PoliciesArgs),
    /// List the traces that need no file.
    Traces(made::Args),
    /// Run what is published about EVStore's cache, and set it beside the published claims.
    ///
    /// Takes some minutes. Prints a section in Markdown, or puts it into a page that has a place for it,
    /// with the pictures beside it.
    Reproduce(ReproduceArgs),
    /// Show the tables in a file, from its header alone.
    Inspect(inspect::Args),
}

const EXAMPLES: &str = "\
Examples:
  forebay embed sim synthetic-criteo --requests 20000
  forebay embed sim lookups.csv --policy all --cache 1%,5%,20% --plot hits.svg
  forebay embed sim lookups.csv --policy s3-fifo,group --format json
  forebay embed sim lookups.csv --policy group --cache 5% --cost
  forebay embed sim synthetic-criteo --policy group --bundles --prefetch C3
  forebay embed sim made:all --policy all";

/// What to simulate.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub struct SimArgs {
    /// A file, `synthetic-criteo`, or `made:` with a name.
    trace: PathBuf,
    /// Names of policies, or `all` (`forebay embed policies` lists them).
    #[arg(long, value_name = "NAMES", default_value = "lru,ev-lfu,group")]
    policy: Policies,
    /// Cache sizes, as shares of the rows that the trace asks for.
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "1%,2%,5%,10%,20%")]
    cache: Vec<CacheShare>,
    /// What the file contains, where its name does not tell: csv, nycflights, kdd99, movielens, u32,
    /// i64 or pages.
    #[arg(long, value_name = "NAME")]
    trace_format: Option<grouped::Format>,
    /// Only so many requests, from the first [default: all of a file, 200000 synthetic ones, up to 50000 made ones].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=REQUESTS_MAX))]
    requests: Option<u64>,
    /// Also go through the trace a second time, and count all of it.
    #[arg(long)]
    replay: bool,
    /// The keys of these tables are known one request before the others: what does it gain to fetch their rows
    /// ahead, and those of the keys that they imply?
    #[arg(long, value_name = "TABLES", value_delimiter = ',')]
    prefetch: Vec<String>,
    /// Also show which tables' keys determine others', as `group` learned it.
    #[arg(long)]
    bundles: bool,
    /// Leave out the bounds, which take a while to find out: an infinite cache, which no policy beats; Belady's choice
    /// for each table by itself; and the best fixed set of rows, which is there from the start and never changes.
    #[arg(long)]
    no_bounds: bool,
    /// Measure what decisions cost beside LRU's, instead of counting hits.
    #[arg(long, conflicts_with_all = ["replay", "no_bounds", "plot", "prefetch", "bundles"])]
    cost: bool,
    /// Draw perfect hits over cache sizes.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Decides synthetic and made traces, and what policies leave to chance.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// How to list.
#[derive(Debug, clap::Args)]
pub struct PoliciesArgs {
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What to run, and where to put it.
#[derive(Debug, clap::Args)]
pub struct ReproduceArgs {
    /// Traces to run beside the synthetic one.
    traces: Vec<PathBuf>,
    /// How long the synthetic one is.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=REQUESTS_MAX))]
    requests: u64,
    /// A page with the lines `<!-- begin embeddings … -->` and `<!-- end embeddings -->`, between which it
    /// is put.
    #[arg(long, value_name = "FILE.md")]
    page: Option<PathBuf>,
}

/// Policies as they are named on the command line.
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
        Command::Traces(args) => made::list(&args),
        Command::Reproduce(args) => reproduce(&args),
        Command::Inspect(args) => inspect::run(&args),
    }
}

fn simulate(args: &SimArgs) -> anyhow::Result<Verdict> {
    if let Some(plot) = &args.plot {
        output::check_plot(plot, &args.trace)?;
    }
    if let Some(many) = made::many(&args.trace) {
        return made::compare(&many, args);
    }
    let trace = load(args)?;
    let mut simulation = simulation(args);
    simulation.replay = args.replay;
    simulation.bounds = !args.no_bounds;
    simulation.prefetch = named(&once(&args.prefetch), &trace)?;
    if args.cost {
        return report_costs(&simulation, &trace, args.format);
    }
    let report = watched(&simulation, &trace);
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text if args.bundles => output::data(&(report.text() + &report.bundles_text()))?,
        Format::Text => output::data(&report.text())?,
    }
    // Last: a picture that cannot be written takes nothing else with it.
    if let Some(plot) = &args.plot {
        fs::write(plot, report.svg()).with_context(|| format!("write `{}`", plot.display()))?;
    }
    Ok(Verdict::Yes)
}

/// The policies at the sizes that are asked for.
fn simulation(args: &SimArgs) -> Simulation {
    let mut simulation = Simulation::new(once(&args.policy.0));
    simulation.shares = once(&args.cache);
    simulation.seed = args.seed;
    simulation
}

/// The trace's tables of these names.
fn named(names: &[String], trace: &Trace) -> anyhow::Result<Vec<TableId>> {
    let find = |name: &String| {
        let place = trace.tables().iter().position(|table| table.name == name.trim());
        let id = place.and_then(|place| u16::try_from(place).ok());
        id.map(TableId).ok_or_else(|| {
            let there: Vec<&str> = trace.tables().iter().map(|table| &*table.name).collect();
            anyhow!(
                "the trace has no table `{}`; it has {}",
                name.escape_debug(),
                there.join(", ").escape_debug()
            )
        })
    };
    names.iter().map(find).collect()
}

/// Runs a simulation with a bar for whoever is watching.
fn watched(simulation: &Simulation, trace: &Trace) -> Report {
    let bar = output::share_bar(trace.name());
    let report = simulation.run_watched(trace, &mut |share| output::set_share(&bar, share));
    bar.finish_and_clear();
    report
}

fn reproduce(args: &ReproduceArgs) -> anyhow::Result<Verdict> {
    // A page without a place should be refused before, not after.
    let page = args.page.as_deref().map(|path| Page::read(path, "embeddings")).transpose()?;
    let requests = count(args.requests);
    let mut traces = vec![Criteo { requests, seed: 1 }.generate()];
    for path in &args.traces {
        traces.push(grouped::load(path)?);
    }
    let section = grouped::reproduce::embeddings(&traces, &mut |simulation, trace| {
        watched(simulation, trace)
    });
    match page {
        // Pictures go beside a page.
        None => {
            let words = section.text.lines().filter(|line| !line.starts_with("!["));
            output::data(&words.map(|line| format!("{line}\n")).collect::<String>())?;
        }
        Some(page) => page.write(&section)?,
    }
    Ok(Verdict::Yes)
}

/// Each value once, in the order in which they were first named.
fn once<T: PartialEq + Clone>(values: &[T]) -> Vec<T> {
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

fn load(args: &SimArgs) -> anyhow::Result<Trace> {
    let made = made::one(&args.trace)?;
    if args.trace_format.is_some() && (made.is_some() || args.trace == Path::new(SYNTHETIC)) {
        let name = args.trace.display();
        bail!("--trace-format is for files; `{name}` is made here (a file: ./{name})");
    }
    if let Some(made) = made {
        let requests = args.requests.map_or_else(|| made.requests(), count);
        return Ok(made.generate(requests, made::seed(args)));
    }
    if args.trace == Path::new(SYNTHETIC) {
        let requests = count(args.requests.unwrap_or(SYNTHETIC_REQUESTS));
        return Ok(Criteo { requests, seed: made::seed(args) }.generate());
    }
    let format = args.trace_format.unwrap_or_else(|| grouped::Format::of(&args.trace));
    let trace = grouped::load_as(&args.trace, format).map_err(|error| match &error {
        TraceError::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            anyhow!("there is no file `{}`; a trace is a file, or `{SYNTHETIC}`, or a made one (`forebay embed traces`)", path.display())
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

/// What a policy costs at a size.
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

/// A policy, for scripts.
#[derive(Debug, Serialize)]
struct Listed {
    name: &'static str,
    about: &'static str,
}

fn list(args: &PoliciesArgs) -> anyhow::Result<Verdict> {
    let listed = PolicyKind::ALL.iter();
    let listed = listed.map(|kind| Listed { name: kind.name(), about: kind.about() });
    match args.format {
        Format::Json => output::json(&listed.collect::<Vec<_>>())?,
        Format::Text => {
            let lines = listed.map(|Listed { name, about }| format!("{name:<20}{about}\n"));
            output::data(&lines.collect::<String>())?;
        }
    }
    Ok(Verdict::Yes)
}
