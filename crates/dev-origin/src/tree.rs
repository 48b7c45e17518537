//! The directory tree as buckets and keys: paths, versions and atomic writes.
//!
//! A key is a relative path. A key with a segment `..` or an empty segment is refused, so nothing
//! outside the root is touched, except through symbolic links that the owner of the tree has made.
//! An empty directory is the zero-byte object `name/`, which is how S3 clients create directories.
//! A directory with entries is not an object.
//!
//! New content is written to a hidden staging directory beside the buckets and then renamed, so a
//! reader sees a complete object or none. One lock covers the check of the old version and the
//! rename, which makes conditional writes atomic among all clients of this server.

use std::{
    fs::{self, File, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use s3s::{
    S3Error, S3Result,
    dto::{ETag, Timestamp},
    path::check_bucket_name,
    s3_error,
};
use tempfile::{NamedTempFile, TempDir};

use crate::conditions::WriteConditions;

/// Prefix of the staging directory. No bucket's name may begin with a dot.
const STAGING_PREFIX: &str = ".forebay-dev-origin-";

/// Identity of a file's content, from metadata only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
    pub size: u64,
}

impl Version {
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            size: if metadata.is_dir() { 0 } else { metadata.len() },
        }
    }

    /// A strong tag with the suffix of a multipart upload, so that no client takes it for an MD5.
    pub fn etag(&self) -> ETag {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.inode.to_le_bytes());
        hasher.update(&self.modified_s.to_le_bytes());
        hasher.update(&self.modified_ns.to_le_bytes());
        hasher.update(&self.size.to_le_bytes());
        ETag::Strong(format!("{}-1", &hasher.finalize().to_hex()[..32]))
    }

    /// Modification time in whole seconds, like HTTP dates. Finer times would never compare equal.
    pub fn last_modified(&self) -> Timestamp {
        let since_1970 = Duration::from_secs(u64::try_from(self.modified_s).unwrap_or(0));
        Timestamp::from(UNIX_EPOCH + since_1970)
    }

    pub fn size_signed(&self) -> i64 {
        i64::try_from(self.size).expect("files are shorter than 8 EiB")
    }
}

/// An open object. Its content stays readable if the name is replaced or deleted.
#[derive(Debug)]
pub struct Object {
    /// `None` for an empty directory.
    pub file: Option<File>,
    pub version: Version,
}

/// The tree below one root.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// Created on the first write, so that a tree may be read-only.
    staging: Mutex<Option<TempDir>>,
    commit: Mutex<()>,
}

impl Tree {
    pub fn new(root: PathBuf) -> Self {
        Self { root, staging: Mutex::new(None), commit: Mutex::new(()) }
    }

    /// All buckets, by name, with the time of their last change.
    pub fn buckets(&self) -> S3Result<Vec<(String, Timestamp)>> {
        let mut buckets = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(io_error)? {
            let Ok(name) = entry.map_err(io_error)?.file_name().into_string() else { continue };
            if let Ok(path) = self.bucket(&name) {
                let metadata = fs::metadata(path).map_err(io_error)?;
                buckets.push((name, Version::of(&metadata).last_modified()));
            }
        }
        buckets.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(buckets)
    }

    /// Path of an existing bucket.
    pub fn bucket(&self, bucket: &str) -> S3Result<PathBuf> {
        if check_bucket_name(bucket) {
            let path = self.root.join(bucket);
            if path.is_dir() {
                return Ok(path);
            }
        }
        Err(s3_error!(NoSuchBucket, "There is no directory `{bucket}` in this origin's root"))
    }

    pub fn create_bucket(&self, bucket: &str) -> S3Result<()> {
        if !check_bucket_name(bucket) {
            return Err(s3_error!(InvalidBucketName));
        }
        match fs::create_dir(self.root.join(bucket)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(s3_error!(BucketAlreadyOwnedByYou))
            }
            created => created.map_err(io_error),
        }
    }

    pub fn delete_bucket(&self, bucket: &str) -> S3Result<()> {
        match fs::remove_dir(self.bucket(bucket)?) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                Err(s3_error!(BucketNotEmpty))
            }
            removed => removed.map_err(io_error),
        }
    }

    pub fn open(&self, bucket: &str, key: &str) -> S3Result<Object> {
        let path = self.path(bucket, key)?;
        // Checked by name first, because opening a pipe would block.
        let version = self.version_at(bucket, key, &path)?;
        if key.ends_with('/') {
            return Ok(Object { file: None, version });
        }
        let file = File::open(path).map_err(io_error)?;
        let version = Version::of(&file.metadata().map_err(io_error)?);
        Ok(Object { file: Some(file), version })
    }

    pub fn version(&self, bucket: &str, key: &str) -> S3Result<Version> {
        self.version_at(bucket, key, &self.path(bucket, key)?)
    }

    fn version_at(&self, bucket: &str, key: &str, path: &Path) -> S3Result<Version> {
        let found = fs::metadata(path).and_then(|metadata| {
            let is_object = if key.ends_with('/') {
                metadata.is_dir() && fs::read_dir(path)?.next().is_none()
            } else {
                metadata.is_file()
            };
            Ok(is_object.then(|| Version::of(&metadata)))
        });
        match found {
            Ok(Some(version)) => Ok(version),
            Ok(None) => Err(s3_error!(NoSuchKey)),
            Err(error) => {
                self.bucket(bucket)?;
                Err(io_error(error))
            }
        }
    }

    /// A file to write new content to, on the same file system as the buckets.
    pub fn stage(&self) -> S3Result<NamedTempFile> {
        let mut staging = self.staging.lock();
        let directory = match &mut *staging {
            Some(directory) => directory,
            empty => {
                let directory =
                    tempfile::Builder::new().prefix(STAGING_PREFIX).tempdir_in(&self.root);
                empty.insert(directory.map_err(io_error)?)
            }
        };
        tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory.path())
            .map_err(io_error)
    }

    /// Moves staged content to its key, atomically and only if the conditions hold.
    pub fn commit(
        &self,
        bucket: &str,
        key: &str,
        staged: NamedTempFile,
        conditions: &WriteConditions,
    ) -> S3Result<Version> {
        let path = self.path(bucket, key)?;
        let _commit = self.commit.lock();
        self.bucket(bucket)?;
        conditions.check(self.version_at(bucket, key, &path).ok().as_ref())?;
        if key.ends_with('/') {
            if staged.as_file().metadata().map_err(io_error)?.len() > 0 {
                return Err(s3_error!(
                    InvalidArgument,
                    "A key that ends in `/` is a directory here and has no content"
                ));
            }
            fs::create_dir_all(&path).map_err(|error| path_conflict(key, error))?;
            return Ok(Version::of(&fs::metadata(&path).map_err(io_error)?));
        }
        let parent = path.parent().expect("a key is below its bucket");
        fs::create_dir_all(parent).map_err(|error| path_conflict(key, error))?;
        // The kernel's timestamps are coarse: with a reused inode, two quick writes of the same
        // length could look like one version.
        staged.as_file().set_modified(SystemTime::now()).map_err(io_error)?;
        let version = Version::of(&staged.as_file().metadata().map_err(io_error)?);
        staged.persist(&path).map_err(|error| path_conflict(key, error.error))?;
        Ok(version)
    }

    /// Deletes an object, which need not exist, and the directories that become empty.
    pub fn delete(&self, bucket: &str, key: &str, conditions: &WriteConditions) -> S3Result<()> {
        let path = self.path(bucket, key)?;
        let bucket_path = self.bucket(bucket)?;
        let _commit = self.commit.lock();
        let version = match self.version_at(bucket, key, &path) {
            Ok(version) => version,
            Err(_) if conditions.if_match.is_none() => return Ok(()),
            Err(error) => return Err(error),
        };
        conditions.check(Some(&version))?;
        if key.ends_with('/') { fs::remove_dir(&path) } else { fs::remove_file(&path) }
            .map_err(io_error)?;
        for directory in path.ancestors().skip(1).take_while(|path| **path != *bucket_path) {
            if fs::remove_dir(directory).is_err() {
                break; // Not empty, nor are its ancestors.
            }
        }
        Ok(())
    }

    /// Path of a key, which need not exist.
    fn path(&self, bucket: &str, key: &str) -> S3Result<PathBuf> {
        if !check_bucket_name(bucket) {
            return Err(s3_error!(InvalidBucketName));
        }
        if let Some(problem) = key_problem(key) {
            return Err(s3_error!(
                InvalidArgument,
                "This origin stores keys as paths in a directory, and this one {problem}"
            ));
        }
        Ok(self.root.join(bucket).join(key))
    }
}

/// Why a key cannot be a path below its bucket.
pub fn key_problem(key: &str) -> Option<&'static str> {
    let segments = key.strip_suffix('/').unwrap_or(key);
    if key.contains('\0') {
        return Some("contains a NUL");
    }
    segments.split('/').find_map(|segment| match segment {
        "" => Some("has an empty segment"),
        "." | ".." => Some("has a segment `.` or `..`"),
        long if long.len() > 255 => Some("has a segment of more than 255 bytes"),
        _ => None,
    })
}

fn path_conflict(key: &str, error: io::Error) -> S3Error {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
    match error.kind() {
        AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory => s3_error!(
            error,
            InvalidRequest,
            "`{key}` cannot be an object here, because a parent or a child of it is one"
        ),
        _ => io_error(error),
    }
}

pub fn io_error(error: io::Error) -> S3Error {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound, PermissionDenied};
    match error.kind() {
        NotFound | NotADirectory => s3_error!(NoSuchKey),
        PermissionDenied => s3_error!(error, AccessDenied, "The file's permissions forbid it"),
        InvalidFilename => s3_error!(error, KeyTooLongError),
        _ => {
            let message = format!("The origin's directory: {error}");
            s3_error!(error, InternalError, "{message}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_plain_relative_paths_are_refused() {
        for key in ["..", "../x", "a/../b", "a/./b", "/a", "a//b", "//", "/", "a/..", "a\0b", "."] {
            assert!(key_problem(key).is_some(), "{key:?}");
        }
        for key in ["a", "a/b", "a/", "...", "a..b", ".hidden", "ü/ /+%", "a\\..\\b", "~", "-"] {
            assert_eq!(key_problem(key), None, "{key:?}");
        }
    }

    #[test]
    fn quick_rewrites_of_the_same_length_are_all_different_versions() {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::new(root.path().to_owned());
        tree.create_bucket("bucket").unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..2000 {
            let staged = tree.stage().unwrap();
            let version = tree.commit("bucket", "k", staged, &WriteConditions::default()).unwrap();
            assert!(seen.insert(version.etag()), "an ETag named two versions");
            assert_eq!(tree.version("bucket", "k").unwrap(), version);
        }
    }
}
