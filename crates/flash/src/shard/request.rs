//! What can be asked of a shard, and what it answers.

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use forebay_core::{ByteSize, units::ByteRate};

use super::{Fetched, GroupFacts, group::Hold};
use crate::{
    index::{GroupId, Key, Location, ORDINALS_MAX},
    layout::{Descriptor, Generation},
};

/// What is to be done.
#[derive(Debug)]
pub enum Request {
    /// Opens a group by its durable name, or makes it.
    Open {
        /// Its name.
        name: Vec<u8>,
        /// Its lifetime class; kept as it was if the group is there.
        class: u8,
        /// Whether its keys are ordinals.
        dense: bool,
    },
    /// Writes an entry. Answered when it is staged and can be read.
    Append {
        /// The group it joins.
        group: GroupId,
        /// What it is called.
        name: Name,
        /// A word for its writer.
        tag: u32,
        /// Its bytes.
        payload: Bytes,
        /// The checksums of their frames.
        checksums: Vec<u32>,
    },
    /// Reads some bytes of an entry, or all.
    Read {
        /// Which.
        name: Name,
        /// Which bytes.
        range: Option<Range<u64>>,
        /// Whether the reader holds a lease, so that marking does not stop it.
        leased: bool,
    },
    /// Ends a group. Answered when everything in it is durable.
    Seal {
        /// Which.
        group: GroupId,
    },
    /// Seals what is being filled, so that a restart finds it at once. The groups go on in other regions.
    Flush,
    /// No new readers from now on.
    Mark {
        /// Which group.
        group: GroupId,
    },
    /// Gives a group's space back, once its leases have ended or patience has. Answered when it is durable.
    Free {
        /// Which.
        group: GroupId,
        /// How long leases are waited for.
        patience: Duration,
    },
    /// Keeps a group from being evicted.
    Hold {
        /// Which.
        group: GroupId,
        /// For what.
        hold: Hold,
    },
    /// Ends a hold.
    LetGo {
        /// Which group.
        group: GroupId,
        /// What it was held for.
        hold: Hold,
    },
    /// Lists the groups.
    Groups,
    /// Tells how much memory the index takes.
    IndexMemory,
    /// Lists the entries of a group, in the order in which they were written.
    Entries {
        /// Which.
        group: GroupId,
    },
    /// Forgets a key until it is written again, or the device is opened again.
    Forget {
        /// Which.
        key: Key,
    },
    /// Somebody found that an entry is not what was written.
    Damaged {
        /// Which.
        name: Name,
        /// Where it was read.
        location: Location,
        /// In which life of its region.
        generation: Generation,
    },
}

/// How an entry is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Name {
    /// By a key, in whatever group it is.
    Key(Key),
    /// By its number in a dense group.
    Ordinal(GroupId, u64),
}

/// What was done.
#[derive(Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// The group.
    Group(GroupId),
    /// The bytes, still to be proved; or nothing is there.
    Read(Option<Fetched>),
    /// The groups.
    Groups(Vec<GroupFacts>),
    /// The entries.
    Entries(Vec<Descriptor>),
    /// So many bytes.
    Memory(u64),
}

/// How a request ended.
pub type Outcome = Result<Answer, Refusal>;

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be in one entry.
    #[error("an entry of {length} bytes is longer than this device takes ({max} bytes)")]
    TooLong {
        /// Bytes of the payload.
        length: u64,
        /// The most there may be.
        max: u64,
    },
    /// An ordinal beyond the limit, or a key in a dense group, or the other way round.
    #[error("a group of ordinals takes ordinals below {ORDINALS_MAX}, any other takes keys")]
    Naming,
    /// A group's name is too long, or the group is there and of the other kind.
    #[error("the group's name is too long, or the group is of another kind")]
    Group,
    /// No group has this number (any more).
    #[error("the group is gone")]
    Gone,
    /// A sealed group takes no entries, a marked one no leases.
    #[error("the group has been sealed or marked")]
    Closed,
    /// A pinned group is not freed.
    #[error("the group is pinned")]
    Pinned,
    /// Nothing may be evicted for it.
    #[error("the device is full, and nothing on it may be evicted")]
    NoSpace,
    /// Too much waits to be written already.
    #[error("too much waits to be written already")]
    Busy,
    /// The device failed a short time ago; it is tried again now and then.
    #[error("the device is not well")]
    Unstable,
    /// It took too long.
    #[error("the device took too long")]
    TimedOut,
    /// The device failed while it was being done.
    #[error("the device failed while it was being done")]
    Failed,
    /// The bytes asked for are not in the entry, or more than are read at once.
    #[error("the range is not inside the entry, or too long to be read at once")]
    Range,
}

/// How a shard works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What is written at once.
    pub piece_size: usize,
    /// Regions that may be filling at a time; beyond that the one that was idle longest is sealed.
    pub filling_max: usize,
    /// Payload that may wait to be staged.
    pub queue_bytes_max: u64,
    /// What has waited for so long is written, even if a piece is not full: from then on a kill costs
    /// nothing of it.
    pub flush_after: Duration,
    /// A read that takes longer has failed.
    pub read_deadline: Duration,
    /// An append that has not begun by then is refused.
    pub append_deadline: Duration,
    /// How much the scrubber reads, if it is to run.
    pub scrub_rate: Option<ByteRate>,
    /// How long a region in which much was damaged stays unused.
    pub quarantine: Duration,
    /// What the log calls the device.
    pub name: String,
    /// Whether freed space is made known to the device, if it is a drive and not a file.
    pub discard: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            piece_size: 256 << 10,
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

/// What a shard has counted since it was opened, and what is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Entries that are there and can be found.
    pub entries: u64,
    /// Bytes of their payloads; of one that was forgotten or replaced, less than a unit too many are taken off.
    pub bytes: u64,
    /// Whether it can be read and written, as far as is known.
    pub well: bool,
    /// Regions that are free.
    pub regions_free: u64,
    /// The longest entry.
    pub entry_length_max: u64,
    /// Regions that are not used for a while.
    pub regions_quarantined: u64,
    /// Payload bytes appended.
    pub inserted_bytes: u64,
    /// Bytes written to the device, for whatever purpose.
    pub device_bytes_written: u64,
    /// Regions evicted to make room.
    pub regions_evicted: u64,
    /// Regions whose content was given up because the device failed.
    pub regions_lost: u64,
    /// Entries that were not what was written.
    pub entries_damaged: u64,
    /// Footers that could not be read again.
    pub footers_damaged: u64,
    /// Bytes that the scrubber has proved.
    pub scrubbed_bytes: u64,
    /// Commands that failed.
    pub faults: u64,
    /// Reads that took too long.
    pub reads_timed_out: u64,
}
