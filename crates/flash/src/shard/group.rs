//! Groups and their states: filling, sealed, marked, draining, gone.

use std::time::Duration;

use super::{
    Region, RegionState, RequestError, RequestResult, Shard, ShardAnswer, region::HeaderOwner,
};
use crate::{
    format::{CLASS_EPHEMERAL, GROUP_NAME_MAX, RegionId, is_stream_class},
    index::{EntryKey, GroupId},
};

/// Groups without regions that may be kept beside one group per region.
const EMPTY_MAX: usize = 4096;

/// An ordered set of regions with one durable name, on one device.
#[derive(Debug)]
pub struct ShardGroup<T> {
    pub(super) id: GroupId,
    pub(super) name: Vec<u8>,
    pub(super) class: u8,
    pub(super) dense: bool,
    /// First bytes of the keys of its ordinals.
    pub(super) prefix: [u8; 24],
    pub(super) state: GroupState,
    /// The region that is being filled.
    pub(super) open: Option<RegionId>,
    /// The empty region that follows it, if it has been begun already.
    pub(super) prepared: Option<RegionId>,
    /// All its regions, in the order in which they were begun.
    pub(super) regions: Vec<RegionId>,
    pub(super) pins: u32,
    pub(super) leases: u32,
    /// Seal requests that wait until all its regions are durable.
    pub(super) seal_waiters: Vec<T>,
}

/// State of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// Accepts entries.
    Filling,
    /// Accepts no entries.
    Sealed,
    /// Accepts no entries and no new readers.
    Marked,
    /// Not readable; its name is not free yet.
    Draining,
}

/// What protects a group from eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardKind {
    /// A pin: the group stays.
    Pin,
    /// A reader's lease: the group stays, and remains readable to the reader when it is marked.
    Lease,
}

/// Description of a group on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its number while the device is open.
    pub id: GroupId,
    /// Its durable name.
    pub name: Vec<u8>,
    /// Its lifetime class.
    pub class: u8,
    /// Whether its entries are named by ordinals.
    pub dense: bool,
    /// Its state.
    pub state: GroupState,
    /// Number of its regions.
    pub regions: usize,
    /// Number of its entries.
    pub entries: u64,
    /// Payload bytes of its entries.
    pub bytes: u64,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Number of leases.
    pub leases: u32,
}

/// A group that is drained when its leases end, at `forced_at` at the latest.
#[derive(Debug)]
pub struct ScheduledDrain {
    pub(super) group: GroupId,
    pub(super) forced_at: Duration,
    drain: u32,
}

/// A free request that waits until no header on the device names its group.
#[derive(Debug)]
pub struct Drain<T> {
    token: T,
    group: GroupId,
    regions_left: usize,
    durable: bool,
}

impl<T> ShardGroup<T> {
    pub(super) fn new(id: GroupId, name: Vec<u8>, class: u8, dense: bool) -> Self {
        let mut prefix = [0; 24];
        prefix.copy_from_slice(&blake3::hash(&name).as_bytes()[..24]);
        Self {
            id,
            name,
            class,
            dense,
            prefix,
            state: GroupState::Filling,
            open: None,
            prepared: None,
            regions: Vec::new(),
            pins: 0,
            leases: 0,
            seal_waiters: Vec::new(),
        }
    }

    /// Whether no region of it is evicted.
    pub(super) fn is_stream(&self) -> bool {
        is_stream_class(self.class)
    }

    /// Whether it ends with the process, so that nothing of it has to be durable.
    pub(super) fn is_ephemeral(&self) -> bool {
        self.class == CLASS_EPHEMERAL
    }

    /// The key of an ordinal on the device.
    pub(super) fn key_of(&self, ordinal: u64) -> EntryKey {
        let mut key = [0; 32];
        key[..24].copy_from_slice(&self.prefix);
        key[24..].copy_from_slice(&ordinal.to_le_bytes());
        EntryKey(key)
    }

    /// The ordinal in a key on the device, if the key belongs to this group.
    pub(super) fn ordinal_of(&self, key: &[u8; 32]) -> Option<u64> {
        let (prefix, ordinal) = key.split_last_chunk::<8>().expect("a key has 32 bytes");
        (prefix == self.prefix).then(|| u64::from_le_bytes(*ordinal))
    }

    pub(super) fn may_lose_regions(&self) -> bool {
        self.pins == 0 && self.leases == 0 && self.state != GroupState::Draining
    }

    fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.seal_waiters.is_empty() && self.may_lose_regions()
    }
}

impl<T> Shard<T> {
    pub(super) fn open_group(
        &mut self,
        name: Vec<u8>,
        class: u8,
        dense: bool,
    ) -> Result<GroupId, RequestError> {
        if let Some(known) = self.names.get(&name).map(|id| &self.groups[id]) {
            return match known.state {
                GroupState::Draining => Err(RequestError::Closed),
                _ if known.dense != dense => Err(RequestError::InvalidGroup),
                _ => Ok(known.id),
            };
        }
        if name.len() > GROUP_NAME_MAX {
            return Err(RequestError::InvalidGroup);
        }
        self.forget_empty_groups();
        Ok(self.add_group(name, class, dense))
    }

    /// Promise 6: bounds the number of empty groups. A caller that still uses one gets `Gone`, and
    /// opens it again.
    fn forget_empty_groups(&mut self) {
        let Self { groups, names, regions, index, .. } = self;
        if groups.len() < EMPTY_MAX + regions.len() {
            return;
        }
        let mut index = index.write();
        for (id, _) in groups.extract_if(.., |_, group| group.is_empty()) {
            index.remove_group(id);
        }
        drop(index);
        names.retain(|_, id| groups.contains_key(id));
        self.forget_header_owners();
    }

    /// A header may name a group that has been removed. If the group is opened again, it gets
    /// another number.
    fn forget_header_owners(&mut self) {
        let Self { groups, regions, .. } = self;
        for region in regions {
            if let HeaderOwner::Group(group) = region.header_owner
                && !groups.contains_key(&group)
            {
                region.header_owner = HeaderOwner::Unknown;
            }
        }
    }

    /// Adds a group that does not exist yet.
    pub(crate) fn add_group(&mut self, name: Vec<u8>, class: u8, dense: bool) -> GroupId {
        let id = GroupId(self.groups_opened);
        self.groups_opened += 1;
        self.names.insert(name.clone(), id);
        self.groups.insert(id, ShardGroup::new(id, name, class, dense));
        id
    }

    pub(super) fn group_info(&self, group: &ShardGroup<T>) -> GroupInfo {
        let regions = group.regions.iter().map(|id| &self.regions[id.0 as usize]);
        GroupInfo {
            id: group.id,
            name: group.name.clone(),
            class: group.class,
            dense: group.dense,
            state: group.state,
            regions: group.regions.len(),
            entries: regions.clone().map(|region| region.entries).sum(),
            bytes: regions.map(|region| region.bytes).sum(),
            pinned: group.pins > 0,
            leases: group.leases,
        }
    }

    /// Answers the seal requests of a group if all its regions are durable, or with an error.
    pub(super) fn answer_seals(&mut self, id: GroupId, failed: Option<&RequestError>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let durable =
            |id: &RegionId| matches!(self.regions[id.0 as usize].state, RegionState::Sealed);
        if failed.is_some() || group.regions.iter().all(durable) {
            let outcome = || failed.cloned().map_or(Ok(ShardAnswer::Done), Err);
            self.answers.extend(group.seal_waiters.drain(..).map(|token| (token, outcome())));
        }
    }

    /// Answers the flush requests whose regions have all been sealed or given up.
    pub(super) fn answer_flushes(&mut self) {
        let Self { pending_flushes, regions, answers, .. } = self;
        let done = pending_flushes.extract_if(.., |(_, awaited)| {
            awaited.retain(|(id, generation)| {
                let region = &regions[id.0 as usize];
                region.generation == *generation && region.is_sealing()
            });
            awaited.is_empty()
        });
        answers.extend(done.map(|(token, _)| (token, Ok(ShardAnswer::Done))));
    }

    pub(super) fn mark_group(&mut self, id: GroupId) -> RequestResult {
        let group = self.groups.get_mut(&id).ok_or(RequestError::Gone)?;
        if group.state != GroupState::Draining {
            group.state = GroupState::Marked;
        }
        Ok(ShardAnswer::Done)
    }

    pub(super) fn acquire_guard(&mut self, id: GroupId, guard: GuardKind) -> RequestResult {
        let group = self.groups.get_mut(&id).ok_or(RequestError::Gone)?;
        match (guard, group.state) {
            (_, GroupState::Draining) => return Err(RequestError::Gone),
            (GuardKind::Lease, GroupState::Marked) => return Err(RequestError::Closed),
            // The group is freed anyway when its leases end.
            (GuardKind::Pin, _)
                if self.scheduled_drains.iter().any(|scheduled| scheduled.group == id) =>
            {
                return Err(RequestError::Closed);
            }
            (GuardKind::Lease, _) => group.leases += 1,
            (GuardKind::Pin, _) => group.pins += 1,
        }
        Ok(ShardAnswer::Done)
    }

    pub(super) fn release_guard(&mut self, id: GroupId, guard: GuardKind) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match guard {
            GuardKind::Lease => group.leases = group.leases.saturating_sub(1),
            GuardKind::Pin => group.pins = group.pins.saturating_sub(1),
        }
        self.start_due_drains();
    }

    pub(super) fn free_group(&mut self, token: T, id: GroupId, lease_timeout: Duration) {
        let error = match self.groups.get_mut(&id) {
            None => Some(RequestError::Gone),
            Some(group) if group.state == GroupState::Draining => Some(RequestError::Gone),
            Some(group) if group.pins > 0 => Some(RequestError::Pinned),
            Some(group) => {
                group.state = GroupState::Marked;
                None
            }
        };
        if let Some(error) = error {
            return self.answers.push((token, Err(error)));
        }
        let drain = self.drains_begun;
        self.drains_begun += 1;
        self.drains.insert(drain, Drain { token, group: id, regions_left: 0, durable: true });
        self.scheduled_drains.push(ScheduledDrain {
            group: id,
            forced_at: self.now.saturating_add(lease_timeout),
            drain,
        });
        self.start_due_drains();
    }

    /// Drains the groups whose leases have ended or timed out.
    pub(super) fn start_due_drains(&mut self) {
        let Self { groups, now, .. } = self;
        let due = |scheduled: &mut ScheduledDrain| {
            let leases = groups.get(&scheduled.group).map_or(0, |group| group.leases);
            leases == 0 || scheduled.forced_at <= *now
        };
        let due: Vec<_> = self.scheduled_drains.extract_if(.., due).collect();
        for ScheduledDrain { group, drain, .. } in due {
            self.start_drain(group, drain);
        }
    }

    fn start_drain(&mut self, id: GroupId, drain: u32) {
        let waiting = self.drains.get_mut(&drain).expect("kept until it is answered");
        let group = self.groups.get_mut(&id).filter(|group| group.state != GroupState::Draining);
        let Some(group) = group else {
            // Another request has freed it already.
            let waiting = self.drains.remove(&drain).expect("just seen");
            return self.answers.push((waiting.token, Err(RequestError::Gone)));
        };
        group.state = GroupState::Draining;
        let regions = group.regions.clone();
        if group.is_ephemeral() {
            // A restart finds nothing of it, so no header has to be cleared.
            let seal_waiters = std::mem::take(&mut group.seal_waiters);
            let gone = |token| (token, Err(RequestError::Gone));
            self.answers.extend(seal_waiters.into_iter().map(gone));
            waiting.regions_left = regions.len() + 1;
            for region in regions {
                self.free_region(region, None);
                self.await_free(region, drain);
            }
            self.index.write().remove_group(id);
            return self.on_region_drained(drain, true);
        }
        let may_name_group = |region: &Region| match region.header_owner {
            HeaderOwner::None => false,
            HeaderOwner::Group(group) => group == id,
            HeaderOwner::Unknown => true,
        };
        let all = (0..).map(RegionId).zip(&self.regions);
        let named: Vec<RegionId> =
            all.filter(|(_, region)| may_name_group(region)).map(|(at, _)| at).collect();
        let seal_waiters = std::mem::take(&mut group.seal_waiters);
        self.answers.extend(seal_waiters.into_iter().map(|token| (token, Err(RequestError::Gone))));
        // Counts one more than the regions, so that the drain cannot end before all of them have
        // begun.
        waiting.regions_left = regions.len() + named.len() + 1;
        self.index.write().remove_group(id);
        for region in named {
            self.clear_header(region, drain);
        }
        for region in regions {
            self.free_region(region, Some(drain));
        }
        self.on_region_drained(drain, true);
    }

    /// One region less to wait for.
    pub(super) fn on_region_drained(&mut self, id: u32, durable: bool) {
        let drain = self.drains.get_mut(&id).expect("kept until it is answered");
        drain.regions_left -= 1;
        drain.durable &= durable;
        if drain.regions_left > 0 {
            return;
        }
        let Drain { token, group, durable, .. } = self.drains.remove(&id).expect("just seen");
        let group = self.groups.remove(&group).expect("kept until it is drained");
        self.names.remove(&group.name);
        self.forget_header_owners();
        self.answers
            .push((token, if durable { Ok(ShardAnswer::Done) } else { Err(RequestError::Failed) }));
    }
}
