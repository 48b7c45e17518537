//! A file as the body of a response.
//!
//! The file was opened once and is read through that descriptor, so replacing it (a rename) does not
//! disturb a response under way. Writing into it does: after each piece the file is compared with
//! the version that was promised, and if it differs the response ends there. Bytes of two versions
//! are never mixed under one `ETag`, and what is missing is never made up.
//!
//! While one piece is being sent the next is read, which is what keeps a single stream fast.

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

/// A stretch of a file, positioned at its next byte.
#[derive(Debug)]
pub struct Stretch {
    pub file: File,
    pub version: Version,
    pub left: u64,
    pub piece_size: ByteSize,
}

impl Stretch {
    /// Reads the next piece; blocks.
    fn read(&mut self) -> io::Result<Bytes> {
        let size = self.left.min(self.piece_size.0);
        let mut piece = Vec::with_capacity(usize::try_from(size).expect("pieces are small"));
        (&self.file).take(size).read_to_end(&mut piece)?;
        if piece.len() as u64 != size || Version::of(&self.file.metadata()?) != self.version {
            return Err(io::Error::other("the file changed while it was being sent"));
        }
        self.left -= size;
        Ok(piece.into())
    }
}

/// Streams a [`Stretch`].
pub struct FileBody {
    /// Not yet yielded, including what is being read.
    left: u64,
    next: Next,
}

enum Next {
    Ready(Bytes, Option<Stretch>),
    Reading(JoinHandle<io::Result<(Bytes, Option<Stretch>)>>),
    End,
}

impl FileBody {
    /// Reads the first piece at once, in the same trip through the blocking pool that opened the
    /// file; small objects need no second one. Blocks.
    pub fn begin(mut stretch: Stretch) -> io::Result<Self> {
        let left = stretch.left;
        if left == 0 {
            return Ok(Self { left, next: Next::End });
        }
        let piece = stretch.read()?;
        Ok(Self { left, next: Next::Ready(piece, (stretch.left > 0).then_some(stretch)) })
    }
}

fn read_ahead(stretch: Option<Stretch>) -> Next {
    let Some(mut stretch) = stretch else { return Next::End };
    Next::Reading(spawn_blocking(move || {
        let piece = stretch.read()?;
        Ok((piece, (stretch.left > 0).then_some(stretch)))
    }))
}

impl Stream for FileBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let (piece, rest) = match &mut self.next {
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
                Next::Ready(piece, rest) => (piece, rest),
                _ => return Poll::Ready(None),
            },
        };
        self.next = read_ahead(rest);
        self.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(piece)))
    }
}

impl ByteStream for FileBody {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(usize::try_from(self.left).expect("64-bit lengths"))
    }
}
