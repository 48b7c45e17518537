//! Origin: an object store that is slow, fails, hangs, and damages a transfer, as the seed says.
//!
//! It stands below `forebay_origin::Remote`, which adds the deadline and the check of versions. The
//! attempts of a read and their timeouts are those of `core::agent::attempt_timeout`; between two
//! attempts it pauses, as `object_store` does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::DateTime;
use fastrand::Rng;
use forebay_core::agent::attempt_timeout::attempt_timeout;
use forebay_origin::{Options, Origin, Remote};
use futures::{StreamExt as _, stream, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, path::Path,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::dataset::{Dataset, VERSION};

/// Pause before the second attempt; it doubles with each.
const PAUSE: Duration = Duration::from_millis(100);

/// Rates of faults of requests, in a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct OriginFaults {
    /// The answer is an error.
    pub failed: u32,
    /// There is no answer.
    pub hung: u32,
    /// A bit of the answer is wrong. Once for each object: a second time would be an error.
    pub damaged: u32,
    /// The answer takes 50 times as long.
    pub slow: u32,
}

/// The store of a world.
pub struct SimStore {
    objects: BTreeMap<String, Bytes>,
    deadline: Duration,
    state: Mutex<State>,
}

struct State {
    random: Rng,
    faults: OriginFaults,
    /// Reads of each object.
    reads: BTreeMap<String, u64>,
    /// Objects of which a transfer was damaged.
    damaged: BTreeSet<String>,
}

impl SimStore {
    /// A store with the objects of these datasets.
    pub fn new(datasets: &[Arc<Dataset>], random: Rng) -> Arc<Self> {
        let objects = datasets.iter().flat_map(|dataset| {
            let object = |blob: forebay_core::BlobOrdinal| {
                let content = &dataset.blobs[usize::try_from(blob.0).expect("blobs are few")];
                (dataset.object(blob), content.clone())
            };
            dataset.ordinals().map(object)
        });
        let state = State {
            random,
            faults: OriginFaults::default(),
            reads: BTreeMap::new(),
            damaged: BTreeSet::new(),
        };
        let deadline = Options::default().deadline;
        Arc::new(Self { objects: objects.collect(), deadline, state: Mutex::new(state) })
    }

    /// The store, as agents read it.
    pub fn origin(self: &Arc<Self>) -> Origin {
        let store: Arc<dyn ObjectStore> = Arc::<Self>::clone(self);
        Origin::Remote(Remote::on_store(store, "s3://world", &Options::default()))
    }

    /// Sets the rates of faults.
    pub fn set_faults(&self, faults: OriginFaults) {
        self.state.lock().faults = faults;
    }

    /// How often an object was read.
    pub fn reads_of(&self, object: &str) -> u64 {
        self.state.lock().reads.get(object).copied().unwrap_or(0)
    }

    /// One attempt to read an object.
    async fn attempt(&self, object: &str, content: &Bytes) -> Result<Bytes> {
        let (latency, fate, damaged) = {
            let mut state = self.state.lock();
            let State { random, faults, damaged, .. } = &mut *state;
            let mut happens = |rate: u32| rate > 0 && random.u32(..1000) < rate;
            let (failed, hung) = (happens(faults.failed), happens(faults.hung));
            let (slow, is_damaged) = (happens(faults.slow), happens(faults.damaged));
            let is_damaged = is_damaged && !content.is_empty() && damaged.insert(object.to_owned());
            let latency = random.u64(1..20) * if slow { 50 } else { 1 };
            (Duration::from_millis(latency), (failed, hung), is_damaged)
        };
        sleep(latency).await;
        match fate {
            (_, true) => std::future::pending().await,
            (true, false) => Err(unsupported()),
            (false, false) if damaged => {
                let mut bytes = content.to_vec();
                bytes[0] ^= 1;
                Ok(bytes.into())
            }
            (false, false) => Ok(content.clone()),
        }
    }
}

fn unsupported() -> Error {
    Error::Generic { store: "simulated", source: "the request failed".into() }
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated store")
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

#[async_trait]
impl ObjectStore for SimStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let object = location.as_ref();
        let missing =
            || Error::NotFound { path: object.to_owned(), source: "no such object".into() };
        let content = self.objects.get(object).ok_or_else(missing)?;
        *self.state.lock().reads.entry(object.to_owned()).or_default() += 1;
        let size = content.len() as u64;
        let range = match options.range {
            Some(GetRange::Bounded(range)) => range,
            _ => 0..size,
        };
        let at = |position: u64| usize::try_from(position.min(size)).expect("objects are short");
        let wanted = content.slice(at(range.start)..at(range.end));
        for attempt in 0.. {
            let patience = attempt_timeout(self.deadline, attempt);
            if let Ok(Ok(bytes)) = timeout(patience, self.attempt(object, &wanted)).await {
                let meta = ObjectMeta {
                    location: location.clone(),
                    last_modified: DateTime::UNIX_EPOCH,
                    size,
                    e_tag: Some(VERSION.to_owned()),
                    version: None,
                };
                let bytes = stream::once(async move { Ok(bytes) }).boxed();
                let (payload, range) = (GetResultPayload::Stream(bytes), range.clone());
                let (attributes, extensions) = Default::default();
                return Ok(GetResult { payload, meta, range, attributes, extensions });
            }
            sleep(PAUSE * 2_u32.pow(attempt.min(6))).await;
        }
        unreachable!("the deadline ends the attempts")
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(unsupported())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(unsupported())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::empty().boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(unsupported())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported())
    }
}
