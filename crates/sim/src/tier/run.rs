//! One setup under one policy: events in, counts out.

use std::time::Duration;

use forebay_core::{
    ByteSize,
    tier::{Changes, Counters, Eligibility, Fact, Job, Policy, PolicyKind, Settings, Table},
    units::ByteRate,
};

use super::{
    outcome::{Outcome, named},
    scenario::{Scenario, Setup},
    workload::Event,
};
use crate::belady;

/// Absorbed bytes are shown in so many steps.
const STEPS: u32 = 200;
/// Write rates are measured over this.
const RATE_OVER: Duration = Duration::from_secs(10);
/// Progress is told after so many requests.
const TELL_EVERY: u64 = 1 << 16;

/// What is asked for, as the optimum needs it, and what it makes of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Optimum {
    /// Bytes that would have been absorbed.
    pub bytes: u64,
}

/// What Belady's MIN with bypass absorbs of a setup.
pub fn optimum(setup: &Setup) -> Optimum {
    let mut eligible = Filter::new(setup);
    let reads = setup.workload.events().filter_map(|(now, event)| match event {
        Event::Read(request) if eligible.passes(now, request.bucket.0, request.bytes) => {
            Some(u32::try_from(request.segment.0).expect("segments are counted"))
        }
        _ => None,
    });
    let reads: Vec<u32> = reads.collect();
    let segment = setup.workload.segment.0;
    let capacity = setup.dram.0.saturating_add(setup.flash.0) / segment;
    Optimum { bytes: belady::hits(&reads, capacity) * segment }
}

/// Which requests the tier is asked at all.
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
                eligibility.stored(Table(table), ByteSize(bytes));
            }
            eligibility
        });
        Self { setup, eligibility }
    }

    fn passes(&mut self, now: Duration, part: u32, bytes: u32) -> bool {
        let Some(eligibility) = &mut self.eligibility else { return true };
        let table = Table(self.setup.workload.parts[part as usize].table);
        eligibility.wants(now, table, u64::from(bytes))
    }
}

/// What is written in a while.
#[derive(Debug, Default)]
struct WriteRate {
    since: Duration,
    bytes: u64,
    most: u64,
}

impl WriteRate {
    fn note(&mut self, now: Duration, bytes: u64) {
        if now.saturating_sub(self.since) >= RATE_OVER {
            self.most = self.most.max(self.bytes);
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
    }

    /// If it all lasted less, over that.
    fn most_per_second(&self, lasted: f64) -> f64 {
        self.most.max(self.bytes) as f64 / RATE_OVER.as_secs_f64().min(lasted.max(1e-3))
    }
}

/// Simulates one setup under one policy. `watch` is told from time to time which share is done.
pub fn simulate(
    scenario: &Scenario,
    setup: &Setup,
    kind: PolicyKind,
    best: Optimum,
    watch: &mut dyn FnMut(f64),
) -> Outcome {
    let workload = &setup.workload;
    let nodes = u64::from(setup.nodes);
    let part_of = |size: ByteSize| ByteSize(size.0 / nodes);
    let mut settings = Settings::new(part_of(setup.dram), part_of(setup.flash));
    settings.segment = workload.segment;
    settings.writes = setup.writes;
    settings.writes.limit =
        setup.writes.limit.map(|rate| ByteRate(ByteSize((rate.0.0 / nodes).max(1))));
    settings.history = setup.history;
    settings.history.segments_max /= usize::try_from(nodes).expect("nodes are few");
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
        optimum_bytes: best.bytes,
        absorbed_over_time: Vec::new(),
        step_seconds: step.as_secs_f64(),
        events: Vec::new(),
    };
    let mut eligible = Filter::new(setup);
    let mut changes = Changes::default();
    let mut write_rate = WriteRate::default();
    for (now, event) in workload.events() {
        outcome.seconds = now.as_secs_f64();
        match event {
            Event::Announced(job) => {
                let spec = workload.spec(job, setup.nodes);
                let fact = Fact::Announced { job: Job(job as u64), spec: &spec };
                for policy in &mut policies {
                    // What cannot be is counted by the policy, and the scenario goes on.
                    let _ = policy.tell(now, fact);
                }
            }
            Event::Ended(job) => {
                for policy in &mut policies {
                    let _ = policy.tell(now, Fact::Ended { job: Job(job as u64) });
                }
            }
            Event::Read(request) => {
                let bytes = u64::from(request.bytes);
                let node = if nodes == 1 { 0 } else { node_of(request.segment.0, nodes) };
                let answer = if eligible.passes(now, request.bucket.0, request.bytes) {
                    policies[node].request(now, &request, &mut changes)
                } else {
                    changes.written.clear();
                    forebay_core::tier::Answer::Passed
                };
                outcome.count(answer, bytes);
                if answer.is_hit() {
                    let at = usize::try_from(now.as_nanos() / step.as_nanos()).expect("few steps");
                    if outcome.absorbed_over_time.len() <= at {
                        outcome.absorbed_over_time.resize(at + 1, 0);
                    }
                    outcome.absorbed_over_time[at] += bytes;
                }
                let written = changes.written.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
                if written > 0 {
                    outcome.written_bytes += written;
                    write_rate.note(now, written);
                }
                if outcome.requests.is_multiple_of(TELL_EVERY) {
                    watch(outcome.requests as f64 / reads.max(1) as f64);
                }
            }
        }
    }
    outcome.write_rate_max = write_rate.most_per_second(outcome.seconds);
    let counters: Vec<Counters> = policies.iter().map(|policy| policy.counters()).collect();
    outcome.events = named(&counters);
    outcome
}

/// Which node has a segment: any even spread will do.
fn node_of(segment: u64, nodes: u64) -> usize {
    let mixed = (segment ^ 0x51ed_270b).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(mixed % nodes).expect("nodes are few")
}
