//! All managers of a node: who is believed, who has to tell all, and how datasets share the space.

use std::{collections::BTreeSet, time::Duration};

use forebay_core::{
    ByteSize, DatasetId,
    benefit::Mode,
    manager::{Answer, JOB_PIECES_MAX, Managers, Order, Piece, Refusal, Report, Rule, Space},
    placement::{Choice, Placement},
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
    assert_eq!(managers.manager(&dataset(0)).unwrap().wish(s(0)).jobs.len(), 1, "one of them");
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
    let wish = |managers: &Managers| managers.manager(&dataset(0)).unwrap().wish(s(0));
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
            <= manager.wish(s(0)).space(manager.choice()).0
    };
    assert!(placed(&managers, 0) && placed(&managers, 1));
    let space = |managers: &Managers| -> u64 {
        let managers = [0, 1].map(|number| managers.manager(&dataset(number)).unwrap());
        managers.iter().map(|manager| manager.wish(s(0)).space(manager.choice()).0).sum()
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

/// Managers, what their orders leave on a device, and what jobs had to fetch.
struct Cache {
    managers: Managers,
    here: BTreeSet<(DatasetId, u32)>,
    fetched: u64,
    now: u64,
}

impl Cache {
    fn new(room: u64, datasets: u8) -> Self {
        let managers = managers(room, datasets);
        Self { managers, here: BTreeSet::new(), fetched: 0, now: 0 }
    }

    fn obey(&mut self, mut orders: Vec<(DatasetId, Order)>) {
        while let Some((dataset, order)) = orders.pop() {
            if let Order::Evict(pieces) = order {
                orders.extend(self.managers.evicted(s(self.now), dataset, &pieces).unwrap());
            }
            // A node frees what has no place.
            let kept = self.kept(dataset);
            self.here.retain(|(of, piece)| *of != dataset || kept.contains(piece));
        }
    }

    fn report(&mut self, id: DatasetId, said: &Report) -> Answer {
        self.now += 1;
        let (answer, orders) = self.managers.report(s(self.now), id, "job", said);
        self.obey(orders);
        answer.unwrap()
    }

    fn kept(&self, id: DatasetId) -> BTreeSet<u32> {
        self.managers.manager(&id).unwrap().kept().collect()
    }

    /// A job reads a dataset, piece by piece, up to so many of them. Returns how many it fetched.
    fn job(&mut self, number: u8, life: u64, pieces: usize) -> u64 {
        let (id, before) = (dataset(number), self.fetched);
        let mut open = opened(&self.report(id, &hello(life)));
        let mut unread: BTreeSet<u32> = (0..20).collect();
        for _ in 0..pieces {
            let first = open.iter().find(|piece| unread.contains(piece)).copied();
            let piece = first.unwrap_or_else(|| *unread.first().unwrap());
            unread.remove(&piece);
            if !self.here.contains(&(id, piece)) {
                self.fetched += 1;
                if self.kept(id).contains(&piece) {
                    self.here.insert((id, piece));
                    let bytes = ByteSize(PIECE);
                    let orders = self.managers.arrived(s(self.now), id, piece, bytes).unwrap();
                    self.obey(orders);
                }
            }
            let (released, filled) = (vec![piece], vec![piece]);
            let said = Report { released, filled, ..drawn(life, &[(piece, 0)]) };
            open = opened(&self.report(id, &said));
        }
        let orders = self.managers.left(s(self.now), id, "job").unwrap();
        self.obey(orders);
        self.fetched - before
    }

    fn there(&self, number: u8) -> usize {
        self.here.iter().filter(|(id, _)| *id == dataset(number)).count()
    }

    fn why(&self, number: u8) -> String {
        self.managers.describe(&dataset(number)).unwrap().why
    }
}

/// "What is cached stays until others need the room": jobs on several datasets, one after the other.
#[test]
fn the_next_job_finds_what_the_last_one_left() {
    let mut cache = Cache::new(30, 3);
    for (life, number) in (0..).zip([0, 0, 1, 2, 0, 2, 1, 1, 0]) {
        let is_new = cache.there(number) == 0;
        assert_eq!(cache.job(number, life, 20), if is_new { 20 } else { 0 }, "job {life}");
    }
    assert_eq!(cache.fetched, 60);
    let said = "what is cached stays until others need the room: no job reads it";
    assert!((0..3).all(|number| cache.why(number) == said));
}

/// With room for some: the one that was read longest ago makes room, no more of it than is needed.
#[test]
fn the_least_recently_read_goes_first() {
    let mut cache = Cache::new(25, 4);
    for number in [0, 1, 0, 2] {
        cache.job(number, number.into(), 20);
    }
    assert_eq!([0, 1, 2].map(|number| cache.there(number)), [20, 10, 20]);
    assert_eq!(cache.job(0, 10, 20) + cache.job(2, 11, 20), 0);
    assert_eq!(cache.job(1, 12, 20), 10, "half of it was still there");
    assert_eq!([0, 1, 2].map(|number| cache.there(number)), [10, 20, 20]);
    cache.job(3, 13, 20);
    assert_eq!([0, 1, 2, 3].map(|number| cache.there(number)), [0, 20, 10, 20]);
    assert_eq!(cache.why(0), "nothing is cached: no job reads it");
}

/// A job that ends early leaves what it has read, and room for the rest, but that only while nobody else needs it. What
/// was put unasked keeps its place all the same.
#[test]
fn what_is_there_counts_and_not_what_there_was_room_for() {
    let mut cache = Cache::new(25, 3);
    cache.job(0, 0, 4);
    let id = dataset(0);
    assert_eq!(cache.kept(id).len(), 20, "what is put is kept");
    cache.here.insert((id, 19));
    cache.managers.arrived(s(cache.now), id, 19, ByteSize(PIECE)).unwrap();
    let there = cache.here.clone();
    cache.job(1, 1, 20);
    assert_eq!(cache.kept(id).len(), 20, "there is room for both");
    cache.job(2, 2, 20);
    assert!(cache.kept(id).len() < 20, "others need the room");
    assert!(cache.here.is_superset(&there) && there.len() == 5);
    assert!([1, 2].map(|number| cache.there(number)) == [20, 20]);
}

/// Whoever splits the space for several nodes knows what each has that nobody reads there.
#[test]
fn what_nobody_reads_on_another_node_keeps_its_room() {
    let (mut here, mut elsewhere) = (managers(15, 1), managers(15, 0));
    elsewhere.split_here(false);
    let sizes = || vec![ByteSize(PIECE); 20];
    elsewhere.manage(s(0), dataset(1), sizes, 0..20).unwrap();
    let wish = |here: &mut Managers, elsewhere: &Managers, now| {
        let wishes = elsewhere.wishes(s(now)).into_iter().collect();
        let orders = here.wished(s(now), wishes).unwrap();
        obey(here, now, orders);
        here.shares_of_others(&[dataset(1)])
    };
    let shares = wish(&mut here, &elsewhere, 1);
    assert_eq!(shares[0].1.choice, Choice::Chunks(10), "there is room");
    assert_eq!(elsewhere.place(s(1), shares), Ok(vec![]));
    report(&mut here, 2, "a", &hello(1));
    let shares = wish(&mut here, &elsewhere, 7);
    assert_eq!(shares[0].1.choice, Choice::Chunks(5), "as far as nobody else needs it");
    let orders = elsewhere.place(s(7), shares).unwrap();
    assert_eq!(orders.iter().filter(|(_, order)| matches!(order, Order::Evict(_))).count(), 5);
}
