//! The rows that a lookup has aside: those that it must read, and those of bags that wait for them.

use std::sync::Arc;

use forebay_core::embedding::{Key, KeyMap};

use crate::{
    error::ReadError,
    file::DataFile,
    io::{Cost, Reader, Wanted},
    resident::Table,
};

/// Memory that one lookup leaves to the next, at most.
const KEPT: usize = 16 << 20;

/// Rows by key, in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    places: KeyMap<usize>,
    bytes: Vec<u8>,
    /// The keys that are to be read, each once, with its table as it was when they were missed.
    missing: Vec<Key>,
    tables: Vec<Option<Arc<Table>>>,
}

impl Fetched {
    /// Begins anew.
    pub fn clear(&mut self, tables: usize) {
        self.places.clear();
        self.bytes.clear();
        self.missing.clear();
        self.tables.clear();
        self.tables.resize(tables, None);
    }

    /// What an unusually large lookup needed is given back.
    pub fn rest(&mut self) {
        if self.bytes.capacity() > KEPT {
            *self = Self::default();
        }
    }

    /// Keeps a row that is in memory now, and may not be when it is needed.
    pub fn keep(&mut self, key: Key, row: &[u8]) {
        let bytes = &mut self.bytes;
        self.places.entry(key).or_insert_with(|| {
            bytes.extend_from_slice(row);
            bytes.len() - row.len()
        });
    }

    /// Wants a row read.
    pub fn want(&mut self, key: Key, table: &Arc<Table>) {
        let bytes = &mut self.bytes;
        let mut is_new = false;
        self.places.entry(key).or_insert_with(|| {
            is_new = true;
            let place = bytes.len();
            bytes.resize(place + table.layout.row_bytes() as usize, 0);
            place
        });
        if is_new {
            self.missing.push(key);
            let seen = &mut self.tables[usize::from(key.table().0)];
            seen.get_or_insert_with(|| Arc::clone(table));
        }
    }

    /// The keys that were to be read.
    pub fn missing(&self) -> &[Key] {
        &self.missing
    }

    /// The table from which a key's row was to be read.
    pub fn table(&self, key: Key) -> &Arc<Table> {
        let table = &self.tables[usize::from(key.table().0)];
        table.as_ref().expect("a row of it is missing")
    }

    /// A row that was kept or read.
    pub fn row(&self, key: Key, width: usize) -> &[u8] {
        let place = self.places[&key];
        &self.bytes[place..place + width]
    }

    /// Reads what is missing.
    pub fn read(&mut self, reader: &mut Reader) -> Result<Cost, ReadError> {
        // Files in one order for all threads, so that nobody waits for one who waits for them.
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
        let mut wanted: Vec<Wanted> = self
            .missing
            .iter()
            .map(|key| {
                let layout = self.table(*key).layout;
                Wanted {
                    file: numbers[usize::from(key.table().0)],
                    offset: layout.row_offset(key.row()),
                    length: layout.row_bytes() as usize,
                    to: self.places[key],
                }
            })
            .collect();
        let reading: Vec<_> = files.iter().map(|file| file.reading()).collect();
        reader.read(&reading, &mut wanted, &mut self.bytes)
    }
}
