//! Invalid events: an error for the caller and a counter, never a wrong decision.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    dataset::chunking::ChunkOrdinal,
    train::rotation::{
        ChunkBytes, ChunkOrder, InvalidEvent, JobNumber, Rotation, RotationEvent, RotationPolicy,
        RotationSettings,
    },
    units::ByteRate,
};

use crate::seeds;

const SIZE: ByteSize = ByteSize(1000);
const A: JobNumber = JobNumber(1);
const B: JobNumber = JobNumber(2);

fn rotation(policy: RotationPolicy, chunks: usize) -> Rotation {
    Rotation::new(&RotationSettings {
        policy,
        lease: Duration::from_secs(30),
        load_time: Duration::from_secs(5),
        chunk_sizes: vec![SIZE; chunks],
    })
}

fn unread(chunk: u32, bytes: u64) -> ChunkBytes {
    ChunkBytes { chunk: ChunkOrdinal(chunk), bytes: ByteSize(bytes) }
}

fn chunk(number: u32) -> ChunkOrdinal {
    ChunkOrdinal(number)
}

const PACE: ByteRate = ByteRate(ByteSize(100));

#[test]
fn each_invalid_event_has_its_error_and_changes_nothing() {
    let mut rotation = rotation(RotationPolicy::Demand, 4);
    let at = Duration::from_secs;
    let events = [RotationEvent::Budget { chunks: 2 }, RotationEvent::Joined { job: A }];
    let orders = events.map(|event| rotation.on_event(at(10), event).unwrap());
    assert_eq!(orders[1], [ChunkOrder::Load(chunk(0))]);
    let half: &[_] = &[unread(0, 500)];
    rotation
        .on_event(at(11), RotationEvent::Progress { job: A, unread: half, pace: PACE })
        .unwrap();
    rotation
        .on_event(at(11), RotationEvent::Loading { chunk: chunk(0), bytes: ByteSize(600) })
        .unwrap();

    let more: &[_] = &[unread(1, SIZE.0), unread(0, 501)];
    let nowhere: &[_] = &[unread(9, 1)];
    let (now, last) = (at(10), at(11));
    let wrong = [
        (now, RotationEvent::Tick, InvalidEvent::TimeWentBack { now, last }),
        (last, RotationEvent::Renewed { job: B }, InvalidEvent::UnknownJob { job: B }),
        (last, RotationEvent::Left { job: B }, InvalidEvent::UnknownJob { job: B }),
        (last, RotationEvent::NextEpoch { job: B }, InvalidEvent::UnknownJob { job: B }),
        (last, RotationEvent::Joined { job: A }, InvalidEvent::JoinedTwice { job: A }),
        (
            last,
            RotationEvent::Progress { job: A, unread: more, pace: PACE },
            InvalidEvent::UnreadGrew {
                job: A,
                chunk: chunk(0),
                unread: ByteSize(501),
                known: ByteSize(500),
            },
        ),
        (
            last,
            RotationEvent::Progress { job: A, unread: nowhere, pace: PACE },
            InvalidEvent::UnknownChunk { chunk: chunk(9), chunks: 4 },
        ),
        (
            last,
            RotationEvent::Referenced { job: A, chunk: chunk(3) },
            InvalidEvent::NotDrawable { job: A, chunk: chunk(3) },
        ),
        (
            last,
            RotationEvent::Exhausted { job: A, chunk: chunk(0) },
            InvalidEvent::NotReferenced { job: A, chunk: chunk(0) },
        ),
        (
            last,
            RotationEvent::Loaded { chunk: chunk(2) },
            InvalidEvent::NotLoading { chunk: chunk(2) },
        ),
        (
            last,
            RotationEvent::Loading { chunk: chunk(0), bytes: ByteSize(599) },
            InvalidEvent::WrongLength {
                chunk: chunk(0),
                bytes: ByteSize(599),
                known: ByteSize(600),
                size: SIZE,
            },
        ),
        (
            last,
            RotationEvent::Evicted { chunk: chunk(0) },
            InvalidEvent::NotEvicting { chunk: chunk(0) },
        ),
        (
            last,
            RotationEvent::Found { chunk: chunk(0) },
            InvalidEvent::FoundTwice { chunk: chunk(0) },
        ),
        // Its lease has ended, though no event has said so yet.
        (at(99), RotationEvent::Renewed { job: A }, InvalidEvent::UnknownJob { job: A }),
    ];
    for (count, (now, event, invalid)) in (1..).zip(wrong) {
        assert_eq!(rotation.on_event(now, event), Err(invalid), "{invalid}");
        assert_eq!(rotation.counters().invalid_events, count);
    }
    rotation
        .on_event(last, RotationEvent::Referenced { job: A, chunk: chunk(0) })
        .expect("the state is unchanged");
    assert_eq!(rotation.draw_set(B), Err(InvalidEvent::UnknownJob { job: B }));
}

/// Random events, most of them invalid: nothing panics, a refused event leaves no trace, and every
/// order can be carried out.
#[test]
fn invalid_events_never_lead_to_a_wrong_order() {
    for seed in seeds(2000) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let quiver = RotationPolicy::Quiver { deadline: Duration::from_secs(3) };
        let policy = if rng.bool() { RotationPolicy::Demand } else { quiver };
        let chunks = rng.u32(0..6);
        let mut rotation = rotation(policy, chunks as usize);
        let mut now = Duration::ZERO;
        let mut budget = 0;
        for _ in 0..60 {
            let chunk = ChunkOrdinal(rng.u32(0..=chunks));
            let job = JobNumber(rng.u64(0..4));
            let unread = [ChunkBytes { chunk, bytes: ByteSize(rng.u64(0..=SIZE.0)) }];
            let pace = ByteRate(ByteSize(if rng.bool() { rng.u64(0..500) } else { u64::MAX }));
            now = match rng.u32(0..20) {
                0 => now.saturating_sub(Duration::from_secs(1)),
                1 => now + Duration::from_secs(40),
                _ => now + Duration::from_millis(rng.u64(0..900)),
            };
            let event = match rng.u32(0..14) {
                0 => RotationEvent::Budget { chunks: rng.u32(0..8) },
                1 | 2 => RotationEvent::Joined { job },
                3 => RotationEvent::Renewed { job },
                4 | 5 => RotationEvent::Progress { job, unread: &unread, pace },
                6 => RotationEvent::Referenced { job, chunk },
                7 => RotationEvent::Exhausted { job, chunk },
                8 => RotationEvent::NextEpoch { job },
                9 => RotationEvent::Left { job },
                10 => RotationEvent::Loading { chunk, bytes: ByteSize(rng.u64(0..2000)) },
                11 => RotationEvent::Loaded { chunk },
                12 => RotationEvent::Evicted { chunk },
                _ => RotationEvent::Found { chunk },
            };
            let before = format!("{rotation:?}");
            let freed =
                if let RotationEvent::Evicted { chunk } = event { Some(chunk) } else { None };
            let resident: Vec<ChunkOrdinal> =
                rotation.occupied().filter(|chunk| Some(*chunk) != freed).collect();
            let Ok(orders) = rotation.on_event(now, event) else {
                let count = rotation.counters().invalid_events;
                let (told, untold) =
                    (format!("invalid_events: {count}"), format!("invalid_events: {}", count - 1));
                assert_eq!(format!("{rotation:?}").replace(&told, &untold), before);
                continue;
            };
            if let RotationEvent::Budget { chunks } = event {
                budget = chunks as usize;
            }
            for order in orders {
                let ChunkOrder::Load(chunk) = order else { continue };
                assert!(rotation.occupied().count() <= budget, "seed {seed}: no room");
                assert!(!resident.contains(&chunk), "seed {seed}: loaded twice");
            }
            assert!(rotation.next_deadline().is_none_or(|due| due > Duration::ZERO));
        }
    }
}

/// If a chunk is named twice, the last value counts; that does no harm.
#[test]
fn a_chunk_named_twice_counts_once() {
    let mut rotation = rotation(RotationPolicy::Demand, 3);
    let at = Duration::from_secs(1);
    rotation.on_event(at, RotationEvent::Joined { job: A }).unwrap();
    let twice: &[_] = &[unread(0, 500), unread(0, 900)];
    rotation.on_event(at, RotationEvent::Progress { job: A, unread: twice, pace: PACE }).unwrap();
    let grown: &[_] = &[unread(0, 901)];
    let grown =
        rotation.on_event(at, RotationEvent::Progress { job: A, unread: grown, pace: PACE });
    assert!(matches!(grown, Err(InvalidEvent::UnreadGrew { known: ByteSize(900), .. })));
    let nothing: Vec<_> = (0..3).map(|number| unread(number, 0)).collect();
    rotation
        .on_event(at, RotationEvent::Progress { job: A, unread: &nothing, pace: PACE })
        .unwrap();
}

/// A load of almost nothing says nothing about a whole one, however long it took.
#[test]
fn a_load_of_almost_nothing_is_not_measured() {
    let mut rotation = Rotation::new(&RotationSettings {
        policy: RotationPolicy::Demand,
        lease: Duration::from_hours(1),
        load_time: Duration::from_secs(5),
        chunk_sizes: vec![ByteSize(1 << 60); 2],
    });
    let at = Duration::from_secs;
    rotation.on_event(at(0), RotationEvent::Budget { chunks: 2 }).unwrap();
    let orders = rotation.on_event(at(0), RotationEvent::Joined { job: A }).unwrap();
    assert_eq!(orders, [ChunkOrder::Load(chunk(0))]);
    rotation
        .on_event(at(0), RotationEvent::Loading { chunk: chunk(0), bytes: ByteSize(1) })
        .unwrap();
    rotation.on_event(at(4), RotationEvent::Loaded { chunk: chunk(0) }).unwrap();
    assert_eq!(rotation.load_time(), at(5));
}

/// Jobs whose leases have ended do not keep others out, and many chunks leave room for fewer jobs.
#[test]
fn the_number_of_jobs_is_limited() {
    let mut rotation = Rotation::new(&RotationSettings {
        policy: RotationPolicy::Demand,
        lease: Duration::from_secs(30),
        load_time: Duration::from_secs(5),
        chunk_sizes: vec![SIZE; 1 << 16],
    });
    let join = |rotation: &mut Rotation, second, job| {
        rotation
            .on_event(Duration::from_secs(second), RotationEvent::Joined { job: JobNumber(job) })
    };
    (0..256).for_each(|job| drop(join(&mut rotation, 0, job).unwrap()));
    let full = InvalidEvent::TooManyJobs { jobs: 256 };
    assert_eq!(join(&mut rotation, 1, 256), Err(full));
    assert_eq!(join(&mut rotation, 31, 256), Ok(vec![]), "the others' leases have ended");
}
