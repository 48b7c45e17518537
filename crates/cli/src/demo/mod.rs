//! `forebay demo`: the product on data it makes itself, with nothing else installed.
//!
//! A small dataset behind a slow, unreliable S3 server, and two jobs that read all of it several times,
//! each in a random order of its own: first straight from the origin, then through forebay. Everything is
//! real: processes, sockets, the origin's counters.

mod dataset;
pub mod job;

use std::{
    io::BufRead as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use forebay_core::{ByteSize, Namespace, digest::plan::Layout, units::ByteRate};
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, REGION, SECRET_KEY};
use forebay_origin::{Credentials, Options};
use indicatif::{MultiProgress, ProgressBar};
use serde::Serialize;

use crate::{
    digest::build::{self, Spec},
    output::{self, Format, Verdict},
};

/// How to run the demonstration.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  forebay demo\n  forebay demo --jobs 4 --latency 50ms --format json"
)]
pub struct Args {
    /// How much data to make.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    size: ByteSize,
    /// What the origin can send.
    #[arg(long, value_name = "RATE", default_value = "50MB/s")]
    bandwidth: ByteRate,
    /// How long the origin lets every request wait.
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = forebay_core::units::parse_duration)]
    latency: Duration,
    /// The share of requests that the origin fails on purpose.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    fail_rate: f64,
    /// How many jobs read at once.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=16))]
    jobs: u64,
    /// How often each job reads everything.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=100))]
    epochs: u64,
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What one way of reading took.
#[derive(Debug, Serialize)]
struct Phase {
    name: &'static str,
    /// From the first job's start to the last job's end.
    seconds: f64,
    /// Of each job.
    job_seconds: Vec<f64>,
    /// Items given to all jobs together.
    items: u64,
    /// The share of them that the node had.
    hit_share: f64,
    /// What the origin counted.
    origin_bytes: u64,
    origin_requests: u64,
    failures_survived: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    dataset_items: u64,
    dataset_bytes: u64,
    jobs: u64,
    epochs: u64,
    phases: [Phase; 2],
    speedup: f64,
}

const URL: &str = "s3://bucket/train";
const SEED: u64 = 20;

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let directory = tempfile::tempdir().context("make room for the demonstration")?;
    let root = directory.path().join("origin");
    let made = dataset::make(&root.join("bucket/train"), args.size)
        .context("make a dataset in the directory for temporary files")?;
    let origin = DevOrigin::start(Config {
        bandwidth: Some(args.bandwidth),
        latency: args.latency,
        fail_rate: args.fail_rate,
        seed: SEED,
        ..Config::new(&root)
    })?;
    output::note(&format!(
        "made {} objects, {}; serving them over S3 at {}, {} ms a request, {} % of them failing",
        made.objects,
        ByteSize(made.bytes),
        args.bandwidth,
        args.latency.as_millis(),
        args.fail_rate * 100.0
    ));
    let demo = Demo { origin, directory: directory.path(), args: &args, items: made.objects };
    demo.build_digest().await?;
    let straight = tokio::task::block_in_place(|| demo.phase("straight from the origin", None))?;
    let node = demo.start_node(ByteSize(made.bytes))?;
    let through =
        tokio::task::block_in_place(|| demo.phase("through forebay", Some(&node.socket)))?;
    drop(node);

    let report = Report {
        dataset_items: made.objects,
        dataset_bytes: made.bytes,
        jobs: args.jobs,
        epochs: args.epochs,
        speedup: straight.seconds / through.seconds,
        phases: [straight, through],
    };
    match args.format {
        Format::Json => output::json(&report)?,
        Format::Text => output::data(&describe(&report))?,
    }
    Ok(Verdict::Yes)
}

struct Demo<'a> {
    origin: DevOrigin,
    directory: &'a Path,
    args: &'a Args,
    items: u64,
}

/// A node's process; killed when dropped, since nothing it holds is wanted any more.
struct Node {
    process: Child,
    socket: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Demo<'_> {
    fn digest(&self) -> PathBuf {
        self.directory.join("train.digest")
    }

    async fn build_digest(&self) -> anyhow::Result<()> {
        let credentials =
            Credentials { access_key: ACCESS_KEY.to_owned(), secret_key: SECRET_KEY.to_owned() };
        let spec = Spec {
            url: URL.to_owned(),
            options: Options {
                endpoint: Some(self.origin.endpoint()),
                credentials: Some(credentials),
                ..Options::default()
            },
            output: self.digest(),
            layout: Layout::Files,
            namespace: Namespace::public(),
            columns: None,
            chunks: None,
            exclude: Vec::new(),
            restart: false,
        };
        let progress = output::progress("building the digest");
        let report = build::build(&spec, &progress).await;
        progress.finish_and_clear();
        let report = report.context("build the digest")?;
        ensure!(
            report.summary.items == self.items,
            "the digest lacks items: please report this as a bug"
        );
        output::note(&format!(
            "built its digest in {:.1} s: {} in {} chunks",
            report.seconds,
            output::count(report.summary.blobs, "blob"),
            report.summary.chunking.chunks()
        ));
        Ok(())
    }

    /// A node that has room for the whole dataset.
    fn start_node(&self, dataset: ByteSize) -> anyhow::Result<Node> {
        let socket = self.directory.join("node/node.sock");
        let capacity = ByteSize(dataset.0 + dataset.0 / 4 + (8 << 20));
        let mut process = this_program()?
            .arg("serve")
            .arg("--socket")
            .arg(&socket)
            .arg("--directory")
            .arg(self.directory.join("cache"))
            .args(["--capacity", &format!("{}B", capacity.0)])
            .env("FOREBAY_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .context("start a node")?;
        let ready = process.stdout.take().context("listen to the node")?;
        let mut line = String::new();
        std::io::BufReader::new(ready).read_line(&mut line)?;
        let node = Node { process, socket };
        ensure!(!line.is_empty(), "the node did not start");
        Ok(node)
    }

    /// All jobs at once, each in a process of its own.
    fn phase(&self, name: &'static str, node: Option<&Path>) -> anyhow::Result<Phase> {
        self.origin.reset_counters();
        let bars = output::several_bars();
        let started = Instant::now();
        let told: Vec<anyhow::Result<job::Told>> = thread::scope(|scope| {
            let jobs = (0..self.args.jobs).map(|index| {
                let bar = self.bar(&bars, name, index);
                scope.spawn(move || self.job(index, node, &bar))
            });
            let jobs: Vec<_> = jobs.collect();
            jobs.into_iter()
                .map(|job| job.join().expect("jobs are watched without panic"))
                .collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        let _ = bars.clear();
        let told = told.into_iter().collect::<anyhow::Result<Vec<_>>>().context(name)?;
        let items: u64 = told.iter().map(|told| told.items).sum();
        ensure!(
            items == self.items * self.args.jobs * self.args.epochs,
            "{name}, the jobs read {items} items: please report this as a bug"
        );
        let hits: u64 = told.iter().map(|told| told.hits).sum();
        let counters = self.origin.counters();
        Ok(Phase {
            name,
            seconds,
            job_seconds: told.iter().map(|told| told.seconds).collect(),
            items,
            hit_share: hits as f64 / items as f64,
            origin_bytes: counters.bytes_sent,
            origin_requests: counters.requests_total(),
            failures_survived: counters.failures_injected,
        })
    }

    fn bar(&self, bars: &MultiProgress, name: &str, index: u64) -> ProgressBar {
        bars.add(output::item_bar(
            &format!("{name}, job {}", index + 1),
            self.items * self.args.epochs,
        ))
    }

    fn job(&self, index: u64, node: Option<&Path>, bar: &ProgressBar) -> anyhow::Result<job::Told> {
        let mut command = this_program()?;
        command.arg("demo-job").arg("--digest").arg(self.digest());
        command.args(["--seed", &(index * 1_000).to_string()]);
        command.args(["--epochs", &self.args.epochs.to_string()]);
        if let Some(node) = node {
            let agent = self.directory.join(format!("job-{index}/agent.sock"));
            command.arg("--node").arg(node).arg("--agent").arg(agent);
        }
        command
            .env("AWS_ENDPOINT_URL", self.origin.endpoint())
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
            .env("AWS_REGION", REGION)
            .stdout(Stdio::piped());
        let mut process = command.spawn().context("start a job")?;
        let lines = std::io::BufReader::new(process.stdout.take().context("listen to a job")?);
        let mut last = job::Told::default();
        for line in lines.lines() {
            last = serde_json::from_str(&line?).context("understand a job")?;
            bar.set_position(last.items);
        }
        ensure!(process.wait()?.success(), "job {} failed", index + 1);
        Ok(last)
    }
}

fn this_program() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("find this program")?))
}

fn describe(report: &Report) -> String {
    let rows: Vec<_> = report
        .phases
        .iter()
        .map(|phase| {
            let copies = phase.origin_bytes as f64 / report.dataset_bytes as f64;
            vec![
                phase.name.to_owned(),
                format!("{:.1} s", phase.seconds),
                format!("{:.0}", phase.items as f64 / phase.seconds),
                format!("{} ({copies:.2} x)", ByteSize(phase.origin_bytes)),
                phase.origin_requests.to_string(),
                phase.failures_survived.to_string(),
                format!("{:.1} %", phase.hit_share * 100.0),
            ]
        })
        .collect();
    let header =
        ["READING", "TIME", "ITEMS/S", "ORIGIN BYTES (DATASETS)", "REQUESTS", "FAILED", "HITS"];
    format!(
        "{} jobs, {} epochs each, every item exactly once per epoch, every byte checked:\n\n{}\n\
         forebay is {:.1} x as fast here.\n",
        report.jobs,
        report.epochs,
        output::table(&header, &rows),
        report.speedup
    )
}
