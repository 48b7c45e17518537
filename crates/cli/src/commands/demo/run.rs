//! All jobs at once, each in a process of its own, and what became of them.

use std::{
    io::BufRead as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use forebay_core::{ByteSize, digest::Digest};
use indicatif::{MultiProgress, ProgressBar};

use super::{
    cache::Cache,
    job::Told,
    kinds::{self, Kind},
    processes::{Processes, this_program},
    source::Source,
    watch::{Residency, Watch},
};
use crate::output;

/// How often something else than the jobs is looked at.
const TICK: Duration = Duration::from_millis(20);
/// A job's timeline has at most so many points; then every other is forgotten.
const POINTS_MAX: usize = 2000;

/// What both ways of reading have in common.
pub struct Stage {
    pub processes: Arc<Processes>,
    pub source: Source,
    pub directory: PathBuf,
    pub digest_file: PathBuf,
    pub digest: Digest,
    pub cache: Cache,
    pub jobs: usize,
    pub epochs: u64,
    pub batch: u32,
    /// How long each kind computes on a mini-batch.
    pub compute: [Duration; kinds::KINDS.len()],
}

/// What one way of reading took.
pub struct Phase {
    pub name: &'static str,
    /// From the first job's start to the last job's end.
    pub seconds: f64,
    pub jobs: Vec<Ran>,
    /// As our origin counted, if it is ours; otherwise as jobs and agents did.
    pub origin_bytes: u64,
    /// Requests, and failures on purpose that nobody noticed; only our own origin tells.
    pub origin: Option<[u64; 2]>,
    /// What the node kept, if there was one.
    pub residency: Option<Residency>,
}

/// A job, and what became of it.
pub struct Ran {
    pub name: String,
    pub kind: Kind,
    /// From the start of all to its end.
    pub seconds: f64,
    pub told: Told,
    /// How many items it had read, and when.
    pub timeline: Vec<(f64, u64)>,
}

impl Stage {
    /// Items that each job reads.
    pub fn items_each(&self) -> u64 {
        self.digest.summary().items * self.epochs
    }

    pub fn straight(&self) -> anyhow::Result<Phase> {
        self.phase("straight from the origin", None)
    }

    pub fn through_forebay(&self) -> anyhow::Result<Phase> {
        let socket = self.directory.join("node/node.sock");
        let mut command = this_program()?;
        command.arg("serve").arg("--socket").arg(&socket);
        command.arg("--directory").arg(self.directory.join("cache"));
        command.args(self.cache.node_flags());
        let node = self.processes.start_server(&mut command).context("start a node")?;
        let phase = self.phase("through forebay", Some(&socket));
        self.processes.end(node);
        phase
    }

    fn phase(&self, name: &'static str, node: Option<&Path>) -> anyhow::Result<Phase> {
        let watch = node.map(|node| Watch::new(node, &self.digest)).transpose()?;
        self.source.reset_counters();
        let bars = output::several_bars();
        let status = bars.add(output::status_line());
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        let (jobs, residency) = thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs)
                .map(|index| {
                    let bar = self.bar(&bars, &status, index);
                    scope.spawn(move || self.job(index, node, began, &bar))
                })
                .collect();
            let watching = scope.spawn(|| self.watch(name, watch, began, &status, &is_over));
            let jobs: Vec<anyhow::Result<Ran>> = jobs
                .into_iter()
                .map(|job| job.join().expect("jobs are watched without panic"))
                .collect();
            is_over.store(true, Ordering::Relaxed);
            (jobs, watching.join().expect("looking does not panic"))
        });
        let seconds = began.elapsed().as_secs_f64();
        let _ = bars.clear();
        let jobs = jobs.into_iter().collect::<anyhow::Result<Vec<_>>>().context(name)?;
        let items: u64 = jobs.iter().map(|job| job.told.items).sum();
        ensure!(
            items == self.items_each() * self.jobs as u64,
            "{name}, the jobs read {items} items: please report this as a bug"
        );
        let by_jobs = jobs.iter().map(|job| job.told.origin_bytes).sum();
        let counted = self.source.counted();
        Ok(Phase {
            name,
            seconds,
            origin_bytes: counted.map_or(by_jobs, |[bytes, ..]| bytes),
            origin: counted.map(|[_, requests, failures]| [requests, failures]),
            jobs,
            residency,
        })
    }

    /// Looks at the node and at the origin until the jobs have ended.
    fn watch(
        &self,
        name: &str,
        mut watch: Option<Watch>,
        began: Instant,
        status: &ProgressBar,
        is_over: &AtomicBool,
    ) -> Option<Residency> {
        let total = self.digest.summary().bytes as f64;
        while !is_over.load(Ordering::Relaxed) {
            if let Some(watch) = &mut watch {
                watch.look(began);
            }
            if let Some([bytes, ..]) = self.source.counted() {
                let datasets = bytes as f64 / total;
                let origin =
                    format!("the origin sent {} ({datasets:.2} x the data)", ByteSize(bytes));
                status.set_message(format!("{name}: {origin}"));
            }
            thread::sleep(TICK);
        }
        watch.map(Watch::end)
    }

    fn bar(&self, bars: &MultiProgress, status: &ProgressBar, index: usize) -> ProgressBar {
        bars.insert_before(status, output::item_bar(&name_of(index), self.items_each()))
    }

    fn job(
        &self,
        index: usize,
        node: Option<&Path>,
        began: Instant,
        bar: &ProgressBar,
    ) -> anyhow::Result<Ran> {
        let name = name_of(index);
        let compute = self.compute[index % kinds::KINDS.len()];
        let mut command = this_program()?;
        command.arg("demo-job").arg("--digest").arg(&self.digest_file);
        command.args(["--name", &name, "--seed", &(index * 1000).to_string()]);
        command.args(["--epochs", &self.epochs.to_string(), "--batch", &self.batch.to_string()]);
        command.args(["--compute-us", &compute.as_micros().to_string()]);
        command.args(["--parent", &std::process::id().to_string()]);
        command.envs(self.source.environment());
        let agent = match node {
            Some(node) => {
                let socket = self.directory.join(format!("job-{index}/agent.sock"));
                command.arg("--node").arg(node).arg("--agent").arg(&socket);
                Some(self.start_agent(&name, node, &socket).context("start an agent")?)
            }
            None => None,
        };
        let (job, said) = self.processes.start(&mut command).context("start a job")?;
        let (mut told, mut timeline) = (Told::default(), vec![(0.0, 0)]);
        for line in said.lines() {
            told = serde_json::from_str(&line?).context("understand a job")?;
            bar.set_position(told.items);
            note(&mut timeline, began.elapsed().as_secs_f64(), told.items);
        }
        let seconds = began.elapsed().as_secs_f64();
        let ended = self.processes.wait(job)?;
        if let Some(agent) = agent {
            self.processes.end(agent);
        }
        ensure!(ended.is_some_and(|ended| ended.success()), "the job {name} failed");
        Ok(Ran { name, kind: kinds::of_job(index), seconds, told, timeline })
    }

    fn start_agent(&self, name: &str, node: &Path, socket: &Path) -> anyhow::Result<u32> {
        let mut command = this_program()?;
        command.arg("agent").arg(&self.digest_file).args(["--job", name]);
        command.args(["--job-pid", &std::process::id().to_string()]);
        command.arg("--node").arg(node).arg("--socket").arg(socket);
        command.args(self.cache.agent_flags());
        command.envs(self.source.environment());
        self.processes.start_server(&mut command)
    }
}

/// The last point is always kept.
fn note(timeline: &mut Vec<(f64, u64)>, seconds: f64, items: u64) {
    if timeline.len() >= POINTS_MAX {
        let mut keeps = false;
        timeline.retain(|_| {
            keeps = !keeps;
            keeps
        });
    }
    timeline.push((seconds, items));
}

fn name_of(index: usize) -> String {
    format!("{}-{}", kinds::of_job(index).key, index / kinds::KINDS.len() + 1)
}
