//! Policies by name, and what they are given.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Policy,
    history::HistorySettings,
    next_use::NextUse,
    shelves::Eviction,
    shift::{Admission, Priority, Recent, Shift},
    threshold::WriteSettings,
    words::Bucket,
};
use crate::{ByteSize, kinds::kinds};

/// What does not change while a node runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Room in memory.
    pub dram: ByteSize,
    /// Room on flash.
    pub flash: ByteSize,
    /// How long most segments are.
    pub segment: ByteSize,
    /// How writes to flash are held back.
    pub writes: WriteSettings,
    /// How much of the past is remembered.
    pub history: HistorySettings,
    /// Whether what leaves flash may be written again.
    pub reinsertion: bool,
    /// How long a job is believed to live without being heard of.
    pub lease: Duration,
    /// When a job that waits in a queue is expected to start, if nobody says.
    pub unknown_start: Duration,
    /// What [`PolicyKind::Expert`] admits.
    pub expert: BTreeSet<Bucket>,
}

impl Settings {
    /// The paper's settings, with so much room.
    pub fn new(dram: ByteSize, flash: ByteSize) -> Self {
        Self {
            dram,
            flash,
            segment: ByteSize::kib(256),
            writes: WriteSettings::default(),
            history: HistorySettings::default(),
            reinsertion: false,
            lease: Duration::from_mins(10),
            unknown_start: Duration::from_mins(30),
            expert: BTreeSet::new(),
        }
    }

    /// How many segments of the usual length find room.
    pub fn segments(&self) -> u64 {
        self.dram.0.saturating_add(self.flash.0) / self.segment.0.max(1)
    }
}

kinds! {
    /// Admits all, first in, first out.
    Fifo = "fifo",
    /// Admits all, least recently used first out.
    Lru = "lru",
    /// `CacheLib`'s: a random share of what leaves memory is kept, so that a write rate is.
    DynamicRandom = "dynamic-random",
    /// `CacheLib`'s: what leaves memory is kept the second time.
    RejectFirst = "reject-first",
    /// Shift's yardstick: the buckets that an expert has listed.
    Expert = "expert",
    /// Shift's: buckets by how often their segments were read lately.
    Historic = "historic",
    /// Shift's: buckets by how many jobs have yet to read them.
    Future = "future",
    /// Shift's: the larger of both.
    Hybrid = "hybrid",
    /// Ours: what is read soonest.
    NextUse = "next-use",
}

impl PolicyKind {
    /// A policy of this kind. The same settings, facts and requests give the same decisions, always.
    pub fn build(self, settings: &Settings) -> Box<dyn Policy> {
        let shift = |eviction, admission| -> Box<dyn Policy> {
            Box::new(Shift::new(settings, eviction, admission))
        };
        let lru = |admission| shift(Eviction::Lru, admission);
        match self {
            Self::Fifo => shift(Eviction::Fifo, Admission::All),
            Self::Lru => lru(Admission::All),
            Self::DynamicRandom => lru(Admission::dynamic_random()),
            Self::RejectFirst => {
                // As many as find room twice over: a first time is remembered as long as a hit would last.
                let each_max = usize::try_from(settings.segments()).unwrap_or(usize::MAX);
                lru(Admission::RejectFirst(Recent::new(each_max)))
            }
            Self::Expert => lru(Admission::Expert(settings.expert.clone())),
            Self::Historic => lru(Admission::Priority(Priority::Historic)),
            Self::Future => lru(Admission::Priority(Priority::Future)),
            Self::Hybrid => lru(Admission::Priority(Priority::Hybrid)),
            Self::NextUse => Box::new(NextUse::new(settings)),
        }
    }
}
