//! Resident rows: which rows are in memory, and where.
//!
//! A policy decides what *should* be resident; this module has what *is*. The two differ briefly:
//! an admitted row is inserted when it has been read, an evicted one is removed at the end of its
//! request. Pinned tables have space for every row, filled on first access, and no policy.
//!
//! There is no index here. A row is found by the slot that the policy has given it.
//!
//! **Invariant:** a slot is believed only if it has the key that is looked for, because the policy
//! may have given it to another row since.

use std::{io, sync::Arc};

use forebay_core::embeddings::{Key, Slot, TableId};
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
    packed: Packed,
}

/// Rows of tables that are not pinned, by the slots that the policy gave them.
#[derive(Debug)]
pub(crate) struct Packed {
    /// The row that is in memory for each slot, or [`ABSENT`]. It may be one that the policy has
    /// evicted since.
    keys: Vec<Key>,
    /// Place of each slot's row in its slab. `None` if all rows have one width and the policy has
    /// no more slots than residents: then a row's place is its slot.
    places: Option<Vec<u32>>,
    /// Slabs in order of width.
    slabs: Vec<Slab>,
    /// Index of each table's slab.
    slab_of: Vec<usize>,
    rows: u64,
}

/// The key of no row: there are fewer tables.
const ABSENT: Key = Key::new(TableId(u16::MAX), Key::ROWS_MAX - 1).expect("it is below the limit");

/// Bytes that a resident row costs here beside its own, if its place is its slot, or else.
const IN_PLACE_BYTES: u32 = size_of::<Key>() as u32;
const PACKED_BYTES: u32 = IN_PLACE_BYTES + 2 * size_of::<u32>() as u32;

impl Resident {
    /// No rows of these tables yet. Tables that are not `pinned` use slabs with pages of at most
    /// `page_max` bytes. `dense` says that the policy reuses free slots before it adds any.
    pub fn new(
        tables: Vec<Arc<Table>>,
        pinned: &[bool],
        page_max: usize,
        dense: bool,
    ) -> io::Result<Self> {
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
        let packed = Packed {
            keys: Vec::new(),
            places: (!dense || widths.len() > 1).then(Vec::new),
            slab_of: slab_of.collect(),
            slabs: widths.iter().map(|width| Slab::new(*width, page_max)).collect(),
            rows: 0,
        };
        let tables_pinned = tables.iter().zip(pinned);
        let tables_pinned = tables_pinned
            .map(|(table, pinned)| pinned.then(|| PinnedTable::new(&table.layout)).transpose());
        Ok(Self { packed, pinned: tables_pinned.collect::<io::Result<_>>()?, tables })
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
        View::Packed { table: id, packed: &self.packed }
    }

    /// Bytes allocated for rows of tables that are not pinned.
    pub fn packed_bytes(&self) -> u64 {
        self.packed.slabs.iter().map(Slab::bytes).sum()
    }

    /// Number of resident rows of tables that are not pinned.
    pub fn packed_rows(&self) -> u64 {
        self.packed.rows
    }

    /// Bytes and number of resident rows of pinned tables.
    pub fn pinned_rows(&self) -> (u64, u64) {
        let pinned = self.pinned.iter().flatten();
        pinned.fold((0, 0), |(bytes, rows), pinned| {
            let resident = pinned.rows - pinned.missing;
            (bytes + resident * pinned.width as u64, rows + resident)
        })
    }

    /// Bytes of a resident row beside its own.
    pub fn overhead_bytes(&self) -> u32 {
        if self.packed.places.is_some() { PACKED_BYTES } else { IN_PLACE_BYTES }
    }

    /// Bytes that say which rows are where.
    pub fn directory_bytes(&self) -> u64 {
        let places = self.packed.places.as_ref().map_or(0, |places| size_of_val(&places[..]));
        let owners: u64 = self.packed.slabs.iter().map(Slab::owner_bytes).sum();
        let pinned = self.pinned.iter().flatten().map(|table| size_of_val(&table.present[..]));
        owners + (size_of_val(&self.packed.keys[..]) + places + pinned.sum::<usize>()) as u64
    }

    /// Bytes by which the slabs may exceed their rows: one page each.
    pub fn page_slack(&self) -> u64 {
        self.packed.slabs.iter().map(|slab| slab.page_bytes() as u64).sum()
    }

    /// Inserts a row of a pinned table, unless it is resident already.
    pub fn insert_pinned(&mut self, key: Key, row: &[u8]) {
        if let Some(pinned) = &mut self.pinned[usize::from(key.table().0)] {
            pinned.insert(key.row(), row);
        }
    }

    /// Inserts a row at its slot, unless it is there already.
    pub fn insert(&mut self, key: Key, slot: Slot, row: &[u8]) {
        self.packed.insert(key, slot, row);
    }

    /// Removes a row if it is at this slot.
    pub fn remove(&mut self, key: Key, slot: Slot) {
        self.packed.remove(key, slot);
    }

    /// Frees what slots from number `slots` on use; they have no rows.
    pub fn truncate(&mut self, slots: usize) {
        self.packed.truncate(slots);
    }

    /// Overwrites a row if it is resident. A row of a table that is not pinned has a slot.
    pub fn overwrite(&mut self, key: Key, slot: Option<Slot>, row: &[u8]) {
        if let Some(pinned) = &mut self.pinned[usize::from(key.table().0)] {
            pinned.overwrite(key.row(), row);
        } else if let Some(slot) = slot
            && self.packed.has(key, slot)
        {
            let place = self.packed.place(slot);
            self.packed.slab_mut(key).row_mut(place).copy_from_slice(row);
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
        for slot in 0..self.packed.keys.len() {
            let key = self.packed.keys[slot];
            if usize::from(key.table().0) == table && key != ABSENT {
                let slot = u32::try_from(slot).expect("slots are numbered in 32 bits");
                self.packed.remove(key, Slot(slot));
            }
        }
    }
}

impl Packed {
    #[inline]
    fn has(&self, key: Key, slot: Slot) -> bool {
        self.keys.get(slot.0 as usize) == Some(&key)
    }

    #[inline]
    fn place(&self, slot: Slot) -> u32 {
        self.places.as_ref().map_or(slot.0, |places| places[slot.0 as usize])
    }

    #[inline]
    fn slab(&self, key: Key) -> &Slab {
        &self.slabs[self.slab_of[usize::from(key.table().0)]]
    }

    fn slab_mut(&mut self, key: Key) -> &mut Slab {
        &mut self.slabs[self.slab_of[usize::from(key.table().0)]]
    }

    fn insert(&mut self, key: Key, slot: Slot, row: &[u8]) {
        let index = slot.0 as usize;
        if index >= self.keys.len() {
            self.keys.resize(index + 1, ABSENT);
            if let Some(places) = &mut self.places {
                places.resize(index + 1, 0);
            }
        }
        let before = self.keys[index];
        if before == key {
            return;
        }
        self.remove(before, slot);
        if self.places.is_none() {
            self.slab_mut(key).write(slot.0, row);
        } else {
            let place = self.slab_mut(key).push(slot.0, row);
            self.places.as_mut().expect("just checked")[index] = place;
        }
        self.keys[index] = key;
        self.rows += 1;
    }

    fn remove(&mut self, key: Key, slot: Slot) {
        if key == ABSENT || !self.has(key, slot) {
            return;
        }
        self.keys[slot.0 as usize] = ABSENT;
        self.rows -= 1;
        if self.places.is_some() {
            let place = self.place(slot);
            let moved = self.slab_mut(key).remove(place);
            if let (Some(moved), Some(places)) = (moved, &mut self.places) {
                places[moved as usize] = place;
            }
        }
    }

    fn truncate(&mut self, slots: usize) {
        if slots >= self.keys.len() {
            return;
        }
        self.keys.truncate(slots);
        self.keys.shrink_to_fit();
        match &mut self.places {
            Some(places) => places.truncate(slots),
            None => self.slabs.iter_mut().for_each(|slab| slab.truncate(slots)),
        }
    }
}

/// The resident rows of one table.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    Pinned(&'a PinnedTable),
    Packed { table: TableId, packed: &'a Packed },
}

impl<'a> View<'a> {
    /// Prefetches a row into the CPU cache. Only rows of pinned tables: whether a slot still has
    /// its row is known when it is read.
    #[inline]
    pub fn prefetch(self, row: u64) {
        if let Self::Pinned(pinned) = self
            && let Some(bytes) = pinned.row(row)
        {
            prefetch_bytes(bytes);
        }
    }

    /// A row, if it is in memory. A row of a table that is not pinned is at its slot.
    #[expect(clippy::inline_always, reason = "once for every row; the compiler left it a call")]
    #[inline(always)]
    pub fn find(self, row: u64, slot: Option<Slot>) -> Option<&'a [u8]> {
        match self {
            Self::Pinned(pinned) => pinned.find(row),
            Self::Packed { table, packed } => {
                let (key, slot) = (Key::new(table, row)?, slot?);
                packed.has(key, slot).then(|| packed.slab(key).row(packed.place(slot)))
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
