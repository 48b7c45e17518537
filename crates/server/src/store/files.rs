//! The simplest store: a file for each blob.
//!
//! A file holds the blob, a CRC-32C of every 64 KiB block of it, and a trailer that says whose file it
//! is, so that ranges can be read and proved on their own. Files are written under another name and
//! appear by rename. They are not synced: after a power failure a file may be torn, and then its
//! checksums say so and it is a miss, which costs warmth only.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, FileExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use forebay_core::Address;

use super::{ReadError, Store, Writing};

const BLOCK: u64 = 64 << 10;
const CRC_SIZE: u64 = 4;
const MAGIC: &[u8; 8] = b"forebay\x01";
/// Magic, address, length, and a CRC-32C of the three.
const TRAILER_SIZE: usize = MAGIC.len() + Address::LEN + 8 + 4;
/// What file systems hand out.
const ALLOCATION: u64 = 4 << 10;

/// A directory of blobs. Dropped, it lets another process have the directory.
#[derive(Debug)]
pub struct Files {
    blobs: PathBuf,
    incoming: PathBuf,
    _lock: File,
}

impl Files {
    /// Takes possession of a directory; makes it if need be.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let (blobs, incoming) = (directory.join("blobs"), directory.join("incoming"));
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700);
        private.create(&blobs)?;
        private.create(&incoming)?;
        for high in 0..=u8::MAX {
            private.create(blobs.join(format!("{high:02x}")))?;
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => io::Error::new(
                io::ErrorKind::AddrInUse,
                "another forebay node keeps its blobs there",
            ),
            fs::TryLockError::Error(error) => error,
        })?;
        Ok(Self { blobs, incoming, _lock: lock })
    }

    fn path(&self, address: &Address) -> PathBuf {
        let name = address.to_string();
        self.blobs.join(&name[..2]).join(name)
    }
}

impl Store for Files {
    fn recover(&self) -> io::Result<Vec<(Address, u64)>> {
        for entry in fs::read_dir(&self.incoming)? {
            fs::remove_file(entry?.path())?;
        }
        let mut found = Vec::new();
        for directory in fs::read_dir(&self.blobs)? {
            for entry in fs::read_dir(directory?.path())? {
                let entry = entry?;
                let address = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let Some(address) = address else { continue };
                let Ok(metadata) = entry.metadata() else { continue };
                match File::open(entry.path())
                    .and_then(|file| whole_length(&file, metadata.len(), &address))
                {
                    Ok(Some(length)) => found.push((metadata.modified()?, address, length)),
                    Ok(None) | Err(_) => drop(fs::remove_file(entry.path())),
                }
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, address, length)| (address, length)).collect())
    }

    fn footprint(&self, length: u64) -> u64 {
        file_size(length).next_multiple_of(ALLOCATION)
    }

    fn read(&self, address: &Address, length: u64, range: Range<u64>) -> Result<Bytes, ReadError> {
        assert!(range.start <= range.end && range.end <= length, "{range:?} of {length}");
        let file = match File::open(self.path(address)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ReadError::Gone),
            opened => opened?,
        };
        let size = file.metadata()?.len();
        if size != file_size(length) {
            return Err(match whole_length(&file, size, address)? {
                Some(_) => ReadError::OtherLength,
                None => ReadError::Damaged("the file is cut short"),
            });
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let (first, last) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let span = first * BLOCK..(last * BLOCK).min(length);
        let mut bytes = vec![0; index(span.end - span.start)];
        let mut sums = vec![0; index((last - first) * CRC_SIZE)];
        read_exact(&file, &mut bytes, span.start)?;
        read_exact(&file, &mut sums, length + first * CRC_SIZE)?;
        let blocks = bytes.chunks(index(BLOCK)).zip(sums.chunks_exact(index(CRC_SIZE)));
        for (block, sum) in blocks {
            if crc(block).to_le_bytes() != sum {
                return Err(ReadError::Damaged("a block does not match its checksum"));
            }
        }
        let within = index(range.start - span.start)..index(range.end - span.start);
        Ok(Bytes::from(bytes).slice(within))
    }

    fn create(&self, address: &Address, length: u64) -> io::Result<Box<dyn Writing>> {
        let path = self.incoming.join(address.to_string());
        let file = File::options().create(true).truncate(true).write(true).open(&path)?;
        let unfinished = Unfinished(path);
        // Refuses here rather than half-way when the disk is full.
        if length > 0 {
            rustix::fs::fallocate(
                &file,
                rustix::fs::FallocateFlags::KEEP_SIZE,
                0,
                file_size(length),
            )?;
        }
        Ok(Box::new(FileWriting {
            file: BufWriter::with_capacity(index(BLOCK), file),
            unfinished,
            path: self.path(address),
            address: *address,
            length,
            block: Vec::with_capacity(index(BLOCK.min(length))),
            sums: Vec::new(),
        }))
    }

    fn remove(&self, address: &Address) -> io::Result<()> {
        match fs::remove_file(self.path(address)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

/// A name that is removed unless the file gets a better one.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

struct FileWriting {
    file: BufWriter<File>,
    unfinished: Unfinished,
    path: PathBuf,
    address: Address,
    length: u64,
    /// The begun block, kept for its checksum only.
    block: Vec<u8>,
    sums: Vec<u8>,
}

impl Writing for FileWriting {
    fn append(&mut self, mut piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        while !piece.is_empty() {
            let (now, later) = piece.split_at(piece.len().min(index(BLOCK) - self.block.len()));
            // Whole blocks are summed where they are.
            if now.len() == index(BLOCK) {
                self.sums.extend_from_slice(&crc(now).to_le_bytes());
            } else {
                self.block.extend_from_slice(now);
                if self.block.len() == index(BLOCK) {
                    self.end_block();
                }
            }
            piece = later;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        if !self.block.is_empty() {
            self.end_block();
        }
        let sums = std::mem::take(&mut self.sums);
        self.file.write_all(&sums)?;
        self.file.write_all(&trailer(&self.address, self.length))?;
        self.file.flush()?;
        fs::rename(&self.unfinished.0, &self.path)
    }
}

impl FileWriting {
    fn end_block(&mut self) {
        self.sums.extend_from_slice(&crc(&self.block).to_le_bytes());
        self.block.clear();
    }
}

fn trailer(address: &Address, length: u64) -> [u8; TRAILER_SIZE] {
    let mut bytes = [0; TRAILER_SIZE];
    let (fields, sum) = bytes.split_at_mut(TRAILER_SIZE - 4);
    fields[..8].copy_from_slice(MAGIC);
    fields[8..40].copy_from_slice(address.as_bytes());
    fields[40..].copy_from_slice(&length.to_le_bytes());
    sum.copy_from_slice(&crc(fields).to_le_bytes());
    bytes
}

/// How long the blob in this file is; `None` if it is not whole, or another's.
fn whole_length(file: &File, size: u64, address: &Address) -> io::Result<Option<u64>> {
    let Some(at) = size.checked_sub(TRAILER_SIZE as u64) else { return Ok(None) };
    let mut bytes = [0; TRAILER_SIZE];
    file.read_exact_at(&mut bytes, at)?;
    let length = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes"));
    let whole = length < size && file_size(length) == size && bytes == trailer(address, length);
    Ok(whole.then_some(length))
}

fn file_size(length: u64) -> u64 {
    length + length.div_ceil(BLOCK) * CRC_SIZE + TRAILER_SIZE as u64
}

fn read_exact(file: &File, bytes: &mut [u8], offset: u64) -> Result<(), ReadError> {
    file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ReadError::Damaged("the file is cut short"),
        _ => ReadError::Io(error),
    })
}

fn crc(bytes: &[u8]) -> u32 {
    u32::try_from(checksum(Crc32Iscsi, bytes)).expect("a 32-bit sum")
}

/// Lengths of what is in memory fit the address space.
fn index(length: u64) -> usize {
    usize::try_from(length).expect("64-bit addresses")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: u8) -> Address {
        Address::from_bytes([index; 32])
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
    }

    fn put(store: &Files, index: u8, content: &[u8], pieces: usize) {
        let mut writing = store.create(&address(index), content.len() as u64).unwrap();
        content.chunks(pieces).for_each(|piece| writing.append(piece).unwrap());
        writing.finish().unwrap();
    }

    #[test]
    fn ranges_come_back_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let store = Files::open(directory.path()).unwrap();
        for (index, length) in [0, 1, 65_535, 65_536, 65_537, 300_000].into_iter().enumerate() {
            let (index, content) = (u8::try_from(index).unwrap(), content(length));
            put(&store, index, &content, 70_000 + index as usize * 17);
            let length = length as u64;
            for range in [0..length, 0..length / 2, length / 3..length, length..length] {
                let bytes = store.read(&address(index), length, range.clone()).unwrap();
                assert_eq!(bytes, content[index_range(&range)], "{length} {range:?}");
            }
        }
    }

    fn index_range(range: &Range<u64>) -> Range<usize> {
        index(range.start)..index(range.end)
    }

    /// Promise 1: never wrong bytes.
    #[test]
    fn no_flipped_bit_is_ever_handed_out() {
        let directory = tempfile::tempdir().unwrap();
        let store = Files::open(directory.path()).unwrap();
        let content = content(130_000);
        put(&store, 1, &content, 9999);
        let path = store.path(&address(1));
        let whole = fs::read(&path).unwrap();
        let mut damaged = 0;
        for at in (0..whole.len()).step_by(997).chain(130_000..whole.len()) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            match store.read(&address(1), 130_000, 0..130_000) {
                Ok(read) => assert_eq!(read, content, "flipped at {at}"),
                Err(ReadError::Damaged(_)) => damaged += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(damaged > 130, "flips in blocks and their sums are found: {damaged}");
        fs::write(&path, &whole[..100_000]).unwrap();
        let cut = store.read(&address(1), 130_000, 90_000..110_000);
        assert!(matches!(cut, Err(ReadError::Damaged(_))));
        assert!(matches!(store.read(&address(2), 5, 0..5), Err(ReadError::Gone)));
        fs::write(&path, &whole).unwrap();
        let lie = store.read(&address(1), 129_999, 0..10);
        assert!(matches!(lie, Err(ReadError::OtherLength)), "a wrong table, not a damaged blob");
    }

    /// Promise 7: warm restart; what was not finished is gone.
    #[test]
    fn a_restart_finds_what_is_whole_in_the_order_it_came() {
        let directory = tempfile::tempdir().unwrap();
        let store = Files::open(directory.path()).unwrap();
        assert!(Files::open(directory.path()).is_err(), "one node for one directory");
        for index in [3, 1, 2] {
            put(&store, index, &content(1000), 64);
            std::thread::sleep(std::time::Duration::from_millis(15));
        }
        let mut unfinished = store.create(&address(4), 10).unwrap();
        unfinished.append(b"half").unwrap();
        std::mem::forget(unfinished);
        let cut = fs::read(store.path(&address(3))).unwrap();
        fs::write(store.path(&address(9)), &cut).unwrap();
        fs::write(store.path(&address(1)), &cut[..500]).unwrap();
        drop(store);
        let store = Files::open(directory.path()).unwrap();
        assert_eq!(store.recover().unwrap(), [(address(3), 1000), (address(2), 1000)]);
        assert_eq!(fs::read_dir(&store.incoming).unwrap().count(), 0);
        assert!(!store.path(&address(9)).exists(), "another's file under this name");
    }
}
