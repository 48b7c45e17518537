//! Fairness: one tenant's long operations do not stall another tenant's hits (promises 5 and 6).

use std::{
    hint::black_box,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use forebay_core::{
    Address, ByteSize, DatasetId, HalfChunk, NamespaceId,
    dataset::{DatasetIdHasher, chunking::Chunking},
    train::{
        benefit::{BatchTime, Mode},
        manager::{HalfChunkBytes, MeasuredBatch, Report},
    },
};
use forebay_wire::{BATCH_MAX, BlobLength, ErrorCode, Reply, Request};

use crate::{
    harness::{Data, Raw, get, put},
    two_tenants::{OURS, THEIRS, TenantSetup, Transport, refusal},
};

/// Connections of the hostile tenant.
const ATTACKERS: usize = 3;
/// Rows of its table.
const ROWS: u64 = 1 << 20;

/// The blob table of a dataset without content.
#[derive(Clone, Copy)]
struct Table {
    namespace: NamespaceId,
    /// Distinguishes the datasets.
    number: u64,
    rows: u64,
    chunking: Chunking,
}

impl Table {
    fn new(namespace: NamespaceId, number: u64, rows: u64) -> Self {
        let chunking = Chunking::for_dataset(ByteSize(rows), rows);
        Self { namespace, number, rows, chunking }
    }

    fn cut_into(self, chunks: u64) -> Self {
        Self { chunking: Chunking::into_chunks(chunks, self.rows).unwrap(), ..self }
    }

    fn row(&self, row: u64) -> BlobLength {
        let mut address = [0; 32];
        address[..8].copy_from_slice(&row.to_le_bytes());
        address[8..16].copy_from_slice(&self.number.to_le_bytes());
        BlobLength { address: Address::from_bytes(address), length: 1 }
    }

    fn id(&self) -> DatasetId {
        let mut id = DatasetIdHasher::new();
        for row in (0..self.rows).map(|row| self.row(row)) {
            id.push(&row.address, row.length);
        }
        id.finish(self.chunking)
    }

    /// Uploads the table over a connection. Returns its handle.
    fn upload(&self, raw: &mut Raw, dataset: DatasetId) -> u32 {
        let Chunking { .. } = self.chunking;
        for first in (0..self.rows).step_by(BATCH_MAX) {
            let page = (first..self.rows).take(BATCH_MAX).map(|row| self.row(row)).collect();
            let reply = raw.call(&Request::Upload {
                namespace: self.namespace,
                dataset,
                chunks: self.chunking.chunks(),
                partitions: self.chunking.partitions(),
                blobs: self.rows,
                first,
                page,
            });
            match reply {
                Reply::Uploaded { .. } => {}
                Reply::Open { handle } => return handle,
                other => panic!("{other:?}"),
            }
        }
        panic!("the table is not complete");
    }
}

/// A victim with a blob of 100 kB in memory.
struct Victim<'a> {
    setup: &'a TenantSetup,
    data: Data,
}

impl<'a> Victim<'a> {
    fn new(setup: &'a TenantSetup) -> Self {
        let data = Data::of(&setup.namespace(OURS), &[100_000; 4]);
        let mut client = setup.connect(&setup.by_token(OURS), "victim").unwrap();
        let handle = client.open(&data.digest).unwrap();
        put(&mut client, handle, &data, 0);
        Self { setup, data }
    }

    /// Times of hits.
    fn hits(&self, count: usize) -> Vec<Duration> {
        let mut client = self.setup.connect(&self.setup.by_token(OURS), "victim").unwrap();
        let handle = client.open(&self.data.digest).unwrap();
        let hit = |_| {
            let began = Instant::now();
            let bytes = get(&mut client, handle, &self.data, 0, Duration::ZERO);
            assert_eq!(bytes.unwrap(), self.data.blobs[0]);
            began.elapsed()
        };
        (0..count).map(hit).collect()
    }
}

/// Runs `attack` on every connection of the hostile tenant, again and again, while `victim` does
/// hits. Returns the hits' times and the number of operations that ended meanwhile.
fn beside(
    victim: &Victim<'_>,
    count: usize,
    attackers: Vec<Raw>,
    attack: impl Fn(usize, &mut Raw) + Sync,
) -> (Vec<Duration>, u64) {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (number, mut raw) in attackers.into_iter().enumerate() {
            let (stop, done, attack) = (&stop, &done, &attack);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    attack(number, &mut raw);
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        // All attacks are in progress.
        thread::sleep(Duration::from_millis(200));
        let before = done.load(Relaxed);
        let times = victim.hits(count);
        let ended = done.load(Relaxed) - before;
        stop.store(true, Relaxed);
        (times, ended)
    })
}

/// Connections of the hostile tenant with its table open.
fn attackers(setup: &TenantSetup, rows: u64) -> Vec<Raw> {
    let namespace = setup.namespace(THEIRS).id();
    let connections = (0..ATTACKERS as u64).map(|number| {
        let table = Table::new(namespace, number, rows);
        let mut raw = setup.raw(THEIRS);
        assert_eq!(table.upload(&mut raw, table.id()), 0);
        raw
    });
    connections.collect()
}

fn evict(_: usize, raw: &mut Raw) {
    let reply = raw.call(&Request::Evict { handle: 0 });
    assert_eq!(reply, Reply::Evicted { bytes: 0 });
}

fn scan(rows: u64) -> impl Fn(usize, &mut Raw) + Sync {
    move |_, raw| {
        let count = u32::try_from(rows).unwrap();
        let reply = raw.call(&Request::Presence { handle: 0, first: 0, count, since: 0 });
        assert!(matches!(reply, Reply::Presence { .. }), "{reply:?}");
    }
}

fn prove(namespace: NamespaceId, rows: u64) -> impl Fn(usize, &mut Raw) + Sync {
    let ids: Vec<DatasetId> =
        (0..ATTACKERS as u64).map(|number| Table::new(namespace, number, rows).id()).collect();
    move |number, raw| {
        let dataset = ids[number];
        raw.call(&Request::Open { namespace, dataset });
        let wrong = raw.call(&Request::Prove { dataset, proof: [7; 32] });
        assert_eq!(refusal(wrong).code, ErrorCode::Unknown);
    }
}

/// A tenant's evictions and scans of a million rows take half a second each. The hits of another
/// tenant do not wait for them: many hits are done in the time of one operation.
#[test]
fn hits_are_served_while_another_tenant_scans_its_tables() {
    const HITS: usize = 60;
    let setup = TenantSetup::with(Transport::Cleartext, |_| {});
    let victim = Victim::new(&setup);
    let (_, evictions) = beside(&victim, HITS, attackers(&setup, ROWS), evict);
    assert!(evictions <= HITS as u64 / 2, "{evictions} evictions during {HITS} hits");
    let (_, scans) = beside(&victim, HITS, attackers(&setup, ROWS), scan(ROWS));
    assert!(scans <= HITS as u64 / 2, "{scans} scans during {HITS} hits");
}

/// The documented limits: 65,536 mini-batches are served, 65,536 chunks are refused at once.
#[test]
fn the_largest_reports_are_served_or_refused_cheaply() {
    let setup = TenantSetup::with(Transport::Cleartext, |_| {});
    let namespace = setup.namespace(THEIRS).id();
    let mut raw = setup.raw(THEIRS);
    let fine = Table::new(namespace, 1, 1 << 16).cut_into(1 << 16);
    let handle = fine.upload(&mut raw, fine.id());
    let reply = raw.call(&Request::Report { handle, report: longest_report(0) });
    let refused = refusal(reply);
    assert_eq!(refused.code, ErrorCode::TooMuch);
    assert!(refused.text.contains("--chunks"), "{refused}");
    let coarse = Table::new(namespace, 2, 1 << 12).cut_into(512);
    let handle = coarse.upload(&mut raw, coarse.id());
    for _ in 0..3 {
        let reply = raw.call(&Request::Report { handle, report: longest_report(1024) });
        assert!(matches!(reply, Reply::Report(_)), "{reply:?}");
    }
}

/// The most mini-batches, with times that change the verdict again and again, and the most
/// half-chunks.
fn longest_report(half_chunks: u32) -> Report {
    let batch = |at: usize| {
        let mode = if (at / 200).is_multiple_of(2) { Mode::Miss } else { Mode::Rotating };
        let took = Duration::from_millis(10);
        let stalled = if (at / 400).is_multiple_of(2) { Duration::ZERO } else { took };
        MeasuredBatch { mode, time: BatchTime { took, stalled } }
    };
    let all = || HalfChunk::all(half_chunks).into_iter();
    Report {
        incarnation: 1,
        gpus: 1,
        epoch_batches: 1 << 20,
        is_full: true,
        unread: all().map(|half_chunk| HalfChunkBytes { half_chunk, bytes: ByteSize(0) }).collect(),
        released: all().collect(),
        filled: all().collect(),
        batches: (0..BATCH_MAX).map(batch).collect(),
        ..Report::default()
    }
}

/// Prints the times of hits beside each long operation, and beside threads that only burn CPU. Run
/// it on an idle machine: `cargo nextest run --release -p forebay-node --run-ignored only
/// --no-capture hits_beside`. `ROWS=67108864` uses the largest tables.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::print_stdout, reason = "the figures are the point of this test")]
fn measure_hits_beside_long_operations() {
    const HITS: usize = 2000;
    let rows = std::env::var("ROWS").map_or(ROWS, |rows| rows.parse().unwrap());
    let setup = TenantSetup::with(Transport::Cleartext, |_| {});
    let (victim, namespace) = (Victim::new(&setup), setup.namespace(THEIRS).id());
    let show = |what: &str, mut times: Vec<Duration>| {
        times.sort();
        let at = |share: usize| times[(times.len() * share / 1000).min(times.len() - 1)];
        println!(
            "{what:24} p50 {:>10.3?}  p99 {:>10.3?}  max {:>10.3?}",
            at(500),
            at(990),
            at(1000)
        );
    };
    show("alone", victim.hits(HITS));
    let none = |_: usize, _: &mut Raw| {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            black_box(0);
        }
    };
    let idle = || (0..ATTACKERS).map(|_| setup.raw(THEIRS)).collect();
    show("beside burning threads", beside(&victim, HITS, idle(), none).0);
    show("beside evictions", beside(&victim, HITS, attackers(&setup, rows), evict).0);
    show("beside scans", beside(&victim, HITS, attackers(&setup, rows), scan(rows)).0);
    let proofs = prove(namespace, rows);
    show("beside proofs", beside(&victim, HITS, attackers(&setup, rows), proofs).0);
    let upload = |number: usize, raw: &mut Raw| {
        let table = Table::new(namespace, 100 + number as u64, 1 << 18);
        // The id does not match, so that the last page is refused.
        for first in (0..table.rows).step_by(BATCH_MAX) {
            raw.call(&Request::Upload {
                namespace,
                dataset: DatasetId::from_bytes([u8::try_from(number).unwrap(); 32]),
                chunks: table.chunking.chunks(),
                partitions: table.chunking.partitions(),
                blobs: table.rows,
                first,
                page: (first..table.rows).take(BATCH_MAX).map(|row| table.row(row)).collect(),
            });
        }
    };
    show("beside uploads", beside(&victim, HITS, idle(), upload).0);
    let reporting = |count: u64, chunks: u64| -> Vec<Raw> {
        let open = |number: u64| {
            let mut raw = setup.raw(THEIRS);
            for dataset in 0..count {
                let table = Table::new(namespace, 1000 * (number + 1) + dataset, chunks);
                let table = table.cut_into(chunks);
                table.upload(&mut raw, table.id());
            }
            raw
        };
        (0..ATTACKERS as u64).map(open).collect()
    };
    let long = |_: usize, raw: &mut Raw| {
        raw.call(&Request::Report { handle: 0, report: longest_report(1024) });
    };
    show("beside long reports", beside(&victim, HITS, reporting(1, 512), long).0);
    let rejoin = |_: usize, raw: &mut Raw| {
        for handle in 0..60 {
            let report = Report {
                incarnation: u64::from(handle) + 1,
                is_full: true,
                epoch_batches: 100,
                ..Report::default()
            };
            raw.call(&Request::Report { handle, report });
            raw.call(&Request::Leave { handle });
        }
    };
    show("beside splits", beside(&victim, HITS, reporting(60, 64), rejoin).0);
}
