//! Slab: rows of one width, in pages.
//!
//! A slab is used in one of two ways. *In place*, a row is where its slot says, and pages are
//! allocated up to the highest slot. *Packed*, the last row fills the gap of a removed one, so
//! there are no holes and memory is freed page by page; tables of different widths can therefore
//! share one budget. A packed row has an owner, the slot that must be changed if the row moves.

/// Largest page, unless one row is larger.
const PAGE_BYTES: usize = 64 << 10;

/// Rows of one width.
#[derive(Debug)]
pub(crate) struct Slab {
    width: usize,
    /// Binary logarithm of the rows per page.
    page_shift: u32,
    pages: Vec<Box<[u8]>>,
    /// Owners of packed rows.
    owners: Vec<u32>,
}

impl Slab {
    /// A slab for rows of `width` bytes, in pages of at most `page_max` bytes or one row.
    pub fn new(width: usize, page_max: usize) -> Self {
        let rows = (page_max.min(PAGE_BYTES) / width).max(1);
        Self { width, page_shift: rows.ilog2(), pages: Vec::new(), owners: Vec::new() }
    }

    /// Allocated bytes of rows.
    pub fn bytes(&self) -> u64 {
        (self.pages.len() * self.page_bytes()) as u64
    }

    /// Bytes of the owners.
    pub fn owner_bytes(&self) -> u64 {
        size_of_val(&self.owners[..]) as u64
    }

    /// Bytes of a page: by less than this, the allocated bytes exceed those of the rows.
    pub fn page_bytes(&self) -> usize {
        self.width << self.page_shift
    }

    /// Page of a place, and its offset there.
    fn page_and_offset(&self, place: u32) -> (usize, usize) {
        let within = place & ((1 << self.page_shift) - 1);
        ((place >> self.page_shift) as usize, within as usize * self.width)
    }

    #[inline]
    pub fn row(&self, place: u32) -> &[u8] {
        let (page, at) = self.page_and_offset(place);
        &self.pages[page][at..at + self.width]
    }

    pub fn row_mut(&mut self, place: u32) -> &mut [u8] {
        let (page, at) = self.page_and_offset(place);
        &mut self.pages[page][at..at + self.width]
    }

    /// In place: writes a row, and allocates pages up to it.
    pub fn write(&mut self, place: u32, row: &[u8]) {
        while self.page_and_offset(place).0 >= self.pages.len() {
            self.add_page();
        }
        self.row_mut(place).copy_from_slice(row);
    }

    /// In place: frees the pages beyond the first `places` rows.
    pub fn truncate(&mut self, places: usize) {
        self.pages.truncate(places.div_ceil(1 << self.page_shift));
    }

    /// Packed: adds a row and returns its place.
    pub fn push(&mut self, owner: u32, row: &[u8]) -> u32 {
        let place = u32::try_from(self.owners.len()).expect("fewer than 2^32 rows are resident");
        self.owners.push(owner);
        self.write(place, row);
        place
    }

    /// Packed: removes a row. The last row moves to its place, and its owner is returned, unless
    /// the removed row was the last.
    pub fn remove(&mut self, place: u32) -> Option<u32> {
        let last = u32::try_from(self.owners.len() - 1).expect("every place is a u32");
        let (page, at) = self.page_and_offset(last);
        if place != last {
            let (to_page, to) = self.page_and_offset(place);
            if page == to_page {
                self.pages[page].copy_within(at..at + self.width, to);
            } else {
                let (before, after) = self.pages.split_at_mut(page);
                let row = &after[0][at..at + self.width];
                before[to_page][to..to + self.width].copy_from_slice(row);
            }
        }
        self.owners.swap_remove(place as usize);
        if at == 0 {
            self.pages.pop();
        }
        (place != last).then(|| self.owners[place as usize])
    }

    fn add_page(&mut self) {
        self.pages.push(vec![0; self.page_bytes()].into_boxed_slice());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn row(number: u32) -> Vec<u8> {
        [number.to_le_bytes(), [7; 4], [8; 4]].concat()
    }

    /// Promise 6: memory is bounded by the rows present. Every row keeps its bytes.
    #[test]
    fn rows_stay_packed_and_keep_their_bytes() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut slab = Slab::new(12, 100);
        assert_eq!(slab.page_bytes(), 8 * 12);
        let mut places = BTreeMap::new();
        for number in 0..5000 {
            if random.u8(..) < 140 {
                places.insert(number, slab.push(number, &row(number)));
            } else if let Some((&gone, &place)) = places.range(random.u32(..=number)..).next() {
                places.remove(&gone);
                if let Some(moved) = slab.remove(place) {
                    places.insert(moved, place);
                }
            }
            assert!(slab.bytes() < places.len() as u64 * 12 + 96, "less than a page too much");
        }
        for (number, place) in places {
            assert_eq!(slab.row(place), row(number));
        }
    }

    #[test]
    fn rows_in_place_stay_where_they_are_written() {
        let mut slab = Slab::new(12, 100);
        for place in [3, 70, 9, 3] {
            slab.write(place, &row(place));
        }
        assert_eq!((slab.row(3), slab.row(70)), (&row(3)[..], &row(70)[..]));
        assert_eq!(slab.bytes(), 9 * 96, "pages of 8 rows up to place 70");
        slab.truncate(17);
        assert_eq!((slab.bytes(), slab.row(9)), (3 * 96, &row(9)[..]));
    }
}
