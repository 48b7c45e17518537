//! Request terms: what a GET or HEAD asks for, parsed. What is not understood is passed on.

use forebay_core::gateway::{
    byte_range::{ByteRange, RangeHeader},
    conditions::{Conditions, HttpTime, IfRange},
    etag::{EtagList, StrongEtag},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::{encoding, object_request::ObjectRequest};

/// `x-amz-checksum-mode`.
pub const CHECKSUM_MODE: HeaderName = HeaderName::from_static("x-amz-checksum-mode");

/// `x-amz-` headers that do not change what is answered.
const HARMLESS: [&str; 5] = [
    "x-amz-checksum-mode",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-user-agent",
    "x-amz-security-token",
];

/// The terms of a request.
#[derive(Debug, Clone, Default)]
pub struct RequestTerms {
    /// The range; `None` for the whole object.
    pub range: Option<ByteRange>,
    /// The conditions.
    pub conditions: Conditions,
    /// Whether the checksums of the whole object are wanted.
    pub wants_checksums: bool,
    /// Headers of the answer that the query replaces.
    pub overrides: Vec<(HeaderName, HeaderValue)>,
}

impl RequestTerms {
    /// Parses a request. `None` if the origin has to answer it.
    pub fn of(request: &ObjectRequest) -> Option<Self> {
        let headers = &request.headers;
        let is_understood = |name: &HeaderName| {
            !name.as_str().starts_with("x-amz-") || HARMLESS.contains(&name.as_str())
        };
        if !headers.keys().all(is_understood) {
            return None;
        }
        let range = match single(headers, &header::RANGE)?.map(HeaderValue::as_bytes) {
            None => RangeHeader::Whole,
            Some(value) => RangeHeader::parse(value),
        };
        let range = match range {
            RangeHeader::Whole => None,
            RangeHeader::One(range) => Some(range),
            RangeHeader::Unsupported => return None,
        };
        let tags = |name| -> Option<Option<EtagList>> {
            match single(headers, name)? {
                None => Some(None),
                Some(value) => Some(Some(EtagList::parse(value.as_bytes())?)),
            }
        };
        let date = |name| -> Option<Option<HttpTime>> {
            Some(single(headers, name)?.and_then(|value| HttpTime::parse(value.as_bytes())))
        };
        let if_range = single(headers, &header::IF_RANGE)?.map(|value| {
            let value = value.as_bytes();
            StrongEtag::parse(value)
                .map(IfRange::Etag)
                .or_else(|| HttpTime::parse(value).map(IfRange::Date))
                .unwrap_or(IfRange::Never)
        });
        let conditions = Conditions {
            if_match: tags(&header::IF_MATCH)?,
            if_unmodified_since: date(&header::IF_UNMODIFIED_SINCE)?,
            if_none_match: tags(&header::IF_NONE_MATCH)?,
            if_modified_since: date(&header::IF_MODIFIED_SINCE)?,
            if_range,
        };
        let wants_checksums = match single(headers, &CHECKSUM_MODE)? {
            None => false,
            Some(mode) if mode.as_bytes().eq_ignore_ascii_case(b"enabled") => true,
            Some(_) => return None,
        };
        let overrides = overrides(request.query.as_deref().unwrap_or(""))?;
        Some(Self { range, conditions, wants_checksums, overrides })
    }
}

/// The only value of a header. `None` if there are several.
#[expect(clippy::option_option, reason = "absent, or not understood")]
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Option<&'a HeaderValue>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    values.next().is_none().then_some(first)
}

/// The `response-*` parameters. `None` if there is one that is not understood.
fn overrides(query: &str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let mut overrides = Vec::new();
    for parameter in encoding::parameters(query) {
        let name = match &*parameter.name {
            b"x-id" => continue,
            b"response-content-type" => header::CONTENT_TYPE,
            b"response-content-language" => header::CONTENT_LANGUAGE,
            b"response-expires" => header::EXPIRES,
            b"response-cache-control" => header::CACHE_CONTROL,
            b"response-content-disposition" => header::CONTENT_DISPOSITION,
            b"response-content-encoding" => header::CONTENT_ENCODING,
            _ => return None,
        };
        let value = HeaderValue::from_bytes(&parameter.value?).ok()?;
        overrides.push((name, value));
    }
    Some(overrides)
}
