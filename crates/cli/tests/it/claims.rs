//! Claims at scale: many processes read the same cold dataset, and some of them are killed.
//!
//! There are 2,000 blobs, or `FOREBAY_CLAIM_BLOBS`.

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
    harness::{Running, content, wait_until_within},
    node_and_agent::Setup,
};

const PROCESSES: usize = 16;
const SIZE: usize = 200;
const BATCH: usize = 64;
/// Latency of the origin: long enough that a stopped or killed agent holds claims.
const SLOW: Duration = Duration::from_millis(250);
/// Longer than any test takes, with any number of blobs.
const TIMEOUT: Duration = Duration::from_mins(10);
const STALL_MAX: Duration = Duration::from_mins(4);

fn blobs() -> usize {
    std::env::var("FOREBAY_CLAIM_BLOBS").map_or(2000, |text| text.parse().expect("a number"))
}

/// One job: its agent, which may be killed, and its progress.
struct Job {
    socket: PathBuf,
    agent: Mutex<Option<Running>>,
    read: AtomicU64,
}

/// Counters of the origin, the node and the agents at the end.
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

    /// Granted claims that ended without a put.
    fn lost(&self) -> u64 {
        ["claims_expired", "claims_abandoned", "claims_released"]
            .map(|name| self.node(name))
            .iter()
            .sum()
    }

    /// Upper bound of fetches, if `ended` agents were killed. The counters of their last batches
    /// are lost.
    fn fetches_max(&self, ended: usize) -> u64 {
        let [fallbacks, uncached, _] = self.agents;
        self.blobs + self.lost() + fallbacks + uncached + (ended * BATCH) as u64
    }
}

/// Every job reads and checks everything once, in its own order, while `meanwhile` injects faults.
#[expect(clippy::print_stdout, reason = "the test prints its figures")]
fn run(lease: &str, latency: Duration, meanwhile: impl FnOnce(&Setup, &[Job])) -> Sums {
    let count = blobs();
    let setup = Setup::of(count, SIZE, |config| config.latency = latency);
    let _node = setup.node(&["--capacity", "128MB", "--claim-lease", lease]);
    let jobs: Vec<Job> = (0..PROCESSES)
        .map(|number| {
            let (agent, socket) = setup.agent(&format!("job{number}"), true);
            Job { socket, agent: Mutex::new(Some(agent)), read: AtomicU64::new(0) }
        })
        .collect();
    let counters: Vec<[u64; 3]> = thread::scope(|scope| {
        let (setup, jobs) = (&setup, &jobs);
        let readers: Vec<_> = (0..PROCESSES)
            .map(|number| scope.spawn(move || read_all(setup, &jobs[number], number, count)))
            .collect();
        meanwhile(setup, jobs);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    wait_until_within(TIMEOUT, "all claims have ended", || setup.status()["claims_held"] == 0);
    let objects = setup.origin.counters().objects;
    let sums = Sums {
        blobs: count as u64,
        fetches: objects.values().map(|object| object.gets).sum(),
        fetched_once: objects.values().all(|object| object.gets == 1),
        node: setup.status(),
        agents: counters.into_iter().fold([0; 3], sum),
    };
    assert_eq!(objects.len(), count, "every object was fetched");
    let granted = sums.node("claims_fulfilled") + sums.lost() + sums.node("claims_held");
    assert_eq!(sums.node("claims_granted"), granted, "every claim has a counted end");
    println!(
        "{count} blobs, {PROCESSES} agents: {} fetches; {} granted, {} stored, {} expired, {} \
         abandoned, {} released; {} fallbacks, {} uncached",
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

/// Returns the fallbacks, uncached reads and fetches of the job's agents. The counters of a killed
/// agent are those before its last batch.
fn read_all(setup: &Setup, job: &Job, number: usize, count: usize) -> [u64; 3] {
    let mut order: Vec<u64> = (0..count as u64).collect();
    fastrand::Rng::with_seed(number as u64).shuffle(&mut order);
    // Items are sorted by name.
    let mut objects: Vec<usize> = (0..count).collect();
    objects.sort_by_key(|at| format!("item {at:03}.bin"));
    let mut reader = setup.reader(&job.socket);
    let (mut ended, mut last) = ([0; 3], [0; 3]);
    for batch in order.chunks(BATCH) {
        let items: Vec<ItemOrdinal> = batch.iter().copied().map(ItemOrdinal::new).collect();
        let contents = loop {
            if let Ok(contents) = reader.get(&items) {
                break contents;
            }
            // Its agent was killed or hangs: a job starts another.
            restart_agent(setup, job, number);
            ended = sum(ended, mem::take(&mut last));
        };
        last = agent_counters(&mut reader).unwrap_or(last);
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

fn agent_counters(reader: &mut Reader) -> Option<[u64; 3]> {
    let stats = reader.agent_stats().ok()?;
    let value = |name: &str| stats.iter().find(|(n, _)| n == name).unwrap().1;
    Some(["agent_fallbacks", "agent_uncached", "agent_origin_fetches"].map(value))
}

fn restart_agent(setup: &Setup, job: &Job, number: usize) {
    let mut agent = job.agent.lock().unwrap();
    // Dropping kills the old agent.
    *agent = None;
    *agent = Some(setup.agent(&format!("job{number}"), true).0);
}

fn signal(job: &Job, signal: Signal) {
    job.agent.lock().unwrap().as_ref().unwrap().signal(signal);
}

/// GET requests to the origin so far.
fn fetched(setup: &Setup) -> u64 {
    setup.origin.counters().requests.get
}

/// Promise 3: a blob that is resident, or whose claim is renewed, is not fetched again. Exceptions
/// are counted, each by its own metric.
#[test]
fn sixteen_processes_fetch_every_blob_once() {
    let sums = run("60s", Duration::ZERO, |_, _| {});
    let [fallbacks, uncached, fetches] = sums.agents;
    assert_eq!(sums.fetches, fetches, "{sums:?}");
    // Fulfilled claims are fetches, and all other fetches are counted exceptions. A claim that was
    // granted too late has no fetch.
    let least = sums.node("claims_fulfilled") + fallbacks + uncached;
    assert!((least..=least + sums.lost()).contains(&sums.fetches), "{sums:?}");
    assert!(sums.fetched_once || sums.fetches > sums.blobs, "{sums:?}");
}

/// Promise 3 with killed holders: their claims pass to other jobs at once.
#[test]
fn claims_of_killed_holders_pass_to_other_jobs() {
    let total = blobs() as u64;
    let sums = run("60s", SLOW, |setup, jobs| {
        for (victim, part) in [(3, 1), (7, 2), (11, 3), (13, 4)] {
            let due = || fetched(setup) * 6 >= total * part || fetched(setup) >= total;
            wait_until_within(TIMEOUT, "enough is fetched", due);
            signal(&jobs[victim], Signal::KILL);
        }
    });
    // On a busy machine an agent may take its node for hung, and then holds no claims.
    assert!(sums.node("claims_abandoned") > 0 || sums.agents[0] > 0, "{sums:?}");
    // A holder may be killed between its grant and its request.
    assert!((sums.blobs..=sums.fetches_max(4)).contains(&sums.fetches), "{sums:?}");
    // Stored once, unless a fallback has read it.
    let stored = sums.node("puts");
    assert!(stored <= sums.blobs && stored + sums.agents[0] >= sums.blobs, "{sums:?}");
}

/// Promise 3 with stopped holders: their claims expire within the lease. The lease is shorter than
/// the time in which a job notices and kills a hung agent.
#[test]
fn stalled_holders_lose_their_claims() {
    let sums = run("1s", SLOW, |setup, jobs| {
        wait_until_within(TIMEOUT, "something is fetched", || {
            fetched(setup) * 20 >= blobs() as u64
        });
        signal(&jobs[5], Signal::STOP);
        // All other jobs finish without it.
        let others = jobs.iter().enumerate().filter(|(number, _)| *number != 5);
        let others: Vec<&Job> = others.map(|(_, job)| job).collect();
        wait_until_within(STALL_MAX, "the others are done", || {
            others.iter().all(|job| job.read.load(Relaxed) == blobs() as u64)
        });
        signal(&jobs[5], Signal::CONT);
    });
    assert!(sums.node("claims_expired") > 0 || sums.agents[0] > 0, "{sums:?}");
    assert!((sums.blobs..=sums.fetches_max(1)).contains(&sums.fetches), "{sums:?}");
}
