//! Configuration of a dev origin.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use forebay_core::units::ByteRate;

/// Default access key. It is published, like the secret.
pub const ACCESS_KEY: &str = "forebay";
/// Default secret key.
pub const SECRET_KEY: &str = "forebay-dev";
/// The region that clients should sign for. Any other is accepted, too.
pub const REGION: &str = "us-east-1";

/// Configuration of a dev origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The directory whose subdirectories are the buckets.
    pub root: PathBuf,
    /// Limit on the bytes per second of all request and response bodies; `None` for no limit.
    pub bandwidth: Option<ByteRate>,
    /// Delay before every S3 request is handled.
    pub latency: Duration,
    /// Fraction of correctly signed S3 requests that fail on purpose, from 0 to 1.
    pub fail_rate: f64,
    /// Faults of the first `GetObject` requests, one each, in order. `fail_rate` applies after
    /// them.
    pub get_faults: Vec<Fault>,
    /// Seed of the injected failures. The same seed and order of requests give the same failures.
    pub seed: u64,
    /// The access key without limits.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Further access keys.
    pub limited_keys: Vec<LimitedKey>,
}

/// An access key that may touch some names only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedKey {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// Beginnings of `bucket/key`. Other names are answered with `403 AccessDenied`, whether they
    /// exist or not.
    pub prefixes: Vec<String>,
}

/// How a request fails on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answered with `503 SlowDown`.
    SlowDown,
    /// The connection closes after half of the body.
    CutBody,
    /// Nothing is sent, and the connection stays open.
    HangBeforeHead,
    /// Half of the body is sent, and the connection stays open.
    HangInBody,
    /// The first byte of the body is changed.
    CorruptBody,
    /// Answered with `307` and this `Location`.
    Redirect(String),
}

impl Config {
    /// An origin over `root` without limits or failures, with the default keys.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            bandwidth: None,
            latency: Duration::ZERO,
            fail_rate: 0.0,
            get_faults: Vec::new(),
            seed: 0,
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            limited_keys: Vec::new(),
        }
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (0.0..=1.0).contains(&self.fail_rate),
            "the fail rate is {}; use a fraction between 0 and 1",
            self.fail_rate
        );
        let root = self.root.display();
        let metadata = std::fs::metadata(&self.root).with_context(|| {
            format!("cannot serve `{root}`; create it, or choose another with --root")
        })?;
        ensure!(metadata.is_dir(), "`{root}` is not a directory; choose one with --root");
        Ok(())
    }
}
