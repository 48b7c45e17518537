//! The result of the demo, per kind of job and in total: as a table with Quiver's figures, or JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    job_kinds::{KINDS, Kind, Published},
    residency_log::{Residency, Stay},
    run::{Experiment, FinishedJob, Phase},
};
use crate::output;

/// The result of the demo.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    data: String,
    dataset_items: u64,
    dataset_bytes: u64,
    chunks: u32,
    cache: CacheReport,
    jobs: u64,
    epochs: u64,
    batch_items: u32,
    kinds: Vec<KindReport>,
    total: Compared,
    /// Epochs of the fastest running job: the datasets that a perfect rotation without pinned
    /// chunks reads from the origin.
    turns: f64,
    /// Directly from the origin, and through forebay.
    phases: [PhaseReport; 2],
    /// Times in which more than half of a chunk was resident.
    residency: Vec<Stay>,
    /// Counters of the node.
    node: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct CacheReport {
    chunks: u32,
    capacity_bytes: u64,
    /// Peak of the resident bytes.
    resident_bytes_max: u64,
}

#[derive(Debug, Serialize)]
struct KindReport {
    kind: &'static str,
    #[serde(skip)]
    name: &'static str,
    jobs: u64,
    /// Computation time of a mini-batch.
    compute_seconds: f64,
    #[serde(flatten)]
    compared: Compared,
    quiver: Published,
}

/// Direct reads compared with reads through forebay.
#[derive(Debug, Serialize)]
struct Compared {
    /// Mean over the jobs. `phases` has the end of the last job.
    direct_seconds: f64,
    forebay_seconds: f64,
    speedup: f64,
    direct_origin_bytes: u64,
    forebay_origin_bytes: u64,
    /// Share of items read through forebay that were hits.
    hit_share: f64,
    /// Time saved by all jobs, with one GPU each.
    gpu_seconds_saved: f64,
}

#[derive(Debug, Serialize)]
struct PhaseReport {
    name: &'static str,
    seconds: f64,
    origin_bytes: u64,
    origin_requests: Option<u64>,
    failures_survived: Option<u64>,
    jobs: Vec<JobReport>,
}

#[derive(Debug, Serialize)]
struct JobReport {
    name: String,
    kind: &'static str,
    seconds: f64,
    items: u64,
    bytes: u64,
    hit_share: f64,
    origin_bytes: u64,
    stall_seconds: f64,
    compute_seconds: f64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counters: BTreeMap<String, u64>,
}

impl DemoReport {
    pub fn new(experiment: &Experiment, direct: &Phase, cached: &Phase) -> Self {
        let summary = experiment.digest.summary();
        let phases = [direct, cached];
        let kinds = KINDS.iter().zip(&experiment.compute).filter_map(|(kind, compute)| {
            let [direct, cached] = phases.map(|phase| of_kind(phase, *kind));
            let (jobs, seconds) = (direct.len(), [mean_seconds(&direct), mean_seconds(&cached)]);
            let bytes = [&direct, &cached].map(|jobs| sum(jobs, |job| job.progress.origin_bytes));
            (jobs > 0).then(|| KindReport {
                kind: kind.key,
                name: kind.name,
                jobs: jobs as u64,
                compute_seconds: compute.as_secs_f64(),
                compared: Compared::new(seconds, bytes, &direct, &cached),
                quiver: kind.published(),
            })
        });
        let all = phases.map(|phase| phase.jobs.iter().collect::<Vec<_>>());
        let residency = cached.residency.as_ref();
        Self {
            data: experiment.source.shown.clone(),
            dataset_items: summary.items,
            dataset_bytes: summary.bytes,
            chunks: experiment.cache.dataset_chunks,
            cache: CacheReport {
                chunks: experiment.cache.chunks,
                capacity_bytes: experiment.cache.capacity.0,
                resident_bytes_max: residency.map_or(0, |residency| residency.bytes_max),
            },
            jobs: experiment.jobs as u64,
            epochs: experiment.epochs,
            batch_items: experiment.batch,
            kinds: kinds.collect(),
            total: Compared::new(
                [mean_seconds(&all[0]), mean_seconds(&all[1])],
                phases.map(|phase| phase.origin_bytes),
                &all[0],
                &all[1],
            ),
            turns: fastest_reads(&cached.jobs) / summary.items.max(1) as f64,
            phases: phases.map(PhaseReport::new),
            residency: residency.map(Residency::stays).unwrap_or_default(),
            node: residency.map(|residency| residency.node.clone()).unwrap_or_default(),
        }
    }

    pub fn to_text(&self) -> String {
        let header = [
            "JOBS",
            "BATCH",
            "DIRECT",
            "FOREBAY",
            "SPEED-UP",
            "ORIGIN DIRECT",
            "ORIGIN FOREBAY",
            "HITS",
            "GPU-S SAVED",
        ];
        let mut rows: Vec<Vec<String>> =
            self.kinds.iter().map(|kind| self.kind_row(kind)).collect();
        let mut total = vec![format!("all {}", self.jobs), String::new()];
        total.extend(times(&self.total));
        total.extend(self.rest(&self.total));
        rows.push(total);
        let share = |bytes: u64| bytes as f64 / self.dataset_bytes.max(1) as f64;
        format!(
            "{jobs}, {epochs}, every item exactly once per epoch, every byte verified.\n\
             The cache holds {cached} of {chunks} chunks; at most {peak} % of the data were \
             resident.\n\n\
             {table}\n\
             Times are means over the jobs. BATCH is the simulated computation on {batch} items.\n\
             ORIGIN is what the origin sent, in sizes of the dataset. Sharing reads without a \
             cache: {turns:.1} x.\n\
             Quiver's table 3, speed-up with shared misses and with all data cached:\n{quiver}.\n",
            jobs = output::count(self.jobs, "job"),
            epochs = format_args!("{} each", output::count(self.epochs, "epoch")),
            cached = self.cache.chunks,
            chunks = self.chunks,
            peak = format_args!("{:.0}", share(self.cache.resident_bytes_max) * 100.0),
            table = output::table(&header, &rows),
            turns = self.turns,
            batch = self.batch_items,
            quiver = self.kinds.iter().map(quivers).collect::<Vec<_>>().join(", "),
        )
    }

    fn kind_row(&self, kind: &KindReport) -> Vec<String> {
        let mut row = vec![
            format!("{} {}", kind.jobs, kind.name),
            format!("{:.0} ms", kind.compute_seconds * 1000.0),
        ];
        row.extend(times(&kind.compared));
        row.extend(self.rest(&kind.compared));
        row
    }

    fn rest(&self, compared: &Compared) -> [String; 4] {
        let origin = |bytes: u64| {
            let datasets = bytes as f64 / self.dataset_bytes.max(1) as f64;
            format!("{datasets:.2} x")
        };
        [
            origin(compared.direct_origin_bytes),
            origin(compared.forebay_origin_bytes),
            format!("{:.1} %", compared.hit_share * 100.0),
            // Adding 0.0 turns -0 into 0.
            format!("{:.0}", compared.gpu_seconds_saved.round() + 0.0),
        ]
    }
}

impl Compared {
    fn new(
        seconds: [f64; 2],
        bytes: [u64; 2],
        direct: &[&FinishedJob],
        cached: &[&FinishedJob],
    ) -> Self {
        let [direct_seconds, forebay_seconds] = seconds;
        let [direct_origin_bytes, forebay_origin_bytes] = bytes;
        let total = |jobs: &[&FinishedJob]| jobs.iter().map(|job| job.seconds).sum::<f64>();
        let items = sum(cached, |job| job.progress.items).max(1);
        Self {
            direct_seconds,
            forebay_seconds,
            speedup: direct_seconds / forebay_seconds,
            direct_origin_bytes,
            forebay_origin_bytes,
            hit_share: sum(cached, |job| job.progress.hits) as f64 / items as f64,
            gpu_seconds_saved: total(direct) - total(cached),
        }
    }
}

impl PhaseReport {
    fn new(phase: &Phase) -> Self {
        let jobs =
            phase.jobs.iter().map(|FinishedJob { name, kind, seconds, progress, .. }| JobReport {
                name: name.clone(),
                kind: kind.key,
                seconds: *seconds,
                items: progress.items,
                bytes: progress.bytes,
                hit_share: progress.hits as f64 / progress.items.max(1) as f64,
                origin_bytes: progress.origin_bytes,
                stall_seconds: progress.stall_seconds,
                compute_seconds: progress.compute_seconds,
                counters: progress.counters.clone(),
            });
        Self {
            name: phase.name,
            seconds: phase.seconds,
            origin_bytes: phase.origin_bytes,
            origin_requests: phase.origin.map(|[requests, _]| requests),
            failures_survived: phase.origin.map(|[_, failures]| failures),
            jobs: jobs.collect(),
        }
    }
}

fn of_kind(phase: &Phase, kind: Kind) -> Vec<&FinishedJob> {
    phase.jobs.iter().filter(|job| job.kind == kind).collect()
}

fn mean_seconds(jobs: &[&FinishedJob]) -> f64 {
    jobs.iter().map(|job| job.seconds).sum::<f64>() / jobs.len().max(1) as f64
}

fn sum(jobs: &[&FinishedJob], of: impl Fn(&FinishedJob) -> u64) -> u64 {
    jobs.iter().map(|job| of(job)).sum()
}

/// Items read by the fastest job in each interval between two ends of jobs.
fn fastest_reads(jobs: &[FinishedJob]) -> f64 {
    let read_until = |job: &FinishedJob, at: f64| {
        job.timeline
            .iter()
            .take_while(|(seconds, _)| *seconds <= at)
            .last()
            .map_or(0, |last| last.1)
    };
    let mut ends: Vec<f64> = jobs.iter().map(|job| job.seconds).collect();
    ends.sort_by(f64::total_cmp);
    let (mut read, mut before) = (0, 0.0);
    for end in ends {
        let fastest = jobs.iter().map(|job| read_until(job, end) - read_until(job, before)).max();
        read += fastest.unwrap_or(0);
        before = end;
    }
    read as f64
}

/// The figures of Quiver for the model of a kind.
fn quivers(kind: &KindReport) -> String {
    let quiver = &kind.quiver;
    format!("{} {:.2} x and {:.2} x", quiver.model, quiver.cooperative, quiver.hit)
}

fn times(compared: &Compared) -> [String; 3] {
    [
        format!("{:.1} s", compared.direct_seconds),
        format!("{:.1} s", compared.forebay_seconds),
        format!("{:.2} x", compared.speedup),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::demo::job::Progress;

    fn job(timeline: &[(f64, u64)]) -> FinishedJob {
        let (kind, progress) = (KINDS[0], Progress::default());
        let seconds = timeline.last().unwrap().0;
        FinishedJob { name: String::new(), kind, seconds, progress, timeline: timeline.to_vec() }
    }

    #[test]
    fn the_fastest_running_job_counts() {
        // The first job is the fastest while it runs. Then the second reads its remaining half.
        let first = job(&[(0.0, 0), (1.0, 50), (2.0, 100)]);
        let second = job(&[(0.0, 0), (2.0, 50), (4.0, 100)]);
        assert!((fastest_reads(&[first, second]) - 150.0).abs() < 1e-9);
    }
}
