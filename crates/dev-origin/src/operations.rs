//! The S3 operations: each translates an S3 request into calls of the tree, and back.

use std::{
    io::{Seek as _, SeekFrom},
    path::PathBuf,
    sync::Arc,
};

use forebay_core::units::ByteSize;
use http::{HeaderMap, HeaderValue, header};
#[allow(clippy::wildcard_imports, reason = "dozens of types, all of them S3's")]
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::{
    body::{FileBody, FileRange},
    conditions::{ReadConditions, WriteConditions},
    counters::Counters,
    frontend::BodyObject,
    list_operations,
    multipart::Uploads,
    tree::{Object as Found, Tree, Version, io_error},
    upload::{Declared, announced_trailers, blocking, receive},
};

/// Collects the checksum fields of an input.
macro_rules! checksums {
    ($input:ident) => {
        Checksum {
            checksum_crc32: $input.checksum_crc32,
            checksum_crc32c: $input.checksum_crc32c,
            checksum_crc64nvme: $input.checksum_crc64nvme,
            checksum_sha1: $input.checksum_sha1,
            checksum_sha256: $input.checksum_sha256,
            ..Checksum::default()
        }
    };
}
macro_rules! read_conditions {
    ($input:ident) => {
        ReadConditions {
            if_match: $input.if_match,
            if_none_match: $input.if_none_match,
            if_modified_since: $input.if_modified_since,
            if_unmodified_since: $input.if_unmodified_since,
        }
    };
}

/// Content type of every object; also S3's default.
const CONTENT_TYPE: &str = "binary/octet-stream";

pub struct Operations {
    tree: Arc<Tree>,
    uploads: Arc<Uploads>,
    counters: Arc<Counters>,
    buffer_size: ByteSize,
}

impl Operations {
    pub fn new(root: PathBuf, counters: Arc<Counters>, buffer_size: ByteSize) -> Self {
        Self { tree: Arc::new(Tree::new(root)), uploads: Arc::default(), counters, buffer_size }
    }

    async fn delete(&self, bucket: &str, key: &str, conditions: WriteConditions) -> S3Result<()> {
        let name = format!("{bucket}/{key}");
        let (tree, bucket, key) = (Arc::clone(&self.tree), bucket.to_owned(), key.to_owned());
        blocking(move || tree.delete(&bucket, &key, &conditions)).await?;
        self.counters.object_deleted(&name);
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3 for Operations {
    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        only_part(input.part_number)?;
        let name = Arc::from(format!("{}/{}", input.bucket, input.key));
        let (tree, buffer_size) = (Arc::clone(&self.tree), self.buffer_size);
        let output = blocking(move || {
            let Found { file, version } = tree.open(&input.bucket, &input.key)?;
            read_conditions!(input).check(&version)?;
            let (start, length, content_range) = resolve(input.range, &version)?;
            let body = file.map(|mut file| {
                if start > 0 {
                    file.seek(SeekFrom::Start(start)).map_err(io_error)?;
                }
                FileBody::begin(FileRange { file, version, left: length, buffer_size })
                    .map_err(io_error)
            });
            Ok(GetObjectOutput {
                accept_ranges: Some("bytes".to_owned()),
                body: body.transpose()?.map(StreamingBlob::new),
                content_length: Some(signed(length)),
                content_range,
                content_type: Some(CONTENT_TYPE.to_owned()),
                e_tag: Some(version.etag()),
                last_modified: Some(version.last_modified()),
                ..GetObjectOutput::default()
            })
        })
        .await?;
        let mut response = S3Response::new(output);
        response.extensions.insert(BodyObject(name));
        Ok(response)
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        only_part(input.part_number)?;
        let tree = Arc::clone(&self.tree);
        let output = blocking(move || {
            let version = tree.version(&input.bucket, &input.key)?;
            read_conditions!(input).check(&version)?;
            let (_, length, content_range) = resolve(input.range, &version)?;
            Ok(HeadObjectOutput {
                accept_ranges: Some("bytes".to_owned()),
                content_length: Some(signed(length)),
                content_range,
                content_type: Some(CONTENT_TYPE.to_owned()),
                e_tag: Some(version.etag()),
                last_modified: Some(version.last_modified()),
                ..HeadObjectOutput::default()
            })
        })
        .await?;
        Ok(S3Response::new(output))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let tree = Arc::clone(&self.tree);
        let output = blocking(move || list_operations::version_2(&tree, request.input)).await?;
        Ok(S3Response::new(output))
    }

    async fn list_objects(
        &self,
        request: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        let tree = Arc::clone(&self.tree);
        let output = blocking(move || list_operations::version_1(&tree, request.input)).await?;
        Ok(S3Response::new(output))
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let S3Request { input, headers, trailing_headers, .. } = request;
        let declared = Declared {
            length: input.content_length,
            md5: input.content_md5,
            checksum: checksums!(input),
            trailer_names: announced_trailers(&headers),
            trailers: trailing_headers,
        };
        let tree = Arc::clone(&self.tree);
        // Fails before the content is received, if the bucket is missing.
        tree.bucket(&input.bucket)?;
        let received = receive(Arc::clone(&tree), &self.counters, input.body, declared).await?;
        let checksum = received.checksum;
        let conditions =
            WriteConditions { if_match: input.if_match, if_none_match: input.if_none_match };
        let version =
            blocking(move || tree.commit(&input.bucket, &input.key, received.staged, &conditions))
                .await?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(version.etag()),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..PutObjectOutput::default()
        }))
    }

    async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = request.input;
        let CopySource::Bucket { bucket, key, version_id: None } = input.copy_source else {
            return Err(s3_error!(NotImplemented, "Copies of versions or through access points"));
        };
        let conditions = ReadConditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let tree = Arc::clone(&self.tree);
        let version = blocking(move || {
            let source = tree.open(&bucket, &key)?;
            if conditions.check(&source.version).is_err() {
                return Err(s3_error!(PreconditionFailed)); // For copies, never 304.
            }
            let mut staged = tree.stage()?;
            if let Some(mut file) = source.file {
                std::io::copy(&mut file, staged.as_file_mut()).map_err(io_error)?;
            }
            tree.commit(&input.bucket, &input.key, staged, &WriteConditions::default())
        })
        .await?;
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(CopyObjectResult {
                e_tag: Some(version.etag()),
                last_modified: Some(version.last_modified()),
                ..CopyObjectResult::default()
            }),
            ..CopyObjectOutput::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = request.input;
        let conditions = WriteConditions { if_match: input.if_match, if_none_match: None };
        self.delete(&input.bucket, &input.key, conditions).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let DeleteObjectsInput { bucket, delete, .. } = request.input;
        self.tree.bucket(&bucket)?;
        let quiet = delete.quiet.unwrap_or(false);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for ObjectIdentifier { key, e_tag, .. } in delete.objects {
            let if_match = e_tag.map(ETagCondition::ETag);
            let conditions = WriteConditions { if_match, if_none_match: None };
            match self.delete(&bucket, &key, conditions).await {
                Ok(()) if quiet => {}
                Ok(()) => {
                    deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() });
                }
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(key),
                    message: error.message().map(str::to_owned),
                    ..Error::default()
                }),
            }
        }
        Ok(S3Response::new(DeleteObjectsOutput {
            deleted: Some(deleted),
            errors: Some(errors),
            ..DeleteObjectsOutput::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        self.tree.bucket(&input.bucket)?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            upload_id: Some(self.uploads.create(&input.bucket, &input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: input.checksum_type,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let S3Request { input, headers, trailing_headers, .. } = request;
        let UploadPartInput { bucket, key, upload_id, part_number, .. } = input;
        self.uploads.check(&upload_id, &bucket, &key, part_number)?;
        let declared = Declared {
            length: input.content_length,
            md5: input.content_md5,
            checksum: checksums!(input),
            trailer_names: announced_trailers(&headers),
            trailers: trailing_headers,
        };
        let tree = Arc::clone(&self.tree);
        let received = receive(tree, &self.counters, input.body, declared).await?;
        let checksum = received.checksum.clone();
        let etag = self.uploads.add(&upload_id, &bucket, &key, part_number, received)?;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(etag),
            checksum_crc32: checksum.checksum_crc32,
            checksum_crc32c: checksum.checksum_crc32c,
            checksum_crc64nvme: checksum.checksum_crc64nvme,
            checksum_sha1: checksum.checksum_sha1,
            checksum_sha256: checksum.checksum_sha256,
            ..UploadPartOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        let (tree, uploads) = (Arc::clone(&self.tree), Arc::clone(&self.uploads));
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let version = blocking(move || {
            let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
            let declared = checksums!(input);
            let name = (&*input.upload_id, &*input.bucket, &*input.key);
            let staged = uploads.join(&tree, name, &parts, &declared)?;
            let size = staged.as_file().metadata().map_err(io_error)?.len();
            if input.mpu_object_size.is_some_and(|declared| declared != signed(size)) {
                return Err(s3_error!(InvalidRequest, "The parts are {size} bytes together"));
            }
            let conditions =
                WriteConditions { if_match: input.if_match, if_none_match: input.if_none_match };
            let version = tree.commit(&input.bucket, &input.key, staged, &conditions)?;
            uploads.remove(&input.upload_id, &input.bucket, &input.key)?;
            Ok(version)
        })
        .await?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(bucket),
            key: Some(key),
            e_tag: Some(version.etag()),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let AbortMultipartUploadInput { bucket, key, upload_id, .. } = request.input;
        self.uploads.remove(&upload_id, &bucket, &key)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_buckets(
        &self,
        _: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        let buckets = self.tree.buckets()?.into_iter().map(|(name, changed)| Bucket {
            name: Some(name),
            creation_date: Some(changed),
            ..Bucket::default()
        });
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(buckets.collect()),
            owner: Some(Owner::default()),
            ..ListBucketsOutput::default()
        }))
    }

    async fn head_bucket(
        &self,
        request: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.tree.bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput {
            bucket_region: Some(crate::REGION.to_owned()),
            ..HeadBucketOutput::default()
        }))
    }

    async fn create_bucket(
        &self,
        request: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let bucket = request.input.bucket;
        self.tree.create_bucket(&bucket)?;
        Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
    }

    async fn delete_bucket(
        &self,
        request: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.tree.delete_bucket(&request.input.bucket)?;
        Ok(S3Response::new(DeleteBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.tree.bucket(&request.input.bucket)?;
        // In S3, no constraint means `us-east-1`.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }
}

/// Start, length and, for a range request, the `Content-Range`.
fn resolve(range: Option<Range>, version: &Version) -> S3Result<(u64, u64, Option<String>)> {
    let Some(range) = range else { return Ok((0, version.size, None)) };
    let Ok(range) = range.check(version.size).map(|range| (range.start, range.end)) else {
        let mut error = s3_error!(InvalidRange, "The object is {} bytes long", version.size);
        let value = HeaderValue::from_str(&format!("bytes */{}", version.size));
        let headers = value.map(|value| {
            let xml = HeaderValue::from_static("application/xml");
            HeaderMap::from_iter([(header::CONTENT_RANGE, value), (header::CONTENT_TYPE, xml)])
        });
        error.set_headers(headers.unwrap_or_default());
        return Err(error);
    };
    let (start, end) = range;
    // The last n bytes of an empty object are a whole answer, not a part of one.
    let content_range =
        (end > start).then(|| format!("bytes {start}-{}/{}", end - 1, version.size));
    Ok((start, end - start, content_range))
}

/// A file has no parts: each object is its own first and only part.
fn only_part(number: Option<i32>) -> S3Result<()> {
    match number {
        None | Some(1) => Ok(()),
        Some(number) => Err(s3_error!(InvalidArgument, "There is no part {number}")),
    }
}

fn signed(length: u64) -> i64 {
    i64::try_from(length).expect("files are shorter than 8 EiB")
}
