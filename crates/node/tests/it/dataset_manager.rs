//! Jobs that report to the managers of a node, and share a cache that is smaller than their dataset.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use forebay_client::{Client, ClientError, Handle};
use forebay_core::{
    ByteSize, ItemOrdinal, Namespace,
    chunking::{ChunkOrdinal, Chunking},
    manager::{Answer, Description, Membership, Piece, Report},
    sampler::{Layout, Plan, Sampler},
};
use forebay_wire::{ClaimAnswer, ErrorCode, GetAnswer};

use crate::harness::{Data, PATIENCE, TestNode, get, put};

const ITEM: usize = 32 << 10;
const BATCH: u32 = 32;

/// Ten chunks of 6 MiB, each of two pieces of 3 MiB.
fn data() -> Data {
    Data::new(&[ITEM; 1920])
}

/// A node with room for about five of them.
fn node() -> TestNode {
    let change = |config: &mut forebay_server::Config| {
        config.capacity = Some(ByteSize::mib(42));
        config.region_size = Some(ByteSize::mib(1));
    };
    TestNode::start_with(change, Vec::new())
}

fn index(item: ItemOrdinal) -> usize {
    usize::try_from(item.0).unwrap()
}

/// A job and its agent in one: draws, fetches what is missing, reports.
struct Job<'a> {
    data: &'a Data,
    client: Client,
    handle: Handle,
    layout: Layout,
    pieces: Vec<u32>,
    membership: Membership,
    started: Instant,
    origin: &'a AtomicU64,
    outside: u64,
}

impl<'a> Job<'a> {
    fn new(node: &TestNode, data: &'a Data, name: &str, life: u64, origin: &'a AtomicU64) -> Self {
        let mut client = Client::connect(&node.config.socket, name, PATIENCE).unwrap();
        let handle = client.open(&data.digest).unwrap();
        let summary = data.digest.summary();
        let chunking: Chunking = summary.chunking;
        let pieces: Vec<u32> = (0..data.blobs.len())
            .map(|item| chunking.piece_of((item * ITEM) as u64, ByteSize(summary.bytes)))
            .collect();
        let of = pieces.iter().map(|piece| ChunkOrdinal(*piece));
        let layout = Layout::new(summary.dataset, chunking.pieces(), of).unwrap();
        let mut sizes = vec![(ByteSize(0), 0); chunking.pieces() as usize];
        for piece in &pieces {
            let (bytes, items) = &mut sizes[*piece as usize];
            (bytes.0, *items) = (bytes.0 + ITEM as u64, *items + 1);
        }
        let membership = Membership::new(life, 1, 60, sizes);
        let started = Instant::now();
        Self { data, client, handle, layout, pieces, membership, started, origin, outside: 0 }
    }

    fn present(&mut self) -> impl Fn(ItemOrdinal) -> bool + use<> {
        let bits = self.client.presence(self.handle, self.data.blobs.len() as u64).unwrap();
        move |item: ItemOrdinal| bits[index(item) / 8] >> (item.0 % 8) & 1 == 1
    }

    fn report(&mut self, sampler: &Sampler) {
        let present = self.present();
        let report = self.membership.report(self.started.elapsed(), sampler, present);
        match self.client.report(self.handle, report) {
            Ok(answer) => self.membership.answered(answer),
            Err(error) => panic!("{error}"),
        }
        if self.membership.is_due(Duration::MAX, sampler) && self.membership.loading().is_empty() {
            return;
        }
        // The agent's work: what is needed of what is on its way.
        let present = self.present();
        let ahead: Vec<usize> = (0..self.pieces.len())
            .filter(|item| self.membership.loading().contains(&self.pieces[*item]))
            .filter(|item| !present(ItemOrdinal::new(*item as u64)))
            .take(2 * BATCH as usize)
            .collect();
        for item in ahead {
            self.fetch(item, false);
        }
    }

    /// Reads an item, whoever has it, and checks its bytes.
    fn fetch(&mut self, item: usize, is_needed: bool) {
        loop {
            match self.client.claim(self.handle, &[item as u64]).unwrap()[0] {
                ClaimAnswer::Granted => {
                    self.origin.fetch_add(1, Relaxed);
                    let content = &self.data.blobs[item];
                    match self.client.put(self.handle, item as u64, content) {
                        Ok(()) => return,
                        // It lost its place meanwhile.
                        Err(ClientError::Refused(refusal)) => {
                            assert_eq!(refusal.code, ErrorCode::NoSpace, "{refusal}");
                            self.client.release(self.handle, &[item as u64]).unwrap();
                            return;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                ClaimAnswer::Outside => {
                    if is_needed {
                        self.outside += 1;
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

    /// One epoch: every item once, whatever comes and goes.
    fn epoch(&mut self, epoch: u64, seed: u64) {
        let plan = Plan::new(seed, epoch, BATCH);
        let mut sampler = Sampler::new(&self.layout, plan).unwrap();
        let mut times: HashMap<u64, u32> = HashMap::new();
        self.membership.begin(epoch);
        loop {
            if self.membership.is_due(self.started.elapsed(), &sampler) {
                self.report(&sampler);
            }
            let directions = self.membership.directions(BATCH.into(), &sampler);
            sampler.open(&directions.held, &directions.rotating).unwrap();
            sampler.leaving(directions.leaving).unwrap();
            let (present, is_forced) = (self.present(), self.membership.forces_miss());
            let began = Instant::now();
            let Some(batch) = sampler.draw(|item| !is_forced && present(item)) else { break };
            for item in batch.items() {
                *times.entry(item.0).or_default() += 1;
                self.fetch(index(*item), true);
            }
            let stalled = began.elapsed();
            let pieces = batch.items().iter().map(|item| self.pieces[index(*item)]);
            let mode =
                self.membership.mode(pieces, batch.items().iter().all(|item| present(*item)));
            let released = sampler.yielded(batch.number()).unwrap();
            self.membership.released(released);
            // Every job computes as fast.
            thread::sleep(Duration::from_millis(1));
            let bytes = batch.items().len() as u64 * ITEM as u64;
            self.membership.computed(mode, bytes, [began.elapsed(), stalled]);
        }
        assert_eq!(times.len(), self.data.blobs.len(), "every item (promise 2)");
        assert!(times.values().all(|times| *times == 1), "once");
    }
}

/// Several jobs go through a dataset together: what is fetched is fetched for all of them, every job reads
/// every item once, and no more is resident than may be.
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
    assert!(loaded > 5 && evicted > 0, "more come than fit: {loaded} came, {evicted} went");
    // Apart, they would fetch all of it each in every epoch; how much less it is depends on how busy the
    // machine is.
    let apart = jobs * epochs * items;
    assert!(fetched < apart * 8 / 10, "{fetched} of {apart}");
    assert!(node.service.gauges().resident_bytes <= node.service.gauges().capacity_bytes);
}

/// Datasets of 10 MiB that have nothing in common; pieces are smaller than regions, or as large.
fn datasets(count: usize) -> Vec<Data> {
    let all =
        (0..count).map(|number| Data::from(&Namespace::public(), 1000 * number, &[ITEM; 320]));
    all.collect()
}

/// A job reads a dataset once. Returns how many items it had to fetch.
fn one_job(node: &TestNode, data: &Data, life: u64) -> u64 {
    let origin = AtomicU64::new(0);
    let mut job = Job::new(node, data, &format!("job {life}"), life, &origin);
    job.epoch(0, life);
    job.client.leave(job.handle).unwrap();
    origin.load(Relaxed)
}

fn why(node: &TestNode, data: &Data) -> String {
    let (mut client, handle) = node.open(data);
    let said = client.explain(handle).unwrap();
    serde_json::from_slice::<Option<Description>>(&said).unwrap().unwrap().why
}

/// "What is cached stays until others need the room": datasets that are read one after the other are fetched once, if
/// there is room for all, also after a restart; and what is said to be resident is what can be served.
#[test]
fn idle_datasets_stay_while_there_is_room() {
    let (mut node, datasets) = (node(), datasets(3));
    for (life, (number, fetches)) in
        [(0, 320), (0, 0), (1, 320), (2, 320), (0, 0), (1, 0), (2, 0), (0, 0)]
            .into_iter()
            .enumerate()
    {
        if life == 6 {
            node = node.restarted(|_| {});
        }
        let fetched = one_job(&node, &datasets[number], life as u64);
        assert_eq!(fetched, fetches, "job {life}, which reads dataset {number}");
        if life == 5 {
            let why = why(&node, &datasets[0]);
            let said = "what is cached stays until others need the room: no job reads it";
            assert_eq!(why, said);
        }
    }
    let gauges = node.service.gauges();
    assert_eq!((gauges.resident_bytes, gauges.resident_blobs), (960 * ITEM as u64, 960));
}

/// Where there is not room for all, the dataset that was read longest ago makes room, and no other; of what it has
/// lost, nothing is counted.
#[test]
fn the_least_recently_read_makes_room() {
    let (node, datasets) = (node(), datasets(4));
    for (life, number) in [0, 1, 2, 0, 3].into_iter().enumerate() {
        one_job(&node, &datasets[number], life as u64);
    }
    for (life, number) in (10..).zip([0, 2, 3]) {
        assert_eq!(one_job(&node, &datasets[number], life), 0, "dataset {number} was read later");
    }
    let present = |data: &Data| {
        let (mut client, handle) = node.open(data);
        let bits = client.presence(handle, data.blobs.len() as u64).unwrap();
        bits.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
    };
    let there: u64 = datasets.iter().map(present).sum();
    assert!((960..1280).contains(&there), "{there} items are there");
    let gauges = node.service.gauges();
    assert_eq!(gauges.resident_blobs, there, "and so many are said to be");
    let fetched = one_job(&node, &datasets[1], 20);
    assert_eq!(fetched, 1280 - there, "what was lost is fetched again");
}

/// A job that was started again is told apart from its former life, which may still be about.
#[test]
fn a_former_life_is_fenced() {
    let (node, data) = (node(), Data::new(&[ITEM; 40]));
    let report = |life| Report { life, is_all: true, epoch_batches: 2, ..Report::default() };
    let open = || {
        let mut client = Client::connect(&node.config.socket, "job", PATIENCE).unwrap();
        let handle = client.open(&data.digest).unwrap();
        (client, handle)
    };
    let ((mut old, handle), (mut new, _)) = (open(), open());
    assert!(matches!(old.report(handle, report(1)), Ok(Answer::Draw { .. })));
    assert!(matches!(new.report(handle, report(2)), Ok(Answer::Draw { .. })));
    let Err(ClientError::Refused(refusal)) = old.report(handle, report(1)) else {
        panic!("the former life is believed")
    };
    assert_eq!(refusal.code, ErrorCode::Fenced);
    assert!(matches!(new.report(handle, report(2)), Ok(Answer::Draw { .. })));
    assert_eq!(node.service.counters().reports_refused.get(), 1);
}

/// Reports that cannot be are refused, and the node goes on.
#[test]
fn nonsense_in_reports_is_refused() {
    let (node, data) = (node(), Data::new(&[ITEM; 40]));
    let (mut client, handle) = node.open(&data);
    let all = Report { is_all: true, ..Report::default() };
    for nonsense in [
        Report { unread: vec![(u32::MAX, ByteSize(0))], ..all.clone() },
        Report { unread: vec![(0, ByteSize(u64::MAX))], ..all.clone() },
        Report { released: vec![1 << 20], ..all.clone() },
    ] {
        let Err(ClientError::Refused(refusal)) = client.report(handle, nonsense) else {
            panic!("nonsense is believed")
        };
        assert_eq!(refusal.code, ErrorCode::Malformed, "{refusal}");
    }
    assert!(matches!(client.report(handle, all), Ok(Answer::Draw { .. })));
}

/// What was evicted is gone for good when the node says so: from the device, from memory, and after a restart.
#[test]
fn an_evicted_dataset_does_not_come_back() {
    let (node, data, other) = (node(), data(), Data::new(&[1000; 30]));
    let (mut client, handle) = node.open(&data);
    for blob in 0..300 {
        put(&mut client, handle, &data, blob);
    }
    let (mut neighbour, theirs) = node.open(&other);
    put(&mut neighbour, theirs, &other, 7);
    assert_eq!(client.evict(handle).unwrap(), 300 * ITEM as u64);
    let is_gone = |client: &mut Client, handle, blob| {
        get(client, handle, &data, blob, Duration::ZERO) == Err(GetAnswer::Miss)
    };
    assert!((0..300).all(|blob| is_gone(&mut client, handle, blob)));
    put(&mut client, handle, &data, 5);
    drop((client, neighbour));
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    assert!((0..300).all(|blob| blob == 5 || is_gone(&mut client, handle, blob)));
    let (mut neighbour, theirs) = node.open(&other);
    let kept = get(&mut neighbour, theirs, &other, 7, Duration::ZERO).unwrap();
    assert_eq!(kept, other.blobs[7], "somebody else's stays");
}

/// Promise 7: what a node finds when it is started again keeps its place, as far as there is room, when the first
/// job reports.
#[test]
fn what_is_found_after_a_restart_is_kept() {
    let (node, data) = (node(), data());
    let (mut client, handle) = node.open(&data);
    (0..300).for_each(|blob| put(&mut client, handle, &data, blob));
    drop(client);
    let node = node.restarted(|_| {});
    let (mut client, handle) = node.open(&data);
    let report = Report { is_all: true, gpus: 1, epoch_batches: 60, ..Report::default() };
    assert!(matches!(client.report(handle, report), Ok(Answer::Draw { .. })));
    let hits =
        (0..300).filter(|blob| get(&mut client, handle, &data, *blob, Duration::ZERO).is_ok());
    let hits = hits.count();
    assert!(hits >= 100, "{hits} of 300, of chunks that two thirds have room for");
    assert_eq!(node.service.counters().takeovers.get(), 1);
    assert_eq!(node.service.gauges().manager_term, 1);
}

/// How a dataset stands is told to those who have proved that they hold it, as JSON.
#[test]
fn a_dataset_is_explained() {
    let (node, data) = (node(), data());
    let (mut client, handle) = node.open(&data);
    let described = |client: &mut Client| -> Option<Description> {
        serde_json::from_slice(&client.explain(handle).unwrap()).unwrap()
    };
    assert_eq!(described(&mut client), None, "no job reports");
    let report = Report { is_all: true, gpus: 2, epoch_batches: 60, ..Report::default() };
    client.report(handle, report).unwrap();
    let said = described(&mut client).unwrap();
    assert!(said.why.contains("job test is not measured yet"), "{}", said.why);
    assert_eq!((said.pieces.len(), said.jobs.len(), said.jobs[0].gpus), (20, 1, 2));
    assert!(said.pieces.iter().any(|piece| *piece != Piece::Absent));
    assert_eq!((said.manager.as_str(), said.term), ("node", 1), "one node alone");
    client.evict(handle).unwrap();
    assert_eq!(described(&mut client), None);
    // The job is asked to tell all, and goes on.
    let drawn = Report { epoch_batches: 60, ..Report::default() };
    assert_eq!(client.report(handle, drawn).unwrap(), Answer::TellAll);
}

/// What was just put, and what is read again, comes from memory, and is what was put.
#[test]
fn what_is_hot_is_read_from_memory() {
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
    // After a restart memory is empty: while there is room, what is read comes in, and is there when it is read again.
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
