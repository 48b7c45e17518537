//! All managers of a node: who is believed, who has to tell all, and how datasets share the space.

use std::time::Duration;

use forebay_core::{
    ByteSize, DatasetId,
    benefit::Mode,
    manager::{Answer, JOB_PIECES_MAX, Managers, Order, Piece, Refusal, Report, Rule, Space},
    placement::Placement,
    units::ByteRate,
};

const LEASE: Duration = Duration::from_mins(1);
const PIECE: u64 = 100;

fn dataset(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 32])
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Managers with room for so many chunks, and so many datasets of ten chunks.
fn managers(room: u64, datasets: u8) -> Managers {
    managers_of(room, datasets, &[PIECE; 20])
}

fn managers_of(room: u64, datasets: u8, pieces: &[u64]) -> Managers {
    let space = Space::new(Rule::Knapsack(Placement::default()), ByteSize(room * 2 * PIECE));
    let mut managers = Managers::new(space, LEASE, ByteRate(ByteSize(100)));
    for number in 0..datasets {
        let sizes = || pieces.iter().copied().map(ByteSize).collect();
        assert_eq!(managers.manage(s(0), dataset(number), sizes, []), Ok(vec![]));
    }
    managers
}

fn hello(life: u64) -> Report {
    Report {
        life,
        gpus: 1,
        epoch_batches: 100_000,
        pace: ByteRate(ByteSize(10)),
        is_all: true,
        ..Report::default()
    }
}

fn drawn(life: u64, unread: &[(u32, u64)]) -> Report {
    let unread = unread.iter().map(|(piece, bytes)| (*piece, ByteSize(*bytes))).collect();
    Report { is_all: false, unread, ..hello(life) }
}

/// Carries out evictions at once, and what follows from them.
fn report(managers: &mut Managers, now: u64, name: &str, said: &Report) -> Answer {
    let (answer, orders) = managers.report(s(now), dataset(0), name, said);
    obey(managers, now, orders);
    answer.unwrap()
}

fn obey(managers: &mut Managers, now: u64, mut orders: Vec<(DatasetId, Order)>) {
    while let Some((dataset, order)) = orders.pop() {
        if let Order::Evict(pieces) = order {
            orders.extend(managers.evicted(s(now), dataset, &pieces).unwrap());
        }
    }
}

fn opened(answer: &Answer) -> Vec<u32> {
    let Answer::Draw { open, .. } = answer else { panic!("{answer:?}") };
    let then = open.then.iter().flatten();
    open.held.iter().chain(&open.first).chain(then).map(|piece| piece.0).collect()
}

#[test]
fn whoever_reports_is_told_what_to_draw_from() {
    let mut managers = managers(3, 1);
    let answer = report(&mut managers, 0, "a", &hello(1));
    let open = opened(&answer);
    assert!(!open.is_empty());
    let Answer::Draw { loading, forced, .. } = answer else { unreachable!() };
    assert_eq!((loading.is_empty(), forced), (false, 100), "a new job is probed, once");
    let next = report(&mut managers, 1, "a", &drawn(1, &[(open[0], 50)]));
    assert!(matches!(next, Answer::Draw { forced: 0, .. }));
    for piece in 0..20 {
        assert_eq!(managers.is_kept(&dataset(0), piece), opened(&next).contains(&piece));
    }
    assert!(managers.is_kept(&dataset(9), 0), "what nobody manages is kept");
    let described = managers.describe(&dataset(0)).unwrap();
    assert!(described.why.contains("chunks") && described.jobs[0].name == "a");
    let is_there = |piece: &Piece| *piece != Piece::Absent;
    assert_eq!(described.pieces.iter().filter(|piece| is_there(piece)).count(), open.len());
    managers.forget(&dataset(0));
    assert_eq!(managers.describe(&dataset(0)), None);
}

/// What a manager does not know it asks for: after it has taken over, after a silence, in a new epoch.
#[test]
fn a_manager_that_does_not_know_asks_to_be_told_all() {
    let mut managers = managers(3, 1);
    assert_eq!(report(&mut managers, 0, "a", &drawn(1, &[])), Answer::TellAll);
    report(&mut managers, 0, "a", &hello(1));
    assert!(matches!(report(&mut managers, 1, "a", &drawn(1, &[])), Answer::Draw { .. }));
    assert_eq!(report(&mut managers, 100, "a", &drawn(1, &[])), Answer::TellAll, "too late");
    report(&mut managers, 100, "a", &hello(1));
    let next = Report { epoch: 1, ..drawn(1, &[]) };
    assert_eq!(report(&mut managers, 101, "a", &next), Answer::TellAll, "another epoch");
    let next = Report { epoch: 1, ..hello(1) };
    assert!(matches!(report(&mut managers, 101, "a", &next), Answer::Draw { .. }));
}

/// A job that was started again fences its predecessor, and never the other way round.
#[test]
fn the_last_life_of_a_job_counts() {
    let mut managers = managers(3, 1);
    report(&mut managers, 0, "a", &hello(1));
    report(&mut managers, 1, "a", &hello(2));
    assert_eq!(managers.manager(&dataset(0)).unwrap().wish().jobs.len(), 1, "one of them");
    for said in [drawn(1, &[]), hello(1)] {
        assert_eq!(managers.report(s(2), dataset(0), "a", &said).0, Err(Refusal::Fenced));
    }
    assert!(matches!(report(&mut managers, 2, "a", &drawn(2, &[])), Answer::Draw { .. }));
}

/// Of a report that cannot be, nothing counts.
#[test]
fn nonsense_changes_nothing() {
    let mut managers = managers(3, 1);
    let open = opened(&report(&mut managers, 0, "a", &hello(1)));
    let wish = |managers: &Managers| managers.manager(&dataset(0)).unwrap().wish();
    let before = wish(&managers);
    let bad = |change: fn(&mut Report)| {
        let mut report = drawn(1, &[]);
        change(&mut report);
        report
    };
    for said in [
        bad(|report| report.released = vec![0, 20]),
        bad(|report| report.filled = vec![u32::MAX]),
        bad(|report| report.unread = vec![(0, ByteSize(PIECE + 1))]),
        bad(|report| report.unread = vec![(1 << 31, ByteSize(0))]),
    ] {
        let (answer, orders) = managers.report(s(1), dataset(0), "a", &said);
        assert!(matches!(answer, Err(Refusal::Contradiction(_))), "{said:?}");
        assert_eq!((orders, wish(&managers)), (vec![], before.clone()));
    }
    // Times that make no sense are not believed either, but do no harm.
    let times = vec![(Mode::Hit, Duration::ZERO, s(1)); 100];
    let answer = report(&mut managers, 2, "a", &Report { batches: times, ..drawn(1, &[]) });
    assert_eq!(opened(&answer), open);
}

#[test]
fn datasets_share_the_space_and_give_it_back() {
    let mut managers = managers(4, 2);
    report(&mut managers, 0, "a", &hello(1));
    let (_, orders) = managers.report(s(1), dataset(1), "b", &hello(2));
    obey(&mut managers, 1, orders);
    let placed = |managers: &Managers, number| {
        let manager = managers.manager(&dataset(number)).unwrap();
        (0..20).filter(|piece| managers.is_kept(&dataset(number), *piece)).count() as u64 * PIECE
            <= manager.wish().space(manager.choice()).0
    };
    assert!(placed(&managers, 0) && placed(&managers, 1));
    let space = |managers: &Managers| -> u64 {
        let managers = [0, 1].map(|number| managers.manager(&dataset(number)).unwrap());
        managers.iter().map(|manager| manager.wish().space(manager.choice()).0).sum()
    };
    assert!(space(&managers) <= 4 * 2 * PIECE);
    let orders = managers.left(s(2), dataset(0), "a").unwrap();
    obey(&mut managers, 2, orders);
    assert!(space(&managers) <= 4 * 2 * PIECE);
    assert!(managers.next_deadline().is_some());
    assert_eq!(managers.left(s(3), dataset(0), "a"), Ok(vec![]), "it has left already");
}

/// Any facts in any order: never a panic, never more room than there is.
#[test]
fn random_reports_do_no_harm() {
    for seed in crate::seeds(200) {
        let mut random = fastrand::Rng::with_seed(seed);
        let pieces: Vec<u64> = (0..20).map(|_| random.u64(80..=PIECE)).collect();
        let mut managers = managers_of(random.u64(0..12), 3, &pieces);
        let mut now = 0;
        for _ in 0..200 {
            now += random.u64(0..20);
            let piece = |random: &mut fastrand::Rng| random.u32(0..22);
            let list = |random: &mut fastrand::Rng| -> Vec<u32> {
                (0..random.usize(0..3)).map(|_| piece(random)).collect()
            };
            let mode = [Mode::Hit, Mode::Rotating, Mode::Miss][random.usize(0..3)];
            let time = (mode, Duration::from_millis(random.u64(0..50)), Duration::ZERO);
            let said = Report {
                epoch: random.u64(0..3),
                is_all: random.bool(),
                unread: list(&mut random)
                    .into_iter()
                    .map(|piece| (piece, ByteSize(random.u64(0..=PIECE))))
                    .collect(),
                released: list(&mut random),
                filled: list(&mut random),
                batches: vec![time; random.usize(0..40)],
                ..hello(random.u64(0..3))
            };
            let (id, name) = (dataset(random.u8(0..3)), ["a", "b", "c"][random.usize(0..3)]);
            let orders = match random.u8(0..10) {
                0 => managers.left(s(now), id, name).unwrap(),
                1 => managers.tick(s(now)).unwrap(),
                2 => managers.arrived(s(now), id, random.u32(0..20), ByteSize(50)).unwrap(),
                _ => managers.report(s(now), id, name, &said).1,
            };
            obey(&mut managers, now, orders);
            let kept = |number| {
                let kept = (0..20).filter(|piece| managers.is_kept(&dataset(number), *piece));
                kept.map(|piece| pieces[piece as usize]).sum::<u64>()
            };
            assert!((0..3).map(kept).sum::<u64>() <= managers.capacity().0, "seed {seed}");
        }
    }
}

/// Promise 6: what is remembered of jobs is bounded, however finely their datasets are cut.
#[test]
fn jobs_of_many_pieces_are_few() {
    let pieces = vec![1; 1 << 17];
    let mut managers = managers_of(3, 2, &pieces);
    let jobs_max = JOB_PIECES_MAX >> 17;
    let name = |number: u64| format!("job {number}");
    for number in 0..jobs_max {
        let dataset = dataset(u8::try_from(number % 2).unwrap());
        let (answer, _) = managers.report(s(0), dataset, &name(number), &hello(number));
        assert!(answer.is_ok(), "{number}: {answer:?}");
    }
    let (refused, _) = managers.report(s(0), dataset(0), "another", &hello(99));
    assert_eq!(refused, Err(Refusal::TooManyJobs));
    let (known, _) = managers.report(s(0), dataset(0), &name(0), &drawn(0, &[]));
    assert!(known.is_ok(), "{known:?}");
}
