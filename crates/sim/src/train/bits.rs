//! Bit sets of items.

#[derive(Debug, Clone)]
pub(super) struct Bits {
    words: Vec<u64>,
    count: u64,
}

impl Bits {
    /// The empty set of `items` items.
    pub fn new(items: u64) -> Self {
        let words =
            usize::try_from(items.div_ceil(64)).expect("scenarios limit the number of items");
        Self { words: vec![0; words], count: 0 }
    }

    pub fn contains(&self, item: u32) -> bool {
        self.words[item as usize / 64] >> (item % 64) & 1 == 1
    }

    /// Adds an item. Returns whether it is new.
    pub fn insert(&mut self, item: u32) -> bool {
        let word = &mut self.words[item as usize / 64];
        let is_new = *word >> (item % 64) & 1 == 0;
        *word |= 1 << (item % 64);
        self.count += u64::from(is_new);
        is_new
    }

    /// Removes an item. Returns whether it was present.
    pub fn remove(&mut self, item: u32) -> bool {
        let was_present = self.contains(item);
        self.words[item as usize / 64] &= !(1 << (item % 64));
        self.count -= u64::from(was_present);
        was_present
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }
}
