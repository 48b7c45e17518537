//! The agent's service: gets and prefetch hints of the job's processes.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use forebay_core::{
    BlobOrdinal, ByteSize, DatasetId, Namespace, agent::agent_cache::AgentCache,
    dataset::possession::proofs_match, node::byte_budget::ShareId,
};
use forebay_digest::{Digest, Layout, PartView};
use forebay_origin::{Origin, OriginError, any_version, any_version_from};
use forebay_transport::{
    ConnectionMemory, Entropy, Latch, Peer,
    session::{Replies, Service},
};
use forebay_wire::{
    BlobRange, ErrorCode, GetAnswer, OpenAnswer, PAYLOAD_SIZE_MAX, Refusal, Reply, Request,
};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Shared},
    stream::FuturesUnordered,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::{
    Config, Environment,
    cluster::{Login, NodeLinks},
    fetch::{FetchError, FetchedBlob},
    metrics::AgentCounters,
};

/// Most blobs in the queue of prefetch hints.
const HINTS_MAX: usize = 1 << 16;
/// Memory for blobs that are being fetched, in KiB.
const MEMORY_KIB: u64 = 256 << 10;

/// Memory for replies that the job's processes have not read.
const CONNECTION_MEMORY: ByteSize = ByteSize::mib(512);
/// Processes of a job, for the size of their socket buffers.
const PROCESSES: usize = 128;
/// Most nodes whose fallbacks are reported one by one.
const NODES_REPORTED: usize = 256;

type Refused = (ErrorCode, String);
/// A fetch that several requests share. Its memory is returned when the last of them has sent its
/// reply.
type SharedFetch = Shared<BoxFuture<'static, Result<Arc<FetchedBlob>, Refused>>>;

/// The agent of one job.
pub(crate) struct AgentService {
    pub digest: Digest,
    pub origin: Origin,
    mirror: bool,
    pub namespace: Namespace,
    pub links: NodeLinks,
    pub cache: Mutex<AgentCache>,
    pub memory: FetchMemory,
    connection_memory: Arc<ConnectionMemory>,
    pub counters: Arc<AgentCounters>,
    /// Demand fetches in progress, so that two processes that miss the same blob share one fetch.
    demand: Mutex<HashMap<BlobOrdinal, SharedFetch>>,
    hints: Mutex<HintQueue>,
    hint_added: Notify,
    /// Set when the job has sent a get or a hint.
    has_begun: Latch,
    entropy: Entropy,
}

/// Prefetch hints in order, without duplicates.
#[derive(Default)]
struct HintQueue {
    /// May have blobs that are no members any more.
    queue: VecDeque<BlobOrdinal>,
    members: HashSet<BlobOrdinal>,
    /// Blobs whose prefetch has begun and that the job has not read since.
    begun: HashSet<BlobOrdinal>,
}

impl HintQueue {
    fn next(&mut self) -> Option<BlobOrdinal> {
        let blob = loop {
            let blob = self.queue.pop_front()?;
            if self.members.remove(&blob) {
                break blob;
            }
        };
        self.begun.insert(blob);
        Some(blob)
    }

    /// The job reads a blob whole: a prefetch of it would be too late.
    fn on_read(&mut self, blob: BlobOrdinal) {
        self.members.remove(&blob);
        self.begun.remove(&blob);
    }
}

/// Removes a demand fetch from the table when it has ended, also by a panic.
struct DemandEntry<'a> {
    service: &'a AgentService,
    blob: BlobOrdinal,
}

impl Drop for DemandEntry<'_> {
    fn drop(&mut self) {
        self.service.demand.lock().remove(&self.blob);
    }
}

/// One process of the job.
#[derive(Default)]
pub(crate) struct AgentSession {
    challenge: Option<(DatasetId, [u8; 32])>,
    is_open: bool,
    /// Probe mode: gets read the origin.
    is_forced: bool,
}

/// The answer to a request.
enum Answer {
    Now(Reply),
    /// These ranges, from a task.
    Get(Vec<BlobRange>),
    /// The results of checking these blobs, from a task.
    Recheck(Vec<BlobOrdinal>),
}

/// A part of a blob that is read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    blob: BlobOrdinal,
    start: u64,
    end: u64,
}

/// Memory for blobs that are being fetched.
pub(crate) struct FetchMemory(Arc<Semaphore>);

impl FetchMemory {
    /// Waits until there is enough for a blob. A blob larger than all of it takes all of it.
    pub async fn take(&self, length: u64) -> OwnedSemaphorePermit {
        let kib = u32::try_from(length.div_ceil(1024).clamp(1, MEMORY_KIB)).expect("limits fit");
        Arc::clone(&self.0).acquire_many_owned(kib).await.expect("never closed")
    }
}

impl AgentService {
    pub fn new(config: Config, environment: Environment) -> Self {
        let Config {
            nodes,
            credentials,
            job,
            digest,
            origin,
            mirror,
            namespace,
            memory,
            socket: _,
        } = config;
        let Environment { entropy, connector } = environment;
        let counters = Arc::<AgentCounters>::default();
        let login = Login { job, credentials, connector };
        Self {
            links: NodeLinks::new(nodes, login, digest.clone(), Arc::clone(&counters)),
            digest,
            origin,
            mirror,
            namespace,
            cache: Mutex::new(AgentCache::new(memory)),
            memory: FetchMemory(Arc::new(Semaphore::new(
                usize::try_from(MEMORY_KIB).expect("small"),
            ))),
            connection_memory: ConnectionMemory::new(CONNECTION_MEMORY, PROCESSES, false),
            counters,
            demand: Mutex::default(),
            hints: Mutex::default(),
            hint_added: Notify::new(),
            has_begun: Latch::default(),
            entropy,
        }
    }

    /// The version to request from the origin. A mirror has versions of its own; there the content
    /// alone is verified.
    pub fn version_of(&self, part: &PartView<'_>) -> String {
        let end = part.offset + part.length;
        let layout = self.digest.summary().layout.parse::<Layout>();
        match self.mirror {
            false => part.version.to_owned(),
            true if layout.is_ok_and(Layout::takes_whole_objects) => any_version(end),
            true => any_version_from(end),
        }
    }

    /// Takes the next hinted blob.
    pub fn next_hinted(&self) -> Option<BlobOrdinal> {
        self.hints.lock().next()
    }

    /// Whether the job has not read a blob since its prefetch began.
    pub fn is_still_hinted(&self, blob: BlobOrdinal) -> bool {
        self.hints.lock().begun.contains(&blob)
    }

    /// The prefetch of a hinted blob has ended.
    pub fn on_prefetched(&self, blob: BlobOrdinal) {
        self.hints.lock().begun.remove(&blob);
    }

    /// Whether hinted blobs are queued.
    pub fn has_hints(&self) -> bool {
        !self.hints.lock().members.is_empty()
    }

    /// Completes when a hint was added.
    pub async fn hint_added(&self) {
        self.hint_added.notified().await;
    }

    /// Completes when the job has sent its first get or hint.
    pub async fn first_request(&self) {
        self.has_begun.wait().await;
    }

    fn check_blobs(&self, blobs: &[BlobOrdinal]) -> Result<(), Refused> {
        let count = self.digest.summary().blobs;
        let Some(blob) = blobs.iter().find(|blob| blob.0 >= count) else { return Ok(()) };
        let text = format!("blob {blob} is out of range; the dataset has {count}");
        Err((ErrorCode::Malformed, text))
    }

    fn add_hints(&self, blobs: Vec<BlobOrdinal>) -> Result<(), Refused> {
        self.check_blobs(&blobs)?;
        let mut hints = self.hints.lock();
        for blob in blobs {
            if hints.queue.len() < HINTS_MAX && hints.members.insert(blob) {
                hints.queue.push_back(blob);
            }
        }
        drop(hints);
        self.hint_added.notify_one();
        Ok(())
    }

    /// The bytes of a blob, from the agent's cache or by a demand fetch that concurrent requests
    /// share. `is_whole` if the job reads all of the blob now.
    pub fn bytes_of(self: &Arc<Self>, blob: BlobOrdinal, is_whole: bool) -> SharedFetch {
        if let Some(content) = self.cache.lock().get(blob) {
            let fetched = FetchedBlob::cached(content);
            return futures::future::ready(Ok(Arc::new(fetched))).boxed().shared();
        }
        let mut demand = self.demand.lock();
        if let Some(shared) = demand.get(&blob) {
            return shared.clone();
        }
        // On a task of its own: it continues when the waiting requests are cancelled, because the
        // blob still goes to the node.
        let service = Arc::clone(self);
        let fetch = tokio::spawn(async move {
            let _entry = DemandEntry { service: &service, blob };
            let fetched = service.fetch_demand(blob, is_whole).await;
            fetched.map(Arc::new).map_err(|error| service.refused(&error))
        });
        let failed = |_| Err((ErrorCode::Failed, "the agent failed; see its log".to_owned()));
        let shared = fetch.map(move |fetched| fetched.unwrap_or_else(failed)).boxed().shared();
        demand.insert(blob, shared.clone());
        shared
    }

    /// An extent of a blob from the origin, for a probe.
    fn bytes_from_origin(self: &Arc<Self>, blob: BlobOrdinal, extent: Range<u64>) -> SharedFetch {
        let service = Arc::clone(self);
        let fetch = async move {
            let fetched = service.fetch_from_origin(blob, extent).await;
            fetched.map(Arc::new).map_err(|error| service.refused(&error))
        };
        fetch.boxed().shared()
    }

    /// The refusal for a failed fetch. A changed object of the origin is permanent; a mirror may
    /// still be brought up to date.
    fn refused(&self, error: &FetchError) -> Refused {
        let has_changed = matches!(error, FetchError::Origin(OriginError::Changed { .. }));
        let code = if has_changed && !self.mirror { ErrorCode::Changed } else { ErrorCode::Failed };
        (code, chain(error))
    }

    async fn get(self: Arc<Self>, ranges: Vec<BlobRange>, is_forced: bool, replies: Replies) {
        let mut by_extent: BTreeMap<Extent, Vec<(u32, BlobRange)>> = BTreeMap::new();
        for (index, range) in ranges.into_iter().enumerate() {
            let index = u32::try_from(index).expect("batches are bounded");
            let extent = match self.extent(&range, is_forced) {
                Ok(extent) => extent,
                Err(error) => {
                    let (code, text) = self.refused(&error);
                    return replies.refuse(code, text).await;
                }
            };
            by_extent.entry(extent).or_default().push((index, range));
        }
        let mut extents: FuturesUnordered<_> = by_extent
            .into_iter()
            .map(|(Extent { blob, start, end }, ranges)| {
                let bytes = if is_forced {
                    self.bytes_from_origin(blob, start..end)
                } else {
                    let read: u64 = ranges.iter().map(|(_, range)| u64::from(range.length)).sum();
                    let is_whole = read >= end - start;
                    if is_whole {
                        self.hints.lock().on_read(blob);
                    }
                    self.bytes_of(blob, is_whole)
                };
                bytes.map(move |content| (content, start, ranges))
            })
            .collect();
        while let Some((content, extent_start, ranges)) = extents.next().await {
            let fetched = match content {
                Ok(fetched) => fetched,
                Err((code, text)) => return replies.refuse(code, text).await,
            };
            self.counters.items.add(items_in(&ranges));
            for (index, range) in ranges {
                if !is_forced {
                    self.cache.lock().on_served(range.blob, range.length as usize);
                }
                let start = usize::try_from(range.offset - extent_start).expect("checked");
                let payload = fetched.content.slice(start..start + range.length as usize);
                // The connection is closed.
                let Some(room) = replies.reserve(payload.len()).await else { return };
                let reply = Reply::Get { index, answer: GetAnswer::Hit, payload };
                replies.send_payload(&reply, room);
                self.counters.gets.one();
            }
        }
    }

    /// What is read for a range: the whole blob, which serves further ranges. For a probe as few
    /// bytes as can be verified: a batch of small items lies in as many packs.
    fn extent(&self, range: &BlobRange, is_forced: bool) -> Result<Extent, FetchError> {
        let blob = range.blob;
        if !is_forced {
            return Ok(Extent { blob, start: 0, end: self.digest.blob(blob)?.length });
        }
        let extent =
            self.extent_of(blob, &(range.offset..range.offset + u64::from(range.length)))?;
        Ok(Extent { blob, start: extent.start, end: extent.end })
    }

    fn check(&self, ranges: &[BlobRange]) -> Result<(), Refused> {
        for range in ranges {
            let length = (range.blob.0 < self.digest.summary().blobs)
                .then(|| self.digest.blob(range.blob))
                .and_then(Result::ok)
                .map_or(0, |row| row.length);
            let end = range.offset.checked_add(u64::from(range.length));
            if end.is_none_or(|end| end > length) {
                let text = format!("a range exceeds blob {}", range.blob);
                return Err((ErrorCode::Malformed, text));
            }
        }
        Ok(())
    }

    fn open(&self, session: &mut AgentSession, dataset: DatasetId) -> Result<Reply, Refused> {
        let nonce = self.entropy.nonce().filter(|_| dataset == self.digest.summary().dataset);
        let nonce = nonce
            .ok_or_else(|| (ErrorCode::Unknown, "this agent serves another dataset".to_owned()))?;
        session.challenge = Some((dataset, nonce));
        Ok(Reply::OpenAnswer(OpenAnswer::Prove { nonce }))
    }

    fn prove(
        &self,
        session: &mut AgentSession,
        dataset: DatasetId,
        proof: [u8; 32],
    ) -> Result<Reply, Refused> {
        let unknown = || (ErrorCode::Unknown, "the proof of possession is wrong".to_owned());
        let (_, nonce) = session
            .challenge
            .take()
            .filter(|(opened, _)| *opened == dataset)
            .ok_or_else(unknown)?;
        let expected = forebay_digest::proof_of(&self.digest, &nonce).map_err(|_| unknown())?;
        if !proofs_match(&expected, &proof) {
            return Err(unknown());
        }
        session.is_open = true;
        Ok(Reply::Open { handle: 0 })
    }

    /// The counters, and the fallbacks of each node.
    fn stats(&self) -> Vec<(String, u64)> {
        let by_node = self.links.fallbacks().into_iter().take(NODES_REPORTED);
        let by_node = by_node.map(|(node, value)| (format!("agent_fallbacks_of_{node}"), value));
        self.counters.pairs().into_iter().chain(by_node).collect()
    }

    fn answer_to(
        self: &Arc<Self>,
        session: &mut AgentSession,
        request: Request,
    ) -> Result<Answer, Refused> {
        let handle = match &request {
            Request::Get { handle, .. }
            | Request::PrefetchHint { handle, .. }
            | Request::ProbeMode { handle, .. }
            | Request::WrongBytes { handle, .. } => Some(*handle),
            _ => None,
        };
        if handle.is_some_and(|handle| handle != 0 || !session.is_open) {
            return Err((ErrorCode::Unknown, "no dataset is open under this handle".to_owned()));
        }
        if matches!(request, Request::Get { .. } | Request::PrefetchHint { .. }) {
            self.has_begun.set();
        }
        Ok(Answer::Now(match request {
            Request::Open { dataset, .. } => self.open(session, dataset)?,
            Request::Prove { dataset, proof } => self.prove(session, dataset, proof)?,
            Request::PrefetchHint { blobs, .. } => {
                self.add_hints(blobs).map(|()| Reply::PrefetchNoted)?
            }
            Request::ProbeMode { is_forced, .. } => {
                session.is_forced = is_forced;
                Reply::ProbeModeSet
            }
            Request::Get { ranges, .. } => {
                self.check(&ranges)?;
                return Ok(Answer::Get(ranges));
            }
            Request::WrongBytes { blobs, .. } => {
                self.check_blobs(&blobs)?;
                return Ok(Answer::Recheck(blobs));
            }
            Request::Stats => Reply::Stats { counters: self.stats() },
            _ => {
                return Err((
                    ErrorCode::Malformed,
                    "an agent does not serve this request; send it to the node".to_owned(),
                ));
            }
        }))
    }
}

impl Service for AgentService {
    type Session = AgentSession;
    /// Connections are limited by their number only.
    type Slot = ();

    fn memory(&self) -> &Arc<ConnectionMemory> {
        &self.connection_memory
    }

    fn share(&self, _session: &AgentSession) -> ShareId {
        ShareId(0)
    }

    fn lease(&self) -> Duration {
        Duration::ZERO
    }

    /// No check is needed: only the job's user can open the socket.
    fn on_hello(
        self: &Arc<Self>,
        _peer: &Peer,
        _job: &str,
        _token: &[u8],
        _slot: &mut (),
    ) -> Result<AgentSession, Refusal> {
        Ok(AgentSession::default())
    }

    async fn handle(
        self: &Arc<Self>,
        session: &mut AgentSession,
        request: Request,
        replies: Replies,
    ) {
        match self.answer_to(session, request) {
            Ok(Answer::Now(reply)) => replies.send(&reply).await,
            Ok(Answer::Get(ranges)) => {
                let (service, permit) = (Arc::clone(self), replies.begin_get(ranges.len()).await);
                let is_forced = session.is_forced;
                tokio::spawn(async move {
                    service.get(ranges, is_forced, replies).await;
                    drop(permit);
                });
            }
            Ok(Answer::Recheck(blobs)) => {
                let (service, permit) = (Arc::clone(self), replies.begin_get(blobs.len()).await);
                tokio::spawn(async move {
                    let answers = service.on_wrong_bytes(&blobs).await;
                    replies.send(&Reply::WrongBytes { answers }).await;
                    drop(permit);
                });
            }
            Err((code, text)) => replies.refuse(code, text).await,
        }
    }

    async fn on_disconnect(self: &Arc<Self>, _session: AgentSession) {}
}

/// Number of items in ranges of one blob: a range that continues one of the greatest length belongs
/// to the same item.
fn items_in(ranges: &[(u32, BlobRange)]) -> u64 {
    let continues = |pair: &&[(u32, BlobRange)]| {
        let [(_, first), (_, second)] = pair else { return false };
        let length = first.length as usize;
        length == PAYLOAD_SIZE_MAX && first.offset + u64::from(first.length) == second.offset
    };
    (ranges.len() - ranges.windows(2).filter(continues).count()) as u64
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of an item over 16 MiB count once, and neighbours in a pack count each.
    #[test]
    fn a_long_item_is_one_item() {
        let long = u32::try_from(PAYLOAD_SIZE_MAX).unwrap();
        let count = |extents: &[(u64, u32)]| {
            let range = |(offset, length)| BlobRange { blob: BlobOrdinal::new(0), offset, length };
            let ranges = (0_u32..).zip(extents);
            items_in(&ranges.map(|(at, extent)| (at, range(*extent))).collect::<Vec<_>>())
        };
        let start = u64::from(long);
        assert_eq!(count(&[(0, long), (start, long), (2 * start, 7)]), 1);
        assert_eq!(count(&[(0, 100), (100, 100), (200, 100)]), 3);
        assert_eq!(count(&[(start, long), (0, 100)]), 2, "not in order");
        assert_eq!(count(&[(3, long)]), 1);
    }
}
