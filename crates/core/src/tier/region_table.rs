//! Region table: what a policy knows about each region, by its number.
//!
//! Reports may be late: a segment may be reported as stored after its region was freed. So each
//! region remembers its last generation, and reports on an earlier one are ignored and counted.

use super::types::RegionId;

#[derive(Debug, Default)]
struct Known<T> {
    /// The latest generation that was reported.
    generation: Option<u64>,
    /// What the policy keeps while the region holds segments.
    state: Option<T>,
    is_sealed: bool,
}

/// All regions.
#[derive(Debug)]
pub(super) struct RegionTable<T> {
    regions: Vec<Known<T>>,
    used: u32,
    pub unknown: u64,
}

impl<T> RegionTable<T> {
    /// A table of `regions` free regions.
    pub fn new(regions: u32) -> Self {
        let free = || Known { generation: None, state: None, is_sealed: false };
        let regions = std::iter::repeat_with(free).take(regions as usize).collect();
        Self { regions, used: 0, unknown: 0 }
    }

    /// Regions that hold segments.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Number of regions.
    pub fn len(&self) -> u32 {
        u32::try_from(self.regions.len()).expect("made from a 32-bit number")
    }

    /// State of a region in which a segment was stored; `new` makes it for the first one.
    pub fn stored(&mut self, region: RegionId, new: impl FnOnce() -> T) -> Option<&mut T> {
        let Some(known) = self.regions.get_mut(region.index as usize) else {
            self.unknown += 1;
            return None;
        };
        let freed = known.generation == Some(region.generation) && known.state.is_none();
        if freed || known.generation.is_some_and(|latest| latest > region.generation) {
            self.unknown += 1;
            return None;
        }
        if known.generation != Some(region.generation) {
            self.used += u32::from(known.state.is_none());
            *known =
                Known { generation: Some(region.generation), state: Some(new()), is_sealed: false };
        }
        known.state.as_mut()
    }

    /// State of a region that holds segments.
    pub fn get_mut(&mut self, region: RegionId) -> Option<&mut T> {
        let known = self.regions.get_mut(region.index as usize);
        let known = known.filter(|known| known.generation == Some(region.generation));
        let state = known.and_then(|known| known.state.as_mut());
        if state.is_none() {
            self.unknown += 1;
        }
        state
    }

    /// State of a region by its number, and whether it is sealed.
    pub fn at(&self, index: u32) -> Option<(RegionId, &T, bool)> {
        let known = self.regions.get(index as usize)?;
        let id = RegionId { index, generation: known.generation? };
        known.state.as_ref().map(|state| (id, state, known.is_sealed))
    }

    /// State of a region by its number.
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.regions.get_mut(index as usize)?.state.as_mut()
    }

    /// Marks a region as sealed. Returns its state if it was open.
    pub fn seal(&mut self, region: RegionId) -> Option<&mut T> {
        self.get_mut(region)?;
        let known = &mut self.regions[region.index as usize];
        let was_sealed = std::mem::replace(&mut known.is_sealed, true);
        known.state.as_mut().filter(|_| !was_sealed)
    }

    /// Frees a region. Returns its state, and whether it was sealed.
    pub fn free(&mut self, region: RegionId) -> Option<(T, bool)> {
        self.get_mut(region)?;
        let known = &mut self.regions[region.index as usize];
        self.used -= 1;
        known.state.take().map(|state| (state, known.is_sealed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(index: u32, generation: u64) -> RegionId {
        RegionId { index, generation }
    }

    #[test]
    fn reports_on_an_earlier_generation_are_ignored_and_counted() {
        let mut table = RegionTable::new(2);
        assert_eq!(table.stored(region(1, 5), || 7), Some(&mut 7));
        assert_eq!(table.stored(region(1, 5), || 8), Some(&mut 7), "the same use of the region");
        assert_eq!((table.used(), table.unknown), (1, 0));
        assert!(table.stored(region(1, 4), || 9).is_none() && table.free(region(1, 4)).is_none());
        assert_eq!(table.free(region(1, 5)), Some((7, false)));
        assert!(table.stored(region(1, 5), || 9).is_none(), "late: the region was freed");
        assert!(table.seal(region(1, 5)).is_none() && table.stored(region(2, 1), || 9).is_none());
        assert_eq!((table.used(), table.unknown), (0, 5));
        assert_eq!(table.stored(region(1, 6), || 10), Some(&mut 10));
        assert_eq!(table.stored(region(1, 8), || 11), Some(&mut 11), "7 was freed unreported");
        assert_eq!(table.used(), 1);
        assert!(table.seal(region(1, 8)).is_some() && table.seal(region(1, 8)).is_none());
        assert_eq!(table.free(region(1, 8)), Some((11, true)));
    }
}
