//! What can be wrong with an origin, in one line each: what failed, and what to do next.

use std::{io, time::Duration};

/// Why an origin could not be listed or read.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// Not a URL we understand.
    #[error(
        "`{url}` is not an origin: {problem}; use s3://, az://, gs://, http(s)://, file:// or a path"
    )]
    Url {
        /// What was given, without what might be a secret.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The store cannot be set up like this.
    #[error("cannot reach `{url}` as configured: {problem}")]
    Configuration {
        /// The origin.
        url: String,
        /// What its client says.
        problem: String,
    },
    /// The bucket, directory or object is not there.
    #[error("`{what}` does not exist; check its spelling{}", if what.contains("://") { ", the endpoint and the region" } else { "" })]
    Missing {
        /// What was asked for.
        what: String,
    },
    /// A listed object is gone.
    #[error(
        "object `{object}` has vanished since it was listed, or is a link to nothing; build the digest again, or leave it out"
    )]
    Vanished {
        /// Its key.
        object: String,
    },
    /// A listed object is no longer what it was.
    #[error("object `{object}` has changed since it was listed; build the digest again")]
    Changed {
        /// Its key.
        object: String,
    },
    /// The origin refuses us.
    #[error(
        "access to `{what}` is denied ({problem}); it needs other credentials, or none if it is public (--anonymous, or `anonymous` among the storage options)"
    )]
    Denied {
        /// What was asked for.
        what: String,
        /// What the origin said.
        problem: String,
    },
    /// Nobody told us who we are.
    #[error(
        "no credentials for `{what}` were found in the environment or ~/.aws, and this machine has no role ({problem}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for public data --anonymous (`anonymous` among the storage options)"
    )]
    NoCredentials {
        /// What was asked for.
        what: String,
        /// What happened when the machine's role was asked for.
        problem: String,
    },
    /// A key that cannot be used.
    #[error("the origin lists an object that cannot be named: {problem}; rename or remove it")]
    Name {
        /// Which, and why.
        problem: String,
    },
    /// The store lists in an order of its own.
    #[error("the origin does not list in the order of its keys")]
    Unsorted,
    /// Nobody can list this.
    #[error(
        "`{url}` cannot be listed ({problem}); give the URL of one object, or of a server that lists (S3, WebDAV)"
    )]
    Unlistable {
        /// The origin.
        url: String,
        /// What its client says.
        problem: String,
    },
    /// Too slow, with all retries.
    #[error("`{what}` did not answer within {}s; is the endpoint right and up, and are there credentials? (--deadline, or `deadline_seconds` among the storage options, allows longer)", deadline.as_secs_f32())]
    Deadline {
        /// What was asked for.
        what: String,
        /// How long that was waited for.
        deadline: Duration,
    },
    /// Anything else that the network or the store did.
    #[error("`{what}` failed after retries: {problem}; is the endpoint right and up?")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// The innermost cause.
        problem: String,
    },
    /// A local file or directory failed.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// Which.
        path: String,
        /// How.
        source: io::Error,
    },
}
