//! Fetched rows: rows that a lookup reads, and copies of resident rows of the bags that wait for
//! them.

use std::sync::Arc;

use forebay_core::embeddings::{Key, KeyMap};

use crate::{
    error::ReadError,
    file::DataFile,
    io::{Cost, Reader, RowRead},
    resident::Table,
};

/// Rows by key, in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    offsets: KeyMap<usize>,
    bytes: Vec<u8>,
    /// The keys to read, each once.
    missing: Vec<Key>,
    /// The version of each table with missing rows at the time of the miss.
    tables: Vec<Option<Arc<Table>>>,
}

impl Fetched {
    /// Removes all rows.
    pub fn clear(&mut self, tables: usize) {
        self.offsets.clear();
        self.bytes.clear();
        self.missing.clear();
        self.tables.clear();
        self.tables.resize(tables, None);
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        let lists = self.bytes.capacity()
            + self.missing.capacity() * size_of::<Key>()
            + self.tables.capacity() * size_of::<Option<Arc<Table>>>();
        (self.offsets.allocation_size() + lists) as u64
    }

    /// Copies a resident row, which may be evicted before it is needed.
    pub fn add_resident(&mut self, key: Key, row: &[u8]) {
        let bytes = &mut self.bytes;
        self.offsets.entry(key).or_insert_with(|| {
            bytes.extend_from_slice(row);
            bytes.len() - row.len()
        });
    }

    /// Adds a row to those to read.
    pub fn add_missing(&mut self, key: Key, table: &Arc<Table>) {
        let bytes = &mut self.bytes;
        let mut is_new = false;
        self.offsets.entry(key).or_insert_with(|| {
            is_new = true;
            let offset = bytes.len();
            bytes.resize(offset + table.layout.row_bytes() as usize, 0);
            offset
        });
        if is_new {
            self.missing.push(key);
            let seen = &mut self.tables[usize::from(key.table().0)];
            seen.get_or_insert_with(|| Arc::clone(table));
        }
    }

    /// The keys to read.
    pub fn missing(&self) -> &[Key] {
        &self.missing
    }

    /// The version of the table from which a missing row is read.
    pub fn table(&self, key: Key) -> &Arc<Table> {
        let table = &self.tables[usize::from(key.table().0)];
        table.as_ref().expect("a row of it is missing")
    }

    /// A row that was copied or read.
    pub fn row(&self, key: Key, width: usize) -> &[u8] {
        let offset = self.offsets[&key];
        &self.bytes[offset..offset + width]
    }

    /// Reads the missing rows.
    pub fn read(&mut self, reader: &mut Reader) -> Result<Cost, ReadError> {
        // All threads lock files in the same order, which prevents deadlocks.
        let mut files: Vec<&Arc<DataFile>> =
            self.tables.iter().flatten().map(|table| &table.file).collect();
        files.sort_unstable_by_key(|file| Arc::as_ptr(file).addr());
        files.dedup_by_key(|file| Arc::as_ptr(file).addr());
        let number = |file: &Arc<DataFile>| {
            let address = |file: &Arc<DataFile>| Arc::as_ptr(file).addr();
            files.binary_search_by_key(&address(file), |one| address(one)).expect("one of them")
        };
        let numbers: Vec<usize> = self
            .tables
            .iter()
            .map(|table| table.as_ref().map_or(usize::MAX, |table| number(&table.file)))
            .collect();
        let mut rows: Vec<RowRead> = self
            .missing
            .iter()
            .map(|key| {
                let layout = self.table(*key).layout;
                RowRead {
                    file: numbers[usize::from(key.table().0)],
                    offset: layout.row_offset(key.row()),
                    length: layout.row_bytes() as usize,
                    to: self.offsets[key],
                }
            })
            .collect();
        let locks: Vec<_> = files.iter().map(|file| file.read_lock()).collect();
        reader.read(&locks, &mut rows, &mut self.bytes)
    }
}
