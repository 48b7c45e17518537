//! An origin over a temporary directory, with two clients: `object_store`, which signs and retries
//! like forebay's own client, and raw requests, which can be malformed.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    sync::Once,
    time::{Duration, SystemTime},
};

use forebay_dev_origin::{ACCESS_KEY, Config, DevOrigin, REGION, SECRET_KEY};
use object_store::{
    BackoffConfig, ClientOptions, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
};
use s3s::{
    crypto::{Checksum as _, Sha256},
    dto::{Timestamp, TimestampFormat},
};

pub const BUCKET: &str = "bucket";

pub struct Fixture {
    pub origin: DevOrigin,
    directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join(BUCKET)).unwrap();
        let mut config = Config::new(directory.path());
        change(&mut config);
        Self { origin: DevOrigin::start(config).unwrap(), directory }
    }

    /// Path of a key's file.
    pub fn path(&self, key: &str) -> PathBuf {
        self.directory.path().join(BUCKET).join(key)
    }

    pub fn write(&self, key: &str, content: impl AsRef<[u8]>) {
        let path = self.path(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Every file below the root, staging included.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut directories = vec![self.directory.path().to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { directories.push(path) } else { files.push(path) }
            }
        }
        files
    }

    pub fn store(&self) -> AmazonS3 {
        self.store_as(ACCESS_KEY, SECRET_KEY)
    }

    pub fn store_as(&self, access_key: &str, secret_key: &str) -> AmazonS3 {
        self.builder()
            .with_access_key_id(access_key)
            .with_secret_access_key(secret_key)
            .build()
            .unwrap()
    }

    pub fn builder(&self) -> AmazonS3Builder {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            rustls::crypto::ring::default_provider().install_default().unwrap();
        });
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(5),
            base: 2.0,
        };
        AmazonS3Builder::new()
            .with_endpoint(self.origin.endpoint())
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_region(REGION)
            .with_bucket_name(BUCKET)
            .with_access_key_id(ACCESS_KEY)
            .with_secret_access_key(SECRET_KEY)
            .with_retry(RetryConfig {
                backoff,
                max_retries: 20,
                retry_timeout: Duration::from_secs(30),
            })
    }

    /// Sends a signed request for the path exactly as written, and reads the answer.
    pub fn raw(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Raw {
        let mut stream = self.send(method, path, headers, body);
        let mut bytes = Vec::new();
        // A truncated body may end with a reset.
        let _ = stream.read_to_end(&mut bytes);
        Raw::parse(&bytes)
    }

    /// Sends a signed request without reading the answer.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TcpStream {
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        let signed = self.sign(method, path);
        let given = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let has_length = headers.iter().any(|(name, _)| *name == "content-length");
        let length = ("content-length".to_owned(), body.len().to_string());
        let length = (!has_length && method != "GET").then_some(length);
        for (name, value) in signed.into_iter().chain(given).chain(length) {
            head.extend([&*name, ": ", &*value, "\r\n"]);
        }
        let mut stream = TcpStream::connect(self.origin.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// AWS Signature Version 4, for a query in canonical form and an unsigned payload.
    fn sign(&self, method: &str, path: &str) -> Vec<(String, String)> {
        let mut date = Vec::new();
        Timestamp::from(SystemTime::now()).format(TimestampFormat::DateTime, &mut date).unwrap();
        let date = String::from_utf8(date).unwrap().replace(['-', ':'], "");
        let date = format!("{}Z", &date[..15]);
        let host = self.origin.address().to_string();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let signed = "host;x-amz-content-sha256;x-amz-date";
        let canonical = format!(
            "{method}\n{}\n{query}\nhost:{host}\nx-amz-content-sha256:UNSIGNED-PAYLOAD\n\
             x-amz-date:{date}\n\n{signed}\nUNSIGNED-PAYLOAD",
            normalise(path)
        );
        let scope = format!("{}/{REGION}/s3/aws4_request", &date[..8]);
        let to_sign = format!(
            "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
            hex(&Sha256::checksum(canonical.as_bytes()))
        );
        let mut key = format!("AWS4{SECRET_KEY}").into_bytes();
        for part in scope.split('/').chain([&*to_sign]) {
            key = hmac(&key, part.as_bytes()).to_vec();
        }
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={signed}, \
             Signature={}",
            hex(&key)
        );
        [
            ("host", host),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD".to_owned()),
            ("x-amz-date", date),
            ("authorization", authorization),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// The canonical form of a path: decoded, then encoded.
fn normalise(path: &str) -> String {
    let (mut bytes, mut canonical) = (path.bytes(), String::new());
    while let Some(byte) = bytes.next() {
        let byte = if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
        } else {
            byte
        };
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            canonical.push(char::from(byte));
        } else {
            canonical.extend([format!("%{byte:02X}")]);
        }
    }
    canonical
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::checksum(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = [&block.map(|byte| byte ^ 0x36)[..], message].concat();
    let outer = [&block.map(|byte| byte ^ 0x5c)[..], &Sha256::checksum(&inner)].concat();
    Sha256::checksum(&outer)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

/// A raw response.
#[derive(Debug)]
pub struct Raw {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Raw {
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.expect("a response has a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: bytes[end + 4..].to_vec() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The S3 error code in the body, if any.
    pub fn code(&self) -> String {
        let text = String::from_utf8_lossy(&self.body).into_owned();
        let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
        code.map(|(code, _)| code.to_owned()).unwrap_or_default()
    }
}

/// Content whose bytes depend on their position.
pub fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| u8::try_from((at / 251 + at) % 251).unwrap()).collect()
}
