//! Facts that cannot be: an error in the caller's hands and a counter, never a wrong decision.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    chunking::ChunkOrdinal,
    rotation::{Contradiction, Fact, Job, Order, Policy, Rotation, Settings},
    units::ByteRate,
};

use crate::seeds;

const SIZE: ByteSize = ByteSize(1000);
const A: Job = Job(1);
const B: Job = Job(2);

fn rotation(policy: Policy, chunks: usize) -> Rotation {
    Rotation::new(&Settings {
        policy,
        lease: Duration::from_secs(30),
        load_time: Duration::from_secs(5),
        chunk_sizes: vec![SIZE; chunks],
    })
}

fn chunk(number: u32) -> ChunkOrdinal {
    ChunkOrdinal(number)
}

const PACE: ByteRate = ByteRate(ByteSize(100));

#[test]
fn each_contradiction_has_its_name_and_changes_nothing() {
    let mut rotation = rotation(Policy::ByNeed, 4);
    let at = Duration::from_secs;
    let facts = [Fact::Budget { chunks: 2 }, Fact::Joined { job: A }];
    let orders = facts.map(|fact| rotation.on(at(10), fact).unwrap());
    assert_eq!(orders[1], [Order::Load(chunk(0))]);
    let half: &[_] = &[(chunk(0), ByteSize(500))];
    rotation.on(at(11), Fact::Progress { job: A, unread: half, pace: PACE }).unwrap();
    rotation.on(at(11), Fact::Loading { chunk: chunk(0), bytes: ByteSize(600) }).unwrap();

    let more: &[_] = &[(chunk(1), SIZE), (chunk(0), ByteSize(501))];
    let nowhere: &[_] = &[(chunk(9), ByteSize(1))];
    let (now, last) = (at(10), at(11));
    let wrong = [
        (now, Fact::Tick, Contradiction::TimeWentBack { now, last }),
        (last, Fact::Renewed { job: B }, Contradiction::UnknownJob { job: B }),
        (last, Fact::Left { job: B }, Contradiction::UnknownJob { job: B }),
        (last, Fact::NextEpoch { job: B }, Contradiction::UnknownJob { job: B }),
        (last, Fact::Joined { job: A }, Contradiction::JoinedTwice { job: A }),
        (
            last,
            Fact::Progress { job: A, unread: more, pace: PACE },
            Contradiction::UnreadGrew {
                job: A,
                chunk: chunk(0),
                unread: ByteSize(501),
                known: ByteSize(500),
            },
        ),
        (
            last,
            Fact::Progress { job: A, unread: nowhere, pace: PACE },
            Contradiction::UnknownChunk { chunk: chunk(9), chunks: 4 },
        ),
        (
            last,
            Fact::Referenced { job: A, chunk: chunk(3) },
            Contradiction::NotOpen { job: A, chunk: chunk(3) },
        ),
        (
            last,
            Fact::Exhausted { job: A, chunk: chunk(0) },
            Contradiction::NotReferenced { job: A, chunk: chunk(0) },
        ),
        (last, Fact::Loaded { chunk: chunk(2) }, Contradiction::NotLoading { chunk: chunk(2) }),
        (
            last,
            Fact::Loading { chunk: chunk(0), bytes: ByteSize(599) },
            Contradiction::WrongLength {
                chunk: chunk(0),
                bytes: ByteSize(599),
                known: ByteSize(600),
                size: SIZE,
            },
        ),
        (last, Fact::Evicted { chunk: chunk(0) }, Contradiction::NotEvicting { chunk: chunk(0) }),
        (last, Fact::Found { chunk: chunk(0) }, Contradiction::FoundTwice { chunk: chunk(0) }),
        // Nobody has heard of it for a lease, though nobody has been told either.
        (at(99), Fact::Renewed { job: A }, Contradiction::UnknownJob { job: A }),
    ];
    for (count, (now, fact, contradiction)) in (1..).zip(wrong) {
        assert_eq!(rotation.on(now, fact), Err(contradiction), "{contradiction}");
        assert_eq!(rotation.counters().contradictions, count);
    }
    rotation.on(last, Fact::Referenced { job: A, chunk: chunk(0) }).expect("all is as before");
    assert_eq!(rotation.open(B), Err(Contradiction::UnknownJob { job: B }));
}

/// Facts at random, most of them nonsense: nothing panics, what is refused leaves no trace, and what is
/// ordered can be done.
#[test]
fn nonsense_never_leads_to_a_wrong_order() {
    for seed in seeds(2000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let paper = Policy::Paper { deadline: Duration::from_secs(3) };
        let policy = if rng.bool() { Policy::ByNeed } else { paper };
        let chunks = rng.u32(0..6);
        let mut rotation = rotation(policy, chunks as usize);
        let mut now = Duration::ZERO;
        let mut budget = 0;
        for _ in 0..60 {
            let chunk = ChunkOrdinal(rng.u32(0..=chunks));
            let job = Job(rng.u64(0..4));
            let unread = [(chunk, ByteSize(rng.u64(0..=SIZE.0)))];
            let pace = ByteRate(ByteSize(if rng.bool() { rng.u64(0..500) } else { u64::MAX }));
            now = match rng.u32(0..20) {
                0 => now.saturating_sub(Duration::from_secs(1)),
                1 => now + Duration::from_secs(40),
                _ => now + Duration::from_millis(rng.u64(0..900)),
            };
            let fact = match rng.u32(0..14) {
                0 => Fact::Budget { chunks: rng.u32(0..8) },
                1 | 2 => Fact::Joined { job },
                3 => Fact::Renewed { job },
                4 | 5 => Fact::Progress { job, unread: &unread, pace },
                6 => Fact::Referenced { job, chunk },
                7 => Fact::Exhausted { job, chunk },
                8 => Fact::NextEpoch { job },
                9 => Fact::Left { job },
                10 => Fact::Loading { chunk, bytes: ByteSize(rng.u64(0..2000)) },
                11 => Fact::Loaded { chunk },
                12 => Fact::Evicted { chunk },
                _ => Fact::Found { chunk },
            };
            let before = format!("{rotation:?}");
            let freed = if let Fact::Evicted { chunk } = fact { Some(chunk) } else { None };
            let resident: Vec<ChunkOrdinal> =
                rotation.resident().filter(|chunk| Some(*chunk) != freed).collect();
            let Ok(orders) = rotation.on(now, fact) else {
                let count = rotation.counters().contradictions;
                let (told, untold) =
                    (format!("contradictions: {count}"), format!("contradictions: {}", count - 1));
                assert_eq!(format!("{rotation:?}").replace(&told, &untold), before);
                continue;
            };
            if let Fact::Budget { chunks } = fact {
                budget = chunks as usize;
            }
            for order in orders {
                let Order::Load(chunk) = order else { continue };
                assert!(rotation.resident().count() <= budget, "seed {seed}: no room");
                assert!(!resident.contains(&chunk), "seed {seed}: loaded twice");
            }
            assert!(rotation.next_deadline().is_none_or(|due| due > Duration::ZERO));
        }
    }
}

/// Who names a chunk twice has the last word: that is no less than what can be, and no harm.
#[test]
fn a_chunk_named_twice_counts_once() {
    let mut rotation = rotation(Policy::ByNeed, 3);
    let at = Duration::from_secs(1);
    rotation.on(at, Fact::Joined { job: A }).unwrap();
    let twice: &[_] = &[(chunk(0), ByteSize(500)), (chunk(0), ByteSize(900))];
    rotation.on(at, Fact::Progress { job: A, unread: twice, pace: PACE }).unwrap();
    let grown: &[_] = &[(chunk(0), ByteSize(901))];
    let grown = rotation.on(at, Fact::Progress { job: A, unread: grown, pace: PACE });
    assert!(matches!(grown, Err(Contradiction::UnreadGrew { known: ByteSize(900), .. })));
    let nothing: Vec<_> = (0..3).map(|number| (chunk(number), ByteSize(0))).collect();
    rotation.on(at, Fact::Progress { job: A, unread: &nothing, pace: PACE }).unwrap();
}

/// A load of hardly anything says nothing about a whole one, however long it took.
#[test]
fn a_load_of_hardly_anything_teaches_nothing() {
    let mut rotation = Rotation::new(&Settings {
        policy: Policy::ByNeed,
        lease: Duration::from_hours(1),
        load_time: Duration::from_secs(5),
        chunk_sizes: vec![ByteSize(1 << 60); 2],
    });
    let at = Duration::from_secs;
    rotation.on(at(0), Fact::Budget { chunks: 2 }).unwrap();
    let orders = rotation.on(at(0), Fact::Joined { job: A }).unwrap();
    assert_eq!(orders, [Order::Load(chunk(0))]);
    rotation.on(at(0), Fact::Loading { chunk: chunk(0), bytes: ByteSize(1) }).unwrap();
    rotation.on(at(4), Fact::Loaded { chunk: chunk(0) }).unwrap();
    assert_eq!(rotation.load_time(), at(5));
}

/// Jobs that were not heard of in time do not keep others out, and many chunks leave room for fewer jobs.
#[test]
fn there_is_room_for_so_many_jobs() {
    let mut rotation = Rotation::new(&Settings {
        policy: Policy::ByNeed,
        lease: Duration::from_secs(30),
        load_time: Duration::from_secs(5),
        chunk_sizes: vec![SIZE; 1 << 16],
    });
    let join = |rotation: &mut Rotation, second, job| {
        rotation.on(Duration::from_secs(second), Fact::Joined { job: Job(job) })
    };
    (0..256).for_each(|job| drop(join(&mut rotation, 0, job).unwrap()));
    let full = Contradiction::TooManyJobs { jobs: 256 };
    assert_eq!(join(&mut rotation, 1, 256), Err(full));
    assert_eq!(join(&mut rotation, 31, 256), Ok(vec![]), "the others' leases are over");
}
