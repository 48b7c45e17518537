//! Results of train simulations as tables. Jobs of one kind share a row.

use forebay_core::ByteSize;
use forebay_sim::train::{Comparison, JobOutcome, Outcome, Policy, Reads};

use crate::output;

/// Shown in place of a missing value.
const NOTHING: &str = "-";
const NOTHING_COUNTED: &str = "no batch was counted; shorten `warm_up`, or lengthen `duration`\n";

/// Jobs of one kind, which differ only in their number.
struct Group<'a> {
    jobs: Vec<&'a JobOutcome>,
}

impl Group<'_> {
    fn name(&self) -> String {
        let name = &self.jobs[0].group;
        match self.jobs.len() {
            1 => name.clone(),
            count => format!("{name} x {count}"),
        }
    }

    /// The mean over the jobs that have a value.
    fn mean(&self, of: impl Fn(&JobOutcome) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.jobs.iter().filter_map(|job| of(job)).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    }

    fn batch_ms(&self) -> String {
        self.mean(|job| job.batch_seconds).map_or(NOTHING.to_owned(), |s| format!("{:.1}", s * 1e3))
    }

    fn reads(&self) -> Reads {
        self.jobs.iter().fold(Reads::default(), |sum, job| sum.and(job.reads))
    }
}

fn groups(outcome: &Outcome) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for job in &outcome.jobs {
        match groups.iter_mut().find(|group| group.jobs[0].group == job.group) {
            Some(group) => group.jobs.push(job),
            None => groups.push(Group { jobs: vec![job] }),
        }
    }
    groups
}

fn title(scenario: &str, variant: Option<&String>) -> String {
    variant.map_or(scenario.to_owned(), |variant| format!("{scenario}, {variant}"))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn share(part: u64, of: u64) -> String {
    if of == 0 { NOTHING.to_owned() } else { percent(part as f64 / of as f64) }
}

fn times(factor: Option<f64>) -> String {
    factor.map_or(NOTHING.to_owned(), |factor| format!("{factor:.2}x"))
}

/// A block of text per run.
pub fn runs(outcomes: &[Outcome]) -> String {
    outcomes.iter().map(run).collect::<Vec<_>>().join("\n")
}

fn run(outcome: &Outcome) -> String {
    let rows: Vec<Vec<String>> = groups(outcome)
        .iter()
        .map(|group| {
            let reads = group.reads();
            vec![
                group.name(),
                group.jobs.iter().map(|job| job.gpus).sum::<u32>().to_string(),
                group
                    .mean(|job| Some(job.batches as f64))
                    .map_or(NOTHING.to_owned(), |mean| format!("{mean:.0}")),
                group.batch_ms(),
                group
                    .mean(|job| (job.seconds > 0.0).then_some(job.gpu_busy))
                    .map_or(NOTHING.to_owned(), percent),
                share(reads.hits + reads.waited, reads.items),
                share(reads.duplicates, reads.items),
            ]
        })
        .collect();
    let counted = match outcome.warm_up_seconds {
        none if none <= 0.0 => String::new(),
        warm_up => format!(", counted after {warm_up:.0} s"),
    };
    let mut text = format!(
        "{} under {}, seed {}: {:.0} s simulated{counted}: {} items read, {} from the origin\n",
        title(&outcome.scenario, outcome.variant.as_ref()),
        outcome.policy,
        outcome.seed,
        outcome.seconds,
        outcome.item_reads,
        origin(outcome),
    );
    let header = ["JOBS", "ALL GPUS", "BATCHES EACH", "MS/BATCH", "GPU BUSY", "HITS", "TWICE"];
    text.push_str(&output::table(&header, &rows));
    if has_nothing(outcome) {
        text.push_str(NOTHING_COUNTED);
    }
    // The JSON has the details of decisions.
    for dataset in &outcome.datasets {
        if let Some(decision) = outcome.decision(&dataset.name) {
            text.push_str(&format!("{}: {}\n", dataset.name, decision.text));
        }
        if outcome.has_no_room_for(dataset) {
            let [chunk, capacity] = [dataset.chunk_bytes, outcome.capacity_bytes].map(ByteSize);
            let remedy = "use more `chunks`";
            text.push_str(&format!(
                "{}: a chunk is {chunk}, the cache {capacity}; {remedy}\n",
                dataset.name
            ));
        }
    }
    for fault in &outcome.faults {
        text.push_str(&format!("at {:.0} s: {}\n", fault.seconds, fault.text));
    }
    text
}

fn has_nothing(outcome: &Outcome) -> bool {
    outcome.jobs.iter().all(|job| job.batch_seconds.is_none())
}

/// Bytes from the origin, and their share of the bytes read.
fn origin(outcome: &Outcome) -> String {
    let bytes = ByteSize(outcome.origin_bytes);
    let share = outcome.origin_share().map(percent);
    share.map_or(bytes.to_string(), |share| format!("{bytes} ({share} of the reads)"))
}

/// A block of text per variant, with a row per policy.
pub fn comparison(comparison: &Comparison) -> String {
    let mut blocks = Vec::new();
    for variant in comparison.variants() {
        let mut rows = Vec::new();
        let mut header = vec!["POLICY".to_owned()];
        for (outcome, speed_up) in comparison.of_variant(&variant) {
            let groups = groups(outcome);
            let mut row = vec![outcome.policy.to_string()];
            if rows.is_empty() {
                header.extend(groups.iter().map(|group| format!("{}, MS/BATCH", group.name())));
            }
            row.extend(groups.iter().map(Group::batch_ms));
            let reads = outcome.reads();
            row.push(share(reads.hits + reads.waited, reads.items));
            row.push(ByteSize(outcome.origin_bytes).to_string());
            row.push(outcome.origin_share().map_or(NOTHING.to_owned(), percent));
            row.push(times(speed_up));
            rows.push(row);
        }
        let mut row = vec![String::new(); header.len() + 4];
        "-- bound".clone_into(&mut row[0]);
        row[header.len() + 3] = times(comparison.bound(&variant));
        rows.push(row);
        header.extend(["HITS", "ORIGIN", "ORIGIN/READ", "SPEED"].map(str::to_owned));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let title = title(&comparison.scenario, variant.as_ref());
        blocks.push(format!("{title}\n{}", output::table(&header, &rows)));
    }
    if comparison.runs.iter().all(has_nothing) {
        blocks.push(NOTHING_COUNTED.to_owned());
    }
    if comparison.policies.contains(&Policy::Hit) {
        blocks.push(
            "hit: everything is cached, regardless of the capacity; for comparison only\n"
                .to_owned(),
        );
    }
    blocks.join("\n")
}
