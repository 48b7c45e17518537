//! Hashing: reads the parts of planned blobs and computes their addresses and hash trees.
//!
//! Local files are read and hashed on blocking threads, in batches of small files, because a thread
//! switch costs more than a small file. Remote objects are fetched in parallel, within the limits
//! of the origin, and hashed as their ranges arrive.

use std::{cell::RefCell, ops::Range, sync::Arc, thread::available_parallelism};

use bytes::BytesMut;
use forebay_core::{
    Namespace,
    dataset::hash_tree::{HashedContent, TreeHasher},
};
use forebay_digest::{Blob, BlobPlan, Part};
use forebay_origin::{LocalReader, Origin, OriginError, PIECE};
use futures::{Stream, StreamExt as _, stream::FuturesOrdered};
use tokio::sync::Semaphore;

use super::build::fill::{self, FillSink};

/// A batch of local blobs for a blocking thread is full at this number of bytes, blobs or items.
const BATCH_BYTES: u64 = 4 << 20;
const BATCH_BLOBS: usize = 64;
const BATCH_ITEMS: usize = 4096;
/// Remote blobs in flight. The origin limits their requests and bytes.
const REMOTE_WINDOW: usize = 64;
/// Ranges in flight of a small blob. A large blob has two, which limits it to `MEMORY_PER_BLOB`.
const RANGES_WINDOW: usize = 16;
const MEMORY_PER_BLOB: u64 = 2 * PIECE;
/// Memory of all remote blobs together.
const MEMORY: u64 = 8 * MEMORY_PER_BLOB;
const _: () = assert!(fill::LENGTH_MAX <= MEMORY, "a blob that is kept is within it");
/// Memory is granted in pages, because a semaphore counts in 32 bits.
const PAGE: u64 = 4096;
/// Large enough to make system calls cheap, small enough for the cache of one core.
const BUFFER: usize = 256 << 10;

thread_local! {
    /// Reused, because fresh memory for every file would cost more than hashing a small one.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// A blob to be hashed.
#[derive(Debug)]
pub struct Task {
    /// The blob.
    pub plan: BlobPlan,
    /// Its hash, if an earlier digest has it. Then the blob is not read.
    pub known: Option<HashedContent>,
}

impl From<BlobPlan> for Task {
    fn from(plan: BlobPlan) -> Self {
        Self { plan, known: None }
    }
}

impl Task {
    /// Bytes that have to be read.
    fn length(&self) -> u64 {
        if self.known.is_some() { 0 } else { self.plan.length() }
    }
}

/// Rows of blobs, in their order. Stops at the first error of a plan or the origin.
pub fn rows<'a, E>(
    origin: &'a Origin,
    namespace: &'a Namespace,
    fill: Option<FillSink>,
    tasks: impl Stream<Item = Result<Task, E>> + Send + 'a,
) -> impl Stream<Item = Result<Blob, E>> + Send + 'a
where
    E: From<OriginError> + Send + 'static,
{
    hashed(origin, namespace, fill, tasks).map(|(plan, hashed)| {
        let BlobPlan { parts, items } = plan;
        let HashedContent { address, tree } = hashed??;
        Ok(Blob { address, parts, items, tree })
    })
}

type Hashed<E> = (BlobPlan, Result<Result<HashedContent, OriginError>, E>);

/// Addresses and hash trees of blobs, in their order. Each has its own error. Remote blobs go to
/// `fill` as well.
pub fn hashed<'a, E: Send + 'static>(
    origin: &'a Origin,
    namespace: &'a Namespace,
    fill: Option<FillSink>,
    tasks: impl Stream<Item = Result<Task, E>> + Send + 'a,
) -> impl Stream<Item = Hashed<E>> + Send + 'a {
    let threads = available_parallelism().map_or(1, usize::from);
    let (window, batch_blobs) = match origin {
        // Several batches per thread, so that one long file does not idle the other threads.
        Origin::Local(_) => (threads * 4, BATCH_BLOBS),
        Origin::Remote(_) => (REMOTE_WINDOW, 1),
    };
    // Two batches per thread: while one is handed over, the other is hashed.
    let slots = Arc::new(Semaphore::new(threads * 2));
    let memory = Arc::new(Semaphore::new(usize::try_from(MEMORY / PAGE).expect("fits")));
    batches(tasks, batch_blobs)
        .map(move |batch| {
            let (origin, namespace) = (origin.clone(), namespace.clone());
            let (slots, memory, fill) = (slots.clone(), memory.clone(), fill.clone());
            tokio::spawn(async move {
                let mut rows = Vec::with_capacity(batch.len());
                match origin {
                    Origin::Local(tree) => {
                        let _slot = slots.acquire_owned().await.expect("never closed");
                        let work = move || {
                            let mut reader = tree.reader();
                            let mut hash = |plan: &BlobPlan| {
                                READ_BUFFER.with_borrow_mut(|buffer| {
                                    hash_local(&mut reader, &namespace, plan, buffer)
                                })
                            };
                            batch
                                .into_iter()
                                .map(|task| with_hash(task, &mut hash))
                                .collect::<Vec<_>>()
                        };
                        rows = tokio::task::spawn_blocking(work)
                            .await
                            .expect("hashing does not panic");
                    }
                    Origin::Remote(_) => {
                        for task in batch {
                            rows.push(match task {
                                Ok(Task { plan, known: Some(hashed) }) => (plan, Ok(Ok(hashed))),
                                Ok(Task { plan, known: None }) => {
                                    let length = plan.length();
                                    let fill = fill.as_ref().filter(|fill| fill.wants(length));
                                    let kept = if fill.is_some() { length } else { 0 };
                                    let pages =
                                        length.min(MEMORY_PER_BLOB).max(kept).div_ceil(PAGE);
                                    let pages = u32::try_from(pages).expect("bounded");
                                    let _granted = memory.acquire_many(pages).await;
                                    let hashed =
                                        hash_remote(&origin, &namespace, &plan, fill).await;
                                    (plan, Ok(hashed))
                                }
                                Err(error) => (BlobPlan::default(), Err(error)),
                            });
                        }
                    }
                }
                rows
            })
        })
        .buffered(window)
        .flat_map(|batch| futures::stream::iter(batch.expect("hashing does not panic")))
}

fn with_hash<E>(
    task: Result<Task, E>,
    hash: impl FnOnce(&BlobPlan) -> Result<HashedContent, OriginError>,
) -> Hashed<E> {
    match task {
        Ok(Task { plan, known }) => {
            let hashed = known.map_or_else(|| hash(&plan), Ok);
            (plan, Ok(hashed))
        }
        Err(error) => (BlobPlan::default(), Err(error)),
    }
}

/// Groups blobs into batches.
fn batches<E: Send>(
    tasks: impl Stream<Item = Result<Task, E>> + Send,
    blobs_max: usize,
) -> impl Stream<Item = Vec<Result<Task, E>>> + Send {
    futures::stream::unfold(Box::pin(tasks.fuse()), move |mut tasks| async move {
        let (mut batch, mut bytes, mut items) = (Vec::new(), 0, 0);
        while batch.len() < blobs_max && bytes < BATCH_BYTES && items < BATCH_ITEMS {
            match tasks.next().await {
                Some(Ok(task)) => {
                    bytes += task.length();
                    items += task.plan.parts.len();
                    batch.push(Ok(task));
                }
                Some(Err(error)) => {
                    batch.push(Err(error));
                    break;
                }
                None => break,
            }
        }
        (!batch.is_empty()).then_some((batch, tasks))
    })
}

/// Hashes the parts of a local blob. Small parts are collected in the buffer first, because BLAKE3
/// is several times faster on many KiB than on one.
fn hash_local(
    reader: &mut LocalReader<'_>,
    namespace: &Namespace,
    plan: &BlobPlan,
    buffer: &mut [u8],
) -> Result<HashedContent, OriginError> {
    let mut hasher = TreeHasher::new(namespace, plan.leaf_length());
    let mut filled = 0;
    for part in &plan.parts {
        let object = reader.open(&part.object)?;
        let (mut at, end) = (part.offset, part.offset + part.length);
        while at < end {
            let free = buffer.len() - filled;
            let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(free);
            object.read_exact_at(&mut buffer[filled..filled + count], at)?;
            at += count as u64;
            filled += count;
            if filled == buffer.len() {
                hasher.update(buffer);
                filled = 0;
            }
        }
        object.confirm(&part.version)?;
    }
    hasher.update(&buffer[..filled]);
    Ok(hasher.finish())
}

async fn hash_remote(
    origin: &Origin,
    namespace: &Namespace,
    plan: &BlobPlan,
    fill: Option<&FillSink>,
) -> Result<HashedContent, OriginError> {
    let parts = &plan.parts[..];
    let window = if plan.length() <= MEMORY_PER_BLOB { RANGES_WINDOW } else { 2 };
    // An empty object cannot be read, but it must exist and be empty.
    for part in parts.iter().filter(|part| part.length == 0) {
        origin.confirm(&part.object, &part.version).await?;
    }
    let mut ranges = Ranges { parts, done: 0 };
    let mut reads = FuturesOrdered::new();
    let mut hasher = TreeHasher::new(namespace, plan.leaf_length());
    let mut kept = BytesMut::new();
    loop {
        let free = window - reads.len();
        for (part, range) in ranges.by_ref().take(free) {
            reads.push_back(origin.read(&part.object, &part.version, range));
        }
        match reads.next().await {
            Some(bytes) => {
                let bytes = bytes?;
                hasher.update(&bytes);
                if fill.is_some() {
                    kept.extend_from_slice(&bytes);
                }
            }
            None => break,
        }
    }
    let content = hasher.finish();
    if let Some(fill) = fill {
        fill.put(content.address, kept.freeze()).await;
    }
    Ok(content)
}

/// Ranges of at most `PIECE` bytes of some parts, in order. Lazy, because a part may have any
/// length.
struct Ranges<'a> {
    parts: &'a [Part],
    /// Bytes of the first part that earlier ranges cover.
    done: u64,
}

impl<'a> Iterator for Ranges<'a> {
    type Item = (&'a Part, Range<u64>);

    fn next(&mut self) -> Option<Self::Item> {
        while let [part, rest @ ..] = self.parts {
            let start = self.done;
            self.done = part.length.min(start.saturating_add(PIECE));
            if self.done > start {
                return Some((part, part.offset + start..part.offset + self.done));
            }
            (self.parts, self.done) = (rest, 0);
        }
        None
    }
}
