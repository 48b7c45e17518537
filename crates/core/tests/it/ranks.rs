//! Ranks of one job, as the registry of managers sees them: one job with all their GPUs.

use std::{collections::BTreeMap, time::Duration};

use forebay_core::{
    ByteSize, DatasetId, HalfChunk,
    train::{
        benefit::{BatchTime, Mode},
        manager::{
            HalfChunkBytes, HalfChunkOrder, ManagerRegistry, MeasuredBatch, PlacementRule, Report,
            ReportAnswer, ReportRefusal, Space,
        },
        placement::Placement,
    },
    units::ByteRate,
};

use crate::seeds;

const DATASET: DatasetId = DatasetId::from_bytes([1; 32]);
const HALF_CHUNKS: u32 = 20;
const SIZE: u64 = 120;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Space for `room` of ten chunks.
fn registry(room: u64) -> ManagerRegistry {
    let rule = PlacementRule::Knapsack(Placement::default());
    let space = Space::new(rule, ByteSize(room * 2 * SIZE));
    let mut registry = ManagerRegistry::new(space, Duration::from_mins(1), ByteRate(ByteSize(100)));
    let sizes = || vec![ByteSize(SIZE); HALF_CHUNKS as usize];
    registry.manage(at(0), DATASET, sizes, []).unwrap();
    registry
}

fn half_chunks() -> impl Iterator<Item = HalfChunk> {
    HalfChunk::all(HALF_CHUNKS).into_iter()
}

fn bytes(half_chunk: HalfChunk, bytes: u64) -> HalfChunkBytes {
    HalfChunkBytes { half_chunk, bytes: ByteSize(bytes) }
}

/// A report of a rank.
struct RankReport {
    name: String,
    report: Report,
}

/// The first report of a rank in an epoch: its share of every half-chunk is unread.
fn begin(rank: u32, ranks: u32, epoch: u64) -> RankReport {
    let share = SIZE / u64::from(ranks);
    let name = format!("job.{rank}of{ranks}");
    let report = Report {
        incarnation: 100 + u64::from(rank),
        gpus: ranks,
        epoch_batches: 100_000,
        epoch,
        pace: ByteRate(ByteSize(10)),
        is_full: true,
        unread: half_chunks().map(|half_chunk| bytes(half_chunk, share)).collect(),
        ..Report::default()
    };
    RankReport { name, report }
}

fn progress(rank: u32, ranks: u32, epoch: u64, unread: Vec<HalfChunkBytes>) -> RankReport {
    begin(rank, ranks, epoch).with(|report| Report { is_full: false, unread, ..report })
}

impl RankReport {
    fn with(self, change: impl FnOnce(Report) -> Report) -> Self {
        Self { name: self.name, report: change(self.report) }
    }
}

fn try_report(
    registry: &mut ManagerRegistry,
    now: u64,
    RankReport { name, report }: &RankReport,
) -> Result<ReportAnswer, ReportRefusal> {
    let (answer, mut orders) = registry.on_report(at(now), DATASET, name, report);
    while let Some((dataset, order)) = orders.pop() {
        if let HalfChunkOrder::Evict(half_chunks) = order {
            orders.extend(registry.on_evicted(at(now), dataset, half_chunks).unwrap());
        }
    }
    answer
}

fn report(registry: &mut ManagerRegistry, now: u64, said: &RankReport) -> ReportAnswer {
    try_report(registry, now, said).unwrap()
}

fn unread(registry: &ManagerRegistry) -> u64 {
    let explained = registry.explain(&DATASET).unwrap();
    assert_eq!(explained.jobs.len(), 1, "{:?}", explained.jobs);
    explained.jobs[0].unread_bytes
}

#[test]
fn ranks_are_one_job_with_all_their_gpus() {
    let mut registry = registry(5);
    for rank in 0..4 {
        report(&mut registry, 0, &begin(rank, 4, 1));
        assert_eq!(unread(&registry), (u64::from(rank) + 1) * SIZE / 4 * u64::from(HALF_CHUNKS));
    }
    let explained = registry.explain(&DATASET).unwrap();
    assert_eq!((&*explained.jobs[0].name, explained.jobs[0].gpus), ("job", 4));
    assert_eq!(explained.jobs[0].bytes_per_second, 40, "of all ranks");
    assert_eq!(registry.overview().jobs, 1);
    assert!(!explained.why.contains("rotate"), "it shares with no other job: {}", explained.why);
    for rank in 0..4 {
        assert_eq!(registry.overview().jobs, 1, "before rank {rank} has left");
        registry.on_left(at(1), DATASET, &format!("job.{rank}of4")).unwrap();
    }
    assert_eq!(registry.overview().jobs, 0);
}

#[test]
fn an_epoch_begins_with_the_first_rank_that_begins_it() {
    let mut registry = registry(5);
    let all = SIZE * u64::from(HALF_CHUNKS);
    report(&mut registry, 0, &begin(0, 2, 1));
    report(&mut registry, 0, &begin(1, 2, 1));
    let done = || half_chunks().map(|half_chunk| bytes(half_chunk, 0)).collect::<Vec<_>>();
    let nearly_done = half_chunks().map(|half_chunk| bytes(half_chunk, 1)).collect();
    report(&mut registry, 1, &progress(0, 2, 1, done()));
    report(&mut registry, 1, &progress(1, 2, 1, nearly_done));
    assert_eq!(unread(&registry), u64::from(HALF_CHUNKS));
    report(&mut registry, 2, &begin(0, 2, 2));
    assert_eq!(unread(&registry), all, "the other rank will read its share");
    report(&mut registry, 2, &progress(1, 2, 1, done()));
    assert_eq!(unread(&registry), all, "what it reads now is of the former epoch");
    report(&mut registry, 3, &begin(1, 2, 2));
    assert_eq!(unread(&registry), all);
    report(&mut registry, 4, &progress(1, 2, 2, done()));
    assert_eq!(unread(&registry), all / 2);
}

/// A chunk that one rank has finished is not finished.
#[test]
fn a_half_chunk_is_released_by_all_ranks() {
    let mut registry = registry(2);
    let mut other = Report { incarnation: 7, ..begin(0, 1, 1).report };
    other.unread.clear();
    registry.on_report(at(0), DATASET, "other", &other).0.unwrap();
    report(&mut registry, 0, &begin(0, 2, 1));
    let ReportAnswer::Draw { draw_set, .. } = report(&mut registry, 0, &begin(1, 2, 1)) else {
        panic!("no draw set")
    };
    let first = draw_set.first;
    let read: Vec<_> = first.iter().map(|half_chunk| bytes(*half_chunk, 0)).collect();
    let is_open = |answer: ReportAnswer| {
        let ReportAnswer::Draw { draw_set, .. } = answer else { panic!("{answer:?}") };
        draw_set.first == first
    };
    other.unread.clone_from(&read);
    other.is_full = false;
    registry.on_report(at(1), DATASET, "other", &other).0.unwrap();
    let released = |rank| {
        let released = first.clone();
        progress(rank, 2, 1, read.clone()).with(|report| Report { released, ..report })
    };
    assert!(is_open(report(&mut registry, 1, &released(0))), "rank 1 has all of its share to read");
    assert!(!is_open(report(&mut registry, 1, &released(1))));
}

/// One rank measures the job; a probe is for all of them.
#[test]
fn a_probe_is_for_all_ranks_and_the_lowest_measures_it() {
    let mut registry = registry(5);
    let forced = |answer: ReportAnswer| match answer {
        ReportAnswer::Draw { probe_batches, .. } => probe_batches,
        other => panic!("{other:?}"),
    };
    let started = forced(report(&mut registry, 0, &begin(0, 2, 1)));
    assert_eq!(started, 100, "a new job is probed");
    assert_eq!(forced(report(&mut registry, 0, &begin(1, 2, 1))), 100, "as it joins again");
    assert_eq!(forced(report(&mut registry, 1, &progress(0, 2, 1, vec![]))), 100);
    assert_eq!(forced(report(&mut registry, 2, &progress(0, 2, 1, vec![]))), 0, "once");
    assert_eq!(forced(report(&mut registry, 2, &progress(1, 2, 1, vec![]))), 0, "once");
    let time = BatchTime { took: at(1), stalled: Duration::ZERO };
    let batches = vec![MeasuredBatch { mode: Mode::Miss, time }; 50];
    for (rank, is_measured) in [(1, false), (0, true)] {
        let batches = batches.clone();
        let said = progress(rank, 2, 1, vec![]).with(|report| Report { batches, ..report });
        report(&mut registry, 3, &said);
        let job = &registry.explain(&DATASET).unwrap().jobs[0];
        assert_eq!(job.miss_s.is_some(), is_measured, "rank {rank}");
    }
}

/// A rank that was started again replaces its former process, and no other rank.
#[test]
fn a_restarted_rank_fences_its_predecessor_only() {
    let mut registry = registry(5);
    report(&mut registry, 0, &begin(0, 2, 1));
    report(&mut registry, 0, &begin(1, 2, 1));
    let again = begin(1, 2, 1).with(|report| Report { incarnation: 55, ..report });
    report(&mut registry, 1, &again);
    let old = progress(1, 2, 1, vec![]);
    assert_eq!(try_report(&mut registry, 2, &old), Err(ReportRefusal::Fenced));
    let answer = report(&mut registry, 2, &progress(0, 2, 1, vec![]));
    assert!(matches!(answer, ReportAnswer::Draw { .. }));
    assert_eq!(registry.overview().jobs, 1);
    let grown = progress(0, 2, 1, vec![bytes(HalfChunk(0), SIZE)]);
    let refused = try_report(&mut registry, 3, &grown);
    assert!(matches!(refused, Err(ReportRefusal::InvalidEvent(_))), "{refused:?}");
    let unknown = progress(0, 2, 1, vec![bytes(HalfChunk(HALF_CHUNKS), 0)]);
    let refused = try_report(&mut registry, 3, &unknown);
    assert!(matches!(refused, Err(ReportRefusal::InvalidEvent(_))), "{refused:?}");
}

/// What one simulated rank has not read.
struct Rank {
    incarnation: u64,
    epoch: u64,
    is_known: bool,
    unread: BTreeMap<HalfChunk, u64>,
}

/// Whatever ranks do, in whichever order, no report is refused, and when all have read everything
/// the job has.
#[test]
fn ranks_out_of_step_never_contradict_each_other() {
    for seed in seeds(200) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut registry = registry(rng.u64(1..11));
        let ranks = rng.u32(2..6);
        // Shares do not divide evenly.
        let share = |rng: &mut fastrand::Rng| {
            half_chunks()
                .map(|half_chunk| (half_chunk, SIZE / u64::from(ranks) - rng.u64(0..3)))
                .collect::<BTreeMap<_, _>>()
        };
        let mut all: Vec<Rank> = (0..ranks)
            .map(|rank| Rank {
                incarnation: u64::from(rank),
                epoch: 1,
                is_known: false,
                unread: share(&mut rng),
            })
            .collect();
        for step in 0..300 {
            let number = rng.u32(0..ranks);
            let rank = &mut all[number as usize];
            match rng.u32(0..20) {
                0 => (rank.incarnation, rank.is_known) = (1000 + step, false),
                1 => {
                    registry.on_left(at(step), DATASET, &format!("job.{number}of{ranks}")).unwrap();
                    rank.is_known = false;
                }
                _ => {}
            }
            let mut released = Vec::new();
            if rank.unread.values().all(|unread| *unread == 0) {
                (rank.epoch, rank.is_known) = (rank.epoch + 1, false);
                rank.unread = share(&mut rng);
            } else {
                for (half_chunk, unread) in &mut rank.unread {
                    let before = *unread;
                    *unread = unread.saturating_sub(rng.u64(0..40));
                    released.extend((before > 0 && *unread == 0).then_some(*half_chunk));
                }
            }
            let unread = rank.unread.iter().map(|(half_chunk, unread)| bytes(*half_chunk, *unread));
            let said = begin(number, ranks, 1).with(|report| Report {
                incarnation: rank.incarnation,
                epoch: rank.epoch,
                is_full: !rank.is_known,
                unread: unread.collect(),
                released,
                ..report
            });
            rank.is_known = match try_report(&mut registry, step, &said) {
                Ok(answer) => answer != ReportAnswer::FullReportNeeded,
                Err(refusal) => panic!("seed {seed}, step {step}: {refusal}"),
            };
        }
        for (number, rank) in (0..).zip(&mut all) {
            let (is_full, unread) = (true, half_chunks().map(|one| bytes(one, 0)).collect());
            (rank.epoch, rank.incarnation) = (99, 5000 + u64::from(number));
            let Rank { incarnation, epoch, .. } = *rank;
            let said = begin(number, ranks, 1).with(|report| Report {
                incarnation,
                epoch,
                is_full,
                unread,
                ..report
            });
            report(&mut registry, 300, &said);
        }
        assert_eq!(unread(&registry), 0, "seed {seed}");
    }
}
