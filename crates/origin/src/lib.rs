//! Origins: the stores that really own the data, behind one interface.
//!
//! An [`Origin`] is a place, such as `s3://bucket/prefix`, under which objects have relative keys. It
//! lists them in one canonical order and reads ranges of them, and it never mixes two states of an
//! object: what was listed is asked for by its version, and an object that has changed is named.
//!
//! Retries, backoff and jitter are the `object_store` crate's; the overall deadline, and the bound on
//! requests and bytes in flight, are ours.

mod clock;
mod error;
mod limits;
mod local;
mod profile;
mod remote;
mod url;

use std::{
    ops::{Range, RangeInclusive},
    time::Duration,
};

use bytes::Bytes;
use forebay_core::digest::plan::Listed;
use futures::{Stream, StreamExt as _, stream::BoxStream};

pub use clock::clock;
pub use error::OriginError;
pub use local::{LocalObject, LocalReader, LocalTree};
pub use remote::Remote;
pub use url::Location;

/// Long reads are best asked for in pieces of this size, each with retries and a deadline of its own.
pub const PIECE: u64 = 2 << 20;

/// How to reach an origin. Credentials come from each cloud's ordinary environment.
#[derive(Debug, Clone)]
pub struct Options {
    /// Another server than the cloud's own, such as `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// Send no credentials.
    pub anonymous: bool,
    /// Send these, instead of what the environment holds.
    pub credentials: Option<Credentials>,
    /// How long one request may take, with all its retries.
    pub deadline: Duration,
    /// Requests under way at once.
    pub requests_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: None,
            anonymous: false,
            credentials: None,
            deadline: Duration::from_mins(1),
            requests_max: 64,
        }
    }
}

/// An S3 key that does not come from the environment. Its secret is never printed.
#[derive(Clone)]
pub struct Credentials {
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({}, secret redacted)", self.access_key)
    }
}

/// Begins a version that stands for any state of an object that has this length,
const ANY_OF_LENGTH: &str = "any of length ";
/// or at least this length.
const ANY_FROM_LENGTH: &str = "any from length ";

/// A version for those who will check the content themselves, and want an object of this length as it is now.
pub fn any_version(length: u64) -> String {
    format!("{ANY_OF_LENGTH}{length}")
}

/// The same for those who want a part that ends here, and do not know how long the object is.
pub fn any_version_from(end: u64) -> String {
    format!("{ANY_FROM_LENGTH}{end}")
}

/// The lengths that will do, if any version of them does.
fn any_version_of_length(version: &str) -> Option<RangeInclusive<u64>> {
    if let Some(from) = version.strip_prefix(ANY_FROM_LENGTH) {
        return Some(from.parse().ok()?..=u64::MAX);
    }
    let length = version.strip_prefix(ANY_OF_LENGTH)?.parse().ok()?;
    Some(length..=length)
}

/// A place under which objects have relative keys.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A directory, or one file.
    Local(LocalTree),
    /// Anything that is reached by network.
    Remote(Remote),
}

impl Origin {
    /// Understands a URL or a path of a prefix, or of one object, and looks which it is.
    pub async fn locate(url: &str, options: &Options) -> Result<Self, OriginError> {
        match Self::new(url, options)? {
            Self::Remote(remote) => remote.locate(url.ends_with('/')).await.map(Self::Remote),
            local @ Self::Local(_) => Ok(local),
        }
    }

    /// Understands a URL or a path. No request is made.
    pub fn new(url: &str, options: &Options) -> Result<Self, OriginError> {
        match Location::parse(url)? {
            Location::Local(path) => LocalTree::new(&path).map(Self::Local),
            location => Remote::new(location, options).map(Self::Remote),
        }
    }

    /// The place as a URL, without credentials. What a digest keeps.
    pub fn url(&self) -> String {
        match self {
            Self::Local(tree) => tree.url(),
            Self::Remote(remote) => remote.url().to_owned(),
        }
    }

    /// All objects, in the byte order of their keys, as they arrive. Some stores list in another
    /// order: then the stream ends with [`OriginError::Unsorted`], and [`Origin::list_sorted`] helps.
    pub fn list(&self) -> BoxStream<'static, Result<Listed, OriginError>> {
        match self {
            Self::Local(tree) => tree.list().boxed(),
            Self::Remote(remote) => remote.list().boxed(),
        }
    }

    /// All objects, in the byte order of their keys, whatever the store's own order; keeps the whole
    /// listing in memory.
    pub async fn list_sorted(&self) -> Result<Vec<Listed>, OriginError> {
        match self {
            Self::Local(tree) => collect(tree.list()).await,
            Self::Remote(remote) => {
                let mut all = collect(remote.list_as_it_comes()).await?;
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

    /// Whether an object is still of this version; for empty ones, of which there is nothing to read.
    pub async fn confirm(&self, object: &str, version: &str) -> Result<(), OriginError> {
        match self {
            Self::Local(tree) => tree.read(object, version, 0..0).await.map(drop),
            Self::Remote(remote) => remote.confirm(object, version).await,
        }
    }

    /// Some bytes of an object, as it was when `version` was listed. All of them, or an error.
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
    listing: impl Stream<Item = Result<Listed, OriginError>>,
) -> Result<Vec<Listed>, OriginError> {
    futures::pin_mut!(listing);
    let mut all = Vec::new();
    while let Some(listed) = listing.next().await {
        all.push(listed?);
    }
    Ok(all)
}
