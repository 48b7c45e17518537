//! The manager of a dataset, from outside: what it orders, and whom it believes.

use std::{ops::Range, time::Duration};

use forebay_core::{
    ByteSize,
    benefit::Mode,
    chunking::ChunkOrdinal,
    manager::{Directions, Manager, Open, Order, Place, Settings, Who, mode},
    placement::Choice,
    rotation::{Contradiction, Job, Policy},
    units::ByteRate,
};

const LEASE: Duration = Duration::from_mins(1);
const PIECE: u64 = 100;
const A: Job = Job(1);
const B: Job = Job(2);

/// A dataset of so many chunks, of two pieces each.
fn manager(chunks: usize) -> Manager {
    Manager::new(Settings {
        policy: Policy::ByNeed,
        lease: LEASE,
        load_rate: rate(100),
        piece_sizes: vec![ByteSize(PIECE); chunks * 2],
        pieces_per_chunk: 2,
    })
}

fn rate(bytes: u64) -> ByteRate {
    ByteRate(ByteSize(bytes))
}

fn who(name: &str) -> Who {
    Who { name: name.to_owned(), gpus: 1, epoch_batches: 10_000 }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn join(manager: &mut Manager, now: u64, job: Job) -> Vec<Order> {
    manager.join(s(now), job, who(&format!("job {}", job.0)), &[], rate(10)).unwrap()
}

fn loads(orders: &[Order]) -> Vec<Range<u32>> {
    let load = |order: &Order| match order {
        Order::Load(pieces) => Some(pieces.clone()),
        Order::Evict(_) | Order::Keep => None,
    };
    orders.iter().filter_map(load).collect()
}

fn evictions(orders: &[Order]) -> Vec<Range<u32>> {
    let evict = |order: &Order| match order {
        Order::Evict(pieces) => Some(pieces.clone()),
        Order::Load(_) | Order::Keep => None,
    };
    orders.iter().filter_map(evict).collect()
}

#[test]
fn chunks_come_as_whole_pieces() {
    let mut manager = manager(5);
    assert_eq!(join(&mut manager, 0, A), [], "there is no space yet");
    let orders = manager.place(s(0), Choice::Chunks(2)).unwrap();
    assert!(!loads(&orders).is_empty());
    assert!(loads(&orders).iter().all(|pieces| pieces.len() == 2 && pieces.start % 2 == 0));
    let open = manager.open(A);
    let loaded: usize = loads(&orders).iter().map(ExactSizeIterator::len).sum();
    let open: usize = open.held.len() + open.first.len() + open.then.concat().len();
    assert_eq!(open, loaded);
    assert_eq!(manager.place_of(loads(&orders)[0].start), Place::Rotating);
}

/// Where there is room for all, whatever anybody fetches is kept at once; else only what has a place is.
#[test]
fn where_all_has_room_all_is_kept() {
    let mut manager = manager(5);
    let orders = manager.place(s(0), Choice::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    let some = manager.kept().count();
    assert!(0 < some && some < 10, "{some} of ten pieces: {orders:?}");
    manager.place(s(1), Choice::Chunks(5)).unwrap();
    assert!(manager.kept().eq(0..10), "whichever are loaded first");
    let orders = manager.place(s(2), Choice::Chunks(2)).unwrap();
    assert!(manager.kept().count() < 10, "{orders:?}");
}

/// What is cut otherwise goes first, and nothing comes before all of it has gone: the space is never
/// used twice.
#[test]
fn another_cut_waits_until_the_former_has_gone() {
    let mut manager = manager(5);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    let orders = manager.place(s(1), Choice::Halves).unwrap();
    let leaving = evictions(&orders);
    assert!(!leaving.is_empty() && loads(&orders).is_empty());
    assert!((0..10).all(|piece| manager.place_of(piece) == Place::None));
    assert_eq!(manager.open(A), Open::default());
    for (at, pieces) in leaving.iter().enumerate() {
        let orders = manager.evicted(s(2), pieces).unwrap();
        assert_eq!(loads(&orders).is_empty(), at + 1 < leaving.len(), "{orders:?}");
        assert!(loads(&orders).iter().all(|pieces| pieces.len() == 1), "halves");
    }
}

#[test]
fn who_gains_nothing_reads_through_and_makes_room() {
    let mut manager = manager(5);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    let (before, second) = (manager.reasons(), [s(1), Duration::ZERO]);
    assert_eq!(manager.probe(s(1), A), Ok(100), "a new job is probed");
    for _ in 0..100 {
        manager.computed(s(1), A, Mode::Miss, second).unwrap();
    }
    for _ in 0..200 {
        manager.computed(s(1), A, Mode::Rotating, second).unwrap();
    }
    assert!(!manager.is_member(A) && manager.knows(s(1), A));
    assert!(manager.reasons() > before, "there is space for others");
    assert_eq!(manager.wish(s(0)).jobs, []);
    assert_eq!(manager.open(A), Open::default());
    assert_eq!(manager.mode(A, [0, 1], true), Some(Mode::Miss));
    // It is still believed, and may begin to gain.
    manager.drawn(s(2), A, &[(0, ByteSize(50))], rate(10)).unwrap();
    for _ in 0..1000 {
        manager.computed(s(2), A, Mode::Miss, [s(2), s(1)]).unwrap();
    }
    assert!(manager.is_member(A));
}

/// Whoever is not heard of in time is forgotten, member or not, and has to join again.
#[test]
fn the_silent_are_forgotten() {
    let mut manager = manager(5);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    manager.renew(s(59), B).unwrap();
    let reasons = manager.reasons();
    assert_eq!(manager.next_deadline().map(|at| at <= s(60)), Some(true));
    manager.tick(s(61)).unwrap();
    assert!(!manager.knows(s(61), A) && manager.knows(s(61), B) && manager.reasons() > reasons);
    let refused = manager.drawn(s(62), A, &[], rate(1)).unwrap_err();
    assert_eq!(refused, Contradiction::UnknownJob { job: A });
    join(&mut manager, 63, A);
    assert!(manager.knows(s(63), A));
}

/// A chunk has arrived when nobody has anything left to fetch of it. Whoever has been silent for a while
/// holds nobody up.
#[test]
fn a_chunk_has_arrived_when_all_have_what_they_need() {
    let mut manager = manager(2);
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    let loading: Vec<u32> = manager.loading().collect();
    assert!(!loading.is_empty());
    manager.filled(s(1), A, &loading).unwrap();
    assert!(
        loading.iter().all(|piece| manager.loading().any(|other| other == *piece)),
        "not for B"
    );
    manager.renew(s(5), A).unwrap();
    manager.tick(s(7)).unwrap();
    assert!(!manager.loading().any(|piece| loading.contains(&piece)), "the other is silent");
    manager.filled(s(8), B, &loading).unwrap();
}

/// When all of it is there, nobody has to say so: a slow job would say so late.
#[test]
fn a_chunk_has_arrived_when_all_of_it_is_there() {
    let mut manager = manager(4);
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    let loading: Vec<u32> = manager.loading().collect();
    let (last, others) = loading.split_last().unwrap();
    for piece in others {
        manager.arrived(s(1), *piece, ByteSize(100)).unwrap();
    }
    manager.arrived(s(1), *last, ByteSize(99)).unwrap();
    assert!(manager.loading().any(|piece| piece == *last), "a byte is missing");
    manager.arrived(s(1), *last, ByteSize(1)).unwrap();
    assert!(!manager.loading().any(|piece| piece == *last));
}

/// Another manager, told by jobs and nodes, goes on where the lost one was.
#[test]
fn a_manager_can_be_replaced() {
    let mut lost = manager(6);
    lost.place(s(0), Choice::Chunks(3)).unwrap();
    join(&mut lost, 0, A);
    let orders = join(&mut lost, 0, B);
    let there: Vec<u32> = (0..12).filter(|piece| lost.place_of(*piece) != Place::None).collect();
    assert!(!there.is_empty(), "{orders:?}");
    let half = |piece: &u32| (*piece, ByteSize(PIECE / 2));
    let unread: Vec<_> = there.iter().map(half).collect();

    let mut next = manager(6);
    next.take_over(s(100), there.iter().copied()).unwrap();
    assert!(there.iter().all(|piece| next.place_of(*piece) != Place::None), "nothing goes yet");
    next.place(s(100), Choice::Chunks(3)).unwrap();
    for job in [A, B] {
        next.join(s(100), job, who("again"), &unread, rate(10)).unwrap();
    }
    assert!(there.iter().all(|piece| next.place_of(*piece) != Place::None), "kept");
    assert_eq!(next.wish(s(0)).jobs.len(), 2);
    assert!(!next.open(A).first.is_empty() || !next.open(A).held.is_empty());
}

/// Facts that cannot be change nothing, and are counted.
#[test]
fn contradictions_are_errors_and_nothing_else() {
    let mut manager = manager(3);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    join(&mut manager, 5, A);
    manager.drawn(s(5), A, &[(0, ByteSize(40))], rate(10)).unwrap();
    let before = (manager.open(A), manager.wish(s(0)));
    let unknown = |chunk| Contradiction::UnknownChunk { chunk: ChunkOrdinal(chunk), chunks: 6 };
    let draw = |manager: &mut Manager, piece, unread| {
        manager.drawn(s(6), A, &[(piece, ByteSize(unread))], rate(1)).unwrap_err()
    };
    assert_eq!(draw(&mut manager, 6, 1), unknown(6));
    assert_eq!(draw(&mut manager, u32::MAX, 1), unknown(u32::MAX));
    assert_eq!(draw(&mut manager, 0, 41), grew(A, 41, 40));
    let join = manager.join(s(6), B, who("b"), &[(0, ByteSize(101))], rate(1));
    assert_eq!(join.unwrap_err(), grew(B, 101, 100));
    assert_eq!(manager.released(s(6), A, &[6]).unwrap_err(), unknown(6));
    assert_eq!(manager.filled(s(6), A, &[9]).unwrap_err(), unknown(9));
    let back = Contradiction::TimeWentBack { now: s(1), last: s(5) };
    assert_eq!(manager.tick(s(1)).unwrap_err(), back);
    assert_eq!(manager.probe(s(6), B).unwrap_err(), Contradiction::UnknownJob { job: B });
    assert_eq!((manager.open(A), manager.wish(s(0))), before);
    assert!(manager.counters().contradictions > 0);
}

#[test]
fn a_batch_has_a_mode_if_it_comes_from_one_place() {
    use Place::{Held, None as Nowhere, Rotating};
    assert_eq!(mode([Nowhere, Nowhere], false), Some(Mode::Miss));
    assert_eq!(mode([Held, Rotating, Nowhere], false), Some(Mode::Rotating));
    assert_eq!(mode([Held, Held], true), Some(Mode::Hit));
    assert_eq!(mode([Held, Nowhere], false), None, "half of it was read through");
}

#[test]
fn the_next_is_opened_when_the_first_runs_out() {
    let piece = ChunkOrdinal;
    let open = Open {
        held: vec![piece(8)],
        first: vec![piece(0), piece(1)],
        then: vec![vec![piece(2), piece(3)], vec![piece(4)]],
    };
    let plenty = open.directions(32, |_| 20);
    let (held, first) = (vec![piece(8)], vec![piece(0), piece(1)]);
    assert_eq!(plenty, Directions { held: held.clone(), rotating: first, leaving: None });
    let few = open.directions(32, |chunk| u64::from(chunk.0) * 10);
    let rotating = (0..4).map(piece).collect();
    assert_eq!(few, Directions { held, rotating, leaving: Some(piece(1)) });
}

fn grew(job: Job, unread: u64, known: u64) -> Contradiction {
    let (unread, known) = (ByteSize(unread), ByteSize(known));
    Contradiction::UnreadGrew { job, chunk: ChunkOrdinal(0), unread, known }
}

/// Two jobs that have drawn all of a rotating chunk, which somebody has yet to be given. Returns the manager, the
/// pieces of that chunk, and what followed from the draws.
fn drawn_by_both() -> (Manager, Range<u32>, Vec<Order>) {
    let mut manager = manager(5);
    manager.place(s(0), Choice::Chunks(2)).unwrap();
    join(&mut manager, 0, A);
    join(&mut manager, 0, B);
    let open = manager.open(A);
    let first = open.first[0].0 & !1;
    let chunk = first..first + 2;
    let drawn: Vec<(u32, ByteSize)> = chunk.clone().map(|piece| (piece, ByteSize(0))).collect();
    let mut orders = Vec::new();
    for job in [A, B] {
        // All that was needed of what is there has arrived, so that nothing else holds the next one up.
        let pieces: Vec<u32> = manager.loading().collect();
        orders.extend(manager.filled(s(1), job, &pieces).unwrap());
    }
    for job in [A, B] {
        manager.open(job);
        orders.extend(manager.drawn(s(1), job, &drawn, rate(1_000_000)).unwrap());
    }
    (manager, chunk, orders)
}

/// Promise 3: a chunk that is on its way to somebody is not evicted, or it would be fetched once more.
#[test]
fn what_was_drawn_stays_until_it_was_given() {
    let (mut manager, chunk, orders) = drawn_by_both();
    assert_eq!(evictions(&orders), []);
    assert!(!manager.open(A).rotating().any(|piece| chunk.contains(&piece.0)), "no new readers");
    assert!(manager.kept().any(|piece| piece == chunk.start), "what is missing is claimed and put");
    let pieces: Vec<u32> = chunk.clone().collect();
    assert_eq!(evictions(&manager.released(s(2), A, &pieces).unwrap()), []);
    assert_eq!(evictions(&manager.released(s(2), B, &pieces[..1]).unwrap()), []);
    let orders = manager.released(s(2), B, &pieces[1..]).unwrap();
    assert_eq!(evictions(&orders), std::slice::from_ref(&chunk));
    assert!(!manager.kept().any(|piece| chunk.contains(&piece)));
}

/// Promise 5: a job that does not go on holds nobody up for long.
#[test]
fn who_is_silent_or_gone_is_not_waited_for() {
    let (mut manager, chunk, _) = drawn_by_both();
    let pieces: Vec<u32> = chunk.clone().collect();
    assert_eq!(evictions(&manager.released(s(2), A, &pieces).unwrap()), []);
    let wakes_at = manager.next_deadline().unwrap();
    assert!(wakes_at <= s(1) + LEASE / 10, "{wakes_at:?}");
    assert_eq!(evictions(&manager.tick(s(1) + LEASE / 10).unwrap()), [chunk]);

    let (mut manager, chunk, _) = drawn_by_both();
    manager.released(s(2), A, &chunk.clone().collect::<Vec<_>>()).unwrap();
    assert_eq!(evictions(&manager.leave(s(2), B).unwrap()), [chunk]);
}
