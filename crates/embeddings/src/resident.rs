//! Which rows are in memory, and where.
//!
//! A policy says what *should* be resident; this knows what *is*. The two differ for moments only: a row that
//! was admitted is here when it has been read, one that was evicted is gone when its request is done. Tables
//! that were chosen to be kept whole have a place for every row, filled as rows are asked for, and no policy.

use std::{io, sync::Arc};

use forebay_core::embedding::{Key, KeyMap, TableId};
use memmap2::{Advice, MmapMut};

use crate::{file::DataFile, format::Layout, slab::Slab};

/// Of a long row so much is fetched ahead; the processor sees by itself how it goes on.
const FETCHED_AHEAD: usize = 512;

/// A table: its rows as they are on disk. A new one takes its place when rows are replaced, so that what was
/// read from the old one is recognised.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub file: Arc<DataFile>,
    pub layout: Layout,
}

/// Everything in memory.
#[derive(Debug)]
pub(crate) struct Resident {
    tables: Vec<Arc<Table>>,
    /// The tables that are kept whole.
    whole: Vec<Option<Whole>>,
    /// Slabs by width, and which of them a table uses.
    slabs: Vec<Slab>,
    slab_of: Vec<usize>,
    slots: KeyMap<u32>,
}

impl Resident {
    /// Nothing of these tables yet; some will be kept whole, and the others share pages of at most `page_max`.
    pub fn new(tables: Vec<Arc<Table>>, whole: &[bool], page_max: usize) -> io::Result<Self> {
        let width = |table: &Table| table.layout.row_bytes() as usize;
        let mut widths: Vec<usize> =
            tables.iter().zip(whole).filter(|(_, whole)| !**whole).map(|(t, _)| width(t)).collect();
        widths.sort_unstable();
        widths.dedup();
        let slab_of = tables.iter().map(|table| widths.partition_point(|w| *w < width(table)));
        let wholes = tables.iter().zip(whole);
        let wholes =
            wholes.map(|(table, whole)| whole.then(|| Whole::new(&table.layout)).transpose());
        Ok(Self {
            slab_of: slab_of.collect(),
            slabs: widths.iter().map(|width| Slab::new(*width, page_max)).collect(),
            whole: wholes.collect::<io::Result<_>>()?,
            tables,
            slots: KeyMap::default(),
        })
    }

    pub fn table(&self, table: usize) -> &Arc<Table> {
        &self.tables[table]
    }

    pub fn is_whole(&self, table: usize) -> bool {
        self.whole[table].is_some()
    }

    /// Where to look for the rows of a table.
    pub fn view(&self, table: usize) -> View<'_> {
        if let Some(whole) = &self.whole[table] {
            return View::Whole(whole);
        }
        let id = TableId(u16::try_from(table).expect("table ids are 16-bit"));
        View::Packed { table: id, slots: &self.slots, slab: &self.slabs[self.slab_of[table]] }
    }

    /// Bytes allocated for rows that a policy decides about.
    pub fn packed_bytes(&self) -> u64 {
        self.slabs.iter().map(Slab::bytes).sum()
    }

    /// How many of those rows there are.
    pub fn packed_rows(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Bytes of the rows of whole tables that are here, and their number.
    pub fn whole_rows(&self) -> (u64, u64) {
        let whole = self.whole.iter().flatten();
        whole.fold((0, 0), |(bytes, rows), whole| {
            let here = whole.rows - whole.missing;
            (bytes + here * whole.width as u64, rows + here)
        })
    }

    /// The largest pages in use: by so much may the slabs exceed their rows.
    pub fn page_slack(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.page_bytes() as u64).sum()
    }

    /// Takes a row in, unless it is there already.
    pub fn insert(&mut self, key: Key, row: &[u8]) {
        let table = usize::from(key.table().0);
        if let Some(whole) = &mut self.whole[table] {
            return whole.insert(key.row(), row);
        }
        let slab = &mut self.slabs[self.slab_of[table]];
        self.slots.entry(key).or_insert_with(|| slab.push(key, row));
    }

    /// Lets a row go, if it is there. Rows of whole tables stay.
    pub fn remove(&mut self, key: Key) {
        let Some(slot) = self.slots.remove(&key) else { return };
        let slab = &mut self.slabs[self.slab_of[usize::from(key.table().0)]];
        if let Some(moved) = slab.remove(slot) {
            *self.slots.get_mut(&moved).expect("a packed row has its slot") = slot;
        }
    }

    /// Changes a row that is here, and says so; does nothing about one that is not.
    pub fn overwrite(&mut self, key: Key, row: &[u8]) {
        let table = usize::from(key.table().0);
        if let Some(whole) = &mut self.whole[table] {
            whole.overwrite(key.row(), row);
        } else if let Some(slot) = self.slots.get(&key) {
            self.slabs[self.slab_of[table]].row_mut(*slot).copy_from_slice(row);
        }
    }

    /// What is read from now on is read from this table.
    pub fn set_table(&mut self, table: usize, now: Table) {
        self.tables[table] = Arc::new(now);
    }

    /// Lets every row of a table go.
    pub fn clear(&mut self, table: usize) {
        if let Some(whole) = &mut self.whole[table] {
            return whole.clear();
        }
        let of_table = self.slots.keys().filter(|key| usize::from(key.table().0) == table);
        for key in of_table.copied().collect::<Vec<_>>() {
            self.remove(key);
        }
    }
}

/// Where the rows of one table are found.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    Whole(&'a Whole),
    Packed { table: TableId, slots: &'a KeyMap<u32>, slab: &'a Slab },
}

impl<'a> View<'a> {
    /// This row will be looked for soon. Of packed rows it is not known where they are without looking.
    #[inline]
    pub fn expect(self, row: u64) {
        if let Self::Whole(whole) = self
            && let Some(bytes) = whole.place(row)
        {
            fetch_ahead(bytes);
        }
    }

    /// A row, if it is in memory.
    #[expect(clippy::inline_always, reason = "once for every row; the compiler left it a call")]
    #[inline(always)]
    pub fn find(self, row: u64) -> Option<&'a [u8]> {
        match self {
            Self::Whole(whole) => whole.find(row),
            Self::Packed { table, slots, slab } => {
                let key = Key::new(table, row)?;
                slots.get(&key).map(|slot| slab.row(*slot))
            }
        }
    }
}

/// A table with a place for every row.
#[derive(Debug)]
pub(crate) struct Whole {
    width: usize,
    rows: u64,
    bytes: MmapMut,
    /// A bit for every row that is here,
    present: Vec<u64>,
    /// and how many are not.
    missing: u64,
}

impl Whole {
    fn new(layout: &Layout) -> io::Result<Self> {
        let bytes = usize::try_from(layout.bytes()).expect("whole tables fit into memory");
        let words =
            usize::try_from(layout.rows.div_ceil(64)).expect("whole tables fit into memory");
        Ok(Self {
            width: layout.row_bytes() as usize,
            rows: layout.rows,
            bytes: noughts(bytes)?,
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
        self.place(row)
    }

    /// Where a row is or would be.
    #[inline]
    fn place(&self, row: u64) -> Option<&[u8]> {
        let start = usize::try_from(row).ok()? * self.width;
        self.bytes.get(start..start + self.width)
    }

    fn insert(&mut self, row: u64, bytes: &[u8]) {
        let index = usize::try_from(row).expect("whole tables fit into memory");
        let word = &mut self.present[index / 64];
        if *word >> (index % 64) & 1 == 0 {
            *word |= 1 << (index % 64);
            self.missing -= 1;
            self.bytes[index * self.width..(index + 1) * self.width].copy_from_slice(bytes);
        }
    }

    fn overwrite(&mut self, row: u64, bytes: &[u8]) {
        if self.find(row).is_some() {
            let index = usize::try_from(row).expect("whole tables fit into memory");
            self.bytes[index * self.width..(index + 1) * self.width].copy_from_slice(bytes);
        }
    }
}

/// Memory in large pages, where there are such: rows lie anywhere in a table, and of small pages the processor does
/// not know the places of enough.
fn noughts(bytes: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(bytes)?;
    // Where it is not to be had, small ones do.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

/// Asks for these bytes to be brought into the processor's caches, and does not wait for them.
#[inline]
#[cfg(target_arch = "x86_64")]
fn fetch_ahead(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let ask = |byte: &u8| {
        #[expect(unsafe_code, reason = "there is no safe word for it")]
        // SAFETY: it is a hint; nothing is read that the program could see, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast());
        }
    };
    let bytes = &bytes[..bytes.len().min(FETCHED_AHEAD)];
    bytes.chunks(64).for_each(|line| ask(&line[0]));
    // A row begins anywhere in a line, so that its last byte may be in one more.
    bytes.last().into_iter().for_each(ask);
}

#[inline]
#[cfg(not(target_arch = "x86_64"))]
fn fetch_ahead(_: &[u8]) {}
