//! Decoder of the `Authorization` header: exactly the three fields of `SigV4`, each once.

/// Longest header value that is read.
const LENGTH_MAX: usize = 4096;

/// The scope of a signature: `KEY/20261118/us-east-1/s3/aws4_request`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialScope<'a> {
    /// The access key id as presented, with the name of a job.
    pub access_key: &'a str,
    /// The day, 8 digits.
    pub date: &'a str,
    /// The region.
    pub region: &'a str,
    /// The service.
    pub service: &'a str,
}

impl<'a> CredentialScope<'a> {
    /// Parses a scope.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.rsplitn(5, '/');
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let (end, service, region, date, access_key) =
            (next()?, next()?, next()?, next()?, next()?);
        let is_plain = |part: &str| {
            part.bytes().all(|byte| byte.is_ascii_graphic() && !b"/,=".contains(&byte))
        };
        let is_date = date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
        (end == "aws4_request"
            && is_date
            && [access_key, region, service].into_iter().all(is_plain))
        .then_some(Self { access_key, date, region, service })
    }
}

/// A decoded header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization<'a> {
    /// The scope.
    pub credential: CredentialScope<'a>,
    /// Names of the signed headers, in lower case.
    pub signed_headers: Vec<&'a str>,
    /// The signature, 64 hexadecimal digits.
    pub signature: &'a str,
}

/// Whether a text is a signature.
pub fn is_signature(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether these are names of headers in lower case.
pub fn are_header_names(names: &[&str]) -> bool {
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.bytes().all(|byte| {
                matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"-_.!#$%&'*+^`|~".contains(&byte)
            })
    };
    names.iter().all(is_name)
}

/// Decodes a header value. `None` if it is not of the form that S3 documents; other forms could
/// mean another thing to the signature check than they mean here.
pub fn parse_authorization(text: &str) -> Option<Authorization<'_>> {
    if text.len() > LENGTH_MAX {
        return None;
    }
    let fields = text.strip_prefix("AWS4-HMAC-SHA256")?.strip_prefix(' ')?;
    let (mut credential, mut signed_headers, mut signature) = (None, None, None);
    for field in fields.split(',') {
        let (name, value) = field.trim().split_once('=')?;
        let slot = match name {
            "Credential" => &mut credential,
            "SignedHeaders" => &mut signed_headers,
            "Signature" => &mut signature,
            _ => return None,
        };
        if slot.replace(value).is_some() {
            return None;
        }
    }
    let signed_headers: Vec<&str> = signed_headers?.split(';').collect();
    let signature = signature.filter(|text| is_signature(text))?;
    let credential = CredentialScope::parse(credential?)?;
    are_header_names(&signed_headers).then_some(Authorization {
        credential,
        signed_headers,
        signature,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        format!(
            "AWS4-HMAC-SHA256 Credential=vision.ranker-7/20261118/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-date, Signature={}",
            "ab".repeat(32)
        )
    }

    #[test]
    fn the_three_fields_are_read() {
        let text = text();
        let parsed = parse_authorization(&text).unwrap();
        assert_eq!(parsed.credential.access_key, "vision.ranker-7");
        assert_eq!((parsed.credential.region, parsed.credential.service), ("us-east-1", "s3"));
        assert_eq!(parsed.signed_headers, ["host", "x-amz-date"]);
    }

    #[test]
    fn doubled_unknown_and_damaged_fields_are_refused() {
        let good = text();
        for (from, to) in [
            ("SignedHeaders=host", "SignedHeaders=Host"),
            ("host;", "host;;"),
            ("aws4_request", "aws5_request"),
            ("20261118", "2026111"),
            ("abab", "ABAB"),
            (", Signature", ", Signature=x, Signature"),
            (", Signature", ", Extra=1, Signature"),
            ("vision.ranker-7/", ""),
            ("vision.ranker-7/", "a/b/"),
            ("Credential=", "credential="),
        ] {
            assert_ne!(good, good.replacen(from, to, 1));
            assert!(parse_authorization(&good.replacen(from, to, 1)).is_none(), "{from} to {to}");
        }
        for end in 0..good.len() {
            assert!(parse_authorization(&good[..end]).is_none(), "{end}");
        }
    }
}
