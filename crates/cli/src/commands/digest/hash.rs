//! From planned blobs to rows: reads their parts and computes their addresses.
//!
//! Local files are read and hashed on blocking threads, many small ones per trip, because a thread
//! hop costs more than a small file. Remote objects are fetched side by side, within the origin's
//! limits, and hashed as their pieces arrive.

use std::{cell::RefCell, ops::Range, sync::Arc, thread::available_parallelism};

use forebay_core::{
    Address, Namespace,
    digest::{Blob, Part, plan::BlobPlan},
};
use forebay_origin::{LocalReader, Origin, OriginError, PIECE};
use futures::{Stream, StreamExt as _, stream::FuturesOrdered};
use tokio::sync::Semaphore;

/// Local blobs that share a trip to a blocking thread: at least so many bytes, blobs or items.
const TRIP_BYTES: u64 = 4 << 20;
const TRIP_BLOBS: usize = 64;
const TRIP_ITEMS: usize = 4096;
/// Remote blobs under way; the origin bounds requests and bytes within.
const REMOTE_WINDOW: usize = 64;
/// Pieces of one blob under way, if it is small; of a large one only two, so that no blob has more in
/// memory than this.
const PIECES_WINDOW: usize = 16;
const MEMORY_PER_BLOB: u64 = 2 * PIECE;
/// All remote blobs together have at most this in memory.
const MEMORY: u64 = 8 * MEMORY_PER_BLOB;
/// Memory is granted in pages, since a semaphore counts in 32 bits.
const PAGE: u64 = 4096;
/// Large enough that system calls do not matter, small enough for the cache of one core.
const BUFFER: usize = 256 << 10;

thread_local! {
    /// Touching fresh memory for every file would cost more than hashing a small one.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Turns plans into rows, in the order of the plans. Stops at the first error, from either side.
pub fn rows<'a, E>(
    origin: &'a Origin,
    namespace: &'a Namespace,
    plans: impl Stream<Item = Result<BlobPlan, E>> + Send + 'a,
) -> impl Stream<Item = Result<Blob, E>> + Send + 'a
where
    E: From<OriginError> + Send + 'static,
{
    hashed(origin, namespace, plans).map(|(plan, address)| {
        let BlobPlan { parts, items } = plan;
        Ok(Blob { address: address??, parts, items })
    })
}

type Hashed<E> = (BlobPlan, Result<Result<Address, OriginError>, E>);

/// The same, but each plan keeps its own error, for those who want to know all of them.
pub fn hashed<'a, E: Send + 'static>(
    origin: &'a Origin,
    namespace: &'a Namespace,
    plans: impl Stream<Item = Result<BlobPlan, E>> + Send + 'a,
) -> impl Stream<Item = Hashed<E>> + Send + 'a {
    let threads = available_parallelism().map_or(1, usize::from);
    let (window, trip_blobs) = match origin {
        // A few trips ahead, so that one long file does not leave the other threads idle.
        Origin::Local(_) => (threads * 4, TRIP_BLOBS),
        Origin::Remote(_) => (REMOTE_WINDOW, 1),
    };
    // Twice as many as there are threads: while one trip changes hands, another works.
    let turns = Arc::new(Semaphore::new(threads * 2));
    let memory = Arc::new(Semaphore::new(usize::try_from(MEMORY / PAGE).expect("fits")));
    trips(plans, trip_blobs)
        .map(move |trip| {
            let (origin, namespace) = (origin.clone(), namespace.clone());
            let (turns, memory) = (turns.clone(), memory.clone());
            tokio::spawn(async move {
                let mut rows = Vec::with_capacity(trip.len());
                match origin {
                    Origin::Local(tree) => {
                        let _turn = turns.acquire_owned().await.expect("never closed");
                        let work = move || {
                            let mut reader = tree.reader();
                            let mut hash = |plan: &BlobPlan| {
                                READ_BUFFER.with_borrow_mut(|buffer| {
                                    hash_local(&mut reader, &namespace, &plan.parts, buffer)
                                })
                            };
                            trip.into_iter().map(|plan| with(plan, &mut hash)).collect::<Vec<_>>()
                        };
                        rows = tokio::task::spawn_blocking(work)
                            .await
                            .expect("hashing does not panic");
                    }
                    Origin::Remote(_) => {
                        for plan in trip {
                            rows.push(match plan {
                                Ok(plan) => {
                                    let pages = plan.length().min(MEMORY_PER_BLOB).div_ceil(PAGE);
                                    let pages = u32::try_from(pages).expect("bounded");
                                    let _granted = memory.acquire_many(pages).await;
                                    let address =
                                        hash_remote(&origin, &namespace, &plan.parts).await;
                                    (plan, Ok(address))
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
        .flat_map(|trip| futures::stream::iter(trip.expect("hashing does not panic")))
}

fn with<E>(
    plan: Result<BlobPlan, E>,
    mut hash: impl FnMut(&BlobPlan) -> Result<Address, OriginError>,
) -> Hashed<E> {
    match plan {
        Ok(plan) => {
            let address = hash(&plan);
            (plan, Ok(address))
        }
        Err(error) => (BlobPlan::default(), Err(error)),
    }
}

/// Groups plans that share a trip.
fn trips<E: Send>(
    plans: impl Stream<Item = Result<BlobPlan, E>> + Send,
    blobs_max: usize,
) -> impl Stream<Item = Vec<Result<BlobPlan, E>>> + Send {
    futures::stream::unfold(Box::pin(plans.fuse()), move |mut plans| async move {
        let (mut trip, mut bytes, mut items) = (Vec::new(), 0, 0);
        while trip.len() < blobs_max && bytes < TRIP_BYTES && items < TRIP_ITEMS {
            match plans.next().await {
                Some(Ok(plan)) => {
                    bytes += plan.length();
                    items += plan.parts.len();
                    trip.push(Ok(plan));
                }
                Some(Err(error)) => {
                    trip.push(Err(error));
                    break;
                }
                None => break,
            }
        }
        (!trip.is_empty()).then_some((trip, plans))
    })
}

/// Small parts are gathered in the buffer first: BLAKE3 is several times faster on many KiB at once
/// than on one.
fn hash_local(
    reader: &mut LocalReader<'_>,
    namespace: &Namespace,
    parts: &[Part],
    buffer: &mut [u8],
) -> Result<Address, OriginError> {
    let mut hasher = namespace.hasher();
    let mut filled = 0;
    for part in parts {
        let object = reader.open(&part.object)?;
        let (mut at, end) = (part.offset, part.offset + part.length);
        while at < end {
            let room = buffer.len() - filled;
            let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(room);
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
    parts: &[Part],
) -> Result<Address, OriginError> {
    let length: u64 = parts.iter().map(|part| part.length).sum();
    let window = if length <= MEMORY_PER_BLOB { PIECES_WINDOW } else { 2 };
    // Nothing can be read of an empty object, but it must still be there, and empty.
    for part in parts.iter().filter(|part| part.length == 0) {
        origin.confirm(&part.object, &part.version).await?;
    }
    let mut ranges = Ranges { parts, done: 0 };
    let mut pieces = FuturesOrdered::new();
    let mut hasher = namespace.hasher();
    loop {
        let wanted = window - pieces.len();
        for (part, range) in ranges.by_ref().take(wanted) {
            pieces.push_back(origin.read(&part.object, &part.version, range));
        }
        match pieces.next().await {
            Some(piece) => hasher.update(&piece?),
            None => break,
        }
    }
    Ok(hasher.finish())
}

/// The pieces of some parts, in order, made as they are asked for: a part may claim any length.
struct Ranges<'a> {
    parts: &'a [Part],
    /// Bytes of the first part that have been handed out.
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
