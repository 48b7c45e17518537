//! Dataset manager: jobs report to a node and share a cache that is smaller than their dataset.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use forebay_client::{Client, ClientError, Handle};
use forebay_core::{
    BlobOrdinal, ByteSize, HalfChunk, ItemOrdinal, Namespace,
    dataset::chunking::Chunking,
    train::{
        benefit::BatchTime,
        job::{HalfChunkSize, JobReporter, ReporterSettings},
        manager::{Explanation, HalfChunkBytes, HalfChunkState, Report, ReportAnswer},
        sampler::{EpochPlan, HalfChunkMap, Sampler},
    },
};
use forebay_wire::{ClaimAnswer, ErrorCode, GetAnswer};

use crate::harness::{Data, TIMEOUT, TestNode, get, put};

const ITEM: usize = 32 << 10;
const BATCH: u32 = 32;

/// Ten chunks of 6 MiB, each of two half-chunks of 3 MiB.
fn data() -> Data {
    Data::new(&[ITEM; 1920])
}

/// A node with space for about five chunks.
fn node() -> TestNode {
    let change = |config: &mut forebay_node::Config| {
        config.capacity = Some(ByteSize::mib(42));
        config.region_size = Some(ByteSize::mib(1));
    };
    TestNode::start_with(change, Vec::new())
}

fn index(item: ItemOrdinal) -> usize {
    usize::try_from(item.0).unwrap()
}

/// A job and its agent: draws, fetches missing blobs, reports.
struct Job<'a> {
    data: &'a Data,
    client: Client,
    handle: Handle,
    layout: HalfChunkMap,
    half_chunks: Vec<HalfChunk>,
    reporter: JobReporter,
    started: Instant,
    origin: &'a AtomicU64,
    uncached: u64,
}

impl<'a> Job<'a> {
    fn new(
        node: &TestNode,
        data: &'a Data,
        name: &str,
        incarnation: u64,
        origin: &'a AtomicU64,
    ) -> Self {
        let mut client = Client::connect(&node.config.socket, name, TIMEOUT).unwrap();
        let handle = client.open(&data.digest).unwrap();
        let summary = data.digest.summary();
        let chunking: Chunking = summary.chunking;
        let half_chunks: Vec<HalfChunk> = (0..data.blobs.len())
            .map(|item| chunking.half_chunk_of((item * ITEM) as u64, ByteSize(summary.bytes)))
            .collect();
        let of = half_chunks.iter().copied();
        let layout = HalfChunkMap::new(summary.dataset, chunking.half_chunks(), of).unwrap();
        let mut sizes = vec![HalfChunkSize::default(); chunking.half_chunks() as usize];
        for half_chunk in &half_chunks {
            let HalfChunkSize { bytes, items } = &mut sizes[half_chunk.index()];
            (bytes.0, *items) = (bytes.0 + ITEM as u64, *items + 1);
        }
        let reporter = JobReporter::new(ReporterSettings {
            incarnation,
            gpus: 1,
            epoch_batches: 60,
            half_chunks: sizes,
            probe_item: ByteSize(0),
        });
        let started = Instant::now();
        Self { data, client, handle, layout, half_chunks, reporter, started, origin, uncached: 0 }
    }

    fn present(&mut self) -> impl Fn(ItemOrdinal) -> bool + use<> {
        let bits = self.client.presence(self.handle, self.data.blobs.len() as u64).unwrap();
        move |item: ItemOrdinal| bits[index(item) / 8] >> (item.0 % 8) & 1 == 1
    }

    fn report(&mut self, sampler: &Sampler) {
        let present = self.present();
        let report = self.reporter.report(self.started.elapsed(), sampler, present);
        match self.client.report(self.handle, report) {
            Ok(answer) => self.reporter.on_answer(answer),
            Err(error) => panic!("{error}"),
        }
        if self.reporter.is_due(Duration::MAX, sampler) && self.reporter.loading().is_empty() {
            return;
        }
        // The work of the agent: fetch missing blobs of the half-chunks that are loading.
        let present = self.present();
        let ahead: Vec<usize> = (0..self.half_chunks.len())
            .filter(|item| self.reporter.loading().contains(&self.half_chunks[*item]))
            .filter(|item| !present(ItemOrdinal::new(*item as u64)))
            .take(2 * BATCH as usize)
            .collect();
        for item in ahead {
            self.fetch(item, false);
        }
    }

    /// Reads an item from the node or the origin, and checks its bytes.
    fn fetch(&mut self, item: usize, is_needed: bool) {
        loop {
            match self.client.claim(self.handle, &[BlobOrdinal::new(item as u64)]).unwrap()[0] {
                ClaimAnswer::Granted => {
                    self.origin.fetch_add(1, Relaxed);
                    let content = &self.data.blobs[item];
                    match self.client.put(self.handle, BlobOrdinal::new(item as u64), content) {
                        Ok(()) => return,
                        // Its half-chunk left the keep set meanwhile.
                        Err(ClientError::Refused(refusal)) => {
                            assert_eq!(refusal.code, ErrorCode::NoSpace, "{refusal}");
                            self.client
                                .release(self.handle, &[BlobOrdinal::new(item as u64)])
                                .unwrap();
                            return;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                ClaimAnswer::Uncached => {
                    if is_needed {
                        self.uncached += 1;
                        self.origin.fetch_add(1, Relaxed);
                    }
                    return;
                }
                _ if !is_needed => return,
                ClaimAnswer::Present | ClaimAnswer::Held => {
                    let wait = Duration::from_secs(1);
                    match get(&mut self.client, self.handle, self.data, item, wait) {
                        Ok(bytes) => return assert_eq!(bytes, self.data.blobs[item]),
                        Err(GetAnswer::Miss | GetAnswer::Claimed) => {}
                        Err(GetAnswer::Hit) => unreachable!(),
                    }
                }
                ClaimAnswer::TooMany => panic!("too many claims"),
            }
        }
    }

    /// One epoch. Every item is read once.
    fn epoch(&mut self, epoch: u64, seed: u64) {
        let plan = EpochPlan::new(seed, epoch, BATCH);
        let mut sampler = Sampler::new(&self.layout, plan).unwrap();
        let mut times: HashMap<u64, u32> = HashMap::new();
        self.reporter.begin_epoch(epoch);
        loop {
            if self.reporter.is_due(self.started.elapsed(), &sampler) {
                self.report(&sampler);
            }
            let draw_set = self.reporter.batch_draw_set(BATCH.into(), &sampler);
            sampler.set_draw_set(&draw_set).unwrap();
            let (present, is_probe) = (self.present(), self.reporter.take_probe_batch(1));
            let began = Instant::now();
            let Some(batch) = sampler.draw(|item| !is_probe && present(item)) else { break };
            for item in batch.items() {
                *times.entry(item.0).or_default() += 1;
                self.fetch(index(*item), true);
            }
            let stalled = began.elapsed();
            let half_chunks = batch.items().iter().map(|item| self.half_chunks[index(*item)]);
            let mode =
                self.reporter.mode(half_chunks, batch.items().iter().all(|item| present(*item)));
            let released = sampler.on_yielded(batch.number()).unwrap();
            self.reporter.on_released(released);
            // All jobs compute at the same speed.
            thread::sleep(Duration::from_millis(1));
            let bytes = batch.items().len() as u64 * ITEM as u64;
            self.reporter.on_computed(mode, bytes, BatchTime { took: began.elapsed(), stalled });
        }
        assert_eq!(times.len(), self.data.blobs.len(), "every item (promise 2)");
        assert!(times.values().all(|times| *times == 1), "once");
    }
}

/// Several jobs read a dataset together: they share fetches, every job reads every item once, and
/// the capacity is not exceeded.
#[test]
fn jobs_share_a_small_cache() {
    let (node, data) = (node(), data());
    let (jobs, epochs) = (3, 2);
    let origin = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..jobs {
            let (node, data, origin) = (&node, &data, &origin);
            scope.spawn(move || {
                let mut job = Job::new(node, data, &format!("job {number}"), number, origin);
                for epoch in 0..epochs {
                    job.epoch(epoch, number);
                }
                job.client.leave(job.handle).unwrap();
            });
        }
    });
    let items = data.blobs.len() as u64;
    let fetched = origin.load(Relaxed);
    let counters = node.service.counters();
    let (loaded, evicted) = (counters.chunks_loaded.get(), counters.chunks_evicted.get());
    assert!(loaded > 5 && evicted > 0, "{loaded} half-chunks loaded, {evicted} evicted");
    // Without sharing, each job would fetch everything in every epoch. The savings depend on the
    // load of the machine.
    let unshared = jobs * epochs * items;
    assert!(fetched < unshared * 8 / 10, "{fetched} of {unshared}");
    assert!(node.service.gauges().resident_bytes <= node.service.gauges().capacity_bytes);
}

/// Datasets of 10 MiB without common blobs. Half-chunks are at most as large as regions.
fn datasets(count: usize) -> Vec<Data> {
    let all =
        (0..count).map(|number| Data::from(&Namespace::public(), 1000 * number, &[ITEM; 320]));
    all.collect()
}

/// Runs a job for one epoch. Returns the number of items that it fetched.
fn run_job(node: &TestNode, data: &Data, incarnation: u64) -> u64 {
    let origin = AtomicU64::new(0);
    let mut job = Job::new(node, data, &format!("job {incarnation}"), incarnation, &origin);
    job.epoch(0, incarnation);
    job.client.leave(job.handle).unwrap();
    origin.load(Relaxed)
}

fn why(node: &TestNode, data: &Data) -> String {
    let (mut client, handle) = node.open(data);
    let json = client.explain(handle).unwrap();
    serde_json::from_slice::<Option<Explanation>>(&json).unwrap().unwrap().why
}

/// Datasets that are read one after the other are fetched once if there is space for all, also
/// after a restart. The gauges match what is served.
#[test]
fn idle_datasets_stay_while_there_is_space() {
    let (mut node, datasets) = (node(), datasets(3));
    for (job, (number, fetches)) in
        [(0, 320), (0, 0), (1, 320), (2, 320), (0, 0), (1, 0), (2, 0), (0, 0)]
            .into_iter()
            .enumerate()
    {
        if job == 6 {
            node = node.restarted(|_| {});
        }
        let fetched = run_job(&node, &datasets[number], job as u64);
        assert_eq!(fetched, fetches, "job {job}, which reads dataset {number}");
        if job == 5 {
            let why = why(&node, &datasets[0]);
            let reason = "what is cached stays until others need the room: no job reads it";
            assert_eq!(why, reason);
        }
    }
    let gauges = node.service.gauges();
    assert_eq!((gauges.resident_bytes, gauges.resident_blobs), (960 * ITEM as u64, 960));
}

/// Without space for all datasets, only the least recently used one is evicted. Evicted blobs are
/// not counted as resident.
#[test]
fn the_least_recently_used_dataset_is_evicted() {
    let (node, datasets) = (node(), datasets(4));
    for (job, number) in [0, 1, 2, 0, 3].into_iter().enumerate() {
        run_job(&node, &datasets[number], job as u64);
    }
    for (job, number) in (10..).zip([0, 2, 3]) {
        assert_eq!(run_job(&node, &datasets[number], job), 0, "dataset {number} was read later");
    }
    let present = |data: &Data| {
        let (mut client, handle) = node.open(data);
        let bits = client.presence(handle, data.blobs.len() as u64).unwrap();
        bits.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
    };
    let resident: u64 = datasets.iter().map(present).sum();
    assert!((960..1280).contains(&resident), "{resident} items are resident");
    let gauges = node.service.gauges();
    assert_eq!(gauges.resident_blobs, resident, "the gauge has the same number");
    let fetched = run_job(&node, &datasets[1], 20);
    assert_eq!(fetched, 1280 - resident, "evicted items are fetched again");
}

/// A job that was started again is distinguished from its old process, which may still run.
#[test]
fn the_old_incarnation_of_a_job_is_fenced() {
    let (node, data) = (node(), Data::new(&[ITEM; 40]));
    let report =
        |incarnation| Report { incarnation, is_full: true, epoch_batches: 2, ..Report::default() };
    let open = || {
        let mut client = Client::connect(&node.config.socket, "job", TIMEOUT).unwrap();
        let handle = client.open(&data.digest).unwrap();
        (client, handle)
    };
    let ((mut old, handle), (mut new, _)) = (open(), open());
    assert!(matches!(old.report(handle, report(1)), Ok(ReportAnswer::Draw { .. })));
    assert!(matches!(new.report(handle, report(2)), Ok(ReportAnswer::Draw { .. })));
    let Err(ClientError::Refused(refusal)) = old.report(handle, report(1)) else {
        panic!("the old incarnation is accepted")
    };
    assert_eq!(refusal.code, ErrorCode::Fenced);
    assert!(matches!(new.report(handle, report(2)), Ok(ReportAnswer::Draw { .. })));
    assert_eq!(node.service.counters().reports_refused.get(), 1);
}

/// Invalid reports are refused, and the node continues to serve.
#[test]
fn invalid_reports_are_refused() {
    let (node, data) = (node(), Data::new(&[ITEM; 40]));
    let (mut client, handle) = node.open(&data);
    let all = Report { is_full: true, ..Report::default() };
    let unread = |half_chunk, bytes| HalfChunkBytes {
        half_chunk: HalfChunk(half_chunk),
        bytes: ByteSize(bytes),
    };
    for invalid in [
        Report { unread: vec![unread(u32::MAX, 0)], ..all.clone() },
        Report { unread: vec![unread(0, u64::MAX)], ..all.clone() },
        Report { released: vec![HalfChunk(1 << 20)], ..all.clone() },
    ] {
        let Err(ClientError::Refused(refusal)) = client.report(handle, invalid) else {
            panic!("an invalid report is accepted")
        };
        assert_eq!(refusal.code, ErrorCode::Malformed, "{refusal}");
    }
    assert!(matches!(client.report(handle, all), Ok(ReportAnswer::Draw { .. })));
}

/// After the reply, an evicted dataset is gone from the device and from memory, also after a
/// restart.
#[test]
fn an_evicted_dataset_does_not_come_back() {
    let (node, data, other) = (node(), data(), Data::new(&[1000; 30]));
    let (mut client, handle) = node.open(&data);
    for blob in 0..300 {
        put(&mut client, handle, &data, blob);
    }
    let (mut other_client, theirs) = node.open(&other);
    put(&mut other_client, theirs, &other, 7);
    assert_eq!(client.evict(handle).unwrap(), 300 * ITEM as u64);
    let is_gone = |client: &mut Client, handle, blob| {
        get(client, handle, &data, blob, Duration::ZERO) == Err(GetAnswer::Miss)
    };
    assert!((0..300).all(|blob| is_gone(&mut client, handle, blob)));
    put(&mut client, handle, &data, 5);
    drop((client, other_client));
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    assert!((0..300).all(|blob| blob == 5 || is_gone(&mut client, handle, blob)));
    let (mut other_client, theirs) = node.open(&other);
    let kept = get(&mut other_client, theirs, &other, 7, Duration::ZERO).unwrap();
    assert_eq!(kept, other.blobs[7], "another dataset's blob stays");
}

/// Promise 7: blobs from before a restart are kept when the first job reports, as far as there is
/// space.
#[test]
fn blobs_from_before_a_restart_are_kept() {
    let (node, data) = (node(), data());
    let (mut client, handle) = node.open(&data);
    (0..300).for_each(|blob| put(&mut client, handle, &data, blob));
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    let report = Report { is_full: true, gpus: 1, epoch_batches: 60, ..Report::default() };
    assert!(matches!(client.report(handle, report), Ok(ReportAnswer::Draw { .. })));
    let hits =
        (0..300).filter(|blob| get(&mut client, handle, &data, *blob, Duration::ZERO).is_ok());
    let hits = hits.count();
    assert!(hits >= 100, "{hits} of 300 hits; two thirds of the chunks fit");
    assert_eq!(node.service.counters().takeovers.get(), 1);
    assert_eq!(node.service.gauges().manager_term, 1);
}

/// `explain` describes a dataset to a client that has opened it, as JSON.
#[test]
fn a_dataset_is_explained() {
    let (node, data) = (node(), data());
    let (mut client, handle) = node.open(&data);
    let explain = |client: &mut Client| -> Option<Explanation> {
        serde_json::from_slice(&client.explain(handle).unwrap()).unwrap()
    };
    assert_eq!(explain(&mut client), None, "no job reports");
    let report = Report { is_full: true, gpus: 2, epoch_batches: 60, ..Report::default() };
    client.report(handle, report).unwrap();
    let explanation = explain(&mut client).unwrap();
    assert!(explanation.why.contains("job test is not measured yet"), "{}", explanation.why);
    assert_eq!(
        (explanation.half_chunks.len(), explanation.jobs.len(), explanation.jobs[0].gpus),
        (20, 1, 2)
    );
    assert!(explanation.half_chunks.iter().any(|half_chunk| *half_chunk != HalfChunkState::Absent));
    assert_eq!((explanation.manager.as_str(), explanation.term), ("node", 1), "a single node");
    client.evict(handle).unwrap();
    assert_eq!(explain(&mut client), None);
    // The job is asked for a full report.
    let drawn = Report { epoch_batches: 60, ..Report::default() };
    assert_eq!(client.report(handle, drawn).unwrap(), ReportAnswer::FullReportNeeded);
}

/// Blobs that were just put or are read again come from the memory cache.
#[test]
fn hot_blobs_are_read_from_memory() {
    let (node, data) = (node(), Data::new(&[ITEM; 40]));
    let (mut client, handle) = node.open(&data);
    (0..40).for_each(|blob| put(&mut client, handle, &data, blob));
    for _ in 0..3 {
        for blob in 0..40 {
            let read = get(&mut client, handle, &data, blob, Duration::ZERO).unwrap();
            assert_eq!(read, data.blobs[blob]);
        }
    }
    let gauges = node.service.gauges();
    assert_eq!(gauges.memory_hits, 120);
    assert!(gauges.memory_bytes >= 40 * ITEM as u64 && gauges.memory_bytes <= 256 << 20);
    drop(client);
    // After a restart the memory cache is empty. While it is not full, every blob that is read is
    // admitted.
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    let mut read_all = || {
        for blob in 0..40 {
            assert_eq!(
                get(&mut client, handle, &data, blob, Duration::ZERO).unwrap(),
                data.blobs[blob]
            );
        }
        node.service.gauges().memory_hits
    };
    assert_eq!([read_all(), read_all()], [0, 40]);
}
