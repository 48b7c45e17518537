//! One run of the evaluation: a job in one mode, in a process of its own. `streams.py` runs all.

use std::{path::PathBuf, time::Instant};

use anyhow::Context as _;
use clap::Parser;
use forebay_core::ByteSize;
use forebay_evals_streams::{
    data,
    mode::{Mode, Source, Split},
    workload::{Kind, Workload},
};
use serde::Serialize;

/// Run one job of the evaluation in one mode.
#[derive(Debug, Parser)]
enum Command {
    /// Write the rows into a directory.
    Write { directory: PathBuf, size: ByteSize },
    /// Run a job, and print how its time was spent.
    Run(Args),
}

#[derive(Debug, clap::Args)]
struct Args {
    directory: PathBuf,
    workload: Kind,
    mode: Mode,
    /// Memory of a store.
    memory: ByteSize,
    passes: u64,
    /// Control group to join.
    group: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Printed {
    seconds: f64,
    /// Mean loss of the last pass.
    loss: f64,
    #[serde(flatten)]
    split: Split,
}

#[expect(clippy::print_stdout, reason = "a command-line program")]
fn main() -> anyhow::Result<()> {
    let args = match Command::parse() {
        Command::Write { directory, size } => return data::write(&directory, size),
        Command::Run(args) => args,
    };
    if let Some(group) = &args.group {
        std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
            .context("join the control group")?;
    }
    let source = Source::open(args.mode, &args.directory, args.memory)?;
    let mut workload = Workload::new(args.workload);
    let (mut split, mut loss) = (Split::default(), 0.0);
    let began = Instant::now();
    for _ in 0..args.passes {
        split += source.pass(&mut workload)?;
        loss = workload.on_pass();
    }
    let printed = Printed { seconds: began.elapsed().as_secs_f64(), loss, split };
    println!("{}", serde_json::to_string(&printed)?);
    Ok(())
}
