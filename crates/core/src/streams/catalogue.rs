//! The catalogue: streams of a store, their families, and their states.
//!
//! ```text
//! writing ──seal──► sealed ──destroy──► destroyed ──last reader──► gone
//!    │                └──consume──► consumed ─┘
//!    └──writer dropped──► destroyed
//! ```
//!
//! A stream's name is free again when the stream is destroyed, although readers may still have it
//! open. Ordinals are given out once and never again.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, Range},
};

use super::{
    BlockNumber, FamilyId, Lifetime, StreamId, StreamName, StreamNumber,
    collection::CollectedStream,
    record::{RECORD_TAG, RUNS_MAX, SealedRecord},
    runs::OrdinalRuns,
    seal_list::StreamKey,
};

/// The streams of a store.
#[derive(Debug, Default)]
pub struct StreamCatalogue {
    names: BTreeMap<StreamName, StreamId>,
    streams: BTreeMap<StreamId, Stream>,
    families: BTreeMap<FamilyId, Family>,
    /// Ends of leases, the earliest first.
    leases: BTreeSet<(u64, StreamId)>,
    streams_begun: u64,
    families_begun: u32,
}

/// A stream.
#[derive(Debug)]
struct Stream {
    name: StreamName,
    family: FamilyId,
    number: StreamNumber,
    state: StreamState,
    runs: OrdinalRuns,
    bytes: u64,
    readers: u32,
    expires_at_ms: Option<u64>,
    /// Ordinal of its record.
    record: Option<u64>,
    /// Blocks that are lost.
    lost: Vec<Range<u64>>,
}

/// State of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// Being written.
    Writing,
    /// Complete.
    Sealed,
    /// Being read and destroyed at the same time.
    Consumed,
    /// Not found any more; readers may have it open.
    Destroyed,
}

/// Streams of one lifetime that share regions.
#[derive(Debug)]
struct Family {
    name: StreamName,
    number: u64,
    lifetime: Lifetime,
    /// Whether it ends with its last stream.
    ends_with_streams: bool,
    streams: u64,
    numbers_given: u32,
    ordinals_given: u64,
}

/// Why a request on a stream is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum CatalogueError {
    #[error("stream {0:?} exists: destroy it first, or use another name")]
    Taken(String),
    #[error("no stream {0:?}: it was never sealed, has been destroyed, or its lease has ended")]
    NotFound(String),
    #[error("stream {0:?} is being written: seal it first, or open it with `follow`")]
    Unsealed(String),
    #[error("stream {0:?} is half consumed: what was read is gone; destroy it")]
    Consumed(String),
    #[error("stream {name:?} has {readers} readers: a consuming reader must be the only one")]
    InUse { name: String, readers: u32 },
    #[error("stream {name:?} has lost blocks {}: write it again", ranges(lost))]
    Lost { name: String, lost: Vec<Range<u64>> },
    #[error("family {0:?} is gone: create another one")]
    FamilyGone(String),
    #[error(
        "stream {0:?} is interleaved with others in more than {RUNS_MAX} runs: give it a family \
         of its own, or longer blocks"
    )]
    TooManyRuns(String),
}

impl CatalogueError {
    /// Whether blocks of the stream are lost.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }
}

/// What a reader may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Read a sealed stream.
    Read,
    /// Read, also while the stream is being written.
    Follow,
    /// Read and destroy.
    Consume,
}

/// What has to be freed with a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// All of its family.
    Family,
    /// These ordinals; first a record of the destruction, if it has to be durable.
    Ordinals {
        /// The stream whose destruction is recorded; `None` if nothing of it is durable.
        record: Option<StreamNumber>,
        /// The ordinals.
        ordinals: Vec<Range<u64>>,
    },
}

/// A stream, for listings and readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its name.
    pub name: StreamName,
    /// The name of its family.
    pub family: StreamName,
    /// Its lifetime.
    pub lifetime: Lifetime,
    /// Its state.
    pub state: StreamState,
    /// Number of its blocks.
    pub blocks: u64,
    /// Bytes of its blocks.
    pub bytes: u64,
    /// Readers that have it open.
    pub readers: u32,
    /// Blocks that are lost, as ranges of their numbers.
    pub lost: Vec<Range<u64>>,
}

impl StreamInfo {
    /// Whether it has been destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.state == StreamState::Destroyed
    }
}

impl StreamCatalogue {
    /// Adds a family. No other family of the store has had its number. One that `ends_with_streams`
    /// is freed with its last stream.
    pub fn add_family(
        &mut self,
        name: StreamName,
        number: u64,
        lifetime: Lifetime,
        ends_with_streams: bool,
    ) -> FamilyId {
        let id = FamilyId(self.families_begun);
        self.families_begun += 1;
        let family = Family {
            name,
            number,
            lifetime,
            ends_with_streams,
            streams: 0,
            numbers_given: 0,
            ordinals_given: 0,
        };
        self.families.insert(id, family);
        id
    }

    /// Creates a stream.
    pub fn create(
        &mut self,
        name: StreamName,
        family: FamilyId,
    ) -> Result<StreamId, CatalogueError> {
        if self.names.contains_key(&name) {
            return Err(CatalogueError::Taken(name.to_string()));
        }
        let gone = || CatalogueError::FamilyGone(name.to_string());
        let owner = self.families.get_mut(&family).ok_or_else(gone)?;
        let number = StreamNumber(owner.numbers_given);
        owner.numbers_given += 1;
        assert!(number.0 < RECORD_TAG, "a family has fewer than 2^31 streams");
        owner.streams += 1;
        let id = StreamId(self.streams_begun);
        self.streams_begun += 1;
        let stream = Stream {
            name: name.clone(),
            family,
            number,
            state: StreamState::Writing,
            runs: OrdinalRuns::default(),
            bytes: 0,
            readers: 0,
            expires_at_ms: None,
            record: None,
            lost: Vec::new(),
        };
        self.streams.insert(id, stream);
        self.names.insert(name, id);
        Ok(id)
    }

    /// Adds a stream that was found after a restart.
    pub fn adopt(&mut self, family: FamilyId, found: CollectedStream) {
        let CollectedStream { record, record_ordinal, lost } = found;
        let owner = self.families.get_mut(&family).expect("added before");
        owner.streams += 1;
        let id = StreamId(self.streams_begun);
        self.streams_begun += 1;
        let stream = Stream {
            name: record.name.clone(),
            family,
            number: record.stream,
            state: StreamState::Sealed,
            runs: record.runs,
            bytes: record.bytes,
            readers: 0,
            expires_at_ms: record.expires_at_ms,
            record: Some(record_ordinal),
            lost,
        };
        let before = self.names.insert(record.name, id);
        assert!(before.is_none(), "collection keeps one stream per name");
        self.leases.extend(stream.expires_at_ms.map(|at| (at, id)));
        self.streams.insert(id, stream);
    }

    /// The family of a stream, and its number in it.
    pub fn place(&self, id: StreamId) -> Option<(FamilyId, StreamNumber)> {
        self.streams.get(&id).map(|stream| (stream.family, stream.number))
    }

    /// The key of a stream, if its record has been written.
    pub fn recorded_key(&self, id: StreamId) -> Option<StreamKey> {
        let stream = self.streams.get(&id).filter(|stream| stream.record.is_some())?;
        let family = self.families.get(&stream.family)?;
        Some(StreamKey { family: family.number, stream: stream.number })
    }

    /// The keys of a family's streams whose records have been written.
    pub fn recorded_keys(&self, family: FamilyId) -> Vec<StreamKey> {
        let of_family = self.streams.iter().filter(|(_, stream)| stream.family == family);
        of_family.filter_map(|(id, _)| self.recorded_key(*id)).collect()
    }

    /// The next ordinal of a family. Its streams never get the same one again.
    pub fn next_ordinal(&mut self, family: FamilyId) -> Option<u64> {
        let family = self.families.get_mut(&family)?;
        family.ordinals_given += 1;
        Some(family.ordinals_given - 1)
    }

    /// Ordinals up to this one are in use, by what was found after a restart.
    pub fn skip_ordinals(&mut self, family: FamilyId, end: u64) {
        if let Some(family) = self.families.get_mut(&family) {
            family.ordinals_given = family.ordinals_given.max(end);
        }
    }

    /// The lifetime of a family.
    pub fn lifetime(&self, family: FamilyId) -> Option<Lifetime> {
        self.families.get(&family).map(|family| family.lifetime)
    }

    /// A block has been committed under this ordinal. False if the stream has been destroyed
    /// meanwhile, so that the block has to be released.
    pub fn on_block(
        &mut self,
        id: StreamId,
        ordinal: u64,
        length: u64,
    ) -> Result<bool, CatalogueError> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(false) };
        if stream.state != StreamState::Writing {
            return Ok(false);
        }
        if stream.runs.len() == RUNS_MAX {
            return Err(CatalogueError::TooManyRuns(stream.name.to_string()));
        }
        stream.runs.push(ordinal);
        stream.bytes += length;
        Ok(true)
    }

    /// The record of a stream that is complete now, to be written if the stream is durable.
    pub fn seal_record(&mut self, id: StreamId, now_ms: u64) -> Option<SealedRecord> {
        let lifetime = self.streams.get(&id).and_then(|stream| self.lifetime(stream.family))?;
        let stream = self.streams.get_mut(&id)?;
        stream.expires_at_ms = match lifetime {
            Lifetime::Lease(time) => {
                let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                Some(now_ms.saturating_add(time).max(1))
            }
            Lifetime::Kept | Lifetime::Process => None,
        };
        self.leases.extend(stream.expires_at_ms.map(|at| (at, id)));
        Some(SealedRecord {
            stream: stream.number,
            name: stream.name.clone(),
            sealed_at_ms: now_ms,
            expires_at_ms: stream.expires_at_ms,
            bytes: stream.bytes,
            runs: stream.runs.clone(),
        })
    }

    /// The record of a stream has been written, so that its destruction has to be recorded too.
    pub fn on_record(&mut self, id: StreamId, ordinal: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.record = Some(ordinal);
        }
    }

    /// A stream is complete. `lost` is what was lost meanwhile.
    pub fn on_sealed(&mut self, id: StreamId, lost: Vec<Range<u64>>) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.state == StreamState::Writing
        {
            stream.state = StreamState::Sealed;
            stream.lost = lost;
        }
    }

    /// Opens a stream for a reader. `is_there` says whether an ordinal of a family has an entry.
    pub fn open(
        &mut self,
        name: &StreamName,
        mode: OpenMode,
        is_there: impl Fn(FamilyId, u64) -> bool,
    ) -> Result<StreamId, CatalogueError> {
        let text = || name.to_string();
        let id = *self.names.get(name).ok_or_else(|| CatalogueError::NotFound(text()))?;
        let stream = self.streams.get_mut(&id).expect("names are of streams");
        match (stream.state, mode) {
            (StreamState::Sealed, _) | (StreamState::Writing, OpenMode::Follow) => {}
            (StreamState::Writing, _) => return Err(CatalogueError::Unsealed(text())),
            (StreamState::Consumed, _) => return Err(CatalogueError::Consumed(text())),
            (StreamState::Destroyed, _) => return Err(CatalogueError::NotFound(text())),
        }
        if mode == OpenMode::Consume && stream.readers > 0 {
            let (name, readers) = (text(), stream.readers);
            return Err(CatalogueError::InUse { name, readers });
        }
        if stream.state == StreamState::Sealed {
            let family = stream.family;
            stream.lost = super::record::missing(&stream.runs, |at| is_there(family, at));
            if !stream.lost.is_empty() {
                return Err(CatalogueError::Lost { name: text(), lost: stream.lost.clone() });
            }
        }
        if mode == OpenMode::Consume {
            stream.state = StreamState::Consumed;
        }
        stream.readers += 1;
        Ok(id)
    }

    /// The stream of this name.
    pub fn find(&self, name: &StreamName) -> Option<StreamId> {
        self.names.get(name).copied()
    }

    /// Ordinal of a block; `None` beyond the end and after the stream has been removed.
    pub fn ordinal(&self, id: StreamId, block: BlockNumber) -> Option<u64> {
        self.streams.get(&id)?.runs.ordinal(block)
    }

    /// A block was lost after the stream was opened.
    pub fn on_lost(&mut self, id: StreamId, BlockNumber(block): BlockNumber) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.lost.iter().any(|lost| lost.contains(&block))
        {
            stream.lost.push(block..block + 1);
            stream.lost.sort_by_key(|lost| lost.start);
        }
    }

    /// A reader has closed the stream. Returns whether it was the last one.
    pub fn close(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return true };
        stream.readers -= 1;
        stream.readers == 0
    }

    /// Destroys a stream: its name is free from now on.
    pub fn destroy(&mut self, name: &StreamName) -> Result<StreamId, CatalogueError> {
        let id = self.names.get(name).copied();
        let id = id.ok_or_else(|| CatalogueError::NotFound(name.to_string()))?;
        self.destroy_id(id);
        Ok(id)
    }

    /// Destroys a stream by its number. False if it has been destroyed before.
    pub fn destroy_id(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        if stream.state == StreamState::Destroyed {
            return false;
        }
        stream.state = StreamState::Destroyed;
        self.names.remove(&stream.name);
        true
    }

    /// Removes a destroyed stream. Returns its family, and what has to be freed.
    pub fn remove(&mut self, id: StreamId) -> Option<(FamilyId, Removal)> {
        let stream = self.take(id)?;
        assert_eq!(stream.state, StreamState::Destroyed, "destroyed before");
        let family = self.families.get_mut(&stream.family)?;
        family.streams -= 1;
        if family.streams == 0 && family.ends_with_streams {
            self.families.remove(&stream.family);
            return Some((stream.family, Removal::Family));
        }
        let mut ordinals: Vec<_> = stream.runs.ranges().collect();
        ordinals.extend(stream.record.map(|ordinal| ordinal..ordinal + 1));
        let record = stream.record.map(|_| stream.number);
        Some((stream.family, Removal::Ordinals { record, ordinals }))
    }

    /// Destroys a family and all its streams. Returns them.
    pub fn destroy_family(&mut self, family: FamilyId) -> Vec<StreamId> {
        let all = self.streams.iter().filter(|(_, stream)| stream.family == family);
        let streams: Vec<StreamId> = all.map(|(id, _)| *id).collect();
        for id in &streams {
            self.destroy_id(*id);
            self.take(*id);
        }
        self.families.remove(&family);
        streams
    }

    /// The families with this name.
    pub fn families_named(&self, name: &StreamName) -> Vec<FamilyId> {
        let named = self.families.iter().filter(|(_, family)| family.name == *name);
        named.map(|(id, _)| *id).collect()
    }

    /// A stream, if it has not been removed.
    pub fn info(&self, id: StreamId) -> Option<StreamInfo> {
        let stream = self.streams.get(&id)?;
        let family = self.families.get(&stream.family)?;
        Some(StreamInfo {
            name: stream.name.clone(),
            family: family.name.clone(),
            lifetime: family.lifetime,
            state: stream.state,
            blocks: stream.runs.blocks(),
            bytes: stream.bytes,
            readers: stream.readers,
            lost: stream.lost.clone(),
        })
    }

    /// The streams, by name.
    pub fn list(&self) -> Vec<StreamInfo> {
        self.names.values().filter_map(|id| self.info(*id)).collect()
    }

    /// At most `max` streams whose names begin with `prefix` and are greater than `after`, by name.
    pub fn page(&self, prefix: &str, after: &str, max: usize) -> Vec<StreamInfo> {
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let found = self.names.range::<str, _>((from, Bound::Unbounded));
        let found = found.take_while(|(name, _)| name.as_str().starts_with(prefix));
        found.filter_map(|(_, id)| self.info(*id)).take(max).collect()
    }

    /// The end of a stream's lease, in milliseconds since 1970; `None` without a lease.
    pub fn lease_end(&self, id: StreamId) -> Option<u64> {
        self.streams.get(&id)?.expires_at_ms
    }

    /// When the next lease of a sealed stream ends, in milliseconds since 1970.
    pub fn next_lease_end(&self) -> Option<u64> {
        let sealed = self.streams.values().filter(|stream| stream.state == StreamState::Sealed);
        sealed.filter_map(|stream| stream.expires_at_ms).min()
    }

    /// The sealed streams whose lease has ended.
    pub fn expired(&self, now_ms: u64) -> Vec<StreamName> {
        let ended = self.leases.range(..=(now_ms, StreamId(u64::MAX)));
        let streams = ended.filter_map(|(_, id)| self.streams.get(id));
        let sealed = streams.filter(|stream| stream.state == StreamState::Sealed);
        sealed.map(|stream| stream.name.clone()).collect()
    }

    fn take(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        if let Some(at) = stream.expires_at_ms {
            self.leases.remove(&(at, id));
        }
        Some(stream)
    }
}

/// Ranges of block numbers for people, at most ten.
fn ranges(lost: &[Range<u64>]) -> String {
    let text = |range: &Range<u64>| match range.end - range.start {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    };
    let shown: Vec<_> = lost.iter().take(10).map(text).collect();
    let more = if lost.len() > 10 { ", …" } else { "" };
    shown.join(", ") + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> StreamName {
        StreamName::new(text).unwrap()
    }

    #[test]
    fn a_stream_is_opened_only_when_it_is_sealed_and_whole() {
        let mut catalogue = StreamCatalogue::default();
        let family = catalogue.add_family(name("f"), 7, Lifetime::Process, false);
        let id = catalogue.create(name("a"), family).unwrap();
        assert_eq!(
            catalogue.create(name("a"), family),
            Err(CatalogueError::Taken("a".into())),
            "while it is written"
        );
        for _ in 0..3 {
            let ordinal = catalogue.next_ordinal(family).unwrap();
            assert_eq!(catalogue.on_block(id, ordinal, 10), Ok(true));
        }
        let open = |catalogue: &mut StreamCatalogue, mode, lost: Option<u64>| {
            catalogue.open(&name("a"), mode, |_, ordinal| Some(ordinal) != lost)
        };
        assert!(matches!(
            open(&mut catalogue, OpenMode::Read, None),
            Err(CatalogueError::Unsealed(_))
        ));
        assert_eq!(open(&mut catalogue, OpenMode::Follow, None), Ok(id));
        catalogue.on_sealed(id, Vec::new());
        let lost = open(&mut catalogue, OpenMode::Read, Some(1)).unwrap_err();
        assert_eq!(lost.to_string(), "stream \"a\" has lost blocks 1: write it again");
        let in_use = open(&mut catalogue, OpenMode::Consume, None).unwrap_err();
        assert!(matches!(in_use, CatalogueError::InUse { readers: 1, .. }));
        assert!(catalogue.close(id));
        assert_eq!(open(&mut catalogue, OpenMode::Consume, None), Ok(id));
        assert!(matches!(
            open(&mut catalogue, OpenMode::Read, None),
            Err(CatalogueError::Consumed(_))
        ));
    }

    #[test]
    fn a_destroyed_name_is_free_and_its_ordinals_are_named_once() {
        let mut catalogue = StreamCatalogue::default();
        let family = catalogue.add_family(name("f"), 7, Lifetime::Kept, true);
        let ids: Vec<_> =
            ["a", "b"].iter().map(|it| catalogue.create(name(it), family).unwrap()).collect();
        for at in 0..6_usize {
            let ordinal = catalogue.next_ordinal(family).unwrap();
            catalogue.on_block(ids[at % 2], ordinal, 1).unwrap();
        }
        let record = catalogue.next_ordinal(family).unwrap();
        catalogue.on_record(ids[0], record);
        catalogue.on_sealed(ids[0], Vec::new());
        assert_eq!(catalogue.destroy(&name("a")), Ok(ids[0]));
        assert!(matches!(catalogue.destroy(&name("a")), Err(CatalogueError::NotFound(_))));
        let again = catalogue.create(name("a"), family).unwrap();
        let removal = catalogue.remove(ids[0]).unwrap().1;
        let record = Some(StreamNumber(0));
        let ordinals = vec![0..1, 2..3, 4..5, 6..7];
        assert_eq!(removal, Removal::Ordinals { record, ordinals });
        assert_eq!(catalogue.ordinal(ids[0], BlockNumber(0)), None);
        for id in [ids[1], again] {
            assert!(catalogue.destroy_id(id) && !catalogue.destroy_id(id));
        }
        assert!(matches!(catalogue.remove(ids[1]), Some((_, Removal::Ordinals { .. }))));
        assert_eq!(catalogue.remove(again), Some((family, Removal::Family)));
        assert!(matches!(catalogue.create(name("c"), family), Err(CatalogueError::FamilyGone(_))));
    }
}
