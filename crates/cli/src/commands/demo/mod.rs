//! `forebay demo`: the product on data it makes itself, or on the user's own, with nothing else installed.
//!
//! A dataset behind a slow, unreliable origin, and seven jobs of three kinds that read all of it several times,
//! each in a random order of its own: first straight from the origin, then through a cache of a fifth of the
//! dataset, which they share. Everything is real: processes, sockets, the origin's counters; only what jobs
//! compute is simulated, by time.

mod cache;
mod dataset;
pub mod job;
mod kinds;
mod phase;
mod plot;
mod processes;
mod report;
mod room;
mod source;
mod watch;

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use forebay_core::{ByteSize, units::parse_duration};

use self::{
    cache::Cache,
    kinds::KINDS,
    phase::{Phase, Stage},
    processes::Processes,
    report::Report,
    room::Room,
};
use crate::{
    output::{self, Format, Verdict},
    stop::{self, Interrupted},
};

/// How to run the demonstration.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    source: source::Args,
    /// How much of the dataset the cache has room for.
    #[arg(long, value_name = "SHARE", default_value = "20%", value_parser = parse_share)]
    cache: f64,
    /// How many jobs read at once: I/O-bound, in between and compute-bound in turn.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=16))]
    jobs: u64,
    /// How often each job reads everything.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    epochs: u64,
    /// How long a mini-batch is computed on, for each of the three kinds, with commas in between. By default so
    /// long that with all data at hand they would be as much faster as Quiver's were.
    #[arg(long, value_name = "TIME,TIME,TIME", value_delimiter = ',', value_parser = parse_duration)]
    compute: Vec<Duration>,
    /// Items of a mini-batch [default: 16, or fewer if there are few].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Draw how far every job was and which chunks were in the cache, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  forebay demo
  forebay demo --plot demo.svg
  forebay demo --data ./images                        your own files, served as slowly
  forebay demo --data s3://bucket/train --epochs 3    your own bucket, as it is
  forebay demo --cache 50% --jobs 4 --latency 50ms --format json | jq .total.speedup

Nothing is kept: all of it happens in a directory for temporary files, which is removed, also after Ctrl-C; if the
demonstration is killed, by the next one.";

/// Items of a mini-batch,
const BATCH: u64 = 16;
/// but an epoch has so many of them, if it can.
const EPOCH_BATCHES: u64 = 128;

/// "20%" or "0.2".
fn parse_share(text: &str) -> Result<f64, String> {
    let (number, of) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number / of);
    let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "a share is above 0% and up to 100%, such as 20%".to_owned())
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    if let Some(plot) = &args.plot {
        output::check_plot(plot, Path::new(""))?;
    }
    ensure!(
        args.compute.is_empty() || args.compute.len() == KINDS.len(),
        "--compute takes {} times, one for each kind, such as 50ms,100ms,200ms",
        KINDS.len()
    );
    let asked = stop::asked()?;
    let room = Room::new().context("make room for the demonstration")?;
    let processes = Arc::<Processes>::default();
    let outcome = {
        let mut showing = pin!(show(&args, room.path(), Arc::clone(&processes)));
        tokio::select! {
            biased;
            outcome = &mut showing => outcome,
            () = asked => {
                processes.end_all();
                // What it does now is to notice that.
                let _ = showing.await;
                Err(Interrupted("").into())
            }
        }
    };
    processes.end_all();
    room.remove()?;
    match outcome {
        Err(error) if error.is::<Interrupted>() => {
            Err(Interrupted("interrupted; nothing is left behind").into())
        }
        outcome => outcome.map(|()| Verdict::Yes),
    }
}

async fn show(args: &Args, directory: &Path, processes: Arc<Processes>) -> anyhow::Result<()> {
    let source = args.source.prepare(directory)?;
    let digest_file = directory.join("train.digest");
    let built = source.build_digest(digest_file.clone()).await.context("build the digest")?;
    let summary = &built.summary;
    ensure!(summary.items > 0, "there are no files in {}; give 100 or more", source.shown);
    let digest = forebay_digest::open(&digest_file)?.digest.clone();
    let cache = Cache::new(args.cache, &digest)?;
    let batch =
        args.batch.map_or_else(|| (summary.items / EPOCH_BATCHES).clamp(1, BATCH), u64::from);
    let compute = match args.compute[..] {
        [] => {
            let fair = fair_share(args, summary.bytes * batch / summary.items, source.rate(&built));
            let requests = source.latency.mul_f64(batch as f64 / job::REQUESTS as f64);
            KINDS.map(|kind| kind.compute(fair.max(requests)))
        }
        _ => std::array::from_fn(|kind| args.compute[kind]),
    };
    output::note(&format!(
        "built its digest in {:.1} s: {} items, {}, in {} chunks; straight, {} jobs will take about {:.0} s",
        built.seconds,
        summary.items,
        ByteSize(summary.bytes),
        cache.of,
        args.jobs,
        summary.bytes as f64 * (args.jobs * args.epochs) as f64 / source.rate(&built)
    ));
    let stage = Arc::new(Stage {
        processes,
        source,
        directory: directory.to_owned(),
        digest_file,
        digest,
        cache,
        jobs: usize::try_from(args.jobs)?,
        epochs: args.epochs,
        batch: u32::try_from(batch)?,
        compute,
    });
    let straight = blocking(&stage, Stage::straight).await?;
    let through = blocking(&stage, Stage::through_forebay).await?;
    let report = Report::new(&stage, &straight, &through);
    if let Some(plot) = &args.plot {
        std::fs::write(plot, plot::draw(&stage, &straight, &through))
            .with_context(|| format!("write `{}`", plot.display()))?;
    }
    match args.format {
        Format::Json => output::json(&report),
        Format::Text => output::data(&report.for_people()),
    }
}

/// How long the origin takes to send a mini-batch to each job.
fn fair_share(args: &Args, batch_bytes: u64, rate: f64) -> Duration {
    let seconds = (args.jobs * batch_bytes) as f64 / rate.max(1.0);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Jobs are waited for on a thread of their own, so that a Ctrl-C is heard meanwhile.
async fn blocking(
    stage: &Arc<Stage>,
    act: impl FnOnce(&Stage) -> anyhow::Result<Phase> + Send + 'static,
) -> anyhow::Result<Phase> {
    let stage = Arc::clone(stage);
    tokio::task::spawn_blocking(move || act(&stage)).await?
}
