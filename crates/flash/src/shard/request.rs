//! Requests to a shard and their answers, settings and counters.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use forebay_core::{ByteSize, units::ByteRate};

use super::{GroupInfo, RegionRef, UnverifiedRead, group::GuardKind};
use crate::{
    buffers::Buffer,
    extent::Extent,
    format::{Descriptor, Generation},
    index::{EntryKey, GroupId, Location, ORDINALS_MAX},
    reservation::FilledEntry,
};

/// A request to a shard.
#[derive(Debug)]
pub enum ShardRequest {
    /// Opens a group by its durable name, or creates it.
    Open {
        /// The group's name.
        name: Vec<u8>,
        /// The group's lifetime class; an existing group keeps its own.
        class: u8,
        /// Whether the group's entries are named by ordinals.
        dense: bool,
    },
    /// Appends an entry. Answered when it is staged and readable.
    Append {
        /// The group.
        group: GroupId,
        /// The entry's name.
        name: EntryName,
        /// The writer's tag.
        tag: u32,
        /// The entry's bytes.
        payload: Bytes,
        /// The checksums of the payload's frames.
        checksums: Vec<u32>,
    },
    /// Appends an entry that the caller filled in place. Answered when it is staged and readable,
    /// or with [`ShardAnswer::NotCommitted`].
    Commit {
        /// The group.
        group: GroupId,
        /// The entry's name.
        name: EntryName,
        /// The writer's tag.
        tag: u32,
        /// The entry's bytes, in the memory that is written.
        entry: FilledEntry,
    },
    /// Makes all entries of a group durable that were appended before, without sealing its region.
    Sync {
        /// The group.
        group: GroupId,
    },
    /// Writes all entries of a group that were appended before to the device, so that another
    /// process can read them there. Does not make them durable.
    Write {
        /// The group.
        group: GroupId,
    },
    /// Finds where entries of a dense group lie on the device. Answered at once.
    Locate {
        /// The group.
        group: GroupId,
        /// The ordinals.
        ordinals: Vec<u64>,
    },
    /// Waits until a region is free, or until the time is over.
    AwaitSpace {
        /// Longest wait.
        timeout: Option<Duration>,
    },
    /// Removes entries of a dense group from the index. Regions without other entries are freed
    /// once their reads have ended, in any state of the group. Like eviction, it is not durable.
    ReleaseOrdinals {
        /// The group.
        group: GroupId,
        /// The ordinals.
        ordinals: Vec<Range<u64>>,
    },
    /// Reads an entry, or a byte range of it.
    Read {
        /// The entry.
        name: EntryName,
        /// The range; `None` for the whole entry.
        range: Option<Range<u64>>,
        /// Whether the reader has a lease, with which it can read a marked group.
        leased: bool,
        /// The reader's own memory; `None` for the shared read buffers. With it, the read waits
        /// for no other reader.
        into: Option<Buffer>,
    },
    /// Seals a group. Answered when all its entries are durable.
    Seal {
        /// The group.
        group: GroupId,
    },
    /// Seals all regions that are being filled, so that a restart need not scan them. Their groups
    /// continue in other regions.
    Flush,
    /// Marks a group: it accepts no new readers.
    Mark {
        /// The group.
        group: GroupId,
    },
    /// Frees a group when its leases have ended or timed out. Answered when that is durable.
    Free {
        /// The group.
        group: GroupId,
        /// Longest wait for leases.
        lease_timeout: Duration,
    },
    /// Pins or leases a group.
    Acquire {
        /// The group.
        group: GroupId,
        /// Pin or lease.
        guard: GuardKind,
    },
    /// Releases a pin or a lease.
    Release {
        /// The group.
        group: GroupId,
        /// Pin or lease.
        guard: GuardKind,
    },
    /// Lists the groups.
    Groups,
    /// Returns the memory of the index.
    IndexMemory,
    /// Lists the entries of a group, in the order of writing.
    Entries {
        /// The group.
        group: GroupId,
    },
    /// Removes a key from the index until it is written again or the device is reopened.
    Forget {
        /// The key.
        key: EntryKey,
    },
    /// Reports that an entry failed verification.
    ReportDamage {
        /// The entry.
        name: EntryName,
        /// Location that was read.
        location: Location,
        /// Generation of the region when it was read.
        generation: Generation,
    },
}

/// Name of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryName {
    /// A key, unique across groups.
    Key(EntryKey),
    /// A dense group and an ordinal in it.
    Ordinal(GroupId, u64),
}

/// The answer to a request.
#[derive(Debug)]
pub enum ShardAnswer {
    /// Done.
    Done,
    /// The entry was appended.
    Appended {
        /// The region that it is in.
        region: RegionRef,
    },
    /// The entry was not appended. The caller gets it back, to try again or elsewhere.
    NotCommitted {
        /// Why.
        error: RequestError,
        /// The entry.
        entry: FilledEntry,
    },
    /// The group's id.
    Group(GroupId),
    /// Bytes that the caller has to verify; `None` for a miss.
    Read(Option<UnverifiedRead>),
    /// The groups.
    Groups(Vec<GroupInfo>),
    /// The entries.
    Entries(Vec<Descriptor>),
    /// The places of entries, in the order of the request; `None` for those that are not there.
    Extents(Vec<Option<Extent>>),
    /// Bytes of memory.
    Memory(u64),
}

/// Result of a request.
pub type RequestResult = Result<ShardAnswer, RequestError>;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The payload is longer than one entry can hold.
    #[error("the entry has {length} bytes, but this device accepts at most {max}")]
    TooLong {
        /// Length of the payload.
        length: u64,
        /// The longest possible payload.
        max: u64,
    },
    /// An ordinal beyond the limit, a key in a dense group, or an ordinal in a keyed group.
    #[error("wrong entry name: dense groups use ordinals below {ORDINALS_MAX}, others use keys")]
    InvalidName,
    /// The group's name is too long, or a group of this name has the other kind of names.
    #[error("the group name is too long, or is in use by a group of another kind")]
    InvalidGroup,
    /// No group has this id, or it is being freed.
    #[error("the group is gone")]
    Gone,
    /// A sealed group accepts no entries, a marked one no leases.
    #[error("the group is sealed, marked or being freed")]
    Closed,
    /// A pinned group cannot be freed.
    #[error("the group is pinned")]
    Pinned,
    /// No region may be evicted.
    #[error("the device is full and no region may be evicted")]
    NoSpace,
    /// The append queue is full.
    #[error("the append queue is full: try again later")]
    Busy,
    /// The device failed recently, and is being probed.
    #[error("the device is not healthy")]
    Unhealthy,
    /// The device did not answer in time.
    #[error("the device did not answer in time")]
    TimedOut,
    /// The device failed during the request.
    #[error("the device failed during the request")]
    Failed,
    /// The range exceeds the entry, or the memory to read it into.
    #[error("the range exceeds the entry or the read buffers")]
    Range,
}

/// Settings of a shard.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Size of a data write.
    pub write_size: usize,
    /// Regions that may be filling at a time. Beyond that, the one that has been idle longest is
    /// sealed.
    pub filling_max: usize,
    /// Payload bytes that may wait to be staged.
    pub queue_bytes_max: u64,
    /// Time after which a partly filled write is written anyway. From then on, its entries survive
    /// a kill of the process.
    pub flush_after: Duration,
    /// Timeout of a read.
    pub read_deadline: Duration,
    /// Timeout of an append whose copy has not begun.
    pub append_deadline: Duration,
    /// Rate of the scrubber; `None` turns it off.
    pub scrub_rate: Option<ByteRate>,
    /// Time for which a damaged region is not used.
    pub quarantine: Duration,
    /// Name of the device in the log.
    pub name: String,
    /// Whether freed regions are discarded.
    pub discard: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            write_size: 256 << 10,
            filling_max: 64,
            queue_bytes_max: 256 << 20,
            flush_after: Duration::from_millis(500),
            read_deadline: Duration::from_secs(2),
            append_deadline: Duration::from_secs(10),
            scrub_rate: Some(ByteRate(ByteSize::mib(8))),
            quarantine: Duration::from_mins(10),
            name: String::new(),
            discard: true,
        }
    }
}

/// Counters since the device was opened, and current gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Entries that are indexed.
    pub entries: u64,
    /// Payload bytes of these entries. Each removed entry may be subtracted with up to one unit too
    /// many.
    pub bytes: u64,
    /// Whether the device can be read and written.
    pub healthy: bool,
    /// Regions that are free.
    pub regions_free: u64,
    /// The longest possible payload.
    pub entry_length_max: u64,
    /// Regions that are quarantined.
    pub regions_quarantined: u64,
    /// Payload bytes appended.
    pub inserted_bytes: u64,
    /// Bytes written to the device in total.
    pub device_bytes_written: u64,
    /// Regions evicted to make room.
    pub regions_evicted: u64,
    /// Regions given up because the device failed or damaged their entries.
    pub regions_lost: u64,
    /// Entries that failed verification.
    pub entries_damaged: u64,
    /// Footers of sealed regions that the scrubber could not read.
    pub footers_damaged: u64,
    /// Bytes that the scrubber has verified.
    pub scrubbed_bytes: u64,
    /// Commands that failed.
    pub commands_failed: u64,
    /// Reads that timed out.
    pub reads_timed_out: u64,
}
