//! Traces that are made here: their names, and our policy beside the others on many of them at once.

use std::path::Path;

use anyhow::{anyhow, bail};
use forebay_sim::grouped::{Comparison, Made};
use serde::Serialize;

use super::{SYNTHETIC, SimArgs, count, simulation, watched};
use crate::output::{self, Format, Verdict};

/// What the names of made traces begin with.
const PREFIX: &str = "made:";

/// How to list.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The made trace of this name, if it is one.
pub fn one(trace: &Path) -> anyhow::Result<Option<Made>> {
    let name = trace.to_str().and_then(|name| name.strip_prefix(PREFIX));
    name.map(str::parse)
        .transpose()
        .map_err(|error: String| anyhow!("{error}; or all of them at once: all, tuning, held-out"))
}

/// The made traces, if it is the name of many.
pub fn many(trace: &Path) -> Option<Vec<Made>> {
    let wanted: fn(&Made) -> bool = match trace.to_str()?.strip_prefix(PREFIX)? {
        "all" => |_| true,
        "tuning" => |made| !made.held_out(),
        "held-out" => Made::held_out,
        _ => return None,
    };
    Some(Made::ALL.iter().copied().filter(wanted).collect())
}

/// What decides a made trace: the published figures are of trace 1 and policies seeded with 0.
pub fn seed(args: &SimArgs) -> u64 {
    args.seed.wrapping_add(1)
}

/// Runs the policies on all of these traces, and sets ours beside the best other.
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
        bail!("{flag} is for one trace; `{}` are many", args.trace.display());
    }
    let mut simulation = simulation(args);
    simulation.bounds = false;
    let mut comparison = Comparison::default();
    for made in traces {
        let requests = args.requests.map_or_else(|| made.requests(), count);
        let report = watched(&simulation, &made.generate(requests, seed(args)));
        if !comparison.add(&report, made.held_out()) {
            bail!("many traces are to compare `group` with others: name it, and at least one more");
        }
    }
    match args.format {
        Format::Json => output::json(&comparison)?,
        Format::Text => output::data(&comparison.text())?,
    }
    Ok(Verdict::Yes)
}

/// A trace, for scripts.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    about: &'static str,
    held_out: bool,
}

pub fn list(args: &Args) -> anyhow::Result<Verdict> {
    let criteo = Listed {
        name: SYNTHETIC.to_owned(),
        about: "26 tables after what is known of Criteo-Kaggle",
        held_out: false,
    };
    let made = Made::ALL.iter().map(|made| Listed {
        name: format!("{PREFIX}{}", made.name),
        about: made.about,
        held_out: made.held_out(),
    });
    let listed: Vec<Listed> = std::iter::once(criteo).chain(made).collect();
    match args.format {
        Format::Json => output::json(&listed)?,
        Format::Text => {
            let line = |Listed { name, about, held_out }: &Listed| {
                let held_out = if *held_out { " (held out from tuning)" } else { "" };
                format!("{name:<28}{about}{held_out}\n")
            };
            output::data(&listed.iter().map(line).collect::<String>())?;
        }
    }
    Ok(Verdict::Yes)
}
