//! What a dev origin is told before it starts.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use forebay_core::units::ByteRate;

/// The access key unless another is chosen. Public knowledge, like the secret.
pub const ACCESS_KEY: &str = "forebay";
/// The secret key unless another is chosen.
pub const SECRET_KEY: &str = "forebay-dev";
/// The region that clients should sign for; any other is accepted, too.
pub const REGION: &str = "us-east-1";

/// What to serve, and how badly.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The directory whose subdirectories are the buckets.
    pub root: PathBuf,
    /// What all request and response bodies together may move; `None` is as fast as possible.
    pub bandwidth: Option<ByteRate>,
    /// How long every S3 request waits before it is looked at.
    pub latency: Duration,
    /// The share of correctly signed S3 requests that fail on purpose, from 0 to 1.
    pub fail_rate: f64,
    /// Decides which requests fail; the same seed and order of requests fail alike.
    pub seed: u64,
    /// The only access key that is known.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

impl Config {
    /// An unshaped, reliable origin over `root`, with the public credentials.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            bandwidth: None,
            latency: Duration::ZERO,
            fail_rate: 0.0,
            seed: 0,
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
        }
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (0.0..=1.0).contains(&self.fail_rate),
            "the fail rate is {}, but a share lies between 0 and 1",
            self.fail_rate
        );
        let metadata = std::fs::metadata(&self.root).with_context(|| {
            format!("cannot serve {}: make it, or name another with --root", self.root.display())
        })?;
        ensure!(metadata.is_dir(), "{} is not a directory", self.root.display());
        Ok(())
    }
}
