//! Simulation of one setup under one policy: events in, counts out.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{Changes, Counters, Eligibility, Job, JobEvent, Policy, PolicyKind, Settings, Table},
    units::ByteRate,
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
    let per_node = |size: ByteSize| ByteSize(size.0 / nodes);
    let mut settings = Settings::new(per_node(setup.dram), per_node(setup.flash));
    settings.segment = workload.segment;
    settings.writes = setup.writes;
    settings.writes.limit =
        setup.writes.limit.map(|rate| ByteRate(ByteSize((rate.0.0 / nodes).max(1))));
    settings.history = setup.history;
    settings.history.segments_max /= usize::try_from(nodes).expect("at most 1000 nodes");
    settings.reinsertion = setup.reinsertion;
    settings.expert.clone_from(&setup.expert);
    let mut policies: Vec<Box<dyn Policy>> = (0..nodes).map(|_| kind.build(&settings)).collect();

    let reads = workload.reads();
    let step = Duration::from_secs_f64((setup.seconds_about() / f64::from(STEPS)).max(1.0));
    let mut outcome = Outcome {
        scenario: scenario.name.clone(),
        variant: setup.variant.clone(),
        policy: kind,
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
    let mut changes = Changes::default();
    let mut write_rate = WriteRate::default();
    for (now, event) in workload.events() {
        outcome.seconds = now.as_secs_f64();
        match event {
            Event::Announced(job) => {
                let spec = workload.spec(job, setup.nodes);
                let announced = JobEvent::Announced { job: Job(job as u64), spec: &spec };
                for policy in &mut policies {
                    // The policy counts an invalid event, and the simulation continues.
                    let _ = policy.on_event(now, announced);
                }
            }
            Event::Ended(job) => {
                for policy in &mut policies {
                    let _ = policy.on_event(now, JobEvent::Ended { job: Job(job as u64) });
                }
            }
            Event::Read(request) => {
                let bytes = u64::from(request.bytes);
                let node = if nodes == 1 { 0 } else { node_of(request.segment.0, nodes) };
                let answer = if filter.admits(now, request.bucket.0, request.bytes) {
                    policies[node].request(now, &request, &mut changes)
                } else {
                    changes.written.clear();
                    forebay_core::tier::Answer::Passed
                };
                outcome.count(answer, bytes);
                if answer.is_hit() {
                    let at = usize::try_from(now.as_nanos() / step.as_nanos())
                        .expect("the number of steps is small");
                    if outcome.absorbed_over_time.len() <= at {
                        outcome.absorbed_over_time.resize(at + 1, 0);
                    }
                    outcome.absorbed_over_time[at] += bytes;
                }
                let written = changes.written.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
                if written > 0 {
                    outcome.written_bytes += written;
                    write_rate.record(now, written);
                }
                if outcome.requests.is_multiple_of(PROGRESS_EVERY) {
                    on_progress(outcome.requests as f64 / reads.max(1) as f64);
                }
            }
        }
    }
    outcome.write_rate_max = write_rate.max_per_second(outcome.seconds);
    let counters: Vec<Counters> = policies.iter().map(|policy| policy.counters()).collect();
    outcome.events = nonzero_counters(&counters);
    outcome
}

/// The node of a segment. Any even spread will do.
fn node_of(segment: u64, nodes: u64) -> usize {
    let mixed = (segment ^ 0x51ed_270b).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(mixed % nodes).expect("at most 1000 nodes")
}
