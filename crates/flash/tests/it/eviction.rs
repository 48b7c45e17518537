//! Eviction policies: what the engine reports to them, and the region that they name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use forebay_flash::{
    RegionRef, RequestError,
    format::RegionId,
    index::GroupId,
    shard::{Candidate, EntryName, Eviction, ShardAnswer, ShardRequest},
};

use crate::world::{World, content, key};

/// What a policy was told, and the region that it names next.
#[derive(Debug, Default)]
struct Account {
    sealed: BTreeSet<RegionRef>,
    freed: Vec<RegionRef>,
    named: Option<RegionRef>,
    asked: u32,
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Account>>);

impl Eviction for Recorder {
    fn named_victim(&mut self) -> Option<RegionRef> {
        self.0.lock().unwrap().named.take()
    }

    fn on_sealed(&mut self, region: RegionRef) {
        assert!(self.0.lock().unwrap().sealed.insert(region), "sealed twice");
    }

    fn on_freed(&mut self, region: RegionRef) {
        let mut account = self.0.lock().unwrap();
        account.sealed.remove(&region);
        account.freed.push(region);
    }

    fn victim(&mut self, candidates: &mut dyn Iterator<Item = Candidate<'_>>) -> Option<RegionId> {
        self.0.lock().unwrap().asked += 1;
        candidates.min_by_key(|candidate| candidate.generation).map(|candidate| candidate.region)
    }
}

fn append(world: &mut World, group: GroupId, number: u64) -> Result<RegionRef, RequestError> {
    let appended = world.append(group, EntryName::Key(key(number)), &content(number, 300_000));
    match appended {
        Ok(ShardAnswer::Appended { region }) => Ok(region),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    }
}

fn is_there(world: &mut World, number: u64) -> bool {
    world.bytes(EntryName::Key(key(number))).is_some()
}

#[test]
fn an_append_names_its_region_and_every_region_that_goes_is_reported() {
    let recorder = Recorder::default();
    let mut world = World::with_eviction(1, 6, Box::new(recorder.clone()));
    let group = world.group("g", false);
    let mut entries: BTreeMap<u64, RegionRef> = BTreeMap::new();
    for number in 0..60 {
        entries.insert(number, append(&mut world, group, number).unwrap());
        world.settle();
        let freed = recorder.0.lock().unwrap().freed.clone();
        entries.retain(|_, region| !freed.contains(region));
        for earlier in 0..=number {
            let is_known = entries.contains_key(&earlier);
            assert_eq!(is_there(&mut world, earlier), is_known, "entry {earlier} of {number}");
        }
    }
    world.request(ShardRequest::Flush).unwrap();
    let regions: BTreeSet<RegionRef> = entries.values().copied().collect();
    assert_eq!(recorder.0.lock().unwrap().sealed, regions);
    let free = ShardRequest::Free { group, lease_timeout: std::time::Duration::ZERO };
    world.request(free).unwrap();
    assert_eq!(recorder.0.lock().unwrap().sealed, BTreeSet::new(), "freed with its group");
}

#[test]
fn the_named_region_is_evicted_and_an_invalid_name_is_ignored() {
    let recorder = Recorder::default();
    let mut world = World::with_eviction(1, 6, Box::new(recorder.clone()));
    let group = world.group("g", false);
    let mut regions = Vec::new();
    let mut number = 0;
    while recorder.0.lock().unwrap().freed.is_empty() {
        regions.push((number, append(&mut world, group, number).unwrap()));
        world.settle();
        number += 1;
    }
    let is_asked = recorder.0.lock().unwrap().asked;
    assert_eq!(is_asked, 1, "no region was named");

    let sealed = recorder.0.lock().unwrap().sealed.clone();
    let named = *sealed.iter().nth(2).unwrap();
    recorder.0.lock().unwrap().named = Some(named);
    while recorder.0.lock().unwrap().freed.len() < 2 {
        append(&mut world, group, number).unwrap();
        world.settle();
        number += 1;
    }
    assert_eq!(recorder.0.lock().unwrap().freed[1], named);
    assert_eq!(recorder.0.lock().unwrap().asked, 1);
    for (number, region) in regions.iter().filter(|(_, region)| *region == named) {
        assert!(!is_there(&mut world, *number), "{region:?}");
    }

    // The region has another generation by now.
    recorder.0.lock().unwrap().named = Some(named);
    while recorder.0.lock().unwrap().freed.len() < 3 {
        append(&mut world, group, number).unwrap();
        world.settle();
        number += 1;
    }
    assert_eq!(recorder.0.lock().unwrap().asked, 2, "the others were asked for");
}
