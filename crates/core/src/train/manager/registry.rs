//! All datasets that a node manages: who reports, to which manager, and how they share the space.
//!
//! A job **reports** now and then: how far it is, what it has let go, how long its mini-batches took. It is
//! answered with what to draw from. A report says who speaks and in which of its lives, so that a job that was
//! started again fences its predecessor; and a manager that does not know a job (it took over, or the job was
//! silent for too long) asks it to tell all. So nothing that a manager knows has to be kept.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{Description, Manager, Open, Order, Piece, Place, Settings, Space, Who};
use crate::{
    ByteSize, DatasetId, NodeName,
    benefit::Mode,
    chunking::PIECES_PER_CHUNK,
    placement::{Dataset, Share},
    rotation::{Contradiction, Job, Policy},
    units::ByteRate,
};

/// Datasets that are managed at the same time.
const DATASETS_MAX: usize = 1 << 10;
/// Lives of jobs that were replaced, by dataset, that are remembered.
const FENCED_MAX: usize = 64;
/// Pieces of which it is remembered how far jobs are, those of all jobs together.
pub const JOB_PIECES_MAX: u64 = 1 << 22;

/// What a job says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Which of the job's lives speaks: a random number.
    pub life: u64,
    /// How many GPUs it keeps waiting.
    pub gpus: u32,
    /// How many mini-batches an epoch has.
    pub epoch_batches: u64,
    /// Which epoch it is in.
    pub epoch: u64,
    /// Bytes a second that it draws, or would draw if nothing held it up.
    pub pace: ByteRate,
    /// Whether whatever `unread` does not name is wholly unread; otherwise it is as it was.
    pub is_all: bool,
    /// What it has yet to draw of some pieces.
    pub unread: Vec<(u32, ByteSize)>,
    /// Pieces whose last items it was given.
    pub released: Vec<u32>,
    /// Pieces of which it has nothing left to fetch.
    pub filled: Vec<u32>,
    /// Mini-batches: where they came from, how long each took, and how long the job waited for it.
    pub batches: Vec<(Mode, Duration, Duration)>,
}

/// What a job is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Draw from these.
    Draw {
        /// Which, and how.
        open: Open,
        /// Pieces that are on their way: fetch ahead what you need of these.
        loading: Vec<u32>,
        /// So many of the next mini-batches are to miss, whatever is resident.
        forced: u32,
    },
    /// This manager does not know you, or not this epoch: report again, and tell all.
    TellAll,
    /// The node of this name manages the dataset: report there, and tell all. If it cannot be reached, come
    /// back.
    Elsewhere(NodeName),
}

/// Why a report is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another process reports under this name.
    #[error(
        "the job was started again and reports from elsewhere; stop this one, or name it otherwise"
    )]
    Fenced,
    /// There is a limit.
    #[error("{DATASETS_MAX} datasets are managed already; read through")]
    TooManyDatasets,
    /// There is another, on what is remembered of all jobs.
    #[error(
        "so many jobs read datasets of so many chunks that no more is remembered of them; read through"
    )]
    TooManyJobs,
    /// It cannot be.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
}

/// How much is managed, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overview {
    /// Datasets.
    pub datasets: u64,
    /// Jobs that report.
    pub jobs: u64,
    /// Pieces that stay for good.
    pub held: u64,
    /// Pieces that stay for a while.
    pub rotating: u64,
    /// Pieces that have a place and are not all here.
    pub loading: u64,
}

/// What is to be done with pieces of a dataset.
pub type Orders = Vec<(DatasetId, Order)>;

/// The managers of a node.
#[derive(Debug)]
pub struct Managers {
    lease: Duration,
    load_rate: ByteRate,
    space: Space,
    datasets: BTreeMap<DatasetId, Managed>,
    jobs: u64,
    /// Reasons to split the space that have been heard.
    reasons: u64,
    /// Whether space is split here: with several nodes, one does it for all.
    splits: bool,
    /// What datasets that are managed elsewhere wish for, and what they get, if it is split here.
    others: BTreeMap<DatasetId, Dataset>,
    shares_of_others: BTreeMap<DatasetId, Share>,
}

#[derive(Debug)]
struct Managed {
    manager: Manager,
    jobs: BTreeMap<String, Known>,
    fenced: VecDeque<u64>,
    share: Option<Share>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    job: Job,
    life: u64,
    epoch: u64,
}

impl Managers {
    /// Nothing is managed yet. Jobs are believed to live for `lease` without a word; until it has been
    /// measured, chunks are expected to be loaded at `load_rate`.
    pub fn new(space: Space, lease: Duration, load_rate: ByteRate) -> Self {
        Self {
            lease,
            load_rate,
            space,
            datasets: BTreeMap::new(),
            jobs: 0,
            reasons: 0,
            splits: true,
            others: BTreeMap::new(),
            shares_of_others: BTreeMap::new(),
        }
    }

    /// Takes a dataset on, if it is not managed yet. `found` are pieces of it that are there: they stay until
    /// the space is split.
    pub fn manage(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        piece_sizes: impl FnOnce() -> Vec<ByteSize>,
        found: impl IntoIterator<Item = u32>,
    ) -> Result<Orders, Refusal> {
        if self.datasets.contains_key(&dataset) {
            return Ok(Vec::new());
        }
        if self.datasets.len() >= DATASETS_MAX {
            self.datasets.retain(|_, managed| !managed.jobs.is_empty());
        }
        if self.datasets.len() >= DATASETS_MAX {
            return Err(Refusal::TooManyDatasets);
        }
        let mut manager = Manager::new(Settings {
            policy: Policy::ByNeed,
            lease: self.lease,
            load_rate: self.load_rate,
            piece_sizes: piece_sizes(),
            pieces_per_chunk: PIECES_PER_CHUNK,
        });
        let orders = manager.take_over(now, found)?;
        let (jobs, fenced) = (BTreeMap::new(), VecDeque::new());
        self.datasets.insert(dataset, Managed { manager, jobs, fenced, share: None });
        Ok(named(dataset, orders))
    }

    /// Whether another dataset can be taken on.
    pub fn has_room(&self) -> bool {
        self.datasets.len() < DATASETS_MAX
            || self.datasets.values().any(|managed| managed.jobs.is_empty())
    }

    /// A job reports about a dataset that is managed. What is to be done is to be done even if the report
    /// is refused.
    pub fn report(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        name: &str,
        report: &Report,
    ) -> (Result<Answer, Refusal>, Orders) {
        if !self.has_room_for(dataset, name) {
            return (Err(Refusal::TooManyJobs), Vec::new());
        }
        let reported = self.datasets.get_mut(&dataset).expect("managed before");
        let (fresh, mut orders) = (Job(self.jobs), Vec::new());
        self.jobs += 1;
        let heard = reported.hear(now, name, fresh, report, &mut orders);
        let mut orders = named(dataset, orders);
        let answer = heard.and_then(|heard| {
            let Some((job, forced)) = heard else { return Ok(Answer::TellAll) };
            orders.extend(self.split_if_needed(now)?);
            let Managed { manager, .. } = self.datasets.get_mut(&dataset).expect("as above");
            let (open, loading) = (manager.open(job), manager.loading().collect());
            Ok(Answer::Draw { open, loading, forced })
        });
        (answer, orders)
    }

    /// Whether a job may be remembered, with all pieces of its dataset.
    fn has_room_for(&self, dataset: DatasetId, name: &str) -> bool {
        let pieces = |managed: &Managed| u64::from(managed.manager.piece_count());
        let its = &self.datasets[&dataset];
        let all = self.datasets.values().map(|managed| managed.jobs.len() as u64 * pieces(managed));
        its.jobs.contains_key(name) || all.sum::<u64>() + pieces(its) <= JOB_PIECES_MAX
    }

    /// A job has ended.
    pub fn left(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        name: &str,
    ) -> Result<Orders, Refusal> {
        let Some(managed) = self.datasets.get_mut(&dataset) else { return Ok(Vec::new()) };
        let Some(known) = managed.jobs.remove(name) else { return Ok(Vec::new()) };
        // Whoever was silent for too long is forgotten first.
        let mut orders = named(dataset, managed.manager.tick(now)?);
        if managed.manager.knows(now, known.job) {
            orders.extend(named(dataset, managed.manager.leave(now, known.job)?));
        }
        orders.extend(self.split_if_needed(now)?);
        Ok(orders)
    }

    /// So many bytes more have arrived of a piece.
    pub fn arrived(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        piece: u32,
        bytes: ByteSize,
    ) -> Result<Orders, Refusal> {
        let Some(managed) = self.datasets.get_mut(&dataset) else { return Ok(Vec::new()) };
        Ok(named(dataset, managed.manager.arrived(now, piece, bytes)?))
    }

    /// Pieces that were to be evicted are free.
    pub fn evicted(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        pieces: &std::ops::Range<u32>,
    ) -> Result<Orders, Refusal> {
        let Some(managed) = self.datasets.get_mut(&dataset) else { return Ok(Vec::new()) };
        Ok(named(dataset, managed.manager.evicted(now, pieces)?))
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration) -> Result<Orders, Refusal> {
        let mut orders = Vec::new();
        for (dataset, managed) in &mut self.datasets {
            orders.extend(named(*dataset, managed.manager.tick(now)?));
            managed.jobs.retain(|_, known| managed.manager.knows(now, known.job));
        }
        if now >= self.space.next_deadline() {
            orders.extend(self.split(now)?);
        } else {
            orders.extend(self.split_if_needed(now)?);
        }
        Ok(orders)
    }

    /// When [`Managers::tick`] has something to do, if nothing happens until then.
    pub fn next_deadline(&self) -> Option<Duration> {
        let managers = self.datasets.values().filter_map(|one| one.manager.next_deadline());
        let has_jobs = self.datasets.values().any(|managed| !managed.jobs.is_empty());
        let split = self.splits && has_jobs;
        managers.chain(split.then(|| self.space.next_deadline())).min()
    }

    /// Whether what is fetched of a piece is kept. Of a dataset that nobody manages, everything is.
    pub fn is_kept(&self, dataset: &DatasetId, piece: u32) -> bool {
        let managed = self.datasets.get(dataset);
        managed.is_none_or(|managed| managed.manager.place_of(piece) != Place::None)
    }

    /// How a dataset stands, and why; `None` if it is not managed.
    pub fn describe(&self, dataset: &DatasetId) -> Option<Description> {
        let managed = self.datasets.get(dataset)?;
        let why = managed.share.as_ref().map_or("no job has reported yet", |share| &share.why);
        Some(managed.manager.describe(why))
    }

    /// How much there is of everything.
    pub fn overview(&self) -> Overview {
        let mut all = Overview { datasets: self.datasets.len() as u64, ..Overview::default() };
        for managed in self.datasets.values() {
            all.jobs += managed.jobs.len() as u64;
            for piece in managed.manager.pieces() {
                match piece {
                    Piece::Absent => {}
                    Piece::Loading => all.loading += 1,
                    Piece::Rotating => all.rotating += 1,
                    Piece::Held => all.held += 1,
                }
            }
        }
        all
    }

    /// Forgets a dataset. Whoever reports of it next has to tell all.
    pub fn forget(&mut self, dataset: &DatasetId) {
        self.datasets.remove(dataset);
    }

    /// How much space there is.
    pub fn capacity(&self) -> ByteSize {
        self.space.capacity()
    }

    /// Who manages a dataset.
    pub fn manager(&self, dataset: &DatasetId) -> Option<&Manager> {
        self.datasets.get(dataset).map(|managed| &managed.manager)
    }

    /// Whether space is split here.
    pub fn split_here(&mut self, splits: bool) {
        self.splits = splits;
    }

    /// There is so much space from now on.
    pub fn set_capacity(&mut self, now: Duration, capacity: ByteSize) -> Result<Orders, Refusal> {
        if !self.space.set_capacity(capacity) {
            return Ok(Vec::new());
        }
        self.split(now)
    }

    /// What datasets that are managed elsewhere wish for.
    pub fn wished(
        &mut self,
        now: Duration,
        others: BTreeMap<DatasetId, Dataset>,
    ) -> Result<Orders, Refusal> {
        let is_known = |(dataset, wish): (&DatasetId, &Dataset)| {
            self.others.get(dataset).is_some_and(|known| known.is_like(wish))
        };
        let is_news = others.len() != self.others.len() || !others.iter().all(is_known);
        self.others = others;
        if is_news { self.split(now) } else { Ok(Vec::new()) }
    }

    /// What some of those get.
    pub fn shares_of_others(&self, datasets: &[DatasetId]) -> Vec<(DatasetId, Share)> {
        let share =
            |dataset: &DatasetId| Some((*dataset, self.shares_of_others.get(dataset)?.clone()));
        datasets.iter().filter_map(share).collect()
    }

    /// What the datasets that are managed here wish for.
    pub fn wishes(&self, now: Duration) -> Vec<(DatasetId, Dataset)> {
        let wish =
            |(dataset, managed): (&DatasetId, &Managed)| (*dataset, managed.manager.wish(now));
        self.datasets.iter().map(wish).collect()
    }

    /// Changes whenever whoever splits the space has a reason to think again.
    pub fn reasons(&self) -> u64 {
        self.datasets.values().map(|managed| managed.manager.reasons()).sum()
    }

    /// Datasets get so much; those that are not managed here any more get nothing.
    pub fn place(
        &mut self,
        now: Duration,
        shares: Vec<(DatasetId, Share)>,
    ) -> Result<Orders, Refusal> {
        let mut orders = Vec::new();
        for (dataset, share) in shares {
            let Some(managed) = self.datasets.get_mut(&dataset) else { continue };
            orders.extend(named(dataset, managed.manager.place(now, share.choice)?));
            managed.share = Some(share);
        }
        Ok(orders)
    }

    fn split_if_needed(&mut self, now: Duration) -> Result<Orders, Refusal> {
        let reasons = self.reasons();
        if !self.splits || std::mem::replace(&mut self.reasons, reasons) == reasons {
            return Ok(Vec::new());
        }
        self.split(now)
    }

    fn split(&mut self, now: Duration) -> Result<Orders, Refusal> {
        if !self.splits {
            return Ok(Vec::new());
        }
        let mut wishes = self.wishes(now);
        let elsewhere = self.others.iter().filter(|(id, _)| !self.datasets.contains_key(id));
        wishes.extend(elsewhere.map(|(dataset, wish)| (*dataset, wish.clone())));
        let (datasets, wishes): (Vec<DatasetId>, Vec<Dataset>) = wishes.into_iter().unzip();
        let shares = self.space.split(now, &wishes).into_iter();
        let shares: Vec<_> = shares.map(|(at, share)| (datasets[at], share)).collect();
        self.shares_of_others = shares.iter().cloned().collect();
        self.place(now, shares)
    }
}

impl Managed {
    /// Takes a report in. Says who it was, and how many of its next mini-batches are to miss; `None` if it
    /// has to tell all.
    fn hear(
        &mut self,
        now: Duration,
        name: &str,
        fresh: Job,
        report: &Report,
        orders: &mut Vec<Order>,
    ) -> Result<Option<(Job, u32)>, Refusal> {
        // Nothing of a report counts if some of it cannot be.
        self.manager.check_pieces(report.released.iter().chain(&report.filled))?;
        if self.fenced.contains(&report.life) {
            return Err(Refusal::Fenced);
        }
        // Whoever was silent for too long is forgotten first.
        orders.extend(self.manager.tick(now)?);
        let Some(job) = self.hear_how_far(now, name, fresh, report, orders)? else {
            return Ok(None);
        };
        let manager = &mut self.manager;
        orders.extend(manager.released(now, job, &report.released)?);
        orders.extend(manager.filled(now, job, &report.filled)?);
        for (mode, took, stalled) in &report.batches {
            orders.extend(manager.computed(now, job, *mode, [*took, *stalled])?);
        }
        Ok(Some((job, manager.probe(now, job)?)))
    }

    fn hear_how_far(
        &mut self,
        now: Duration,
        name: &str,
        fresh: Job,
        report: &Report,
        orders: &mut Vec<Order>,
    ) -> Result<Option<Job>, Refusal> {
        let Report { life, epoch, is_all, pace, gpus, epoch_batches, .. } = *report;
        let known = self.jobs.get(name).copied();
        let known = known.filter(|known| self.manager.knows(now, known.job));
        let job = match known.filter(|known| known.life == life) {
            Some(Known { job, epoch: known, .. }) if known == epoch => {
                orders.extend(self.manager.drawn(now, job, &report.unread, pace)?);
                job
            }
            _ if !is_all => return Ok(None),
            Some(Known { job, .. }) => {
                orders.extend(self.manager.next_epoch(now, job, &report.unread)?);
                job
            }
            None => {
                let who = Who { name: name.to_owned(), gpus, epoch_batches };
                orders.extend(self.manager.join(now, fresh, who, &report.unread, pace)?);
                if let Some(former) = known {
                    orders.extend(self.manager.leave(now, former.job)?);
                    self.fence(former.life);
                }
                fresh
            }
        };
        self.jobs.insert(name.to_owned(), Known { job, life, epoch });
        Ok(Some(job))
    }

    fn fence(&mut self, life: u64) {
        if self.fenced.len() == FENCED_MAX {
            self.fenced.pop_front();
        }
        self.fenced.push_back(life);
    }
}

fn named(dataset: DatasetId, orders: Vec<Order>) -> Orders {
    orders.into_iter().map(|order| (dataset, order)).collect()
}
