//! Claims at scale: many processes want the same cold dataset at once, and some of them die in the middle.
//!
//! 2,000 blobs in an ordinary run, and as many as `FOREBAY_CLAIM_BLOBS` says.

use std::{
    array, mem,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use forebay_client::Reader;
use forebay_core::ItemOrdinal;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    harness::{Running, content, until_within},
    serving::Scene,
};

const PROCESSES: usize = 16;
const SIZE: usize = 200;
const BATCH: usize = 64;
/// An origin so slow that whoever is stopped or killed early surely holds claims.
const SLOW: Duration = Duration::from_millis(250);
/// Nobody waits longer, with however many blobs.
const PATIENCE: Duration = Duration::from_mins(10);
const STALL_MAX: Duration = Duration::from_mins(4);

fn blobs() -> usize {
    std::env::var("FOREBAY_CLAIM_BLOBS").map_or(2000, |text| text.parse().expect("a number"))
}

/// One job: its agent, which may be killed, and how far it is.
struct Job {
    socket: PathBuf,
    agent: Mutex<Option<Running>>,
    read: AtomicU64,
}

/// What the origin, the node and the agents have counted in the end.
#[derive(Debug)]
struct Sums {
    blobs: u64,
    fetches: u64,
    fetched_once: bool,
    node: Value,
    agents: [u64; 3],
}

impl Sums {
    fn node(&self, name: &str) -> u64 {
        self.node[name].as_u64().unwrap()
    }

    /// Claims that were granted and came to nothing.
    fn lost(&self) -> u64 {
        ["claims_expired", "claims_abandoned", "claims_released"]
            .map(|name| self.node(name))
            .iter()
            .sum()
    }

    /// More than this is not fetched if so many agents have ended before they could tell all they did: what each
    /// of them did for its last batch nobody knows.
    fn fetches_max(&self, ended: usize) -> u64 {
        let [fallbacks, outside, _] = self.agents;
        self.blobs + self.lost() + fallbacks + outside + (ended * BATCH) as u64
    }
}

/// Every job reads everything once, in an order of its own, and checks it; `meanwhile` may do harm.
#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn run(lease: &str, latency: Duration, meanwhile: impl FnOnce(&Scene, &[Job])) -> Sums {
    let count = blobs();
    let scene = Scene::of(count, SIZE, |config| config.latency = latency);
    let _node = scene.node(&["--capacity", "128MB", "--lease", lease]);
    let jobs: Vec<Job> = (0..PROCESSES)
        .map(|number| {
            let (agent, socket) = scene.agent(&format!("job{number}"), true);
            Job { socket, agent: Mutex::new(Some(agent)), read: AtomicU64::new(0) }
        })
        .collect();
    let told: Vec<[u64; 3]> = thread::scope(|scope| {
        let (scene, jobs) = (&scene, &jobs);
        let readers: Vec<_> = (0..PROCESSES)
            .map(|number| scope.spawn(move || read_all(scene, &jobs[number], number, count)))
            .collect();
        meanwhile(scene, jobs);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    until_within(PATIENCE, "all claims have ended", || scene.status()["claims_held"] == 0);
    let objects = scene.origin.counters().objects;
    let sums = Sums {
        blobs: count as u64,
        fetches: objects.values().map(|object| object.gets).sum(),
        fetched_once: objects.values().all(|object| object.gets == 1),
        node: scene.status(),
        agents: told.into_iter().fold([0; 3], sum),
    };
    assert_eq!(objects.len(), count, "every object was fetched");
    let granted = sums.node("claims_fulfilled") + sums.lost() + sums.node("claims_held");
    assert_eq!(sums.node("claims_granted"), granted, "every claim has come to a counted end");
    println!(
        "{count} blobs, {PROCESSES} agents: {} fetches; {} granted, {} stored, {} expired, {} abandoned, {} \
         released; {} fallbacks, {} outside",
        sums.fetches,
        sums.node("claims_granted"),
        sums.node("puts"),
        sums.node("claims_expired"),
        sums.node("claims_abandoned"),
        sums.node("claims_released"),
        sums.agents[0],
        sums.agents[1],
    );
    sums
}

/// Returns the fallbacks of the job's agents, what they read outside, and their fetches. One that is killed has
/// told what it did up to its last batch but one.
fn read_all(scene: &Scene, job: &Job, number: usize, count: usize) -> [u64; 3] {
    let mut order: Vec<u64> = (0..count as u64).collect();
    fastrand::Rng::with_seed(number as u64).shuffle(&mut order);
    // Items are in the order of their names.
    let mut objects: Vec<usize> = (0..count).collect();
    objects.sort_by_key(|at| format!("item {at:03}.bin"));
    let mut reader = scene.reader(&job.socket);
    let (mut ended, mut last) = ([0; 3], [0; 3]);
    for batch in order.chunks(BATCH) {
        let items: Vec<ItemOrdinal> = batch.iter().copied().map(ItemOrdinal::new).collect();
        let contents = loop {
            if let Ok(contents) = reader.get(&items) {
                break contents;
            }
            // Its agent was killed, or is hung: a job starts another.
            revive(scene, job, number);
            ended = sum(ended, mem::take(&mut last));
        };
        last = told(&mut reader).unwrap_or(last);
        for (item, bytes) in batch.iter().zip(contents) {
            let object = objects[usize::try_from(*item).unwrap()];
            assert!(bytes == content(object as u64, SIZE + object % 7), "item {item}");
        }
        job.read.fetch_add(batch.len() as u64, Relaxed);
    }
    sum(ended, last)
}

fn sum(a: [u64; 3], b: [u64; 3]) -> [u64; 3] {
    array::from_fn(|at| a[at] + b[at])
}

fn told(reader: &mut Reader) -> Option<[u64; 3]> {
    let stats = reader.agent_stats().ok()?;
    let value = |name: &str| stats.iter().find(|(n, _)| n == name).unwrap().1;
    Some(["agent_fallbacks", "agent_outside", "agent_origin_fetches"].map(value))
}

fn revive(scene: &Scene, job: &Job, number: usize) {
    let mut agent = job.agent.lock().unwrap();
    // Killed, if it still runs.
    *agent = None;
    *agent = Some(scene.agent(&format!("job{number}"), true).0);
}

fn signal(job: &Job, signal: Signal) {
    job.agent.lock().unwrap().as_ref().unwrap().signal(signal);
}

/// How much of the origin has been read.
fn fetched(scene: &Scene) -> u64 {
    scene.origin.counters().requests.get
}

/// Promise 3: a blob that is resident, or claimed by someone who keeps renewing the claim, is not fetched again.
/// Counted exceptions, each with its own metric.
#[test]
fn sixteen_processes_fetch_every_blob_once() {
    let sums = run("60s", Duration::ZERO, |_, _| {});
    let [fallbacks, outside, fetches] = sums.agents;
    assert_eq!(sums.fetches, fetches, "{sums:?}");
    // What was claimed and stored is a fetch, and all others are counted exceptions; a claim that was granted too
    // late is none.
    let least = sums.node("claims_fulfilled") + fallbacks + outside;
    assert!((least..=least + sums.lost()).contains(&sums.fetches), "{sums:?}");
    assert!(sums.fetched_once || sums.fetches > sums.blobs, "{sums:?}");
}

/// The same with holders that are killed while they fetch: their claims pass to others at once.
#[test]
fn killed_holders_pass_their_claims_on() {
    let total = blobs() as u64;
    let sums = run("60s", SLOW, |scene, jobs| {
        for (victim, part) in [(3, 1), (7, 2), (11, 3), (13, 4)] {
            let due = || fetched(scene) * 6 >= total * part || fetched(scene) >= total;
            until_within(PATIENCE, "enough is fetched", due);
            signal(&jobs[victim], Signal::KILL);
        }
    });
    // On a machine so busy that they took their node for hung, the killed ones may have held nothing.
    assert!(sums.node("claims_abandoned") > 0 || sums.agents[0] > 0, "{sums:?}");
    // A holder may die after its claim was granted and before its request was sent.
    assert!((sums.blobs..=sums.fetches_max(4)).contains(&sums.fetches), "{sums:?}");
    // Stored once, unless nobody has reached the node with it.
    let stored = sums.node("puts");
    assert!(stored <= sums.blobs && stored + sums.agents[0] >= sums.blobs, "{sums:?}");
}

/// And with holders that are stopped: within the lease others have their turn. Who comes back has lost them. The
/// lease is shorter than it takes a job to find out that its agent hangs, and to kill it.
#[test]
fn stalled_holders_lose_their_claims() {
    let sums = run("1s", SLOW, |scene, jobs| {
        until_within(PATIENCE, "something is fetched", || fetched(scene) * 20 >= blobs() as u64);
        signal(&jobs[5], Signal::STOP);
        // All others finish without it.
        let others = jobs.iter().enumerate().filter(|(number, _)| *number != 5);
        let others: Vec<&Job> = others.map(|(_, job)| job).collect();
        until_within(STALL_MAX, "the others are done", || {
            others.iter().all(|job| job.read.load(Relaxed) == blobs() as u64)
        });
        signal(&jobs[5], Signal::CONT);
    });
    assert!(sums.node("claims_expired") > 0 || sums.agents[0] > 0, "{sums:?}");
    assert!((sums.blobs..=sums.fetches_max(1)).contains(&sums.fetches), "{sums:?}");
}
