//! Simulations as tables: twins in one line, since they differ by chance alone.

use forebay_core::ByteSize;
use forebay_sim::train::{Comparison, JobOutcome, Outcome, Reads};

use crate::output;

/// Jobs that differ by number only.
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

    fn mean(&self, of: impl Fn(&JobOutcome) -> f64) -> f64 {
        self.jobs.iter().map(|job| of(job)).sum::<f64>() / self.jobs.len() as f64
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

/// One block for every run.
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
                format!("{:.0}", group.mean(|job| job.batches as f64)),
                format!("{:.1}", group.mean(JobOutcome::batch_seconds) * 1e3),
                percent(group.mean(|job| job.gpu_busy)),
                percent(reads.hit_rate()),
                percent(reads.duplicates as f64 / reads.items.max(1) as f64),
            ]
        })
        .collect();
    let mut text = format!(
        "{} under {}, seed {}: {:.0} s simulated, {} items read, {} from the origin\n",
        title(&outcome.scenario, outcome.variant.as_ref()),
        outcome.policy,
        outcome.seed,
        outcome.seconds,
        outcome.item_reads,
        ByteSize(outcome.origin_bytes),
    );
    let header = ["JOBS", "GPUS", "BATCHES", "MS/BATCH", "GPU BUSY", "HITS", "TWICE"];
    text.push_str(&output::table(&header, &rows));
    // How it came about is in the JSON.
    for dataset in &outcome.datasets {
        if let Some(decision) = outcome.decision(&dataset.name) {
            text.push_str(&format!("{}: {}\n", dataset.name, decision.text));
        }
    }
    text
}

/// One block for every variant: a policy in a line.
pub fn comparison(comparison: &Comparison) -> String {
    let mut blocks = Vec::new();
    for variant in comparison.variants() {
        let speed_ups = comparison.speed_ups(&variant);
        let mut rows = Vec::new();
        let mut header = vec!["POLICY".to_owned()];
        for (outcome, speed_up) in comparison.of_variant(&variant).zip(speed_ups) {
            let groups = groups(outcome);
            let mut row = vec![outcome.policy.to_string()];
            if rows.is_empty() {
                header.extend(groups.iter().map(|group| format!("{}, MS/BATCH", group.name())));
            }
            let times = groups.iter().map(|group| group.mean(JobOutcome::batch_seconds) * 1e3);
            row.extend(times.map(|ms| format!("{ms:.1}")));
            let reads = outcome.reads();
            row.push(percent(reads.hit_rate()));
            row.push(ByteSize(outcome.origin_bytes).to_string());
            row.push(format!("{speed_up:.2}x"));
            rows.push(row);
        }
        if let Some(bound) = comparison.bounds.iter().find(|bound| bound.variant == variant) {
            let mut row = vec![String::new(); header.len() + 3];
            "-- bound".clone_into(&mut row[0]);
            row[header.len() + 2] = format!("{:.2}x", bound.speed_up);
            rows.push(row);
        }
        header.extend(["HITS", "ORIGIN", "SPEED"].map(str::to_owned));
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let title = title(&comparison.scenario, variant.as_ref());
        blocks.push(format!("{title}\n{}", output::table(&header, &rows)));
    }
    blocks.join("\n")
}
