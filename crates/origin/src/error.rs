//! Errors of origins: one line each, with what failed and the remedy.

use std::{io, time::Duration};

/// Why an origin could not be listed or read.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// Not a URL or path of an origin.
    #[error(
        "`{url}` is not an origin: {problem}; \
         use s3://, az://, gs://, http(s)://, file:// or a path"
    )]
    Url {
        /// The text, without possible secrets.
        url: String,
        /// The defect.
        problem: String,
    },
    /// The store's client rejects the configuration.
    #[error("cannot reach `{url}` as configured: {problem}")]
    Configuration {
        /// The origin.
        url: String,
        /// The client's message.
        problem: String,
    },
    /// The bucket, directory or object does not exist.
    #[error(
        "`{what}` does not exist; check its spelling{}",
        if what.contains("://") { ", the endpoint and the region" } else { "" }
    )]
    Missing {
        /// URL, path or key.
        what: String,
    },
    /// A listed object no longer exists.
    #[error(
        "object `{object}` has vanished since it was listed, or is a dangling link; \
         build the digest again, or exclude it"
    )]
    Vanished {
        /// Its key.
        object: String,
    },
    /// A listed object has another version now.
    #[error("object `{object}` has changed since it was listed; build the digest again")]
    Changed {
        /// Its key.
        object: String,
    },
    /// The credentials do not allow this.
    #[error(
        "access to `{what}` is denied ({problem}); it needs other credentials, \
         or none if it is public (--anonymous, or `anonymous` among the storage options)"
    )]
    Denied {
        /// URL or key.
        what: String,
        /// The origin's message.
        problem: String,
    },
    /// There are no credentials.
    #[error(
        "no credentials for `{what}` were found in the environment or ~/.aws, \
         and this machine has no role ({problem}); \
         set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, \
         or for public data --anonymous (`anonymous` among the storage options)"
    )]
    NoCredentials {
        /// URL or key.
        what: String,
        /// The error of the request for the machine's role.
        problem: String,
    },
    /// An object has a key that cannot be used.
    #[error("the origin lists an object that cannot be named: {problem}; rename or remove it")]
    Name {
        /// The key and its defect.
        problem: String,
    },
    /// The store does not list in the byte order of keys.
    #[error("the origin does not list in the order of its keys")]
    Unsorted,
    /// The server cannot list.
    #[error(
        "`{url}` cannot be listed ({problem}); \
         give the URL of one object, or of a server that lists (S3, WebDAV)"
    )]
    Unlistable {
        /// The origin.
        url: String,
        /// The client's message.
        problem: String,
    },
    /// The store redirects to another host, which must not receive the credentials.
    #[error(
        "`{what}` is redirected to another host, `{host}`, and credentials are never sent along; \
         use that host's URL, or set the region or the endpoint"
    )]
    Redirected {
        /// URL or key.
        what: String,
        /// The other host.
        host: String,
    },
    /// A request, with all its retries, exceeded the deadline.
    #[error(
        "`{what}` did not answer within {:.1}s; check the endpoint and the credentials, or raise \
         --deadline (`deadline_seconds` among the storage options)",
        waited.as_secs_f32()
    )]
    Deadline {
        /// URL or key.
        what: String,
        /// Time of all attempts.
        waited: Duration,
    },
    /// Another failure of the network or the store.
    #[error("`{what}` failed after retries: {problem}; check that the endpoint is right and up")]
    Unavailable {
        /// URL or key.
        what: String,
        /// The innermost cause.
        problem: String,
    },
    /// I/O error of a local file or directory.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The path.
        path: String,
        /// The error.
        source: io::Error,
    },
}
