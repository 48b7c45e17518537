//! Three nodes that share a dataset larger than all of them, jobs that report, and a manager that dies.

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
use forebay_client::{Client, ClientError, Handle, Wanted};
use forebay_core::{
    ByteSize, DatasetId, ItemOrdinal, NodeName,
    chunking::ChunkOrdinal,
    council::{self, Places, Term},
    digest::Digest,
    manager::{Answer, Membership},
    ring::{Member, NodeList, Ring, Weight},
    sampler::{Layout, Plan, Sampler},
    table,
};
use forebay_wire::{
    ClaimAnswer, ErrorCode, GetAnswer, HEADER_SIZE, Header, Reply, Request, SentToken,
};
use rustix::process::Signal;

use crate::harness::{Place, Running, content};

const OBJECTS: u64 = 1200;
const SIZE: usize = 32 << 10;
const BATCH: u32 = 32;
/// A node that does not answer for so long is not asked for a while.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(1);
/// Whatever is waited for on a busy machine happens within this.
const LONG: Duration = Duration::from_mins(2);
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Three nodes, each with room for less than a third of the dataset.
struct Cluster {
    place: Place,
    nodes: Vec<Option<Running>>,
}

impl Cluster {
    fn new() -> Self {
        let place = Place::new();
        for at in 0..OBJECTS {
            place.write(&format!("{at:05}"), &object(at));
        }
        place.build("x.digest", &[]);
        let token = place.path("cluster.token");
        fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let list: String = NAMES
            .iter()
            .map(|name| {
                let socket = place.path(&format!("{name}/run/node.sock"));
                format!("[[nodes]]\nname = \"{name}\"\nendpoint = \"{}\"\n", socket.display())
            })
            .collect();
        for name in NAMES {
            fs::create_dir_all(place.path(name)).unwrap();
            let [socket, directory] =
                ["run/node.sock", "cache"].map(|path| place.path(&format!("{name}/{path}")));
            let text = format!(
                "name = \"{name}\"\nsocket = \"{}\"\ndirectory = \"{}\"\ncapacity = \"12MiB\"\n\
                 region_size = \"1MiB\"\ncluster_token = \"{}\"\n{list}",
                socket.display(),
                directory.display(),
                token.display()
            );
            fs::write(place.path(&format!("{name}/node.toml")), text).unwrap();
        }
        let mut cluster = Self { place, nodes: vec![None, None, None] };
        (0..NAMES.len()).for_each(|node| cluster.start(node));
        cluster
    }

    fn start(&mut self, node: usize) {
        let config = self.place.path(&format!("{}/node.toml", NAMES[node]));
        let mut process =
            self.place.forebay(["serve", "--config", config.to_str().unwrap()]).start();
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with('{'), "it starts: {line}");
        self.nodes[node] = Some(process);
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.place.path(&format!("{}/run/node.sock", NAMES[node]))
    }

    /// What a node has counted; nothing, if it does not answer.
    fn stats(&self, node: usize) -> Option<HashMap<String, u64>> {
        let mut client = Client::connect(self.socket(node), "test", PATIENCE).ok()?;
        Some(client.stats().ok()?.into_iter().collect())
    }

    /// The node that manages the dataset, if one of those does.
    fn manager(&self, nodes: &[usize]) -> Option<usize> {
        let is_it =
            |node: &&usize| self.stats(**node).is_some_and(|stats| stats["datasets_managed"] == 1);
        let managers: Vec<&usize> = nodes.iter().filter(is_it).collect();
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

fn until<T>(what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = holds() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn index(item: u64) -> usize {
    usize::try_from(item).unwrap()
}

/// A connection to one node, made again when it is lost.
struct Link {
    socket: PathBuf,
    job: String,
    open: Option<(Client, Handle)>,
    not_before: Option<Instant>,
}

impl Link {
    /// Asks the node something; nothing, if it does not answer.
    fn ask<T>(
        &mut self,
        digest: &Digest,
        asks: impl FnOnce(&mut Client, Handle) -> Result<T, ClientError>,
    ) -> Option<Result<T, ClientError>> {
        if self.open.is_none() {
            if self.not_before.is_some_and(|at| Instant::now() < at) {
                return None;
            }
            let connected = Client::connect(&self.socket, &self.job, PATIENCE);
            let opened = connected.and_then(|mut client| {
                let handle = client.open(digest)?;
                Ok((client, handle))
            });
            self.not_before = opened.is_err().then(|| Instant::now() + PAUSE);
            self.open = opened.ok();
        }
        let (client, handle) = self.open.as_mut()?;
        let answer = asks(client, *handle);
        if answer.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.open = None;
            self.not_before = Some(Instant::now() + PAUSE);
            return None;
        }
        Some(answer)
    }
}

/// A job and its agent in one.
struct Job<'a> {
    digest: &'a Digest,
    links: Vec<Link>,
    owners: Vec<usize>,
    order: Vec<usize>,
    target: usize,
    layout: Layout,
    pieces: Vec<u32>,
    membership: Membership,
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
        let rows: Vec<table::Row> = table::rows_of(digest).collect::<Result<_, _>>().unwrap();
        let pieces: Vec<u32> = (0..rows.len())
            .map(|at| summary.chunking.piece_of((at * SIZE) as u64, ByteSize(summary.bytes)))
            .collect();
        let of = pieces.iter().map(|piece| ChunkOrdinal(*piece));
        let layout = Layout::new(summary.dataset, summary.chunking.pieces(), of).unwrap();
        let mut sizes = vec![(ByteSize(0), 0); summary.chunking.pieces() as usize];
        for piece in &pieces {
            let (bytes, items) = &mut sizes[*piece as usize];
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
            pieces,
            membership: Membership::new(number, 1, OBJECTS / u64::from(BATCH), sizes),
            started: Instant::now(),
            origin,
        }
    }

    /// Which items are resident, each on its owner.
    fn present(&mut self) -> Vec<bool> {
        let bits: Vec<Option<Vec<u8>>> = self
            .links
            .iter_mut()
            .map(|link| {
                link.ask(self.digest, |client, handle| client.presence(handle, OBJECTS))?.ok()
            })
            .collect();
        let is_there = |(item, owner): (usize, &usize)| {
            bits[*owner].as_ref().is_some_and(|bits| bits[item / 8] >> (item % 8) & 1 == 1)
        };
        self.owners.iter().enumerate().map(is_there).collect()
    }

    fn report(&mut self, sampler: &Sampler) {
        let present = self.present();
        let report =
            self.membership.report(self.started.elapsed(), sampler, |item: ItemOrdinal| {
                present[index(item.0)]
            });
        let link = &mut self.links[self.target];
        match link.ask(self.digest, |client, handle| client.report(handle, report)) {
            Some(Ok(answer)) => {
                if let Answer::Elsewhere(manager) = &answer {
                    let is_it = |name: &&str| name.parse::<NodeName>().unwrap() == *manager;
                    self.target = NAMES.iter().position(is_it).unwrap();
                }
                self.membership.answered(answer);
            }
            Some(Err(error)) => panic!("{error}"),
            None => {
                self.membership.unanswered();
                let at = self.order.iter().position(|node| *node == self.target).unwrap();
                self.target = self.order[(at + 1) % self.order.len()];
            }
        }
        // The agent's work: what is needed of what is on its way.
        let ahead: Vec<u64> = (0..OBJECTS)
            .filter(|item| self.membership.loading().contains(&self.pieces[index(*item)]))
            .filter(|item| !present[index(*item)])
            .take(2 * BATCH as usize)
            .collect();
        for item in ahead {
            self.fetch(item, false);
        }
    }

    /// Reads an item, whoever has it, and checks its bytes.
    fn fetch(&mut self, item: u64, is_needed: bool) {
        let (digest, owner) = (self.digest, self.owners[index(item)]);
        for _ in 0..100 {
            let link = &mut self.links[owner];
            let claim = |client: &mut Client, handle| client.claim(handle, &[item]);
            // Promise 5: without the node, the origin.
            let Some(claimed) = link.ask(digest, claim) else { break };
            match claimed.unwrap()[0] {
                ClaimAnswer::Granted => {
                    self.origin.fetch_add(1, Relaxed);
                    let bytes = Bytes::from(object(item));
                    let put = link.ask(digest, |client, handle| client.put(handle, item, &bytes));
                    if matches!(put, Some(Err(_))) {
                        // It lost its place meanwhile.
                        link.ask(digest, |client, handle| client.release(handle, &[item]));
                    }
                    return;
                }
                ClaimAnswer::Outside => break,
                _ if !is_needed => return,
                _ => {
                    let mut bytes = vec![0; SIZE];
                    let got = link.ask(digest, |client, handle| {
                        let wanted = Wanted { blob: item, offset: 0, into: &mut bytes };
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

    /// One epoch: every item once, whatever comes and goes.
    fn epoch(&mut self, epoch: u64, seed: u64) {
        let mut sampler = Sampler::new(&self.layout, Plan::new(seed, epoch, BATCH)).unwrap();
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
            let is_there = |item: ItemOrdinal| !is_forced && present[index(item.0)];
            let began = Instant::now();
            let Some(batch) = sampler.draw(is_there) else { break };
            for item in batch.items() {
                *times.entry(item.0).or_default() += 1;
                self.fetch(item.0, true);
            }
            let stalled = began.elapsed();
            let pieces = batch.items().iter().map(|item| self.pieces[index(item.0)]);
            let all_there = batch.items().iter().all(|item| present[index(item.0)]);
            let mode = self.membership.mode(pieces, all_there);
            let released = sampler.yielded(batch.number()).unwrap();
            self.membership.released(released);
            thread::sleep(Duration::from_millis(5));
            let bytes = batch.items().len() as u64 * SIZE as u64;
            self.membership.computed(mode, bytes, [began.elapsed(), stalled]);
        }
        assert_eq!(times.len() as u64, OBJECTS, "every item (promise 2)");
        assert!(times.values().all(|times| *times == 1), "once");
    }
}

/// Says that it is over when it is dropped.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// The manager's node is killed in mid-rotation: one term wins, and rotation goes on; the node returns and obeys.
/// Then its successor is stopped for a while, and steps down when it wakes up. Meanwhile every job is given
/// every item exactly once.
#[test]
fn a_manager_that_dies_is_replaced_in_mid_rotation() {
    let mut cluster = Cluster::new();
    let digest = forebay_digest::open(&cluster.place.out("x.digest")).unwrap().digest.clone();
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
        // Also if something is wrong here: the jobs end.
        let _ending = Ending(&over);
        let all = [0, 1, 2];
        let first = until("somebody manages", || cluster.manager(&all));
        let loaded = |cluster: &Cluster| cluster.sum("chunks_loaded");
        until("chunks rotate", || (loaded(&cluster) > 8).then_some(()));

        cluster.nodes[first].as_ref().unwrap().signal(Signal::KILL);
        drop(cluster.nodes[first].take());
        let others: Vec<usize> = all.into_iter().filter(|node| *node != first).collect();
        let second = until("another takes over", || cluster.manager(&others));
        let before = loaded(&cluster);
        until("rotation goes on", || (loaded(&cluster) > before + 2).then_some(()));
        assert!(cluster.stats(second).unwrap()["takeovers"] >= 1);

        cluster.start(first);
        until("it obeys", || {
            let terms = cluster.terms();
            (terms.len() == 3 && terms.iter().all(|term| *term == terms[0] && *term >= 2))
                .then_some(())
        });
        assert_eq!(cluster.manager(&all), Some(second), "nobody takes it back");

        cluster.nodes[second].as_ref().unwrap().signal(Signal::STOP);
        let others: Vec<usize> = all.into_iter().filter(|node| *node != second).collect();
        let third = until("another takes over again", || cluster.manager(&others));
        cluster.nodes[second].as_ref().unwrap().signal(Signal::CONT);
        // Refused, or told of its successor before it could say anything.
        until("it steps down", || (cluster.manager(&all) == Some(third)).then_some(()));
        let before = loaded(&cluster);
        until("rotation goes on", || (loaded(&cluster) > before + 2).then_some(()));

        let mut client = Client::connect(cluster.socket(second), "test", PATIENCE).unwrap();
        let handle = client.open(&digest).unwrap();
        let said: serde_json::Value =
            serde_json::from_slice(&client.explain(handle).unwrap()).unwrap();
        assert_eq!(said["manager"], NAMES[third], "{said}");
        assert!(said["term"].as_u64().unwrap() >= 3, "{said}");
        // Whichever node is asked, it is the manager's word that is shown.
        let explain = |node: usize| {
            let socket = cluster.socket(node);
            let args =
                ["explain", "x.digest", "--format", "json", "--node", socket.to_str().unwrap()];
            cluster.place.forebay(args).succeeds().json()
        };
        let told = explain(second);
        assert_eq!((&told["node"], &told["nodes"]), (&NAMES[second].into(), &3.into()), "{told}");
        assert_eq!(told["manager"], NAMES[third], "{told}");
        assert!(!told["jobs"].as_array().unwrap().is_empty(), "the manager knows its jobs: {told}");
    });
    assert!(epochs.load(Relaxed) >= 3);
}

/// Promise 4: nobody but those who hold the cluster's token may say what nodes say. To others, also to those who
/// call themselves a node, there is no such request.
#[test]
fn strangers_have_no_say() {
    let cluster = Cluster::new();
    let mut client = Client::connect(cluster.socket(0), "test", PATIENCE).unwrap();
    until("the nodes reach each other", || {
        let stats: HashMap<String, u64> = client.stats().unwrap().into_iter().collect();
        (stats["peers_named"] == 2 && stats["peers_reachable"] == 2).then_some(())
    });
    let tell = Request::Council(council::Request::Tell {
        dataset: DatasetId::from_bytes([7; 32]),
        places: Places {
            term: Term { number: 1 << 40, manager: NAMES[1].parse().unwrap(), life: 1 },
            version: 1,
            kept: Vec::new(),
        },
    });
    for token in ["", "fedcba9876543210fedcba9876543210"] {
        let token = SentToken(token.into());
        let job = NAMES[1].to_owned();
        let hello = Request::Hello { version_min: 1, version_max: 1, job, token };
        let mut socket = UnixStream::connect(cluster.socket(0)).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        assert!(matches!(exchange(&mut socket, &hello), Reply::Hello { .. }));
        let Reply::Error(refusal) = exchange(&mut socket, &tell) else { panic!("it is believed") };
        assert_eq!(refusal.code, ErrorCode::Malformed, "{refusal}");
        assert!(refusal.text.contains("the kind 24 is unknown"), "{refusal}");
    }
    assert_eq!(cluster.terms(), [0, 0, 0], "nobody has obeyed");
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
