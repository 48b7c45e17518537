//! Where the data comes from: made here, the user's own directory, or wherever the user's URL says.
//!
//! What lies on this machine is served over S3 by the built-in origin, slowly and not quite reliably; that one
//! counts. A URL is read as it is, with what the environment says; there the jobs and their agents count.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use forebay_core::{
    ByteSize, Namespace,
    digest::plan::Layout,
    units::{ByteRate, parse_duration},
};
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, REGION};
use forebay_origin::{Credentials, Options};

use super::dataset;
use crate::{
    dev,
    digest::build::{self, Report, Spec},
    output,
};

const URL: &str = "s3://bucket/train";
const SEED: u64 = 20;

/// What to read, and how slowly.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Data")]
pub struct Args {
    /// Read this instead of data that is made: a directory, whose files are the items, or a URL. A directory is
    /// served over S3 as slowly as made data is; a URL is read as it is, with the credentials of the environment.
    #[arg(long, value_name = "DIR|URL")]
    data: Option<String>,
    /// How much data to make [default: 200MiB].
    #[arg(long, value_name = "SIZE", conflicts_with = "data")]
    size: Option<ByteSize>,
    /// What the origin can send [default: 80MB/s].
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<ByteRate>,
    /// How long the origin lets every request wait [default: 10ms].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    latency: Option<Duration>,
    /// The share of requests that the origin fails on purpose [default: 0.005].
    #[arg(long, value_name = "SHARE", value_parser = dev::parse_share)]
    fail_rate: Option<f64>,
}

const SIZE: ByteSize = ByteSize::mib(200);
const BANDWIDTH: ByteRate = ByteRate(ByteSize(80_000_000));
const LATENCY: Duration = Duration::from_millis(10);
const FAIL_RATE: f64 = 0.005;

/// Where the data is.
#[derive(Debug)]
pub struct Source {
    pub url: String,
    /// What was said of it.
    pub shown: String,
    options: Options,
    /// The origin, if it is ours.
    pub origin: Option<DevOrigin>,
    pub latency: Duration,
    bandwidth: Option<ByteRate>,
}

impl Args {
    /// Makes the data, or finds it, and has it served.
    pub fn prepare(&self, directory: &Path) -> anyhow::Result<Source> {
        let is_url = self.data.as_ref().is_some_and(|data| data.contains("://"));
        if let (true, Some(url)) = (is_url, &self.data) {
            let shapes =
                [self.bandwidth.is_some(), self.latency.is_some(), self.fail_rate.is_some()];
            ensure!(
                !shapes.contains(&true),
                "--bandwidth, --latency and --fail-rate are for data that is served here; `{url}` is read as it is"
            );
            return Ok(Source {
                url: url.clone(),
                shown: url.clone(),
                options: Options::default(),
                origin: None,
                latency: Duration::ZERO,
                bandwidth: None,
            });
        }
        let root = directory.join("origin");
        let bucket = root.join("bucket");
        std::fs::create_dir_all(&bucket)?;
        let shown = if let Some(data) = &self.data {
            symlink(directory_of_items(data)?, bucket.join("train"))
                .context("lead the origin to the data")?;
            format!("`{data}`")
        } else {
            let made = dataset::make(&bucket.join("train"), self.size.unwrap_or(SIZE))
                .context("make a dataset in the directory for temporary files")?;
            output::note(&format!("made {} objects, {}", made.objects, ByteSize(made.bytes)));
            "data made here".to_owned()
        };
        self.serve(&root, shown)
    }

    fn serve(&self, root: &Path, shown: String) -> anyhow::Result<Source> {
        // The built-in origin takes writes, and these may be the user's own files: nobody else knows this secret.
        let credentials =
            Credentials { access_key: ACCESS_KEY.to_owned(), secret_key: dev::secret()? };
        let (bandwidth, latency) =
            (self.bandwidth.unwrap_or(BANDWIDTH), self.latency.unwrap_or(LATENCY));
        let fail_rate = self.fail_rate.unwrap_or(FAIL_RATE);
        let origin = DevOrigin::start(Config {
            bandwidth: Some(bandwidth),
            latency,
            fail_rate,
            seed: SEED,
            access_key: credentials.access_key.clone(),
            secret_key: credentials.secret_key.clone(),
            ..Config::new(root)
        })?;
        output::note(&format!(
            "serving {shown} over S3 at {bandwidth}, {} ms a request, {} % of them failing",
            latency.as_millis(),
            fail_rate * 100.0
        ));
        Ok(Source {
            url: URL.to_owned(),
            shown,
            options: Options {
                endpoint: Some(origin.endpoint()),
                credentials: Some(credentials),
                ..Options::default()
            },
            origin: Some(origin),
            latency,
            bandwidth: Some(bandwidth),
        })
    }
}

/// The directory of the user's own data.
fn directory_of_items(data: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(data);
    if path.is_file() {
        bail!("`{data}` is a file; --data takes the directory that the items lie in, or a URL");
    }
    ensure!(
        path.is_dir(),
        "there is no directory `{data}`; name one, or a URL such as s3://bucket/train"
    );
    path.canonicalize().with_context(|| format!("find `{data}`"))
}

impl Source {
    /// How processes reach it: what the environment has to say besides.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let (Some(endpoint), Some(credentials)) =
            (&self.options.endpoint, &self.options.credentials)
        else {
            return Vec::new();
        };
        vec![
            ("AWS_ENDPOINT_URL", endpoint.clone()),
            ("AWS_ACCESS_KEY_ID", credentials.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", credentials.secret_key.clone()),
            ("AWS_REGION", REGION.to_owned()),
        ]
    }

    /// The table of it.
    pub async fn build_digest(&self, output: PathBuf) -> anyhow::Result<Report> {
        let spec = Spec {
            url: self.url.clone(),
            options: self.options.clone(),
            output,
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
        report
    }

    /// What it can send in a second: as it was told, or as it was seen while the digest was built.
    pub fn rate(&self, built: &Report) -> f64 {
        match self.bandwidth {
            Some(rate) => rate.0.0 as f64,
            None => built.bytes_read as f64 / built.seconds.max(1e-3),
        }
    }

    /// Bytes, requests and failures on purpose that our origin counted; nothing if it is somebody else's.
    pub fn counted(&self) -> Option<[u64; 3]> {
        let counted = self.origin.as_ref()?.counters();
        Some([counted.bytes_sent, counted.requests_total(), counted.failures_injected])
    }

    /// Begins to count anew.
    pub fn reset_counters(&self) {
        if let Some(origin) = &self.origin {
            origin.reset_counters();
        }
    }
}
