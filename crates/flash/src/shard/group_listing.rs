//! What is in a group: read from the footers of its regions, because keys are not kept in memory.

use super::{Answer, Outcome, Purpose, Refusal, RegionState, Shard, health::Direction};
use crate::{
    arena::Buffer,
    index::GroupId,
    io::{Command, Fault},
    layout::{Descriptor, Footer, Generation, RegionId},
};

/// A listing under way.
#[derive(Debug)]
pub struct Listing<T> {
    token: T,
    /// Still to be read, the next one last.
    regions: Vec<(RegionId, Generation)>,
    entries: Vec<Descriptor>,
    is_reading: bool,
}

/// Who reads a footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailReader {
    /// The first listing.
    Listing,
    /// The scrubber.
    Scrub,
}

impl<T> Shard<T> {
    pub(super) fn list(&mut self, token: T, group: GroupId) {
        let Some(group) = self.groups.get(&group) else {
            return self.answers.push((token, Err(Refusal::Gone)));
        };
        let regions = group.regions.iter().rev();
        let regions = regions.map(|id| (*id, self.regions[id.0 as usize].generation)).collect();
        self.listings.push_back(Listing { token, regions, entries: Vec::new(), is_reading: false });
    }

    pub(super) fn pump_listings(&mut self) {
        while let Some(listing) = self.listings.front_mut() {
            if listing.is_reading {
                return;
            }
            let Some((id, generation)) = listing.regions.pop() else {
                let listing = self.listings.pop_front().expect("just seen");
                self.answers.push((listing.token, Ok(Answer::Entries(listing.entries))));
                continue;
            };
            let region = &self.regions[id.0 as usize];
            if region.generation != generation {
                continue;
            }
            if let Some(open) = region.open() {
                listing.entries.extend(&open.descriptors);
            } else if matches!(region.state, RegionState::Sealed) {
                let is_reading = self.read_tail(id, TailReader::Listing);
                let listing = self.listings.front_mut().expect("just seen");
                listing.is_reading = is_reading;
                if !is_reading {
                    listing.regions.push((id, generation));
                    return;
                }
            }
        }
    }

    /// Reads the footer of a sealed region. False if there is no memory for it now.
    pub(super) fn read_tail(&mut self, id: RegionId, reader: TailReader) -> bool {
        let size = Footer::size(usize::try_from(self.region(id).written).expect("in memory"));
        let length = usize::try_from(size).expect("in memory");
        let Some(buffer) = self.memory.reading.take(length) else { return false };
        self.region(id).readers += 1;
        let geometry = self.geometry();
        let offset = geometry.region_offset(id) + geometry.region_size - size;
        let io = self.begin(Purpose::Tail(id, reader));
        self.commands.push(Command::Read { id: io, offset, buffer, length });
        true
    }

    pub(super) fn tail_read(
        &mut self,
        id: RegionId,
        reader: TailReader,
        buffer: Option<Buffer>,
        result: Result<(), Fault>,
    ) {
        let region_size = self.geometry().region_size;
        let device = self.geometry().device;
        let region = self.region(id);
        region.readers -= 1;
        let generation = region.generation;
        let buffer = buffer.expect("a read gives its buffer back");
        let footer = result.ok().and_then(|()| Footer::decode(&buffer, region_size));
        let footer =
            footer.filter(|footer| footer.generation == generation && footer.device == device);
        drop(buffer);
        match reader {
            TailReader::Listing => {
                let listing = self.listings.front_mut().expect("it was reading");
                listing.is_reading = false;
                if let Some(footer) = footer {
                    listing.entries.extend(footer.entries);
                } else {
                    let listing = self.listings.pop_front().expect("just seen");
                    let outcome: Outcome = Err(Refusal::Failed);
                    self.answers.push((listing.token, outcome));
                }
            }
            TailReader::Scrub => self.tail_scrubbed(id, footer),
        }
        self.try_leave(id);
    }

    /// Whether the device may be read for purposes of our own.
    pub(super) fn may_read(&self) -> bool {
        self.health.is_well(Direction::Read)
    }
}
