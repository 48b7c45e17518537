//! The source of the demo's data: synthetic data, a directory, or a URL.
//!
//! Local data is served over S3 by the built-in origin, slowly and with failures; that origin
//! counts the bytes. A URL is read directly with the credentials of the environment; the jobs and
//! their agents count the bytes.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use forebay_core::{
    ByteSize, Namespace,
    units::{ByteRate, parse_duration},
};
use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, REGION};
use forebay_digest::Layout;
use forebay_origin::{Credentials, Options};

use super::dataset;
use crate::{
    commands::{
        dev,
        digest::build::{self, BuildReport, Spec},
    },
    output,
};

const URL: &str = "s3://bucket/train";
const SEED: u64 = 20;

/// What to read, and how slowly.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Data")]
pub struct SourceArgs {
    /// Read this directory, whose files are the items, or this URL.
    ///
    /// A directory is served over S3 at the speed of synthetic data. A URL is read at its own
    /// speed, with the credentials of the environment [default: synthetic data].
    #[arg(long, value_name = "DIR|URL")]
    data: Option<String>,
    /// Generate this size of synthetic data [default: 200MiB].
    #[arg(long, value_name = "SIZE", conflicts_with = "data")]
    size: Option<ByteSize>,
    /// Limit the origin to this rate [default: 80MB/s].
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<ByteRate>,
    /// Delay every request to the origin by this time [default: 10ms].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    latency: Option<Duration>,
    /// Fail this share of requests to the origin, from 0 to 1 [default: 0.005].
    #[arg(long, value_name = "SHARE", value_parser = dev::parse_share)]
    fail_rate: Option<f64>,
}

const SIZE: ByteSize = ByteSize::mib(200);
const BANDWIDTH: ByteRate = ByteRate(ByteSize(80_000_000));
const LATENCY: Duration = Duration::from_millis(10);
const FAIL_RATE: f64 = 0.005;

/// The data of the demo.
#[derive(Debug)]
pub struct Source {
    pub url: String,
    /// Description for messages.
    pub shown: String,
    options: Options,
    /// The built-in origin, for local data.
    pub origin: Option<DevOrigin>,
    pub latency: Duration,
    bandwidth: Option<ByteRate>,
}

impl SourceArgs {
    /// Writes or finds the data, and starts the origin.
    pub fn prepare(&self, directory: &Path) -> anyhow::Result<Source> {
        let is_url = self.data.as_ref().is_some_and(|data| data.contains("://"));
        if let (true, Some(url)) = (is_url, &self.data) {
            let shapes =
                [self.bandwidth.is_some(), self.latency.is_some(), self.fail_rate.is_some()];
            ensure!(
                !shapes.contains(&true),
                "--bandwidth, --latency and --fail-rate are for local data, and `{url}` is remote; \
                 leave them out"
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
                .context("cannot link the data into the origin")?;
            format!("`{data}`")
        } else {
            let written = dataset::write(&bucket.join("train"), self.size.unwrap_or(SIZE))
                .context("cannot write a dataset into the temporary directory")?;
            output::note(&format!(
                "generated {}, {}",
                output::count(written.objects, "object"),
                ByteSize(written.bytes)
            ));
            "synthetic data".to_owned()
        };
        self.serve(&root, shown)
    }

    fn serve(&self, root: &Path, shown: String) -> anyhow::Result<Source> {
        // The built-in origin accepts writes, and the files may be the user's own, so its secret
        // key is random.
        let credentials = Credentials {
            access_key: ACCESS_KEY.to_owned(),
            secret_key: dev::secret()?,
            session_token: None,
        };
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
            "serving {shown} over S3 at {bandwidth}, {} ms per request, {} % of requests fail",
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

/// The directory of --data.
fn directory_of_items(data: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(data);
    if path.is_file() {
        bail!("`{data}` is a file; --data takes a directory of items, or a URL");
    }
    ensure!(
        path.is_dir(),
        "there is no directory `{data}`; use another one, or a URL such as s3://bucket/train"
    );
    path.canonicalize().with_context(|| format!("cannot find `{data}`"))
}

impl Source {
    /// Environment variables for processes that read the data.
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

    /// Builds the digest of the data.
    pub async fn build_digest(&self, output: PathBuf) -> anyhow::Result<BuildReport> {
        let spec = Spec {
            url: self.url.clone(),
            options: self.options.clone(),
            output,
            layout: Layout::Files,
            namespace: Namespace::public(),
            columns: None,
            chunks: None,
            exclude: Vec::new(),
            from: None,
            nodes: None,
            restart: false,
        };
        let progress = output::progress("building the digest");
        let report = build::build(&spec, &progress).await;
        progress.finish_and_clear();
        report
    }

    /// Bytes per second: the limit of the origin, or the rate while the digest was built.
    pub fn rate(&self, built: &BuildReport) -> f64 {
        match self.bandwidth {
            Some(rate) => rate.0.0 as f64,
            None => built.bytes_read as f64 / built.seconds.max(1e-3),
        }
    }

    /// Bytes, requests and injected failures of the built-in origin; `None` for a URL.
    pub fn counters(&self) -> Option<[u64; 3]> {
        let counters = self.origin.as_ref()?.counters();
        Some([counters.bytes_sent, counters.requests_total(), counters.failures_injected])
    }

    /// Sets the counters of the built-in origin to 0.
    pub fn reset_counters(&self) {
        if let Some(origin) = &self.origin {
            origin.reset_counters();
        }
    }
}
