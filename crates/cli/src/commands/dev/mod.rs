//! `forebay dev`: servers for trying things.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use forebay_core::units::{ByteRate, parse_duration};
use forebay_dev_origin::Config;
use forebay_server::session::fresh_nonce;

use crate::{
    output::{self, Verdict},
    stop,
};

/// Servers and pages for tests, demos and development.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// A real S3 server over a directory: signed, shaped and counted.
    ///
    /// The directories in DIR are the buckets. One line of JSON on standard output tells the endpoint
    /// and the credentials, which are not secret unless you say so: it serves loopback only. Counters of requests and
    /// bytes, in total and per object, are at /-/counters; POST /-/counters/reset begins anew.
    #[command(after_help = ORIGIN_EXAMPLES)]
    Origin(OriginArgs),
    /// Print the reference page of all metrics, `docs/metrics.md`.
    #[command(after_help = "Examples:\n  forebay dev metrics > docs/metrics.md")]
    Metrics,
}

const ORIGIN_EXAMPLES: &str = "\
Examples:
  forebay dev origin --root ./data --listen 127.0.0.1:9000
  forebay dev origin --root ./data --bandwidth 100MB/s --latency 20ms --fail-rate 0.01
  curl http://127.0.0.1:9000/-/counters

To use it:
  export AWS_ENDPOINT_URL=http://127.0.0.1:9000 AWS_ACCESS_KEY_ID=forebay \\
         AWS_SECRET_ACCESS_KEY=forebay-dev AWS_REGION=us-east-1
  forebay digest build s3://bucket/prefix -o x.digest";

/// What to serve, and how badly.
#[derive(Debug, clap::Args)]
pub struct OriginArgs {
    /// The directory whose subdirectories are the buckets.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// What all bodies together may move.
    #[arg(long, value_name = "RATE")]
    bandwidth: Option<ByteRate>,
    /// How long every request waits.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    latency: Duration,
    /// The share of requests that fail on purpose.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    fail_rate: f64,
    /// Decides which requests fail.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Take a secret that nobody else knows, instead of the public one: for data that others must not change.
    #[arg(long)]
    private: bool,
}

/// A share of requests, from none to all of them.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share lies between 0 and 1, such as 0.005".to_owned())
}

pub async fn run(command: Command) -> anyhow::Result<Verdict> {
    match command {
        Command::Origin(args) => origin(args).await,
        Command::Metrics => {
            output::data(&forebay_server::metrics_page())?;
            Ok(Verdict::Yes)
        }
    }
}

/// A secret that nobody can guess.
pub fn secret() -> anyhow::Result<String> {
    let nonce = fresh_nonce().context("the system has no randomness")?;
    Ok(nonce.iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn origin(args: OriginArgs) -> anyhow::Result<Verdict> {
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
    let told = [config.access_key.clone(), config.secret_key.clone()];
    let listener = tokio::net::TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listen on {} (is another server there?)", args.listen))?;
    let address = listener.local_addr()?;
    let asked = stop::asked()?;
    let stop = async {
        // Announce only once `run` has accepted the configuration.
        let told = serde_json::json!({
            "endpoint": format!("http://{address}"),
            "access_key": told[0],
            "secret_key": told[1],
        });
        let _ = output::data(&format!("{told}\n"));
        asked.await;
    };
    forebay_dev_origin::run(listener, config, stop).await?;
    Ok(Verdict::Yes)
}
