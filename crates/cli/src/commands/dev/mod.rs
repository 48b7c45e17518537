//! `forebay dev`: an S3 server for tests and demos, and generated reference pages.

mod reference;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, anyhow};
use forebay_core::units::{ByteRate, parse_duration};
use forebay_dev_origin::Config;
use forebay_transport::Entropy;

use crate::{
    output::{self, Verdict},
    signals,
};

/// Run an S3 server for tests, and generate reference pages.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serve a directory over S3, with limited bandwidth, latency and failures.
    ///
    /// The directories in DIR are the buckets. When the server is ready, it prints one line of JSON
    /// with its endpoint and credentials. The credentials are public unless `--private` is given,
    /// so the server listens on loopback only. GET /-/counters returns requests and bytes, in total
    /// and per object; POST /-/counters/reset sets them to 0.
    #[command(after_help = ORIGIN_EXAMPLES)]
    Origin(DevOriginArgs),
    /// Print a generated page of docs/reference.
    #[command(after_help = reference::EXAMPLES)]
    Reference(reference::ReferenceArgs),
}

const ORIGIN_EXAMPLES: &str = "\
Examples:
  forebay dev origin --root ./data --listen 127.0.0.1:9000
  forebay dev origin --root ./data --bandwidth 100MB/s --latency 20ms --fail-rate 0.01
  curl http://127.0.0.1:9000/-/counters

To use the server:
  export AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_ACCESS_KEY_ID=forebay \\
         AWS_SECRET_ACCESS_KEY=forebay-dev AWS_REGION=us-east-1
  forebay digest build s3://bucket/prefix -o x.digest";

/// What to serve, and how slowly.
#[derive(Debug, clap::Args)]
pub struct DevOriginArgs {
    /// Serve this directory. Its subdirectories are the buckets.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Listen on this address; port 0 takes a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Limit the rate of all bodies together [default: no limit].
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<ByteRate>,
    /// Delay every request by this time.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    latency: Duration,
    /// Fail this share of requests on purpose, from 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    fail_rate: f64,
    /// Choose the failing requests with this seed.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Use a random secret key instead of the public one, since the server accepts writes.
    #[arg(long)]
    private: bool,
}

/// Parses a share from 0 to 1.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1, such as 0.005".to_owned())
}

pub async fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::Origin(args) => origin(args).await,
        Command::Reference(args) => reference::run(&args),
    }
}

/// A random secret key.
pub fn secret() -> anyhow::Result<String> {
    let nonce = Entropy::kernel().nonce().context("cannot read random bytes from the system")?;
    Ok(nonce.iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn origin(args: DevOriginArgs) -> anyhow::Result<Verdict> {
    let mut config = Config {
        bandwidth: args.bandwidth,
        latency: args.latency,
        fail_rate: args.fail_rate,
        seed: args.seed,
        ..Config::new(args.root)
    };
    if args.private {
        config.secret_key = secret()?;
    }
    let keys = [config.access_key.clone(), config.secret_key.clone()];
    let listener = tokio::net::TcpListener::bind(args.listen).await.map_err(|error| {
        anyhow!("cannot listen on {}: {error}; choose another port with --listen", args.listen)
    })?;
    let address = listener.local_addr()?;
    let stop_requested = signals::stop_requested()?;
    let stop = async {
        // Polled only after `run` has accepted the configuration.
        let ready = serde_json::json!({
            "endpoint": format!("http://{address}"),
            "access_key": keys[0],
            "secret_key": keys[1],
        });
        let _ = output::data(&format!("{ready}\n"));
        stop_requested.await;
    };
    forebay_dev_origin::run(listener, config, stop).await?;
    Ok(Verdict::Yes)
}
