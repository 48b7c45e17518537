//! `forebay sim fuzz`: forebay against the other policies in random worlds.

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context as _;
use forebay_sim::train::fuzz::{
    Distribution, Figures, FuzzReport, World, WorldResult, distribution,
};

use super::{JSON_FORMAT, Versioned};
use crate::output::{self, Format, Verdict};

/// Which worlds to simulate, and where to write the result.
#[derive(Debug, clap::Args)]
pub struct FuzzArgs {
    /// Simulate this number of worlds.
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    worlds: u64,
    /// Draw the worlds from this seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Show this number of worlds, those with the most regret first.
    #[arg(long, value_name = "N", default_value_t = 10)]
    worst: usize,
    /// Write these worlds as scenario files to this directory.
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Write a plot to this file.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub const EXAMPLES: &str = "\
Examples:
  forebay sim fuzz
  forebay sim fuzz --worlds 1000 --seed 7 --plot regret.svg
  forebay sim fuzz --worlds 200 --save worst && forebay sim compare worst/world-0-17.toml";

pub fn run(args: &FuzzArgs) -> anyhow::Result<Verdict> {
    if let Some(plot) = &args.plot {
        output::check_plot_path(plot, Path::new(""))?;
    }
    let report = FuzzReport::new(args.seed, simulate(args));
    let worst = &report.worlds[..args.worst.min(report.worlds.len())];
    if let Some(dir) = &args.save {
        save(dir, args, worst)?;
    }
    if let Some(path) = &args.plot {
        fs::write(path, distribution(&report))
            .with_context(|| format!("cannot write `{}`", path.display()))?;
        output::aside(&format!("the plot is in `{}`", path.display()));
    }
    match args.format {
        Format::Json => output::json(&Versioned { format: JSON_FORMAT, result: &report })?,
        Format::Text => output::data(&text(&report, worst))?,
    }
    Ok(Verdict::Yes)
}

/// Simulates all worlds, on every core.
fn simulate(args: &FuzzArgs) -> Vec<WorldResult> {
    let bar = output::item_bar("worlds", args.worlds);
    let (next, results) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= args.worlds {
                        return;
                    }
                    let result = World::new(args.seed, number).compare();
                    results.lock().expect("no world panics").push(result);
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    results.into_inner().expect("no world panics")
}

fn save(dir: &Path, args: &FuzzArgs, worst: &[WorldResult]) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create `{}`", dir.display()))?;
    let worlds = (0..args.worlds).map(|number| World::new(args.seed, number));
    for world in worlds.filter(|world| worst.iter().any(|one| one.name == world.name)) {
        let path = dir.join(format!("{}.toml", world.name));
        fs::write(&path, &world.text)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    output::aside(&format!("{} scenario files are in `{}`", worst.len(), dir.display()));
    Ok(())
}

fn text(report: &FuzzReport, worst: &[WorldResult]) -> String {
    let row = |what: &str, target: &str, of: &Distribution| {
        let figures = [of.worst_5_percent, of.worst_1_percent, of.worst, of.mean];
        let figures = figures.map(|figure| format!("{figure:.3}"));
        [what.to_owned(), target.to_owned(), format!("{:.1}%", of.met * 100.0)]
            .into_iter()
            .chain(figures)
            .collect()
    };
    let rows =
        [row("busy GPU time", ">= 0.98", &report.busy), row("cost", "<= 1.02", &report.cost)];
    let header = ["FOREBAY / BEST", "TARGET", "MET", "WORST 5%", "WORST 1%", "WORST", "MEAN"];
    let summary = output::table(&header, &rows);
    let busy = |world: &WorldResult| {
        world.figures.iter().map(|Figures { busy, .. }| format!("{busy:.3}")).collect::<Vec<_>>()
    };
    let world = |world: &WorldResult| {
        let (busy_ratio, cost_ratio) = (world.busy, world.cost);
        let mut row = vec![
            world.name.clone(),
            format!("{:.3} ± {:.3}", busy_ratio.value, busy_ratio.noise),
            format!("{:.3} ± {:.3}", cost_ratio.value, cost_ratio.noise),
            cost_ratio.best.to_string(),
        ];
        row.extend(busy(world));
        row
    };
    let rows: Vec<Vec<String>> = worst.iter().map(world).collect();
    let header =
        ["WORLD", "BUSY", "COST", "CHEAPEST", "NONE", "LRU", "QUIVER", "PRELOAD", "FOREBAY"];
    format!("{summary}\n{}", output::table(&header, &rows))
}
