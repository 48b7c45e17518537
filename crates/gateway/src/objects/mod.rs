//! Object path: answers `GetObject` and `HeadObject`, from flash where it can.
//!
//! 1. `request_terms` parses the request. What is not understood passes to the origin unchanged.
//! 2. `probe` confirms the version and the caller's right, unless both are known and fresh.
//! 3. `reader` sends the bytes: from `segment_store`, from a `fill_task` that fetches them,
//!    or from the origin.
//!
//! A segment is 256 KiB of one version. Its name is a keyed hash of origin, bucket, key, tag and
//! position, so an entry of another version is never found, and a restart needs no other state.
//! Every request for bytes carries `If-Match`. An object that changes before the first byte is
//! sent is read again; after it, the connection is cut.
//!
//! The origin answers by itself what the gateway does not know for sure: refusals, absent objects,
//! failed conditions, objects without a strong tag.

pub mod admission;
mod answer_body;
mod counters;
mod fetch_slot;
mod fill_task;
mod identifiers;
mod object_head;
mod probe;
mod reader;
mod request_terms;
mod segment_store;
pub mod settings;

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use forebay_core::gateway::{
    conditions::Outcome,
    fill::FillError,
    read_plan::{SEGMENT_BYTES, SegmentIndex},
    rights::{Holding, Right, Rights},
    versions::{Freshness, Knowledge, Versions},
};
use http::{Response, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use crate::{
    body::{self, GatewayBody},
    cache_header::CacheOutcome,
    object_request::{ObjectMethod, ObjectName, ObjectRequest},
    origin_client::{OriginClient, OriginRequest},
    s3_error::S3Failure,
};

use self::{
    admission::SegmentAdmission,
    answer_body::AnswerBody,
    counters::add,
    fetch_slot::FetchTable,
    fill_task::VersionAccess,
    identifiers::Identifiers,
    object_head::ObjectHead,
    probe::{ProbeNeed, Probed, Probes},
    reader::Reader,
    request_terms::RequestTerms,
    segment_store::SegmentStore,
    settings::Rules,
};

pub use self::{counters::ObjectCounters, settings::ObjectCacheSettings};

/// Times that an answer begins again because the object changed.
const ATTEMPTS_MAX: usize = 4;
/// Segments that are looked up to say whether an answer is a hit.
const LOOKUPS_MAX: usize = 1024;
/// Bytes that wait for one client: the part that is being sent, and the next.
const BYTES_PER_BODY: u64 = 2 * SEGMENT_BYTES;

/// The object path.
pub struct ObjectCache {
    shared: Arc<Shared>,
}

/// What all requests share.
struct Shared {
    origin: OriginClient,
    /// Set when flash has been recovered.
    store: OnceLock<Arc<SegmentStore>>,
    identifiers: Identifiers,
    rules: Rules,
    rights_lifetime: Duration,
    admission: Arc<dyn SegmentAdmission>,
    versions: Mutex<Versions<ObjectHead>>,
    rights: Mutex<Rights>,
    probes: Probes,
    fetches: Mutex<FetchTable>,
    /// In segments.
    fill_memory: Arc<Semaphore>,
    /// In segments.
    read_ahead_memory: Arc<Semaphore>,
    /// In bodies.
    body_memory: Arc<Semaphore>,
    counters: ObjectCounters,
    started: Instant,
}

/// Result of one attempt at an answer.
enum Attempt {
    Answered(Response<GatewayBody>),
    /// The object has changed.
    Again,
    /// The origin has to answer.
    Pass,
}

impl fmt::Debug for ObjectCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectCache").field("is_ready", &self.is_ready()).finish_non_exhaustive()
    }
}

impl Shared {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl ObjectCache {
    /// Opens the device. Returns at once: flash is recovered in the background, and requests pass
    /// to the origin until that is done.
    #[expect(clippy::unused_async, reason = "the caller's runtime runs the recovery")]
    pub async fn open(
        settings: &ObjectCacheSettings,
        origin: OriginClient,
    ) -> anyhow::Result<Self> {
        let permits = |bytes: u64, each: u64| {
            let count = usize::try_from(bytes / each).unwrap_or(usize::MAX);
            Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)))
        };
        // Half for the part that each body sends, half for what is read ahead of its turn.
        let send_memory = settings.send_memory.0 / 2;
        let shared = Arc::new(Shared {
            origin,
            store: OnceLock::new(),
            identifiers: Identifiers::new(settings.key),
            rules: settings.rules.clone(),
            rights_lifetime: settings.rights_lifetime,
            admission: Arc::clone(&settings.admission),
            versions: Mutex::new(Versions::new(settings.objects_max)),
            rights: Mutex::new(Rights::new(settings.objects_max)),
            probes: Probes::default(),
            fetches: Mutex::default(),
            fill_memory: permits(settings.fill_memory.0, SEGMENT_BYTES),
            read_ahead_memory: permits(send_memory, SEGMENT_BYTES),
            body_memory: permits(send_memory, BYTES_PER_BODY),
            counters: ObjectCounters::default(),
            started: Instant::now(),
        });
        if settings.device.is_some() {
            let (settings, shared) = (settings.clone(), Arc::clone(&shared));
            tokio::task::spawn_blocking(move || match SegmentStore::open(&settings) {
                Ok(store) => drop(shared.store.set(Arc::new(store))),
                Err(error) => {
                    tracing::error!(%error, "gateway device not opened; all requests pass");
                }
            });
        }
        Ok(Self { shared })
    }

    /// Whether flash has been recovered. Until then, every request passes.
    pub fn is_ready(&self) -> bool {
        self.shared.store.get().is_some()
    }

    /// The counters.
    pub fn counters(&self) -> &ObjectCounters {
        &self.shared.counters
    }

    /// Counters of the flash engine; `None` until it is ready.
    pub fn flash_counters(&self) -> Option<forebay_flash::shard::Counters> {
        self.shared.store.get()?.flash().counters().first().copied()
    }

    /// Segments that are being fetched.
    pub fn segments_fetching(&self) -> usize {
        self.shared.fetches.lock().len()
    }

    /// Makes durable what was stored, before a stop.
    pub async fn flush(&self) {
        if let Some(store) = self.shared.store.get()
            && let Err(error) = store.flash().flush().await
        {
            tracing::warn!(%error, "gateway device not flushed");
        }
    }

    /// Answers a GET or HEAD that the front understood.
    pub async fn serve(&self, request: ObjectRequest) -> Response<GatewayBody> {
        let Some(store) = self.shared.store.get() else { return self.pass(&request).await };
        let Some(terms) = RequestTerms::of(&request) else { return self.pass(&request).await };
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                add(&self.shared.counters.restarts, 1);
            }
            match self.attempt(store, &request, &terms).await {
                Attempt::Answered(response) => return response,
                Attempt::Again => {}
                Attempt::Pass => break,
            }
        }
        self.pass(&request).await
    }

    /// Forgets what is known of an object. The front calls it before a write, delete, copy or
    /// completed upload of the object is answered.
    pub fn invalidate(&self, object: &ObjectName) {
        let object = self.shared.identifiers.object(object);
        self.shared.versions.lock().on_written(object, self.shared.now());
    }

    /// Passes the request to the origin unchanged.
    async fn pass(&self, request: &ObjectRequest) -> Response<GatewayBody> {
        add(&self.shared.counters.requests_passed, 1);
        let outgoing = OriginRequest::of_object(request);
        match self.shared.origin.send(&request.principal, outgoing).await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                CacheOutcome::Pass.set(&mut head.headers);
                Response::from_parts(head, body.boxed())
            }
            Err(error) => error.into_response(),
        }
    }

    async fn attempt(
        &self,
        store: &Arc<SegmentStore>,
        request: &ObjectRequest,
        terms: &RequestTerms,
    ) -> Attempt {
        let Some(head) = self.confirmed_head(request, terms).await else { return Attempt::Pass };
        let with_range = match terms.conditions.check(head.validators()) {
            Outcome::Proceed { with_range } => with_range,
            // With the origin's own words.
            Outcome::PreconditionFailed => return Attempt::Pass,
            Outcome::NotModified => {
                add(&self.shared.counters.heads_answered, 1);
                let mut response = Response::new(body::empty());
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                *response.headers_mut() = head.not_modified();
                CacheOutcome::Hit.set(response.headers_mut());
                return Attempt::Answered(response);
            }
        };
        let part = match terms.range.filter(|_| with_range).map(|it| it.resolve(head.length())) {
            None => None,
            Some(Ok(part)) => Some(part),
            Some(Err(_)) => return Attempt::Pass,
        };
        let (status, headers) = head.answer(part.as_ref(), terms);
        let mut response = Response::new(body::empty());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        let wanted = part.unwrap_or(0..head.length());
        if request.method == ObjectMethod::Head || wanted.is_empty() {
            add(&self.shared.counters.heads_answered, 1);
            CacheOutcome::Hit.set(response.headers_mut());
            return Attempt::Answered(response);
        }
        self.read(store, request, head, wanted, response).await
    }

    /// The head of the current version, which the caller may have. `None` if the origin has to
    /// answer.
    async fn confirmed_head(
        &self,
        request: &ObjectRequest,
        terms: &RequestTerms,
    ) -> Option<ObjectHead> {
        let Shared { identifiers, rules, rights, versions, .. } = &*self.shared;
        let arrived = self.shared.now();
        let rule = rules.rule_of(&request.object);
        let object = identifiers.object(&request.object);
        let principal = identifiers.principal(&request.principal);
        let scope = identifiers.scope(&request.object, &rule);
        let holding = Holding { principal, scope };
        let is_read = request.method == ObjectMethod::Get;
        let right = if is_read { Right::Read } else { Right::Head };
        let since = match rule.freshness {
            // The probe that confirms the version is the check of the right, too.
            Freshness::Always => arrived,
            _ => arrived.saturating_sub(self.shared.rights_lifetime),
        };
        let knowledge = versions.lock().look_up(object, rule.freshness, arrived, arrived);
        let has_own_key = match &knowledge {
            Knowledge::Known(known) | Knowledge::Doubtful(known) => known.head.has_own_key(),
            Knowledge::Unknown => false,
        };
        if let Knowledge::Known(known) = knowledge
            && (known.head.has_checksums() || !terms.wants_checksums)
            && rights.lock().is_granted(holding, right, since)
        {
            return Some(known.head);
        }
        let wants_checksums = terms.wants_checksums;
        let need = ProbeNeed { object, principal, is_read, wants_checksums };
        match self.shared.probe(request, need, holding, arrived, has_own_key).await {
            Probed::Confirmed(head) => Some(head),
            Probed::Pass => None,
        }
    }

    /// Answers with bytes.
    async fn read(
        &self,
        store: &Arc<SegmentStore>,
        request: &ObjectRequest,
        head: ObjectHead,
        wanted: Range<u64>,
        mut response: Response<GatewayBody>,
    ) -> Attempt {
        let shared = &self.shared;
        let Ok(memory) = Arc::clone(&shared.body_memory).try_acquire_owned() else {
            add(&shared.counters.slow_downs, 1);
            let failure = S3Failure::slow_down("Too many answers wait for their clients.");
            return Attempt::Answered(failure.into_response());
        };
        let version = shared.identifiers.version(&request.object, head.etag());
        let is_here = |segment| store.contains(&shared.identifiers.segment(version, segment));
        let is_hit = SegmentIndex::overlapping(&wanted).take(LOOKUPS_MAX).all(is_here);
        let (sink, mut sent) = mpsc::channel(1);
        let is_fill = Arc::new(AtomicBool::new(false));
        let asked = shared.now();
        let object = shared.identifiers.object(&request.object);
        let etag = head.etag().clone();
        let length = wanted.end - wanted.start;
        let access = VersionAccess {
            principal: request.principal.clone(),
            object: request.object.clone(),
            head,
        };
        let reader = Reader {
            shared: Arc::clone(shared),
            store: Arc::clone(store),
            access: Arc::new(access),
            version,
            job: request.job.clone(),
            wanted,
            sink,
            is_fill: Arc::clone(&is_fill),
            _memory: memory,
        };
        tokio::spawn(reader.run());
        match sent.recv().await {
            Some(Ok(first)) => {
                let outcome = match (is_hit, is_fill.load(Ordering::Relaxed)) {
                    (true, _) => CacheOutcome::Hit,
                    (false, true) => CacheOutcome::Fill,
                    (false, false) => CacheOutcome::Pass,
                };
                outcome.set(response.headers_mut());
                *response.body_mut() = AnswerBody::boxed(Arc::clone(shared), first, sent, length);
                Attempt::Answered(response)
            }
            Some(Err(FillError::Changed)) => {
                shared.versions.lock().on_contradicted(object, &etag, asked);
                Attempt::Again
            }
            Some(Err(_)) | None => Attempt::Pass,
        }
    }
}
