//! Receiving content: staged, hashed on the way, and believed only if all that was promised is true.
//!
//! `s3s` itself checks the signature over the body (its SHA-256, or chunk by chunk) as it streams;
//! the checksums in headers, in trailers and in `Content-MD5` are ours to check.

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

/// Network reads are gathered to this before one trip through the blocking pool writes them.
const WRITE_SIZE: ByteSize = ByteSize::mib(1);

/// What the client promised about the content it sends.
#[derive(Debug)]
pub struct Promise {
    pub length: Option<i64>,
    pub md5: Option<String>,
    pub checksum: Checksum,
    /// Promised behind the content, under the names that `x-amz-trailer` announces.
    pub trailers: Option<TrailingHeaders>,
    pub trailer_names: String,
}

pub fn announced_trailers(headers: &HeaderMap) -> String {
    let names = headers.get_all("x-amz-trailer").iter().filter_map(|name| name.to_str().ok());
    names.collect::<Vec<_>>().join(",").to_ascii_lowercase()
}

/// Content that arrived whole, with the checksums it was found to have.
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
    fn write(&mut self, pieces: &[Bytes]) -> S3Result<()> {
        for piece in pieces {
            self.checksum.update(piece);
            if let Some(md5) = &mut self.md5 {
                md5.update(piece);
            }
            self.staged.as_file_mut().write_all(piece).map_err(io_error)?;
        }
        Ok(())
    }
}

/// Stages a body; if it is refused, nothing of it is left behind.
pub async fn receive(
    tree: Arc<Tree>,
    counters: &Counters,
    body: Option<StreamingBlob>,
    promise: Promise,
) -> S3Result<Received> {
    let mut sink = blocking({
        let checksum = hasher(&promise.checksum, &promise.trailer_names);
        let md5 = promise.md5.is_some().then(Md5::new);
        move || Ok(Sink { staged: tree.stage()?, checksum, md5 })
    })
    .await?;
    let mut size = 0;
    if let Some(mut body) = body {
        let mut ended = false;
        while !ended {
            let mut pieces = Vec::new();
            let mut gathered = 0;
            while gathered < WRITE_SIZE.0 {
                let Some(piece) = body.next().await else {
                    ended = true;
                    break;
                };
                let piece = piece.map_err(body_error)?;
                counters.received(piece.len() as u64);
                gathered += piece.len() as u64;
                pieces.push(piece);
            }
            size += gathered;
            sink = blocking(move || sink.write(&pieces).map(|()| sink)).await?;
        }
    }
    if promise.length.is_some_and(|length| u64::try_from(length) != Ok(size)) {
        return Err(s3_error!(IncompleteBody));
    }
    if let (Some(promised), Some(md5)) = (&promise.md5, sink.md5) {
        compare("Content-MD5", promised, &base64_simd::STANDARD.encode_to_string(md5.finalize()))?;
    }
    let checksum = sink.checksum.finalize();
    compare_checksums(&promise.checksum, &checksum)?;
    if !promise.trailer_names.is_empty() {
        let trailers = promise.trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
        compare_trailers(&promise.trailer_names, &trailers, &checksum)?;
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

/// Computes what is promised in a header or announced as a trailer, and nothing else.
pub fn hasher(promised: &Checksum, trailer_names: &str) -> ChecksumHasher {
    let [crc32, crc32c, crc64nvme, sha1, sha256] = CHECKSUMS.map(|(name, field)| {
        field(promised).is_some() || trailer_names.split(',').any(|other| other.trim() == name)
    });
    ChecksumHasher {
        crc32: crc32.then(Default::default),
        crc32c: crc32c.then(Default::default),
        crc64nvme: crc64nvme.then(Default::default),
        sha1: sha1.then(Default::default),
        sha256: sha256.then(Default::default),
    }
}

/// Every promised checksum must be the computed one.
pub fn compare_checksums(promised: &Checksum, computed: &Checksum) -> S3Result<()> {
    for (name, field) in CHECKSUMS {
        if let Some(promised) = field(promised) {
            compare(name, promised, field(computed).as_deref().unwrap_or_default())?;
        }
    }
    Ok(())
}

fn compare_trailers(names: &str, trailers: &HeaderMap, computed: &Checksum) -> S3Result<()> {
    for (name, field) in CHECKSUMS {
        if names.split(',').any(|other| other.trim() == name) {
            let promised = trailers.get(name).and_then(|value| value.to_str().ok());
            let promised = promised.ok_or_else(|| {
                s3_error!(InvalidRequest, "The announced trailer {name} is missing")
            })?;
            compare(name, promised, field(computed).as_deref().unwrap_or_default())?;
        }
    }
    Ok(())
}

fn compare(name: &str, promised: &str, computed: &str) -> S3Result<()> {
    if promised == computed {
        return Ok(());
    }
    Err(s3_error!(BadDigest, "{name} promised {promised}, but the content received has {computed}"))
}

/// `s3s` keeps the types of these errors to itself, so their words must do.
fn body_error(error: StdError) -> S3Error {
    let words = error.to_string();
    let mut mapped = if words.contains("Sha256Mismatch") {
        s3_error!(BadDigest, "x-amz-content-sha256 does not match the content received")
    } else if words.contains("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch)
    } else {
        s3_error!(IncompleteBody, "The body broke off: {words}")
    };
    mapped.set_source(error);
    mapped
}

/// Runs file operations where they may block.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> S3Result<T> + Send + 'static,
) -> S3Result<T> {
    spawn_blocking(work).await.map_err(S3Error::internal_error)?
}
