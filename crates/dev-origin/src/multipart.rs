//! Multipart uploads: parts are staged one by one and joined when the upload completes.
//!
//! Uploads are kept in memory and end with the process, as with an S3 lifecycle rule.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{self, Read as _, Write as _},
    sync::Arc,
};

use forebay_core::units::ByteSize;
use parking_lot::Mutex;
use s3s::{
    S3Result,
    checksum::ChecksumHasher,
    dto::{Checksum, CompletedPart, ETag},
    s3_error,
};
use tempfile::{NamedTempFile, TempPath};

use crate::{
    tree::{Tree, Version, io_error},
    upload::{Received, compare_checksums, hasher},
};

/// Smallest part except the last, as in S3.
const PART_SIZE_MIN: ByteSize = ByteSize::mib(5);
/// Valid part numbers, as in S3.
const PART_NUMBERS: std::ops::RangeInclusive<i32> = 1..=10_000;

#[derive(Debug, Default)]
pub struct Uploads(Mutex<HashMap<String, Upload>>);

#[derive(Debug)]
struct Upload {
    name: (String, String),
    parts: BTreeMap<i32, Arc<Part>>,
}

#[derive(Debug)]
struct Part {
    path: TempPath,
    version: Version,
    checksum: Checksum,
}

impl Uploads {
    pub fn create(&self, bucket: &str, key: &str) -> String {
        let id = format!("{:032x}", fastrand::u128(..));
        let name = (bucket.to_owned(), key.to_owned());
        self.0.lock().insert(id.clone(), Upload { name, parts: BTreeMap::new() });
        id
    }

    /// Checks whether a part may be uploaded, before its content is received.
    pub fn check(&self, id: &str, bucket: &str, key: &str, number: i32) -> S3Result<()> {
        if !PART_NUMBERS.contains(&number) {
            return Err(s3_error!(InvalidArgument, "Part numbers go from 1 to 10000"));
        }
        self.with(id, bucket, key, |_| ())
    }

    /// Adds a part, or replaces the part of that number.
    pub fn add(
        &self,
        id: &str,
        bucket: &str,
        key: &str,
        number: i32,
        received: Received,
    ) -> S3Result<ETag> {
        let metadata = received.staged.as_file().metadata().map_err(io_error)?;
        let version = Version::of(&metadata);
        let path = received.staged.into_temp_path();
        let part = Arc::new(Part { path, version, checksum: received.checksum });
        self.with(id, bucket, key, |upload| {
            upload.parts.insert(number, part);
        })?;
        Ok(version.etag())
    }

    /// Removes an upload and its parts.
    pub fn remove(&self, id: &str, bucket: &str, key: &str) -> S3Result<()> {
        self.with(id, bucket, key, |_| ())?;
        self.0.lock().remove(id);
        Ok(())
    }

    /// Joins the parts that the client names into one staged file. Blocks.
    pub fn join(
        &self,
        tree: &Tree,
        (id, bucket, key): (&str, &str, &str),
        wanted: &[CompletedPart],
        declared: &Checksum,
    ) -> S3Result<NamedTempFile> {
        let parts = self.with(id, bucket, key, |upload| choose(&upload.parts, wanted))??;
        let composite = [
            &declared.checksum_crc32,
            &declared.checksum_crc32c,
            &declared.checksum_sha1,
            &declared.checksum_sha256,
        ];
        if composite.into_iter().flatten().any(|checksum| checksum.contains('-')) {
            return Err(s3_error!(NotImplemented, "Composite checksums of whole objects"));
        }
        let mut staged = tree.stage()?;
        let mut sums = hasher(declared, "");
        for part in &parts {
            append(&part.path, staged.as_file_mut(), &mut sums).map_err(io_error)?;
        }
        compare_checksums(declared, &sums.finalize())?;
        Ok(staged)
    }

    fn with<T>(
        &self,
        id: &str,
        bucket: &str,
        key: &str,
        work: impl FnOnce(&mut Upload) -> T,
    ) -> S3Result<T> {
        let mut uploads = self.0.lock();
        let upload = uploads.get_mut(id).filter(|upload| upload.name.0 == bucket);
        let upload = upload.filter(|upload| upload.name.1 == key);
        upload.map(work).ok_or_else(|| s3_error!(NoSuchUpload))
    }
}

fn choose(parts: &BTreeMap<i32, Arc<Part>>, wanted: &[CompletedPart]) -> S3Result<Vec<Arc<Part>>> {
    if wanted.is_empty() {
        return Err(s3_error!(MalformedXML, "An upload is completed with at least one part"));
    }
    if !wanted.is_sorted_by(|a, b| a.part_number < b.part_number) {
        return Err(s3_error!(InvalidPartOrder));
    }
    let wanted_count = wanted.len();
    let mut chosen = Vec::with_capacity(wanted_count);
    for (position, wanted) in wanted.iter().enumerate() {
        let part = wanted.part_number.and_then(|number| parts.get(&number));
        let etag = wanted.e_tag.as_ref().map(ETag::value);
        let Some(part) = part.filter(|part| Some(part.version.etag().value()) == etag) else {
            return Err(s3_error!(InvalidPart, "Part {:?} was not uploaded", wanted.part_number));
        };
        let is_last = position + 1 == wanted_count;
        if !is_last && part.version.size < PART_SIZE_MIN.0 {
            return Err(s3_error!(EntityTooSmall));
        }
        compare_checksums(&declared_for(wanted), &part.checksum)?;
        chosen.push(Arc::clone(part));
    }
    Ok(chosen)
}

fn declared_for(part: &CompletedPart) -> Checksum {
    Checksum {
        checksum_crc32: part.checksum_crc32.clone(),
        checksum_crc32c: part.checksum_crc32c.clone(),
        checksum_crc64nvme: part.checksum_crc64nvme.clone(),
        checksum_sha1: part.checksum_sha1.clone(),
        checksum_sha256: part.checksum_sha256.clone(),
        ..Checksum::default()
    }
}

fn append(part: &TempPath, joined: &mut File, sums: &mut ChecksumHasher) -> io::Result<()> {
    let mut part = File::open(part)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let length = part.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        sums.update(&buffer[..length]);
        joined.write_all(&buffer[..length])?;
    }
}
