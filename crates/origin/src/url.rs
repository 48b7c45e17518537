//! URLs and paths of origins.

use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::OriginError;

/// A parsed origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// `file://` or a plain path.
    Local(PathBuf),
    /// `s3://bucket/prefix`
    S3 {
        /// The bucket.
        bucket: String,
        /// Common prefix of all keys, without a trailing slash; may be empty.
        prefix: String,
    },
    /// `gs://bucket/prefix`
    Google {
        /// The bucket.
        bucket: String,
        /// Common prefix of all keys.
        prefix: String,
    },
    /// `az://container/prefix`; the account comes from the environment.
    Azure {
        /// The container.
        container: String,
        /// Common prefix of all keys.
        prefix: String,
    },
    /// `http://` or `https://`: one object, or a `WebDAV` collection.
    Http {
        /// Scheme and host.
        base: String,
        /// The decoded path, without leading or trailing slashes.
        prefix: String,
    },
}

impl Location {
    /// Parses a URL or path. Errors never quote a possible secret.
    pub fn parse(text: &str) -> Result<Self, OriginError> {
        let error = |url: &str, problem: &str| OriginError::Url {
            url: url.escape_debug().to_string(),
            problem: problem.to_owned(),
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return if text.is_empty() {
                Err(error(text, "it is empty"))
            } else {
                Ok(Self::Local(PathBuf::from(text)))
            };
        };
        let authority = rest.split('/').next().unwrap_or_default();
        if authority.contains('@') {
            let problem = "it contains credentials; set them in the environment instead";
            return Err(error(&format!("{scheme}://…"), problem));
        }
        let signed = rest.split_once('?').is_some_and(|(_, query)| {
            let query = query.to_ascii_lowercase();
            ["sig=", "signature=", "token="].iter().any(|name| query.contains(name))
        });
        if signed && !scheme.to_ascii_lowercase().starts_with("http") {
            let problem = "it contains a signature; set credentials in the environment instead";
            return Err(error(&format!("{scheme}://{authority}/…"), problem));
        }
        let bucket_and_prefix = || match rest.split_once('/').unwrap_or((rest, "")) {
            ("", _) => Err(error(text, "the bucket is missing")),
            (bucket, prefix) => Ok((bucket.to_owned(), prefix.trim_matches('/').to_owned())),
        };
        match scheme.to_ascii_lowercase().as_str() {
            "file" => url::Url::parse(text)
                .ok()
                .and_then(|url| url.to_file_path().ok())
                .map(Self::Local)
                .ok_or_else(|| error(text, "a file URL has three slashes and an absolute path")),
            "s3" | "s3a" => bucket_and_prefix().map(|(bucket, prefix)| Self::S3 { bucket, prefix }),
            "gs" => bucket_and_prefix().map(|(bucket, prefix)| Self::Google { bucket, prefix }),
            "az" | "azure" => {
                bucket_and_prefix().map(|(container, prefix)| Self::Azure { container, prefix })
            }
            "http" | "https" => {
                let url = url::Url::parse(text).map_err(|e| error(text, &e.to_string()))?;
                if url.query().is_some() || url.fragment().is_some() {
                    let problem =
                        "it has a query or fragment, which may be a secret and would be stored";
                    return Err(error(&format!("{scheme}://{authority}/…"), problem));
                }
                let base = format!("{}://{authority}", url.scheme());
                let path = percent_decode_str(url.path()).decode_utf8();
                let path = path.map_err(|_| error(text, "its path is not UTF-8"))?;
                Ok(Self::Http { base, prefix: path.trim_matches('/').to_owned() })
            }
            other => Err(error(text, &format!("the scheme `{other}` is unknown"))),
        }
    }

    /// The location as a URL.
    pub fn url(&self) -> String {
        let joined = |scheme: &str, bucket: &str, prefix: &str| {
            let separator = if prefix.is_empty() { "" } else { "/" };
            format!("{scheme}{bucket}{separator}{prefix}")
        };
        match self {
            Self::Local(path) => url::Url::from_file_path(path)
                .map_or_else(|()| path.display().to_string(), |url| url.to_string()),
            Self::S3 { bucket, prefix } => joined("s3://", bucket, prefix),
            Self::Google { bucket, prefix } => joined("gs://", bucket, prefix),
            Self::Azure { container, prefix } => joined("az://", container, prefix),
            Self::Http { base, prefix } => joined("", base, &encode(prefix)),
        }
    }
}

/// Percent-encodes a path of a URL. Decoding it returns the same path.
fn encode(path: &str) -> String {
    const LITERAL: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    utf8_percent_encode(path, LITERAL).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_in_all_common_forms() {
        for (text, url) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/a b/ü/", "s3://bucket/a b/ü"),
            ("S3A://bucket//x", "s3://bucket/x"),
            ("gs://bucket/x/y", "gs://bucket/x/y"),
            ("az://container/x", "az://container/x"),
            ("https://example.org/data/", "https://example.org/data"),
            ("http://127.0.0.1:8000/data/x.bin", "http://127.0.0.1:8000/data/x.bin"),
            ("http://host/a b/ü%20100%25.bin", "http://host/a%20b/%C3%BC%20100%25.bin"),
            ("file:///data/my%20files", "file:///data/my%20files"),
            ("/data/my files", "file:///data/my%20files"),
        ] {
            assert_eq!(Location::parse(text).unwrap().url(), url, "{text}");
        }
    }

    #[test]
    fn malformed_urls_are_refused_with_a_remedy_and_without_secrets() {
        for text in [
            "",
            "ftp://host/x",
            "s3://",
            "s3:///key",
            "file://relative",
            "http://",
            "https://user:hunter2@host/x",
            "https://host/x?X-Amz-Signature=hunter2",
            "s3://key:hunter2@bucket/x",
            "az://container/x?sv=1&sig=hunter2",
        ] {
            let message = Location::parse(text).expect_err(text).to_string();
            assert!(message.contains("use s3://"), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
