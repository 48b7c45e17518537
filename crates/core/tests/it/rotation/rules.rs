//! The rules of both policies, one by one.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    chunking::ChunkOrdinal,
    rotation::{Eviction, Fact, Job, Open, Order, Policy, Rotation, Settings},
    units::ByteRate,
};

const SIZE: ByteSize = ByteSize(1000);
const LEASE: Duration = Duration::from_mins(5);
const A: Job = Job(1);
const B: Job = Job(2);
const C: Job = Job(3);

/// A rotation whose every order is carried out at once, and its clock.
struct Bench {
    rotation: Rotation,
    now: Duration,
    orders: Vec<Order>,
}

fn chunk(number: u32) -> ChunkOrdinal {
    ChunkOrdinal(number)
}

fn chunks<const N: usize>(numbers: [u32; N]) -> Vec<ChunkOrdinal> {
    numbers.map(ChunkOrdinal).to_vec()
}

impl Bench {
    fn new(policy: Policy, all: usize, budget: u32) -> Self {
        let settings = Settings {
            policy,
            lease: LEASE,
            load_time: Duration::from_secs(1),
            chunk_sizes: vec![SIZE; all],
        };
        let mut bench =
            Self { rotation: Rotation::new(&settings), now: Duration::ZERO, orders: Vec::new() };
        bench.tell(Fact::Budget { chunks: budget });
        bench
    }

    fn tell(&mut self, fact: Fact<'_>) {
        let orders = self.rotation.on(self.now, fact).unwrap();
        self.orders.extend(&orders);
        for order in orders {
            match order {
                Order::Load(chunk) => self.tell(Fact::Loaded { chunk }),
                Order::Evict { chunk, .. } => self.tell(Fact::Evicted { chunk }),
                Order::Mark(_) => {}
            }
        }
    }

    fn later(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.tell(Fact::Tick);
    }

    fn progress(&mut self, job: Job, chunk: ChunkOrdinal, unread: u64, pace: u64) {
        let unread = [(chunk, ByteSize(unread))];
        self.tell(Fact::Progress { job, unread: &unread, pace: ByteRate(ByteSize(pace)) });
    }

    /// A job draws all of a chunk.
    fn reads(&mut self, job: Job, chunk: ChunkOrdinal) {
        self.tell(Fact::Referenced { job, chunk });
        self.tell(Fact::Exhausted { job, chunk });
    }

    fn open(&self, job: Job) -> Open {
        self.rotation.open(job).unwrap()
    }

    fn resident(&self) -> Vec<ChunkOrdinal> {
        self.rotation.resident().collect()
    }

    fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }
}

const PAPER: Policy = Policy::Paper { deadline: Duration::from_mins(1) };

fn evict(number: u32, why: Eviction) -> Order {
    Order::Evict { chunk: chunk(number), why }
}

/// Quiver 5.1: marked when another is fully loaded; evicted when all existing jobs have exhausted it; new
/// jobs get hits only from the latest chunk; by force a while after the first job's completion.
#[test]
fn the_papers_eviction_has_two_steps() {
    let mut bench = Bench::new(PAPER, 4, 3);
    bench.tell(Fact::Joined { job: A });
    let begun = [Order::Load(chunk(0)), Order::Load(chunk(1)), Order::Mark(chunk(0))];
    assert_eq!(bench.take_orders(), begun, "two chunks, though there is room for three");
    bench.tell(Fact::Joined { job: B });
    assert_eq!(bench.open(A).first, chunks([0, 1]));
    assert_eq!(bench.open(B).first, chunks([1]), "newcomers are directed to the current chunk");
    let late = Fact::Referenced { job: B, chunk: chunk(0) };
    assert!(bench.rotation.on(bench.now, late).is_err());

    bench.reads(A, chunk(0));
    let next = [evict(0, Eviction::Exhausted), Order::Load(chunk(2)), Order::Mark(chunk(1))];
    assert_eq!(bench.take_orders(), next);
    bench.reads(A, chunk(1));
    assert_eq!(bench.rotation.next_deadline(), Some(bench.now + Duration::from_mins(1)));
    bench.later(59);
    assert_eq!(bench.take_orders(), [], "B still reads it");
    bench.later(1);
    let forced = [evict(1, Eviction::Forced), Order::Load(chunk(3)), Order::Mark(chunk(2))];
    assert_eq!(bench.take_orders(), forced);
    assert_eq!(bench.resident(), chunks([2, 3]));
}

#[test]
fn the_paper_keeps_what_fits() {
    let mut bench = Bench::new(PAPER, 3, 3);
    bench.tell(Fact::Joined { job: A });
    for number in 0..3 {
        bench.reads(A, chunk(number));
    }
    bench.tell(Fact::NextEpoch { job: A });
    assert_eq!(bench.open(A).held, chunks([0, 1, 2]));
    assert_eq!(bench.take_orders(), (0..3).map(|n| Order::Load(chunk(n))).collect::<Vec<_>>());
}

/// One job alone holds all that fits, a second one makes two of them rotate, and when it is gone they are
/// held again.
#[test]
fn chunks_rotate_only_for_those_who_share() {
    let mut bench = Bench::new(Policy::ByNeed, 5, 3);
    bench.tell(Fact::Joined { job: A });
    assert_eq!(bench.take_orders(), [Order::Load(chunk(0))]);
    bench.progress(A, chunk(0), 900, 100);
    assert_eq!(bench.take_orders(), [], "it lasts nine seconds, and loading takes less");
    bench.progress(A, chunk(0), 20, 100);
    bench.reads(A, chunk(0));
    bench.progress(A, chunk(1), 20, 100);
    assert_eq!(bench.take_orders(), [Order::Load(chunk(1)), Order::Load(chunk(2))]);
    assert_eq!(bench.open(A).held, chunks([0, 1, 2]), "the rest is read through");

    bench.tell(Fact::NextEpoch { job: A });
    bench.tell(Fact::Joined { job: B });
    for job in [A, B] {
        let Open { held, first, then } = bench.open(job);
        assert_eq!((held, first, then), (chunks([2]), chunks([0]), chunks([1])));
    }
    bench.later(LEASE.as_secs() - 1);
    bench.tell(Fact::Renewed { job: A });
    assert_eq!(bench.rotation.next_deadline(), Some(LEASE), "B is not heard of");
    bench.later(1);
    assert_eq!(bench.open(A).held, chunks([0, 1, 2]));
    assert!(bench.rotation.open(B).is_err());
    assert_eq!(bench.rotation.counters().leases_expired, 1);
    assert_eq!(bench.rotation.counters().evicted_needed, 0);
}

/// "Whoever is silent has no say until it speaks again": others neither wait for it nor share with it, though it is
/// believed to live; one that always takes that long is not silent.
#[test]
fn a_job_that_was_stopped_stops_nobody_else() {
    for usually in [1, 20] {
        let mut bench = Bench::new(Policy::ByNeed, 6, 2);
        for job in [A, B, C] {
            bench.tell(Fact::Joined { job });
        }
        bench.tell(Fact::Found { chunk: chunk(5) });
        for _ in 0..2 {
            bench.later(usually);
            for (job, number) in [A, B, C].into_iter().flat_map(|job| [(job, 0), (job, 5)]) {
                bench.progress(job, chunk(number), 100, 10);
            }
        }
        assert_eq!(bench.resident(), chunks([0, 5]));
        bench.take_orders();
        for (number, job) in [(0, A), (0, B), (5, A), (5, B)] {
            bench.reads(job, chunk(number));
        }
        assert_eq!(bench.take_orders(), [], "C has nearly done with them");
        bench.later(31);
        bench.progress(A, chunk(1), SIZE.0, 10);
        bench.progress(B, chunk(1), SIZE.0, 10);
        let orders = bench.take_orders();
        let has_gone = orders.iter().any(|order| matches!(order, Order::Evict { .. }));
        assert_eq!(has_gone, usually == 1, "{orders:?}");
        assert!(bench.rotation.open(C).is_ok(), "it may come back");
    }
}

/// Two jobs at two chunks that both are loaded; then each has read some of them.
fn two_at_two(a: [u64; 2], b: [u64; 2], pace_a: u64, pace_b: u64) -> Vec<Order> {
    let mut bench = Bench::new(Policy::ByNeed, 6, 2);
    for job in [A, B] {
        bench.tell(Fact::Joined { job });
    }
    bench.tell(Fact::Found { chunk: chunk(5) });
    assert_eq!(bench.resident(), chunks([0, 5]));
    bench.take_orders();
    for (job, pace) in [(A, pace_a), (B, pace_b)] {
        bench.progress(job, chunk(0), SIZE.0, pace);
    }
    for (number, place) in [(0, 0), (5, 1)] {
        assert_eq!(bench.take_orders(), [], "there is no need yet");
        for (job, unread, pace) in [(B, b, pace_b), (A, a, pace_a)] {
            bench.progress(job, chunk(number), unread[place], pace);
        }
    }
    bench.take_orders()
}

/// DESIGN 4.5: a chunk goes when no live job has unread items in it, or when some job's unread open items
/// would last less long than loading a chunk takes. It is never taken from a faster job.
#[test]
fn chunks_go_by_need() {
    assert_eq!(two_at_two([0, 900], [0, 900], 100, 100), [], "there is no need");
    let exhausted = [evict(0, Eviction::Exhausted), Order::Load(chunk(1))];
    assert_eq!(two_at_two([0, 50], [0, 50], 100, 100), exhausted, "nobody needs it");
    let needed = [evict(0, Eviction::Needed(A)), Order::Load(chunk(1))];
    assert_eq!(two_at_two([0, 50], [900, 900], 400, 100), needed, "B reads it when it returns");
    assert_eq!(two_at_two([900, 900], [0, 5], 400, 100), [], "B reads through for a while");
    assert_eq!(two_at_two([0, 50], [30, 900], 100, 100), [], "B has done with it in time");
}

#[test]
fn what_a_manager_finds_is_used_and_what_has_no_room_goes() {
    let mut bench = Bench::new(Policy::ByNeed, 5, 2);
    for number in [1, 3] {
        bench.tell(Fact::Found { chunk: chunk(number) });
    }
    bench.tell(Fact::Joined { job: A });
    assert_eq!(bench.open(A).held, chunks([1, 3]));
    assert_eq!(bench.take_orders(), [], "it needs nothing");
    bench.progress(A, chunk(1), 10, 0);
    bench.tell(Fact::Budget { chunks: 1 });
    assert_eq!(bench.take_orders(), [evict(1, Eviction::Budget)], "the least wanted");
    bench.tell(Fact::Budget { chunks: 0 });
    assert_eq!((bench.resident(), bench.open(A)), (vec![], Open::default()));
}

/// Loads that have become slower are noticed at once, even before they are over.
#[test]
fn a_slow_load_is_noticed() {
    let mut bench = Bench::new(Policy::ByNeed, 5, 2);
    let orders = bench.rotation.on(bench.now, Fact::Joined { job: A }).unwrap();
    assert_eq!(orders, [Order::Load(chunk(0))]);
    bench.later(10);
    bench.tell(Fact::Loading { chunk: chunk(0), bytes: ByteSize(500) });
    assert_eq!(bench.rotation.load_time(), Duration::from_secs(10));
    bench.tell(Fact::Loaded { chunk: chunk(0) });
    assert_eq!(bench.rotation.load_time(), Duration::from_secs(20), "half of it took ten seconds");
}

/// Equal jobs meet the chunks in one order, turn after turn, and begin an epoch with what is there.
#[test]
fn what_was_there_longest_ago_comes_next() {
    let mut bench = Bench::new(Policy::ByNeed, 5, 2);
    for job in [A, B] {
        bench.tell(Fact::Joined { job });
    }
    for read in 1..=15 {
        let current = bench.open(A).first[0];
        assert_eq!(bench.open(B).first[0], current);
        for job in [A, B] {
            bench.progress(job, current, 50, 100);
        }
        for job in [A, B] {
            bench.reads(job, current);
        }
        if read % 5 == 0 {
            bench.tell(Fact::NextEpoch { job: A });
            bench.tell(Fact::NextEpoch { job: B });
        }
    }
    let orders = bench.take_orders();
    let loads = orders.iter().filter_map(|order| match order {
        Order::Load(chunk) => Some(chunk.0),
        _ => None,
    });
    assert_eq!(loads.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]);
}
