//! Trailers of uploads: `aws-chunked` bodies, encoded again for the origin.
//!
//! A client that streams sends its checksum after the data. `s3s` decodes the chunks and keeps the
//! trailer; the origin receives both in chunks of our own, whose length is known beforehand.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::body::{Body, Frame, SizeHint};
use s3s::TrailingHeaders;

use crate::{
    body::{BodyError, GatewayBody},
    s3_error::S3Failure,
};

/// Data of one chunk. S3 asks for at least 8 KiB in all but the last.
const CHUNK_LENGTH: u64 = 64 << 10;
/// Most trailers of a request. Clients send one.
const NAMES_MAX: usize = 4;

/// Checksums that a trailer may have, with the length of their values in base64.
const CHECKSUMS: [(&str, usize); 10] = [
    ("x-amz-checksum-crc32", 8),
    ("x-amz-checksum-crc32c", 8),
    ("x-amz-checksum-crc64nvme", 12),
    ("x-amz-checksum-sha1", 28),
    ("x-amz-checksum-sha256", 44),
    ("x-amz-checksum-sha512", 88),
    ("x-amz-checksum-md5", 24),
    ("x-amz-checksum-xxhash64", 12),
    ("x-amz-checksum-xxhash3", 12),
    ("x-amz-checksum-xxhash128", 24),
];

/// The announced trailers: names and lengths of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrailerNames(Vec<(&'static str, usize)>);

impl TrailerNames {
    /// Parses `x-amz-trailer`.
    pub fn parse(text: &str) -> Result<Self, S3Failure> {
        let mut names = Vec::new();
        for name in text.split(',').map(|name| name.trim().to_ascii_lowercase()) {
            let known = CHECKSUMS.iter().find(|(known, _)| *known == name);
            let known = known.filter(|_| names.len() < NAMES_MAX).ok_or_else(|| {
                S3Failure::new(
                    StatusCode::NOT_IMPLEMENTED,
                    "NotImplemented",
                    "The trailer is not a checksum that this endpoint can pass on.",
                )
            })?;
            if !names.contains(known) {
                names.push(*known);
            }
        }
        Ok(Self(names))
    }

    fn value(&self, trailers: &HeaderMap, at: usize) -> Result<HeaderValue, BodyError> {
        let (name, length) = self.0[at];
        let value = trailers.get(name).filter(|value| value.len() == length);
        value.cloned().ok_or_else(|| {
            io::Error::other(format!("the trailer {name} is missing or has another length")).into()
        })
    }

    /// Sends the trailers of a body that was read whole as headers.
    pub fn move_to_headers(
        &self,
        handle: Option<&TrailingHeaders>,
        headers: &mut HeaderMap,
    ) -> Result<(), S3Failure> {
        let trailers = handle.and_then(TrailingHeaders::take).unwrap_or_default();
        for at in 0..self.0.len() {
            let value = self.value(&trailers, at);
            let value = value.map_err(|error| S3Failure::invalid_request(error.to_string()))?;
            headers.insert(HeaderName::from_static(self.0[at].0), value);
        }
        Ok(())
    }

    fn announced(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
        names.join(",")
    }
}

/// A body in `aws-chunked` with a trailer.
pub struct TrailerEncoder {
    source: GatewayBody,
    names: TrailerNames,
    trailers: TrailingHeaders,
    /// Content that did not arrive yet.
    left: u64,
    length: u64,
    pending: BytesMut,
    is_ended: bool,
}

impl TrailerEncoder {
    /// Encodes `length` bytes of content.
    pub fn new(
        source: GatewayBody,
        length: u64,
        names: TrailerNames,
        trailers: TrailingHeaders,
    ) -> Self {
        let pending = BytesMut::new();
        Self { source, names, trailers, left: length, length, pending, is_ended: false }
    }

    /// The length of the encoded body.
    pub fn encoded_length(&self) -> u64 {
        let framed = |data: u64| format!("{data:x}").len() as u64 + data + 4;
        let (whole, rest) = (self.length / CHUNK_LENGTH, self.length % CHUNK_LENGTH);
        let chunks = whole * framed(CHUNK_LENGTH) + if rest > 0 { framed(rest) } else { 0 };
        let trailers: usize = self.names.0.iter().map(|(name, value)| name.len() + value + 3).sum();
        chunks + 3 + trailers as u64 + 2
    }

    /// Sets the headers of the encoded body.
    pub fn set_headers(&self, headers: &mut HeaderMap) {
        let encoding = headers.get(header::CONTENT_ENCODING).and_then(|it| it.to_str().ok());
        let encoding = encoding
            .map_or_else(|| "aws-chunked".to_owned(), |other| format!("aws-chunked,{other}"));
        if let Ok(encoding) = HeaderValue::from_str(&encoding) {
            headers.insert(header::CONTENT_ENCODING, encoding);
        }
        if let Ok(names) = HeaderValue::from_str(&self.names.announced()) {
            headers.insert("x-amz-trailer", names);
        }
        headers.insert("x-amz-decoded-content-length", HeaderValue::from(self.length));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(self.encoded_length()));
    }

    /// The next chunk, if its data are complete.
    fn chunk(&mut self) -> Option<Bytes> {
        let available = self.pending.len() as u64;
        if available == 0 || (available < CHUNK_LENGTH && self.left > 0) {
            return None;
        }
        let length = usize::try_from(available.min(CHUNK_LENGTH)).expect("a chunk is small");
        let mut chunk = BytesMut::with_capacity(length + 16);
        chunk.extend_from_slice(format!("{length:x}\r\n").as_bytes());
        chunk.extend_from_slice(&self.pending[..length]);
        chunk.extend_from_slice(b"\r\n");
        self.pending.advance(length);
        Some(chunk.freeze())
    }

    fn end(&mut self) -> Result<Bytes, BodyError> {
        if self.left > 0 {
            return Err(io::Error::other("Incomplete: the body is shorter than declared").into());
        }
        let trailers = self.trailers.take().unwrap_or_default();
        let mut end = BytesMut::from(&b"0\r\n"[..]);
        for at in 0..self.names.0.len() {
            let value = self.names.value(&trailers, at)?;
            end.extend_from_slice(self.names.0[at].0.as_bytes());
            end.extend_from_slice(b":");
            end.extend_from_slice(value.as_bytes());
            end.extend_from_slice(b"\r\n");
        }
        end.extend_from_slice(b"\r\n");
        Ok(end.freeze())
    }
}

impl Body for TrailerEncoder {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(chunk) = this.chunk() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            if this.is_ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.source).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    let length = data.len() as u64;
                    if length > this.left {
                        let longer = "the body is longer than declared";
                        return Poll::Ready(Some(Err(io::Error::other(longer).into())));
                    }
                    this.left -= length;
                    this.pending.extend_from_slice(&data);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    this.is_ended = true;
                    return Poll::Ready(Some(this.end().map(Frame::data)));
                }
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_checksums_are_passed_on() {
        let names = TrailerNames::parse("X-Amz-Checksum-CRC32, x-amz-checksum-crc32").unwrap();
        assert_eq!(names.announced(), "x-amz-checksum-crc32");
        for bad in ["", "x-amz-meta-a", "authorization", "x-amz-checksum-crc32,host"] {
            assert_eq!(TrailerNames::parse(bad).unwrap_err().code, "NotImplemented", "{bad}");
        }
    }
}
