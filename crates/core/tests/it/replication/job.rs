//! A job of the small world: draws, fetches, reports to whoever manages its dataset.

use std::time::Duration;

use forebay_core::{
    ByteSize, DatasetId, ItemOrdinal,
    chunking::ChunkOrdinal,
    manager::{Answer, Membership},
    sampler::{Layout, Plan, Sampler},
};

use super::world::{
    ITEM, ITEMS, ITEMS_PER_PIECE, PIECES, Party, World, dataset, index, ms, name, piece_of,
};

const BATCH: u32 = 4;
/// An answer is waited for so long.
pub const PATIENCE: Duration = Duration::from_secs(1);

pub struct Job {
    pub dataset: DatasetId,
    pub epochs: u64,
    pub outside: u64,
    pub drawn: u64,
    /// The nodes in the ring's order for its dataset, and the one that it reports to.
    order: Vec<usize>,
    pub target: usize,
    awaiting: Option<(u64, Duration)>,
    /// When and by whom it was last told what to draw from.
    pub directed: Option<(Duration, usize)>,
    reports: u64,
    seed: u64,
    layout: Layout,
    sampler: Sampler,
    membership: Membership,
}

impl Job {
    pub fn new(number: usize, nodes: usize, seed: u64) -> Self {
        // Two of three read the first dataset.
        let dataset = dataset(u8::from(number % 3 == 2));
        let mut order: Vec<usize> = (0..nodes).collect();
        order.rotate_left(index(dataset) % nodes);
        let of = (0..ITEMS as u64).map(|item| ChunkOrdinal(piece_of(item)));
        let layout = Layout::new(dataset, PIECES, of).unwrap();
        let sampler = Sampler::new(&layout, Plan::new(seed, 0, BATCH)).unwrap();
        let size = (ByteSize(ITEM * ITEMS_PER_PIECE), ITEMS_PER_PIECE);
        let batches = ITEMS as u64 / u64::from(BATCH);
        let mut membership = Membership::new(seed, 1, batches, vec![size; PIECES as usize]);
        membership.begin(0);
        Self {
            dataset,
            epochs: 0,
            outside: 0,
            drawn: 0,
            target: order[0],
            order,
            awaiting: None,
            directed: None,
            reports: 0,
            seed,
            layout,
            sampler,
            membership,
        }
    }

    /// An answer has come.
    pub fn answered(&mut self, now: Duration, from: usize, answer: Answer, id: u64) {
        if self.awaiting.is_none_or(|(awaited, _)| awaited != id) {
            return;
        }
        self.awaiting = None;
        match &answer {
            Answer::Draw { .. } => self.directed = Some((now, from)),
            Answer::Elsewhere(manager) => {
                self.target = *self.order.iter().find(|node| name(**node) == *manager).unwrap();
            }
            Answer::TellAll => {}
        }
        self.membership.answered(answer);
    }

    /// One mini-batch. Returns how long it took.
    pub fn step(world: &mut World, job: usize) -> Duration {
        Self::report_if_due(world, job);
        Self::fetch_ahead(world, job);
        let resident = Self::resident(world, job);
        let this = &mut world.jobs[job];
        let directions = this.membership.directions(BATCH.into(), &this.sampler);
        this.sampler.open(&directions.held, &directions.rotating).unwrap();
        this.sampler.leaving(directions.leaving).unwrap();
        let is_forced = this.membership.forces_miss();
        let is_there = |item: ItemOrdinal| !is_forced && resident[usize::try_from(item.0).unwrap()];
        let Some(batch) = this.sampler.draw(is_there) else {
            this.next_epoch();
            return ms(1);
        };
        let all_there = batch.items().iter().all(|item| is_there(*item));
        let pieces = batch.items().iter().map(|item| piece_of(item.0));
        let mode = this.membership.mode(pieces, all_there);
        let released = this.sampler.yielded(batch.number()).unwrap();
        this.membership.released(released);
        this.drawn += batch.items().len() as u64;
        let stalled = if all_there { Duration::ZERO } else { ms(30) };
        let bytes = batch.items().len() as u64 * ITEM;
        this.membership.computed(mode, bytes, [ms(50) + stalled, stalled]);
        for item in batch.items() {
            if !is_there(*item) && !Self::fetch(world, job, item.0) {
                world.jobs[job].outside += 1;
            }
        }
        ms(50) + stalled
    }

    fn next_epoch(&mut self) {
        self.epochs += 1;
        let plan = Plan::new(self.seed, self.epochs, BATCH);
        self.sampler = Sampler::new(&self.layout, plan).unwrap();
        self.membership.begin(self.epochs);
    }

    fn report_if_due(world: &mut World, job: usize) {
        let now = world.now;
        let this = &mut world.jobs[job];
        if this.awaiting.is_some_and(|(_, since)| now >= since + PATIENCE) {
            this.awaiting = None;
            this.membership.unanswered();
            let at = this.order.iter().position(|node| *node == this.target).unwrap();
            this.target = this.order[(at + 1) % this.order.len()];
        }
        if this.awaiting.is_some() || !this.membership.is_due(now, &this.sampler) {
            return;
        }
        let resident = Self::resident(world, job);
        let this = &mut world.jobs[job];
        let is_there = |item: ItemOrdinal| resident[usize::try_from(item.0).unwrap()];
        let report = this.membership.report(now, &this.sampler, is_there);
        this.reports += 1;
        this.awaiting = Some((this.reports, now));
        let (target, dataset, id) = (this.target, this.dataset, this.reports);
        world.report(job, target, dataset, report, id);
    }

    /// The agent's work: what is needed of what is on its way.
    fn fetch_ahead(world: &mut World, job: usize) {
        let loading = world.jobs[job].membership.loading();
        if loading.is_empty() {
            return;
        }
        let resident = Self::resident(world, job);
        let ahead = (0..ITEMS as u64).filter(|item| loading.contains(&piece_of(*item)));
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

    /// Fetches an item and puts it on its owner. Says whether it is kept there.
    fn fetch(world: &mut World, job: usize, item: u64) -> bool {
        let (owner, dataset) = (Self::owner(world, item), world.jobs[job].dataset);
        world.is_awake(owner)
            && world.reaches(Party::Job(job), Party::Node(owner))
            && world.put(owner, dataset, item)
    }
}
