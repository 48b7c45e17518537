//! Simulation of one setup under one policy: events in, counts out.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{
        Counters, Decision, Eligibility, FlashModel, Job, JobEvent, Policy, PolicyKind, Settings,
        Table, Written,
    },
};

use super::{
    outcome::{Outcome, nonzero_counters},
    scenario::{Scenario, Setup},
    workload::Event,
};
use crate::belady;

/// Steps of `absorbed_over_time`.
const STEPS: u32 = 200;
/// Window of the highest write rate.
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Requests between calls of `on_progress`.
const PROGRESS_EVERY: u64 = 1 << 16;

/// What an optimal policy achieves on a setup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Optimum {
    /// Absorbed bytes.
    pub bytes: u64,
}

/// Runs Belady's MIN with bypass on a setup.
pub fn optimum(setup: &Setup) -> Optimum {
    let mut filter = Filter::new(setup);
    let reads = setup.workload.events().filter_map(|(now, event)| match event {
        Event::Read(request) if filter.admits(now, request.bucket.0, request.bytes) => {
            Some(u32::try_from(request.segment.0).expect("fewer than 2^32 segments"))
        }
        _ => None,
    });
    let reads: Vec<u32> = reads.collect();
    let segment = setup.workload.segment.0;
    let capacity = setup.dram.0.saturating_add(setup.flash.0) / segment;
    Optimum { bytes: belady::hits(&reads, capacity) * segment }
}

/// Eligibility of requests for the tier.
struct Filter<'a> {
    setup: &'a Setup,
    eligibility: Option<Eligibility>,
}

impl<'a> Filter<'a> {
    fn new(setup: &'a Setup) -> Self {
        let eligibility = setup.disks.map(|disks| {
            let mut eligibility = Eligibility::new(disks);
            let mut stored = std::collections::BTreeMap::new();
            for part in &setup.workload.parts {
                let bytes = u64::from(part.segments) * setup.workload.segment.0;
                *stored.entry(part.table).or_insert(0) += bytes;
            }
            for (table, bytes) in stored {
                eligibility.set_stored(Table(table), ByteSize(bytes));
            }
            eligibility
        });
        Self { setup, eligibility }
    }

    fn admits(&mut self, now: Duration, part: u32, bytes: u32) -> bool {
        let Some(eligibility) = &mut self.eligibility else { return true };
        let table = Table(self.setup.workload.parts[part as usize].table);
        eligibility.on_read(now, table, u64::from(bytes))
    }
}

/// Highest write rate over [`RATE_WINDOW`].
#[derive(Debug, Default)]
struct WriteRate {
    since: Duration,
    bytes: u64,
    max: u64,
}

impl WriteRate {
    fn record(&mut self, now: Duration, bytes: u64) {
        if now.saturating_sub(self.since) >= RATE_WINDOW {
            self.max = self.max.max(self.bytes);
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    /// The highest rate; over the whole run if that was shorter than the window.
    fn max_per_second(&self, seconds: f64) -> f64 {
        self.max.max(self.bytes) as f64 / RATE_WINDOW.as_secs_f64().min(seconds.max(1e-3))
    }
}

/// Simulates one setup under one policy. `on_progress` is called with the share that is done.
pub fn simulate(
    scenario: &Scenario,
    setup: &Setup,
    kind: PolicyKind,
    optimum: Optimum,
    on_progress: &mut dyn FnMut(f64),
) -> Outcome {
    let workload = &setup.workload;
    let nodes = u64::from(setup.nodes);
    let settings = setup.settings();
    let mut nodes: Vec<Node> = (0..nodes).map(|_| Node::new(kind, &settings)).collect();

    let reads = workload.reads();
    let step = Duration::from_secs_f64((setup.seconds_about() / f64::from(STEPS)).max(1.0));
    let mut outcome = Outcome {
        scenario: scenario.name.clone(),
        variant: setup.variant.clone(),
        policy: kind,
        region_segments: setup.region_segments,
        seed: workload.seed,
        seconds: 0.0,
        requests: 0,
        read_bytes: 0,
        dram_hit_bytes: 0,
        flash_hit_bytes: 0,
        fill_bytes: 0,
        passed_bytes: 0,
        written_bytes: 0,
        write_rate_max: 0.0,
        optimum_bytes: optimum.bytes,
        absorbed_over_time: Vec::new(),
        step_seconds: step.as_secs_f64(),
        events: Vec::new(),
    };
    let mut filter = Filter::new(setup);
    let mut write_rate = WriteRate::default();
    for (now, event) in workload.events() {
        outcome.seconds = now.as_secs_f64();
        match event {
            Event::Announced(job) => {
                let spec = workload.spec(job, setup.nodes);
                let announced = JobEvent::Announced { job: Job(job as u64), spec: &spec };
                for node in &mut nodes {
                    // The policy counts an invalid event, and the simulation continues.
                    let _ = node.policy.on_event(now, announced);
                }
            }
            Event::Ended(job) => {
                for node in &mut nodes {
                    let _ = node.policy.on_event(now, JobEvent::Ended { job: Job(job as u64) });
                }
            }
            Event::Read(request) => {
                let bytes = u64::from(request.bytes);
                let of = node_of(request.segment.0, nodes.len() as u64);
                let Node { policy, flash } = &mut nodes[of];
                let place = flash.place(request.segment);
                let (decision, written) = if filter.admits(now, request.bucket.0, request.bytes) {
                    flash.read(&mut **policy, now, &request)
                } else {
                    (Decision::Pass, Written::default())
                };
                outcome.count(decision, place, bytes);
                if decision.is_hit() {
                    let at = usize::try_from(now.as_nanos() / step.as_nanos())
                        .expect("the number of steps is small");
                    if outcome.absorbed_over_time.len() <= at {
                        outcome.absorbed_over_time.resize(at + 1, 0);
                    }
                    outcome.absorbed_over_time[at] += bytes;
                }
                if written.bytes > 0 {
                    outcome.written_bytes += written.bytes;
                    write_rate.record(now, written.bytes);
                }
                if outcome.requests.is_multiple_of(PROGRESS_EVERY) {
                    on_progress(outcome.requests as f64 / reads.max(1) as f64);
                }
            }
        }
    }
    outcome.write_rate_max = write_rate.max_per_second(outcome.seconds);
    let counters: Vec<Counters> = nodes.iter().map(|node| node.policy.counters()).collect();
    outcome.events = nonzero_counters(&counters);
    outcome
}

/// A simulated node: a policy and the flash that it decides on.
struct Node {
    policy: Box<dyn Policy>,
    flash: FlashModel,
}

impl Node {
    fn new(kind: PolicyKind, settings: &Settings) -> Self {
        Self { policy: kind.build(settings), flash: FlashModel::new(settings) }
    }
}

/// The node of a segment. Any even spread will do.
fn node_of(segment: u64, nodes: u64) -> usize {
    if nodes == 1 {
        return 0;
    }
    let mixed = (segment ^ 0x51ed_270b).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(mixed % nodes).expect("at most 1000 nodes")
}
