//! `forebay sim`: training jobs, simulated under several policies.

mod tables;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, bail};
use clap::builder::PossibleValuesParser;
use forebay_sim::train::{
    BUILT_IN, Comparison, Outcome, Policy, Scenario, Setup, plot, reproduce, simulate,
};
use serde::Serialize;

use crate::{
    output::{self, Format, Verdict},
    page::Page,
};

/// Scenarios are short; whatever is longer is something else.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Training jobs, simulated.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the scenarios that are part of this binary.
    List(ListArgs),
    /// Run a scenario, and say how fast its jobs were and what they read.
    ///
    /// One seed decides everything, so the same command gives the same answer. What decides in the
    /// simulation is the code that decides in a node and in a job. `docs/scenarios.md` says how to write
    /// a scenario.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Run a scenario under several policies, side by side.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Run what is published about Quiver, and set it beside the published figures.
    ///
    /// Takes some minutes. Prints a section in Markdown, or puts it into a page that has a place for it,
    /// with the pictures beside it.
    #[command(after_help = REPRODUCE_EXAMPLES)]
    Reproduce(ReproduceArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  forebay sim run one-job
  forebay sim run one-job --policy lru --variant 20-percent
  forebay sim run quiver-figure7 --plot rotation.svg
  forebay sim run mine.toml --seed 7 --format json";

const COMPARE_EXAMPLES: &str = "\
Examples:
  forebay sim compare one-job --policies none,lru,forebay
  forebay sim compare quiver-figure6 --policies none,lru,quiver,forebay --plot speed.svg";

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  forebay sim reproduce
  forebay sim reproduce --page docs/reproductions.md";

/// Where to put it.
#[derive(Debug, clap::Args)]
pub struct ReproduceArgs {
    /// A page with the lines `<!-- begin train … -->` and `<!-- end train -->`, between which it is put.
    #[arg(long, value_name = "FILE.md")]
    page: Option<PathBuf>,
}

/// How to list.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What to run.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// What decides about the cache [default: what the scenario says].
    #[arg(long, value_name = "NAME", value_parser = policy_names())]
    policy: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
}

/// What to compare.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// The policies; speeds are multiples of the first one's.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_values_t = Policy::ALL.map(|policy| policy.name().to_owned()),
        value_parser = policy_names()
    )]
    policies: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
}

/// What running and comparing have in common.
#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// The name of a scenario (`forebay sim list`), or a file.
    scenario: PathBuf,
    /// Only this variant of the scenario.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Decides everything that is left to chance [default: what the scenario says].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Draw a picture.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn policy_names() -> PossibleValuesParser {
    PossibleValuesParser::new(Policy::ALL.map(Policy::name))
}

fn policy(name: &str) -> Policy {
    name.parse().expect("clap lets no other name through")
}

pub fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::List(args) => list(&args),
        Command::Run(args) => run_one(&args),
        Command::Compare(args) => compare(&args),
        Command::Reproduce(args) => reproduce(&args),
    }
}

/// A scenario, for scripts.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    about: String,
    policy: Policy,
    variants: Vec<String>,
}

fn list(args: &ListArgs) -> anyhow::Result<Verdict> {
    let scenarios = BUILT_IN.iter().filter_map(|built_in| Scenario::built_in(built_in.name));
    let listed: Vec<Listed> = scenarios
        .map(|scenario| Listed {
            variants: scenario.setups.iter().filter_map(|setup| setup.variant.clone()).collect(),
            name: scenario.name,
            about: scenario.about,
            policy: scenario.policy,
        })
        .collect();
    match args.format {
        Format::Json => output::json(&listed)?,
        Format::Text => {
            let width = listed.iter().map(|listed| listed.name.len()).max().unwrap_or(0) + 2;
            let line = |Listed { name, about, .. }: &Listed| format!("{name:<width$}{about}\n");
            output::data(&listed.iter().map(line).collect::<String>())?;
        }
    }
    Ok(Verdict::Yes)
}

fn run_one(args: &RunArgs) -> anyhow::Result<Verdict> {
    let scenario = prepare(&args.common)?;
    let policy = args.policy.as_deref().map_or(scenario.policy, policy);
    let outcomes = simulate_all(&scenario, &[policy], args.common.seed);
    if let Some(path) = &args.common.plot {
        write_plot(path, &plot::runs(&outcomes))?;
    }
    match args.common.format {
        Format::Json => output::json(&outcomes)?,
        Format::Text => output::data(&tables::runs(&outcomes))?,
    }
    Ok(Verdict::Yes)
}

fn compare(args: &CompareArgs) -> anyhow::Result<Verdict> {
    let scenario = prepare(&args.common)?;
    let mut policies: Vec<Policy> = Vec::new();
    for policy in args.policies.iter().map(|name| policy(name)) {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let runs = simulate_all(&scenario, &policies, args.common.seed);
    let comparison = Comparison::new(&scenario, policies, runs);
    if let Some(path) = &args.common.plot {
        write_plot(path, &plot::comparison(&comparison))?;
    }
    match args.common.format {
        Format::Json => output::json(&comparison)?,
        Format::Text => output::data(&tables::comparison(&comparison))?,
    }
    Ok(Verdict::Yes)
}

/// The scenario, with only the variants that were asked for, once it is clear that all can be written.
fn prepare(args: &CommonArgs) -> anyhow::Result<Scenario> {
    if let Some(plot) = &args.plot {
        output::check_plot(plot, &args.scenario)?;
    }
    let mut scenario = load(&args.scenario)?;
    if let Some(wanted) = &args.variant {
        let names = || scenario.setups.iter().filter_map(|setup| setup.variant.as_deref());
        if !names().any(|name| name == wanted) {
            let names = names().collect::<Vec<_>>().join(", ");
            match &*names {
                "" => bail!("--variant: `{}` has none; leave it out", scenario.name),
                names => bail!("--variant: there is no variant `{wanted}`; there are {names}"),
            }
        }
        scenario.setups.retain(|setup| setup.variant.as_ref() == Some(wanted));
    }
    Ok(scenario)
}

fn load(path: &Path) -> anyhow::Result<Scenario> {
    let shown = path.display().to_string();
    if let Some(scenario) = Scenario::built_in(&shown) {
        return Ok(scenario);
    }
    let known = || BUILT_IN.iter().map(|built_in| built_in.name).collect::<Vec<_>>().join(", ");
    let Ok(facts) = fs::metadata(path) else {
        bail!("there is no scenario and no file `{shown}`; there are {}", known());
    };
    if facts.is_dir() {
        bail!("`{shown}` is a directory; name a scenario in it");
    }
    if facts.len() > FILE_BYTES_MAX {
        bail!("`{shown}` is too long for a scenario; docs/scenarios.md says how to write one");
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read `{shown}`"))?;
    let name = path.file_stem().map_or(shown.clone(), |name| name.to_string_lossy().into_owned());
    Ok(Scenario::parse(&text, &shown, &name)?)
}

fn reproduce(args: &ReproduceArgs) -> anyhow::Result<Verdict> {
    // A page without a place should be refused before, not after.
    let page = args.page.as_deref().map(|path| Page::read(path, "train")).transpose()?;
    let section = reproduce::train(&mut |scenario, setup, policy| {
        watched(scenario, setup, policy, scenario.seed)
    });
    match page {
        None => output::data(&section.text)?,
        Some(page) => page.write(&section)?,
    }
    Ok(Verdict::Yes)
}

fn simulate_all(scenario: &Scenario, policies: &[Policy], seed: Option<u64>) -> Vec<Outcome> {
    let seed = seed.unwrap_or(scenario.seed);
    let pairs = scenario.setups.iter().flat_map(|setup| policies.iter().map(move |p| (setup, *p)));
    let started = Instant::now();
    let outcomes: Vec<Outcome> =
        pairs.map(|(setup, policy)| watched(scenario, setup, policy, seed)).collect();
    let reads: u64 = outcomes.iter().map(|outcome| outcome.item_reads).sum();
    let millions = reads as f64 / 1e6;
    let took = started.elapsed().as_secs_f64();
    let rate = millions / took;
    output::aside(&format!("{millions:.1} million items read in {took:.1} s, {rate:.1} million/s"));
    outcomes
}

/// Simulates, with a bar for whoever is watching.
fn watched(scenario: &Scenario, setup: &Setup, policy: Policy, seed: u64) -> Outcome {
    let variant = setup.variant.as_ref().map_or(String::new(), |name| format!(" {name}"));
    let bar = output::share_bar(&format!("{}{variant} {policy}", scenario.name));
    let outcome = simulate(scenario, setup, policy, seed, &mut |share| {
        output::set_share(&bar, share);
    });
    bar.finish_and_clear();
    outcome
}

fn write_plot(path: &Path, svg: &str) -> anyhow::Result<()> {
    fs::write(path, svg).with_context(|| format!("write `{}`", path.display()))
}
