//! `forebay sim`: simulates jobs and caches under several policies.

mod fuzz;
mod power;
mod tables;
mod tier;
mod trace;

use std::{
    fmt::Display,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    str::FromStr,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, anyhow, bail};
use clap::builder::PossibleValuesParser;
use forebay_core::tier::PolicyKind;
use forebay_sim::{
    Kind, kind,
    tier::{self as tiers, plot as tier_plot},
    train::{BUILT_IN, Comparison, Outcome, Policy, Scenario, Setup, plot, reproduce, simulate},
};
use serde::Serialize;

use crate::{
    generated_page::GeneratedPage,
    output::{self, Format, Verdict},
    signals,
};

/// Largest size of a scenario file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Version of the JSON format.
const JSON_FORMAT: u32 = 1;

/// Simulate jobs and caches under several policies.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the scenarios that are part of this binary.
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Run a scenario, and print the speed and the reads of its jobs.
    ///
    /// A seed decides everything, so the same command gives the same result. The simulation runs
    /// the real sampler of the loader and the real manager of the node.
    /// `docs/guide/simulator.md` describes the columns of the result, and
    /// `docs/reference/scenarios.md` the format of scenarios.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Run a scenario under several policies, and compare them.
    ///
    /// `none` has no cache and `hit` has everything cached, so possible gains lie between them. The
    /// bound is the speed that no policy but `hit` can exceed.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Reproduce the figures of Quiver and Tectonic-Shift, and compare with the published ones.
    ///
    /// Takes a few minutes. Prints Markdown, or replaces a section of a page and writes the plots
    /// beside it.
    #[command(after_help = REPRODUCE_EXAMPLES)]
    Reproduce(ReproduceArgs),
    /// Compare forebay with the other policies in random worlds.
    ///
    /// Each world draws jobs, speeds, GPUs, datasets, caches, origins, flash, networks, arrivals
    /// and faults from the seed. Prints forebay's busy GPU time and cost (GPU time, and origin
    /// bytes at 10 GPU seconds per GB) divided by those of the best other policy.
    #[command(after_help = fuzz::EXAMPLES)]
    Fuzz(fuzz::FuzzArgs),
    /// Replay a recorded trace through a flash tier.
    ///
    /// All objects count as equally large. Each policy is compared with the optimum, Belady's MIN
    /// with bypass.
    #[command(after_help = trace::EXAMPLES)]
    Trace(trace::TraceArgs),
    /// Compute whether a flash tier saves power, as in table 1 of Tectonic-Shift.
    #[command(after_help = power::EXAMPLES)]
    Power(power::PowerArgs),
}

pub const EXAMPLES: &str = "\
Examples:
  forebay sim list                                     built-in scenarios
  forebay sim run one-job --variant 20-percent
  forebay sim compare one-job --policy none,lru,forebay
  forebay sim run mine.toml --plot chunks.svg          see docs/reference/scenarios.md";

const LIST_EXAMPLES: &str = "\
Examples:
  forebay sim list
  forebay sim list --format json | jq -r '.[].name'";

const RUN_EXAMPLES: &str = "\
Examples:
  forebay sim run one-job
  forebay sim run one-job --policy lru --variant 20-percent
  forebay sim run quiver-figure7 --plot rotation.svg
  forebay sim run mine.toml --seed 7 --format json";

const COMPARE_EXAMPLES: &str = "\
Examples:
  forebay sim compare one-job --policy none,lru,forebay
  forebay sim compare quiver-figure6 --policy none,lru,quiver,forebay --plot speed.svg
  forebay sim compare shift-synchronized --variant skew-5 --policy lru,hybrid,next-use";

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  forebay sim reproduce figure-7
  forebay sim reproduce --page docs/results/reproductions.md
  forebay sim reproduce tier --page docs/results/reproductions.md";

/// What to reproduce, and where to write it.
#[derive(Debug, clap::Args)]
pub struct ReproduceArgs {
    /// Reproduce only `train` (Quiver), `tier` (Tectonic-Shift) or one part of `train`.
    ///
    /// A part is printed [default: `train` and `tier`].
    #[arg(value_name = "WHAT", value_parser = PossibleValuesParser::new(parts()))]
    what: Option<String>,
    /// Replace sections of this page, such as `<!-- begin train … -->` to `<!-- end train -->`.
    #[arg(long, value_name = "FILE.md")]
    page: Option<PathBuf>,
}

/// Options of `sim list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What to run.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Use this cache policy [default: that of the scenario].
    #[arg(long, value_name = "NAME", value_parser = policy_names())]
    policy: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
}

/// What to compare.
#[derive(Debug, clap::Args)]
pub struct CompareArgs {
    /// Compare these policies, separated by commas [default: all for this kind of scenario].
    ///
    /// Speeds are relative to the first policy.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = policy_names())]
    policy: Vec<String>,
    #[command(flatten)]
    common: CommonArgs,
    /// Policies that are not separated by commas, for an error with the remedy.
    #[arg(hide = true, value_name = "NOTHING")]
    extra: Vec<String>,
}

/// Options of `sim run` and `sim compare`.
#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// The name of a built-in scenario (`forebay sim list`), or a file.
    scenario: PathBuf,
    /// Run only this variant of the scenario [default: all].
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Use this random seed [default: that of the scenario].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Names of what can be reproduced.
fn parts() -> Vec<&'static str> {
    [Kind::Train.name(), Kind::Tier.name()].into_iter().chain(reproduce::PARTS).collect()
}

/// Policies of all kinds of scenarios. The kind is known only after the scenario is loaded.
fn policy_names() -> PossibleValuesParser {
    let mut names: Vec<&str> = Policy::ALL.map(Policy::name).to_vec();
    names.extend(PolicyKind::ALL.iter().map(|kind| kind.name()));
    names.sort_unstable();
    names.dedup();
    PossibleValuesParser::new(names)
}

/// Parses a policy of the kind of the scenario; clap has checked that a kind has it.
fn policy<P: Copy + Display + FromStr>(
    name: &str,
    scenario: &str,
    kind: Kind,
    all: &[P],
) -> anyhow::Result<P> {
    name.parse().map_err(|_| {
        let other = match kind {
            Kind::Train => Kind::Tier,
            Kind::Tier => Kind::Train,
        };
        let all = all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        anyhow!("`{name}` is a policy for kind = \"{}\"; `{scenario}` takes {all}", other.name())
    })
}

/// Parses policies; `all` if there are none. A policy that is named twice is an error.
fn policies<P: Copy + Display + PartialEq + FromStr>(
    names: &[String],
    scenario: &str,
    kind: Kind,
    all: &[P],
) -> anyhow::Result<Vec<P>> {
    let mut policies: Vec<P> = Vec::new();
    for name in names {
        let policy = policy(name, scenario, kind, all)?;
        if policies.contains(&policy) {
            bail!("--policy: `{name}` is named twice; remove one");
        }
        policies.push(policy);
    }
    Ok(if policies.is_empty() { all.to_vec() } else { policies })
}

pub fn run(command: Command) -> anyhow::Result<Verdict> {
    // A simulation has no state to clean up, so an interrupt exits at once.
    let stop = signals::stop_requested()?;
    tokio::spawn(async move {
        stop.await;
        output::exit_interrupted();
    });
    match command {
        Command::List(args) => list(&args),
        Command::Run(args) => run_one(&args),
        Command::Compare(args) => compare(&args),
        Command::Reproduce(args) => reproduce(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Power(args) => power::run(&args),
    }
}

/// A scenario of `sim list`.
#[derive(Debug, Serialize)]
struct ListedScenario {
    name: String,
    kind: &'static str,
    about: String,
    policy: String,
    variants: Vec<String>,
}

/// A result with the version of its format.
#[derive(Debug, Serialize)]
struct Versioned<T> {
    format: u32,
    #[serde(flatten)]
    result: T,
}

#[derive(Debug, Serialize)]
struct Runs<'a, T> {
    runs: &'a [T],
}

fn list(args: &ListArgs) -> anyhow::Result<Verdict> {
    let train = BUILT_IN.iter().filter_map(|built_in| Scenario::built_in(built_in.name));
    let train = train.map(|scenario| ListedScenario {
        variants: scenario.setups.iter().filter_map(|setup| setup.variant.clone()).collect(),
        name: scenario.name,
        kind: Kind::Train.name(),
        about: scenario.about,
        policy: scenario.policy.to_string(),
    });
    let tier = tiers::BUILT_IN.iter();
    let tier = tier.filter_map(|built_in| tiers::Scenario::built_in(built_in.name, None));
    let tier = tier.map(|scenario| ListedScenario {
        variants: scenario.setups.iter().filter_map(|setup| setup.variant.clone()).collect(),
        name: scenario.name,
        kind: Kind::Tier.name(),
        about: scenario.about,
        policy: scenario.policy.to_string(),
    });
    let listed: Vec<ListedScenario> = train.chain(tier).collect();
    match args.format {
        Format::Json => output::json(&listed)?,
        Format::Text => {
            let width = listed.iter().map(|listed| listed.name.len()).max().unwrap_or(0) + 2;
            let line = |ListedScenario { name, about, variants, .. }: &ListedScenario| {
                let variants = match variants.join(", ") {
                    none if none.is_empty() => none,
                    some => format!("{:width$}variants: {some}\n", ""),
                };
                format!("{name:<width$}{about}\n{variants}")
            };
            output::data(&listed.iter().map(line).collect::<String>())?;
        }
    }
    Ok(Verdict::Yes)
}

fn run_one(args: &RunArgs) -> anyhow::Result<Verdict> {
    let common = &args.common;
    match prepare(common)? {
        Loaded::Train(scenario) => {
            let policy = |name| policy(name, &scenario.name, Kind::Train, &Policy::ALL);
            let named = args.policy.as_deref().map(policy);
            let policy = named.transpose()?.unwrap_or(scenario.policy);
            let outcomes = simulate_all(&scenario, &[policy], common.seed);
            show(
                common,
                &plot::runs(&outcomes),
                &Runs { runs: &outcomes },
                &tables::runs(&outcomes),
            )
        }
        Loaded::Tier(scenario) => {
            let policy = |name| policy(name, &scenario.name, Kind::Tier, PolicyKind::ALL);
            let named = args.policy.as_deref().map(policy);
            let policy = named.transpose()?.unwrap_or(scenario.policy);
            show_tier(common, &scenario, &[policy])
        }
    }
}

fn compare(args: &CompareArgs) -> anyhow::Result<Verdict> {
    let common = &args.common;
    if let Some(extra) = args.extra.first() {
        let policies = args.policy.join(",");
        bail!(
            "unexpected argument `{extra}`; separate policies by commas: --policy \
             {policies},{extra}"
        );
    }
    match prepare(common)? {
        Loaded::Train(scenario) => {
            let policies = policies(&args.policy, &scenario.name, Kind::Train, &Policy::ALL)?;
            let runs = simulate_all(&scenario, &policies, common.seed);
            let comparison = Comparison::new(&scenario, policies, runs);
            let text = tables::comparison(&comparison);
            show(common, &plot::comparison(&comparison), &comparison, &text)
        }
        Loaded::Tier(scenario) => {
            let policies = policies(&args.policy, &scenario.name, Kind::Tier, PolicyKind::ALL)?;
            show_tier(common, &scenario, &policies)
        }
    }
}

fn show_tier(
    args: &CommonArgs,
    scenario: &tiers::Scenario,
    policies: &[PolicyKind],
) -> anyhow::Result<Verdict> {
    let outcomes = tier::simulate_all(scenario, policies);
    let text = tier::table(scenario, &outcomes);
    show(args, &tier_plot::over_time(&outcomes, None), &Runs { runs: &outcomes }, &text)
}

/// Writes the plot, if one is requested, and prints the result.
fn show(
    args: &CommonArgs,
    svg: &str,
    data: &impl Serialize,
    text: &str,
) -> anyhow::Result<Verdict> {
    if let Some(path) = &args.plot {
        fs::write(path, svg).with_context(|| format!("cannot write `{}`", path.display()))?;
        output::aside(&format!("the plot is in `{}`", path.display()));
    }
    match args.format {
        Format::Json => output::json(&Versioned { format: JSON_FORMAT, result: data })?,
        Format::Text => output::data(text)?,
    }
    Ok(Verdict::Yes)
}

/// A scenario of either kind.
enum Loaded {
    Train(Scenario),
    Tier(tiers::Scenario),
}

/// Checks the path of the plot, and loads the scenario with the requested variants.
fn prepare(args: &CommonArgs) -> anyhow::Result<Loaded> {
    if let Some(plot) = &args.plot {
        output::check_plot_path(plot, &args.scenario)?;
    }
    let mut loaded = load(&args.scenario, args.seed)?;
    if let Some(wanted) = &args.variant {
        match &mut loaded {
            Loaded::Train(Scenario { name, setups, .. }) => {
                select_variant(name, wanted, setups, |setup| setup.variant.as_deref())?;
            }
            Loaded::Tier(tiers::Scenario { name, setups, .. }) => {
                select_variant(name, wanted, setups, |setup| setup.variant.as_deref())?;
            }
        }
    }
    Ok(loaded)
}

/// Removes all other variants.
fn select_variant<S>(
    scenario: &str,
    wanted: &str,
    setups: &mut Vec<S>,
    variant: impl Fn(&S) -> Option<&str>,
) -> anyhow::Result<()> {
    let names: Vec<&str> = setups.iter().filter_map(&variant).collect();
    if names.is_empty() {
        bail!("--variant: `{scenario}` has no variants; leave out --variant");
    }
    if !names.contains(&wanted) {
        bail!("--variant: there is no variant `{wanted}`; use {}", names.join(", "));
    }
    setups.retain(|setup| variant(setup) == Some(wanted));
    Ok(())
}

fn load(path: &Path, seed: Option<u64>) -> anyhow::Result<Loaded> {
    let shown = path.display().to_string();
    if let Some(scenario) = Scenario::built_in(&shown) {
        return Ok(Loaded::Train(scenario));
    }
    if let Some(scenario) = tiers::Scenario::built_in(&shown, seed) {
        return Ok(Loaded::Tier(scenario));
    }
    let Ok(facts) = fs::metadata(path) else {
        let near = path.with_extension("toml");
        if near.is_file() {
            bail!("there is no scenario and no file `{shown}`; did you mean `{}`?", near.display());
        }
        let train = BUILT_IN.iter().map(|built_in| built_in.name);
        let tier = tiers::BUILT_IN.iter().map(|built_in| built_in.name);
        let known = train.chain(tier).collect::<Vec<_>>().join(", ");
        bail!("there is no scenario and no file `{shown}`; use a file, or one of {known}");
    };
    if facts.is_dir() {
        bail!("`{shown}` is a directory; name a scenario in it");
    }
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| format!("cannot read `{shown}`"))?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read `{shown}`"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        bail!("`{shown}` is too long for a scenario (1 MiB); see docs/reference/scenarios.md");
    }
    let Ok(text) = String::from_utf8(bytes) else {
        bail!(
            "`{shown}` is not UTF-8 text, so it is not a scenario; see docs/reference/scenarios.md"
        );
    };
    let name = path.file_stem().map_or(shown.clone(), |name| name.to_string_lossy().into_owned());
    Ok(match kind(&text, &shown)? {
        Kind::Train => Loaded::Train(Scenario::parse(&text, &shown, &name)?),
        Kind::Tier => Loaded::Tier(tiers::Scenario::parse_seeded(&text, &shown, &name, seed)?),
    })
}

fn reproduce(args: &ReproduceArgs) -> anyhow::Result<Verdict> {
    let part = args.what.as_deref().filter(|what| reproduce::PARTS.contains(what));
    if part.is_some() && args.page.is_some() {
        bail!("a part of `train` cannot be written to a page; use `train`, or leave out --page");
    }
    let is_selected = |kind: &Kind| match args.what.as_deref() {
        Some(_) if part.is_some() => *kind == Kind::Train,
        what => what.is_none_or(|name| name == kind.name()),
    };
    let kinds: Vec<Kind> = [Kind::Train, Kind::Tier].into_iter().filter(is_selected).collect();
    // A page without the section is an error before the long computation.
    let find = |kind: Kind| args.page.as_deref().map(|path| GeneratedPage::read(path, kind.name()));
    for kind in &kinds {
        find(*kind).transpose()?;
    }
    for kind in kinds {
        let mut runs = 0;
        let mut section = match kind {
            Kind::Train => reproduce::train(part, &mut |scenario, setup, policy| {
                runs += 1;
                simulate_with_bar(&format!("run {runs}"), scenario, setup, policy, scenario.seed)
            }),
            Kind::Tier => tiers::reproduce::tier(&mut tier::simulate_setup),
        };
        let note = format!(
            "Generated on {} by forebay {}. Time is simulated: every machine gives the same \
             figures.\n\n",
            today(),
            env!("CARGO_PKG_VERSION")
        );
        section.text.insert_str(0, &note);
        match find(kind).transpose()? {
            None => output::data(&section.text)?,
            Some(page) => page.write(&section)?,
        }
    }
    Ok(Verdict::Yes)
}

fn today() -> String {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = chrono::DateTime::from_timestamp(passed.as_secs().cast_signed(), 0);
    now.unwrap_or_default().date_naive().to_string()
}

fn simulate_all(scenario: &Scenario, policies: &[Policy], seed: Option<u64>) -> Vec<Outcome> {
    let seed = seed.unwrap_or(scenario.seed);
    let pairs = scenario.setups.iter().flat_map(|setup| policies.iter().map(move |p| (setup, *p)));
    let started = Instant::now();
    let all = scenario.setups.len() * policies.len();
    let runs = pairs.zip(1..).map(|((setup, policy), number)| {
        simulate_with_bar(&format!("{number} of {all}"), scenario, setup, policy, seed)
    });
    let outcomes: Vec<Outcome> = runs.collect();
    let reads: u64 = outcomes.iter().map(|outcome| outcome.item_reads_in_all).sum();
    let millions = reads as f64 / 1e6;
    let took = started.elapsed().as_secs_f64();
    let rate = millions / took;
    output::aside(&format!("{millions:.1} million items read in {took:.1} s, {rate:.1} million/s"));
    outcomes
}

/// Simulates with a progress bar.
fn simulate_with_bar(
    which: &str,
    scenario: &Scenario,
    setup: &Setup,
    policy: Policy,
    seed: u64,
) -> Outcome {
    let variant = setup.variant.as_ref().map_or(String::new(), |name| format!(" {name}"));
    let bar = output::share_bar(&format!("{which}: {}{variant} {policy}", scenario.name));
    let outcome = simulate(scenario, setup, policy, seed, &mut |share| {
        output::set_share(&bar, share);
    });
    bar.finish_and_clear();
    outcome
}
