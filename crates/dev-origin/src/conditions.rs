//! Preconditions, in the order of RFC 9110, section 13.2.2.

use http::{HeaderMap, HeaderValue, header};
use s3s::{
    S3Error, S3Result,
    dto::{ETag, ETagCondition, Timestamp},
    s3_error,
};

use crate::tree::Version;

/// Conditions of a read on the current version.
#[derive(Debug, Default)]
#[expect(clippy::struct_field_names, reason = "these are the headers' names")]
pub struct ReadConditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<Timestamp>,
    pub if_unmodified_since: Option<Timestamp>,
}

impl ReadConditions {
    pub fn check(&self, version: &Version) -> S3Result<()> {
        let etag = version.etag();
        let modified = version.last_modified();
        if let Some(condition) = &self.if_match {
            if !matches(condition, |wanted| etag.strong_cmp(wanted)) {
                return Err(s3_error!(PreconditionFailed, "The object's ETag is {}", etag.value()));
            }
        } else if self.if_unmodified_since.as_ref().is_some_and(|since| modified > *since) {
            return Err(s3_error!(PreconditionFailed, "The object was modified since"));
        }
        if let Some(condition) = &self.if_none_match {
            if matches(condition, |known| etag.weak_cmp(known)) {
                return Err(not_modified(&etag));
            }
        } else if self.if_modified_since.as_ref().is_some_and(|since| modified <= *since) {
            return Err(not_modified(&etag));
        }
        Ok(())
    }
}

/// Conditions of a write on the version that it replaces.
#[derive(Debug, Default)]
pub struct WriteConditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
}

impl WriteConditions {
    pub fn check(&self, current: Option<&Version>) -> S3Result<()> {
        let etag = current.map(Version::etag);
        match (&self.if_match, &etag) {
            (Some(_), None) => return Err(s3_error!(NoSuchKey)),
            (Some(condition), Some(etag))
                if !matches(condition, |wanted| etag.strong_cmp(wanted)) =>
            {
                return Err(s3_error!(PreconditionFailed, "The object's ETag is {}", etag.value()));
            }
            _ => {}
        }
        match (&self.if_none_match, &etag) {
            (Some(condition), Some(etag)) if matches(condition, |known| etag.weak_cmp(known)) => {
                Err(s3_error!(PreconditionFailed, "The object exists, with ETag {}", etag.value()))
            }
            _ => Ok(()),
        }
    }
}

fn matches(condition: &ETagCondition, compare: impl Fn(&ETag) -> bool) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(etag) => compare(etag),
    }
}

fn not_modified(etag: &ETag) -> S3Error {
    let mut error = s3_error!(NotModified);
    if let Ok(value) = HeaderValue::from_str(&format!("\"{}\"", etag.value())) {
        error.set_headers(HeaderMap::from_iter([(header::ETAG, value)]));
    }
    error
}
