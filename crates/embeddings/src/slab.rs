//! Slab: packed rows of one width, in pages.
//!
//! The last row fills the gap of a removed one, so there are no holes and memory is freed page by
//! page. Tables of different widths can therefore share one budget.

use forebay_core::embeddings::Key;

/// Largest page, unless one row is larger.
const PAGE_BYTES: usize = 64 << 10;

/// Packed rows, each with its key.
#[derive(Debug)]
pub(crate) struct Slab {
    width: usize,
    /// Binary logarithm of the rows per page.
    page_shift: u32,
    pages: Vec<Box<[u8]>>,
    keys: Vec<Key>,
}

impl Slab {
    /// A slab for rows of `width` bytes, in pages of at most `page_max` bytes or one row.
    pub fn new(width: usize, page_max: usize) -> Self {
        let rows = (page_max.min(PAGE_BYTES) / width).max(1);
        Self { width, page_shift: rows.ilog2(), pages: Vec::new(), keys: Vec::new() }
    }

    /// Allocated bytes.
    pub fn bytes(&self) -> u64 {
        (self.pages.len() * self.page_bytes()) as u64
    }

    /// Bytes of a page: by less than this, the allocated bytes exceed those of the rows.
    pub fn page_bytes(&self) -> usize {
        self.width << self.page_shift
    }

    /// Page of a slot, and its offset there.
    fn page_and_offset(&self, slot: u32) -> (usize, usize) {
        let within = slot & ((1 << self.page_shift) - 1);
        ((slot >> self.page_shift) as usize, within as usize * self.width)
    }

    #[inline]
    pub fn row(&self, slot: u32) -> &[u8] {
        let (page, at) = self.page_and_offset(slot);
        &self.pages[page][at..at + self.width]
    }

    pub fn row_mut(&mut self, slot: u32) -> &mut [u8] {
        let (page, at) = self.page_and_offset(slot);
        &mut self.pages[page][at..at + self.width]
    }

    /// Adds a row and returns its slot.
    pub fn push(&mut self, key: Key, row: &[u8]) -> u32 {
        let slot = u32::try_from(self.keys.len()).expect("fewer than 2^32 rows are resident");
        if self.page_and_offset(slot).0 == self.pages.len() {
            self.pages.push(vec![0; self.page_bytes()].into_boxed_slice());
        }
        self.keys.push(key);
        self.row_mut(slot).copy_from_slice(row);
        slot
    }

    /// Removes a row. The last row moves to its slot, and its key is returned, unless the removed
    /// row was the last.
    pub fn remove(&mut self, slot: u32) -> Option<Key> {
        let last = u32::try_from(self.keys.len() - 1).expect("every slot is a u32");
        let (page, at) = self.page_and_offset(last);
        if slot != last {
            let (to_page, to) = self.page_and_offset(slot);
            if page == to_page {
                self.pages[page].copy_within(at..at + self.width, to);
            } else {
                let (before, after) = self.pages.split_at_mut(page);
                let row = &after[0][at..at + self.width];
                before[to_page][to..to + self.width].copy_from_slice(row);
            }
        }
        self.keys.swap_remove(slot as usize);
        if at == 0 {
            self.pages.pop();
        }
        (slot != last).then(|| self.keys[slot as usize])
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::embeddings::TableId;

    use super::*;

    fn key(row: u64) -> Key {
        Key::new(TableId(0), row).unwrap()
    }

    /// Promise 6: memory is bounded by the rows present. Every row keeps its bytes.
    #[test]
    fn rows_stay_packed_and_keep_their_bytes() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut slab = Slab::new(12, 100);
        assert_eq!(slab.page_bytes(), 8 * 12);
        let mut slots = std::collections::BTreeMap::new();
        let row = |number: u64| [number.to_le_bytes(), [7; 8]].concat()[..12].to_vec();
        for number in 0..5000 {
            if random.u8(..) < 140 {
                slots.insert(number, slab.push(key(number), &row(number)));
            } else if let Some((&gone, &slot)) = slots.range(random.u64(..=number)..).next() {
                slots.remove(&gone);
                if let Some(moved) = slab.remove(slot) {
                    slots.insert(moved.row(), slot);
                }
            }
            assert!(slab.bytes() < slots.len() as u64 * 12 + 96, "less than a page too much");
        }
        for (number, slot) in slots {
            assert_eq!(slab.row(slot), row(number));
        }
    }
}
