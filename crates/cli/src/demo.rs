//! `forebay demo`: the product on data it makes itself, with nothing else installed.
//!
//! A small dataset behind a slow, unreliable S3 server; its digest is built twice over (files and
//! packs), verified, and verified again after one object has been changed behind its back.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use forebay_core::{ByteSize, Namespace, digest::plan::Layout, units::ByteRate};
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, SECRET_KEY};
use forebay_origin::{Credentials, Options};
use serde::Serialize;

use crate::{
    digest::{
        build::{self, Spec},
        verify::{self, Chosen},
    },
    output::{self, Format, Verdict},
};

/// How to run the demonstration.
#[derive(Debug, clap::Args)]
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
    /// How to report.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// One step of the demonstration, and what it cost the origin.
#[derive(Debug, Serialize)]
struct Step {
    name: String,
    seconds: f64,
    bytes: u64,
    origin_requests: u64,
    origin_bytes: u64,
    failures_survived: u64,
    result: String,
}

/// From thumbnails to photographs.
const LENGTHS: [u64; 6] = [2_000, 8_000, 20_000, 50_000, 110_000, 400_000];
const SEED: u64 = 20;

pub async fn run(args: Args) -> anyhow::Result<Verdict> {
    let directory = tempfile::tempdir().context("make room for the demonstration")?;
    let root = directory.path().join("origin");
    let made = make_dataset(&root.join("bucket/train"), args.size)
        .context("make a dataset in the directory for temporary files")?;
    output::note(&format!(
        "made {} objects, {}; serving them over S3 at {}, {} ms a request, {} % of them failing",
        made.objects,
        ByteSize(made.bytes),
        args.bandwidth,
        args.latency.as_millis(),
        args.fail_rate * 100.0
    ));
    let origin = DevOrigin::start(Config {
        bandwidth: Some(args.bandwidth),
        latency: args.latency,
        fail_rate: args.fail_rate,
        seed: SEED,
        ..Config::new(&root)
    })?;
    let demo = Demo {
        options: Options {
            endpoint: Some(origin.endpoint()),
            credentials: Some(Credentials {
                access_key: ACCESS_KEY.to_owned(),
                secret_key: SECRET_KEY.to_owned(),
            }),
            ..Options::default()
        },
        origin,
        directory: directory.path(),
    };

    let mut steps = Vec::new();
    steps.push(demo.build("build, an item a blob", Layout::Files, "files.digest").await?);
    let packs = Layout::Pack(ByteSize::mib(1));
    steps.push(demo.build("build, small neighbours packed", packs, "packs.digest").await?);
    steps.push(demo.verify("verify", "packs.digest", 0).await?);
    let victim = root.join("bucket/train").join(&made.last);
    fs::write(&victim, b"not what it was").context("change an object")?;
    steps.push(demo.verify("verify after one object changed", "packs.digest", 1).await?);

    match args.format {
        Format::Json => output::json(&steps)?,
        Format::Text => output::data(&describe(&steps))?,
    }
    Ok(Verdict::Yes)
}

struct Demo<'a> {
    options: Options,
    origin: DevOrigin,
    directory: &'a Path,
}

const URL: &str = "s3://bucket/train";

impl Demo<'_> {
    async fn build(&self, step: &str, layout: Layout, name: &str) -> anyhow::Result<Step> {
        self.origin.reset_counters();
        let spec = Spec {
            url: URL.to_owned(),
            options: self.options.clone(),
            output: self.directory.join(name),
            layout,
            namespace: Namespace::public(),
            columns: None,
            chunks: None,
            exclude: Vec::new(),
            restart: false,
        };
        let progress = output::progress("building");
        let report = build::build(&spec, &progress).await;
        progress.finish_and_clear();
        let report = report.context(step.to_owned())?;
        let chunks = report.summary.chunking.chunks();
        let result = format!("{} blobs in {chunks} chunks", report.summary.blobs);
        Ok(self.step(step, report.seconds, report.bytes_read, result))
    }

    async fn verify(&self, step: &str, name: &str, changes: usize) -> anyhow::Result<Step> {
        self.origin.reset_counters();
        let file = forebay_digest::open(&self.directory.join(name))?;
        let blobs = Chosen::All(file.digest.summary().blobs);
        let progress = output::progress("verifying");
        let (digest, namespace) = (&file.digest, Namespace::public());
        let report =
            verify::verify(digest, &namespace, URL, &self.options, &blobs, &progress).await;
        progress.finish_and_clear();
        let report = report.context(step.to_owned())?;
        ensure!(
            report.changed.len() == changes && report.vanished.is_empty(),
            "{step} found {report:?}: please report this as a bug"
        );
        let result = match report.changed.first() {
            None => "all as it should be".to_owned(),
            Some(object) => format!("noticed: {object}"),
        };
        Ok(self.step(step, report.seconds, report.bytes_checked, result))
    }

    fn step(&self, name: &str, seconds: f64, bytes: u64, result: String) -> Step {
        let counters = self.origin.counters();
        Step {
            name: name.to_owned(),
            seconds,
            bytes,
            origin_requests: counters.requests_total(),
            origin_bytes: counters.bytes_sent,
            failures_survived: counters.failures_injected,
            result,
        }
    }
}

struct Made {
    objects: u64,
    bytes: u64,
    last: String,
}

/// Files of varying length in ten classes; the same bytes every time.
fn make_dataset(root: &Path, size: ByteSize) -> anyhow::Result<Made> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut made = Made { objects: 0, bytes: 0, last: String::new() };
    let mut content = Vec::new();
    while made.bytes < size.0 {
        let class = format!("class {}", made.objects % 10);
        if made.objects < 10 {
            fs::create_dir_all(root.join(&class))?;
        }
        let length = LENGTHS[random.usize(0..LENGTHS.len())] + random.u64(0..1000);
        content.resize(usize::try_from(length)?, 0);
        random.fill(&mut content);
        made.last = format!("{class}/item {:06}.bin", made.objects);
        fs::write(root.join(&made.last), &content)?;
        made.objects += 1;
        made.bytes += length;
    }
    ensure!(made.objects > 0, "a dataset of nothing shows nothing; try --size 64MiB");
    Ok(made)
}

fn describe(steps: &[Step]) -> String {
    let rows: Vec<_> = steps
        .iter()
        .map(|step| {
            vec![
                step.name.clone(),
                format!("{:.1} s", step.seconds),
                step.origin_requests.to_string(),
                ByteSize(step.origin_bytes).to_string(),
                step.failures_survived.to_string(),
                step.result.clone(),
            ]
        })
        .collect();
    let header = ["STEP", "TIME", "REQUESTS", "ORIGIN BYTES", "FAILED", "RESULT"];
    output::table(&header, &rows)
}
