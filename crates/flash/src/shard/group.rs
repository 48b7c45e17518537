//! The life of groups: filling, sealed, marked, draining, gone.

use std::time::Duration;

use super::{Answer, Outcome, Refusal, Region, RegionState, Shard, region::Former};
use crate::{
    index::{GroupId, Key},
    layout::{GROUP_NAME_MAX, RegionId},
};

/// So many groups may be known that have nothing on the device.
const EMPTY_MAX: usize = 4096;

/// An ordered set of regions with one durable name.
#[derive(Debug)]
pub struct Group<T> {
    pub(super) id: GroupId,
    pub(super) name: Vec<u8>,
    pub(super) class: u8,
    pub(super) dense: bool,
    /// What the keys of its ordinals begin with.
    pub(super) prefix: [u8; 24],
    pub(super) life: Life,
    /// The region that takes its entries.
    pub(super) open: Option<RegionId>,
    /// All of them, in the order in which they were begun.
    pub(super) regions: Vec<RegionId>,
    pub(super) pins: u32,
    pub(super) leases: u32,
    /// Who waits until all of it is durable.
    pub(super) sealers: Vec<T>,
}

/// Where in its life a group is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It takes entries.
    Filling,
    /// It takes no more.
    Sealed,
    /// It takes no new readers either.
    Marked,
    /// Nothing of it can be found any more; its name is not free yet.
    Draining,
}

/// What a group is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It must stay.
    Pin,
    /// Somebody reads it, and goes on when it is marked.
    Lease,
}

/// What can be told of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupFacts {
    /// Its number while the device is open.
    pub id: GroupId,
    /// Its durable name.
    pub name: Vec<u8>,
    /// Its lifetime class.
    pub class: u8,
    /// Whether its keys are ordinals.
    pub dense: bool,
    /// Where in its life it is.
    pub life: Life,
    /// How many regions it has.
    pub regions: usize,
    /// How many entries are in them.
    pub entries: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Whether it is pinned.
    pub pinned: bool,
    /// How many leases there are.
    pub leases: u32,
}

/// A group that goes as soon as its leases end, or at a time.
#[derive(Debug)]
pub struct Draining {
    pub(super) group: GroupId,
    pub(super) forced_at: Duration,
    drain: u32,
}

/// A request that waits until all regions of a group are free for good.
#[derive(Debug)]
pub struct Drain<T> {
    token: T,
    group: GroupId,
    left: usize,
    durable: bool,
}

impl<T> Group<T> {
    pub(super) fn new(id: GroupId, name: Vec<u8>, class: u8, dense: bool) -> Self {
        let mut prefix = [0; 24];
        prefix.copy_from_slice(&blake3::hash(&name).as_bytes()[..24]);
        let (open, regions, sealers) = (None, Vec::new(), Vec::new());
        let (life, pins, leases) = (Life::Filling, 0, 0);
        Self { id, name, class, dense, prefix, life, open, regions, pins, leases, sealers }
    }

    /// The key on the device of one of its ordinals.
    pub(super) fn key_of(&self, ordinal: u64) -> Key {
        let mut key = [0; 32];
        key[..24].copy_from_slice(&self.prefix);
        key[24..].copy_from_slice(&ordinal.to_le_bytes());
        Key(key)
    }

    /// The ordinal in a key on the device, if it is one of its own.
    pub(super) fn ordinal_of(&self, key: &[u8; 32]) -> Option<u64> {
        let (prefix, ordinal) = key.split_last_chunk::<8>().expect("longer");
        (prefix == self.prefix).then(|| u64::from_le_bytes(*ordinal))
    }

    pub(super) fn may_lose_regions(&self) -> bool {
        self.pins == 0 && self.leases == 0 && self.life != Life::Draining
    }

    fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.sealers.is_empty() && self.may_lose_regions()
    }
}

impl<T> Shard<T> {
    pub(super) fn open_group(
        &mut self,
        name: Vec<u8>,
        class: u8,
        dense: bool,
    ) -> Result<GroupId, Refusal> {
        if let Some(known) = self.names.get(&name).map(|id| &self.groups[id]) {
            return match known.life {
                Life::Draining => Err(Refusal::Closed),
                _ if known.dense != dense => Err(Refusal::Group),
                _ => Ok(known.id),
            };
        }
        if name.len() > GROUP_NAME_MAX {
            return Err(Refusal::Group);
        }
        self.forget_empty_groups();
        Ok(self.add_group(name, class, dense))
    }

    /// Promise 6: there can be any number of names, and each would stay. Whoever still uses a group that is
    /// forgotten here is told that it is gone, and opens it again.
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
        self.forget_formers();
    }

    /// A header may name a group that will have another number.
    fn forget_formers(&mut self) {
        let Self { groups, regions, .. } = self;
        for region in regions {
            if let Former::Group(group) = region.former
                && !groups.contains_key(&group)
            {
                region.former = Former::Unknown;
            }
        }
    }

    /// Makes a group that is not there yet.
    pub(crate) fn add_group(&mut self, name: Vec<u8>, class: u8, dense: bool) -> GroupId {
        let id = GroupId(self.groups_opened);
        self.groups_opened += 1;
        self.names.insert(name.clone(), id);
        self.groups.insert(id, Group::new(id, name, class, dense));
        id
    }

    pub(super) fn facts(&self, group: &Group<T>) -> GroupFacts {
        let regions = group.regions.iter().map(|id| &self.regions[id.0 as usize]);
        GroupFacts {
            id: group.id,
            name: group.name.clone(),
            class: group.class,
            dense: group.dense,
            life: group.life,
            regions: group.regions.len(),
            entries: regions.clone().map(|region| region.entries).sum(),
            bytes: regions.map(|region| region.bytes).sum(),
            pinned: group.pins > 0,
            leases: group.leases,
        }
    }

    /// Answers those who wait until a group is durable, if it is, or if it never will be.
    pub(super) fn answer_sealers(&mut self, id: GroupId, failed: Option<&Refusal>) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let durable =
            |id: &RegionId| matches!(self.regions[id.0 as usize].state, RegionState::Sealed);
        if failed.is_some() || group.regions.iter().all(durable) {
            let outcome = || failed.cloned().map_or(Ok(Answer::Done), Err);
            self.answers.extend(group.sealers.drain(..).map(|token| (token, outcome())));
        }
    }

    /// Answers those for whom everything has been sealed that was being filled when they asked.
    pub(super) fn answer_flushers(&mut self) {
        let Self { flushers, regions, answers, .. } = self;
        let done = flushers.extract_if(.., |(_, waits)| {
            waits.retain(|(id, generation)| {
                let region = &regions[id.0 as usize];
                region.generation == *generation && region.is_sealing()
            });
            waits.is_empty()
        });
        answers.extend(done.map(|(token, _)| (token, Ok(Answer::Done))));
    }

    pub(super) fn mark_group(&mut self, id: GroupId) -> Outcome {
        let group = self.groups.get_mut(&id).ok_or(Refusal::Gone)?;
        if group.life != Life::Draining {
            group.life = Life::Marked;
        }
        Ok(Answer::Done)
    }

    pub(super) fn hold(&mut self, id: GroupId, hold: Hold) -> Outcome {
        let group = self.groups.get_mut(&id).ok_or(Refusal::Gone)?;
        match (hold, group.life) {
            (_, Life::Draining) => return Err(Refusal::Gone),
            (Hold::Lease, Life::Marked) => return Err(Refusal::Closed),
            // It would go all the same, when its leases end.
            (Hold::Pin, _) if self.draining.iter().any(|draining| draining.group == id) => {
                return Err(Refusal::Closed);
            }
            (Hold::Lease, _) => group.leases += 1,
            (Hold::Pin, _) => group.pins += 1,
        }
        Ok(Answer::Done)
    }

    pub(super) fn let_go(&mut self, id: GroupId, hold: Hold) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match hold {
            Hold::Lease => group.leases = group.leases.saturating_sub(1),
            Hold::Pin => group.pins = group.pins.saturating_sub(1),
        }
        self.force_drains();
    }

    pub(super) fn free_group(&mut self, token: T, id: GroupId, patience: Duration) {
        let refusal = match self.groups.get_mut(&id) {
            None => Some(Refusal::Gone),
            Some(group) if group.life == Life::Draining => Some(Refusal::Gone),
            Some(group) if group.pins > 0 => Some(Refusal::Pinned),
            Some(group) => {
                group.life = Life::Marked;
                None
            }
        };
        if let Some(refusal) = refusal {
            return self.answers.push((token, Err(refusal)));
        }
        let drain = self.drains_begun;
        self.drains_begun += 1;
        self.drains.insert(drain, Drain { token, group: id, left: 0, durable: true });
        self.draining.push(Draining {
            group: id,
            forced_at: self.now.saturating_add(patience),
            drain,
        });
        self.force_drains();
    }

    /// Drains what nobody leases any more, and what has been leased for too long.
    pub(super) fn force_drains(&mut self) {
        let Self { groups, now, .. } = self;
        let due = |draining: &mut Draining| {
            let leases = groups.get(&draining.group).map_or(0, |group| group.leases);
            leases == 0 || draining.forced_at <= *now
        };
        let due: Vec<_> = self.draining.extract_if(.., due).collect();
        for Draining { group, drain, .. } in due {
            self.drain(group, drain);
        }
    }

    fn drain(&mut self, id: GroupId, drain: u32) {
        let waiting = self.drains.get_mut(&drain).expect("until it is answered");
        let group = self.groups.get_mut(&id).filter(|group| group.life != Life::Draining);
        let Some(group) = group else {
            // Two asked for it.
            let waiting = self.drains.remove(&drain).expect("just seen");
            return self.answers.push((waiting.token, Err(Refusal::Gone)));
        };
        group.life = Life::Draining;
        let regions = group.regions.clone();
        let former = |region: &Region| match region.former {
            Former::Nobody => false,
            Former::Group(group) => group == id,
            Former::Unknown => true,
        };
        let all = (0..).map(RegionId).zip(&self.regions);
        let named: Vec<RegionId> =
            all.filter(|(_, region)| former(region)).map(|(at, _)| at).collect();
        let sealers = std::mem::take(&mut group.sealers);
        self.answers.extend(sealers.into_iter().map(|token| (token, Err(Refusal::Gone))));
        // One more, so that it is not over before all have begun.
        waiting.left = regions.len() + named.len() + 1;
        self.index.write().remove_group(id);
        for region in named {
            self.unname(region, drain);
        }
        for region in regions {
            self.leave(region, Some(drain));
        }
        self.drained(drain, true);
    }

    /// One region less.
    pub(super) fn drained(&mut self, id: u32, durable: bool) {
        let drain = self.drains.get_mut(&id).expect("until it is answered");
        drain.left -= 1;
        drain.durable &= durable;
        if drain.left > 0 {
            return;
        }
        let Drain { token, group, durable, .. } = self.drains.remove(&id).expect("just seen");
        let group = self.groups.remove(&group).expect("until it is drained");
        self.names.remove(&group.name);
        self.forget_formers();
        self.answers.push((token, if durable { Ok(Answer::Done) } else { Err(Refusal::Failed) }));
    }
}
