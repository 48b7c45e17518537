//! S3's two listing operations, which differ mostly in field names.

use s3s::{
    S3Result,
    dto::{
        CommonPrefix, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
        Object, ObjectStorageClass,
    },
    s3_error,
};

use crate::{
    list_page::{self, Item, Query},
    tree::{Tree, io_error},
};

/// Most keys of a page, as in S3.
const MAX_KEYS: i32 = 1000;

/// `ListObjectsV2`. Blocks.
pub fn version_2(tree: &Tree, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
    let encoding = Encoding { url: input.encoding_type.is_some() };
    let after = match &input.continuation_token {
        Some(token) => decode_token(token)?,
        None => input.start_after.clone().unwrap_or_default(),
    };
    let (prefix, delimiter) = (input.prefix.as_deref(), input.delimiter.as_deref());
    let query = Request { prefix, delimiter, after: &after, max_keys: input.max_keys };
    let listed = list(tree, &input.bucket, query, encoding)?;
    let count = listed.objects.len() + listed.prefixes.len();
    Ok(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encoding.encode(input.prefix.unwrap_or_default())),
        delimiter: input.delimiter.map(|delimiter| encoding.encode(delimiter)),
        start_after: input.start_after.map(|after| encoding.encode(after)),
        encoding_type: input.encoding_type,
        continuation_token: input.continuation_token,
        max_keys: Some(listed.max_keys),
        key_count: Some(i32::try_from(count).expect("at most 1000")),
        is_truncated: Some(listed.next.is_some()),
        next_continuation_token: listed.next.map(|next| encode_token(&next)),
        contents: Some(listed.objects),
        common_prefixes: Some(listed.prefixes),
        ..ListObjectsV2Output::default()
    })
}

/// `ListObjects`. Blocks.
pub fn version_1(tree: &Tree, input: ListObjectsInput) -> S3Result<ListObjectsOutput> {
    let encoding = Encoding { url: input.encoding_type.is_some() };
    let after = input.marker.clone().unwrap_or_default();
    let (prefix, delimiter) = (input.prefix.as_deref(), input.delimiter.as_deref());
    let query = Request { prefix, delimiter, after: &after, max_keys: input.max_keys };
    let listed = list(tree, &input.bucket, query, encoding)?;
    Ok(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encoding.encode(input.prefix.unwrap_or_default())),
        delimiter: input.delimiter.map(|delimiter| encoding.encode(delimiter)),
        marker: Some(encoding.encode(after)),
        encoding_type: input.encoding_type,
        max_keys: Some(listed.max_keys),
        is_truncated: Some(listed.next.is_some()),
        next_marker: listed.next.map(|next| encoding.encode(next)),
        contents: Some(listed.objects),
        common_prefixes: Some(listed.prefixes),
        ..ListObjectsOutput::default()
    })
}

/// The parameters that both operations share.
#[derive(Clone, Copy)]
struct Request<'a> {
    prefix: Option<&'a str>,
    delimiter: Option<&'a str>,
    after: &'a str,
    max_keys: Option<i32>,
}

struct Listed {
    max_keys: i32,
    next: Option<String>,
    objects: Vec<Object>,
    prefixes: Vec<CommonPrefix>,
}

fn list(tree: &Tree, bucket: &str, request: Request<'_>, encoding: Encoding) -> S3Result<Listed> {
    let max_keys = request.max_keys.unwrap_or(MAX_KEYS).clamp(0, MAX_KEYS);
    let query = Query {
        prefix: request.prefix.unwrap_or_default(),
        delimiter: request.delimiter.unwrap_or_default(),
        after: request.after,
        max_keys: usize::try_from(max_keys).expect("clamped"),
    };
    let page = list_page::page(&tree.bucket(bucket)?, query).map_err(io_error)?;
    let next = page.items.last().filter(|_| page.truncated).map(|item| item.name().to_owned());
    let mut listed = Listed { max_keys, next, objects: Vec::new(), prefixes: Vec::new() };
    for item in page.items {
        match item {
            Item::Object(key, version) => listed.objects.push(Object {
                key: Some(encoding.encode(key)),
                e_tag: Some(version.etag()),
                last_modified: Some(version.last_modified()),
                size: Some(version.size_signed()),
                storage_class: Some(ObjectStorageClass::from_static("STANDARD")),
                ..Object::default()
            }),
            Item::CommonPrefix(prefix) => {
                listed.prefixes.push(CommonPrefix { prefix: Some(encoding.encode(prefix)) });
            }
        }
    }
    Ok(listed)
}

/// Percent-encoding on request, for keys that XML cannot represent.
#[derive(Clone, Copy)]
struct Encoding {
    url: bool,
}

impl Encoding {
    fn encode(self, name: String) -> String {
        use std::fmt::Write as _;
        if !self.url {
            return name;
        }
        let mut encoded = String::with_capacity(name.len());
        for byte in name.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                    encoded.push(char::from(byte));
                }
                _ => write!(encoded, "%{byte:02X}").expect("writing to a String never fails"),
            }
        }
        encoded
    }
}

fn encode_token(after: &str) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(after)
}

fn decode_token(token: &str) -> S3Result<String> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token is not this origin's"))
}
