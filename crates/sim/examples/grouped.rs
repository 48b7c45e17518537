//! Runs policies on a grouped trace: `grouped TRACE [--policy a,b] [--cache 1%,5%] [--replay] [--no-bounds]
//! [--cost] [--json] [--plot out.svg]`. TRACE is a file, or `synthetic-criteo[:REQUESTS]`.
#![allow(clippy::print_stdout, reason = "an example prints what it found")]

use std::{error::Error, path::Path};

use forebay_core::embedding::PolicyKind;
use forebay_sim::grouped::{self, CacheShare, Criteo, Simulation, Trace};

fn load(name: &str) -> Result<Trace, Box<dyn Error>> {
    let Some(rest) = name.strip_prefix("synthetic-criteo") else {
        return Ok(grouped::load(Path::new(name))?);
    };
    let requests = rest.strip_prefix(':').map_or(Ok(200_000), str::parse)?;
    Ok(Criteo { requests, seed: 1 }.generate())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let trace = load(&arguments.next().ok_or("which trace?")?)?;
    let mut simulation = Simulation::new(PolicyKind::ALL.to_vec());
    let (mut json, mut cost, mut plot) = (false, false, None);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
        match argument.as_str() {
            "--policy" => {
                simulation.policies =
                    value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--cache" => {
                simulation.shares =
                    value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--replay" => simulation.replay = true,
            "--no-bounds" => simulation.bounds = false,
            "--json" => json = true,
            "--cost" => cost = true,
            "--plot" => plot = Some(value()?),
            other => return Err(format!("{other} is no option").into()),
        }
    }
    if cost {
        for cost in simulation.cost(&trace, "5%".parse::<CacheShare>()?, 5) {
            println!(
                "{:<20} {:>8.1} ns/key {:>6.2} x LRU",
                cost.policy.name(),
                cost.nanos_per_key,
                cost.against_lru
            );
        }
        return Ok(());
    }
    let report = simulation.run(&trace);
    if let Some(path) = plot {
        std::fs::write(path, report.svg())?;
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text());
    }
    Ok(())
}
