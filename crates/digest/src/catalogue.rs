//! Catalogues: the addresses of a wrapped dataset (`forebay.wrap`), by the user's own keys.
//!
//! forebay cannot read such a dataset itself. The user names each item by a key, and the item is
//! hashed on its first read. A catalogue stores the result: an append-only file of fixed-length
//! records, newest last, each with a checksum.
//!
//! - Any process of the user reads and appends, under a lock that is held for one write.
//! - A process that is killed during a write leaves a torn tail. The next append truncates it.
//! - A record with a wrong checksum is ignored. So a lookup returns what a process has recorded, or
//!   nothing (promise 1).
//! - A process that can write the file decides which bytes an item has. So a file that other users
//!   can access is refused.
//! - Nothing is synced. Records lost in a power failure are made again on the next read.
//!
//! Memory holds only the position of each key's record. A lookup reads and verifies the record.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use forebay_core::{Address, NamespaceId};

use crate::{file::with_suffix, journal::crc};

const MAGIC: &[u8; 16] = b"forebay catalog1";
/// Bytes of magic, namespace, id and checksum.
const HEADER_SIZE: usize = 16 + NamespaceId::LEN + 32 + 4;
/// Bytes of key, address, length, index, form and checksum.
const RECORD_SIZE: usize = 32 + Address::LEN + 8 + 8 + 4 + 4;
/// Most records of a catalogue: 12 GB on disk, and 2 GB of memory for their positions.
const RECORDS_MAX: u64 = 1 << 27;
/// Records of one read.
const READ_RECORDS: usize = 4096;
/// Fewest records that are worth compacting.
const COMPACT_RECORDS_MIN: u64 = 4096;
/// Longest wait for the lock. It is held for one write, unless its holder was stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// A hash of the user's name for an item.
pub type CatalogueKey = [u8; 32];

/// What a catalogue stores of one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// Address of the item's bytes.
    pub address: Address,
    /// Length in bytes.
    pub length: u64,
    /// The item's index in the user's dataset.
    pub index: u64,
    /// Encoding of the bytes, a number that the caller defines.
    pub form: u32,
}

/// Why a catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// A file of another kind has the catalogue's name.
    #[error(
        "`{}` is not a forebay catalogue of this namespace; \
         move it, or give the dataset another name",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Other users can read or write the file.
    #[error(
        "the catalogue `{}` is accessible to other users; \
         restrict it with `chmod 600`, or remove it",
        path.display()
    )]
    Shared {
        /// The file.
        path: PathBuf,
    },
    /// The lock was not released within `LOCK_TIMEOUT`.
    #[error("the lock of `{}` is held by a process that does not release it", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The catalogue has `RECORDS_MAX` records.
    #[error("the catalogue `{}` is full; remove it to start a new one", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// I/O error.
    #[error("cannot use the catalogue `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// An open catalogue.
#[derive(Debug)]
pub struct Catalogue {
    path: PathBuf,
    namespace: NamespaceId,
    /// Random id, unique to the catalogue.
    id: [u8; 32],
    file: File,
    /// Position of the newest record of each key, by the key's first bytes.
    newest: HashMap<u64, u32>,
    /// Number of records read so far.
    read: u64,
}

impl Catalogue {
    /// Opens or creates a catalogue. It is compacted if most of its records are superseded.
    pub fn open(path: &Path, namespace: NamespaceId) -> Result<Self, CatalogueError> {
        let mut opened = Self::read_all(path, namespace)?;
        if opened.read >= COMPACT_RECORDS_MIN && opened.newest.len() as u64 * 2 < opened.read {
            // A held lock or a full disk postpones it.
            if let Ok(true) = opened.compact() {
                opened = Self::read_all(path, namespace)?;
            }
        }
        Ok(opened)
    }

    /// Random id, unique to the catalogue across users.
    pub fn id(&self) -> [u8; 32] {
        self.id
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.newest.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// The newest entry of a key among the records read so far.
    pub fn find(&self, key: &CatalogueKey) -> Option<CatalogueEntry> {
        let number = *self.newest.get(&first_bytes(key))?;
        let mut record = [0; RECORD_SIZE];
        self.file.read_exact_at(&mut record, offset_of(number.into())).ok()?;
        decode(&record).filter(|(found, _)| found == key).map(|(_, entry)| entry)
    }

    /// Reads the records that other processes have appended.
    pub fn refresh(&mut self) -> Result<(), CatalogueError> {
        let now = self.io(fs::metadata(&self.path))?;
        let held = self.io(self.file.metadata())?;
        let is_same = (now.dev(), now.ino()) == (held.dev(), held.ino());
        if is_same && now.len() >= offset_of(self.read) {
            return self.read_on(now.len());
        }
        *self = Self::read_all(&self.path, self.namespace)?;
        Ok(())
    }

    /// Appends entries, and reads all new records.
    pub fn append(
        &mut self,
        entries: &[(CatalogueKey, CatalogueEntry)],
    ) -> Result<(), CatalogueError> {
        let mut file = lock(&self.path, self.namespace)?;
        let length = self.io(file.metadata())?.len();
        let records = records_in(length);
        if records + entries.len() as u64 > RECORDS_MAX {
            return Err(CatalogueError::Full { path: self.path.clone() });
        }
        let end = offset_of(records);
        if end < length {
            // The torn tail of a process that was killed.
            self.io(file.set_len(end))?;
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|(key, entry)| encode(key, entry)).collect();
        if let Err(source) = file.write_all(&bytes) {
            let _ = file.set_len(end);
            return Err(CatalogueError::Io { path: self.path.clone(), source });
        }
        drop(file);
        self.refresh()
    }

    fn read_all(path: &Path, namespace: NamespaceId) -> Result<Self, CatalogueError> {
        let failed = |source| CatalogueError::Io { path: path.to_owned(), source };
        let mut file = open_private(path)?;
        let mut id = read_header(path, &file, namespace)?;
        if id.is_none() {
            drop(lock(path, namespace)?);
            file = open_private(path)?;
            id = read_header(path, &file, namespace)?;
        }
        let id = id.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        let length = file.metadata().map_err(failed)?.len();
        let (path, newest) = (path.to_owned(), HashMap::new());
        let mut catalogue = Self { path, namespace, id, file, newest, read: 0 };
        catalogue.read_on(length)?;
        Ok(catalogue)
    }

    /// Reads complete records up to byte `length` of the file.
    fn read_on(&mut self, length: u64) -> Result<(), CatalogueError> {
        let end = records_in(length).min(RECORDS_MAX);
        let mut buffer = Vec::new();
        while self.read < end {
            let count = usize::try_from(end - self.read).unwrap_or(usize::MAX).min(READ_RECORDS);
            buffer.resize(count * RECORD_SIZE, 0);
            self.io(self.file.read_exact_at(&mut buffer, offset_of(self.read)))?;
            for record in buffer.chunks_exact(RECORD_SIZE) {
                let number = u32::try_from(self.read).expect("at most RECORDS_MAX");
                if let Some((key, _)) = decode(record) {
                    self.newest.insert(first_bytes(&key), number);
                }
                self.read += 1;
            }
        }
        Ok(())
    }

    /// Replaces the file by one with the newest records only. Returns false if another process
    /// holds the lock or has changed the file.
    fn compact(&self) -> io::Result<bool> {
        let held = self.file.metadata()?;
        match self.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let is_current = fs::metadata(&self.path)?.ino() == held.ino();
        // Records that were appended since the last read must not be lost.
        if !is_current || records_in(self.file.metadata()?.len()) != self.read {
            self.file.unlock()?;
            return Ok(false);
        }
        let new_path = with_suffix(&self.path, ".new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut writer = io::BufWriter::with_capacity(1 << 20, options.open(&new_path)?);
        writer.write_all(&header(self.namespace, self.id))?;
        let mut numbers: Vec<u32> = self.newest.values().copied().collect();
        numbers.sort_unstable();
        let mut record = [0; RECORD_SIZE];
        for number in numbers {
            self.file.read_exact_at(&mut record, offset_of(number.into()))?;
            writer.write_all(&record)?;
        }
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&new_path, &self.path)?;
        self.file.unlock()?;
        Ok(true)
    }

    fn io<T>(&self, outcome: io::Result<T>) -> Result<T, CatalogueError> {
        outcome.map_err(|source| CatalogueError::Io { path: self.path.clone(), source })
    }
}

/// Opens a catalogue's file for appending, locked and with a header.
fn lock(path: &Path, namespace: NamespaceId) -> Result<File, CatalogueError> {
    let failed = |source| CatalogueError::Io { path: path.to_owned(), source };
    let began = Instant::now();
    let mut file = loop {
        let file = open_private(path)?;
        match file.try_lock() {
            Ok(()) => {
                // After a compaction in between, the name belongs to another file.
                let held = file.metadata().map_err(failed)?.ino();
                if fs::metadata(path).is_ok_and(|named| named.ino() == held) {
                    break file;
                }
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        if began.elapsed() > LOCK_TIMEOUT {
            return Err(CatalogueError::Locked { path: path.to_owned() });
        }
    };
    if read_header(path, &file, namespace)?.is_none() {
        let mut id = [0; 32];
        let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut id));
        random.map_err(failed)?;
        file.set_len(0).and_then(|()| file.write_all(&header(namespace, id))).map_err(failed)?;
    }
    Ok(file)
}

/// Opens or creates a file that no other user can access. All writes append.
fn open_private(path: &Path) -> Result<File, CatalogueError> {
    let failed = |source| CatalogueError::Io { path: path.to_owned(), source };
    let options = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
    let file = options.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(CatalogueError::Foreign { path: path.to_owned() });
    }
    if metadata.mode() & 0o077 != 0 || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(CatalogueError::Shared { path: path.to_owned() });
    }
    Ok(file)
}

/// The id of a catalogue. `None` if the header is missing, incomplete or damaged.
fn read_header(
    path: &Path,
    file: &File,
    namespace: NamespaceId,
) -> Result<Option<[u8; 32]>, CatalogueError> {
    let failed = |source| CatalogueError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::with_capacity(HEADER_SIZE);
    let mut at = [0; HEADER_SIZE];
    while bytes.len() < HEADER_SIZE {
        match file.read_at(&mut at[..HEADER_SIZE - bytes.len()], bytes.len() as u64) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&at[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let foreign = || CatalogueError::Foreign { path: path.to_owned() };
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) {
        return Err(foreign());
    }
    let Ok(bytes) = <[u8; HEADER_SIZE]>::try_from(bytes) else { return Ok(None) };
    let (of, id) = (&bytes[16..32], bytes[32..64].try_into().expect("32 bytes"));
    if header(namespace, id) == bytes {
        Ok(Some(id))
    } else if of == namespace.as_bytes() {
        Ok(None)
    } else {
        Err(foreign())
    }
}

fn header(namespace: NamespaceId, id: [u8; 32]) -> [u8; HEADER_SIZE] {
    let mut bytes = [0; HEADER_SIZE];
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..32].copy_from_slice(namespace.as_bytes());
    bytes[32..64].copy_from_slice(&id);
    let checksum = crc(&bytes[..64]);
    bytes[64..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn encode(key: &CatalogueKey, entry: &CatalogueEntry) -> [u8; RECORD_SIZE] {
    let mut record = [0; RECORD_SIZE];
    record[..32].copy_from_slice(key);
    record[32..64].copy_from_slice(entry.address.as_bytes());
    record[64..72].copy_from_slice(&entry.length.to_le_bytes());
    record[72..80].copy_from_slice(&entry.index.to_le_bytes());
    record[80..84].copy_from_slice(&entry.form.to_le_bytes());
    let checksum = crc(&record[..84]);
    record[84..].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn decode(record: &[u8]) -> Option<(CatalogueKey, CatalogueEntry)> {
    let (fields, checksum) = record.split_last_chunk::<4>()?;
    if crc(fields) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let (key, rest) = fields.split_first_chunk::<32>()?;
    let (address, rest) = rest.split_first_chunk::<32>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (index, form) = rest.split_first_chunk::<8>()?;
    let entry = CatalogueEntry {
        address: Address::from_bytes(*address),
        length: u64::from_le_bytes(*length),
        index: u64::from_le_bytes(*index),
        form: u32::from_le_bytes(form.try_into().ok()?),
    };
    Some((*key, entry))
}

/// The first bytes of a key, which is a hash. Two keys with equal first bytes cost each other hits,
/// never wrong bytes.
fn first_bytes(key: &CatalogueKey) -> u64 {
    u64::from_le_bytes(*key.first_chunk().expect("32 bytes"))
}

fn offset_of(record: u64) -> u64 {
    HEADER_SIZE as u64 + record * RECORD_SIZE as u64
}

/// Complete records in a file of this length.
fn records_in(length: u64) -> u64 {
    length.saturating_sub(HEADER_SIZE as u64) / RECORD_SIZE as u64
}
