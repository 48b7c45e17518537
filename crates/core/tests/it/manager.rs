//! The manager of a dataset, from outside: its orders, and the events that it accepts.

use std::time::Duration;

use forebay_core::{
    ByteSize, HalfChunk, HalfChunkRange,
    train::{
        benefit::{BatchTime, Mode},
        manager::{
            CacheClass, DrawSet, HalfChunkBytes, HalfChunkOrder, JobProfile, Manager,
            ManagerSettings, batch_mode,
        },
        placement::Allocation,
        rotation::{InvalidEvent, JobNumber, RotationPolicy},
        sampler::BatchDrawSet,
    },
    units::ByteRate,
};

const LEASE: Duration = Duration::from_mins(1);
const HALF_CHUNK: u64 = 100;
const A: JobNumber = JobNumber(1);
const B: JobNumber = JobNumber(2);

/// A dataset of `chunks` chunks, of two half-chunks each.
fn manager(chunks: usize) -> Manager {
    Manager::new(ManagerSettings {
        policy: RotationPolicy::Demand,
        lease: LEASE,
        load_rate: rate(100),
        half_chunk_sizes: vec![ByteSize(HALF_CHUNK); chunks * 2],
        half_chunks_per_chunk: 2,
    })
}

fn rate(bytes: u64) -> ByteRate {
    ByteRate(ByteSize(bytes))
}

fn profile(name: &str) -> JobProfile {
    JobProfile { name: name.to_owned(), gpus: 1, epoch_batches: 10_000 }
}

fn bytes(half_chunk: u32, bytes: u64) -> HalfChunkBytes {
    HalfChunkBytes { half_chunk: HalfChunk(half_chunk), bytes: ByteSize(bytes) }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn join(manager: &mut Manager, now: u64, job: JobNumber) -> Vec<HalfChunkOrder> {
    manager.on_joined(s(now), job, profile(&format!("job {}", job.0)), &[], rate(10)).unwrap()
}

fn loads(orders: &[HalfChunkOrder]) -> Vec<HalfChunkRange> {
    let load = |order: &HalfChunkOrder| match order {
        HalfChunkOrder::Load(half_chunks) => Some(*half_chunks),
        HalfChunkOrder::Evict(_) | HalfChunkOrder::Keep => None,
    };
    orders.iter().filter_map(load).collect()
}

fn evictions(orders: &[HalfChunkOrder]) -> Vec<HalfChunkRange> {
    let evict = |order: &HalfChunkOrder| match order {
        HalfChunkOrder::Evict(half_chunks) => Some(*half_chunks),
        HalfChunkOrder::Load(_) | HalfChunkOrder::Keep => None,
    };
    orders.iter().filter_map(evict).collect()
}

#[test]
fn chunks_are_loaded_as_whole_half_chunks() {
    let mut manager = manager(5);
    assert_eq!(join(&mut manager, 0, A), [], "there is no space yet");
    let orders = manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    assert!(!loads(&orders).is_empty());
    assert!(
        loads(&orders)
            .iter()
            .all(|half_chunks| half_chunks.count() == 2 && half_chunks.start.0 % 2 == 0)
    );
    let open = manager.draw_set(A);
    let loaded = loads(&orders).into_iter().flatten().count();
    let open = open.pinned.len() + open.first.len() + open.then.concat().len();
    assert_eq!(open, loaded);
    assert_eq!(manager.class_of(loads(&orders)[0].start), CacheClass::Rotating);
}

/// If the whole dataset has space, everything that is fetched is kept at once. Otherwise only the
/// keep set is.
#[test]
fn everything_is_kept_where_the_whole_dataset_has_space() {
    let mut manager = manager(5);
    let orders = manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    let some = manager.keep_set().count();
    assert!(0 < some && some < 10, "{some} of ten half-chunks: {orders:?}");
    manager.set_allocation(s(1), Allocation::Chunks(5)).unwrap();
    assert!(manager.keep_set().eq(HalfChunk::all(10)), "in any order of loading");
    let orders = manager.set_allocation(s(2), Allocation::Chunks(2)).unwrap();
    assert!(manager.keep_set().count() < 10, "{orders:?}");
}

/// After a regrouping everything is evicted first, and nothing is loaded before that is complete:
/// the space is never used twice.
#[test]
fn a_regrouping_waits_until_everything_is_evicted() {
    let mut manager = manager(5);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    let orders = manager.set_allocation(s(1), Allocation::Halves).unwrap();
    let leaving = evictions(&orders);
    assert!(!leaving.is_empty() && loads(&orders).is_empty());
    assert!(
        HalfChunk::all(10)
            .into_iter()
            .all(|half_chunk| manager.class_of(half_chunk) == CacheClass::Uncached)
    );
    assert_eq!(manager.draw_set(A), DrawSet::default());
    for (at, half_chunks) in leaving.iter().enumerate() {
        let orders = manager.on_evicted(s(2), *half_chunks).unwrap();
        assert_eq!(loads(&orders).is_empty(), at + 1 < leaving.len(), "{orders:?}");
        assert!(loads(&orders).iter().all(|half_chunks| half_chunks.count() == 1), "halves");
    }
}

#[test]
fn a_job_that_gains_nothing_leaves_its_space_to_others() {
    let mut manager = manager(5);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    let (before, second) =
        (manager.demand_revision(), BatchTime { took: s(1), stalled: Duration::ZERO });
    assert_eq!(manager.take_probe(s(1), A), Ok(100), "a new job is probed");
    for _ in 0..100 {
        manager.on_computed(s(1), A, Mode::Miss, second).unwrap();
    }
    for _ in 0..200 {
        manager.on_computed(s(1), A, Mode::Rotating, second).unwrap();
    }
    assert!(!manager.is_member(A) && manager.is_alive(s(1), A));
    assert!(manager.demand_revision() > before, "there is space for others");
    assert_eq!(manager.demand(s(0)).jobs, []);
    assert_eq!(manager.draw_set(A), DrawSet::default());
    assert_eq!(manager.mode(A, HalfChunk::all(2), true), Some(Mode::Miss));
    // Its events still count, and it may start to gain.
    manager.on_drawn(s(2), A, &[bytes(0, 50)], rate(10)).unwrap();
    for _ in 0..1000 {
        manager.on_computed(s(2), A, Mode::Miss, BatchTime { took: s(2), stalled: s(1) }).unwrap();
    }
    assert!(manager.is_member(A));
}

/// A job whose lease has ended is forgotten, member or not, and has to join again.
#[test]
fn a_job_without_events_is_forgotten() {
    let mut manager = manager(5);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    manager.on_renewed(s(59), B).unwrap();
    let demand_revision = manager.demand_revision();
    assert_eq!(manager.next_deadline().map(|at| at <= s(60)), Some(true));
    manager.on_tick(s(61)).unwrap();
    assert!(
        !manager.is_alive(s(61), A)
            && manager.is_alive(s(61), B)
            && manager.demand_revision() > demand_revision
    );
    let refused = manager.on_drawn(s(62), A, &[], rate(1)).unwrap_err();
    assert_eq!(refused, InvalidEvent::UnknownJob { job: A });
    join(&mut manager, 63, A);
    assert!(manager.is_alive(s(63), A));
}

/// A chunk is loaded when no job has anything left to fetch of it. An inactive job delays no other.
#[test]
fn a_chunk_is_loaded_when_all_jobs_have_what_they_need() {
    let mut manager = manager(2);
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    let loading: Vec<HalfChunk> = manager.loading().collect();
    assert!(!loading.is_empty());
    manager.on_filled(s(1), A, &loading).unwrap();
    assert!(
        loading.iter().all(|half_chunk| manager.loading().any(|other| other == *half_chunk)),
        "not for B"
    );
    manager.on_renewed(s(5), A).unwrap();
    manager.on_tick(s(7)).unwrap();
    assert!(
        !manager.loading().any(|half_chunk| loading.contains(&half_chunk)),
        "the other is silent"
    );
    manager.on_filled(s(8), B, &loading).unwrap();
}

/// When all of a chunk has arrived, no job has to report it: a slow job would report it late.
#[test]
fn a_chunk_is_loaded_when_all_of_it_has_arrived() {
    let mut manager = manager(4);
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    let loading: Vec<HalfChunk> = manager.loading().collect();
    let (last, others) = loading.split_last().unwrap();
    for half_chunk in others {
        manager.on_arrived(s(1), *half_chunk, ByteSize(100)).unwrap();
    }
    manager.on_arrived(s(1), *last, ByteSize(99)).unwrap();
    assert!(manager.loading().any(|half_chunk| half_chunk == *last), "a byte is missing");
    manager.on_arrived(s(1), *last, ByteSize(1)).unwrap();
    assert!(!manager.loading().any(|half_chunk| half_chunk == *last));
}

/// Another manager goes on where the lost one was, with what jobs and nodes report.
#[test]
fn a_manager_can_be_replaced() {
    let mut lost = manager(6);
    lost.set_allocation(s(0), Allocation::Chunks(3)).unwrap();
    join(&mut lost, 0, A);
    let orders = join(&mut lost, 0, B);
    let there: Vec<HalfChunk> = HalfChunk::all(12)
        .into_iter()
        .filter(|half_chunk| lost.class_of(*half_chunk) != CacheClass::Uncached)
        .collect();
    assert!(!there.is_empty(), "{orders:?}");
    let half = |half_chunk: &HalfChunk| bytes(half_chunk.0, HALF_CHUNK / 2);
    let unread: Vec<_> = there.iter().map(half).collect();

    let mut next = manager(6);
    next.take_over(s(100), there.iter().copied()).unwrap();
    assert!(
        there.iter().all(|half_chunk| next.class_of(*half_chunk) != CacheClass::Uncached),
        "nothing goes yet"
    );
    next.set_allocation(s(100), Allocation::Chunks(3)).unwrap();
    for job in [A, B] {
        next.on_joined(s(100), job, profile("again"), &unread, rate(10)).unwrap();
    }
    assert!(
        there.iter().all(|half_chunk| next.class_of(*half_chunk) != CacheClass::Uncached),
        "kept"
    );
    assert_eq!(next.demand(s(0)).jobs.len(), 2);
    assert!(!next.draw_set(A).first.is_empty() || !next.draw_set(A).pinned.is_empty());
}

/// Invalid events change nothing, and are counted.
#[test]
fn invalid_events_are_errors_and_nothing_else() {
    let mut manager = manager(3);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    join(&mut manager, 5, A);
    manager.on_drawn(s(5), A, &[bytes(0, 40)], rate(10)).unwrap();
    let before = (manager.draw_set(A), manager.demand(s(0)));
    let unknown =
        |number| InvalidEvent::UnknownHalfChunk { half_chunk: HalfChunk(number), half_chunks: 6 };
    assert_eq!(unknown(6).to_string(), "half-chunk 6 does not exist: the dataset has 6");
    let draw = |manager: &mut Manager, half_chunk, unread| {
        manager.on_drawn(s(6), A, &[bytes(half_chunk, unread)], rate(1)).unwrap_err()
    };
    assert_eq!(draw(&mut manager, 6, 1), unknown(6));
    assert_eq!(draw(&mut manager, u32::MAX, 1), unknown(u32::MAX));
    assert_eq!(draw(&mut manager, 0, 41), grew(A, 41, 40));
    let join = manager.on_joined(s(6), B, profile("b"), &[bytes(0, 101)], rate(1));
    assert_eq!(join.unwrap_err(), grew(B, 101, 100));
    assert_eq!(manager.on_released(s(6), A, &[HalfChunk(6)]).unwrap_err(), unknown(6));
    assert_eq!(manager.on_filled(s(6), A, &[HalfChunk(9)]).unwrap_err(), unknown(9));
    let back = InvalidEvent::TimeWentBack { now: s(1), last: s(5) };
    assert_eq!(manager.on_tick(s(1)).unwrap_err(), back);
    assert_eq!(manager.take_probe(s(6), B).unwrap_err(), InvalidEvent::UnknownJob { job: B });
    assert_eq!((manager.draw_set(A), manager.demand(s(0))), before);
    assert!(manager.counters().invalid_events > 0);
}

#[test]
fn a_batch_has_a_mode_if_its_items_come_from_one_class() {
    use CacheClass::{Pinned, Rotating, Uncached};
    assert_eq!(batch_mode([Uncached, Uncached], false), Some(Mode::Miss));
    assert_eq!(batch_mode([Pinned, Rotating, Uncached], false), Some(Mode::Rotating));
    assert_eq!(batch_mode([Pinned, Pinned], true), Some(Mode::Hit));
    assert_eq!(batch_mode([Pinned, Uncached], false), None, "half of it was uncached");
}

#[test]
fn the_next_half_chunk_is_added_when_the_first_runs_short() {
    let half_chunk = HalfChunk;
    let open = DrawSet {
        pinned: vec![half_chunk(8)],
        first: vec![half_chunk(0), half_chunk(1)],
        then: vec![vec![half_chunk(2), half_chunk(3)], vec![half_chunk(4)]],
    };
    let plenty = open.for_batch(32, |_| 20);
    let (pinned, first) = (vec![half_chunk(8)], vec![half_chunk(0), half_chunk(1)]);
    assert_eq!(plenty, BatchDrawSet { pinned: pinned.clone(), rotating: first, leaving: None });
    let few = open.for_batch(32, |chunk| u64::from(chunk.0) * 10);
    let rotating = (0..4).map(half_chunk).collect();
    assert_eq!(few, BatchDrawSet { pinned, rotating, leaving: Some(half_chunk(1)) });
}

fn grew(job: JobNumber, unread: u64, known: u64) -> InvalidEvent {
    let (unread, known) = (ByteSize(unread), ByteSize(known));
    InvalidEvent::HalfChunkUnreadGrew { job, half_chunk: HalfChunk(0), unread, known }
}

/// Two jobs that have drawn all of a rotating chunk, and not yielded it. Returns the manager, the
/// half-chunks of that chunk, and the orders that followed from the draws.
fn drawn_by_both() -> (Manager, HalfChunkRange, Vec<HalfChunkOrder>) {
    let mut manager = manager(5);
    manager.set_allocation(s(0), Allocation::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    let open = manager.draw_set(A);
    let first = open.first[0].0 & !1;
    let chunk = HalfChunkRange { start: HalfChunk(first), end: HalfChunk(first + 2) };
    let drawn: Vec<_> = chunk.into_iter().map(|half_chunk| bytes(half_chunk.0, 0)).collect();
    let mut orders = Vec::new();
    for job in [A, B] {
        // All that was needed of what is present has arrived, so that nothing else delays the next
        // chunk.
        let half_chunks: Vec<HalfChunk> = manager.loading().collect();
        orders.extend(manager.on_filled(s(1), job, &half_chunks).unwrap());
    }
    for job in [A, B] {
        manager.draw_set(job);
        orders.extend(manager.on_drawn(s(1), job, &drawn, rate(1_000_000)).unwrap());
    }
    (manager, chunk, orders)
}

/// Promise 3: a chunk with items in flight is not evicted; otherwise they would be fetched again.
#[test]
fn a_drawn_chunk_stays_until_it_is_yielded() {
    let (mut manager, chunk, orders) = drawn_by_both();
    assert_eq!(evictions(&orders), []);
    assert!(
        !manager.draw_set(A).rotating().any(|half_chunk| chunk.contains(half_chunk)),
        "no new readers"
    );
    assert!(
        manager.keep_set().any(|half_chunk| half_chunk == chunk.start),
        "missing items are claimed and put"
    );
    let half_chunks: Vec<HalfChunk> = chunk.into_iter().collect();
    assert_eq!(evictions(&manager.on_released(s(2), A, &half_chunks).unwrap()), []);
    assert_eq!(evictions(&manager.on_released(s(2), B, &half_chunks[..1]).unwrap()), []);
    let orders = manager.on_released(s(2), B, &half_chunks[1..]).unwrap();
    assert_eq!(evictions(&orders), [chunk]);
    assert!(!manager.keep_set().any(|half_chunk| chunk.contains(half_chunk)));
}

/// Promise 5: a stopped job delays the others only briefly.
#[test]
fn inactive_jobs_are_not_waited_for() {
    let (mut manager, chunk, _) = drawn_by_both();
    let half_chunks: Vec<HalfChunk> = chunk.into_iter().collect();
    assert_eq!(evictions(&manager.on_released(s(2), A, &half_chunks).unwrap()), []);
    let wakes_at = manager.next_deadline().unwrap();
    assert!(wakes_at <= s(1) + LEASE / 10, "{wakes_at:?}");
    assert_eq!(evictions(&manager.on_tick(s(1) + LEASE / 10).unwrap()), [chunk]);

    let (mut manager, chunk, _) = drawn_by_both();
    manager.on_released(s(2), A, &chunk.into_iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(evictions(&manager.on_left(s(2), B).unwrap()), [chunk]);
}
