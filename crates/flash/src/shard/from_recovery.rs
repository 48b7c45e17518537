//! What a shard takes over from recovery.

use super::{Group, Life, Name, Region, RegionState, Shard, leaving::DAMAGED_MAX, region::Former};
use crate::{
    index::{GroupId, Location},
    layout::{Descriptor, Generation, RegionId},
    recovery::scanned,
};

impl<T> Shard<T> {
    /// The group of this name and kind; of two kinds with one name, the first found counts.
    pub(crate) fn group_named(&mut self, name: &[u8], class: u8, dense: bool) -> GroupId {
        match self.names.get(name) {
            Some(known) => *known,
            None => self.add_group(name.to_vec(), class, dense),
        }
    }

    /// Gives a region to a group.
    pub(crate) fn take_up(
        &mut self,
        id: RegionId,
        generation: Generation,
        group: GroupId,
        entries: &[Descriptor],
        sealed: Option<bool>,
    ) {
        let owner: &mut Group<T> = self.groups.get_mut(&group).expect("just made");
        owner.regions.push(id);
        if sealed == Some(true) {
            owner.life = Life::Sealed;
        }
        *self.region(id) = Region {
            generation,
            group: Some(group),
            state: if sealed.is_some() { RegionState::Sealed } else { scanned(entries) },
            entries: entries.len() as u64,
            bytes: entries.iter().map(|entry| u64::from(entry.length)).sum(),
            written: entries.len() as u64,
            ..Region::free()
        };
        let Region { entries, bytes, .. } = *self.region(id);
        self.counters.entries += entries;
        self.counters.bytes += bytes;
    }

    /// A region that could not even be read is not used for a while.
    pub(crate) fn distrust(&mut self, id: RegionId) {
        self.region(id).damaged = DAMAGED_MAX;
        self.region(id).former = Former::Unknown;
        self.set_free(id);
    }

    /// The ordinal in a key, if the group is dense.
    #[expect(clippy::option_option, reason = "not dense, or dense and no ordinal of its own")]
    pub(crate) fn ordinal_in(&self, group: GroupId, key: &[u8; 32]) -> Option<Option<u64>> {
        let group = &self.groups[&group];
        group.dense.then(|| group.ordinal_of(key))
    }

    /// Where an entry is.
    pub(crate) fn locate(&self, name: &Name) -> Option<Location> {
        let index = self.index.read();
        match name {
            Name::Key(key) => index.find(key),
            Name::Ordinal(group, ordinal) => index.find_ordinal(*group, *ordinal),
        }
    }

    /// The life of the region at a place.
    pub(crate) fn generation_at(&self, location: Location) -> Generation {
        self.regions[location.region().0 as usize].generation
    }

    /// All is taken up: what was not sealed goes on being sealed, and the rest is free.
    pub(crate) fn begin_after_recovery(&mut self) {
        let regions = &self.regions;
        let generation = |id: &RegionId| regions[id.0 as usize].generation;
        for group in self.groups.values_mut() {
            group.regions.sort_by_key(generation);
        }
        self.free.clear();
        for at in 0..self.superblock.geometry.regions {
            match self.region(RegionId(at)).state {
                RegionState::Free => self.free.push_back(RegionId(at)),
                RegionState::Sealing(_) => self.write_pieces(RegionId(at)),
                _ => {}
            }
        }
        self.pump_syncs();
    }
}
