//! Generated traces: their names, and the comparison of policies on many of them.

use std::path::Path;

use anyhow::{anyhow, bail};
use forebay_sim::embeddings::{Comparison, Made};
use serde::Serialize;

use super::{SYNTHETIC, SimArgs, count, run_with_bar, simulation};
use crate::output::{self, Format, Verdict};

/// Prefix of the names of generated traces.
const PREFIX: &str = "made:";

/// Options of `embed traces`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The generated trace of this name; `None` without the prefix.
pub fn find(trace: &Path) -> anyhow::Result<Option<Made>> {
    let name = trace.to_str().and_then(|name| name.strip_prefix(PREFIX));
    name.map(str::parse)
        .transpose()
        .map_err(|error: String| anyhow!("{error}; or several traces: all, tuning, held-out"))
}

/// The generated traces of a group; `None` unless it is the name of a group.
pub fn find_group(trace: &Path) -> Option<Vec<Made>> {
    let is_in_group: fn(&Made) -> bool = match trace.to_str()?.strip_prefix(PREFIX)? {
        "all" => |_| true,
        "tuning" => |made| !made.held_out(),
        "held-out" => Made::held_out,
        _ => return None,
    };
    Some(Made::ALL.iter().copied().filter(is_in_group).collect())
}

/// Seed of a generated trace. Published figures use trace seed 1 and policy seed 0.
pub fn seed(seed: u64) -> u64 {
    seed.wrapping_add(1)
}

/// Runs the policies on these traces, and compares `group` with the best other policy.
pub fn compare(traces: &[Made], args: &SimArgs) -> anyhow::Result<Verdict> {
    let others = [
        ("--cost", args.cost),
        ("--plot", args.plot.is_some()),
        ("--replay", args.replay),
        ("--bundles", args.bundles),
        ("--prefetch", !args.prefetch.is_empty()),
        ("--trace-format", args.trace_format.is_some()),
    ];
    if let Some((flag, _)) = others.iter().find(|(_, given)| *given) {
        bail!("{flag} is for one trace, and `{}` is several", args.trace.display());
    }
    let mut simulation = simulation(args);
    simulation.bounds = false;
    let mut comparison = Comparison::default();
    for made in traces {
        let requests = args.requests.map_or_else(|| made.requests(), count);
        let report = run_with_bar(&simulation, &made.generate(requests, seed(args.seed)));
        if !comparison.add(&report, made.held_out()) {
            bail!("several traces compare `group` with other policies; name `group` and one more");
        }
    }
    match args.format {
        Format::Json => output::json(&comparison)?,
        Format::Text => output::data(&comparison.text())?,
    }
    Ok(Verdict::Yes)
}

/// A trace of `embed traces`.
#[derive(Debug, Serialize)]
struct ListedTrace {
    name: String,
    about: &'static str,
    held_out: bool,
}

pub fn list(args: &Args) -> anyhow::Result<Verdict> {
    let criteo = ListedTrace {
        name: SYNTHETIC.to_owned(),
        about: "26 tables with the published statistics of Criteo-Kaggle",
        held_out: false,
    };
    let made = Made::ALL.iter().map(|made| ListedTrace {
        name: format!("{PREFIX}{}", made.name),
        about: made.about,
        held_out: made.held_out(),
    });
    let listed: Vec<ListedTrace> = std::iter::once(criteo).chain(made).collect();
    match args.format {
        Format::Json => output::json(&listed)?,
        Format::Text => {
            let line = |ListedTrace { name, about, held_out }: &ListedTrace| {
                let held_out = if *held_out { " (held out from tuning)" } else { "" };
                format!("{name:<28}{about}{held_out}\n")
            };
            output::data(&listed.iter().map(line).collect::<String>())?;
        }
    }
    Ok(Verdict::Yes)
}
