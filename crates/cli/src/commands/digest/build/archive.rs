//! What a tar archive holds, and where: the plan of its samples, without keeping any of it.
//!
//! Headers are small and content may be long, so an archive is read in windows: a short one after every
//! jump, longer ones while reading goes straight on. What belongs together, and what shares a blob, is
//! `core::digest::plan::Samples`'s to say.

use std::io::{self, Read, Seek, SeekFrom};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use forebay_core::{
    ByteSize,
    digest::{
        Part,
        plan::{BlobPlan, Cut, Listed, Samples},
    },
};
use forebay_origin::{Origin, PIECE};
use tokio::runtime::Handle;

/// Archives whose headers are read side by side.
pub const AT_ONCE: usize = 8;
/// The first window after a jump.
const WINDOW_MIN: u64 = 16 << 10;
/// Headers and contents are multiples of this.
const BLOCK: u64 = 512;

/// The blobs of one archive.
pub async fn plan(origin: Origin, listed: Listed, pack: ByteSize) -> anyhow::Result<Vec<BlobPlan>> {
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
        let cuts = cuts(windows, listed.length, pack).with_context(|| {
            format!(
                "`{shown}` cannot be read as a tar archive; unpack it if it is compressed, or leave it \
                 out with --exclude"
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
        let content_end = content_end.context("it is cut off")?;
        // From where the last one ended, since long names come in headers of their own.
        let range = end..content_end.next_multiple_of(BLOCK).min(length);
        end = range.end;
        if entry.header().entry_type().is_file() {
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            cuts.extend(samples.member(&name, range));
        }
    }
    cuts.extend(samples.finish());
    ensure!(length == 0 || end > 0, "it holds nothing");
    Ok(cuts)
}

/// An object as something to read and seek in, from a thread that may wait.
struct Windows<'a> {
    origin: &'a Origin,
    listed: &'a Listed,
    runtime: Handle,
    at: u64,
    /// Where the window begins, and what is in it.
    window: (u64, Bytes),
    next_length: u64,
}

impl Windows<'_> {
    /// What is in the window from here on, which is moved if that is nothing.
    fn here(&mut self) -> io::Result<Bytes> {
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
        let here = self.here()?;
        let count = here.len().min(buffer.len());
        buffer[..count].copy_from_slice(&here[..count]);
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
