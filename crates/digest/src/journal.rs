//! Journal: the finished rows of an unfinished build, in the order of the digest.
//!
//! A build may take hours and be interrupted at any time. Rows are appended as they are finished,
//! each with a checksum. After an interruption the file is a prefix of the digest, and the next run
//! of the same build resumes there. A torn tail is truncated. If the origin has changed in between,
//! the rows from the first changed object on are dropped.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::{
    format::{Blob, ItemSpan, Part},
    plan::BlobPlan,
};
use forebay_core::{
    Address,
    dataset::hash_tree::{HashTree, LEAVES_MAX, LeafLength},
};

use crate::file::with_suffix;

const MAGIC: &[u8; 16] = b"forebay journal2";
/// The magic of all versions. A journal of another version is begun again.
const MAGIC_PREFIX: &[u8] = b"forebay journal";
/// Longest row: a pack has at most 8192 names of at most a few KiB.
const RECORD_SIZE_MAX: u32 = 256 << 20;

/// The build that a journal belongs to. A build resumes from its own journal only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalHeader {
    /// The origin's URL.
    pub origin: String,
    /// The layout, as text.
    pub layout: String,
    /// The namespace's id, or `public`.
    pub namespace: String,
    /// The filter of excluded objects.
    pub filter: String,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process is building the same digest.
    #[error("another build is writing `{}`; wait for it, or choose another output", path.display())]
    Locked {
        /// The journal.
        path: PathBuf,
    },
    /// The journal of another, interrupted build.
    #[error(
        "`{}` is left from an interrupted build of {found}; \
         finish that one, or drop it with --restart",
        path.display()
    )]
    Other {
        /// The journal.
        path: PathBuf,
        /// The build that it belongs to.
        found: String,
    },
    /// A file of another kind has the journal's name.
    #[error(
        "`{}` is in the way: it is not the journal of a build; move it, or choose another output",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The journal cannot be created.
    #[error(
        "cannot write `{}`: {source}; {}choose another output",
        path.display(),
        if source.kind() == io::ErrorKind::NotFound { "make its directory, or " } else { "" }
    )]
    Create {
        /// The journal.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// I/O error.
    #[error("cannot write `{}`: {source}; run the build again to resume it", path.display())]
    Io {
        /// The journal.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// An open journal, locked against other builds.
pub struct Journal {
    path: PathBuf,
    writer: BufWriter<File>,
    /// Rows of an earlier run that have not been recalled yet.
    earlier: Option<JournalRows>,
    /// Offset of the next row.
    end: u64,
}

impl Journal {
    /// Path of the journal of a digest.
    pub fn path(digest: &Path) -> PathBuf {
        with_suffix(digest, ".partial")
    }

    /// Opens or creates the journal of the digest at `digest`.
    pub fn open(
        digest: &Path,
        header: &JournalHeader,
        restart: bool,
    ) -> Result<Self, JournalError> {
        let path = Self::path(digest);
        let failed = |source| JournalError::Io { path: path.clone(), source };
        let mut file = loop {
            let options =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file =
                options.map_err(|source| JournalError::Create { path: path.clone(), source })?;
            match file.try_lock() {
                Ok(()) => {}
                Err(fs::TryLockError::WouldBlock) => return Err(JournalError::Locked { path }),
                Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
            }
            // A build that finished in between has removed the file that is open here: try again.
            let held = file.metadata().map_err(failed)?.ino();
            if fs::metadata(&path).is_ok_and(|named| named.ino() == held) {
                break file;
            }
        };
        if !is_journal(&file).map_err(failed)? {
            return Err(JournalError::Foreign { path });
        }
        if restart {
            file.set_len(0).map_err(failed)?;
        }
        let start = match read_header(&mut file).map_err(failed)? {
            Some((found, start)) if found == *header => start,
            Some((found, _)) => {
                let found = format!(
                    "{} (layout {}, namespace {})",
                    found.origin, found.layout, found.namespace
                );
                return Err(JournalError::Other { path, found });
            }
            None => {
                file.set_len(0).map_err(failed)?;
                write_header(&mut file, header).map_err(failed)?
            }
        };
        let earlier = JournalRows::read(&file, start).map_err(failed)?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        writer.seek(SeekFrom::Start(start)).map_err(failed)?;
        Ok(Self { path, writer, earlier: Some(earlier), end: start })
    }

    /// Goes back to the first row, for a build that lists the origin again.
    pub fn rewind(&mut self) -> Result<(), JournalError> {
        let rows = self.rows()?;
        self.end = rows.end;
        self.earlier = Some(rows);
        Ok(())
    }

    /// The finished row of this plan, if an earlier run wrote it. At the first plan without one,
    /// all later rows are dropped.
    pub fn recall(&mut self, plan: &BlobPlan) -> Result<Option<Blob>, JournalError> {
        let Some(earlier) = &mut self.earlier else { return Ok(None) };
        if let Some(row) = earlier.next()
            && row.parts == plan.parts
            && row.items == plan.items
        {
            self.end = earlier.end;
            return Ok(Some(row));
        }
        self.stop_recalling()?;
        Ok(None)
    }

    fn stop_recalling(&mut self) -> Result<(), JournalError> {
        self.earlier = None;
        let cut = self
            .writer
            .get_ref()
            .set_len(self.end)
            .and_then(|()| self.writer.seek(SeekFrom::Start(self.end)));
        cut.map(drop).map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }

    /// Adds a finished row. It survives a crash of the process after [`Journal::flush`].
    pub fn push(&mut self, blob: &Blob) -> Result<(), JournalError> {
        assert!(self.earlier.is_none(), "rows are added only after recall has found no more");
        let record = encode(blob);
        self.end += record.len() as u64;
        let written = self.writer.write_all(&record);
        written.map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }

    /// Writes all buffered rows to the file.
    pub fn flush(&mut self) -> Result<(), JournalError> {
        let flushed = self.writer.flush();
        flushed.map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }

    /// All rows, from the first. Ends the recall of earlier rows.
    pub fn rows(&mut self) -> Result<JournalRows, JournalError> {
        if self.earlier.is_some() {
            self.stop_recalling()?;
        }
        self.flush()?;
        let rows = (|| {
            let mut file = self.writer.get_ref().try_clone()?;
            let start = read_header(&mut file)?.map_or(0, |(_, start)| start);
            JournalRows::read(&file, start)
        })();
        rows.map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }

    /// Ends a build that failed. Keeps the journal, unless it is empty.
    pub fn close(mut self) -> Result<(), JournalError> {
        if self.rows()?.next().is_none() { self.remove() } else { Ok(()) }
    }

    /// Removes the journal after the digest has been published.
    pub fn remove(self) -> Result<(), JournalError> {
        fs::remove_file(&self.path)
            .map_err(|source| JournalError::Io { path: self.path.clone(), source })
    }
}

/// The rows of a journal, up to its end or the first damaged row.
pub struct JournalRows {
    reader: BufReader<ReadAt>,
    /// Offset of the end of the last row returned.
    end: u64,
}

impl JournalRows {
    fn read(file: &File, start: u64) -> io::Result<Self> {
        let at = ReadAt { file: file.try_clone()?, position: start };
        Ok(Self { reader: BufReader::with_capacity(1 << 20, at), end: start })
    }
}

impl Iterator for JournalRows {
    type Item = Blob;

    fn next(&mut self) -> Option<Blob> {
        let mut head = [0; 8];
        self.reader.read_exact(&mut head).ok()?;
        let length = u32::from_le_bytes(head[..4].try_into().expect("4 bytes"));
        let checksum = u32::from_le_bytes(head[4..].try_into().expect("4 bytes"));
        if length > RECORD_SIZE_MAX {
            return None;
        }
        // Read through `take`, so that a damaged length cannot allocate more than the file has.
        let mut record = Vec::new();
        self.reader.by_ref().take(u64::from(length)).read_to_end(&mut record).ok()?;
        if record.len() as u64 != u64::from(length) || crc(&record) != checksum {
            return None;
        }
        let blob = decode(&record)?;
        self.end += 8 + u64::from(length);
        Some(blob)
    }
}

/// A reader with its own position, so that the writer's does not change.
struct ReadAt {
    file: File,
    position: u64,
}

impl io::Read for ReadAt {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = std::os::unix::fs::FileExt::read_at(&self.file, buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

pub(crate) fn crc(bytes: &[u8]) -> u32 {
    let checksum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(checksum).expect("a 32-bit checksum")
}

fn put_text(record: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).expect("names are short");
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(text.as_bytes());
}

fn write_header(file: &mut File, header: &JournalHeader) -> io::Result<u64> {
    let mut record = Vec::new();
    for text in [&header.origin, &header.layout, &header.namespace, &header.filter] {
        put_text(&mut record, text);
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(u32::try_from(record.len()).expect("four short texts").to_le_bytes());
    bytes.extend(crc(&record).to_le_bytes());
    bytes.extend(record);
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&bytes)?;
    Ok(bytes.len() as u64)
}

/// Whether a file is a journal or the beginning of one.
fn is_journal(file: &File) -> io::Result<bool> {
    let mut magic = Vec::new();
    ReadAt { file: file.try_clone()?, position: 0 }
        .take(MAGIC_PREFIX.len() as u64)
        .read_to_end(&mut magic)?;
    Ok(MAGIC_PREFIX.starts_with(&magic))
}

/// The header of a journal, and the offset of its first row. `None` if the header is damaged or of
/// another version.
fn read_header(file: &mut File) -> io::Result<Option<(JournalHeader, u64)>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(1 << 20).read_to_end(&mut bytes)?;
    Ok((|| {
        let mut reader = Reader(bytes.strip_prefix(MAGIC.as_slice())?);
        let (length, checksum) = (reader.u32()?, reader.u32()?);
        let record = reader.bytes(length as usize)?;
        if crc(record) != checksum {
            return None;
        }
        let mut fields = Reader(record);
        let mut text = || fields.text();
        let header =
            JournalHeader { origin: text()?, layout: text()?, namespace: text()?, filter: text()? };
        Some((header, (MAGIC.len() + 8) as u64 + u64::from(length)))
    })())
}

fn encode(blob: &Blob) -> Vec<u8> {
    let mut record = vec![0; 8];
    record.extend_from_slice(blob.address.as_bytes());
    let count = |n: usize| u32::try_from(n).expect("a pack is bounded").to_le_bytes();
    record.extend(count(blob.parts.len()));
    for part in &blob.parts {
        put_text(&mut record, &part.object);
        put_text(&mut record, &part.version);
        record.extend(part.offset.to_le_bytes());
        record.extend(part.length.to_le_bytes());
    }
    record.extend(count(blob.items.len()));
    for item in &blob.items {
        record.extend(item.offset.to_le_bytes());
        record.extend(item.length.to_le_bytes());
    }
    let nodes = blob.tree.as_ref().map_or(&[][..], |tree| &tree.nodes);
    record.extend(count(nodes.len()));
    if let Some(tree) = &blob.tree {
        record.extend(tree.leaf.bytes().to_le_bytes());
        record.extend_from_slice(nodes.as_flattened());
    }
    let (length, checksum) = (count(record.len() - 8), crc(&record[8..]).to_le_bytes());
    record[..4].copy_from_slice(&length);
    record[4..8].copy_from_slice(&checksum);
    record
}

fn decode(record: &[u8]) -> Option<Blob> {
    let mut reader = Reader(record);
    let address = Address::from_bytes(reader.bytes(Address::LEN)?.try_into().ok()?);
    let mut blob = Blob { address, parts: Vec::new(), items: Vec::new(), tree: None };
    for _ in 0..reader.u32()? {
        let (object, version) = (reader.text()?, reader.text()?);
        blob.parts.push(Part { object, version, offset: reader.u64()?, length: reader.u64()? });
    }
    for _ in 0..reader.u32()? {
        blob.items.push(ItemSpan { offset: reader.u64()?, length: reader.u64()? });
    }
    let nodes = reader.u32()?;
    if nodes > 0 {
        let leaf = LeafLength::new(reader.u32()?)?;
        let size = (u64::from(nodes) <= LEAVES_MAX).then_some(nodes as usize * Address::LEN)?;
        let (nodes, _) = reader.bytes(size)?.as_chunks();
        blob.tree = Some(HashTree { leaf, nodes: nodes.to_vec() });
    }
    reader.0.is_empty().then_some(blob)
}

/// Takes fields off the front of a record; `None` past its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        String::from_utf8(self.bytes(length)?.to_vec()).ok()
    }
}
