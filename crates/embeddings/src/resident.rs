//! Resident rows: which rows are in memory, and where.
//!
//! A policy decides what *should* be resident; this module has what *is*. The two differ briefly:
//! an admitted row is inserted when it has been read, an evicted one is removed at the end of its
//! request. Pinned tables have space for every row, filled on first access, and no policy.

use std::{io, sync::Arc};

use forebay_core::embeddings::{Key, KeyMap, TableId};
use memmap2::{Advice, MmapMut};

use crate::{file::DataFile, format::Layout, slab::Slab};

/// Bytes of a row that are prefetched; the hardware prefetcher follows a longer row by itself.
const PREFETCH_BYTES: usize = 512;

/// One version of a table on disk. A replacement of rows installs a new one, by which rows that
/// were read from the old one are recognised.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub file: Arc<DataFile>,
    pub layout: Layout,
}

/// All rows in memory.
#[derive(Debug)]
pub(crate) struct Resident {
    tables: Vec<Arc<Table>>,
    /// The pinned tables.
    pinned: Vec<Option<PinnedTable>>,
    /// Slabs in order of width.
    slabs: Vec<Slab>,
    /// Index of each table's slab.
    slab_of: Vec<usize>,
    /// Slot of each packed row in its slab.
    slots: KeyMap<u32>,
}

impl Resident {
    /// No rows of these tables yet. Tables that are not `pinned` use slabs with pages of at most
    /// `page_max` bytes.
    pub fn new(tables: Vec<Arc<Table>>, pinned: &[bool], page_max: usize) -> io::Result<Self> {
        let width = |table: &Table| table.layout.row_bytes() as usize;
        let mut widths: Vec<usize> = tables
            .iter()
            .zip(pinned)
            .filter(|(_, pinned)| !**pinned)
            .map(|(t, _)| width(t))
            .collect();
        widths.sort_unstable();
        widths.dedup();
        let slab_of = tables.iter().map(|table| widths.partition_point(|w| *w < width(table)));
        let tables_pinned = tables.iter().zip(pinned);
        let tables_pinned = tables_pinned
            .map(|(table, pinned)| pinned.then(|| PinnedTable::new(&table.layout)).transpose());
        Ok(Self {
            slab_of: slab_of.collect(),
            slabs: widths.iter().map(|width| Slab::new(*width, page_max)).collect(),
            pinned: tables_pinned.collect::<io::Result<_>>()?,
            tables,
            slots: KeyMap::default(),
        })
    }

    pub fn table(&self, table: usize) -> &Arc<Table> {
        &self.tables[table]
    }

    pub fn is_pinned(&self, table: usize) -> bool {
        self.pinned[table].is_some()
    }

    /// A view of the rows of one table.
    pub fn view(&self, table: usize) -> View<'_> {
        if let Some(pinned) = &self.pinned[table] {
            return View::Pinned(pinned);
        }
        let id = TableId(u16::try_from(table).expect("table ids are 16-bit"));
        View::Packed { table: id, slots: &self.slots, slab: &self.slabs[self.slab_of[table]] }
    }

    /// Bytes allocated for rows of tables that are not pinned.
    pub fn packed_bytes(&self) -> u64 {
        self.slabs.iter().map(Slab::bytes).sum()
    }

    /// Number of resident rows of tables that are not pinned.
    pub fn packed_rows(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Bytes and number of resident rows of pinned tables.
    pub fn pinned_rows(&self) -> (u64, u64) {
        let pinned = self.pinned.iter().flatten();
        pinned.fold((0, 0), |(bytes, rows), pinned| {
            let resident = pinned.rows - pinned.missing;
            (bytes + resident * pinned.width as u64, rows + resident)
        })
    }

    /// Bytes by which the slabs may exceed their rows: one page each.
    pub fn page_slack(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.page_bytes() as u64).sum()
    }

    /// Inserts a row, unless it is resident already.
    pub fn insert(&mut self, key: Key, row: &[u8]) {
        let table = usize::from(key.table().0);
        if let Some(pinned) = &mut self.pinned[table] {
            return pinned.insert(key.row(), row);
        }
        let slab = &mut self.slabs[self.slab_of[table]];
        self.slots.entry(key).or_insert_with(|| slab.push(key, row));
    }

    /// Removes a row if it is resident. Rows of pinned tables stay.
    pub fn remove(&mut self, key: Key) {
        let Some(slot) = self.slots.remove(&key) else { return };
        let slab = &mut self.slabs[self.slab_of[usize::from(key.table().0)]];
        if let Some(moved) = slab.remove(slot) {
            *self.slots.get_mut(&moved).expect("a packed row has its slot") = slot;
        }
    }

    /// Overwrites a row if it is resident.
    pub fn overwrite(&mut self, key: Key, row: &[u8]) {
        let table = usize::from(key.table().0);
        if let Some(pinned) = &mut self.pinned[table] {
            pinned.overwrite(key.row(), row);
        } else if let Some(slot) = self.slots.get(&key) {
            self.slabs[self.slab_of[table]].row_mut(*slot).copy_from_slice(row);
        }
    }

    /// Sets the version of a table from which rows are read from now on.
    pub fn set_table(&mut self, table: usize, now: Table) {
        self.tables[table] = Arc::new(now);
    }

    /// Removes all rows of a table.
    pub fn clear(&mut self, table: usize) {
        if let Some(pinned) = &mut self.pinned[table] {
            return pinned.clear();
        }
        let of_table = self.slots.keys().filter(|key| usize::from(key.table().0) == table);
        for key in of_table.copied().collect::<Vec<_>>() {
            self.remove(key);
        }
    }
}

/// The resident rows of one table.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    Pinned(&'a PinnedTable),
    Packed { table: TableId, slots: &'a KeyMap<u32>, slab: &'a Slab },
}

impl<'a> View<'a> {
    /// Prefetches a row into the CPU cache. Only rows of pinned tables: finding a packed row is the
    /// lookup itself.
    #[inline]
    pub fn prefetch(self, row: u64) {
        if let Self::Pinned(pinned) = self
            && let Some(bytes) = pinned.row(row)
        {
            prefetch_bytes(bytes);
        }
    }

    /// A row, if it is in memory.
    #[expect(clippy::inline_always, reason = "once for every row; the compiler left it a call")]
    #[inline(always)]
    pub fn find(self, row: u64) -> Option<&'a [u8]> {
        match self {
            Self::Pinned(pinned) => pinned.find(row),
            Self::Packed { table, slots, slab } => {
                let key = Key::new(table, row)?;
                slots.get(&key).map(|slot| slab.row(*slot))
            }
        }
    }
}

/// A pinned table, with space for every row.
#[derive(Debug)]
pub(crate) struct PinnedTable {
    width: usize,
    rows: u64,
    bytes: MmapMut,
    /// One bit per row: whether it is resident.
    present: Vec<u64>,
    /// Number of rows that are not resident.
    missing: u64,
}

impl PinnedTable {
    fn new(layout: &Layout) -> io::Result<Self> {
        let bytes = usize::try_from(layout.bytes()).expect("pinned tables fit into memory");
        let words =
            usize::try_from(layout.rows.div_ceil(64)).expect("pinned tables fit into memory");
        Ok(Self {
            width: layout.row_bytes() as usize,
            rows: layout.rows,
            bytes: zeroed(bytes)?,
            present: vec![0; words],
            missing: layout.rows,
        })
    }

    fn clear(&mut self) {
        self.present.fill(0);
        self.missing = self.rows;
    }

    #[inline]
    fn find(&self, row: u64) -> Option<&[u8]> {
        let index = usize::try_from(row).ok()?;
        if self.missing > 0 && self.present.get(index / 64)? >> (index % 64) & 1 == 0 {
            return None;
        }
        self.row(row)
    }

    /// The bytes of a row, resident or not.
    #[inline]
    fn row(&self, row: u64) -> Option<&[u8]> {
        let start = usize::try_from(row).ok()? * self.width;
        self.bytes.get(start..start + self.width)
    }

    fn insert(&mut self, row: u64, bytes: &[u8]) {
        let index = usize::try_from(row).expect("pinned tables fit into memory");
        let word = &mut self.present[index / 64];
        if *word >> (index % 64) & 1 == 0 {
            *word |= 1 << (index % 64);
            self.missing -= 1;
            self.bytes[index * self.width..(index + 1) * self.width].copy_from_slice(bytes);
        }
    }

    fn overwrite(&mut self, row: u64, bytes: &[u8]) {
        if self.find(row).is_some() {
            let index = usize::try_from(row).expect("pinned tables fit into memory");
            self.bytes[index * self.width..(index + 1) * self.width].copy_from_slice(bytes);
        }
    }
}

/// Zeroed memory in huge pages, if available: rows are accessed at random, and with small pages the
/// TLB covers too little of a table.
fn zeroed(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // Without huge pages, small ones work too.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

/// Starts to load these bytes into the CPU cache.
#[inline]
#[cfg(target_arch = "x86_64")]
fn prefetch_bytes(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let load = |byte: &u8| {
        #[expect(unsafe_code, reason = "there is no safe function for it")]
        // SAFETY: a prefetch is a hint without visible effect, valid for any address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast());
        }
    };
    let bytes = &bytes[..bytes.len().min(PREFETCH_BYTES)];
    bytes.chunks(64).for_each(|line| load(&line[0]));
    // A row may begin anywhere in a cache line, so its last byte may be in one more.
    bytes.last().into_iter().for_each(load);
}

#[inline]
#[cfg(not(target_arch = "x86_64"))]
fn prefetch_bytes(_: &[u8]) {}
