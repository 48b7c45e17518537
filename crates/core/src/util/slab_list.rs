//! Slab lists: doubly linked lists over the slots of a slab.
//!
//! Moving an entry costs two writes and no allocation. Links are stored apart from the entries, so
//! an entry may be in two orders at once (LIRS, `LeCaR`).

/// Index of an entry in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

const NONE: u32 = u32::MAX;

/// Counts steps along lists, for tests that bound the cost of a search.
#[cfg(test)]
pub(crate) mod steps {
    use std::cell::Cell;

    thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

    pub(crate) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Number of steps that `work` takes.
    pub(crate) fn of(work: impl FnOnce()) -> u64 {
        let before = STEPS.get();
        work();
        STEPS.get() - before
    }
}

#[derive(Debug, Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    weight: u32,
}

/// The links of one order. Each slot is in at most one list of the order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// Gives `slot` a link with no neighbours and this weight.
    #[inline]
    pub fn prepare(&mut self, slot: Slot, weight: u32) {
        let index = slot.0 as usize;
        let link = Link { newer: NONE, older: NONE, weight };
        if index < self.0.len() {
            self.0[index] = link;
        } else {
            self.0.resize(index + 1, link);
        }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        (self.0.capacity() * size_of::<Link>()) as u64
    }

    /// The weight of a slot.
    #[inline]
    pub fn weight(&self, slot: Slot) -> u64 {
        u64::from(self.0[slot.0 as usize].weight)
    }

    /// The neighbour towards the newest end.
    #[inline]
    pub fn newer(&self, slot: Slot) -> Option<Slot> {
        #[cfg(test)]
        steps::count();
        some(self.0[slot.0 as usize].newer)
    }

    /// The neighbour towards the oldest end.
    #[inline]
    pub fn older(&self, slot: Slot) -> Option<Slot> {
        #[cfg(test)]
        steps::count();
        some(self.0[slot.0 as usize].older)
    }
}

#[inline]
fn some(index: u32) -> Option<Slot> {
    (index != NONE).then_some(Slot(index))
}

/// A list from newest to oldest, with its length and total weight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    newest: u32,
    oldest: u32,
    /// The newest of the entries that [`List::oldest_not`] has skipped.
    passed: u32,
    len: u32,
    weight: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, passed: NONE, len: 0, weight: 0 }
    }
}

impl List {
    #[inline]
    pub fn oldest(&self) -> Option<Slot> {
        some(self.oldest)
    }

    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// The oldest entry that is not `spared`. Skipped entries are remembered, so repeated calls
    /// skip each entry once. Until [`List::reset_passed`], a spared entry must stay spared and no
    /// spared entry may be pushed at the oldest end.
    #[inline]
    pub fn oldest_not(&mut self, links: &Links, spared: impl Fn(Slot) -> bool) -> Option<Slot> {
        let oldest = self.oldest()?;
        if !spared(oldest) {
            return Some(oldest);
        }
        let mut last = some(self.passed).unwrap_or(oldest);
        let mut next = links.newer(last);
        while let Some(slot) = next.filter(|slot| spared(*slot)) {
            last = slot;
            next = links.newer(slot);
        }
        self.passed = last.0;
        next
    }

    /// Whether [`List::oldest_not`] has skipped entries since the last [`List::reset_passed`].
    #[inline]
    pub fn has_passed(&self) -> bool {
        self.passed != NONE
    }

    /// Forgets which entries were skipped, because other entries are spared from now on.
    #[inline]
    pub fn reset_passed(&mut self) {
        self.passed = NONE;
    }

    #[inline]
    pub fn push_newest(&mut self, links: &mut Links, slot: Slot) {
        let newest = self.newest;
        let link = &mut links.0[slot.0 as usize];
        (link.newer, link.older) = (NONE, newest);
        self.weight += u64::from(link.weight);
        self.len += 1;
        match newest {
            NONE => self.oldest = slot.0,
            newest => links.0[newest as usize].newer = slot.0,
        }
        self.newest = slot.0;
    }

    #[inline]
    pub fn push_oldest(&mut self, links: &mut Links, slot: Slot) {
        let oldest = self.oldest;
        let link = &mut links.0[slot.0 as usize];
        (link.newer, link.older) = (oldest, NONE);
        self.weight += u64::from(link.weight);
        self.len += 1;
        match oldest {
            NONE => self.newest = slot.0,
            oldest => links.0[oldest as usize].older = slot.0,
        }
        self.oldest = slot.0;
    }

    /// Inserts `slot` directly on the older side of `newer`.
    pub fn push_behind(&mut self, links: &mut Links, newer: Slot, slot: Slot) {
        let Some(older) = links.older(newer) else { return self.push_oldest(links, slot) };
        let link = &mut links.0[slot.0 as usize];
        (link.newer, link.older) = (newer.0, older.0);
        self.weight += u64::from(link.weight);
        self.len += 1;
        links.0[newer.0 as usize].older = slot.0;
        links.0[older.0 as usize].newer = slot.0;
    }

    #[expect(
        clippy::inline_always,
        reason = "most of the cost of an LRU hit; a call made it 6 % slower"
    )]
    #[inline(always)]
    pub fn remove(&mut self, links: &mut Links, slot: Slot) {
        #[cfg(test)]
        steps::count();
        let Link { newer, older, weight } = links.0[slot.0 as usize];
        match newer {
            NONE => self.newest = older,
            newer => links.0[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => links.0[older as usize].newer = newer,
        }
        if self.passed == slot.0 {
            self.passed = older;
        }
        self.len -= 1;
        self.weight -= u64::from(weight);
    }
}
