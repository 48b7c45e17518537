//! Uploads: content is staged and hashed as it arrives, and accepted only if all declared lengths
//! and checksums match.
//!
//! `s3s` checks the signature over the body (its SHA-256, or chunk by chunk) as it streams. The
//! checksums in headers, in trailers and in `Content-MD5` are checked here.

use std::{io::Write as _, sync::Arc};

use bytes::Bytes;
use forebay_core::units::ByteSize;
use futures::StreamExt as _;
use http::HeaderMap;
use s3s::{
    S3Error, S3Result, StdError, TrailingHeaders,
    checksum::ChecksumHasher,
    crypto::{Checksum as _, Md5},
    dto::{Checksum, StreamingBlob},
    s3_error,
};
use tempfile::NamedTempFile;
use tokio::task::spawn_blocking;

use crate::{
    counters::Counters,
    tree::{Tree, io_error},
};

/// Bytes that are collected before one trip through the blocking pool writes them.
const WRITE_SIZE: ByteSize = ByteSize::mib(1);

/// What the client declares about the content.
#[derive(Debug)]
pub struct Declared {
    pub length: Option<i64>,
    pub md5: Option<String>,
    pub checksum: Checksum,
    /// Sent after the content, under the names in `x-amz-trailer`.
    pub trailers: Option<TrailingHeaders>,
    pub trailer_names: String,
}

pub fn announced_trailers(headers: &HeaderMap) -> String {
    let names = headers.get_all("x-amz-trailer").iter().filter_map(|name| name.to_str().ok());
    names.collect::<Vec<_>>().join(",").to_ascii_lowercase()
}

/// Complete content, with its computed checksums.
#[derive(Debug)]
pub struct Received {
    pub staged: NamedTempFile,
    pub checksum: Checksum,
}

struct Sink {
    staged: NamedTempFile,
    checksum: ChecksumHasher,
    md5: Option<Md5>,
}

impl Sink {
    fn write(&mut self, buffers: &[Bytes]) -> S3Result<()> {
        for bytes in buffers {
            self.checksum.update(bytes);
            if let Some(md5) = &mut self.md5 {
                md5.update(bytes);
            }
            self.staged.as_file_mut().write_all(bytes).map_err(io_error)?;
        }
        Ok(())
    }
}

/// Stages a body. If it is refused, no file is left.
pub async fn receive(
    tree: Arc<Tree>,
    counters: &Counters,
    body: Option<StreamingBlob>,
    declared: Declared,
) -> S3Result<Received> {
    let mut sink = blocking({
        let checksum = hasher(&declared.checksum, &declared.trailer_names);
        let md5 = declared.md5.is_some().then(Md5::new);
        move || Ok(Sink { staged: tree.stage()?, checksum, md5 })
    })
    .await?;
    let mut size = 0;
    if let Some(mut body) = body {
        let mut ended = false;
        while !ended {
            let mut buffers = Vec::new();
            let mut gathered = 0;
            while gathered < WRITE_SIZE.0 {
                let Some(bytes) = body.next().await else {
                    ended = true;
                    break;
                };
                let bytes = bytes.map_err(body_error)?;
                counters.received(bytes.len() as u64);
                gathered += bytes.len() as u64;
                buffers.push(bytes);
            }
            size += gathered;
            sink = blocking(move || sink.write(&buffers).map(|()| sink)).await?;
        }
    }
    if declared.length.is_some_and(|length| u64::try_from(length) != Ok(size)) {
        return Err(s3_error!(IncompleteBody));
    }
    if let (Some(expected), Some(md5)) = (&declared.md5, sink.md5) {
        compare("Content-MD5", expected, &base64_simd::STANDARD.encode_to_string(md5.finalize()))?;
    }
    let checksum = sink.checksum.finalize();
    compare_checksums(&declared.checksum, &checksum)?;
    if !declared.trailer_names.is_empty() {
        let trailers = declared.trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
        compare_trailers(&declared.trailer_names, &trailers, &checksum)?;
    }
    Ok(Received { staged: sink.staged, checksum })
}

type Field = fn(&Checksum) -> &Option<String>;
const CHECKSUMS: [(&str, Field); 5] = [
    ("x-amz-checksum-crc32", |checksum| &checksum.checksum_crc32),
    ("x-amz-checksum-crc32c", |checksum| &checksum.checksum_crc32c),
    ("x-amz-checksum-crc64nvme", |checksum| &checksum.checksum_crc64nvme),
    ("x-amz-checksum-sha1", |checksum| &checksum.checksum_sha1),
    ("x-amz-checksum-sha256", |checksum| &checksum.checksum_sha256),
];

/// A hasher of the checksums that are declared in a header or announced as a trailer.
pub fn hasher(declared: &Checksum, trailer_names: &str) -> ChecksumHasher {
    let [crc32, crc32c, crc64nvme, sha1, sha256] = CHECKSUMS.map(|(name, field)| {
        field(declared).is_some() || trailer_names.split(',').any(|other| other.trim() == name)
    });
    ChecksumHasher {
        crc32: crc32.then(Default::default),
        crc32c: crc32c.then(Default::default),
        crc64nvme: crc64nvme.then(Default::default),
        sha1: sha1.then(Default::default),
        sha256: sha256.then(Default::default),
    }
}

/// Checks that every declared checksum equals the computed one.
pub fn compare_checksums(declared: &Checksum, computed: &Checksum) -> S3Result<()> {
    for (name, field) in CHECKSUMS {
        if let Some(declared) = field(declared) {
            compare(name, declared, field(computed).as_deref().unwrap_or_default())?;
        }
    }
    Ok(())
}

fn compare_trailers(names: &str, trailers: &HeaderMap, computed: &Checksum) -> S3Result<()> {
    for (name, field) in CHECKSUMS {
        if names.split(',').any(|other| other.trim() == name) {
            let declared = trailers.get(name).and_then(|value| value.to_str().ok());
            let declared = declared.ok_or_else(|| {
                s3_error!(InvalidRequest, "The announced trailer {name} is missing")
            })?;
            compare(name, declared, field(computed).as_deref().unwrap_or_default())?;
        }
    }
    Ok(())
}

fn compare(name: &str, declared: &str, computed: &str) -> S3Result<()> {
    if declared == computed {
        return Ok(());
    }
    Err(s3_error!(BadDigest, "{name} is {declared}, but the content received has {computed}"))
}

/// Maps an error of the body by its text, because the error types of `s3s` are private.
fn body_error(error: StdError) -> S3Error {
    let text = error.to_string();
    let mut mapped = if text.contains("Sha256Mismatch") {
        s3_error!(BadDigest, "x-amz-content-sha256 does not match the content received")
    } else if text.contains("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch)
    } else {
        s3_error!(IncompleteBody, "The body is incomplete: {text}")
    };
    mapped.set_source(error);
    mapped
}

/// Runs file operations on the blocking pool.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> S3Result<T> + Send + 'static,
) -> S3Result<T> {
    spawn_blocking(work).await.map_err(S3Error::internal_error)?
}
