//! Percent-encoding as `SigV4` and S3 define it: every byte but `A-Z a-z 0-9 - . _ ~` is encoded.
//!
//! The gateway decodes a path once and encodes it again from the bytes. So one key has one path,
//! which is also what is signed, and no part of the way resolves `..` or joins `//`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const ENCODED_IN_KEYS: &AsciiSet = &ENCODED.remove(b'/');

/// Encodes a name or value of a query.
pub fn component(bytes: &[u8]) -> String {
    percent_encode(bytes, ENCODED).to_string()
}

/// Encodes a key as a path. `/` stays.
pub fn key(bytes: &[u8]) -> String {
    percent_encode(bytes, ENCODED_IN_KEYS).to_string()
}

/// One parameter of a query, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The name.
    pub name: Vec<u8>,
    /// The value. `None` if there is no `=`: `?acl`.
    pub value: Option<Vec<u8>>,
}

impl Parameter {
    /// The parameter in a query that is sent.
    pub fn encoded(&self) -> String {
        let name = component(&self.name);
        match &self.value {
            Some(value) => format!("{name}={}", component(value)),
            None => name,
        }
    }
}

/// Decodes a raw query. A `+` is a space, as in HTML forms.
pub fn parameters(query: &str) -> Vec<Parameter> {
    let decode = |text: &str| {
        let spaces: Vec<u8> =
            text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
        percent_encoding::percent_decode(&spaces).collect::<Vec<u8>>()
    };
    let parts = query.split('&').filter(|part| !part.is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((name, value)) => Parameter { name: decode(name), value: Some(decode(value)) },
            None => Parameter { name: decode(part), value: None },
        })
        .collect()
}

/// The raw query of these parameters, in their order. `None` if there are none.
pub fn query<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> Option<String> {
    let parts: Vec<String> = parameters.into_iter().map(Parameter::encoded).collect();
    (!parts.is_empty()).then(|| parts.join("&"))
}

/// The canonical query of `SigV4`: encoded, sorted, each with a `=`.
pub fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = parameters(query)
        .into_iter()
        .map(|parameter| {
            (component(&parameter.name), component(parameter.value.as_deref().unwrap_or(b"")))
        })
        .collect();
    pairs.sort();
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_slashes_and_dots_and_nothing_else_is_special() {
        assert_eq!(key("a/../b//c".as_bytes()), "a/../b//c");
        assert_eq!(key("a+b c%20/ü*'".as_bytes()), "a%2Bb%20c%2520/%C3%BC%2A%27");
        assert_eq!(component(b"a/b"), "a%2Fb");
    }

    #[test]
    fn a_query_keeps_its_order_and_its_missing_values() {
        let query_text = "uploads&prefix=a%20b&x=&y=a+b";
        let parsed = parameters(query_text);
        assert_eq!(query(&parsed).unwrap(), "uploads&prefix=a%20b&x=&y=a%20b");
        assert_eq!(canonical_query(query_text), "prefix=a%20b&uploads=&x=&y=a%20b");
        assert_eq!(query(&parameters("")), None);
        assert_eq!(query(&parameters("&&")), None);
    }
}
