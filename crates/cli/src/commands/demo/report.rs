//! What came of it, by kind and in all: for people as one table beside Quiver's, for scripts as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    kinds::{KINDS, Kind, Published},
    phase::{Phase, Ran, Stage},
    watch::{Residency, Stay},
};
use crate::output;

/// Everything, for scripts.
#[derive(Debug, Serialize)]
pub struct Report {
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
    /// How often the fastest of the jobs that were running went through the dataset: what a perfect rotation
    /// would have read, if it held nothing.
    turns: f64,
    /// Straight from the origin, and through forebay.
    phases: [PhaseReport; 2],
    /// When which chunk was on the node, more than half of it.
    residency: Vec<Stay>,
    /// What the node has counted.
    node: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
struct CacheReport {
    chunks: u32,
    capacity_bytes: u64,
    /// The most that was on the node at once.
    resident_bytes_max: u64,
}

#[derive(Debug, Serialize)]
struct KindReport {
    kind: &'static str,
    #[serde(skip)]
    name: &'static str,
    jobs: u64,
    /// How long they compute on a mini-batch.
    compute_seconds: f64,
    #[serde(flatten)]
    compared: Compared,
    quiver: Published,
}

/// Both ways of reading, side by side.
#[derive(Debug, Serialize)]
struct Compared {
    /// The mean of the jobs; when the last one ended is in `phases`.
    straight_seconds: f64,
    forebay_seconds: f64,
    speedup: f64,
    straight_origin_bytes: u64,
    forebay_origin_bytes: u64,
    /// Of the items that were read through forebay, how many the node had.
    hit_share: f64,
    /// Time that jobs, with a GPU each, were sooner done.
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
    counted: BTreeMap<String, u64>,
}

impl Report {
    pub fn new(stage: &Stage, straight: &Phase, through: &Phase) -> Self {
        let summary = stage.digest.summary();
        let phases = [straight, through];
        let kinds = KINDS.iter().zip(&stage.compute).filter_map(|(kind, compute)| {
            let [straight, through] = phases.map(|phase| of_kind(phase, *kind));
            let (jobs, seconds) =
                (straight.len(), [mean_seconds(&straight), mean_seconds(&through)]);
            let bytes = [&straight, &through].map(|jobs| sum(jobs, |job| job.told.origin_bytes));
            (jobs > 0).then(|| KindReport {
                kind: kind.key,
                name: kind.name,
                jobs: jobs as u64,
                compute_seconds: compute.as_secs_f64(),
                compared: Compared::new(seconds, bytes, &straight, &through),
                quiver: kind.published(),
            })
        });
        let all = phases.map(|phase| phase.jobs.iter().collect::<Vec<_>>());
        let residency = through.residency.as_ref();
        Self {
            data: stage.source.shown.clone(),
            dataset_items: summary.items,
            dataset_bytes: summary.bytes,
            chunks: stage.cache.of,
            cache: CacheReport {
                chunks: stage.cache.chunks,
                capacity_bytes: stage.cache.capacity.0,
                resident_bytes_max: residency.map_or(0, |residency| residency.bytes_max),
            },
            jobs: stage.jobs as u64,
            epochs: stage.epochs,
            batch_items: stage.batch,
            kinds: kinds.collect(),
            total: Compared::new(
                [mean_seconds(&all[0]), mean_seconds(&all[1])],
                phases.map(|phase| phase.origin_bytes),
                &all[0],
                &all[1],
            ),
            turns: turns(&through.jobs) / summary.items.max(1) as f64,
            phases: phases.map(PhaseReport::new),
            residency: residency.map(Residency::stays).unwrap_or_default(),
            node: residency.map(|residency| residency.node.clone()).unwrap_or_default(),
        }
    }

    pub fn for_people(&self) -> String {
        let header = [
            "JOBS",
            "BATCH",
            "STRAIGHT",
            "FOREBAY",
            "SPEED-UP",
            "(QUIVER)",
            "(ITS HITS)",
            "SENT",
            "FOREBAY",
            "HITS",
            "GPU-S",
        ];
        let mut rows: Vec<Vec<String>> =
            self.kinds.iter().map(|kind| self.kind_row(kind)).collect();
        let mut total = vec![format!("all {}", self.jobs), String::new()];
        total.extend(times(&self.total));
        total.extend([String::new(), String::new()]);
        total.extend(self.rest(&self.total));
        rows.push(total);
        let share = |bytes: u64| bytes as f64 / self.dataset_bytes.max(1) as f64;
        format!(
            "{jobs}, {epochs}, every item exactly once per epoch, every byte checked.\n\
             The cache holds {held} of {chunks} chunks; at most {most} % of the data were there at once.\n\n\
             {table}\n\
             Times are means of the jobs; a mini-batch (BATCH) of {batch} items is computed on for so long, which is \
             simulated.\n\
             The origin SENT {straight:.1} x the dataset straight, and {fetched:.1} x through FOREBAY; jobs that share every \
             read, and\ncache nothing else, take {turns:.1} x. GPU-S are seconds of GPUs saved.\n\
             In brackets is what Quiver's table 3 has for {models}:\n\
             its speed-up with shared misses, and with all data cached.\n",
            jobs = output::count(self.jobs, "job"),
            epochs = format_args!("{} each", output::count(self.epochs, "epoch")),
            held = self.cache.chunks,
            chunks = self.chunks,
            most = format_args!("{:.0}", share(self.cache.resident_bytes_max) * 100.0),
            table = output::table(&header, &rows),
            fetched = share(self.total.forebay_origin_bytes),
            straight = share(self.total.straight_origin_bytes),
            turns = self.turns,
            batch = self.batch_items,
            models = self.kinds.iter().map(|kind| kind.quiver.model).collect::<Vec<_>>().join(", "),
        )
    }

    fn kind_row(&self, kind: &KindReport) -> Vec<String> {
        let mut row = vec![
            format!("{} {}", kind.jobs, kind.name),
            format!("{:.0} ms", kind.compute_seconds * 1000.0),
        ];
        row.extend(times(&kind.compared));
        row.extend([kind.quiver.cooperative, kind.quiver.hit].map(|times| format!("{times:.2} x")));
        row.extend(self.rest(&kind.compared));
        row
    }

    fn rest(&self, compared: &Compared) -> [String; 4] {
        let origin = |bytes: u64| {
            let datasets = bytes as f64 / self.dataset_bytes.max(1) as f64;
            format!("{datasets:.2} x")
        };
        [
            origin(compared.straight_origin_bytes),
            origin(compared.forebay_origin_bytes),
            format!("{:.1} %", compared.hit_share * 100.0),
            // Adding nought takes the sign from a nought.
            format!("{:.0}", compared.gpu_seconds_saved.round() + 0.0),
        ]
    }
}

impl Compared {
    fn new(seconds: [f64; 2], bytes: [u64; 2], straight: &[&Ran], through: &[&Ran]) -> Self {
        let [straight_seconds, forebay_seconds] = seconds;
        let [straight_origin_bytes, forebay_origin_bytes] = bytes;
        let busy = |jobs: &[&Ran]| jobs.iter().map(|job| job.seconds).sum::<f64>();
        let items = sum(through, |job| job.told.items).max(1);
        Self {
            straight_seconds,
            forebay_seconds,
            speedup: straight_seconds / forebay_seconds,
            straight_origin_bytes,
            forebay_origin_bytes,
            hit_share: sum(through, |job| job.told.hits) as f64 / items as f64,
            gpu_seconds_saved: busy(straight) - busy(through),
        }
    }
}

impl PhaseReport {
    fn new(phase: &Phase) -> Self {
        let jobs = phase.jobs.iter().map(|Ran { name, kind, seconds, told, .. }| JobReport {
            name: name.clone(),
            kind: kind.key,
            seconds: *seconds,
            items: told.items,
            bytes: told.bytes,
            hit_share: told.hits as f64 / told.items.max(1) as f64,
            origin_bytes: told.origin_bytes,
            stall_seconds: told.stall_seconds,
            compute_seconds: told.compute_seconds,
            counted: told.counted.clone(),
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

fn of_kind(phase: &Phase, kind: Kind) -> Vec<&Ran> {
    phase.jobs.iter().filter(|job| job.kind == kind).collect()
}

fn mean_seconds(jobs: &[&Ran]) -> f64 {
    jobs.iter().map(|job| job.seconds).sum::<f64>() / jobs.len().max(1) as f64
}

fn sum(jobs: &[&Ran], of: impl Fn(&Ran) -> u64) -> u64 {
    jobs.iter().map(|job| of(job)).sum()
}

/// Items that the fastest read, from one job's end to the next one's.
fn turns(jobs: &[Ran]) -> f64 {
    let read_by = |job: &Ran, at: f64| {
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
        let fastest = jobs.iter().map(|job| read_by(job, end) - read_by(job, before)).max();
        read += fastest.unwrap_or(0);
        before = end;
    }
    read as f64
}

fn times(compared: &Compared) -> [String; 3] {
    [
        format!("{:.1} s", compared.straight_seconds),
        format!("{:.1} s", compared.forebay_seconds),
        format!("{:.2} x", compared.speedup),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::job::Told;

    fn ran(timeline: &[(f64, u64)]) -> Ran {
        let (kind, told) = (KINDS[0], Told::default());
        let seconds = timeline.last().unwrap().0;
        Ran { name: String::new(), kind, seconds, told, timeline: timeline.to_vec() }
    }

    #[test]
    fn turns_are_those_of_the_fastest_at_a_time() {
        // While the first runs, it is the fastest; then the second reads the half that it has left.
        let first = ran(&[(0.0, 0), (1.0, 50), (2.0, 100)]);
        let second = ran(&[(0.0, 0), (2.0, 50), (4.0, 100)]);
        assert!((turns(&[first, second]) - 150.0).abs() < 1e-9);
    }
}
