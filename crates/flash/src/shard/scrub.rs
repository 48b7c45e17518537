//! Reading everything again, slowly, so that damage is found before somebody needs what was damaged.

use std::{ops::Range, time::Duration};

use forebay_core::{ByteSize, rate::TokenBucket, units::ByteRate};

use super::{Answer, Name, Outcome, RegionState, Shard, listing::TailReader, read::Reader};
use crate::{
    index::{Key, Location},
    layout::{Descriptor, EntryShape, Footer, RegionId},
};

/// What is read at once.
const WINDOW: u64 = 1 << 20;
/// A pass over everything begins no sooner after the last.
const PASS: Duration = Duration::from_hours(24);
/// How soon it is tried again when there is nothing to do, or the device has other worries.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the scrubber is.
#[derive(Debug)]
pub struct Scrub {
    bucket: Option<TokenBucket>,
    next: u32,
    pass_began: Duration,
    resume_at: Duration,
    is_reading: bool,
    region: Option<RegionId>,
    /// Still to be read, the next one last, and how much of that has been.
    entries: Vec<Descriptor>,
    done: u64,
}

impl Scrub {
    pub(super) fn new(rate: Option<ByteRate>) -> Self {
        Self {
            bucket: rate.map(|rate| TokenBucket::new(rate, ByteSize(WINDOW))),
            next: 0,
            pass_began: PAUSE,
            resume_at: PAUSE,
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
    /// Reads the next window, if it is time for it.
    pub(super) fn scrub(&mut self) {
        if self.scrub.bucket.is_none() || self.scrub.is_reading || self.scrub.resume_at > self.now {
            return;
        }
        if !self.may_read() {
            self.scrub.resume_at = self.now + PAUSE;
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
            if matches!(self.region(id).state, RegionState::Sealed) {
                self.scrub.is_reading = self.read_tail(id, TailReader::Scrub);
                if !self.scrub.is_reading {
                    self.scrub.next -= 1;
                    self.scrub.resume_at = self.now + PAUSE;
                }
                return;
            }
        }
        self.scrub.next = 0;
        self.scrub.resume_at = self.now.max(self.scrub.pass_began + PASS);
        self.scrub.pass_began = self.scrub.resume_at;
    }

    pub(super) fn tail_scrubbed(&mut self, id: RegionId, footer: Option<Footer>) {
        self.scrub.is_reading = false;
        self.scrub.done = 0;
        self.scrub.region = Some(id);
        match footer {
            Some(footer) => self.scrub.entries = footer.entries.into_iter().rev().collect(),
            // A sealed region without its footer is nothing that a restart could find.
            None if matches!(self.region(id).state, RegionState::Sealed) => {
                self.counters.footers_damaged += 1;
            }
            None => {}
        }
    }

    fn scrub_entry(&mut self, entry: Descriptor, region: RegionId) {
        let location =
            Location::new(region, entry.start(), EntryShape::of(u64::from(entry.length)).size());
        // Evicted, or written again elsewhere: nobody would be given it.
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
        let bucket = self.scrub.bucket.as_mut().expect("it runs");
        self.scrub.resume_at = self.now + bucket.take(self.now, size);
        self.scrub.is_reading = true;
        self.want(Reader::Scrub, name, Some(range), location);
    }

    /// The name under which this very entry would be found.
    fn name_at(&self, entry: &Descriptor, location: Location) -> Option<Name> {
        let group = self.groups.get(&self.regions[location.region().0 as usize].group?)?;
        let index = self.index.read();
        if group.dense {
            let ordinal = group.ordinal_of(&entry.key)?;
            (index.find_ordinal(group.id, ordinal)? == location)
                .then_some(Name::Ordinal(group.id, ordinal))
        } else {
            let key = Key(entry.key);
            (index.find(&key)? == location).then_some(Name::Key(key))
        }
    }

    pub(super) fn scrubbed(&mut self, outcome: Outcome) {
        self.scrub.is_reading = false;
        if let Ok(Answer::Read(Some(fetched))) = outcome
            && let Some(proved) = self.prove(&fetched)
        {
            self.counters.scrubbed_bytes += proved.bytes.len() as u64;
        }
    }
}
