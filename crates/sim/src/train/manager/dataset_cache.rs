//! Cache of one dataset: its resident items and those in flight. The core's manager of the dataset
//! decides what is loaded and evicted; this module carries it out.

use std::{collections::VecDeque, time::Duration};

use forebay_core::{
    ByteSize, DatasetId, HalfChunk, HalfChunkRange,
    dataset::chunking::ChunkOrdinal,
    train::{
        benefit::{BatchTime, Mode},
        manager::{
            CacheClass, HalfChunkBytes, HalfChunkOrder as Order, JobProfile, Manager,
            ManagerSettings,
        },
        placement::{Allocation, DatasetDemand},
        rotation::{InvalidEvent, JobNumber, RotationPolicy as Rule},
        sampler::HalfChunkMap,
    },
    units::ByteRate,
};

use super::fill::Fill;
use crate::train::{
    bits::Bits,
    job::Epoch,
    outcome::Residency,
    pipeline::BatchNumber,
    scenario::Dataset,
    store::{Fetched, is_on},
    time::Nanos,
};

/// Lease of a job.
const LEASE: Duration = Duration::from_mins(10);

/// The cache of one dataset.
#[derive(Debug)]
pub(in crate::train) struct DatasetCache {
    name: String,
    item_bytes: u64,
    /// Half-chunks per chunk: 1 under the paper's policy.
    halves: u32,
    half_chunks: Vec<Vec<u32>>,
    half_chunk_of: Vec<HalfChunk>,
    manager: Manager,
    resident: Bits,
    in_flight: Bits,
    fills: Vec<Fill>,
    waiters: Vec<Waiter>,
    log: Vec<Stay>,
}

/// A mini-batch that waits for an item which another job fetches.
#[derive(Debug, Clone, Copy)]
pub(in crate::train) struct Waiter {
    pub item: u32,
    pub job: usize,
    pub batch: BatchNumber,
}

/// Residency of half-chunks.
#[derive(Debug)]
struct Stay {
    half_chunks: HalfChunkRange,
    from: Nanos,
    to: Option<Nanos>,
}

impl DatasetCache {
    pub fn new(dataset: &Dataset, rule: Rule, load_rate: u64, seed: u64) -> Self {
        // The paper has no half-chunks.
        let halves = if rule == Rule::Demand { 2 } else { 1 };
        let chunks = dataset.chunking.chunks();
        let mut half_chunks = vec![Vec::new(); (chunks * halves) as usize];
        let items = usize::try_from(dataset.items).expect("scenarios limit the number of items");
        let mut half_chunk_of = vec![HalfChunk(0); items];
        for chunk in 0..chunks {
            for (unit, run) in (0..).zip(dataset.items_of(ChunkOrdinal(chunk))) {
                let half_chunk = HalfChunk(chunk * halves + unit % halves);
                for item in run {
                    let item = u32::try_from(item).expect("scenarios limit the number of items");
                    half_chunks[half_chunk.index()].push(item);
                    half_chunk_of[item as usize] = half_chunk;
                }
            }
        }
        // Jobs fetch in random order.
        let mut random = fastrand::Rng::with_seed(seed);
        for items in &mut half_chunks {
            random.shuffle(items);
        }
        let sizes =
            half_chunks.iter().map(|items| ByteSize(items.len() as u64 * dataset.item_bytes));
        let manager = Manager::new(ManagerSettings {
            policy: rule,
            lease: LEASE,
            load_rate: rate(load_rate),
            half_chunk_sizes: sizes.collect(),
            half_chunks_per_chunk: halves,
        });
        Self {
            name: dataset.name.clone(),
            item_bytes: dataset.item_bytes,
            halves,
            half_chunks,
            half_chunk_of,
            manager,
            resident: Bits::new(dataset.items),
            in_flight: Bits::new(dataset.items),
            fills: Vec::new(),
            waiters: Vec::new(),
            log: Vec::new(),
        }
    }

    /// Layout for samplers.
    pub fn layout(&self) -> HalfChunkMap {
        let half_chunks = u32::try_from(self.half_chunks.len()).expect("at most 2^16 half-chunks");
        let of_items = self.half_chunk_of.iter().copied();
        HalfChunkMap::new(DatasetId::from_bytes([0; 32]), half_chunks, of_items)
            .expect("at most 2^16 half-chunks")
    }

    pub fn is_resident(&self, item: u32) -> bool {
        self.resident.contains(item)
    }

    pub fn is_in_flight(&self, item: u32) -> bool {
        self.in_flight.contains(item)
    }

    /// A job starts to fetch an item.
    pub fn on_fetch(&mut self, item: u32) {
        self.in_flight.insert(item);
    }

    pub fn add_waiter(&mut self, waiter: Waiter) {
        self.waiters.push(waiter);
    }

    /// Removes and returns the waiters that match.
    pub fn take_waiters(&mut self, matches: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let (taken, left) = self.waiters.iter().partition(|waiter| matches(waiter));
        self.waiters = left;
        taken
    }

    /// Handles an item that has arrived from the origin.
    pub fn on_fetched(&mut self, now: Nanos, item: u32) -> Fetched {
        self.in_flight.remove(item);
        let half_chunk = self.half_chunk_of[item as usize];
        if self.resident.contains(item) {
            return Fetched::Duplicate;
        }
        if self.manager.class_of(half_chunk) == CacheClass::Uncached {
            return Fetched::Uncached;
        }
        self.resident.insert(item);
        let bytes = ByteSize(self.item_bytes);
        self.apply(now, |manager| manager.on_arrived(now.duration(), half_chunk, bytes));
        Fetched::Kept
    }

    /// The fetch of an item was abandoned.
    pub fn on_abandoned(&mut self, item: u32) {
        self.in_flight.remove(item);
        self.fills.iter_mut().for_each(Fill::restart);
    }

    /// Items that an idle link fetches ahead: not requested yet, and unread by some job.
    pub fn prefetch_items(&mut self, count: usize, readers: &[(usize, &Epoch)]) -> Vec<u32> {
        let mut items = Vec::new();
        let Self { fills, half_chunks, resident, in_flight, .. } = self;
        for fill in fills {
            let is_wanted = |item: u32| {
                !resident.contains(item)
                    && !in_flight.contains(item)
                    && readers.iter().any(|(_, epoch)| !epoch.has_drawn(item))
            };
            fill.next_items(half_chunks, count, is_wanted, &mut items);
            if items.len() == count {
                break;
            }
        }
        items
    }

    /// Drops the items of one node.
    pub fn lose_node(&mut self, node: u32, nodes: u32) {
        let items = u32::try_from(self.half_chunk_of.len()).expect("fewer than 2^32 items");
        for item in (0..items).filter(|item| is_on(*item, node, nodes)) {
            self.resident.remove(item);
        }
        // Half-chunks that the manager counts as resident are loaded again.
        let resident = self.log.iter().filter(|stay| stay.to.is_none());
        for half_chunks in resident.map(|stay| stay.half_chunks) {
            match self.fills.iter_mut().find(|fill| fill.half_chunks() == half_chunks) {
                Some(fill) => fill.restart(),
                None => self.fills.push(Fill::new(half_chunks)),
            }
        }
    }

    pub fn has_job(&self, now: Nanos, job: usize) -> bool {
        self.manager.is_alive(now.duration(), number(job))
    }

    pub fn is_member(&self, job: usize) -> bool {
        self.manager.is_member(number(job))
    }

    /// Adds a job that draws from the cache.
    pub fn join(&mut self, now: Nanos, job: usize, who: JobProfile, epoch: &Epoch, pace: u64) {
        let count = u32::try_from(self.half_chunks.len()).expect("at most 2^16 half-chunks");
        let half_chunks = HalfChunk::all(count).into_iter();
        let unread: Vec<_> = half_chunks.map(|half_chunk| self.unread(half_chunk, epoch)).collect();
        self.apply(now, |manager| {
            manager.on_joined(now.duration(), number(job), who, &unread, rate(pace))
        });
    }

    /// Renews the lease of a job.
    pub fn renew(&mut self, now: Nanos, job: usize) {
        self.apply(now, |manager| manager.on_renewed(now.duration(), number(job)));
    }

    /// Removes a job that has ended.
    pub fn leave(&mut self, now: Nanos, job: usize) {
        self.apply(now, |manager| manager.on_left(now.duration(), number(job)));
    }

    /// A job begins its next epoch.
    pub fn on_next_epoch(&mut self, now: Nanos, job: usize) {
        self.apply(now, |manager| manager.on_next_epoch(now.duration(), number(job), &[]));
    }

    /// Number of the job's next mini-batches that must miss, for a probe.
    pub fn probe(&mut self, now: Nanos, job: usize) -> u32 {
        self.manager.take_probe(now.duration(), number(job)).expect("a job that draws has joined")
    }

    /// Gives a job's sampler its draw set.
    pub fn set_draw_set(&mut self, job: usize, epoch: &mut Epoch, batch: u64) {
        let open = self.manager.draw_set(number(job));
        let draw_set = open.for_batch(batch, |half_chunk| epoch.unread(half_chunk));
        epoch.set_draw_set(&draw_set);
    }

    /// Mode of these items, if they have one.
    pub fn mode(&self, job: usize, items: &[u32]) -> Option<Mode> {
        let half_chunks = items.iter().map(|item| self.half_chunk_of[*item as usize]);
        let all_resident = items.iter().all(|item| self.resident.contains(*item));
        self.manager.mode(number(job), half_chunks, all_resident)
    }

    /// A job has drawn these items.
    pub fn on_drawn(&mut self, now: Nanos, job: usize, epoch: &Epoch, items: &[u32], pace: u64) {
        let mut touched: Vec<HalfChunk> =
            items.iter().map(|item| self.half_chunk_of[*item as usize]).collect();
        touched.sort_unstable();
        touched.dedup();
        let unread: Vec<_> =
            touched.into_iter().map(|half_chunk| self.unread(half_chunk, epoch)).collect();
        self.apply(now, |manager| {
            manager.on_drawn(now.duration(), number(job), &unread, rate(pace))
        });
    }

    /// A job has yielded the last items of these half-chunks.
    pub fn on_released(&mut self, now: Nanos, job: usize, half_chunks: &[HalfChunk]) {
        self.apply(now, |manager| manager.on_released(now.duration(), number(job), half_chunks));
    }

    /// A job has computed a mini-batch.
    pub fn on_computed(&mut self, now: Nanos, job: usize, mode: Mode, time: BatchTime) {
        self.apply(now, |manager| manager.on_computed(now.duration(), number(job), mode, time));
    }

    /// Reports half-chunks whose items are all present or read by every job.
    pub fn check_fills(&mut self, now: Nanos, readers: &[(usize, &Epoch)]) {
        let mut at = 0;
        while at < self.fills.len() {
            let Self { fills, half_chunks, resident, .. } = self;
            let is_present = |item: u32| {
                resident.contains(item) || readers.iter().all(|(_, epoch)| epoch.has_drawn(item))
            };
            if fills[at].is_full(half_chunks, is_present) {
                let filled: Vec<HalfChunk> =
                    self.fills.remove(at).half_chunks().into_iter().collect();
                for (job, _) in readers {
                    self.apply(now, |manager| {
                        manager.on_filled(now.duration(), number(*job), &filled)
                    });
                }
                // The manager's orders may have changed the list.
                at = 0;
            } else {
                at += 1;
            }
        }
    }

    pub fn tick(&mut self, now: Nanos) {
        self.apply(now, |manager| manager.on_tick(now.duration()));
    }

    /// Next time at which [`DatasetCache::tick`] must be called.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.manager.next_deadline().map(Nanos::from)
    }

    pub fn demand(&self, now: Nanos) -> DatasetDemand {
        self.manager.demand(now.duration())
    }

    /// Counter that changes whenever the space should be split again.
    pub fn reasons(&self) -> u64 {
        self.manager.demand_revision()
    }

    /// Sets the share of the dataset.
    pub fn set_share(&mut self, now: Nanos, choice: Allocation) {
        self.apply(now, |manager| manager.set_allocation(now.duration(), choice));
    }

    /// Calls the manager, and carries out its orders.
    fn apply(
        &mut self,
        now: Nanos,
        call: impl FnOnce(&mut Manager) -> Result<Vec<Order>, InvalidEvent>,
    ) {
        let name = &self.name;
        let expect = |orders: Result<Vec<Order>, InvalidEvent>| {
            orders.unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let mut orders = VecDeque::from(expect(call(&mut self.manager)));
        let mut done = 0;
        while let Some(order) = orders.pop_front() {
            done += 1;
            assert!(
                done <= 4 * self.half_chunks.len() + 4,
                "{name}: endless orders, last {order:?}"
            );
            match order {
                Order::Load(half_chunks) => {
                    self.log.push(Stay { half_chunks, from: now, to: None });
                    self.fills.push(Fill::new(half_chunks));
                }
                Order::Evict(half_chunks) => {
                    self.fills.retain(|fill| fill.half_chunks() != half_chunks);
                    for half_chunk in half_chunks {
                        for item in &self.half_chunks[half_chunk.index()] {
                            self.resident.remove(*item);
                        }
                    }
                    let stay =
                        self.log.iter_mut().rev().find(|stay| stay.half_chunks == half_chunks);
                    stay.expect("an evicted half-chunk was loaded").to = Some(now);
                    orders.extend(expect(self.manager.on_evicted(now.duration(), half_chunks)));
                }
                // Only half-chunks in the keep set are fetched here.
                Order::Keep => {}
            }
        }
    }

    /// Bytes of all half-chunks in the cache, loaded or loading.
    pub fn taken(&self) -> u64 {
        let resident = self.log.iter().filter(|stay| stay.to.is_none());
        let items = resident.flat_map(|stay| stay.half_chunks);
        items
            .map(|half_chunk| self.half_chunks[half_chunk.index()].len() as u64 * self.item_bytes)
            .sum()
    }

    pub fn residency(&self, end: Nanos) -> impl Iterator<Item = Residency> {
        self.log.iter().map(move |stay| Residency {
            dataset: self.name.clone(),
            chunk: stay.half_chunks.start.0 / self.halves,
            from_seconds: stay.from.seconds(),
            to_seconds: stay.to.unwrap_or(end).seconds(),
        })
    }

    fn unread(&self, half_chunk: HalfChunk, epoch: &Epoch) -> HalfChunkBytes {
        let bytes = ByteSize(epoch.unread(half_chunk) * self.item_bytes);
        HalfChunkBytes { half_chunk, bytes }
    }
}

fn number(job: usize) -> JobNumber {
    JobNumber(job as u64)
}

fn rate(bytes_per_second: u64) -> ByteRate {
    ByteRate(ByteSize(bytes_per_second))
}
