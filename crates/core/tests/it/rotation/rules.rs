//! The rules of both policies, one by one.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    dataset::chunking::ChunkOrdinal,
    train::rotation::{
        ChunkBytes, ChunkDrawSet, ChunkOrder, EvictionCause, JobNumber, Rotation, RotationEvent,
        RotationPolicy, RotationSettings,
    },
    units::ByteRate,
};

const SIZE: ByteSize = ByteSize(1000);
const LEASE: Duration = Duration::from_mins(5);
const A: JobNumber = JobNumber(1);
const B: JobNumber = JobNumber(2);
const C: JobNumber = JobNumber(3);

/// A rotation whose orders are carried out at once, and its clock.
struct Bench {
    rotation: Rotation,
    now: Duration,
    orders: Vec<ChunkOrder>,
}

fn chunk(number: u32) -> ChunkOrdinal {
    ChunkOrdinal(number)
}

fn chunks<const N: usize>(numbers: [u32; N]) -> Vec<ChunkOrdinal> {
    numbers.map(ChunkOrdinal).to_vec()
}

impl Bench {
    fn new(policy: RotationPolicy, all: usize, budget: u32) -> Self {
        let settings = RotationSettings {
            policy,
            lease: LEASE,
            load_time: Duration::from_secs(1),
            chunk_sizes: vec![SIZE; all],
        };
        let mut bench =
            Self { rotation: Rotation::new(&settings), now: Duration::ZERO, orders: Vec::new() };
        bench.send(RotationEvent::Budget { chunks: budget });
        bench
    }

    fn send(&mut self, event: RotationEvent<'_>) {
        let orders = self.rotation.on_event(self.now, event).unwrap();
        self.orders.extend(&orders);
        for order in orders {
            match order {
                ChunkOrder::Load(chunk) => self.send(RotationEvent::Loaded { chunk }),
                ChunkOrder::Evict { chunk, .. } => self.send(RotationEvent::Evicted { chunk }),
                ChunkOrder::Mark(_) => {}
            }
        }
    }

    fn later(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.send(RotationEvent::Tick);
    }

    fn progress(&mut self, job: JobNumber, chunk: ChunkOrdinal, unread: u64, pace: u64) {
        let unread = [ChunkBytes { chunk, bytes: ByteSize(unread) }];
        self.send(RotationEvent::Progress { job, unread: &unread, pace: ByteRate(ByteSize(pace)) });
    }

    /// A job draws all of a chunk.
    fn reads(&mut self, job: JobNumber, chunk: ChunkOrdinal) {
        self.send(RotationEvent::Referenced { job, chunk });
        self.send(RotationEvent::Exhausted { job, chunk });
    }

    fn draw_set(&self, job: JobNumber) -> ChunkDrawSet {
        self.rotation.draw_set(job).unwrap()
    }

    fn occupied(&self) -> Vec<ChunkOrdinal> {
        self.rotation.occupied().collect()
    }

    fn take_orders(&mut self) -> Vec<ChunkOrder> {
        std::mem::take(&mut self.orders)
    }
}

const QUIVER: RotationPolicy = RotationPolicy::Quiver { deadline: Duration::from_mins(1) };

fn evict(number: u32, cause: EvictionCause) -> ChunkOrder {
    ChunkOrder::Evict { chunk: chunk(number), cause }
}

/// Quiver 5.1: a chunk is marked when another is fully loaded, and evicted when all present jobs
/// have exhausted it, or by force some time after the first job's completion. New jobs get hits
/// only from the latest chunk.
#[test]
fn quivers_eviction_has_two_steps() {
    let mut bench = Bench::new(QUIVER, 4, 3);
    bench.send(RotationEvent::Joined { job: A });
    let begun =
        [ChunkOrder::Load(chunk(0)), ChunkOrder::Load(chunk(1)), ChunkOrder::Mark(chunk(0))];
    assert_eq!(bench.take_orders(), begun, "two chunks, though there is room for three");
    bench.send(RotationEvent::Joined { job: B });
    assert_eq!(bench.draw_set(A).first, chunks([0, 1]));
    assert_eq!(bench.draw_set(B).first, chunks([1]), "new jobs read the current chunk");
    let late = RotationEvent::Referenced { job: B, chunk: chunk(0) };
    assert!(bench.rotation.on_event(bench.now, late).is_err());

    bench.reads(A, chunk(0));
    let next = [
        evict(0, EvictionCause::Exhausted),
        ChunkOrder::Load(chunk(2)),
        ChunkOrder::Mark(chunk(1)),
    ];
    assert_eq!(bench.take_orders(), next);
    bench.reads(A, chunk(1));
    assert_eq!(bench.rotation.next_deadline(), Some(bench.now + Duration::from_mins(1)));
    bench.later(59);
    assert_eq!(bench.take_orders(), [], "B still reads it");
    bench.later(1);
    let forced =
        [evict(1, EvictionCause::Deadline), ChunkOrder::Load(chunk(3)), ChunkOrder::Mark(chunk(2))];
    assert_eq!(bench.take_orders(), forced);
    assert_eq!(bench.occupied(), chunks([2, 3]));
}

#[test]
fn quiver_keeps_a_dataset_that_fits() {
    let mut bench = Bench::new(QUIVER, 3, 3);
    bench.send(RotationEvent::Joined { job: A });
    for number in 0..3 {
        bench.reads(A, chunk(number));
    }
    bench.send(RotationEvent::NextEpoch { job: A });
    assert_eq!(bench.draw_set(A).pinned, chunks([0, 1, 2]));
    assert_eq!(bench.take_orders(), (0..3).map(|n| ChunkOrder::Load(chunk(n))).collect::<Vec<_>>());
}

/// For a job alone, all chunks that fit are pinned. A second job makes two of them rotate. When it
/// is gone, they are pinned again.
#[test]
fn chunks_rotate_only_for_several_jobs() {
    let mut bench = Bench::new(RotationPolicy::Demand, 5, 3);
    bench.send(RotationEvent::Joined { job: A });
    assert_eq!(bench.take_orders(), [ChunkOrder::Load(chunk(0))]);
    bench.progress(A, chunk(0), 900, 100);
    assert_eq!(bench.take_orders(), [], "it lasts nine seconds, and loading takes less");
    bench.progress(A, chunk(0), 20, 100);
    bench.reads(A, chunk(0));
    bench.progress(A, chunk(1), 20, 100);
    assert_eq!(bench.take_orders(), [ChunkOrder::Load(chunk(1)), ChunkOrder::Load(chunk(2))]);
    assert_eq!(bench.draw_set(A).pinned, chunks([0, 1, 2]), "the rest is read uncached");

    bench.send(RotationEvent::NextEpoch { job: A });
    bench.send(RotationEvent::Joined { job: B });
    for job in [A, B] {
        let ChunkDrawSet { pinned, first, then } = bench.draw_set(job);
        assert_eq!((pinned, first, then), (chunks([2]), chunks([0]), chunks([1])));
    }
    bench.later(LEASE.as_secs() - 1);
    bench.send(RotationEvent::Renewed { job: A });
    assert_eq!(bench.rotation.next_deadline(), Some(LEASE), "B is not heard of");
    bench.later(1);
    assert_eq!(bench.draw_set(A).pinned, chunks([0, 1, 2]));
    assert!(bench.rotation.draw_set(B).is_err());
    assert_eq!(bench.rotation.counters().leases_expired, 1);
    assert_eq!(bench.rotation.counters().evicted_needed, 0);
}

/// Inactive jobs are ignored until their next event: others neither wait for them nor share with
/// them, though their leases have not ended. A job that always has long gaps is not inactive.
#[test]
fn a_stopped_job_stops_no_other() {
    for usual_gap_s in [1, 20] {
        let mut bench = Bench::new(RotationPolicy::Demand, 6, 2);
        for job in [A, B, C] {
            bench.send(RotationEvent::Joined { job });
        }
        bench.send(RotationEvent::Found { chunk: chunk(5) });
        for _ in 0..2 {
            bench.later(usual_gap_s);
            for (job, number) in [A, B, C].into_iter().flat_map(|job| [(job, 0), (job, 5)]) {
                bench.progress(job, chunk(number), 100, 10);
            }
        }
        assert_eq!(bench.occupied(), chunks([0, 5]));
        bench.take_orders();
        for (number, job) in [(0, A), (0, B), (5, A), (5, B)] {
            bench.reads(job, chunk(number));
        }
        assert_eq!(bench.take_orders(), [], "C has nearly done with them");
        bench.later(31);
        bench.progress(A, chunk(1), SIZE.0, 10);
        bench.progress(B, chunk(1), SIZE.0, 10);
        let orders = bench.take_orders();
        let has_gone = orders.iter().any(|order| matches!(order, ChunkOrder::Evict { .. }));
        assert_eq!(has_gone, usual_gap_s == 1, "{orders:?}");
        assert!(bench.rotation.draw_set(C).is_ok(), "its lease has not ended");
    }
}

/// Two jobs at two loaded chunks, of which each has read some.
fn two_at_two(a: [u64; 2], b: [u64; 2], pace_a: u64, pace_b: u64) -> Vec<ChunkOrder> {
    let mut bench = Bench::new(RotationPolicy::Demand, 6, 2);
    for job in [A, B] {
        bench.send(RotationEvent::Joined { job });
    }
    bench.send(RotationEvent::Found { chunk: chunk(5) });
    assert_eq!(bench.occupied(), chunks([0, 5]));
    bench.take_orders();
    for (job, pace) in [(A, pace_a), (B, pace_b)] {
        bench.progress(job, chunk(0), SIZE.0, pace);
    }
    for (number, place) in [(0, 0), (5, 1)] {
        assert_eq!(bench.take_orders(), [], "no job starves yet");
        for (job, unread, pace) in [(B, b, pace_b), (A, a, pace_a)] {
            bench.progress(job, chunk(number), unread[place], pace);
        }
    }
    bench.take_orders()
}

/// A chunk is evicted when no live job has unread items in it, or when some job's
/// supply would last less long than loading a chunk takes. It is never taken from a faster job.
#[test]
fn chunks_are_evicted_by_demand() {
    assert_eq!(two_at_two([0, 900], [0, 900], 100, 100), [], "no job starves");
    let exhausted = [evict(0, EvictionCause::Exhausted), ChunkOrder::Load(chunk(1))];
    assert_eq!(two_at_two([0, 50], [0, 50], 100, 100), exhausted, "no job needs it");
    let needed = [evict(0, EvictionCause::Needed(A)), ChunkOrder::Load(chunk(1))];
    assert_eq!(two_at_two([0, 50], [900, 900], 400, 100), needed, "B reads it when it returns");
    assert_eq!(two_at_two([900, 900], [0, 5], 400, 100), [], "B reads uncached for a while");
    assert_eq!(two_at_two([0, 50], [30, 900], 100, 100), [], "B finishes it in time");
}

#[test]
fn found_chunks_are_used_and_those_beyond_the_budget_are_evicted() {
    let mut bench = Bench::new(RotationPolicy::Demand, 5, 2);
    for number in [1, 3] {
        bench.send(RotationEvent::Found { chunk: chunk(number) });
    }
    bench.send(RotationEvent::Joined { job: A });
    assert_eq!(bench.draw_set(A).pinned, chunks([1, 3]));
    assert_eq!(bench.take_orders(), [], "it needs nothing");
    bench.progress(A, chunk(1), 10, 0);
    bench.send(RotationEvent::Budget { chunks: 1 });
    assert_eq!(
        bench.take_orders(),
        [evict(1, EvictionCause::Budget)],
        "the one with the least unread"
    );
    bench.send(RotationEvent::Budget { chunks: 0 });
    assert_eq!((bench.occupied(), bench.draw_set(A)), (vec![], ChunkDrawSet::default()));
}

/// A slower load is noticed at once, even before it is complete.
#[test]
fn a_slow_load_is_noticed() {
    let mut bench = Bench::new(RotationPolicy::Demand, 5, 2);
    let orders = bench.rotation.on_event(bench.now, RotationEvent::Joined { job: A }).unwrap();
    assert_eq!(orders, [ChunkOrder::Load(chunk(0))]);
    bench.later(10);
    bench.send(RotationEvent::Loading { chunk: chunk(0), bytes: ByteSize(500) });
    assert_eq!(bench.rotation.load_time(), Duration::from_secs(10));
    bench.send(RotationEvent::Loaded { chunk: chunk(0) });
    assert_eq!(bench.rotation.load_time(), Duration::from_secs(20), "half of it took ten seconds");
}

/// Equal jobs read the chunks in one order, turn after turn, and start an epoch with what is
/// loaded.
#[test]
fn the_chunk_loaded_longest_ago_is_loaded_next() {
    let mut bench = Bench::new(RotationPolicy::Demand, 5, 2);
    for job in [A, B] {
        bench.send(RotationEvent::Joined { job });
    }
    for read in 1..=15 {
        let current = bench.draw_set(A).first[0];
        assert_eq!(bench.draw_set(B).first[0], current);
        for job in [A, B] {
            bench.progress(job, current, 50, 100);
        }
        for job in [A, B] {
            bench.reads(job, current);
        }
        if read % 5 == 0 {
            bench.send(RotationEvent::NextEpoch { job: A });
            bench.send(RotationEvent::NextEpoch { job: B });
        }
    }
    let orders = bench.take_orders();
    let loads = orders.iter().filter_map(|order| match order {
        ChunkOrder::Load(chunk) => Some(chunk.0),
        _ => None,
    });
    assert_eq!(loads.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]);
}
