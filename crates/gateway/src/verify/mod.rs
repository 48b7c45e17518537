//! Checks of a request before `s3s` verifies its signature.
//!
//! `s3s` 0.14.1 accepts `SigV2`, whose header form can be replayed for ever. It does not ask that
//! `host` and the `x-amz-*` headers are signed, nor that signed headers are there, and puts no
//! limit on the life of a presigned URL. A request that passes both has exactly one `SigV4`
//! authentication, which covers everything but the payload that it declares unsigned.

mod authorization;

use std::time::SystemTime;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

pub use authorization::{CredentialScope, parse_authorization};

use crate::{
    encoding::{self, Parameter},
    s3_error::S3Failure,
};

/// Longest life of a presigned URL: 7 days.
const EXPIRES_MAX_SECONDS: u32 = 7 * 24 * 3600;
/// Longest distance between a request's time and ours, as in S3.
const SKEW_MAX: TimeDelta = TimeDelta::minutes(15);
/// Longest query that is read. S3's own limit for headers and URL is 8 KiB.
const QUERY_LENGTH_MAX: usize = 16 << 10;
/// Headers that may come once: authentication, addressing and framing depend on them.
const SINGLE: [&str; 7] = [
    "authorization",
    "host",
    "date",
    "content-length",
    "content-md5",
    "content-type",
    "content-encoding",
];
/// Parameters of a presigned URL.
const PRESIGNED: [&str; 6] = [
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-SignedHeaders",
    "X-Amz-Signature",
];

/// Whether a parameter belongs to a presigned URL and not to the request itself.
pub fn is_presign_parameter(parameter: &Parameter) -> bool {
    PRESIGNED.iter().any(|name| name.as_bytes() == parameter.name)
}

/// Checks a request. `parameters` are those of its query.
pub fn check(
    method: &Method,
    headers: &HeaderMap,
    query: &str,
    now: SystemTime,
) -> Result<(), S3Failure> {
    if query.len() > QUERY_LENGTH_MAX {
        return Err(S3Failure::new(
            StatusCode::URI_TOO_LONG,
            "InvalidURI",
            "The query is too long.",
        ));
    }
    check_headers(method, headers)?;
    let parameters = encoding::parameters(query);
    let has = |name: &str| parameters.iter().any(|it| it.name == name.as_bytes());
    let is_v2 = has("Signature") || has("AWSAccessKeyId");
    let is_presigned = parameters.iter().any(is_presign_parameter);
    if has("X-Amz-Security-Token") || headers.contains_key("x-amz-security-token") {
        return Err(S3Failure::new(
            StatusCode::BAD_REQUEST,
            "InvalidToken",
            "Access keys of this gateway have no session token; unset AWS_SESSION_TOKEN.",
        ));
    }
    let now = DateTime::<Utc>::from(now);
    match (headers.get(header::AUTHORIZATION), is_presigned) {
        _ if is_v2 => Err(not_v4()),
        (Some(_), true) => Err(S3Failure::new(
            StatusCode::BAD_REQUEST,
            "InvalidArgument",
            "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter or the \
             Authorization header should be specified.",
        )),
        (Some(value), false) => check_signed_header(value, headers, now),
        (None, true) => check_presigned(&parameters, headers, now),
        (None, false) => Err(S3Failure::access_denied("Requests to this endpoint must be signed.")),
    }
}

fn check_headers(method: &Method, headers: &HeaderMap) -> Result<(), S3Failure> {
    for name in headers.keys() {
        let is_amz = name.as_str().starts_with("x-amz-");
        if !is_amz && !SINGLE.contains(&name.as_str()) {
            continue;
        }
        let values: Vec<&HeaderValue> = headers.get_all(name).iter().collect();
        if values.len() > 1 {
            return Err(S3Failure::invalid_request(format!("The header {name} is given twice.")));
        }
        if values.iter().any(|value| value.to_str().is_err()) {
            return Err(S3Failure::invalid_request(format!("The header {name} is not ASCII.")));
        }
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_form = content_type.is_some_and(|text| {
        text.trim_start().to_ascii_lowercase().starts_with("multipart/form-data")
    });
    if *method == Method::POST && is_form {
        return Err(S3Failure::new(
            StatusCode::NOT_IMPLEMENTED,
            "NotImplemented",
            "This endpoint takes no POST uploads of HTML forms, whose signature is in the body.",
        ));
    }
    Ok(())
}

fn not_v4() -> S3Failure {
    S3Failure::invalid_request(
        "The authorization mechanism you have provided is not supported. Please use \
         AWS4-HMAC-SHA256.",
    )
}

fn check_signed_header(
    value: &HeaderValue,
    headers: &HeaderMap,
    now: DateTime<Utc>,
) -> Result<(), S3Failure> {
    let text = value.to_str().unwrap_or_default();
    if !text.starts_with("AWS4-HMAC-SHA256") {
        return Err(not_v4());
    }
    let Some(authorization) = parse_authorization(text) else {
        return Err(S3Failure::new(
            StatusCode::BAD_REQUEST,
            "AuthorizationHeaderMalformed",
            "The authorization header is malformed.",
        ));
    };
    let date = headers.get("x-amz-date").and_then(|date| date.to_str().ok());
    let date = check_date(date, &authorization.credential)?;
    if (now - date).abs() > SKEW_MAX {
        return Err(too_skewed());
    }
    check_signed_names(&authorization.signed_headers, headers, |_| false)
}

fn too_skewed() -> S3Failure {
    S3Failure::new(
        StatusCode::FORBIDDEN,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
    )
}

/// The time of a request, which must be of the day of its scope.
fn check_date(
    date: Option<&str>,
    credential: &CredentialScope<'_>,
) -> Result<DateTime<Utc>, S3Failure> {
    let date = date.ok_or_else(|| {
        S3Failure::access_denied("AWS authentication requires a valid x-amz-date header.")
    })?;
    let parsed = NaiveDateTime::parse_from_str(date, "%Y%m%dT%H%M%SZ").ok();
    let parsed = parsed.filter(|_| date.len() == 16).ok_or_else(|| {
        S3Failure::access_denied("The time of the request is not of the form 20261118T120000Z.")
    })?;
    if credential.service != "s3" {
        return Err(S3Failure::invalid_request(
            "The signature is for another service; sign for the service s3.",
        ));
    }
    if !date.starts_with(credential.date) {
        return Err(S3Failure::new(
            StatusCode::FORBIDDEN,
            "SignatureDoesNotMatch",
            "The date of the credential differs from that of the request.",
        ));
    }
    Ok(parsed.and_utc())
}

fn check_presigned(
    parameters: &[Parameter],
    headers: &HeaderMap,
    now: DateTime<Utc>,
) -> Result<(), S3Failure> {
    let malformed = |message: &str| {
        S3Failure::new(StatusCode::BAD_REQUEST, "AuthorizationQueryParametersError", message)
    };
    let mut values = [""; PRESIGNED.len()];
    for (value, name) in values.iter_mut().zip(PRESIGNED) {
        let mut found = parameters.iter().filter(|it| it.name == name.as_bytes());
        let first = found.next().and_then(|it| str::from_utf8(it.value.as_deref()?).ok());
        if found.next().is_some() {
            return Err(malformed("A parameter of the signature is given twice."));
        }
        *value = first.ok_or_else(|| {
            malformed(
                "Query-string authentication version 4 requires the X-Amz-Algorithm, \
                 X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and \
                 X-Amz-Expires parameters.",
            )
        })?;
    }
    let [algorithm, credential, date, expires, signed, signature] = values;
    if algorithm != "AWS4-HMAC-SHA256" {
        return Err(not_v4());
    }
    let credential = CredentialScope::parse(credential)
        .filter(|_| authorization::is_signature(signature))
        .ok_or_else(|| malformed("The credential or the signature is malformed."))?;
    let date = check_date(Some(date), &credential)?;
    let expires: u32 = expires
        .parse()
        .ok()
        .filter(|seconds| (1..=EXPIRES_MAX_SECONDS).contains(seconds))
        .ok_or_else(|| malformed("X-Amz-Expires must be between 1 and 604800 seconds."))?;
    if date - now > SKEW_MAX {
        return Err(too_skewed());
    }
    if now - date > TimeDelta::seconds(expires.into()) {
        return Err(S3Failure::access_denied("Request has expired"));
    }
    let signed: Vec<&str> = signed.split(';').collect();
    if !authorization::are_header_names(&signed) {
        return Err(malformed("X-Amz-SignedHeaders is malformed."));
    }
    // Of the body's hash, the signature of a URL covers nothing, and s3s checks it.
    check_signed_names(&signed, headers, |name| name == "x-amz-content-sha256")
}

/// Checks that `host` and every `x-amz-*` header is signed, and that every signed header exists.
fn check_signed_names(
    signed: &[&str],
    headers: &HeaderMap,
    is_exempt: impl Fn(&str) -> bool,
) -> Result<(), S3Failure> {
    for (at, name) in signed.iter().enumerate() {
        if signed[..at].contains(name) || !headers.contains_key(*name) {
            return Err(S3Failure::new(
                StatusCode::FORBIDDEN,
                "SignatureDoesNotMatch",
                "A signed header is missing or named twice.",
            ));
        }
    }
    let must_be_signed =
        |name: &str| name == "host" || (name.starts_with("x-amz-") && !is_exempt(name));
    let mut unsigned = headers.keys().map(http::HeaderName::as_str);
    match unsigned.find(|name| must_be_signed(name) && !signed.contains(name)) {
        Some(name) => Err(S3Failure::access_denied(format!(
            "There were headers present in the request which were not signed: {name}"
        ))),
        None if !signed.contains(&"host") => {
            Err(S3Failure::access_denied("The header host must be signed."))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "20261118T120000Z";
    const SIGNATURE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn now() -> SystemTime {
        NaiveDateTime::parse_from_str(DATE, "%Y%m%dT%H%M%SZ").unwrap().and_utc().into()
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: http::HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    fn authorization(signed: &str) -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=vision.job/20261118/us-east-1/s3/aws4_request, \
             SignedHeaders={signed}, Signature={SIGNATURE}"
        )
    }

    fn code(pairs: &[(&str, &str)], query: &str) -> &'static str {
        match check(&Method::GET, &headers(pairs), query, now()) {
            Ok(()) => "",
            Err(failure) => failure.code,
        }
    }

    #[test]
    fn host_and_every_amz_header_must_be_signed_and_every_signed_header_be_there() {
        let all = authorization("host;x-amz-content-sha256;x-amz-date");
        let base = [("host", "h"), ("x-amz-date", DATE), ("x-amz-content-sha256", "e3b0")];
        let with = |authorization: &str, more: &[(&str, &str)]| {
            let mut pairs: Vec<(&str, &str)> = base.to_vec();
            pairs.push(("authorization", authorization));
            pairs.extend_from_slice(more);
            code(&pairs, "")
        };
        assert_eq!(with(&all, &[]), "");
        assert_eq!(with(&all, &[("range", "bytes=0-1"), ("if-match", "x")]), "");
        assert_eq!(with(&all, &[("x-amz-copy-source", "b/k")]), "AccessDenied");
        assert_eq!(with(&all, &[("x-amz-content-sha256", "other")]), "InvalidRequest");
        assert_eq!(with(&all, &[("host", "other")]), "InvalidRequest");
        let without_host = authorization("x-amz-content-sha256;x-amz-date");
        assert_eq!(with(&without_host, &[]), "AccessDenied");
        let missing = authorization("host;range;x-amz-content-sha256;x-amz-date");
        assert_eq!(with(&missing, &[]), "SignatureDoesNotMatch");
        let twice = authorization("host;host;x-amz-content-sha256;x-amz-date");
        assert_eq!(with(&twice, &[]), "SignatureDoesNotMatch");
        assert_eq!(with(&all.replace("/s3/", "/sts/"), &[]), "InvalidRequest");
        assert_eq!(with(&all.replace("20261118/", "20261117/"), &[]), "SignatureDoesNotMatch");
        assert_eq!(with(&all, &[("x-amz-security-token", "t")]), "InvalidToken");
    }

    #[test]
    fn other_kinds_of_authentication_are_refused() {
        let host = ("host", "h");
        assert_eq!(code(&[host], ""), "AccessDenied");
        assert_eq!(code(&[host, ("authorization", "AWS vision:c2ln")], ""), "InvalidRequest");
        assert_eq!(code(&[host], "AWSAccessKeyId=v&Expires=1&Signature=x"), "InvalidRequest");
        assert_eq!(code(&[host, ("authorization", "Bearer x")], ""), "InvalidRequest");
        let v4a = "AWS4-ECDSA-P256-SHA256 Credential=a, SignedHeaders=host, Signature=x";
        assert_eq!(code(&[host, ("authorization", v4a)], ""), "InvalidRequest");
        let both = authorization("host");
        assert_eq!(code(&[host, ("authorization", &both)], &presigned(60)), "InvalidArgument");
    }

    fn presigned(expires: u32) -> String {
        format!(
            "X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=vision%2F20261118%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date={DATE}&X-Amz-Expires={expires}&X-Amz-SignedHeaders=host\
             &X-Amz-Signature={SIGNATURE}"
        )
    }

    #[test]
    fn a_presigned_url_lives_seven_days_at_most_and_is_complete() {
        let host = [("host", "h")];
        assert_eq!(code(&host, &presigned(604_800)), "");
        let malformed = "AuthorizationQueryParametersError";
        assert_eq!(code(&host, &presigned(604_801)), malformed);
        assert_eq!(code(&host, &presigned(0)), malformed);
        assert_eq!(code(&host, &format!("{}&X-Amz-Expires=60", presigned(60))), malformed);
        for name in PRESIGNED {
            let text = presigned(60).replace(name, "x");
            assert_eq!(code(&host, &text), malformed, "{name}");
        }
        let late = SystemTime::from(DateTime::<Utc>::from(now()) + TimeDelta::seconds(61));
        let expired = check(&Method::GET, &headers(&host), &presigned(60), late);
        assert_eq!(expired.unwrap_err().message, "Request has expired");
        let amz = [("host", "h"), ("x-amz-meta-a", "1")];
        assert_eq!(code(&amz, &presigned(60)), "AccessDenied");
    }

    #[test]
    fn a_request_of_another_time_is_refused() {
        let text = authorization("host;x-amz-date");
        let pairs = headers(&[("host", "h"), ("x-amz-date", DATE), ("authorization", &text)]);
        for (minutes, accepted) in [(14, true), (-14, true), (16, false), (-16, false)] {
            let at = DateTime::<Utc>::from(now()) + TimeDelta::minutes(minutes);
            let checked = check(&Method::GET, &pairs, "", at.into());
            assert_eq!(checked.is_ok(), accepted, "{minutes} min");
        }
    }

    #[test]
    fn a_form_upload_is_refused() {
        let pairs = headers(&[("host", "h"), ("content-type", "Multipart/Form-Data; boundary=x")]);
        let refused = check(&Method::POST, &pairs, "", now()).unwrap_err();
        assert_eq!(refused.code, "NotImplemented");
    }
}
