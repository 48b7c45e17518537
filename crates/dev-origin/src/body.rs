//! A file as the body of a response.
//!
//! The file is opened once and read through that descriptor, so replacing it (a rename) does not
//! affect a response in progress. Writing into it does: after each read the file is compared with
//! the version in the response's head, and if it differs the response ends there. Bytes of two
//! versions are never mixed under one `ETag`, and missing bytes are never padded.
//!
//! While one buffer is sent the next is read, which keeps a single stream fast.

use std::{
    fs::File,
    io::{self, Read as _},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use forebay_core::units::ByteSize;
use futures::Stream;
use s3s::{
    StdError,
    stream::{ByteStream, RemainingLength},
};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::tree::Version;

/// A range of a file, positioned at its next byte.
#[derive(Debug)]
pub struct FileRange {
    pub file: File,
    pub version: Version,
    pub left: u64,
    pub buffer_size: ByteSize,
}

impl FileRange {
    /// Reads the next buffer. Blocks.
    fn read(&mut self) -> io::Result<Bytes> {
        let size = self.left.min(self.buffer_size.0);
        let mut bytes = Vec::with_capacity(usize::try_from(size).expect("buffers are small"));
        (&self.file).take(size).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != size || Version::of(&self.file.metadata()?) != self.version {
            return Err(io::Error::other("the file changed while it was being sent"));
        }
        self.left -= size;
        Ok(bytes.into())
    }
}

/// Streams a [`FileRange`].
pub struct FileBody {
    /// Bytes that were not yielded yet, including the buffer that is being read.
    left: u64,
    next: Next,
}

enum Next {
    Ready(Bytes, Option<FileRange>),
    Reading(JoinHandle<io::Result<(Bytes, Option<FileRange>)>>),
    End,
}

impl FileBody {
    /// Reads the first buffer on the blocking thread that opened the file, so that small objects
    /// need no second trip through the blocking pool. Blocks.
    pub fn begin(mut range: FileRange) -> io::Result<Self> {
        let left = range.left;
        if left == 0 {
            return Ok(Self { left, next: Next::End });
        }
        let bytes = range.read()?;
        Ok(Self { left, next: Next::Ready(bytes, (range.left > 0).then_some(range)) })
    }
}

fn read_ahead(range: Option<FileRange>) -> Next {
    let Some(mut range) = range else { return Next::End };
    Next::Reading(spawn_blocking(move || {
        let bytes = range.read()?;
        Ok((bytes, (range.left > 0).then_some(range)))
    }))
}

impl Stream for FileBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (bytes, rest) = match &mut self.next {
            Next::Reading(read) => match ready!(Pin::new(read).poll(context)) {
                Ok(Ok(read)) => read,
                Ok(Err(error)) => {
                    self.next = Next::End;
                    return Poll::Ready(Some(Err(error.into())));
                }
                Err(error) => {
                    self.next = Next::End;
                    return Poll::Ready(Some(Err(error.into())));
                }
            },
            next => match std::mem::replace(next, Next::End) {
                Next::Ready(bytes, rest) => (bytes, rest),
                _ => return Poll::Ready(None),
            },
        };
        self.next = read_ahead(rest);
        self.left -= bytes.len() as u64;
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl ByteStream for FileBody {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(usize::try_from(self.left).expect("64-bit lengths"))
    }
}
