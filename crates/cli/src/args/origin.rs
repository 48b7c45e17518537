//! Options for access to an origin, and `--namespace-key`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::bail;
use forebay_auth::read_key_file;
use forebay_core::{Namespace, units::parse_duration};
use forebay_digest::Digest;
use forebay_origin::Options;

/// Access to the origin.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Origin")]
pub struct OriginAccess {
    /// Use this server instead of the cloud's own, such as `http://127.0.0.1:9000`.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Use this S3 region [default: that of the environment or the profile].
    #[arg(long, value_name = "REGION")]
    pub region: Option<String>,
    /// Use the credentials of this AWS profile instead of those in the environment.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Send no credentials, for public data.
    #[arg(long)]
    pub anonymous: bool,
    /// Fail a request that takes longer than this, with all its retries.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub deadline: Duration,
    /// Send at most this number of requests in parallel.
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub requests: u16,
}

impl OriginAccess {
    /// The options of the origin crate. Credentials stay in the environment.
    pub fn options(&self) -> Options {
        Options {
            endpoint: self.endpoint.clone(),
            anonymous: self.anonymous,
            credentials: None,
            region: self.region.clone(),
            profile: self.profile.clone(),
            deadline: self.deadline,
            requests_max: self.requests.into(),
        }
    }
}

/// The namespace of a key file; the public namespace without one.
pub fn namespace(key_file: Option<&PathBuf>) -> anyhow::Result<Namespace> {
    match key_file {
        Some(path) => Ok(read_key_file(path)?),
        None => Ok(Namespace::public()),
    }
}

/// The namespace of a digest. Fails unless the key file is that of the digest's namespace.
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
            "`{shown}` has the namespace {digest}, not {given}; give its key with --namespace-key"
        );
    }
    Ok(namespace)
}

/// The name of a namespace in a digest.
pub fn namespace_name(namespace: &Namespace) -> String {
    if namespace.is_public() { "public".to_owned() } else { namespace.id().to_string() }
}
