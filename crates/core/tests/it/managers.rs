//! The registry of managers: which reports count, when a full report is needed, and how datasets
//! share the space.

use std::{collections::BTreeSet, time::Duration};

use forebay_core::{
    ByteSize, DatasetId, HalfChunk,
    train::{
        benefit::{BatchTime, Mode},
        manager::{
            HalfChunkBytes, HalfChunkOrder, HalfChunkState, JOB_HALF_CHUNK_BYTES, ManagerRegistry,
            MeasuredBatch, PlacementRule, Report, ReportAnswer, ReportRefusal, Space,
        },
        placement::{Allocation, Placement},
    },
    units::ByteRate,
};

const LEASE: Duration = Duration::from_mins(1);
const HALF_CHUNK: u64 = 100;

fn dataset(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 32])
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A registry with space for `room` chunks, and `datasets` datasets of ten chunks.
fn registry(room: u64, datasets: u8) -> ManagerRegistry {
    registry_of(room, datasets, &[HALF_CHUNK; 20])
}

fn registry_of(room: u64, datasets: u8, half_chunks: &[u64]) -> ManagerRegistry {
    let space =
        Space::new(PlacementRule::Knapsack(Placement::default()), ByteSize(room * 2 * HALF_CHUNK));
    let mut registry = ManagerRegistry::new(space, LEASE, ByteRate(ByteSize(100)));
    for number in 0..datasets {
        let sizes = || half_chunks.iter().copied().map(ByteSize).collect();
        assert_eq!(registry.manage(s(0), dataset(number), sizes, []), Ok(vec![]));
    }
    registry
}

fn full_report(incarnation: u64) -> Report {
    Report {
        incarnation,
        gpus: 1,
        epoch_batches: 100_000,
        pace: ByteRate(ByteSize(10)),
        is_full: true,
        ..Report::default()
    }
}

fn drawn(incarnation: u64, unread: &[(HalfChunk, u64)]) -> Report {
    let unread = unread.iter().map(|(half_chunk, bytes)| bytes_of(*half_chunk, *bytes)).collect();
    Report { is_full: false, unread, ..full_report(incarnation) }
}

fn bytes_of(half_chunk: HalfChunk, bytes: u64) -> HalfChunkBytes {
    HalfChunkBytes { half_chunk, bytes: ByteSize(bytes) }
}

/// Carries out evictions at once, and what follows from them.
fn report(registry: &mut ManagerRegistry, now: u64, name: &str, said: &Report) -> ReportAnswer {
    let (answer, orders) = registry.on_report(s(now), dataset(0), name, said);
    carry_out(registry, now, orders);
    answer.unwrap()
}

fn carry_out(
    registry: &mut ManagerRegistry,
    now: u64,
    mut orders: Vec<(DatasetId, HalfChunkOrder)>,
) {
    while let Some((dataset, order)) = orders.pop() {
        if let HalfChunkOrder::Evict(half_chunks) = order {
            orders.extend(registry.on_evicted(s(now), dataset, half_chunks).unwrap());
        }
    }
}

fn opened(answer: &ReportAnswer) -> Vec<HalfChunk> {
    let ReportAnswer::Draw { draw_set: open, .. } = answer else { panic!("{answer:?}") };
    let then = open.then.iter().flatten();
    open.pinned.iter().chain(&open.first).chain(then).copied().collect()
}

#[test]
fn a_report_is_answered_with_a_draw_set() {
    let mut registry = registry(3, 1);
    let answer = report(&mut registry, 0, "a", &full_report(1));
    let open = opened(&answer);
    assert!(!open.is_empty());
    let ReportAnswer::Draw { loading, probe_batches, .. } = answer else { unreachable!() };
    assert_eq!((loading.is_empty(), probe_batches), (false, 100), "a new job is probed, once");
    let next = report(&mut registry, 1, "a", &drawn(1, &[(open[0], 50)]));
    assert!(matches!(next, ReportAnswer::Draw { probe_batches: 0, .. }));
    for half_chunk in HalfChunk::all(20) {
        assert_eq!(registry.is_kept(&dataset(0), half_chunk), opened(&next).contains(&half_chunk));
    }
    assert!(
        registry.is_kept(&dataset(9), HalfChunk(0)),
        "everything of an unmanaged dataset is kept"
    );
    let explained = registry.explain(&dataset(0)).unwrap();
    assert!(explained.why.contains("chunks") && explained.jobs[0].name == "a");
    let is_there = |half_chunk: &HalfChunkState| *half_chunk != HalfChunkState::Absent;
    assert_eq!(
        explained.half_chunks.iter().filter(|half_chunk| is_there(half_chunk)).count(),
        open.len()
    );
    registry.forget(&dataset(0));
    assert_eq!(registry.explain(&dataset(0)), None);
}

/// A manager asks for a full report after a takeover, after the lease has ended, and in a new
/// epoch.
/// The second manager sums up to the revision of the last split.
#[test]
fn an_evicted_dataset_gets_space_again() {
    let mut registry = registry(4, 1);
    let before = opened(&report(&mut registry, 1, "job", &full_report(1)));
    registry.forget(&dataset(0));
    let sizes = || vec![ByteSize(HALF_CHUNK); 20];
    registry.manage(s(2), dataset(0), sizes, []).unwrap();
    let after = opened(&report(&mut registry, 2, "job", &full_report(1)));
    assert!(!before.is_empty());
    assert_eq!(after, before);
}

#[test]
fn an_unknown_job_is_asked_for_a_full_report() {
    let mut registry = registry(3, 1);
    assert_eq!(report(&mut registry, 0, "a", &drawn(1, &[])), ReportAnswer::FullReportNeeded);
    report(&mut registry, 0, "a", &full_report(1));
    assert!(matches!(report(&mut registry, 1, "a", &drawn(1, &[])), ReportAnswer::Draw { .. }));
    assert_eq!(
        report(&mut registry, 100, "a", &drawn(1, &[])),
        ReportAnswer::FullReportNeeded,
        "too late"
    );
    report(&mut registry, 100, "a", &full_report(1));
    let next = Report { epoch: 1, ..drawn(1, &[]) };
    assert_eq!(
        report(&mut registry, 101, "a", &next),
        ReportAnswer::FullReportNeeded,
        "another epoch"
    );
    let next = Report { epoch: 1, ..full_report(1) };
    assert!(matches!(report(&mut registry, 101, "a", &next), ReportAnswer::Draw { .. }));
}

/// A restarted job fences its former process, and never the other way round.
#[test]
fn the_last_incarnation_of_a_job_counts() {
    let mut registry = registry(3, 1);
    report(&mut registry, 0, "a", &full_report(1));
    report(&mut registry, 1, "a", &full_report(2));
    assert_eq!(registry.manager(&dataset(0)).unwrap().demand(s(0)).jobs.len(), 1, "one of them");
    for said in [drawn(1, &[]), full_report(1)] {
        assert_eq!(registry.on_report(s(2), dataset(0), "a", &said).0, Err(ReportRefusal::Fenced));
    }
    assert!(matches!(report(&mut registry, 2, "a", &drawn(2, &[])), ReportAnswer::Draw { .. }));
}

/// An invalid report counts for nothing.
#[test]
fn an_invalid_report_changes_nothing() {
    let mut registry = registry(3, 1);
    let open = opened(&report(&mut registry, 0, "a", &full_report(1)));
    let demand = |registry: &ManagerRegistry| registry.manager(&dataset(0)).unwrap().demand(s(0));
    let before = demand(&registry);
    let bad = |change: fn(&mut Report)| {
        let mut report = drawn(1, &[]);
        change(&mut report);
        report
    };
    for said in [
        bad(|report| report.released = vec![HalfChunk(0), HalfChunk(20)]),
        bad(|report| report.filled = vec![HalfChunk(u32::MAX)]),
        bad(|report| report.unread = vec![bytes_of(HalfChunk(0), HALF_CHUNK + 1)]),
        bad(|report| report.unread = vec![bytes_of(HalfChunk(1 << 31), 0)]),
    ] {
        let (answer, orders) = registry.on_report(s(1), dataset(0), "a", &said);
        assert!(matches!(answer, Err(ReportRefusal::InvalidEvent(_))), "{said:?}");
        assert_eq!((orders, demand(&registry)), (vec![], before.clone()));
    }
    // Impossible times are ignored, and do no harm.
    let time = BatchTime { took: Duration::ZERO, stalled: s(1) };
    let times = vec![MeasuredBatch { mode: Mode::Hit, time }; 100];
    let answer = report(&mut registry, 2, "a", &Report { batches: times, ..drawn(1, &[]) });
    assert_eq!(opened(&answer), open);
}

#[test]
fn datasets_share_the_space_and_give_it_back() {
    let mut registry = registry(4, 2);
    report(&mut registry, 0, "a", &full_report(1));
    let (_, orders) = registry.on_report(s(1), dataset(1), "b", &full_report(2));
    carry_out(&mut registry, 1, orders);
    let placed = |registry: &ManagerRegistry, number| {
        let manager = registry.manager(&dataset(number)).unwrap();
        HalfChunk::all(20)
            .into_iter()
            .filter(|half_chunk| registry.is_kept(&dataset(number), *half_chunk))
            .count() as u64
            * HALF_CHUNK
            <= manager.demand(s(0)).space(manager.allocation()).0
    };
    assert!(placed(&registry, 0) && placed(&registry, 1));
    let space = |registry: &ManagerRegistry| -> u64 {
        let registry = [0, 1].map(|number| registry.manager(&dataset(number)).unwrap());
        registry.iter().map(|manager| manager.demand(s(0)).space(manager.allocation()).0).sum()
    };
    assert!(space(&registry) <= 4 * 2 * HALF_CHUNK);
    let orders = registry.on_left(s(2), dataset(0), "a").unwrap();
    carry_out(&mut registry, 2, orders);
    assert!(space(&registry) <= 4 * 2 * HALF_CHUNK);
    assert!(registry.next_deadline().is_some());
    assert_eq!(registry.on_left(s(3), dataset(0), "a"), Ok(vec![]), "it has left already");
}

/// Any events in any order: never a panic, never more space than there is.
#[test]
fn random_reports_do_no_harm() {
    for seed in crate::seeds(200) {
        let mut random = fastrand::Rng::with_seed(seed);
        let half_chunks: Vec<u64> = (0..20).map(|_| random.u64(80..=HALF_CHUNK)).collect();
        let mut registry = registry_of(random.u64(0..12), 3, &half_chunks);
        let mut now = 0;
        for _ in 0..200 {
            now += random.u64(0..20);
            let half_chunk = |random: &mut fastrand::Rng| HalfChunk(random.u32(0..22));
            let list = |random: &mut fastrand::Rng| -> Vec<HalfChunk> {
                (0..random.usize(0..3)).map(|_| half_chunk(random)).collect()
            };
            let mode = [Mode::Hit, Mode::Rotating, Mode::Miss][random.usize(0..3)];
            let took = Duration::from_millis(random.u64(0..50));
            let time = MeasuredBatch { mode, time: BatchTime { took, stalled: Duration::ZERO } };
            let said = Report {
                epoch: random.u64(0..3),
                is_full: random.bool(),
                unread: list(&mut random)
                    .into_iter()
                    .map(|half_chunk| bytes_of(half_chunk, random.u64(0..=HALF_CHUNK)))
                    .collect(),
                released: list(&mut random),
                filled: list(&mut random),
                batches: vec![time; random.usize(0..40)],
                ..full_report(random.u64(0..3))
            };
            let (id, name) = (dataset(random.u8(0..3)), ["a", "b", "c"][random.usize(0..3)]);
            let orders = match random.u8(0..10) {
                0 => registry.on_left(s(now), id, name).unwrap(),
                1 => registry.on_tick(s(now)).unwrap(),
                2 => registry
                    .on_arrived(s(now), id, HalfChunk(random.u32(0..20)), ByteSize(50))
                    .unwrap(),
                _ => registry.on_report(s(now), id, name, &said).1,
            };
            carry_out(&mut registry, now, orders);
            let keep_set = |number| {
                let keep_set = HalfChunk::all(20)
                    .into_iter()
                    .filter(|half_chunk| registry.is_kept(&dataset(number), *half_chunk));
                keep_set.map(|half_chunk| half_chunks[half_chunk.index()]).sum::<u64>()
            };
            assert!((0..3).map(keep_set).sum::<u64>() <= registry.capacity().0, "seed {seed}");
        }
    }
}

/// Promise 6: jobs draw ahead of what they yield and nodes free space late, so evicted chunks stay
/// for a while. Whatever is loading, present or not yet free never exceeds the capacity.
#[test]
fn space_that_moves_is_never_used_twice() {
    for seed in crate::seeds(100) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut registry = registry(random.u64(2..9), 3);
        let (mut now, mut evicting) = (0, Vec::new());
        for step in 0..300 {
            now += random.u64(0..4);
            let (id, name) = (dataset(random.u8(0..3)), ["a", "b", "c"][random.usize(0..3)]);
            let draws: Vec<HalfChunk> =
                (0..random.usize(0..6)).map(|_| HalfChunk(random.u32(0..20))).collect();
            let mode = [Mode::Hit, Mode::Rotating, Mode::Miss][random.usize(0..3)];
            let took = Duration::from_millis(random.u64(1..50));
            let time = MeasuredBatch { mode, time: BatchTime { took, stalled: Duration::ZERO } };
            let said = Report {
                is_full: random.u8(0..4) == 0,
                unread: draws.iter().map(|half_chunk| bytes_of(*half_chunk, 0)).collect(),
                released: draws.iter().copied().filter(|_| random.u8(0..3) == 0).collect(),
                batches: vec![time; random.usize(0..40)],
                ..full_report(1)
            };
            let orders = match random.u8(0..12) {
                0 => registry.on_left(s(now), id, name).unwrap(),
                1 => registry.on_tick(s(now)).unwrap(),
                _ => registry.on_report(s(now), id, name, &said).1,
            };
            let mut orders = orders;
            if random.u8(0..3) == 0 {
                for (dataset, half_chunks) in std::mem::take(&mut evicting) {
                    orders.extend(registry.on_evicted(s(now), dataset, half_chunks).unwrap());
                }
            }
            evicting.extend(orders.into_iter().filter_map(|(dataset, order)| match order {
                HalfChunkOrder::Evict(half_chunks) => Some((dataset, half_chunks)),
                HalfChunkOrder::Load(_) | HalfChunkOrder::Keep => None,
            }));
            let mut taken: BTreeSet<(DatasetId, HalfChunk)> = BTreeSet::new();
            for id in (0..3).map(dataset) {
                let kept = HalfChunk::all(20).into_iter();
                taken.extend(kept.filter(|at| registry.is_kept(&id, *at)).map(|at| (id, at)));
            }
            taken.extend(evicting.iter().flat_map(|(id, all)| all.into_iter().map(|at| (*id, at))));
            let bytes = taken.len() as u64 * HALF_CHUNK;
            let capacity = registry.capacity().0;
            assert!(bytes <= capacity, "seed {seed}, step {step}: {bytes} of {capacity}");
        }
    }
}

/// Promise 6: the state of jobs is bounded, however finely their datasets are cut.
#[test]
fn the_number_of_jobs_with_many_half_chunks_is_limited() {
    let half_chunks = vec![1; 1 << 10];
    let mut registry = registry_of(3, 2, &half_chunks);
    let jobs_max = 8;
    registry.set_job_memory(ByteSize((jobs_max * JOB_HALF_CHUNK_BYTES) << 10));
    let name = |number: u64| format!("job {number}");
    for number in 0..jobs_max {
        let dataset = dataset(u8::try_from(number % 2).unwrap());
        let (answer, _) = registry.on_report(s(0), dataset, &name(number), &full_report(number));
        assert!(answer.is_ok(), "{number}: {answer:?}");
    }
    let (refused, _) = registry.on_report(s(0), dataset(0), "another", &full_report(99));
    assert_eq!(refused, Err(ReportRefusal::TooManyJobs));
    let (known, _) = registry.on_report(s(0), dataset(0), &name(0), &drawn(0, &[]));
    assert!(known.is_ok(), "{known:?}");
}

/// Promise 5: a report of the most mini-batches changes the verdict once, however often the times
/// in it flip.
#[test]
fn a_long_report_is_judged_once() {
    let mut registry = registry_of(3, 1, &[HALF_CHUNK; 20]);
    let id = dataset(0);
    let report = |batches| Report { epoch_batches: 1 << 20, batches, ..full_report(1) };
    registry.on_report(s(0), id, "job", &report(Vec::new())).0.unwrap();
    let times = |mode, ms, count| {
        let took = Duration::from_millis(ms);
        vec![MeasuredBatch { mode, time: BatchTime { took, stalled: took / 2 } }; count]
    };
    // No gain, then a stall, again and again: each change of the verdict joins or leaves the
    // rotation.
    let flips = [times(Mode::Miss, 10, 200), times(Mode::Rotating, 10, 200)].concat();
    let before = registry.manager(&id).unwrap().demand_revision();
    registry.on_report(s(1), id, "job", &report(flips.repeat(160))).0.unwrap();
    let changes = registry.manager(&id).unwrap().demand_revision() - before;
    assert!(changes <= 1, "{changes} changes of the verdict in one report");
}

/// Promise 5: with a thousand datasets the space is split once per second, not at every report.
#[test]
fn many_datasets_are_split_at_intervals() {
    let mut registry = registry_of(100_000, 200, &[HALF_CHUNK; 4]);
    for number in 0..200 {
        let now = Duration::from_millis(u64::from(number));
        let answer = registry.on_report(now, dataset(number), "job", &full_report(1)).0;
        assert!(answer.is_ok(), "{answer:?}");
    }
    assert!(registry.split_count() <= 66, "{} splits for 200 reports", registry.split_count());
    let due = registry.next_deadline().unwrap();
    assert!(due <= s(2), "the rest is split later");
    let before = registry.split_count();
    registry.on_tick(due).unwrap();
    assert_eq!(registry.split_count(), before + 1);
    let (answer, _) = registry.on_report(s(3), dataset(199), "job", &drawn(1, &[]));
    assert!(matches!(answer, Ok(ReportAnswer::Draw { .. })), "{answer:?}");
}

/// Promise 6: lists of a report are bounded by the dataset, and so is the dataset.
#[test]
fn reports_longer_than_their_dataset_are_refused() {
    let mut registry = registry_of(3, 1, &[HALF_CHUNK; 20]);
    let released = vec![HalfChunk(0); 21];
    let report = Report { released, ..full_report(1) };
    let (refused, _) = registry.on_report(s(0), dataset(0), "job", &report);
    assert_eq!(refused, Err(ReportRefusal::NamedTwice));
    assert_eq!(ManagerRegistry::check_half_chunks(1 << 10), Ok(()));
    let refused = ManagerRegistry::check_half_chunks((1 << 10) + 2);
    assert_eq!(refused, Err(ReportRefusal::TooManyHalfChunks));
}

/// A registry, what its orders leave on a device, and what jobs had to fetch.
struct Cache {
    registry: ManagerRegistry,
    present: BTreeSet<(DatasetId, HalfChunk)>,
    fetched: u64,
    now: u64,
}

impl Cache {
    fn new(room: u64, datasets: u8) -> Self {
        let registry = registry(room, datasets);
        Self { registry, present: BTreeSet::new(), fetched: 0, now: 0 }
    }

    fn carry_out(&mut self, mut orders: Vec<(DatasetId, HalfChunkOrder)>) {
        while let Some((dataset, order)) = orders.pop() {
            if let HalfChunkOrder::Evict(half_chunks) = order {
                orders.extend(self.registry.on_evicted(s(self.now), dataset, half_chunks).unwrap());
            }
            // A node frees what is not in the keep set.
            let keep_set = self.keep_set(dataset);
            self.present.retain(|(of, half_chunk)| *of != dataset || keep_set.contains(half_chunk));
        }
    }

    fn report(&mut self, id: DatasetId, said: &Report) -> ReportAnswer {
        self.now += 1;
        let (answer, orders) = self.registry.on_report(s(self.now), id, "job", said);
        self.carry_out(orders);
        answer.unwrap()
    }

    fn keep_set(&self, id: DatasetId) -> BTreeSet<HalfChunk> {
        self.registry.manager(&id).unwrap().keep_set().collect()
    }

    /// A job reads up to `half_chunks` half-chunks of a dataset. Returns the number that it
    /// fetched.
    fn job(&mut self, number: u8, incarnation: u64, half_chunks: usize) -> u64 {
        let (id, before) = (dataset(number), self.fetched);
        let mut open = opened(&self.report(id, &full_report(incarnation)));
        let mut unread: BTreeSet<HalfChunk> = HalfChunk::all(20).into_iter().collect();
        for _ in 0..half_chunks {
            let first = open.iter().find(|half_chunk| unread.contains(half_chunk)).copied();
            let half_chunk = first.unwrap_or_else(|| *unread.first().unwrap());
            unread.remove(&half_chunk);
            if !self.present.contains(&(id, half_chunk)) {
                self.fetched += 1;
                if self.keep_set(id).contains(&half_chunk) {
                    self.present.insert((id, half_chunk));
                    let bytes = ByteSize(HALF_CHUNK);
                    let orders =
                        self.registry.on_arrived(s(self.now), id, half_chunk, bytes).unwrap();
                    self.carry_out(orders);
                }
            }
            let (released, filled) = (vec![half_chunk], vec![half_chunk]);
            let said = Report { released, filled, ..drawn(incarnation, &[(half_chunk, 0)]) };
            open = opened(&self.report(id, &said));
        }
        let orders = self.registry.on_left(s(self.now), id, "job").unwrap();
        self.carry_out(orders);
        self.fetched - before
    }

    fn there(&self, number: u8) -> usize {
        self.present.iter().filter(|(id, _)| *id == dataset(number)).count()
    }

    fn why(&self, number: u8) -> String {
        self.registry.explain(&dataset(number)).unwrap().why
    }
}

/// "What is cached stays until others need the room": jobs on several datasets, one after the
/// other.
#[test]
fn the_next_job_finds_what_the_last_one_left() {
    let mut cache = Cache::new(30, 3);
    for (incarnation, number) in (0..).zip([0, 0, 1, 2, 0, 2, 1, 1, 0]) {
        let is_new = cache.there(number) == 0;
        assert_eq!(
            cache.job(number, incarnation, 20),
            if is_new { 20 } else { 0 },
            "job {incarnation}"
        );
    }
    assert_eq!(cache.fetched, 60);
    let said = "what is cached stays until others need the room: no job reads it";
    assert!((0..3).all(|number| cache.why(number) == said));
}

/// With space for some: the least recently read dataset makes room, no more of it than is needed.
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

/// A job that ends early leaves what it has read, and space for the rest, but that only until
/// others need it. Blobs that were put without an order stay all the same.
#[test]
fn what_is_present_counts_and_not_what_was_allocated() {
    let mut cache = Cache::new(25, 3);
    cache.job(0, 0, 4);
    let id = dataset(0);
    assert_eq!(cache.keep_set(id).len(), 20, "what is put is kept");
    let states = cache.registry.explain(&id).unwrap().half_chunks;
    let count = |state| states.iter().filter(|other| **other == state).count();
    assert_eq!(count(HalfChunkState::Absent), 0, "no half-chunk is refused");
    assert!(count(HalfChunkState::Loading) >= 10, "{states:?}");
    cache.present.insert((id, HalfChunk(19)));
    cache.registry.on_arrived(s(cache.now), id, HalfChunk(19), ByteSize(HALF_CHUNK)).unwrap();
    let there = cache.present.clone();
    cache.job(1, 1, 20);
    assert_eq!(cache.keep_set(id).len(), 20, "there is room for both");
    cache.job(2, 2, 20);
    assert!(cache.keep_set(id).len() < 20, "others need the room");
    assert!(cache.present.is_superset(&there) && there.len() == 5);
    assert!([1, 2].map(|number| cache.there(number)) == [20, 20]);
}

/// The node that splits the space for several nodes knows what each has of datasets that no job
/// reads.
#[test]
fn idle_datasets_of_another_node_keep_their_space() {
    let (mut present, mut elsewhere) = (registry(15, 1), registry(15, 0));
    elsewhere.set_splits_here(false);
    let sizes = || vec![ByteSize(HALF_CHUNK); 20];
    elsewhere.manage(s(0), dataset(1), sizes, HalfChunk::all(20)).unwrap();
    let demand = |present: &mut ManagerRegistry, elsewhere: &ManagerRegistry, now| {
        let space_requests = elsewhere.space_requests(s(now)).into_iter().collect();
        let orders = present.on_space_requests(s(now), space_requests).unwrap();
        carry_out(present, now, orders);
        present.shares_elsewhere(&[dataset(1)])
    };
    let shares = demand(&mut present, &elsewhere, 1);
    assert_eq!(shares[0].1.allocation, Allocation::Chunks(10), "there is room");
    assert_eq!(elsewhere.set_shares(s(1), shares), Ok(vec![]));
    report(&mut present, 2, "a", &full_report(1));
    let shares = demand(&mut present, &elsewhere, 7);
    assert_eq!(shares[0].1.allocation, Allocation::Chunks(5), "others need the rest");
    let orders = elsewhere.set_shares(s(7), shares).unwrap();
    assert_eq!(
        orders.iter().filter(|(_, order)| matches!(order, HalfChunkOrder::Evict(_))).count(),
        5
    );
}
