//! What the job's processes ask of their agent: bytes, now or soon.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use forebay_core::{
    BlobOrdinal, DatasetId, Namespace,
    digest::{Digest, PartView, plan::Layout},
    kept::Kept,
    table::{self, proofs_match},
};
use forebay_origin::{Origin, OriginError, any_version, any_version_from};
use forebay_server::{
    AgentCounters, Peer,
    session::{Replies, Service, fresh_nonce},
};
use forebay_wire::{BlobRange, ErrorCode, GetAnswer, Refusal, Reply, Request, ShowAnswer};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Shared},
    stream::FuturesUnordered,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::{
    Config,
    fetch::{FetchError, Obtained},
    links::Links,
};

/// Blobs that the job may say it will want.
const WANTED_MAX: usize = 1 << 16;
/// Bytes of blobs that are being fetched, in KiB.
const MEMORY_KIB: u64 = 256 << 10;

/// Nodes whose fallbacks are told one by one.
const NODES_COUNTED: usize = 256;

type Refused = (ErrorCode, String);
/// Memory is returned when the last who waited has sent its share.
type Obtaining = Shared<BoxFuture<'static, Result<Arc<Obtained>, Refused>>>;

/// The agent of one job.
pub(crate) struct AgentService {
    pub digest: Digest,
    pub origin: Origin,
    mirror: bool,
    pub namespace: Namespace,
    pub links: Links,
    pub kept: Mutex<Kept>,
    pub memory: Memory,
    pub counters: Arc<AgentCounters>,
    /// What somebody waits for, so that two who miss the same blob wait for one fetch.
    obtaining: Mutex<HashMap<u64, Obtaining>>,
    wanted: Mutex<Wanted>,
    wanted_changed: Notify,
    /// Whether the job has asked for anything yet.
    begun: watch::Sender<bool>,
}

#[derive(Default)]
struct Wanted {
    queue: VecDeque<u64>,
    members: HashSet<u64>,
}

/// A fetch that those who ask may join; it goes when the fetch has ended, however it did.
struct Entry<'a> {
    service: &'a AgentService,
    blob: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.service.obtaining.lock().remove(&self.blob);
    }
}

/// One process of the job.
#[derive(Default)]
pub(crate) struct AgentSession {
    challenge: Option<(DatasetId, [u8; 32])>,
    open: bool,
    /// A probe: whatever is asked for is read from the origin.
    is_forced: bool,
}

/// Memory for what is being fetched.
pub(crate) struct Memory(Arc<Semaphore>);

impl Memory {
    /// Waits until there is enough for a blob; one that is larger than all there is gets all there is.
    pub async fn take(&self, length: u64) -> OwnedSemaphorePermit {
        let kib = u32::try_from(length.div_ceil(1024).clamp(1, MEMORY_KIB)).expect("limits fit");
        Arc::clone(&self.0).acquire_many_owned(kib).await.expect("never closed")
    }
}

impl AgentService {
    pub fn new(config: Config) -> Self {
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
        let counters = Arc::<AgentCounters>::default();
        Self {
            links: Links::new(nodes, credentials, job, digest.clone(), Arc::clone(&counters)),
            digest,
            origin,
            mirror,
            namespace,
            kept: Mutex::new(Kept::new(memory)),
            memory: Memory(Arc::new(Semaphore::new(usize::try_from(MEMORY_KIB).expect("small")))),
            counters,
            obtaining: Mutex::default(),
            wanted: Mutex::default(),
            wanted_changed: Notify::new(),
            begun: watch::Sender::new(false),
        }
    }

    /// The version to ask the origin for. A mirror has versions of its own; there, as everywhere, the
    /// content is what is proved.
    pub fn version_of(&self, part: &PartView<'_>) -> String {
        let end = part.offset + part.length;
        let layout = self.digest.summary().layout.parse::<Layout>();
        match self.mirror {
            false => part.version.to_owned(),
            true if layout.is_ok_and(Layout::takes_whole_objects) => any_version(end),
            true => any_version_from(end),
        }
    }

    /// What the job will want next.
    pub fn next_wanted(&self) -> Option<u64> {
        let mut wanted = self.wanted.lock();
        let blob = wanted.queue.pop_front()?;
        wanted.members.remove(&blob);
        Some(blob)
    }

    /// Whether the job has said that it wants something more.
    pub fn is_something_wanted(&self) -> bool {
        !self.wanted.lock().queue.is_empty()
    }

    /// Completes when the job has said that it wants something more.
    pub async fn something_wanted(&self) {
        self.wanted_changed.notified().await;
    }

    /// Completes when the job has asked for something, now or soon.
    pub async fn has_begun(&self) {
        let _ = self.begun.subscribe().wait_for(|has_begun| *has_begun).await;
    }

    fn want(&self, blobs: Vec<u64>) -> Result<(), Refused> {
        if blobs.iter().any(|blob| *blob >= self.digest.summary().blobs) {
            return Err((ErrorCode::Malformed, "there are not so many blobs".to_owned()));
        }
        let mut wanted = self.wanted.lock();
        for blob in blobs {
            if wanted.queue.len() < WANTED_MAX && wanted.members.insert(blob) {
                wanted.queue.push_back(blob);
            }
        }
        drop(wanted);
        self.wanted_changed.notify_one();
        Ok(())
    }

    /// The bytes of a blob; all who ask meanwhile share one fetch.
    pub fn bytes_of(self: &Arc<Self>, blob: u64) -> Obtaining {
        if let Some(content) = self.kept.lock().take_note_of(blob) {
            let obtained = Obtained::kept(content);
            return futures::future::ready(Ok(Arc::new(obtained))).boxed().shared();
        }
        let mut obtaining = self.obtaining.lock();
        if let Some(shared) = obtaining.get(&blob) {
            return shared.clone();
        }
        // On a task of its own: those who wait may go away, the fetch is of use all the same.
        let service = Arc::clone(self);
        let fetch = tokio::spawn(async move {
            let _entry = Entry { service: &service, blob };
            service.obtain(blob).await.map(Arc::new).map_err(|error| service.refused(&error))
        });
        let failed = |_| Err((ErrorCode::Failed, "the agent failed; its log says how".to_owned()));
        let shared = fetch.map(move |obtained| obtained.unwrap_or_else(failed)).boxed().shared();
        obtaining.insert(blob, shared.clone());
        shared
    }

    /// The bytes of a blob from the origin, as if nobody had them.
    fn bytes_past_the_cache(self: &Arc<Self>, blob: u64) -> Obtaining {
        let service = Arc::clone(self);
        let fetch = async move {
            let obtained = service.obtain_past_the_cache(blob).await;
            obtained.map(Arc::new).map_err(|error| service.refused(&error))
        };
        fetch.boxed().shared()
    }

    /// Why there are no bytes. A mirror may yet be made what the digest says; another version of what the
    /// digest was built of stays another.
    fn refused(&self, error: &FetchError) -> Refused {
        let has_changed = matches!(error, FetchError::Origin(OriginError::Changed { .. }));
        let code = if has_changed && !self.mirror { ErrorCode::Changed } else { ErrorCode::Failed };
        (code, chain(error))
    }

    async fn get(self: Arc<Self>, ranges: Vec<BlobRange>, is_forced: bool, replies: Replies) {
        let mut by_blob: HashMap<u64, Vec<(u32, BlobRange)>> = HashMap::new();
        for (index, range) in ranges.into_iter().enumerate() {
            let index = u32::try_from(index).expect("batches are bounded");
            by_blob.entry(range.blob).or_default().push((index, range));
        }
        let mut blobs: FuturesUnordered<_> = by_blob
            .into_iter()
            .map(|(blob, ranges)| {
                let bytes =
                    if is_forced { self.bytes_past_the_cache(blob) } else { self.bytes_of(blob) };
                bytes.map(|content| (content, ranges))
            })
            .collect();
        while let Some((content, ranges)) = blobs.next().await {
            let obtained = match content {
                Ok(obtained) => obtained,
                Err((code, text)) => return replies.refuse(code, text).await,
            };
            for (index, range) in ranges {
                let start = usize::try_from(range.offset).expect("checked");
                let payload = obtained.content.slice(start..start + range.length as usize);
                // Nobody is left to read it.
                let Some(room) = replies.room_for(payload.len()).await else { return };
                let reply = Reply::Get { index, answer: GetAnswer::Hit, payload };
                replies.send_payload(&reply, room);
                self.counters.gets.one();
            }
        }
    }

    fn check(&self, ranges: &[BlobRange]) -> Result<(), Refused> {
        for range in ranges {
            let length = (range.blob < self.digest.summary().blobs)
                .then(|| self.digest.blob(BlobOrdinal::new(range.blob)))
                .and_then(Result::ok)
                .map_or(0, |row| row.length);
            let end = range.offset.checked_add(u64::from(range.length));
            if end.is_none_or(|end| end > length) {
                let text = format!("a range leaves blob {}", range.blob);
                return Err((ErrorCode::Malformed, text));
            }
        }
        Ok(())
    }

    fn show(&self, session: &mut AgentSession, dataset: DatasetId) -> Result<Reply, Refused> {
        let nonce = fresh_nonce().filter(|_| dataset == self.digest.summary().dataset);
        let nonce = nonce
            .ok_or_else(|| (ErrorCode::Unknown, "this agent serves another dataset".to_owned()))?;
        session.challenge = Some((dataset, nonce));
        Ok(Reply::Show(ShowAnswer::Prove { nonce }))
    }

    fn prove(
        &self,
        session: &mut AgentSession,
        dataset: DatasetId,
        proof: [u8; 32],
    ) -> Result<Reply, Refused> {
        let unknown = || (ErrorCode::Unknown, "the proof is wrong".to_owned());
        let (_, nonce) =
            session.challenge.take().filter(|(shown, _)| *shown == dataset).ok_or_else(unknown)?;
        let expected = table::proof_of(&self.digest, &nonce).map_err(|_| unknown())?;
        if !proofs_match(&expected, &proof) {
            return Err(unknown());
        }
        session.open = true;
        Ok(Reply::Open { handle: 0 })
    }

    fn counted(&self) -> Vec<(String, u64)> {
        let by_node = self.links.fallbacks().into_iter().take(NODES_COUNTED);
        let by_node = by_node.map(|(node, value)| (format!("agent_fallbacks_of_{node}"), value));
        self.counters.pairs().into_iter().chain(by_node).collect()
    }

    fn answer_to(
        self: &Arc<Self>,
        session: &mut AgentSession,
        request: Request,
    ) -> Result<Option<Reply>, Refused> {
        let handle = match &request {
            Request::Get { handle, .. }
            | Request::Want { handle, .. }
            | Request::Mode { handle, .. } => Some(*handle),
            _ => None,
        };
        if handle.is_some_and(|handle| handle != 0 || !session.open) {
            return Err((ErrorCode::Unknown, "no dataset is open under this handle".to_owned()));
        }
        if matches!(request, Request::Get { .. } | Request::Want { .. }) {
            self.begun.send_if_modified(|begun| !std::mem::replace(begun, true));
        }
        Ok(Some(match request {
            Request::Show { dataset, .. } => self.show(session, dataset)?,
            Request::Prove { dataset, proof } => self.prove(session, dataset, proof)?,
            Request::Want { blobs, .. } => self.want(blobs).map(|()| Reply::Wanted)?,
            Request::Mode { is_forced, .. } => {
                session.is_forced = is_forced;
                Reply::ModeSet
            }
            Request::Get { ranges, .. } => {
                self.check(&ranges)?;
                return Ok(None);
            }
            Request::Stats => Reply::Stats { counters: self.counted() },
            _ => return Err((ErrorCode::Malformed, "agents do not answer this".to_owned())),
        }))
    }
}

impl Service for AgentService {
    type Session = AgentSession;

    fn lease(&self) -> Duration {
        Duration::ZERO
    }

    /// The socket lets in the job's own user alone.
    fn connected(
        self: &Arc<Self>,
        _peer: &Peer,
        _job: &str,
        _token: &[u8],
    ) -> Result<AgentSession, Refusal> {
        Ok(AgentSession::default())
    }

    async fn handle(
        self: &Arc<Self>,
        session: &mut AgentSession,
        request: Request,
        replies: Replies,
    ) {
        let ranges = match &request {
            Request::Get { ranges, .. } => ranges.clone(),
            _ => Vec::new(),
        };
        match self.answer_to(session, request) {
            Ok(Some(reply)) => replies.send(&reply).await,
            Ok(None) => {
                let (service, permit) = (Arc::clone(self), replies.begin_get(ranges.len()).await);
                let is_forced = session.is_forced;
                tokio::spawn(async move {
                    service.get(ranges, is_forced, replies).await;
                    drop(permit);
                });
            }
            Err((code, text)) => replies.refuse(code, text).await,
        }
    }

    async fn gone(self: &Arc<Self>, _session: AgentSession) {}
}

/// An error and what caused it, in one line.
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
