//! The scrubber: rereads all entries at a bounded rate, so that damage is found before a client
//! needs the entry.

use std::{ops::Range, time::Duration};

use forebay_core::{ByteSize, units::ByteRate, util::token_bucket::TokenBucket};

use super::{
    EntryName, RegionState, RequestResult, Shard, ShardAnswer, group_listing::FooterReader,
    read::ReadPurpose,
};
use crate::{
    format::{Descriptor, EntryShape, Footer, RegionId},
    index::{EntryKey, Location},
};

/// Bytes per read.
const WINDOW: u64 = 1 << 20;
/// Least time between the beginnings of two passes.
const PASS_INTERVAL: Duration = Duration::from_hours(24);
/// Delay when the device is unhealthy or there is no memory.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Position of the scrubber.
#[derive(Debug)]
pub struct Scrub {
    bucket: Option<TokenBucket>,
    next: u32,
    pass_began: Duration,
    resume_at: Duration,
    is_reading: bool,
    region: Option<RegionId>,
    /// Entries of the region still to be read, the next one last; and the bytes of that one already
    /// read.
    entries: Vec<Descriptor>,
    done: u64,
}

impl Scrub {
    pub(super) fn new(rate: Option<ByteRate>) -> Self {
        Self {
            bucket: rate.map(|rate| TokenBucket::new(rate, ByteSize(WINDOW))),
            next: 0,
            pass_began: RETRY_DELAY,
            resume_at: RETRY_DELAY,
            is_reading: false,
            region: None,
            entries: Vec::new(),
            done: 0,
        }
    }

    pub(super) fn wake_at(&self) -> Option<Duration> {
        (self.bucket.is_some() && !self.is_reading).then_some(self.resume_at)
    }
}

impl<T> Shard<T> {
    /// Reads the next window if it is due.
    pub(super) fn scrub(&mut self) {
        if self.scrub.bucket.is_none() || self.scrub.is_reading || self.scrub.resume_at > self.now {
            return;
        }
        if !self.may_read() {
            self.scrub.resume_at = self.now + RETRY_DELAY;
            return;
        }
        let current = self.scrub.entries.last().copied().zip(self.scrub.region);
        match current {
            Some((entry, region)) => self.scrub_entry(entry, region),
            None => self.scrub_region(),
        }
    }

    fn scrub_region(&mut self) {
        let count = self.superblock.geometry.regions;
        while self.scrub.next < count {
            let id = RegionId(self.scrub.next);
            self.scrub.next += 1;
            if matches!(self.region(id).state, RegionState::Sealed) && !self.is_ephemeral(id) {
                self.scrub.is_reading = self.read_footer(id, FooterReader::Scrub);
                if !self.scrub.is_reading {
                    self.scrub.next -= 1;
                    self.scrub.resume_at = self.now + RETRY_DELAY;
                }
                return;
            }
        }
        self.scrub.next = 0;
        self.scrub.resume_at = self.now.max(self.scrub.pass_began + PASS_INTERVAL);
        self.scrub.pass_began = self.scrub.resume_at;
    }

    pub(super) fn on_scrub_footer(&mut self, id: RegionId, footer: Option<Footer>) {
        self.scrub.is_reading = false;
        self.scrub.done = 0;
        self.scrub.region = Some(id);
        match footer {
            Some(footer) => self.scrub.entries = footer.entries.into_iter().rev().collect(),
            // A restart has to scan a sealed region without a valid footer.
            None if matches!(self.region(id).state, RegionState::Sealed) => {
                self.counters.footers_damaged += 1;
            }
            None => {}
        }
    }

    fn scrub_entry(&mut self, entry: Descriptor, region: RegionId) {
        let location =
            Location::new(region, entry.start(), EntryShape::of(u64::from(entry.length)).size());
        // Evicted or replaced: no reader can reach it.
        let Some(name) = self.name_at(&entry, location) else {
            self.scrub.entries.pop();
            self.scrub.done = 0;
            return;
        };
        let length = u64::from(entry.length);
        let range: Range<u64> = self.scrub.done..length.min(self.scrub.done + WINDOW);
        let size = ByteSize(range.end - range.start);
        self.scrub.done = range.end;
        if range.end == length {
            self.scrub.entries.pop();
            self.scrub.done = 0;
        }
        let bucket = self.scrub.bucket.as_mut().expect("the scrubber is on");
        self.scrub.resume_at = self.now + bucket.take(self.now, size);
        self.scrub.is_reading = true;
        self.enqueue_read(ReadPurpose::Scrub, name, Some(range), location);
    }

    /// The name under which this entry is indexed, if it still is.
    fn name_at(&self, entry: &Descriptor, location: Location) -> Option<EntryName> {
        let group = self.groups.get(&self.regions[location.region().0 as usize].group?)?;
        let index = self.index.read();
        if group.dense {
            let ordinal = group.ordinal_of(&entry.key)?;
            (index.find_ordinal(group.id, ordinal)? == location)
                .then_some(EntryName::Ordinal(group.id, ordinal))
        } else {
            let key = EntryKey(entry.key);
            (index.find(&key)? == location).then_some(EntryName::Key(key))
        }
    }

    pub(super) fn on_scrub_read(&mut self, outcome: RequestResult) {
        self.scrub.is_reading = false;
        if let Ok(ShardAnswer::Read(Some(unverified))) = outcome
            && let Some(verified) = self.verify(&unverified)
        {
            self.counters.scrubbed_bytes += verified.bytes.len() as u64;
        }
    }
}
