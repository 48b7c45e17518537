//! `forebay demo streams`: k-means over data four times a memory limit, three ways.
//!
//! The same points are read pass by pass from a file, from a mapped file, and from a stream. Each
//! way is a process of its own. Its memory limit includes the page cache.

mod control_group;
mod kmeans;
mod report;
pub mod way;

use std::{
    io::BufRead as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, ensure};
use forebay_core::{ByteSize, streams::Lifetime};
use forebay_streams::{CreateOptions, FullPolicy, StoreConfig};

use self::{
    control_group::ControlGroup,
    report::{StreamsReport, WayReport},
    way::{Line, STREAM, Way},
};
use super::processes::{Processes, this_program};
use crate::{
    logging,
    output::{self, Format, Verdict},
};

/// Size of the data, as a multiple of the memory.
const TIMES_MEMORY: u64 = 4;
/// Memory for the store of streams and the process, at least.
const MEMORY_MIN: ByteSize = ByteSize::mib(64);

/// Compare k-means over data four times a memory limit, read from files and from a stream.
///
/// The points are read once per pass: from a file, from a mapped file, and from a stream. The limit
/// includes the page cache; it needs root. Without it, the page cache is emptied before each pass.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Limit each process to this memory; the data has four times this size.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    memory: ByteSize,
    /// Read the points this number of times.
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    passes: u64,
    /// Write a plot of the passes over time to this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  forebay demo streams
  forebay demo streams --memory 512MiB --plot streams.svg
  TMPDIR=/nvme forebay demo streams --format json | jq '.ways[].passes[].seconds'

The demo works in a temporary directory, which it removes at the end and after Ctrl-C.";

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    if let Some(plot) = &args.plot {
        output::check_plot_path(plot, Path::new(""))?;
    }
    let memory = args.memory;
    ensure!(
        memory >= MEMORY_MIN,
        "--memory {memory} is too small for a store of streams: use {MEMORY_MIN} or more"
    );
    // How the device is opened is of interest to a node's operator only.
    logging::set_level("warn");
    super::in_workdir(|directory, processes| async move {
        let demo = Demo { args, directory, processes };
        tokio::task::spawn_blocking(move || demo.run()).await?
    })
    .await
}

struct Demo {
    args: Args,
    directory: PathBuf,
    processes: Arc<Processes>,
}

impl Demo {
    fn run(&self) -> anyhow::Result<()> {
        let passes = self.args.passes;
        let block = self.write()?;
        let mut ways: Vec<_> = Way::ALL.map(WayReport::new).into();
        let mut is_limited = true;
        for at in 0..ways.len() {
            let group = ControlGroup::new(self.args.memory)
                .inspect_err(|error| {
                    if at == 0 {
                        output::note(&format!("no memory limit: {error:#}"));
                    }
                })
                .ok();
            is_limited &= group.is_some();
            self.run_way(&mut ways, at, block, group.as_ref())?;
        }
        let distances = ways.iter().map(|way| way.passes.iter().map(|pass| pass.distance));
        let distances: Vec<Vec<f64>> = distances.map(Iterator::collect).collect();
        ensure!(
            distances.windows(2).all(|pair| pair[0] == pair[1]),
            "the ways differ: {distances:?}"
        );
        let data_bytes = ways[0].passes.first().map_or(0, |pass| pass.bytes);
        let memory_bytes = self.args.memory.0;
        let report = StreamsReport { data_bytes, memory_bytes, is_limited, ways };
        if let Some(plot) = &self.args.plot {
            std::fs::write(plot, report.plot(passes))
                .with_context(|| format!("cannot write `{}`", plot.display()))?;
        }
        match self.args.format {
            Format::Json => output::json(&report),
            Format::Text => output::data(&report.to_text(passes)),
        }
    }

    /// Writes the points to a file and to a stream. Returns the length of their blocks.
    fn write(&self) -> anyhow::Result<usize> {
        let data = ByteSize(TIMES_MEMORY * self.args.memory.0);
        output::note(&format!("writing {data} of points, twice"));
        // Room for headers, and for the regions that are begun early.
        let capacity = ByteSize(data.0 + data.0 / 16 + ByteSize::mib(64).0);
        let store = StoreConfig::new(Way::Stream.path(&self.directory), capacity).open();
        let store =
            store.context("cannot open a store here; set TMPDIR to a directory on flash")?;
        let length = usize::try_from(store.block_length())?;
        let count = data.0 / length as u64;
        let kept = CreateOptions { lifetime: Lifetime::Kept, full: FullPolicy::Error };
        let mut writer = store.create(STREAM, kept)?;
        for block in kmeans::blocks(length, count) {
            self.processes.check()?;
            writer.append(&block)?;
        }
        writer.seal()?;
        let blocks = kmeans::blocks(length, count);
        let blocks = blocks.map(|block| self.processes.check().map(|()| block));
        kmeans::write(&Way::Buffered.path(&self.directory), blocks)?;
        Ok(length)
    }

    /// Runs a way, and shows the table after each pass.
    fn run_way(
        &self,
        ways: &mut [WayReport],
        at: usize,
        block: usize,
        group: Option<&ControlGroup>,
    ) -> anyhow::Result<()> {
        let (way, passes) = (ways[at].way, self.args.passes);
        let mut command = this_program()?;
        let name = clap::ValueEnum::to_possible_value(&way).expect("it is an argument");
        command.args(["demo-stream-way", name.get_name()]).arg(way.path(&self.directory));
        command.args(["--passes", &passes.to_string(), "--block", &block.to_string()]);
        command.args(["--memory", &format!("{}B", self.args.memory.0 / 2)]);
        if let Some(group) = group {
            command.arg("--group").arg(group.directory());
        }
        let (process, stdout) = self.processes.start(&mut command)?;
        let live = output::status_line();
        live.set_draw_target(output::draw_target());
        for line in stdout.lines() {
            match serde_json::from_str(&line?)? {
                Line::Step(step) => ways[at].steps.push(step),
                Line::Pass(pass) => {
                    ways[at].passes.push(pass);
                    live.set_message(report::table(ways, passes));
                    live.tick();
                }
            }
        }
        live.finish_and_clear();
        let ended = self.processes.wait(process)?;
        ensure!(
            ended.is_some_and(|status| status.success()) && ways[at].passes.len() as u64 == passes,
            "the process of the {} ended early; try a larger --memory",
            way.name()
        );
        Ok(())
    }
}
