//! Flash model: a driver of a [`Policy`] without bytes, for the simulator and for tests.
//!
//! It has memory and regions, appends each stream to a region of its own, and evicts as the
//! contract says. What is fetched is stored at once. With regions of one segment, segments are
//! evicted one by one; that is how the cost of regions is measured.

use std::time::Duration;

use super::{
    Policy, Settings,
    types::{Decision, Place, RegionId, Request, Resident, Rewrite, Segment, Stream},
};
use crate::util::stable_hash::StableMap;

/// What a request caused on flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Bytes written.
    pub bytes: u64,
    /// Segments written.
    pub segments: u64,
    /// Segments of these that were on flash before.
    pub rewritten: u64,
    /// Segments that are no longer resident.
    pub dropped: u64,
}

#[derive(Debug, Clone, Default)]
struct Region {
    generation: u64,
    bytes: u64,
    residents: Vec<Resident>,
}

/// Memory, regions, and the index of what is in them.
#[derive(Debug)]
pub struct FlashModel {
    region_bytes: u64,
    regions: Vec<Region>,
    free: Vec<u32>,
    open: StableMap<Stream, u32>,
    /// Region of each segment on flash.
    index: StableMap<Segment, u32>,
    memory: StableMap<Segment, Resident>,
    memory_bytes: u64,
    /// The last generation of any region.
    generation: u64,
    rewrites: Vec<Rewrite>,
}

impl FlashModel {
    /// Empty, with the capacity of these settings.
    pub fn new(settings: &Settings) -> Self {
        Self {
            region_bytes: settings.region.0,
            regions: vec![Region::default(); settings.regions as usize],
            free: (0..settings.regions).rev().collect(),
            open: StableMap::default(),
            index: StableMap::default(),
            memory: StableMap::default(),
            memory_bytes: 0,
            generation: 0,
            rewrites: Vec::new(),
        }
    }

    /// Where a segment is.
    pub fn place(&self, segment: Segment) -> Place {
        match self.index.get(&segment) {
            Some(index) => Place::Flash(self.id(*index)),
            None if self.memory.contains_key(&segment) => Place::Memory,
            None => Place::Absent,
        }
    }

    /// Number of segments in memory and on flash.
    pub fn len(&self) -> usize {
        self.index.len() + self.memory.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Regions that hold segments, with those segments.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, &[Resident])> {
        let used = (0_u32..).zip(&self.regions).filter(|(_, region)| !region.residents.is_empty());
        used.map(|(index, region)| (self.id(index), &region.residents[..]))
    }

    /// Number of regions that hold segments.
    pub fn regions_used(&self) -> usize {
        self.regions.len() - self.free.len()
    }

    /// Serves a read: asks the policy, fetches and stores.
    pub fn read(
        &mut self,
        policy: &mut dyn Policy,
        now: Duration,
        request: &Request,
    ) -> (Decision, Written) {
        let mut written = Written::default();
        let decision = policy.on_request(now, request, self.place(request.segment));
        match decision {
            Decision::Hit | Decision::Pass => {}
            Decision::Memory => {
                let resident = request.resident();
                self.memory.insert(resident.segment, resident);
                self.memory_bytes += u64::from(resident.length);
                policy.on_stored(now, &resident, Place::Memory);
                while let Some(departure) = policy.leave_memory(now) {
                    let resident = departure.resident;
                    self.memory.remove(&resident.segment);
                    self.memory_bytes -= u64::from(resident.length);
                    match departure.to {
                        Some(stream) => self.append(policy, now, &resident, stream, &mut written),
                        None => written.dropped += 1,
                    }
                }
            }
            Decision::Flash(stream) => {
                self.append(policy, now, &request.resident(), stream, &mut written);
            }
        }
        (decision, written)
    }

    /// Appends a segment to the open region of a stream.
    pub fn append(
        &mut self,
        policy: &mut dyn Policy,
        now: Duration,
        resident: &Resident,
        stream: Stream,
        written: &mut Written,
    ) {
        let length = u64::from(resident.length);
        let is_full = |region: &Region| region.bytes + length > self.region_bytes;
        if let Some(index) = self.open.get(&stream).copied()
            && is_full(&self.regions[index as usize])
        {
            self.seal(policy, now, stream);
        }
        if length > self.region_bytes || !self.open(policy, now, stream, written) {
            policy.on_not_stored(now, resident);
            written.dropped += 1;
            return;
        }
        let index = self.open[&stream];
        let region = &mut self.regions[index as usize];
        region.bytes += length;
        region.residents.push(*resident);
        self.index.insert(resident.segment, index);
        (written.bytes, written.segments) = (written.bytes + length, written.segments + 1);
        policy.on_stored(now, resident, Place::Flash(self.id(index)));
        // The next segment needs another region: the full one may be evicted from now on.
        if self.regions[index as usize].bytes + length > self.region_bytes {
            self.seal(policy, now, stream);
        }
    }

    /// Closes the open region of a stream.
    pub fn seal(&mut self, policy: &mut dyn Policy, now: Duration, stream: Stream) {
        if let Some(index) = self.open.remove(&stream) {
            policy.on_sealed(now, self.id(index));
        }
    }

    /// Opens a region for a stream that has none, after an eviction if none is free.
    fn open(
        &mut self,
        policy: &mut dyn Policy,
        now: Duration,
        stream: Stream,
        written: &mut Written,
    ) -> bool {
        if self.open.contains_key(&stream) {
            return true;
        }
        if self.free.is_empty() {
            let Some(victim) = policy.victim(now) else { return false };
            self.evict(policy, now, victim, written);
        }
        // Reinserted segments may have taken the region.
        if self.open.contains_key(&stream) {
            return true;
        }
        let Some(index) = self.free.pop() else { return false };
        let region = &mut self.regions[index as usize];
        self.generation += 1;
        region.generation = self.generation;
        self.open.insert(stream, index);
        true
    }

    /// Evicts a region, and writes those of its segments again that the policy names.
    pub fn evict(
        &mut self,
        policy: &mut dyn Policy,
        now: Duration,
        victim: RegionId,
        written: &mut Written,
    ) {
        if self.open.values().any(|index| *index == victim.index) {
            self.open.retain(|_, index| *index != victim.index);
            policy.on_sealed(now, victim);
        }
        let residents = std::mem::take(&mut self.regions[victim.index as usize].residents);
        let mut rewrites = std::mem::take(&mut self.rewrites);
        rewrites.clear();
        policy.reinsert(now, victim, &residents, &mut rewrites);
        written.dropped += self.free(policy, now, victim, &residents);
        for Rewrite { resident, to } in &rewrites {
            let before = written.segments;
            written.dropped -= 1;
            self.append(policy, now, resident, *to, written);
            written.rewritten += written.segments - before;
        }
        self.rewrites = rewrites;
    }

    /// Loses a region with all of its segments.
    pub fn lose(&mut self, policy: &mut dyn Policy, now: Duration, region: RegionId) {
        self.open.retain(|_, index| *index != region.index);
        let residents = std::mem::take(&mut self.regions[region.index as usize].residents);
        self.free(policy, now, region, &residents);
    }

    fn free(
        &mut self,
        policy: &mut dyn Policy,
        now: Duration,
        region: RegionId,
        residents: &[Resident],
    ) -> u64 {
        for resident in residents {
            self.index.remove(&resident.segment);
        }
        self.regions[region.index as usize].bytes = 0;
        self.free.push(region.index);
        policy.on_freed(now, region);
        residents.len() as u64
    }

    /// Removes single segments.
    pub fn invalidate(&mut self, policy: &mut dyn Policy, now: Duration, segment: Segment) {
        let place = self.place(segment);
        match place {
            Place::Absent | Place::Pending => {}
            Place::Memory => {
                let resident = self.memory.remove(&segment).expect("it is in memory");
                self.memory_bytes -= u64::from(resident.length);
                policy.on_invalidated(now, place, &[resident]);
            }
            Place::Flash(region) => {
                self.index.remove(&segment);
                let residents = &mut self.regions[region.index as usize].residents;
                let gone: Vec<Resident> =
                    residents.extract_if(.., |resident| resident.segment == segment).collect();
                policy.on_invalidated(now, place, &gone);
            }
        }
    }

    /// Restarts with what is on flash: a new policy learns the regions in the order
    /// in which they were opened.
    pub fn restart(&mut self, policy: &mut dyn Policy, now: Duration) {
        self.open.clear();
        self.memory.clear();
        self.memory_bytes = 0;
        let count = u32::try_from(self.regions.len()).expect("made from a 32-bit number");
        let (mut used, free): (Vec<u32>, Vec<u32>) =
            (0..count).partition(|index| !self.regions[*index as usize].residents.is_empty());
        for index in &free {
            self.regions[*index as usize].bytes = 0;
        }
        self.free = free;
        used.sort_by_key(|index| self.regions[*index as usize].generation);
        for index in used {
            let id = self.id(index);
            let residents = &mut self.regions[index as usize].residents;
            for resident in residents.iter_mut() {
                resident.brought_by = None;
            }
            policy.on_recovered(now, id, residents);
        }
    }

    fn id(&self, index: u32) -> RegionId {
        RegionId { index, generation: self.regions[index as usize].generation }
    }
}
