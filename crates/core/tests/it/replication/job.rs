//! A job of the simulated world: it draws, fetches, and reports to the manager of its dataset.

use std::time::Duration;

use forebay_core::{
    ByteSize, DatasetId, ItemOrdinal,
    train::{
        benefit::BatchTime,
        job::{HalfChunkSize, JobReporter, ReporterSettings},
        manager::ReportAnswer,
        sampler::{EpochPlan, HalfChunkMap, Sampler},
    },
};

use super::world::{
    HALF_CHUNKS, ITEM, ITEMS, ITEMS_PER_HALF_CHUNK, Party, World, dataset, half_chunk_of, index,
    ms, name,
};

const BATCH: u32 = 4;
/// Time that a job waits for an answer.
pub const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

pub struct Job {
    pub dataset: DatasetId,
    pub epochs: u64,
    pub uncached: u64,
    pub drawn: u64,
    /// The nodes in the ring's order for its dataset, and the one that it reports to.
    order: Vec<usize>,
    pub target: usize,
    awaiting: Option<(u64, Duration)>,
    /// When the last draw set arrived, and from which node.
    pub directed: Option<(Duration, usize)>,
    reports: u64,
    seed: u64,
    layout: HalfChunkMap,
    sampler: Sampler,
    reporter: JobReporter,
}

impl Job {
    pub fn new(number: usize, nodes: usize, seed: u64) -> Self {
        // Two of three read the first dataset.
        let dataset = dataset(u8::from(number % 3 == 2));
        let mut order: Vec<usize> = (0..nodes).collect();
        order.rotate_left(index(dataset) % nodes);
        let of = (0..ITEMS as u64).map(half_chunk_of);
        let layout = HalfChunkMap::new(dataset, HALF_CHUNKS, of).unwrap();
        let sampler = Sampler::new(&layout, EpochPlan::new(seed, 0, BATCH)).unwrap();
        let bytes = ByteSize(ITEM * ITEMS_PER_HALF_CHUNK);
        let size = HalfChunkSize { bytes, items: ITEMS_PER_HALF_CHUNK };
        let batches = ITEMS as u64 / u64::from(BATCH);
        let mut reporter = JobReporter::new(ReporterSettings {
            incarnation: seed,
            gpus: 1,
            epoch_batches: batches,
            half_chunks: vec![size; HALF_CHUNKS as usize],
            probe_item: ByteSize(0),
        });
        reporter.begin_epoch(0);
        Self {
            dataset,
            epochs: 0,
            uncached: 0,
            drawn: 0,
            target: order[0],
            order,
            awaiting: None,
            directed: None,
            reports: 0,
            seed,
            layout,
            sampler,
            reporter,
        }
    }

    /// Takes an answer to a report.
    pub fn answered(&mut self, now: Duration, from: usize, answer: ReportAnswer, id: u64) {
        if self.awaiting.is_none_or(|(awaited, _)| awaited != id) {
            return;
        }
        self.awaiting = None;
        match &answer {
            ReportAnswer::Draw { .. } => self.directed = Some((now, from)),
            ReportAnswer::Redirect(manager) => {
                self.target = *self.order.iter().find(|node| name(**node) == *manager).unwrap();
            }
            ReportAnswer::FullReportNeeded => {}
        }
        self.reporter.on_answer(answer);
    }

    /// Runs one mini-batch, and returns its duration.
    pub fn step(world: &mut World, job: usize) -> Duration {
        Self::report_if_due(world, job);
        Self::prefetch(world, job);
        let resident = Self::resident(world, job);
        let this = &mut world.jobs[job];
        let draw_set = this.reporter.batch_draw_set(BATCH.into(), &this.sampler);
        this.sampler.set_draw_set(&draw_set).unwrap();
        let is_probe = this.reporter.take_probe_batch(1);
        let is_there = |item: ItemOrdinal| !is_probe && resident[usize::try_from(item.0).unwrap()];
        let Some(batch) = this.sampler.draw(is_there) else {
            this.next_epoch();
            return ms(1);
        };
        let all_there = batch.items().iter().all(|item| is_there(*item));
        let half_chunks = batch.items().iter().map(|item| half_chunk_of(item.0));
        let mode = this.reporter.mode(half_chunks, all_there);
        let released = this.sampler.on_yielded(batch.number()).unwrap();
        this.reporter.on_released(released);
        this.drawn += batch.items().len() as u64;
        let stalled = if all_there { Duration::ZERO } else { ms(30) };
        let bytes = batch.items().len() as u64 * ITEM;
        this.reporter.on_computed(mode, bytes, BatchTime { took: ms(50) + stalled, stalled });
        for item in batch.items() {
            if !is_there(*item) && !Self::fetch(world, job, item.0) {
                world.jobs[job].uncached += 1;
            }
        }
        ms(50) + stalled
    }

    fn next_epoch(&mut self) {
        self.epochs += 1;
        let plan = EpochPlan::new(self.seed, self.epochs, BATCH);
        self.sampler = Sampler::new(&self.layout, plan).unwrap();
        self.reporter.begin_epoch(self.epochs);
    }

    fn report_if_due(world: &mut World, job: usize) {
        let now = world.now;
        let this = &mut world.jobs[job];
        if this.awaiting.is_some_and(|(_, since)| now >= since + REPORT_TIMEOUT) {
            this.awaiting = None;
            this.reporter.on_no_answer();
            let at = this.order.iter().position(|node| *node == this.target).unwrap();
            this.target = this.order[(at + 1) % this.order.len()];
        }
        if this.awaiting.is_some() || !this.reporter.is_due(now, &this.sampler) {
            return;
        }
        let resident = Self::resident(world, job);
        let this = &mut world.jobs[job];
        let is_there = |item: ItemOrdinal| resident[usize::try_from(item.0).unwrap()];
        let report = this.reporter.report(now, &this.sampler, is_there);
        this.reports += 1;
        this.awaiting = Some((this.reports, now));
        let (target, dataset, id) = (this.target, this.dataset, this.reports);
        world.report(job, target, dataset, report, id);
    }

    /// The agent's part: fetches items of half-chunks that are being loaded.
    fn prefetch(world: &mut World, job: usize) {
        let loading = world.jobs[job].reporter.loading();
        if loading.is_empty() {
            return;
        }
        let resident = Self::resident(world, job);
        let ahead = (0..ITEMS as u64).filter(|item| loading.contains(&half_chunk_of(*item)));
        let ahead: Vec<u64> =
            ahead.filter(|item| !resident[usize::try_from(*item).unwrap()]).take(8).collect();
        for item in ahead {
            Self::fetch(world, job, item);
        }
    }

    fn owner(world: &World, item: u64) -> usize {
        usize::try_from(item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).unwrap() % world.nodes.len()
    }

    fn resident(world: &World, job: usize) -> Vec<bool> {
        let dataset = index(world.jobs[job].dataset);
        let answers: Vec<bool> = (0..world.nodes.len())
            .map(|node| world.is_awake(node) && world.reaches(Party::Job(job), Party::Node(node)))
            .collect();
        let is_there = |item: usize| {
            let owner = Self::owner(world, item as u64);
            answers[owner] && world.nodes[owner].flash[dataset][item]
        };
        (0..ITEMS).map(is_there).collect()
    }

    /// Fetches an item and puts it to its owner. Returns whether the owner keeps it.
    fn fetch(world: &mut World, job: usize, item: u64) -> bool {
        let (owner, dataset) = (Self::owner(world, item), world.jobs[job].dataset);
        world.is_awake(owner)
            && world.reaches(Party::Job(job), Party::Node(owner))
            && world.put(owner, dataset, item)
    }
}
