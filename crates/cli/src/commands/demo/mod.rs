//! `forebay demo`: jobs with and without forebay, on synthetic data or the user's own.
//!
//! A dataset lies behind a slow, unreliable origin. Seven jobs of three kinds read all of it
//! several times, each in its own random order: first directly from the origin, then through a
//! shared cache of 20 % of the dataset. Processes, sockets and the counters of the origin are real.
//! Only the computation of the jobs is simulated, by sleeping.

mod cache;
mod dataset;
pub mod job;
mod job_kinds;
mod plot;
mod processes;
mod report;
mod residency_log;
mod run;
mod source;
pub mod streams;
mod workdir;

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
    job_kinds::KINDS,
    processes::Processes,
    report::DemoReport,
    run::{Experiment, Phase},
    workdir::Workdir,
};
use crate::{
    output::{self, Format, Verdict},
    signals::{self, Interrupted},
};

/// Compare jobs that read a slow origin directly with jobs that share a small cache.
///
/// Seven jobs of three kinds read a dataset several times, each in its own random order. Only their
/// computation is simulated.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(override_usage = "forebay demo [streams] [OPTIONS]")]
pub struct Args {
    #[command(subcommand)]
    other: Option<OtherDemo>,
    #[command(flatten)]
    source: source::SourceArgs,
    /// Size the cache for this share of the dataset.
    #[arg(long, value_name = "SHARE", default_value = "20%", value_parser = parse_share)]
    cache: f64,
    /// Run this number of jobs: I/O-bound, in between and compute-bound, alternating.
    #[arg(long, value_name = "N", default_value_t = 7,
          value_parser = clap::value_parser!(u64).range(1..=16))]
    jobs: u64,
    /// Read the dataset this number of times per job.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    epochs: u64,
    /// Compute on a mini-batch for these times, one per kind of job, separated by commas.
    ///
    /// [default: times that give the published speed-ups of Quiver if all data is cached]
    #[arg(long, value_name = "TIME,TIME,TIME", value_delimiter = ',',
          value_parser = parse_duration)]
    compute: Vec<Duration>,
    /// Use mini-batches of this number of items [default: 16, fewer for small datasets].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Write a plot of the progress of jobs and of the cached chunks to this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print the result in this format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Demos besides that of training jobs.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum OtherDemo {
    Streams(streams::Args),
}

const EXAMPLES: &str = "\
Examples:
  forebay demo
  forebay demo streams                                k-means over data four times the memory
  forebay demo --plot demo.svg
  forebay demo --data ./images                        your own files, from the slow origin
  forebay demo --data s3://bucket/train --epochs 3    your own bucket, at its own speed
  forebay demo --cache 50% --jobs 4 --latency 50ms --format json | jq .total.speedup

The demo works in a temporary directory, which it removes at the end and after Ctrl-C. If it is
killed, the next demo removes the directory.";

/// Largest default number of items in a mini-batch.
const BATCH: u64 = 16;
/// Default number of mini-batches in an epoch, if there are enough items.
const EPOCH_BATCHES: u64 = 128;

/// Parses a share such as `20%` or `0.2`.
fn parse_share(text: &str) -> Result<f64, String> {
    let (number, of) = match text.strip_suffix('%') {
        Some(percent) => (percent.trim(), 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|number| number / of);
    let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "a share is more than 0% and at most 100%, such as 20%".to_owned())
}

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    if let Some(OtherDemo::Streams(args)) = args.other {
        return streams::run(args).await;
    }
    if let Some(plot) = &args.plot {
        output::check_plot_path(plot, Path::new(""))?;
    }
    ensure!(
        args.compute.is_empty() || args.compute.len() == KINDS.len(),
        "--compute takes {} times, one per kind of job, such as 50ms,100ms,200ms",
        KINDS.len()
    );
    in_workdir(|directory, processes| async move { compare(&args, &directory, processes).await })
        .await
}

/// Runs a demo in a temporary directory. Ctrl-C ends its processes.
async fn in_workdir<F: Future<Output = anyhow::Result<()>>>(
    demo: impl FnOnce(PathBuf, Arc<Processes>) -> F,
) -> anyhow::Result<Verdict> {
    let stop = signals::stop_requested()?;
    let workdir = Workdir::new().context("cannot make a temporary directory")?;
    let processes = Arc::<Processes>::default();
    let outcome = {
        let mut demo = pin!(demo(workdir.path().to_owned(), Arc::clone(&processes)));
        tokio::select! {
            biased;
            outcome = &mut demo => outcome,
            () = stop => {
                processes.end_all();
                // It ends with an error, because its processes have ended.
                let _ = demo.await;
                Err(Interrupted("").into())
            }
        }
    };
    processes.end_all();
    workdir.remove()?;
    match outcome {
        Err(error) if error.is::<Interrupted>() => {
            Err(Interrupted("interrupted; the temporary directory is removed").into())
        }
        outcome => outcome.map(|()| Verdict::Yes),
    }
}

/// Runs the jobs directly and through forebay, and reports.
async fn compare(args: &Args, directory: &Path, processes: Arc<Processes>) -> anyhow::Result<()> {
    let source = args.source.prepare(directory)?;
    let digest_file = directory.join("train.digest");
    let built =
        source.build_digest(digest_file.clone()).await.context("cannot build the digest")?;
    let summary = &built.summary;
    ensure!(summary.items > 0, "there are no files in {}; use 100 files or more", source.shown);
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
        "built the digest in {:.1} s: {} items, {}, {} chunks; direct reads of {} jobs will take \
         about {:.0} s",
        built.seconds,
        summary.items,
        ByteSize(summary.bytes),
        cache.dataset_chunks,
        args.jobs,
        summary.bytes as f64 * (args.jobs * args.epochs) as f64 / source.rate(&built)
    ));
    let experiment = Arc::new(Experiment {
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
    let direct = blocking(&experiment, Experiment::run_direct).await?;
    let cached = blocking(&experiment, Experiment::run_cached).await?;
    let report = DemoReport::new(&experiment, &direct, &cached);
    if let Some(plot) = &args.plot {
        std::fs::write(plot, plot::draw(&experiment, &direct, &cached))
            .with_context(|| format!("cannot write `{}`", plot.display()))?;
    }
    match args.format {
        Format::Json => output::json(&report),
        Format::Text => output::data(&report.to_text()),
    }
}

/// Time in which the origin sends a mini-batch to each job.
fn fair_share(args: &Args, batch_bytes: u64, rate: f64) -> Duration {
    let seconds = (args.jobs * batch_bytes) as f64 / rate.max(1.0);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Runs a phase on a blocking thread, so that Ctrl-C is handled meanwhile.
async fn blocking(
    experiment: &Arc<Experiment>,
    run: impl FnOnce(&Experiment) -> anyhow::Result<Phase> + Send + 'static,
) -> anyhow::Result<Phase> {
    let experiment = Arc::clone(experiment);
    tokio::task::spawn_blocking(move || run(&experiment)).await?
}
