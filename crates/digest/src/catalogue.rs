//! Catalogues: which key of a user's own stands for which bytes.
//!
//! Items of a dataset that forebay cannot read itself are named by keys that the user gives, and are hashed when they
//! are first seen. A catalogue remembers what came of that: an append-only file of records of one length, each with
//! a checksum, newest last. Any process of any job of the user reads and appends, under a lock that is held for one
//! write. One that is killed in the middle leaves a torn tail, which the next one cuts off; a record that does not match
//! its checksum is no record. So what is found is what somebody has seen, or nothing.
//!
//! Whoever could write here could say which bytes an item is, so the file is the user's alone, or is refused. Nothing is
//! synced: what a power failure takes is seen again.
//!
//! In memory is only where in the file a key's record lies; the record itself is read, and proved, when it is asked
//! for.

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
/// Magic, namespace, id, checksum.
const HEADER_SIZE: usize = 16 + NamespaceId::LEN + 32 + 4;
/// Key, address, length, index, form, checksum.
const RECORD_SIZE: usize = 32 + Address::LEN + 8 + 8 + 4 + 4;
/// No catalogue has more records: 12 GB on disk, and 2 GB of memory to find them.
const RECORDS_MAX: u64 = 1 << 27;
/// Records that are read at a time.
const RECORDS_AT_ONCE: usize = 4096;
/// Fewer are not worth being put in order.
const RECORDS_IN_ORDER: u64 = 4096;
/// Nobody holds the lock for longer than a write takes, unless it was stopped in the middle.
const LOCK_WITHIN: Duration = Duration::from_secs(2);

/// A hash of what the user calls an item.
pub type Key = [u8; 32];

/// What came of looking at an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// What its bytes are called.
    pub address: Address,
    /// How many there are.
    pub length: u64,
    /// Where in the user's dataset it was.
    pub index: u64,
    /// What the bytes mean: that is for whoever made them to say.
    pub form: u32,
}

/// Why a catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// Something that is no catalogue has its name.
    #[error("`{}` is in the way, and no catalogue of forebay's; move it, or give the dataset another name", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else may have said what items are.
    #[error("the catalogue `{}` could have been written by others; make it yours alone with `chmod 600`, or remove it", path.display())]
    Shared {
        /// The file.
        path: PathBuf,
    },
    /// Somebody holds the lock and does nothing.
    #[error("another process holds the lock of `{}` and does nothing", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// There is a limit.
    #[error("the catalogue `{}` is full; remove it, and it begins anew", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The file failed.
    #[error("cannot use the catalogue `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
}

/// A catalogue, as far as it has been read.
#[derive(Debug)]
pub struct Catalogue {
    path: PathBuf,
    namespace: NamespaceId,
    /// What tells it from others.
    id: [u8; 32],
    file: File,
    /// Of each key, by its first bytes, the number of its newest record.
    newest: HashMap<u64, u32>,
    /// Records that were read.
    read: u64,
}

impl Catalogue {
    /// Opens a catalogue, or begins one. If most of its records are superseded, it is written anew.
    pub fn open(path: &Path, namespace: NamespaceId) -> Result<Self, CatalogueError> {
        let mut opened = Self::read_all(path, namespace)?;
        if opened.read >= RECORDS_IN_ORDER && opened.newest.len() as u64 * 2 < opened.read {
            // Whoever is in the way, or a full disk, only puts it off.
            if let Ok(true) = opened.put_in_order() {
                opened = Self::read_all(path, namespace)?;
            }
        }
        Ok(opened)
    }

    /// What tells it from others, of other users as well.
    pub fn id(&self) -> [u8; 32] {
        self.id
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.newest.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    /// What is known of a key, as far as the catalogue has been read.
    pub fn find(&self, key: &Key) -> Option<Seen> {
        let number = *self.newest.get(&first_bytes(key))?;
        let mut record = [0; RECORD_SIZE];
        self.file.read_exact_at(&mut record, offset_of(number.into())).ok()?;
        decode(&record).filter(|(found, _)| found == key).map(|(_, seen)| seen)
    }

    /// Reads what others have appended.
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

    /// Appends what was seen; it is found from now on.
    pub fn append(&mut self, seen: &[(Key, Seen)]) -> Result<(), CatalogueError> {
        let mut file = lock(&self.path, self.namespace)?;
        let length = self.io(file.metadata())?.len();
        let records = records_in(length);
        if records + seen.len() as u64 > RECORDS_MAX {
            return Err(CatalogueError::Full { path: self.path.clone() });
        }
        let end = offset_of(records);
        if end < length {
            // Somebody was killed here.
            self.io(file.set_len(end))?;
        }
        let bytes: Vec<u8> = seen.iter().flat_map(|(key, seen)| encode(key, seen)).collect();
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

    /// Reads whole records up to a length of the file.
    fn read_on(&mut self, length: u64) -> Result<(), CatalogueError> {
        let end = records_in(length).min(RECORDS_MAX);
        let mut buffer = Vec::new();
        while self.read < end {
            let count = usize::try_from(end - self.read).unwrap_or(usize::MAX).min(RECORDS_AT_ONCE);
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

    /// Writes what counts to a new file and gives it the name. Says whether it has: somebody else may be at it.
    fn put_in_order(&self) -> io::Result<bool> {
        let held = self.file.metadata()?;
        match self.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let is_current = fs::metadata(&self.path)?.ino() == held.ino();
        // What was appended since this was read must not be lost.
        if !is_current || records_in(self.file.metadata()?.len()) != self.read {
            self.file.unlock()?;
            return Ok(false);
        }
        let aside = with_suffix(&self.path, ".new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut writer = io::BufWriter::with_capacity(1 << 20, options.open(&aside)?);
        writer.write_all(&header(self.namespace, self.id))?;
        let mut numbers: Vec<u32> = self.newest.values().copied().collect();
        numbers.sort_unstable();
        let mut record = [0; RECORD_SIZE];
        for number in numbers {
            self.file.read_exact_at(&mut record, offset_of(number.into()))?;
            writer.write_all(&record)?;
        }
        writer.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&aside, &self.path)?;
        self.file.unlock()?;
        Ok(true)
    }

    fn io<T>(&self, outcome: io::Result<T>) -> Result<T, CatalogueError> {
        outcome.map_err(|source| CatalogueError::Io { path: self.path.clone(), source })
    }
}

/// The file of a catalogue, for this process alone, with a header; to be appended to.
fn lock(path: &Path, namespace: NamespaceId) -> Result<File, CatalogueError> {
    let failed = |source| CatalogueError::Io { path: path.to_owned(), source };
    let began = Instant::now();
    let mut file = loop {
        let file = open_private(path)?;
        match file.try_lock() {
            Ok(()) => {
                // It may have been put in order in between: then the name is another file's.
                let held = file.metadata().map_err(failed)?.ino();
                if fs::metadata(path).is_ok_and(|named| named.ino() == held) {
                    break file;
                }
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        if began.elapsed() > LOCK_WITHIN {
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

/// Opens or makes a file that nobody else can write. All writes go to its end.
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

/// What tells a catalogue from others; nothing, if there is no header yet, or half of one.
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

fn encode(key: &Key, seen: &Seen) -> [u8; RECORD_SIZE] {
    let mut record = [0; RECORD_SIZE];
    record[..32].copy_from_slice(key);
    record[32..64].copy_from_slice(seen.address.as_bytes());
    record[64..72].copy_from_slice(&seen.length.to_le_bytes());
    record[72..80].copy_from_slice(&seen.index.to_le_bytes());
    record[80..84].copy_from_slice(&seen.form.to_le_bytes());
    let checksum = crc(&record[..84]);
    record[84..].copy_from_slice(&checksum.to_le_bytes());
    record
}

fn decode(record: &[u8]) -> Option<(Key, Seen)> {
    let (fields, checksum) = record.split_last_chunk::<4>()?;
    if crc(fields) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let (key, rest) = fields.split_first_chunk::<32>()?;
    let (address, rest) = rest.split_first_chunk::<32>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (index, form) = rest.split_first_chunk::<8>()?;
    let seen = Seen {
        address: Address::from_bytes(*address),
        length: u64::from_le_bytes(*length),
        index: u64::from_le_bytes(*index),
        form: u32::from_le_bytes(form.try_into().ok()?),
    };
    Some((*key, seen))
}

/// Keys are hashes: their first bytes are as good as any. Two that begin alike cost each other hits, never bytes.
fn first_bytes(key: &Key) -> u64 {
    u64::from_le_bytes(*key.first_chunk().expect("longer"))
}

fn offset_of(record: u64) -> u64 {
    HEADER_SIZE as u64 + record * RECORD_SIZE as u64
}

/// Whole records in a file of this length.
fn records_in(length: u64) -> u64 {
    length.saturating_sub(HEADER_SIZE as u64) / RECORD_SIZE as u64
}
