//! Origins on the network, through the `object_store` crate.

use std::{
    fmt,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use forebay_core::dataset::ListedObject;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use object_store::{
    BackoffConfig, ClientOptions, Error as StoreError, GetOptions, ObjectMeta, ObjectStore,
    RetryConfig, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, http::HttpBuilder,
    path::Path,
};

use crate::{
    Location, Options, OriginError, any_version_of_length,
    attempt::{AttemptTimedOut, Connector, RedirectRefused, with_attempts},
    limits::Limits,
    s3,
};

/// Prefix of a version that is the time of the last change, for stores without `ETag`s.
const MODIFIED: &str = "modified ";
/// Empty entries of a listing that are checked concurrently.
const EMPTY_AHEAD: usize = 16;

/// A bucket, container or server, and the common prefix of all keys.
#[derive(Clone)]
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    /// URL of the prefix, without credentials.
    url: String,
    prefix: Path,
    /// The name of the one object, if the URL is not a prefix.
    only: Option<String>,
    limits: Limits,
    deadline: Duration,
    /// Whether credentials are configured. Otherwise the client requests the machine's role.
    identified: bool,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.url)
    }
}

impl Remote {
    pub(crate) fn new(location: Location, options: &Options) -> Result<Self, OriginError> {
        let url = location.url();
        let is_s3 = matches!(location, Location::S3 { .. });
        let of_profile = || is_s3.then(|| s3::profile_problem(options)).flatten();
        if let Some(problem) = endpoint_problem(&location, options).or_else(of_profile) {
            return Err(OriginError::Configuration { url, problem });
        }
        // The first caller installs the provider; later calls fail without effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let identified = !is_s3 || s3::has_identity(options);
        let (store, prefix) = open_store(location, options).map_err(|error| {
            OriginError::Configuration { url: url.clone(), problem: root_cause(&error) }
        })?;
        let prefix = Path::parse(&prefix).map_err(|error| OriginError::Url {
            url: url.escape_debug().to_string(),
            problem: error.to_string(),
        })?;
        let limits = Limits::new(options.requests_max);
        Ok(Self { store, url, prefix, only: None, limits, deadline: options.deadline, identified })
    }

    /// A store that is open already, under this URL.
    pub fn on_store(store: Arc<dyn ObjectStore>, url: &str, options: &Options) -> Self {
        let (url, prefix, only) = (url.to_owned(), Path::default(), None);
        let limits = Limits::new(options.requests_max);
        Self { store, url, prefix, only, limits, deadline: options.deadline, identified: true }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Lists in the order of keys. Ends with an error if the store's order is another.
    pub(crate) fn list(&self) -> impl Stream<Item = Result<ListedObject, OriginError>> + use<> {
        let mut last: Option<String> = None;
        self.list_unsorted().map(move |listed| {
            let listed = listed?;
            if last.as_ref().is_some_and(|last| *last >= listed.object) {
                return Err(OriginError::Unsorted);
            }
            last = Some(listed.object.clone());
            Ok(listed)
        })
    }

    /// The object's full key. Not joined as `Path`s, which would encode some characters.
    fn path(&self, object: &str) -> Result<Path, object_store::path::Error> {
        let separator = if self.prefix.as_ref().is_empty() { "" } else { "/" };
        Path::parse(format!("{}{separator}{object}", self.prefix))
    }

    /// Lists in the store's order, without the empty objects that mark directories.
    pub(crate) fn list_unsorted(
        &self,
    ) -> impl Stream<Item = Result<ListedObject, OriginError>> + use<> {
        let remote = self.clone();
        let entries = match &self.only {
            Some(name) => {
                let (store, path) = (self.store.clone(), self.path(name));
                futures::stream::once(async move { head(&*store, &path?).await }).boxed()
            }
            None => self.store.list(Some(&self.prefix)),
        };
        let entries = futures::stream::try_unfold(
            (remote, entries.fuse()),
            |(remote, mut entries)| async move {
                let next = remote.in_time(&remote.url, entries.try_next()).await?;
                let next = next.map_err(|error| remote.list_error(error))?;
                Ok(next.map(|meta| (remote.listed(&meta), (remote, entries))))
            },
        );
        let remote = self.clone();
        entries
            .map(move |listed| {
                let remote = remote.clone();
                async move {
                    let listed = listed?;
                    Ok(remote.is_object(&listed).await?.then_some(listed))
                }
            })
            .buffered(EMPTY_AHEAD)
            .try_filter_map(|kept| futures::future::ready(Ok(kept)))
    }

    /// Whether an entry is an object. Consoles and tools create empty objects for directories,
    /// whose keys end in a slash. `object_store` removes the slash, and a request for the remaining
    /// key fails.
    async fn is_object(&self, listed: &ListedObject) -> Result<bool, OriginError> {
        if listed.length > 0 || self.only.is_some() {
            return Ok(true);
        }
        let Some(path) = self.path(&listed.object).ok().filter(|_| !listed.object.is_empty())
        else {
            return Ok(false);
        };
        match self.in_time(&listed.object, head(&*self.store, &path)).await? {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.store_error(&listed.object, &error)),
        }
    }

    /// Finds out whether the URL is a prefix or one object. For an object, the prefix becomes the
    /// object's parent, so that its key is its name.
    pub(crate) async fn locate(self, directory: bool) -> Result<Self, OriginError> {
        // Web servers seldom list, and a URL without a trailing slash most likely is one object.
        if self.url.starts_with("http") && !directory {
            let head = self.in_time(&self.url, head(&*self.store, &self.prefix)).await?;
            if head.is_ok() {
                return Ok(self.narrowed());
            }
        }
        let mut listing = self.store.list(Some(&self.prefix));
        let listing_error = match self.in_time(&self.url, listing.try_next()).await? {
            Ok(Some(_)) => return Ok(self),
            Ok(None) => None,
            Err(error) => Some(self.list_error(error)),
        };
        if self.prefix.filename().is_none() {
            return listing_error.map_or(Ok(self), Err);
        }
        // One object may be readable where listing is denied or not supported.
        let listing_error = match listing_error {
            None | Some(OriginError::Denied { .. } | OriginError::Unlistable { .. }) => {
                listing_error
            }
            Some(error) => return Err(error),
        };
        let head = self.in_time(&self.url, head(&*self.store, &self.prefix)).await?;
        match (head, listing_error) {
            (Ok(_), _) => Ok(self.narrowed()),
            (Err(StoreError::NotFound { .. }), Some(OriginError::Unlistable { url, .. })) => {
                Err(OriginError::Missing { what: url })
            }
            // The error of a listing has a message; the error of a HEAD has none.
            (Err(_), Some(error)) => Err(error),
            (Err(StoreError::NotFound { .. }), None) => Ok(self),
            (Err(error), None) => Err(self.store_error(&self.url, &error)),
        }
    }

    /// The parent prefix, restricted to this one object.
    fn narrowed(mut self) -> Self {
        self.only = self.prefix.filename().map(str::to_owned);
        let parts: Vec<_> = self.prefix.parts().collect();
        self.prefix = parts[..parts.len().saturating_sub(1)].iter().cloned().collect();
        // The name may be encoded in the URL, but has no slash.
        self.url.truncate(self.url.rfind('/').unwrap_or(self.url.len()));
        self
    }

    fn listed(&self, meta: &ObjectMeta) -> ListedObject {
        let full = meta.location.as_ref();
        let object = full
            .strip_prefix(self.prefix.as_ref())
            .map_or(full, |rest| rest.strip_prefix('/').unwrap_or(rest));
        ListedObject { object: object.to_owned(), length: meta.size, version: version_of(meta) }
    }

    pub(crate) async fn read(
        &self,
        object: &str,
        version: &str,
        range: Range<u64>,
    ) -> Result<Bytes, OriginError> {
        let length = range.end - range.start;
        let _permits = self.limits.admit(length).await;
        let path =
            self.path(object).map_err(|error| OriginError::Name { problem: error.to_string() })?;
        let read = async {
            let ranged = conditional(version).with_range(Some(range.clone()));
            let result = match self.store.get_opts(&path, ranged).await {
                // A web server without ranges: fetch the whole object if all of it is wanted.
                Err(unsupported @ StoreError::NotSupported { .. }) if range.start == 0 => {
                    let whole = self.store.get_opts(&path, conditional(version)).await?;
                    if whole.meta.size != length {
                        return Err(unsupported);
                    }
                    whole
                }
                result => result?,
            };
            // Some servers ignore If-Match.
            let same = is_of_version(&result.meta, version);
            Ok((same, result.bytes().await?))
        };
        match self.in_time(object, read).await? {
            Ok((true, bytes)) if bytes.len() as u64 == length => Ok(bytes),
            Ok(_) | Err(StoreError::Precondition { .. } | StoreError::NotModified { .. }) => {
                Err(OriginError::Changed { object: object.to_owned() })
            }
            // Without its bucket the object has not vanished: the URL is wrong.
            Err(error @ StoreError::NotFound { .. }) if is_missing_bucket(&error) => {
                Err(OriginError::Missing { what: self.url.clone() })
            }
            Err(StoreError::NotFound { .. }) => {
                Err(OriginError::Vanished { object: object.to_owned() })
            }
            Err(error) => Err(self.store_error(object, &error)),
        }
    }

    pub(crate) async fn confirm(&self, object: &str, version: &str) -> Result<(), OriginError> {
        let path =
            self.path(object).map_err(|error| OriginError::Name { problem: error.to_string() })?;
        let _permits = self.limits.admit(0).await;
        match self.in_time(object, head(&*self.store, &path)).await? {
            Ok(meta) if is_of_version(&meta, version) => Ok(()),
            Ok(_) => Err(OriginError::Changed { object: object.to_owned() }),
            Err(StoreError::NotFound { .. }) => {
                Err(OriginError::Vanished { object: object.to_owned() })
            }
            Err(error) => Err(self.store_error(object, &error)),
        }
    }

    /// The result of requests that end by the deadline. Requests whose last attempt timed out have
    /// missed it as well: there is no time for another attempt.
    async fn in_time<T>(
        &self,
        what: &str,
        requests: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<Result<T, StoreError>, OriginError> {
        let began = Instant::now();
        match tokio::time::timeout(self.deadline, requests).await {
            Ok(Err(error)) if innermost(&error).is::<AttemptTimedOut>() => {}
            Ok(outcome) => return Ok(outcome),
            Err(_) => {}
        }
        Err(OriginError::Deadline { what: what.to_owned(), waited: began.elapsed() })
    }

    fn list_error(&self, error: StoreError) -> OriginError {
        let url = self.url.clone();
        match error {
            StoreError::InvalidPath { source } => {
                OriginError::Name { problem: source.to_string().escape_debug().to_string() }
            }
            error if url.starts_with("http") => {
                OriginError::Unlistable { url, problem: root_cause(&error) }
            }
            error => self.store_error(&url, &error),
        }
    }

    fn store_error(&self, what: &str, error: &StoreError) -> OriginError {
        let what = what.to_owned();
        let problem = root_cause(error);
        if let Some(RedirectRefused(host)) = innermost(error).downcast_ref() {
            return OriginError::Redirected { what, host: host.clone() };
        }
        match (error, http_status(error)) {
            (StoreError::NotFound { .. }, _) | (_, Some(404)) => OriginError::Missing { what },
            _ if !self.identified => OriginError::NoCredentials { what, problem },
            (StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. }, _)
            | (_, Some(401 | 403)) => OriginError::Denied { what, problem },
            _ => OriginError::Unavailable { what, problem },
        }
    }
}

/// An object's metadata.
async fn head(store: &dyn ObjectStore, path: &Path) -> Result<ObjectMeta, StoreError> {
    let options = with_attempts(GetOptions::default().with_head(true));
    store.get_opts(path, options).await.map(|answer| answer.meta)
}

/// HTTP status of a failed request. Listings have it in the text of an inner error only.
fn http_status(error: &StoreError) -> Option<u16> {
    let text = innermost(error).to_string();
    let (_, rest) = text.split_once("non-2xx status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Whether an S3 server reports a missing bucket, not a missing object.
fn is_missing_bucket(error: &StoreError) -> bool {
    innermost(error).to_string().contains("NoSuchBucket")
}

fn version_of(meta: &ObjectMeta) -> String {
    match &meta.e_tag {
        // Azure lists tags without their quotes.
        Some(tag) if !tag.ends_with('"') => format!("\"{tag}\""),
        Some(tag) => tag.clone(),
        None => format!("{MODIFIED}{}", meta.last_modified.to_rfc3339()),
    }
}

fn is_of_version(meta: &ObjectMeta, version: &str) -> bool {
    any_version_of_length(version)
        .map_or_else(|| version_of(meta) == version, |lengths| lengths.contains(&meta.size))
}

/// Request options for exactly this version. A weak tag never matches a condition. For weak tags
/// and for `any_version` the request is unconditional, and the caller checks the answer.
fn conditional(version: &str) -> GetOptions {
    let options = with_attempts(GetOptions::default());
    match version.strip_prefix(MODIFIED).map(str::parse::<DateTime<Utc>>) {
        Some(Ok(time)) => options.with_if_unmodified_since(Some(time)),
        Some(Err(_)) => options,
        None if version.starts_with("W/") || any_version_of_length(version).is_some() => options,
        None => options.with_if_match(Some(version.to_owned())),
    }
}

fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// The innermost error of a chain, on one line of at most 200 characters.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let text = innermost(error).to_string();
    // S3 answers in XML with a message.
    let message = ["<Message>", "<Code>"].iter().find_map(|tag| {
        let (_, rest) = text.split_once(tag)?;
        rest.split_once('<').map(|(message, _)| unescape(message))
    });
    let text = message.filter(|message| !message.is_empty()).unwrap_or(text);
    // Web servers answer in HTML, which is dropped.
    let text = text.split_once('<').map_or(text.as_str(), |(before, _)| before);
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

/// The defect of the configured endpoint, if any. `object_store` would accept it and panic later.
fn endpoint_problem(location: &Location, options: &Options) -> Option<String> {
    let variables: &[&str] = match location {
        Location::S3 { .. } => &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
        _ => &[],
    };
    let from_environment = || variables.iter().find_map(|name| std::env::var(name).ok());
    let endpoint = options.endpoint.clone().or_else(from_environment)?;
    let is_valid = url::Url::parse(&endpoint).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty()
    });
    // It may have a password in it, which must not be printed.
    let printed = if endpoint.contains('@') { "…" } else { &endpoint };
    (!is_valid).then(|| {
        format!(
            "`{}` is not an endpoint; write it in full, such as http://127.0.0.1:9000 \
             (--endpoint, or AWS_ENDPOINT_URL for S3)",
            printed.escape_debug()
        )
    })
}

/// Replaces the five named entities of XML.
fn unescape(text: &str) -> String {
    let names = [("&apos;", "'"), ("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    names.iter().fold(text.to_owned(), |text, (name, character)| text.replace(name, character))
}

fn open_store(
    location: Location,
    options: &Options,
) -> Result<(Arc<dyn ObjectStore>, String), StoreError> {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(10).min(options.deadline / 4),
            base: 2.,
        },
        // The timeout bounds retries. Web servers that cannot list would be asked for 30 s.
        max_retries: if matches!(location, Location::Http { .. }) { 3 } else { 1000 },
        // Half the deadline, so that the store's error is reported instead of the deadline.
        retry_timeout: options.deadline / 2,
    };
    let client = ClientOptions::new().with_allow_http(true);
    let connector = Connector {
        deadline: options.deadline,
        // A web server gets no credentials.
        same_host_only: !matches!(location, Location::Http { .. }),
    };
    Ok(match location {
        Location::S3 { bucket, prefix } => {
            let builder = s3::builder(bucket, options)?;
            let builder = builder.with_http_connector(connector);
            let store = builder.with_retry(retry).with_client_options(client).build()?;
            (Arc::new(store), prefix)
        }
        Location::Google { bucket, prefix } => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            if let Some(endpoint) = &options.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            if options.anonymous {
                builder = builder.with_skip_signature(true);
            }
            let builder = builder.with_http_connector(connector);
            let store = builder.with_retry(retry).with_client_options(client).build()?;
            (Arc::new(store), prefix)
        }
        Location::Azure { container, prefix } => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
            if let Some(endpoint) = &options.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            if options.anonymous {
                builder = builder.with_skip_signature(true);
            }
            let builder = builder.with_http_connector(connector);
            let store = builder.with_retry(retry).with_client_options(client).build()?;
            (Arc::new(store), prefix)
        }
        Location::Http { base, prefix } => {
            let store = HttpBuilder::new()
                .with_url(base)
                .with_retry(retry)
                .with_client_options(client)
                .with_http_connector(connector)
                .build()?;
            (Arc::new(store), prefix)
        }
        Location::Local(_) => unreachable!("local trees are not opened here"),
    })
}
