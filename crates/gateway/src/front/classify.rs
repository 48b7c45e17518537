//! Which requests the object path answers. Everything else passes to the origin.
//!
//! The list names what is understood. A parameter or an `x-amz-*` header that is not in it makes a
//! request pass, so that nothing is guessed.

use http::{HeaderMap, Method, header};

use crate::{encoding::Parameter, object_request::ObjectMethod, origin_client::OriginTarget};

/// Headers of AWS that a served GET or HEAD may have.
const UNDERSTOOD: [&str; 5] =
    ["x-amz-checksum-mode", "x-amz-content-sha256", "x-amz-date", "x-amz-user-agent", "x-amz-te"];

/// The operation that the object path answers, or `None` if the request passes.
pub fn served(
    method: &Method,
    target: &OriginTarget,
    parameters: &[Parameter],
    headers: &HeaderMap,
) -> Option<ObjectMethod> {
    let OriginTarget::Object(_) = target else { return None };
    let operation = match *method {
        Method::GET => ObjectMethod::Get,
        Method::HEAD => ObjectMethod::Head,
        _ => return None,
    };
    let is_understood = |parameter: &Parameter| {
        parameter.name.starts_with(b"response-")
            || (parameter.name == b"x-id"
                && [&b"GetObject"[..], b"HeadObject"]
                    .contains(&parameter.value.as_deref().unwrap_or_default()))
    };
    let is_plain = |name: &str| !name.starts_with("x-amz-") || UNDERSTOOD.contains(&name);
    (parameters.iter().all(is_understood)
        && headers.keys().all(|name| is_plain(name.as_str()))
        && has_no_body(headers)
        && has_one_range(headers))
    .then_some(operation)
}

fn has_no_body(headers: &HeaderMap) -> bool {
    !headers.contains_key(header::TRANSFER_ENCODING)
        && headers.get(header::CONTENT_LENGTH).is_none_or(|length| length == "0")
}

/// At most one `Range` header, of one range of bytes.
fn has_one_range(headers: &HeaderMap) -> bool {
    let mut ranges = headers.get_all(header::RANGE).iter();
    match (ranges.next(), ranges.next()) {
        (None, _) => true,
        (Some(range), None) => !range.as_bytes().contains(&b','),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        encoding,
        object_request::{ObjectName, OriginId},
    };

    fn passes(method: &Method, query: &str, pairs: &[(&'static str, &'static str)]) -> bool {
        let target = OriginTarget::Object(ObjectName {
            origin: OriginId::of_endpoint("http://o"),
            bucket: "b".into(),
            key: Bytes::from_static(b"k"),
        });
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        served(method, &target, &encoding::parameters(query), &headers).is_none()
    }

    #[test]
    fn only_what_is_understood_is_served() {
        for (query, pairs) in [
            ("", &[][..]),
            ("x-id=GetObject", &[("range", "bytes=0-1")]),
            ("response-content-type=a", &[("x-amz-checksum-mode", "ENABLED")]),
            ("", &[("content-length", "0"), ("if-match", "x"), ("amz-sdk-request", "a")]),
        ] {
            assert!(!passes(&Method::GET, query, pairs), "{query} {pairs:?}");
            assert!(!passes(&Method::HEAD, query, pairs), "{query} {pairs:?}");
        }
        for (query, pairs) in [
            ("versionId=1", &[][..]),
            ("partNumber=1", &[]),
            ("acl", &[]),
            ("x-id=PutObject", &[]),
            ("unknown=1", &[]),
            ("", &[("range", "bytes=0-1,3-4")]),
            ("", &[("range", "bytes=0-1"), ("range", "bytes=3-4")]),
            ("", &[("x-amz-server-side-encryption-customer-algorithm", "AES256")]),
            ("", &[("x-amz-request-payer", "requester")]),
            ("", &[("x-amz-expected-bucket-owner", "1")]),
            ("", &[("content-length", "1")]),
            ("", &[("transfer-encoding", "chunked")]),
        ] {
            assert!(passes(&Method::GET, query, pairs), "{query} {pairs:?}");
        }
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::OPTIONS] {
            assert!(passes(&method, "", &[]));
        }
    }
}
