//! Plan of a tar archive: the positions of its samples, without their content.
//!
//! Headers are short and content may be long, so an archive is read in windows: a short one after
//! every seek, longer ones while reading continues. `forebay_digest::plan::Samples` decides which
//! members form a sample and which samples share a blob.

use std::io::{self, Read, Seek, SeekFrom};

use anyhow::{Context as _, anyhow, ensure};
use bytes::Bytes;
use forebay_core::ByteSize;
use forebay_core::dataset::ListedObject;
use forebay_digest::{BlobPlan, Cut, Part, Samples};
use forebay_origin::{Origin, OriginError, PIECE};
use tokio::runtime::Handle;

/// Archives whose headers are read in parallel.
pub const PARALLEL_ARCHIVES: usize = 8;
/// Size of the first window after a seek.
const WINDOW_MIN: u64 = 16 << 10;
/// Headers and contents are padded to multiples of this size.
const BLOCK: u64 = 512;

/// Plans the blobs of one archive.
pub async fn plan(
    origin: Origin,
    listed: ListedObject,
    pack: ByteSize,
) -> anyhow::Result<Vec<BlobPlan>> {
    let runtime = Handle::current();
    let planning = tokio::task::spawn_blocking(move || {
        let shown = listed.object.escape_debug().to_string();
        let windows = Windows {
            origin: &origin,
            listed: &listed,
            runtime,
            at: 0,
            window: (0, Bytes::new()),
            next_length: WINDOW_MIN,
        };
        let cuts = cuts(windows, listed.length, pack).map_err(|error| {
            let is_read_error = error.downcast_ref::<io::Error>().is_some_and(|error| {
                error
                    .get_ref()
                    .is_some_and(<dyn std::error::Error + Send + Sync>::is::<OriginError>)
            });
            if is_read_error {
                return error;
            }
            anyhow!(
                "`{shown}` is no tar archive ({error}); decompress it, or leave it out with \
                 --exclude"
            )
        })?;
        let plan = |Cut { range, items }: Cut| {
            let (offset, length) = (range.start, range.end - range.start);
            let (object, version) = (listed.object.clone(), listed.version.clone());
            BlobPlan { parts: vec![Part { object, version, offset, length }], items }
        };
        Ok(cuts.into_iter().map(plan).collect())
    });
    planning.await.expect("planning does not panic")
}

fn cuts(windows: Windows<'_>, length: u64, pack: ByteSize) -> anyhow::Result<Vec<Cut>> {
    let mut archive = tar::Archive::new(windows);
    let (mut samples, mut cuts, mut end) = (Samples::new(pack), Vec::new(), 0);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        let content_end = entry.raw_file_position().checked_add(entry.size());
        let content_end = content_end.filter(|end| *end <= length);
        let content_end = content_end.context("it is truncated")?;
        // From the end of the last entry, because long names have headers of their own.
        let range = end..content_end.next_multiple_of(BLOCK).min(length);
        end = range.end;
        if entry.header().entry_type().is_file() {
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            cuts.extend(samples.member(&name, range));
        }
    }
    cuts.extend(samples.finish());
    ensure!(length == 0 || end > 0, "it is empty");
    Ok(cuts)
}

/// An object as a blocking reader with seek.
struct Windows<'a> {
    origin: &'a Origin,
    listed: &'a ListedObject,
    runtime: Handle,
    at: u64,
    /// Offset of the window, and its bytes.
    window: (u64, Bytes),
    next_length: u64,
}

impl Windows<'_> {
    /// Bytes of the window from the current position. Reads the next window if there are none.
    fn buffered(&mut self) -> io::Result<Bytes> {
        let (start, bytes) = &self.window;
        let end = start + bytes.len() as u64;
        if (*start..end).contains(&self.at) {
            let skipped = usize::try_from(self.at - start).expect("within the window");
            return Ok(bytes.slice(skipped..));
        }
        self.next_length =
            if self.at == end { (self.next_length * 4).min(PIECE) } else { WINDOW_MIN };
        let until = self.at.saturating_add(self.next_length).min(self.listed.length);
        if until <= self.at {
            return Ok(Bytes::new());
        }
        let read = self.origin.read(&self.listed.object, &self.listed.version, self.at..until);
        let bytes = self.runtime.block_on(read).map_err(io::Error::other)?;
        self.window = (self.at, bytes.clone());
        Ok(bytes)
    }
}

impl Read for Windows<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.buffered()?;
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Windows<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.listed.length.checked_add_signed(by),
        };
        self.at = to.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
