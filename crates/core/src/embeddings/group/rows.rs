//! Rows: what `group` stores about its residents, and the search for the lowest of them.
//!
//! A resident costs [`SLOT_BYTES`] here, and its share of the index. There are no links and no
//! order: a victim is the lowest of [`CANDIDATES`] rows, of which half are drawn at random and half
//! are the lowest ones of earlier draws. The half that is carried over makes the victim one of the
//! lowest 3 % of all rows, on average; of 16 fresh draws it would be one of the lowest 6 %. Idle
//! decay is applied to the rows that are considered, so a hit moves nothing.

use std::collections::VecDeque;

use super::{
    decayed_frequency::{DecayedFrequency, log2},
    idle_decay::IdleBound,
};
use crate::embeddings::{
    directory::Directory,
    key::{Key, mix},
    slab_list::Slot,
};

/// Bytes of a slot: its key, and its row.
pub(super) const SLOT_BYTES: u32 = Directory::SLOT_BYTES + size_of::<Row>() as u32;

/// Rows among which the lowest is evicted.
const CANDIDATES: usize = 16;
/// Candidates carried over from earlier searches.
const CARRIED: usize = CANDIDATES / 2;
/// Slots drawn per candidate wanted, at most: rows of the window and free slots do not count.
const DRAWS_PER_CANDIDATE: usize = 2;
/// Slots that one request searches one by one, in multiples of all slots. Draws find nothing where
/// the request needs nearly all rows.
const ROUNDS_PER_REQUEST: usize = 2;

/// Levels are stored in 64ths of a doubling.
const STORED_STEP: u32 = DecayedFrequency::STEPS / 64;

/// Place of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A free slot.
    None,
    /// Admitted lately.
    Window,
    /// Has passed the window.
    Main,
    /// Of a small table: evicted only if nothing else can be.
    Pinned,
}

/// What is stored about a resident.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Time of the last access, in accesses modulo 2^32.
    last: u32,
    /// Level, in units of [`STORED_STEP`].
    level: u16,
    place: Place,
    /// Whether the current request needs it.
    protected: bool,
}

const _: () = assert!(size_of::<Row>() == 8);

/// The residents.
#[derive(Debug)]
pub(super) struct Rows {
    pub directory: Directory,
    rows: Vec<Row>,
    /// The window, oldest first.
    window: VecDeque<Slot>,
    /// The rows that the current request needs.
    protected: Vec<Slot>,
    /// The lowest candidates of the last search.
    carried: [Slot; CARRIED],
    draws: u64,
    /// Slot at which the search one by one continues.
    hand: usize,
    /// Slots that the current request has searched one by one.
    searched: usize,
}

impl Rows {
    /// For a planned number of rows.
    pub fn new(planned: u64) -> Self {
        Self {
            directory: Directory::new(planned),
            rows: Vec::new(),
            window: VecDeque::new(),
            protected: Vec::new(),
            carried: [Slot(u32::MAX); CARRIED],
            draws: 0,
            hand: 0,
            searched: 0,
        }
    }

    /// Bytes of all residents and of the index.
    pub fn bytes(&self) -> u64 {
        let slots = size_of_val(&self.rows[..]);
        let lists = (self.window.capacity() + self.protected.capacity()) * size_of::<Slot>();
        self.directory.bytes() + (slots + lists) as u64
    }

    #[inline]
    pub fn level(&self, slot: Slot) -> DecayedFrequency {
        DecayedFrequency(u32::from(self.rows[slot.0 as usize].level) * STORED_STEP)
    }

    #[inline]
    pub fn last(&self, slot: Slot) -> u32 {
        self.rows[slot.0 as usize].last
    }

    /// Records an access at this level. Rises smaller than a step count with that probability.
    #[inline]
    pub fn access(&mut self, slot: Slot, access: DecayedFrequency, time: u32) {
        let dither = mix(u64::from(time)) as u32 % STORED_STEP;
        let level = self.level(slot).plus(access).0 + dither;
        let row = &mut self.rows[slot.0 as usize];
        (row.level, row.last) = (stored(DecayedFrequency(level)), time);
    }

    #[inline]
    pub fn place(&self, slot: Slot) -> Place {
        self.rows[slot.0 as usize].place
    }

    /// Notes that the current request needs this row. Returns whether it is the first to say so.
    #[inline]
    pub fn protect(&mut self, slot: Slot) -> bool {
        let protected = &mut self.rows[slot.0 as usize].protected;
        if *protected {
            return false;
        }
        *protected = true;
        self.protected.push(slot);
        true
    }

    /// Ends a request: it needs its rows no longer.
    pub fn end_request(&mut self) {
        for slot in self.protected.drain(..) {
            self.rows[slot.0 as usize].protected = false;
        }
        if self.protected.capacity() > super::SCRATCH_KEYS_MAX {
            self.protected = Vec::new();
        }
        self.searched = 0;
    }

    /// Adds a row, in the window or pinned.
    pub fn insert(&mut self, key: Key, level: DecayedFrequency, last: u32, place: Place) -> Slot {
        let slot = self.directory.insert(key);
        let row = Row { last, level: stored(level), place, protected: false };
        match self.rows.get_mut(slot.0 as usize) {
            Some(free) => *free = row,
            None => self.rows.push(row),
        }
        if place == Place::Window {
            // Doubling the list would cost more than the window's rows themselves justify.
            if self.window.len() == self.window.capacity() {
                self.window.reserve_exact(self.window.len() / 8 + 8);
            }
            self.window.push_back(slot);
        }
        slot
    }

    /// Removes a row that is not in the window.
    pub fn remove(&mut self, slot: Slot) {
        self.directory.remove(slot);
        self.rows[slot.0 as usize].place = Place::None;
    }

    /// The oldest row of the window that the current request does not need. Older ones that it
    /// needs go to the main part. `left` is called with each.
    pub fn oldest_in_window(&mut self, mut left: impl FnMut(Key)) -> Option<Slot> {
        loop {
            let slot = *self.window.front()?;
            if !self.rows[slot.0 as usize].protected {
                return Some(slot);
            }
            left(self.directory.key(slot));
            self.leave_window();
        }
    }

    /// Moves the oldest row of the window to the main part.
    pub fn leave_window(&mut self) -> Slot {
        let slot = self.window.pop_front().expect("the window has a row");
        self.rows[slot.0 as usize].place = Place::Main;
        slot
    }

    /// Whether the window has no rows.
    pub fn window_is_empty(&self) -> bool {
        self.window.is_empty()
    }

    /// The lowest of a few rows of the main part that the current request does not need.
    pub fn lowest(&mut self, now: DecayedFrequency, time: u32, idle: IdleBound) -> Option<Slot> {
        let mut found = Candidates::default();
        for slot in self.carried {
            self.consider(slot, now, time, idle, &mut found);
        }
        let slots = self.rows.len() as u64;
        for _ in 0..(CANDIDATES - CARRIED) * DRAWS_PER_CANDIDATE {
            if found.considered >= CANDIDATES || slots == 0 {
                break;
            }
            self.draws += 1;
            let drawn = ((mix(self.draws) >> 32) * slots) >> 32;
            self.consider(Slot(drawn as u32), now, time, idle, &mut found);
        }
        if found.considered == 0
            && let Some(slot) = self.search(Place::Main)
        {
            self.consider(slot, now, time, idle, &mut found);
        }
        self.carried = found.lowest.map(|(_, slot)| slot);
        (found.considered > 0).then_some(self.carried[0])
    }

    #[inline]
    fn consider(
        &mut self,
        slot: Slot,
        now: DecayedFrequency,
        time: u32,
        idle: IdleBound,
        into: &mut Candidates,
    ) {
        let Some(row) = self.rows.get_mut(slot.0 as usize) else { return };
        if row.place == Place::Main && !row.protected {
            let since = log2(time.wrapping_sub(row.last).max(1));
            row.level = row.level.min(stored(idle.after(now, since)));
            into.add(row.level, slot);
        }
    }

    #[inline]
    fn is_evictable(&self, slot: Slot, place: Place) -> bool {
        let row = self.rows[slot.0 as usize];
        row.place == place && !row.protected
    }

    /// A row of this place that the current request does not need, found one by one. The search
    /// goes on where the last one ended, so that a request passes each row a few times at most.
    pub fn search(&mut self, place: Place) -> Option<Slot> {
        while self.searched < self.rows.len() * ROUNDS_PER_REQUEST {
            self.searched += 1;
            self.hand = if self.hand + 1 < self.rows.len() { self.hand + 1 } else { 0 };
            let slot = Slot(u32::try_from(self.hand).expect("slots are numbered in 32 bits"));
            if self.is_evictable(slot, place) {
                return Some(slot);
            }
        }
        None
    }

    /// Recomputes all levels from level and time of the last access.
    pub fn change_levels(&mut self, change: impl Fn(DecayedFrequency, u32) -> DecayedFrequency) {
        for row in &mut self.rows {
            let level = DecayedFrequency(u32::from(row.level) * STORED_STEP);
            row.level = stored(change(level, row.last));
        }
    }

    /// All residents.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        let used = self.rows.iter().zip(0..).filter(|(row, _)| row.place != Place::None);
        used.map(|(_, slot)| Slot(slot))
    }

    /// Frees the memory of free slots from number `slots` on.
    pub fn truncate(&mut self, slots: usize) {
        self.directory.truncate(slots);
        self.rows.truncate(slots);
        self.rows.shrink_to_fit();
        self.hand = 0;
    }
}

/// The lowest rows of a search, lowest first.
struct Candidates {
    lowest: [(u16, Slot); CARRIED],
    considered: usize,
}

impl Default for Candidates {
    fn default() -> Self {
        Self { lowest: [(u16::MAX, Slot(u32::MAX)); CARRIED], considered: 0 }
    }
}

impl Candidates {
    #[inline]
    fn add(&mut self, level: u16, slot: Slot) {
        self.considered += 1;
        let mut next = (level, slot);
        for candidate in &mut self.lowest {
            // Drawn twice.
            if candidate.1 == next.1 {
                return;
            }
            if next < *candidate {
                std::mem::swap(&mut next, candidate);
            }
        }
    }
}

#[inline]
fn stored(level: DecayedFrequency) -> u16 {
    u16::try_from(level.0 / STORED_STEP).unwrap_or(u16::MAX)
}
