//! Origins: the stores that own the data, behind one interface.
//!
//! An [`Origin`] is a URL prefix, such as `s3://bucket/prefix`, under which objects have relative
//! keys. It lists them in one canonical order and reads ranges of them. It never mixes two versions
//! of an object: a read asks for the version that was listed, and an object that has changed is an
//! error.
//!
//! The `object_store` crate does retries, backoff and jitter. This crate adds a timeout for every
//! attempt, the overall deadline, and the bounds on requests and bytes in flight (promise 6).

mod attempt;
mod clock;
mod error;
mod limits;
mod local;
mod profile;
mod remote;
mod s3;
mod url;

use std::{
    ops::{Range, RangeInclusive},
    time::Duration,
};

use bytes::Bytes;
use forebay_core::dataset::ListedObject;
use futures::{Stream, StreamExt as _, stream::BoxStream};
use zeroize::Zeroize as _;

pub use clock::clock;
pub use error::OriginError;
pub use local::{LocalObject, LocalReader, LocalTree};
pub use profile::read as aws_profile;
pub use remote::Remote;
pub use url::Location;

/// Recommended size of one read. Longer reads are split, so that each part has its own retries and
/// deadline.
pub const PIECE: u64 = 2 << 20;

/// Connection options of an origin. Credentials come from each cloud's usual environment variables.
#[derive(Debug, Clone)]
pub struct Options {
    /// A server in place of the cloud's own, such as `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// Send no credentials.
    pub anonymous: bool,
    /// Credentials in place of those in the environment.
    pub credentials: Option<Credentials>,
    /// The S3 region, in place of that of the environment or the profile.
    pub region: Option<String>,
    /// The AWS profile with the credentials, in place of those in the environment.
    pub profile: Option<String>,
    /// Longest time of one request with all its retries.
    pub deadline: Duration,
    /// Most concurrent requests.
    pub requests_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: None,
            anonymous: false,
            credentials: None,
            region: None,
            profile: None,
            deadline: Duration::from_mins(1),
            requests_max: 64,
        }
    }
}

/// An S3 key pair that does not come from the environment. The secret is never printed.
#[derive(Clone)]
pub struct Credentials {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
}

/// Zeroes the secrets.
impl Drop for Credentials {
    fn drop(&mut self) {
        self.secret_key.zeroize();
        self.session_token.zeroize();
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({}, secret redacted)", self.access_key)
    }
}

/// Prefix of a version that matches every state of an object of this length.
const ANY_OF_LENGTH: &str = "any of length ";
/// Prefix of a version that matches every state of an object of at least this length.
const ANY_FROM_LENGTH: &str = "any from length ";

/// A version that matches the current state of an object of this length. For callers that verify
/// the content themselves.
pub fn any_version(length: u64) -> String {
    format!("{ANY_OF_LENGTH}{length}")
}

/// As [`any_version`], for callers that read a part which ends at `end` of an object of unknown
/// length.
pub fn any_version_from(end: u64) -> String {
    format!("{ANY_FROM_LENGTH}{end}")
}

/// The lengths that match, if `version` is one of the two above.
fn any_version_of_length(version: &str) -> Option<RangeInclusive<u64>> {
    if let Some(from) = version.strip_prefix(ANY_FROM_LENGTH) {
        return Some(from.parse().ok()?..=u64::MAX);
    }
    let length = version.strip_prefix(ANY_OF_LENGTH)?.parse().ok()?;
    Some(length..=length)
}

/// A URL prefix or directory under which objects have relative keys.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A directory, or one file.
    Local(LocalTree),
    /// A store on the network.
    Remote(Remote),
}

impl Origin {
    /// Opens a URL or path, and asks the store whether it is a prefix or one object.
    pub async fn locate(url: &str, options: &Options) -> Result<Self, OriginError> {
        match Self::new(url, options)? {
            Self::Remote(remote) => remote.locate(url.ends_with('/')).await.map(Self::Remote),
            local @ Self::Local(_) => Ok(local),
        }
    }

    /// Opens a URL or path as a prefix, without a request.
    pub fn new(url: &str, options: &Options) -> Result<Self, OriginError> {
        match Location::parse(url)? {
            Location::Local(path) => LocalTree::new(&path).map(Self::Local),
            location => Remote::new(location, options).map(Self::Remote),
        }
    }

    /// The prefix as a URL without credentials, as a digest stores it.
    pub fn url(&self) -> String {
        match self {
            Self::Local(tree) => tree.url(),
            Self::Remote(remote) => remote.url().to_owned(),
        }
    }

    /// A stream of all objects, in the byte order of their keys. For a store that lists in another
    /// order it ends with [`OriginError::Unsorted`]; use [`Origin::list_sorted`] then.
    pub fn list(&self) -> BoxStream<'static, Result<ListedObject, OriginError>> {
        match self {
            Self::Local(tree) => tree.list().boxed(),
            Self::Remote(remote) => remote.list().boxed(),
        }
    }

    /// All objects, in the byte order of their keys, for any store. Holds the whole listing in
    /// memory.
    pub async fn list_sorted(&self) -> Result<Vec<ListedObject>, OriginError> {
        match self {
            Self::Local(tree) => collect(tree.list()).await,
            Self::Remote(remote) => {
                let mut all = collect(remote.list_unsorted()).await?;
                all.sort_unstable_by(|a, b| a.object.cmp(&b.object));
                all.dedup();
                match all.windows(2).find(|pair| pair[0].object == pair[1].object) {
                    Some(pair) => {
                        let problem =
                            format!("`{}` stands for two objects", pair[0].object.escape_debug());
                        Err(OriginError::Name { problem })
                    }
                    None => Ok(all),
                }
            }
        }
    }

    /// Checks that an object has this version. For empty objects, which cannot be read.
    pub async fn confirm(&self, object: &str, version: &str) -> Result<(), OriginError> {
        match self {
            Self::Local(tree) => tree.read(object, version, 0..0).await.map(drop),
            Self::Remote(remote) => remote.confirm(object, version).await,
        }
    }

    /// Reads a range of one version of an object: all of it, or an error.
    pub async fn read(
        &self,
        object: &str,
        version: &str,
        range: Range<u64>,
    ) -> Result<Bytes, OriginError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match self {
            Self::Local(tree) => tree.read(object, version, range).await,
            Self::Remote(remote) => remote.read(object, version, range).await,
        }
    }
}

async fn collect(
    listing: impl Stream<Item = Result<ListedObject, OriginError>>,
) -> Result<Vec<ListedObject>, OriginError> {
    futures::pin_mut!(listing);
    let mut all = Vec::new();
    while let Some(listed) = listing.next().await {
        all.push(listed?);
    }
    Ok(all)
}
