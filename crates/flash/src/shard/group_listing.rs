//! Group listings: a group's entries, read from the footers of its regions, since the index does
//! not store whole keys.

use super::{
    Purpose, RegionState, RequestError, RequestResult, Shard, ShardAnswer, health::Direction,
};
use crate::{
    buffers::Buffer,
    format::{Descriptor, Footer, Generation, RegionId},
    index::GroupId,
    io::{IoCommand, IoFault},
};

/// A listing in progress.
#[derive(Debug)]
pub struct Listing<T> {
    token: T,
    /// Regions still to be read, the next one last.
    regions: Vec<(RegionId, Generation)>,
    entries: Vec<Descriptor>,
    is_reading: bool,
}

/// What a footer is read for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FooterReader {
    /// The first listing.
    Listing,
    /// The scrubber.
    Scrub,
}

impl<T> Shard<T> {
    pub(super) fn list(&mut self, token: T, group: GroupId) {
        let Some(group) = self.groups.get(&group) else {
            return self.answers.push((token, Err(RequestError::Gone)));
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
                self.answers.push((listing.token, Ok(ShardAnswer::Entries(listing.entries))));
                continue;
            };
            let region = &self.regions[id.0 as usize];
            if region.generation != generation {
                continue;
            }
            if let Some(open) = region.open() {
                listing.entries.extend(&open.descriptors);
            } else if matches!(region.state, RegionState::Sealed) {
                let is_reading = self.read_footer(id, FooterReader::Listing);
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
    pub(super) fn read_footer(&mut self, id: RegionId, reader: FooterReader) -> bool {
        let size =
            Footer::size(usize::try_from(self.region(id).footer_entries).expect("in memory"));
        let length = usize::try_from(size).expect("in memory");
        let Some(buffer) = self.pools.read.take(length) else { return false };
        self.region(id).readers += 1;
        let geometry = self.geometry();
        let offset = geometry.region_offset(id) + geometry.region_size - size;
        let io = self.begin(Purpose::ReadFooter(id, reader));
        self.commands.push(IoCommand::Read { id: io, offset, buffer, length });
        true
    }

    pub(super) fn on_footer_read(
        &mut self,
        id: RegionId,
        reader: FooterReader,
        buffer: Option<Buffer>,
        result: Result<(), IoFault>,
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
            FooterReader::Listing => {
                let listing = self.listings.front_mut().expect("kept while its footer is read");
                listing.is_reading = false;
                if let Some(footer) = footer {
                    listing.entries.extend(footer.entries);
                } else {
                    let listing = self.listings.pop_front().expect("just seen");
                    let outcome: RequestResult = Err(RequestError::Failed);
                    self.answers.push((listing.token, outcome));
                }
            }
            FooterReader::Scrub => self.on_scrub_footer(id, footer),
        }
        self.try_finish_free(id);
    }

    /// Whether the device is healthy enough for background reads.
    pub(super) fn may_read(&self) -> bool {
        self.health.is_healthy(Direction::Read)
    }
}
