//! The managers of all datasets that a node manages, and the space that these share.
//!
//! Jobs send a **report** at intervals: what is unread, which half-chunks they have finished, how
//! long mini-batches took. The answer is a draw set. A report names the job and its incarnation, so
//! that a restarted job fences its former process. A manager that does not know the job (after a
//! takeover, or after the lease has ended) asks for a full report. So a manager's state need not be
//! stored.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::{
    CacheClass, DrawSet, Explanation, HalfChunkOrder, HalfChunkState, JobProfile, JobRank, Manager,
    ManagerSettings, Space,
    ranks::{JobRanks, MergedReport},
};
use crate::{
    ByteSize, DatasetId, HalfChunk, HalfChunkRange, NodeName,
    dataset::chunking::HALF_CHUNKS_PER_CHUNK,
    train::{
        benefit::{BatchTime, Mode},
        placement::{DatasetDemand, Share},
        rotation::{InvalidEvent, JobNumber, RotationPolicy},
    },
    units::ByteRate,
};

/// Datasets that are managed at the same time.
const DATASETS_MAX: usize = 1 << 10;
/// Half-chunks of a dataset that is managed. By default that many are 7 PB: a chunk is a tenth of
/// the dataset, or 15 GB. An event takes time for every chunk, so that a finer dataset would delay
/// the others.
const HALF_CHUNKS_MANAGED_MAX: u32 = 1 << 10;
/// With more datasets than this, the space is split at most once per [`SPLIT_PAUSE`].
const SPLIT_AT_ONCE_MAX: usize = 64;
/// Shortest time between two splits of many datasets.
const SPLIT_PAUSE: Duration = Duration::from_secs(1);
/// Fenced incarnations that are remembered per dataset.
const FENCED_MAX: usize = 64;
/// Half-chunks times jobs that are remembered, over all datasets, if there is memory for them.
pub const JOB_HALF_CHUNKS_MAX: u64 = 1 << 22;
/// Memory of one half-chunk of one job, in bytes.
pub const JOB_HALF_CHUNK_BYTES: u64 = 48;

/// A job's report to the manager of its dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Random number that tells this run of the job from others under its name.
    pub incarnation: u64,
    /// GPUs that wait when the job waits.
    pub gpus: u32,
    /// Mini-batches of an epoch.
    pub epoch_batches: u64,
    /// Number of the epoch.
    pub epoch: u64,
    /// Bytes per second that the job draws, without its stalls.
    pub pace: ByteRate,
    /// Whether half-chunks that `unread` does not name are wholly unread. Otherwise they are
    /// unchanged.
    pub is_full: bool,
    /// Bytes that the job has yet to draw, of some half-chunks.
    pub unread: Vec<HalfChunkBytes>,
    /// Half-chunks whose last items were yielded.
    pub released: Vec<HalfChunk>,
    /// Half-chunks of which the job has nothing left to fetch.
    pub filled: Vec<HalfChunk>,
    /// Mini-batches since the last report.
    pub batches: Vec<MeasuredBatch>,
}

/// Some bytes of a half-chunk: unread ones, or ones that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfChunkBytes {
    /// The half-chunk.
    pub half_chunk: HalfChunk,
    /// Number of bytes.
    pub bytes: ByteSize,
}

/// A mini-batch with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeasuredBatch {
    /// Where its items came from.
    pub mode: Mode,
    /// How long it took.
    pub time: BatchTime,
}

/// The answer to a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportAnswer {
    /// Draw from this draw set.
    Draw {
        /// What the job draws from.
        draw_set: DrawSet,
        /// Half-chunks that are being loaded: the job prefetches what it needs of them.
        loading: Vec<HalfChunk>,
        /// Number of next mini-batches that are to miss, whatever is resident.
        probe_batches: u32,
    },
    /// The manager does not know the job, or not this epoch. The job is to send a full report.
    FullReportNeeded,
    /// This node manages the dataset. The job is to send a full report there, and to come back if
    /// the node cannot be reached.
    Redirect(NodeName),
}

/// Why a report is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReportRefusal {
    /// Another process reports under this name.
    #[error(
        "the job was started again under this name; stop this process, or give it another name"
    )]
    Fenced,
    /// The limit on datasets is reached.
    #[error(
        "{DATASETS_MAX} datasets are managed already; read from the origin, or stop jobs of others"
    )]
    TooManyDatasets,
    /// The limit on half-chunks of jobs is reached.
    #[error(
        "the jobs of this node have the most half-chunks that its memory allows; build digests \
         with fewer `--chunks`, or stop jobs"
    )]
    TooManyJobs,
    /// The dataset is cut too finely.
    #[error(
        "a dataset of more than {} chunks is not managed; build its digest with fewer `--chunks`",
        HALF_CHUNKS_MANAGED_MAX / HALF_CHUNKS_PER_CHUNK
    )]
    TooManyHalfChunks,
    /// A list is longer than the dataset.
    #[error("the report names a half-chunk twice")]
    NamedTwice,
    /// The report contradicts an earlier one.
    #[error(transparent)]
    InvalidEvent(#[from] InvalidEvent),
}

/// Numbers of everything that is managed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overview {
    /// Datasets.
    pub datasets: u64,
    /// Jobs that report.
    pub jobs: u64,
    /// Pinned half-chunks.
    pub pinned: u64,
    /// Rotating half-chunks.
    pub rotating: u64,
    /// Half-chunks that are being loaded.
    pub loading: u64,
}

/// Orders, each with its dataset.
pub type Orders = Vec<(DatasetId, HalfChunkOrder)>;

/// The managers of a node.
#[derive(Debug)]
pub struct ManagerRegistry {
    lease: Duration,
    load_rate: ByteRate,
    space: Space,
    datasets: BTreeMap<DatasetId, ManagedDataset>,
    jobs: u64,
    job_half_chunks_max: u64,
    /// Sum of the managers' demand revisions at the last split.
    demand_revision: u64,
    /// Whether there is a reason to split the space again.
    is_split_due: bool,
    /// Time of the last split.
    split_at: Option<Duration>,
    /// Number of splits so far.
    split_count: u64,
    /// Whether this node splits the space: with several nodes, one does it for all.
    splits: bool,
    /// Demands of datasets that other nodes manage, and their shares, if this node splits the
    /// space.
    elsewhere: BTreeMap<DatasetId, DatasetDemand>,
    shares_elsewhere: BTreeMap<DatasetId, Share>,
}

#[derive(Debug)]
struct ManagedDataset {
    manager: Manager,
    jobs: BTreeMap<String, RegisteredJob>,
    /// Ranks of jobs that have several.
    ranks: BTreeMap<String, JobRanks>,
    fenced: VecDeque<u64>,
    share: Option<Share>,
}

#[derive(Debug, Clone, Copy)]
struct RegisteredJob {
    job: JobNumber,
    incarnation: u64,
    epoch: u64,
}

impl ManagerRegistry {
    /// A registry without datasets. A job is forgotten after `lease` without a report. Chunks are
    /// assumed to load at `load_rate`, until it is measured.
    pub fn new(space: Space, lease: Duration, load_rate: ByteRate) -> Self {
        Self {
            lease,
            load_rate,
            space,
            datasets: BTreeMap::new(),
            jobs: 0,
            job_half_chunks_max: JOB_HALF_CHUNKS_MAX,
            demand_revision: 0,
            is_split_due: false,
            split_at: None,
            split_count: 0,
            splits: true,
            elsewhere: BTreeMap::new(),
            shares_elsewhere: BTreeMap::new(),
        }
    }

    /// Sets the memory for the state of jobs.
    pub fn set_job_memory(&mut self, memory: ByteSize) {
        self.job_half_chunks_max = (memory.0 / JOB_HALF_CHUNK_BYTES).min(JOB_HALF_CHUNKS_MAX);
    }

    /// Starts to manage a dataset, if it is not managed. `found` are its half-chunks on the nodes:
    /// they stay until the space is split.
    pub fn manage(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        half_chunk_sizes: impl FnOnce() -> Vec<ByteSize>,
        found: impl IntoIterator<Item = HalfChunk>,
    ) -> Result<Orders, ReportRefusal> {
        if self.datasets.contains_key(&dataset) {
            return Ok(Vec::new());
        }
        if self.datasets.len() >= DATASETS_MAX {
            self.datasets.retain(|_, managed| !managed.jobs.is_empty());
            self.is_split_due = true;
        }
        if self.datasets.len() >= DATASETS_MAX {
            return Err(ReportRefusal::TooManyDatasets);
        }
        let mut manager = Manager::new(ManagerSettings {
            policy: RotationPolicy::Demand,
            lease: self.lease,
            load_rate: self.load_rate,
            half_chunk_sizes: half_chunk_sizes(),
            half_chunks_per_chunk: HALF_CHUNKS_PER_CHUNK,
        });
        let orders = manager.take_over(now, found)?;
        let (jobs, ranks, fenced) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let added = ManagedDataset { manager, jobs, ranks, fenced, share: None };
        self.datasets.insert(dataset, added);
        Ok(with_dataset(dataset, orders))
    }

    /// Whether another dataset can be managed.
    pub fn has_capacity(&self) -> bool {
        self.datasets.len() < DATASETS_MAX
            || self.datasets.values().any(|managed| managed.jobs.is_empty())
    }

    /// A job, or a rank of it ([`JobRank::of_name`]), reports about a managed dataset. The orders
    /// apply even if the report is refused.
    pub fn on_report(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        name: &str,
        report: &Report,
    ) -> (Result<ReportAnswer, ReportRefusal>, Orders) {
        let (name, rank) =
            JobRank::of_name(name).map_or((name, None), |(job, rank)| (job, Some(rank)));
        if !self.has_capacity_for(dataset, name, rank) {
            return (Err(ReportRefusal::TooManyJobs), Vec::new());
        }
        let managed = self.datasets.get_mut(&dataset).expect("the caller manages it");
        let (new_number, mut orders) = (JobNumber(self.jobs), Vec::new());
        self.jobs += 1;
        let applied = managed.on_report(now, name, rank, new_number, report, &mut orders);
        let mut orders = with_dataset(dataset, orders);
        let answer = applied.and_then(|applied| {
            let Some((job, probe_batches)) = applied else {
                return Ok(ReportAnswer::FullReportNeeded);
            };
            orders.extend(self.split_if_needed(now)?);
            let ManagedDataset { manager, .. } =
                self.datasets.get_mut(&dataset).expect("managed, as above");
            let (draw_set, loading) = (manager.draw_set(job), manager.loading().collect());
            Ok(ReportAnswer::Draw { draw_set, loading, probe_batches })
        });
        (answer, orders)
    }

    /// Whether the job fits within the limit of half-chunks.
    fn has_capacity_for(&self, dataset: DatasetId, name: &str, rank: Option<JobRank>) -> bool {
        let half_chunks = |managed: &ManagedDataset| u64::from(managed.manager.half_chunk_count());
        let own = &self.datasets[&dataset];
        let is_known = match rank {
            None => own.jobs.contains_key(name),
            Some(JobRank { rank, .. }) => {
                own.ranks.get(name).is_some_and(|ranks| ranks.contains(rank))
            }
        };
        let all = self.datasets.values().map(|managed| managed.members() * half_chunks(managed));
        is_known || all.sum::<u64>() + half_chunks(own) <= self.job_half_chunks_max
    }

    /// A job, or a rank of it, has ended.
    pub fn on_left(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        name: &str,
    ) -> Result<Orders, ReportRefusal> {
        let Some(managed) = self.datasets.get_mut(&dataset) else { return Ok(Vec::new()) };
        let Some(name) = managed.on_rank_left(name) else { return Ok(Vec::new()) };
        let Some(known) = managed.jobs.remove(name) else { return Ok(Vec::new()) };
        // Expired leases end first.
        let mut orders = with_dataset(dataset, managed.manager.on_tick(now)?);
        if managed.manager.is_alive(now, known.job) {
            orders.extend(with_dataset(dataset, managed.manager.on_left(now, known.job)?));
        }
        orders.extend(self.split_if_needed(now)?);
        Ok(orders)
    }

    /// `bytes` more of a half-chunk have arrived.
    pub fn on_arrived(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        half_chunk: HalfChunk,
        bytes: ByteSize,
    ) -> Result<Orders, ReportRefusal> {
        let Some(managed) = self.datasets.get_mut(&dataset) else { return Ok(Vec::new()) };
        Ok(with_dataset(dataset, managed.manager.on_arrived(now, half_chunk, bytes)?))
    }

    /// The space of half-chunks that were to be evicted is free.
    pub fn on_evicted(
        &mut self,
        now: Duration,
        dataset: DatasetId,
        half_chunks: HalfChunkRange,
    ) -> Result<Orders, ReportRefusal> {
        let Some(managed) = self.datasets.get_mut(&dataset) else { return Ok(Vec::new()) };
        let mut orders = with_dataset(dataset, managed.manager.on_evicted(now, half_chunks)?);
        orders.extend(self.split_if_needed(now)?);
        Ok(orders)
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Duration) -> Result<Orders, ReportRefusal> {
        let mut orders = Vec::new();
        for (dataset, managed) in &mut self.datasets {
            orders.extend(with_dataset(*dataset, managed.manager.on_tick(now)?));
            managed.jobs.retain(|_, known| managed.manager.is_alive(now, known.job));
            managed.ranks.retain(|name, _| managed.jobs.contains_key(name));
        }
        if now >= self.space.next_deadline() {
            orders.extend(self.split(now)?);
        } else {
            orders.extend(self.split_if_needed(now)?);
        }
        Ok(orders)
    }

    /// When [`ManagerRegistry::on_tick`] is due, if no event comes before.
    pub fn next_deadline(&self) -> Option<Duration> {
        let managers = self.datasets.values().filter_map(|one| one.manager.next_deadline());
        let has_jobs = self.datasets.values().any(|managed| !managed.jobs.is_empty());
        let split = self.splits && has_jobs;
        let is_due = self.is_split_due || self.demand_revision() != self.demand_revision;
        let postponed = (self.splits && is_due).then(|| self.may_split_at());
        managers.chain(split.then(|| self.space.next_deadline())).chain(postponed).min()
    }

    /// Whether what is put of a half-chunk is kept. Of an unmanaged dataset, everything is.
    pub fn is_kept(&self, dataset: &DatasetId, half_chunk: HalfChunk) -> bool {
        let managed = self.datasets.get(dataset);
        managed.is_none_or(|managed| managed.manager.class_of(half_chunk) != CacheClass::Uncached)
    }

    /// State of a dataset; `None` if it is not managed.
    pub fn explain(&self, dataset: &DatasetId) -> Option<Explanation> {
        let managed = self.datasets.get(dataset)?;
        let why = managed.share.as_ref().map_or("no job has reported yet", |share| &share.why);
        Some(managed.manager.explain(why))
    }

    /// Numbers of everything that is managed.
    pub fn overview(&self) -> Overview {
        let mut all = Overview { datasets: self.datasets.len() as u64, ..Overview::default() };
        for managed in self.datasets.values() {
            all.jobs += managed.jobs.len() as u64;
            for half_chunk in managed.manager.half_chunks() {
                match half_chunk {
                    HalfChunkState::Absent => {}
                    HalfChunkState::Loading => all.loading += 1,
                    HalfChunkState::Rotating => all.rotating += 1,
                    HalfChunkState::Pinned => all.pinned += 1,
                }
            }
        }
        all
    }

    /// Stops managing a dataset. Its jobs have to send full reports again.
    pub fn forget(&mut self, dataset: &DatasetId) {
        // Revisions are summed: without this, a new manager could bring back the sum of the last
        // split, and would never get space.
        self.is_split_due |= self.datasets.remove(dataset).is_some();
    }

    /// The space of all datasets.
    pub fn capacity(&self) -> ByteSize {
        self.space.capacity()
    }

    /// The manager of a dataset.
    pub fn manager(&self, dataset: &DatasetId) -> Option<&Manager> {
        self.datasets.get(dataset).map(|managed| &managed.manager)
    }

    /// Sets whether this node splits the space.
    pub fn set_splits_here(&mut self, splits: bool) {
        self.splits = splits;
    }

    /// Changes the space of all datasets.
    pub fn set_capacity(
        &mut self,
        now: Duration,
        capacity: ByteSize,
    ) -> Result<Orders, ReportRefusal> {
        if !self.space.set_capacity(capacity) {
            return Ok(Vec::new());
        }
        self.split(now)
    }

    /// Demands of datasets that other nodes manage.
    pub fn on_space_requests(
        &mut self,
        now: Duration,
        elsewhere: BTreeMap<DatasetId, DatasetDemand>,
    ) -> Result<Orders, ReportRefusal> {
        let is_known = |(dataset, demand): (&DatasetId, &DatasetDemand)| {
            self.elsewhere.get(dataset).is_some_and(|known| known.is_same(demand))
        };
        let has_changed =
            elsewhere.len() != self.elsewhere.len() || !elsewhere.iter().all(is_known);
        self.elsewhere = elsewhere;
        self.is_split_due |= has_changed;
        self.split_if_needed(now)
    }

    /// Shares of datasets that other nodes manage.
    pub fn shares_elsewhere(&self, datasets: &[DatasetId]) -> Vec<(DatasetId, Share)> {
        let share =
            |dataset: &DatasetId| Some((*dataset, self.shares_elsewhere.get(dataset)?.clone()));
        datasets.iter().filter_map(share).collect()
    }

    /// Demands of the datasets that this node manages.
    pub fn space_requests(&self, now: Duration) -> Vec<(DatasetId, DatasetDemand)> {
        let demand = |(dataset, managed): (&DatasetId, &ManagedDataset)| {
            (*dataset, managed.manager.demand(now))
        };
        self.datasets.iter().map(demand).collect()
    }

    /// Changes when there is a reason to split the space again.
    pub fn demand_revision(&self) -> u64 {
        self.datasets.values().map(|managed| managed.manager.demand_revision()).sum()
    }

    /// Applies shares. Datasets that are not managed here any more are skipped.
    pub fn set_shares(
        &mut self,
        now: Duration,
        shares: Vec<(DatasetId, Share)>,
    ) -> Result<Orders, ReportRefusal> {
        let mut orders = Vec::new();
        for (dataset, share) in shares {
            let Some(managed) = self.datasets.get_mut(&dataset) else { continue };
            orders.extend(with_dataset(
                dataset,
                managed.manager.set_allocation(now, share.allocation)?,
            ));
            managed.share = Some(share);
        }
        Ok(orders)
    }

    /// Refuses a dataset that cannot be managed.
    pub fn check_half_chunks(half_chunks: u32) -> Result<(), ReportRefusal> {
        let fits = half_chunks <= HALF_CHUNKS_MANAGED_MAX;
        fits.then_some(()).ok_or(ReportRefusal::TooManyHalfChunks)
    }

    /// Number of splits so far.
    pub fn split_count(&self) -> u64 {
        self.split_count
    }

    /// When the space may be split again. A split of many datasets takes long.
    fn may_split_at(&self) -> Duration {
        let is_small = self.datasets.len() + self.elsewhere.len() <= SPLIT_AT_ONCE_MAX;
        let last = self.split_at.filter(|_| !is_small);
        last.map_or(Duration::ZERO, |last| last.saturating_add(SPLIT_PAUSE))
    }

    fn split_if_needed(&mut self, now: Duration) -> Result<Orders, ReportRefusal> {
        let demand_revision = self.demand_revision();
        self.is_split_due |=
            std::mem::replace(&mut self.demand_revision, demand_revision) != demand_revision;
        if !self.splits || !self.is_split_due || now < self.may_split_at() {
            return Ok(Vec::new());
        }
        self.split(now)
    }

    fn split(&mut self, now: Duration) -> Result<Orders, ReportRefusal> {
        if !self.splits {
            return Ok(Vec::new());
        }
        (self.is_split_due, self.split_at) = (false, Some(now));
        self.split_count += 1;
        let mut space_requests = self.space_requests(now);
        let elsewhere = self.elsewhere.iter().filter(|(id, _)| !self.datasets.contains_key(id));
        space_requests.extend(elsewhere.map(|(dataset, demand)| (*dataset, demand.clone())));
        let (datasets, space_requests): (Vec<DatasetId>, Vec<DatasetDemand>) =
            space_requests.into_iter().unzip();
        let shares = self.space.split(now, &space_requests).into_iter();
        let shares: Vec<_> = shares.map(|(at, share)| (datasets[at], share)).collect();
        self.shares_elsewhere = shares.iter().cloned().collect();
        self.set_shares(now, shares)
    }
}

impl ManagedDataset {
    /// Applies a report. Returns the job and the size of its next probe; `None` if a full report is
    /// needed.
    fn on_report(
        &mut self,
        now: Duration,
        name: &str,
        rank: Option<JobRank>,
        new_number: JobNumber,
        report: &Report,
        orders: &mut Vec<HalfChunkOrder>,
    ) -> Result<Option<(JobNumber, u32)>, ReportRefusal> {
        let lists = [report.unread.len(), report.released.len(), report.filled.len()];
        if lists.into_iter().any(|length| length > self.manager.half_chunk_count() as usize) {
            return Err(ReportRefusal::NamedTwice);
        }
        // A report counts as a whole or not at all.
        self.manager.check_half_chunks(report.released.iter().chain(&report.filled))?;
        if self.fenced.contains(&report.incarnation) {
            return Err(ReportRefusal::Fenced);
        }
        // Expired leases end first.
        orders.extend(self.manager.on_tick(now)?);
        let merged;
        let report = match rank {
            None => report,
            Some(rank) => match self.merge(now, name, rank, report)? {
                None => return Ok(None),
                Some(of_all_ranks) => {
                    merged = of_all_ranks;
                    &merged
                }
            },
        };
        let Some(job) = self.on_progress(now, name, new_number, report, orders)? else {
            return Ok(None);
        };
        let manager = &mut self.manager;
        orders.extend(manager.on_released(now, job, &report.released)?);
        orders.extend(manager.on_filled(now, job, &report.filled)?);
        orders.extend(manager.on_all_computed(now, job, &report.batches)?);
        let probe = manager.take_probe(now, job)?;
        let probe = match (rank, self.ranks.get_mut(name)) {
            (Some(JobRank { rank, .. }), Some(ranks)) => ranks.take_probe(rank, probe),
            _ => probe,
        };
        Ok(Some((job, probe)))
    }

    /// Merges the report of a rank with those of the others. `None` if a full report is needed.
    fn merge(
        &mut self,
        now: Duration,
        name: &str,
        rank: JobRank,
        report: &Report,
    ) -> Result<Option<Report>, ReportRefusal> {
        let Manager { lease, half_chunks, loads, .. } = &self.manager;
        let is_loading = |half_chunk| loads.contains_key(&half_chunks.chunk_of(half_chunk));
        let ranks = self.ranks.entry(name.to_owned()).or_default();
        let merged = ranks.merge(now, *lease, half_chunks.sizes(), rank, report, is_loading)?;
        let Some(MergedReport { report, replaced }) = merged else { return Ok(None) };
        if let Some(replaced) = replaced {
            self.fence(replaced);
        }
        Ok(Some(report))
    }

    /// A job or a rank of this name leaves. Returns the name of the job, if it leaves as a whole.
    fn on_rank_left<'a>(&mut self, name: &'a str) -> Option<&'a str> {
        let Some((job, JobRank { rank, .. })) = JobRank::of_name(name) else { return Some(name) };
        let is_last = self.ranks.get_mut(job)?.leave(rank);
        is_last.then(|| {
            self.ranks.remove(job);
            job
        })
    }

    /// Jobs, or ranks of jobs that have several.
    fn members(&self) -> u64 {
        let ranks = self.ranks.values().map(JobRanks::len).sum::<usize>();
        (self.jobs.len() + ranks) as u64
    }

    fn on_progress(
        &mut self,
        now: Duration,
        name: &str,
        new_number: JobNumber,
        report: &Report,
        orders: &mut Vec<HalfChunkOrder>,
    ) -> Result<Option<JobNumber>, ReportRefusal> {
        let Report { incarnation, epoch, is_full, pace, gpus, epoch_batches, .. } = *report;
        let known = self.jobs.get(name).copied();
        let known = known.filter(|known| self.manager.is_alive(now, known.job));
        let job = match known.filter(|known| known.incarnation == incarnation) {
            Some(RegisteredJob { job, epoch: known, .. }) if known == epoch => {
                orders.extend(self.manager.on_drawn(now, job, &report.unread, pace)?);
                job
            }
            _ if !is_full => return Ok(None),
            Some(RegisteredJob { job, .. }) => {
                orders.extend(self.manager.on_next_epoch(now, job, &report.unread)?);
                job
            }
            None => {
                let profile = JobProfile { name: name.to_owned(), gpus, epoch_batches };
                orders.extend(self.manager.on_joined(
                    now,
                    new_number,
                    profile,
                    &report.unread,
                    pace,
                )?);
                if let Some(former) = known {
                    orders.extend(self.manager.on_left(now, former.job)?);
                    self.fence(former.incarnation);
                }
                new_number
            }
        };
        self.jobs.insert(name.to_owned(), RegisteredJob { job, incarnation, epoch });
        Ok(Some(job))
    }

    fn fence(&mut self, incarnation: u64) {
        if self.fenced.len() == FENCED_MAX {
            self.fenced.pop_front();
        }
        self.fenced.push_back(incarnation);
    }
}

fn with_dataset(dataset: DatasetId, orders: Vec<HalfChunkOrder>) -> Orders {
    orders.into_iter().map(|order| (dataset, order)).collect()
}
