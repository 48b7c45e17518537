//! Slots: the stream buffer of one reader, memory for `depth` blocks.
//!
//! Each slot is a part of its own of the store's memory. A block that is held after its reader is
//! gone keeps one slot, and not the others.

use std::sync::Arc;

use forebay_flash::buffers::{Buffer, BufferPool};

/// The slots of a reader.
pub(crate) struct Slots {
    slots: Vec<Arc<BufferPool>>,
    length: usize,
}

impl Slots {
    /// Reserves slots for `depth` blocks. `None` if there is too little memory.
    pub(crate) fn reserve(memory: &Arc<BufferPool>, depth: u32, length: usize) -> Option<Self> {
        // Not more than there can be, whatever the depth.
        if length.saturating_mul(depth as usize) > memory.size() {
            return None;
        }
        let slots = (0..depth).map(|_| memory.carve(length)).collect::<Option<_>>()?;
        Some(Self { slots, length })
    }

    /// A free slot.
    pub(crate) fn take(&self) -> Option<Buffer> {
        self.slots.iter().find_map(|slot| slot.take(self.length))
    }

    /// Adds a function that is called when a slot is released after [`Slots::take`] found none.
    pub(crate) fn on_release(&self, waker: impl Fn() + Send + Sync + Clone + 'static) {
        for slot in &self.slots {
            slot.on_release(waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_held_keeps_its_own_slot_alone() {
        let memory = BufferPool::new(8 * 4096).unwrap();
        let slots = Slots::reserve(&memory, 4, 2 * 4096).unwrap();
        assert!(Slots::reserve(&memory, 1, 4096).is_none(), "all is reserved");
        let held: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(held.len(), 4);
        let last = held.into_iter().next_back().unwrap().freeze();
        drop(slots);
        assert_eq!(memory.free_bytes(), 6 * 4096);
        assert!(Slots::reserve(&memory, u32::MAX, 2 * 4096).is_none());
        assert!(Slots::reserve(&memory, 4, 2 * 4096).is_none());
        assert_eq!(memory.free_bytes(), 6 * 4096, "a refused reservation keeps nothing");
        drop(last);
        assert!(Slots::reserve(&memory, 4, 2 * 4096).is_some());
    }
}
