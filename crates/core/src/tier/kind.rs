//! Policies by name, and their settings.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Policy,
    admission_threshold::WriteSettings,
    history::HistorySettings,
    memory_queue::Eviction,
    next_use::NextUse,
    shift::{Admission, Priority, RecentSet, Shift},
    types::Bucket,
};
use crate::{ByteSize, util::policy_names::policy_names};

/// Segments of 256 KiB in a region of 64 MiB, whose first block and entry headers take the rest.
pub const SEGMENTS_PER_REGION: u64 = 255;

/// Settings of a policy, fixed while a node runs.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Memory for segments above flash; 0 if the driver caches in memory by itself.
    pub dram: ByteSize,
    /// Number of regions on flash.
    pub regions: u32,
    /// Bytes of segments that a region holds.
    pub region: ByteSize,
    /// Usual length of a segment.
    pub segment: ByteSize,
    /// Limits on flash writes.
    pub writes: WriteSettings,
    /// Size of the request history.
    pub history: HistorySettings,
    /// Memory for which segments each job has read, one bit each. A job beyond it is assumed to
    /// read in the common order.
    pub bitmaps: ByteSize,
    /// Whether a segment that leaves flash may be written again.
    pub reinsertion: bool,
    /// Time without a request after which a job expires.
    pub lease: Duration,
    /// Assumed time until a queued job starts, if its specification does not say.
    pub unknown_start: Duration,
    /// Buckets that [`PolicyKind::Expert`] admits.
    pub expert: BTreeSet<Bucket>,
}

impl Settings {
    /// The paper's settings, with memory of `dram` and regions of 255 segments of 256 KiB.
    pub fn new(dram: ByteSize, regions: u32) -> Self {
        let segment = ByteSize::kib(256);
        Self {
            dram,
            regions,
            region: ByteSize(SEGMENTS_PER_REGION * segment.0),
            segment,
            writes: WriteSettings::default(),
            history: HistorySettings::default(),
            // The whole flash 16 times.
            bitmaps: ByteSize((u64::from(regions) * SEGMENTS_PER_REGION * 2).max(16 << 20)),
            reinsertion: false,
            lease: Duration::from_mins(10),
            unknown_start: Duration::from_mins(30),
            expert: BTreeSet::new(),
        }
    }

    /// Capacity on flash.
    pub fn flash(&self) -> ByteSize {
        ByteSize(u64::from(self.regions).saturating_mul(self.region.0))
    }

    /// Number of segments of the usual length that fit.
    pub fn segments(&self) -> u64 {
        self.dram.0.saturating_add(self.flash().0) / self.segment.0.max(1)
    }
}

policy_names! {
    /// Admits all segments, evicts first in, first out.
    Fifo = "fifo",
    /// Admits all segments, evicts the least recently used.
    Lru = "lru",
    /// `CacheLib`'s: writes a random share of what leaves memory, tuned to the write limit.
    DynamicRandom = "dynamic-random",
    /// `CacheLib`'s: writes a segment when it leaves memory for the second time.
    RejectFirst = "reject-first",
    /// Shift's baseline: admits buckets that an expert has listed.
    Expert = "expert",
    /// Shift's: admits buckets by recent reads per segment.
    Historic = "historic",
    /// Shift's: admits buckets by the number of jobs that have yet to read them.
    Future = "future",
    /// Shift's: admits by the larger of historic and future.
    Hybrid = "hybrid",
    /// forebay's: keeps the segments with the earliest next use.
    NextUse = "next-use",
}

impl PolicyKind {
    /// Builds a policy of this kind. It is deterministic: equal settings, events and requests give
    /// equal decisions.
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
                // Twice the residents in two generations, so that a first sighting is remembered
                // at least for the residence time of a segment.
                let each_max = usize::try_from(settings.segments()).unwrap_or(usize::MAX);
                lru(Admission::RejectFirst(RecentSet::new(each_max)))
            }
            Self::Expert => lru(Admission::Expert(settings.expert.clone())),
            Self::Historic => lru(Admission::Priority(Priority::Historic)),
            Self::Future => lru(Admission::Priority(Priority::Future)),
            Self::Hybrid => lru(Admission::Priority(Priority::Hybrid)),
            Self::NextUse => Box::new(NextUse::new(settings)),
        }
    }
}
