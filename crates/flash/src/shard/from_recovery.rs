//! The shard's side of recovery: adopting the groups, regions and entries that were found.

use super::{
    EntryName, GroupState, Region, RegionState, Shard, ShardGroup, region::HeaderOwner,
    region_free::DAMAGED_MAX,
};
use crate::{
    format::{Descriptor, Generation, RegionId},
    index::{GroupId, Location},
    recovery::scanned_state,
};

impl<T> Shard<T> {
    /// The group of this name. If dense and keyed regions share a name, the first one found
    /// decides.
    pub(crate) fn group_named(&mut self, name: &[u8], class: u8, dense: bool) -> GroupId {
        match self.names.get(name) {
            Some(known) => *known,
            None => self.add_group(name.to_vec(), class, dense),
        }
    }

    /// Gives a region to a group. `sealed` is `None` for a scanned region, else whether it ends its
    /// group.
    pub(crate) fn adopt_region(
        &mut self,
        id: RegionId,
        generation: Generation,
        group: GroupId,
        entries: &[Descriptor],
        sealed: Option<bool>,
    ) {
        let owner: &mut ShardGroup<T> = self.groups.get_mut(&group).expect("added before");
        owner.regions.push(id);
        if sealed == Some(true) {
            owner.state = GroupState::Sealed;
        }
        *self.region(id) = Region {
            generation,
            group: Some(group),
            state: if sealed.is_some() { RegionState::Sealed } else { scanned_state(entries) },
            entries: entries.len() as u64,
            bytes: entries.iter().map(|entry| u64::from(entry.length)).sum(),
            footer_entries: entries.len() as u64,
            ..Region::free()
        };
        let Region { entries, bytes, .. } = *self.region(id);
        self.counters.entries += entries;
        self.counters.bytes += bytes;
    }

    /// Quarantines a region that could not be read.
    pub(crate) fn quarantine_unreadable(&mut self, id: RegionId) {
        self.region(id).damaged = DAMAGED_MAX;
        self.region(id).header_owner = HeaderOwner::Unknown;
        self.finish_free(id);
    }

    /// The ordinal in a key, if the group is dense.
    #[expect(
        clippy::option_option,
        reason = "a keyed group, or a dense one without an ordinal in the key"
    )]
    pub(crate) fn ordinal_in(&self, group: GroupId, key: &[u8; 32]) -> Option<Option<u64>> {
        let group = &self.groups[&group];
        group.dense.then(|| group.ordinal_of(key))
    }

    /// Location of an entry.
    pub(crate) fn locate(&self, name: &EntryName) -> Option<Location> {
        let index = self.index.read();
        match name {
            EntryName::Key(key) => index.find(key),
            EntryName::Ordinal(group, ordinal) => index.find_ordinal(*group, *ordinal),
        }
    }

    /// Generation of the region at a location.
    pub(crate) fn generation_at(&self, location: Location) -> Generation {
        self.regions[location.region().0 as usize].generation
    }

    /// Ends recovery: seals the scanned regions, and makes the rest available.
    pub(crate) fn finish_recovery(&mut self) {
        let regions = &self.regions;
        let generation = |id: &RegionId| regions[id.0 as usize].generation;
        for group in self.groups.values_mut() {
            group.regions.sort_by_key(generation);
        }
        self.free.clear();
        for at in 0..self.superblock.geometry.regions {
            match self.region(RegionId(at)).state {
                RegionState::Free => self.free.push_back(RegionId(at)),
                RegionState::Sealing(_) => self.write_staged(RegionId(at)),
                _ => {}
            }
        }
        self.pump_syncs();
    }
}
