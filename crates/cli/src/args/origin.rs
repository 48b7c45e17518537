//! Options that every command takes which talks to an origin.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use forebay_core::{Namespace, digest::Digest, units::parse_duration};
use forebay_identity::read_key_file;
use forebay_origin::Options;

/// How to reach the origin.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Origin")]
pub struct Reach {
    /// Another server than the cloud's own, such as `http://127.0.0.1:9000`.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Send no credentials; for public data.
    #[arg(long)]
    pub anonymous: bool,
    /// How long one request may take, with all its retries.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub deadline: Duration,
    /// Requests under way at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: u16,
}

impl Reach {
    /// As the origin crate wants it. Credentials stay in the environment.
    pub fn options(&self) -> Options {
        Options {
            endpoint: self.endpoint.clone(),
            anonymous: self.anonymous,
            credentials: None,
            deadline: self.deadline,
            requests_max: self.requests.into(),
        }
    }
}

/// Reads the namespace that a key file holds; without one, the public namespace.
pub fn namespace(key_file: Option<&PathBuf>) -> anyhow::Result<Namespace> {
    match key_file {
        Some(path) => read_key_file(path).context("use the namespace"),
        None => Ok(Namespace::public()),
    }
}

/// Reads the namespace of a digest, whose key file was given if it is private.
pub fn namespace_of(
    path: &Path,
    digest: &Digest,
    key_file: Option<&PathBuf>,
) -> anyhow::Result<Namespace> {
    let namespace = namespace(key_file)?;
    let (digest, given) = (&digest.summary().namespace, namespace_name(&namespace));
    if *digest != given {
        let shown = path.display();
        bail!(
            "`{shown}` is of the namespace {digest}, not {given}; give its key with --namespace-key"
        );
    }
    Ok(namespace)
}

/// What a digest calls a namespace.
pub fn namespace_name(namespace: &Namespace) -> String {
    if namespace.is_public() { "public".to_owned() } else { namespace.id().to_string() }
}
