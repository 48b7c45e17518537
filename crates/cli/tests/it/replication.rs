//! Replication of keep sets: three nodes with a dataset larger than their capacity, jobs that
//! report, and a manager that is killed.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_client::{Client, ClientError, Handle, ReadInto};
use forebay_core::{
    BlobOrdinal, ByteSize, DatasetId, HalfChunk, ItemOrdinal, NodeName,
    cluster::{
        replication::{self, KeepSet, Term},
        ring::{Member, NodeList, Ring, Weight},
    },
    dataset::blob_table,
    train::{
        benefit::BatchTime,
        job::{HalfChunkSize, JobReporter, ReporterSettings},
        manager::ReportAnswer,
        sampler::{EpochPlan, HalfChunkMap, Sampler},
    },
};
use forebay_digest::Digest;
use forebay_wire::{
    ClaimAnswer, ErrorCode, GetAnswer, HEADER_SIZE, Header, Reply, Request, SentToken,
};
use rustix::process::Signal;

use crate::harness::{Running, Sandbox, content};

const OBJECTS: u64 = 1200;
const SIZE: usize = 32 << 10;
const BATCH: u32 = 32;
/// A node that does not answer within this time is not used for a [`PAUSE`].
const TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(1);
/// Longer than any condition takes on a busy machine.
const CONDITION_TIMEOUT: Duration = Duration::from_mins(2);
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three nodes, each with a capacity of less than a third of the dataset.
struct Cluster {
    sandbox: Sandbox,
    nodes: Vec<Option<Running>>,
}

impl Cluster {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        for at in 0..OBJECTS {
            sandbox.write(&format!("{at:05}"), &object(at));
        }
        sandbox.build("x.digest", &[]);
        let token = sandbox.path("cluster.token");
        fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let list: String = NAMES
            .iter()
            .map(|name| {
                let socket = sandbox.path(&format!("{name}/run/node.sock"));
                format!("[[nodes]]\nname = \"{name}\"\nendpoint = \"{}\"\n", socket.display())
            })
            .collect();
        for name in NAMES {
            fs::create_dir_all(sandbox.path(name)).unwrap();
            let [socket, directory] =
                ["run/node.sock", "cache"].map(|path| sandbox.path(&format!("{name}/{path}")));
            let text = format!(
                "name = \"{name}\"\nsocket = \"{}\"\ndirectory = \"{}\"\ncapacity = \"12MiB\"\n\
                 region_size = \"1MiB\"\ncluster_token = \"{}\"\n{list}",
                socket.display(),
                directory.display(),
                token.display()
            );
            fs::write(sandbox.path(&format!("{name}/node.toml")), text).unwrap();
        }
        let mut cluster = Self { sandbox, nodes: vec![None, None, None] };
        (0..NAMES.len()).for_each(|node| cluster.start(node));
        cluster
    }

    fn start(&mut self, node: usize) {
        let config = self.sandbox.path(&format!("{}/node.toml", NAMES[node]));
        let mut process =
            self.sandbox.forebay(["serve", "--config", config.to_str().unwrap()]).start();
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with('{'), "the node is ready: {line}");
        self.nodes[node] = Some(process);
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.sandbox.path(&format!("{}/run/node.sock", NAMES[node]))
    }

    /// Counters of a node; `None` if it does not answer.
    fn stats(&self, node: usize) -> Option<HashMap<String, u64>> {
        let mut client = Client::connect(self.socket(node), "test", TIMEOUT).ok()?;
        Some(client.stats().ok()?.into_iter().collect())
    }

    /// The node that manages the dataset, if exactly one of `nodes` does.
    fn manager(&self, nodes: &[usize]) -> Option<usize> {
        let is_manager =
            |node: &&usize| self.stats(**node).is_some_and(|stats| stats["datasets_managed"] == 1);
        let managers: Vec<&usize> = nodes.iter().filter(is_manager).collect();
        match managers[..] {
            [manager] => Some(*manager),
            _ => None,
        }
    }

    fn sum(&self, name: &str) -> u64 {
        (0..NAMES.len()).filter_map(|node| self.stats(node)).map(|stats| stats[name]).sum()
    }

    fn terms(&self) -> Vec<u64> {
        let stats = (0..NAMES.len()).filter_map(|node| self.stats(node));
        stats.map(|stats| stats["manager_term"]).collect()
    }
}

fn object(item: u64) -> Vec<u8> {
    content(item, SIZE)
}

fn wait_until<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = holds() {
            return found;
        }
        assert!(begun.elapsed() < CONDITION_TIMEOUT, "timed out: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn index(item: u64) -> usize {
    usize::try_from(item).unwrap()
}

/// A connection to one node, which reconnects when it is lost.
struct Link {
    socket: PathBuf,
    job: String,
    open: Option<(Client, Handle)>,
    not_before: Option<Instant>,
}

impl Link {
    /// Sends a request; `None` if the node does not answer.
    fn request<T>(
        &mut self,
        digest: &Digest,
        send: impl FnOnce(&mut Client, Handle) -> Result<T, ClientError>,
    ) -> Option<Result<T, ClientError>> {
        if self.open.is_none() {
            if self.not_before.is_some_and(|at| Instant::now() < at) {
                return None;
            }
            let connected = Client::connect(&self.socket, &self.job, TIMEOUT);
            let opened = connected.and_then(|mut client| {
                let handle = client.open(digest)?;
                Ok((client, handle))
            });
            self.not_before = opened.is_err().then(|| Instant::now() + PAUSE);
            self.open = opened.ok();
        }
        let (client, handle) = self.open.as_mut()?;
        let answer = send(client, *handle);
        if answer.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.open = None;
            self.not_before = Some(Instant::now() + PAUSE);
            return None;
        }
        Some(answer)
    }
}

/// A job and its agent in one process.
struct Job<'a> {
    digest: &'a Digest,
    links: Vec<Link>,
    owners: Vec<usize>,
    order: Vec<usize>,
    target: usize,
    layout: HalfChunkMap,
    half_chunks: Vec<HalfChunk>,
    reporter: JobReporter,
    started: Instant,
    origin: &'a AtomicU64,
}

impl<'a> Job<'a> {
    fn new(cluster: &Cluster, digest: &'a Digest, number: u64, origin: &'a AtomicU64) -> Self {
        let summary = digest.summary();
        let member = |node: usize| Member {
            name: NAMES[node].parse().unwrap(),
            endpoint: cluster.socket(node).into(),
            weight: Weight::default(),
            zone: None,
        };
        let list = NodeList::new((0..NAMES.len()).map(member).collect(), false).unwrap();
        let ring: Ring = list.ring(None).unwrap();
        let rows: Vec<blob_table::BlobRow> =
            forebay_digest::rows_of(digest).collect::<Result<_, _>>().unwrap();
        let half_chunks: Vec<HalfChunk> = (0..rows.len())
            .map(|at| summary.chunking.half_chunk_of((at * SIZE) as u64, ByteSize(summary.bytes)))
            .collect();
        let of = half_chunks.iter().copied();
        let layout =
            HalfChunkMap::new(summary.dataset, summary.chunking.half_chunks(), of).unwrap();
        let mut sizes = vec![HalfChunkSize::default(); summary.chunking.half_chunks() as usize];
        for half_chunk in &half_chunks {
            let HalfChunkSize { bytes, items } = &mut sizes[half_chunk.index()];
            (bytes.0, *items) = (bytes.0 + SIZE as u64, *items + 1);
        }
        let link = |node| Link {
            socket: cluster.socket(node),
            job: format!("job-{number}"),
            open: None,
            not_before: None,
        };
        let order = ring.order(&summary.dataset);
        Self {
            digest,
            links: (0..NAMES.len()).map(link).collect(),
            owners: rows.iter().map(|row| ring.owner(&row.address)).collect(),
            target: order[0],
            order,
            layout,
            half_chunks,
            reporter: JobReporter::new(ReporterSettings {
                incarnation: number,
                gpus: 1,
                epoch_batches: OBJECTS / u64::from(BATCH),
                half_chunks: sizes,
                probe_item: ByteSize(0),
            }),
            started: Instant::now(),
            origin,
        }
    }

    /// Whether each item is resident on its owner.
    fn present(&mut self) -> Vec<bool> {
        let bits: Vec<Option<Vec<u8>>> = self
            .links
            .iter_mut()
            .map(|link| {
                link.request(self.digest, |client, handle| client.presence(handle, OBJECTS))?.ok()
            })
            .collect();
        let is_resident = |(item, owner): (usize, &usize)| {
            bits[*owner].as_ref().is_some_and(|bits| bits[item / 8] >> (item % 8) & 1 == 1)
        };
        self.owners.iter().enumerate().map(is_resident).collect()
    }

    fn report(&mut self, sampler: &Sampler) {
        let present = self.present();
        let report = self
            .reporter
            .report(self.started.elapsed(), sampler, |item: ItemOrdinal| present[index(item.0)]);
        let link = &mut self.links[self.target];
        match link.request(self.digest, |client, handle| client.report(handle, report)) {
            Some(Ok(answer)) => {
                if let ReportAnswer::Redirect(manager) = &answer {
                    let is_it = |name: &&str| name.parse::<NodeName>().unwrap() == *manager;
                    self.target = NAMES.iter().position(is_it).unwrap();
                }
                self.reporter.on_answer(answer);
            }
            Some(Err(error)) => panic!("{error}"),
            None => {
                self.reporter.on_no_answer();
                let at = self.order.iter().position(|node| *node == self.target).unwrap();
                self.target = self.order[(at + 1) % self.order.len()];
            }
        }
        // The part of the agent: fetch missing items of loading half-chunks.
        let ahead: Vec<u64> = (0..OBJECTS)
            .filter(|item| self.reporter.loading().contains(&self.half_chunks[index(*item)]))
            .filter(|item| !present[index(*item)])
            .take(2 * BATCH as usize)
            .collect();
        for item in ahead {
            self.fetch(item, false);
        }
    }

    /// Reads an item from its owner or the origin, and checks its bytes.
    fn fetch(&mut self, item: u64, is_needed: bool) {
        let (digest, owner) = (self.digest, self.owners[index(item)]);
        for _ in 0..100 {
            let link = &mut self.links[owner];
            let claim =
                |client: &mut Client, handle| client.claim(handle, &[BlobOrdinal::new(item)]);
            // Promise 5: without the node, the item comes from the origin.
            let Some(claimed) = link.request(digest, claim) else { break };
            match claimed.unwrap()[0] {
                ClaimAnswer::Granted => {
                    self.origin.fetch_add(1, Relaxed);
                    let bytes = Bytes::from(object(item));
                    let put = link.request(digest, |client, handle| {
                        client.put(handle, BlobOrdinal::new(item), &bytes)
                    });
                    if matches!(put, Some(Err(_))) {
                        // Its half-chunk has left the keep set.
                        link.request(digest, |client, handle| {
                            client.release(handle, &[BlobOrdinal::new(item)])
                        });
                    }
                    return;
                }
                ClaimAnswer::Uncached => break,
                _ if !is_needed => return,
                _ => {
                    let mut bytes = vec![0; SIZE];
                    let got = link.request(digest, |client, handle| {
                        let wanted =
                            ReadInto { blob: BlobOrdinal::new(item), offset: 0, into: &mut bytes };
                        client.get(handle, Duration::from_millis(500), &mut [wanted])
                    });
                    if let Some(Ok(answers)) = got
                        && answers[0] == GetAnswer::Hit
                    {
                        return assert_eq!(bytes, object(item), "item {item} (promise 1)");
                    }
                }
            }
        }
        self.origin.fetch_add(u64::from(is_needed), Relaxed);
    }

    /// Reads one epoch: every item exactly once.
    fn epoch(&mut self, epoch: u64, seed: u64) {
        let mut sampler = Sampler::new(&self.layout, EpochPlan::new(seed, epoch, BATCH)).unwrap();
        let mut times: HashMap<u64, u32> = HashMap::new();
        self.reporter.begin_epoch(epoch);
        loop {
            if self.reporter.is_due(self.started.elapsed(), &sampler) {
                self.report(&sampler);
            }
            let draw_set = self.reporter.batch_draw_set(BATCH.into(), &sampler);
            sampler.set_draw_set(&draw_set).unwrap();
            let (present, is_probe) = (self.present(), self.reporter.take_probe_batch(1));
            let is_resident = |item: ItemOrdinal| !is_probe && present[index(item.0)];
            let began = Instant::now();
            let Some(batch) = sampler.draw(is_resident) else { break };
            for item in batch.items() {
                *times.entry(item.0).or_default() += 1;
                self.fetch(item.0, true);
            }
            let stalled = began.elapsed();
            let half_chunks = batch.items().iter().map(|item| self.half_chunks[index(item.0)]);
            let all_resident = batch.items().iter().all(|item| present[index(item.0)]);
            let mode = self.reporter.mode(half_chunks, all_resident);
            let released = sampler.on_yielded(batch.number()).unwrap();
            self.reporter.on_released(released);
            thread::sleep(Duration::from_millis(5));
            let bytes = batch.items().len() as u64 * SIZE as u64;
            self.reporter.on_computed(mode, bytes, BatchTime { took: began.elapsed(), stalled });
        }
        assert_eq!(times.len() as u64, OBJECTS, "every item (promise 2)");
        assert!(times.values().all(|times| *times == 1), "once");
    }
}

/// Sets a flag on drop.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The node of the manager is killed during rotation: one new term wins, and rotation continues.
/// The node restarts as a follower. Then its successor is stopped, and steps down when it
/// continues. Every job reads every item exactly once.
#[test]
fn a_killed_manager_is_replaced_during_rotation() {
    let mut cluster = Cluster::new();
    let digest = forebay_digest::open(&cluster.sandbox.out("x.digest")).unwrap().digest.clone();
    let (origin, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let epochs = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..3 {
            let (origin, over, epochs) = (&origin, &over, &epochs);
            let mut job = Job::new(&cluster, &digest, number, origin);
            scope.spawn(move || {
                for epoch in 0.. {
                    job.epoch(epoch, number);
                    epochs.fetch_add(1, Relaxed);
                    if over.load(Relaxed) {
                        return;
                    }
                }
            });
        }
        // Ends the jobs also after a panic.
        let _ending = SetOnDrop(&over);
        let all = [0, 1, 2];
        let first = wait_until("a node manages the dataset", || cluster.manager(&all));
        let loaded = |cluster: &Cluster| cluster.sum("chunks_loaded");
        wait_until("chunks rotate", || (loaded(&cluster) > 8).then_some(()));

        cluster.nodes[first].as_ref().unwrap().signal(Signal::KILL);
        drop(cluster.nodes[first].take());
        let others: Vec<usize> = all.into_iter().filter(|node| *node != first).collect();
        let second = wait_until("another node takes over", || cluster.manager(&others));
        let before = loaded(&cluster);
        wait_until("rotation continues", || (loaded(&cluster) > before + 2).then_some(()));
        assert!(cluster.stats(second).unwrap()["takeovers"] >= 1);

        cluster.start(first);
        wait_until("the restarted node follows", || {
            let terms = cluster.terms();
            (terms.len() == 3 && terms.iter().all(|term| *term == terms[0] && *term >= 2))
                .then_some(())
        });
        assert_eq!(cluster.manager(&all), Some(second), "the manager does not change");

        cluster.nodes[second].as_ref().unwrap().signal(Signal::STOP);
        let others: Vec<usize> = all.into_iter().filter(|node| *node != second).collect();
        let third = wait_until("another node takes over again", || cluster.manager(&others));
        cluster.nodes[second].as_ref().unwrap().signal(Signal::CONT);
        // Its orders are rejected, or it hears of its successor first.
        wait_until("the stopped manager steps down", || {
            (cluster.manager(&all) == Some(third)).then_some(())
        });
        let before = loaded(&cluster);
        wait_until("rotation continues", || (loaded(&cluster) > before + 2).then_some(()));

        let mut client = Client::connect(cluster.socket(second), "test", TIMEOUT).unwrap();
        let handle = client.open(&digest).unwrap();
        let description: serde_json::Value =
            serde_json::from_slice(&client.explain(handle).unwrap()).unwrap();
        assert_eq!(description["manager"], NAMES[third], "{description}");
        assert!(description["term"].as_u64().unwrap() >= 3, "{description}");
        // Any node shows the description of the manager.
        let explain = |node: usize| {
            let socket = cluster.socket(node);
            let args =
                ["explain", "x.digest", "--format", "json", "--node", socket.to_str().unwrap()];
            cluster.sandbox.forebay(args).succeeds().json()
        };
        let explained = explain(second);
        assert_eq!(
            (&explained["node"], &explained["nodes"]),
            (&NAMES[second].into(), &3.into()),
            "{explained}"
        );
        assert_eq!(explained["manager"], NAMES[third], "{explained}");
        assert!(
            !explained["jobs"].as_array().unwrap().is_empty(),
            "the manager has its jobs: {explained}"
        );
    });
    assert!(epochs.load(Relaxed) >= 3);
}

/// Promise 4: only a holder of the cluster token may send cluster messages. To any other client,
/// also one with the name of a node, the request is unknown.
#[test]
fn cluster_messages_need_the_cluster_token() {
    let cluster = Cluster::new();
    let mut client = Client::connect(cluster.socket(0), "test", TIMEOUT).unwrap();
    wait_until("the nodes reach each other", || {
        let stats: HashMap<String, u64> = client.stats().unwrap().into_iter().collect();
        (stats["peers_configured"] == 2 && stats["peers_reachable"] == 2).then_some(())
    });
    let tell = Request::Cluster(replication::Request::Replicate {
        dataset: DatasetId::from_bytes([7; 32]),
        keep_set: KeepSet {
            term: Term { number: 1 << 40, manager: NAMES[1].parse().unwrap(), incarnation: 1 },
            version: 1,
            kept: Vec::new(),
        },
    });
    for token in ["", "fedcba9876543210fedcba9876543210"] {
        let token = SentToken(token.into());
        let job = NAMES[1].to_owned();
        let hello = Request::Hello { version_min: 1, version_max: 1, job, token };
        let mut socket = UnixStream::connect(cluster.socket(0)).unwrap();
        socket.set_read_timeout(Some(CONDITION_TIMEOUT)).unwrap();
        assert!(matches!(exchange(&mut socket, &hello), Reply::Hello { .. }));
        let Reply::Error(refusal) = exchange(&mut socket, &tell) else {
            panic!("the message was accepted")
        };
        assert_eq!(refusal.code, ErrorCode::Malformed, "{refusal}");
        assert!(refusal.text.contains("the kind 24 is unknown"), "{refusal}");
    }
    assert_eq!(cluster.terms(), [0, 0, 0], "no node has followed the order");
}

fn exchange(socket: &mut UnixStream, request: &Request) -> Reply {
    socket.write_all(&request.encode(1).to_bytes()).unwrap();
    let mut header = [0; HEADER_SIZE];
    socket.read_exact(&mut header).unwrap();
    let header = Header::decode(&header).unwrap();
    let mut body = vec![0; header.body_size];
    socket.read_exact(&mut body).unwrap();
    Reply::decode(&header, &body.into()).unwrap()
}
