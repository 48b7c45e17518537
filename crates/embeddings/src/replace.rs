//! Replacement of rows and tables, on disk and in memory, while lookups continue.
//!
//! A lookup sees the old row or the new one, never half of both. Each replacement installs a
//! new
//! [`Table`], so that a lookup which read from the old one does not keep its rows.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    error::ReplaceError,
    file::{DataFile, Source},
    format::Layout,
    lookup::apply_evictions,
    resident::Table,
    tables::{PolicyState, Tables, key},
};

impl Tables {
    /// Replaces rows of a table, from row `first` on, in the file and in memory. The rows are
    /// durable when this returns. Until then, a crash leaves them undefined. What another process
    /// that serves the same file sees is undefined too.
    pub fn replace_rows(&self, table: usize, first: u64, bytes: &[u8]) -> Result<(), ReplaceError> {
        let layout = self.layout(table)?;
        if layout.dtype.quantised().is_some() {
            return Err(ReplaceError::Quantised { table, dtype: layout.dtype });
        }
        let row_bytes = layout.row_bytes();
        if !bytes.len().is_multiple_of(row_bytes as usize) {
            return Err(ReplaceError::Uneven { given: bytes.len(), row_bytes });
        }
        let count = (bytes.len() / row_bytes as usize) as u64;
        if first.checked_add(count).is_none_or(|end| end > layout.rows) {
            return Err(ReplaceError::Rows { first, count, rows: layout.rows });
        }
        let _one_at_a_time = self.replacement.lock();
        let current = Table::clone(self.resident.read().table(table));
        let offset = current.layout.row_offset(first);
        current
            .file
            .write(offset, bytes)
            .map_err(|source| ReplaceError::Io { path: current.file.path().to_owned(), source })?;
        let mut state = self.policy.as_ref().map(Mutex::lock);
        let mut resident = self.resident.write();
        // Rows that were evicted are removed first: no slot leads to them any more.
        if let Some(state) = &mut state {
            let PolicyState { policy, evicted } = &mut **state;
            apply_evictions(&mut resident, &**policy, evicted);
        }
        for number in 0..self.layouts.len() {
            let other = Table::clone(resident.table(number));
            if !Arc::ptr_eq(&other.file, &current.file) || !other.layout.overlaps(&current.layout) {
                continue;
            }
            // Several tables may have the same rows of one file.
            if other.layout == current.layout {
                for (row, bytes) in (first..).zip(bytes.chunks_exact(row_bytes as usize)) {
                    let key = key(number, row);
                    let slot = state.as_ref().and_then(|state| state.policy.slot(key));
                    resident.overwrite(key, slot, bytes);
                }
            } else {
                resident.clear(number);
            }
            resident.set_table(number, other);
        }
        self.counters.add_replaced(count);
        Ok(())
    }

    /// Reads a table from another file from now on, or from the current version of the same file.
    /// Rows, dimension and dtype must be the same.
    pub fn replace_table(&self, table: usize, source: &Source) -> Result<(), ReplaceError> {
        let old = self.layout(table)?;
        let file = Arc::new(DataFile::open(&source.path, self.direct)?);
        let new = file.layout(source)?;
        if (Layout { offset: old.offset, ..new }) != old {
            return Err(ReplaceError::Shape { old, new });
        }
        let _one_at_a_time = self.replacement.lock();
        let mut resident = self.resident.write();
        // Tables of one file share one `DataFile`, so that a write to it reaches all of them.
        let mut others = (0..self.layouts.len()).map(|other| &resident.table(other).file);
        let shared = others.find(|other| other.is_same_version(&file)).map(Arc::clone);
        let file = shared.unwrap_or(file);
        resident.set_table(table, Table { file, layout: new });
        resident.clear(table);
        self.counters.add_replaced(new.rows);
        Ok(())
    }

    fn layout(&self, table: usize) -> Result<Layout, ReplaceError> {
        let tables = self.layouts.len();
        self.layouts.get(table).copied().ok_or(ReplaceError::NoTable { table, tables })
    }
}
