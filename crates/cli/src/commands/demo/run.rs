//! A phase of the demo: runs all jobs in parallel, each as a process.

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
use forebay_core::ByteSize;
use forebay_digest::Digest;
use indicatif::{MultiProgress, ProgressBar};

use super::{
    cache::Cache,
    job::Progress,
    job_kinds::{self, Kind},
    processes::{Processes, this_program},
    residency_log::{Residency, ResidencyLog},
    source::Source,
};
use crate::output;

/// Interval at which the node and the origin are polled.
const TICK: Duration = Duration::from_millis(20);
/// Largest number of points in the timeline of a job. Beyond it, every other point is dropped.
const POINTS_MAX: usize = 2000;

/// The setup of both phases.
pub struct Experiment {
    pub processes: Arc<Processes>,
    pub source: Source,
    pub directory: PathBuf,
    pub digest_file: PathBuf,
    pub digest: Digest,
    pub cache: Cache,
    pub jobs: usize,
    pub epochs: u64,
    pub batch: u32,
    /// Computation time of a mini-batch, per kind of job.
    pub compute: [Duration; job_kinds::KINDS.len()],
}

/// Result of a phase.
pub struct Phase {
    pub name: &'static str,
    /// From the start of the first job to the end of the last.
    pub seconds: f64,
    pub jobs: Vec<FinishedJob>,
    /// Counted by the built-in origin, or else by jobs and agents.
    pub origin_bytes: u64,
    /// Requests and injected failures, counted by the built-in origin.
    pub origin: Option<[u64; 2]>,
    /// Residency on the node, if there was one.
    pub residency: Option<Residency>,
}

/// A job that has ended.
pub struct FinishedJob {
    pub name: String,
    pub kind: Kind,
    /// From the start of the phase to the end of the job.
    pub seconds: f64,
    pub progress: Progress,
    /// Seconds and items read.
    pub timeline: Vec<(f64, u64)>,
}

impl Experiment {
    /// Items that each job reads.
    pub fn items_each(&self) -> u64 {
        self.digest.summary().items * self.epochs
    }

    /// All jobs read from the origin.
    pub fn run_direct(&self) -> anyhow::Result<Phase> {
        self.phase("directly from the origin", None)
    }

    /// All jobs read through one node.
    pub fn run_cached(&self) -> anyhow::Result<Phase> {
        let socket = self.directory.join("node/node.sock");
        let mut command = this_program()?;
        command.arg("serve").arg("--socket").arg(&socket);
        command.arg("--directory").arg(self.directory.join("cache"));
        command.args(self.cache.node_flags());
        let node = self.processes.start_server(&mut command).context("cannot start a node")?;
        let phase = self.phase("through forebay", Some(&socket));
        self.processes.end(node);
        phase
    }

    fn phase(&self, name: &'static str, node: Option<&Path>) -> anyhow::Result<Phase> {
        let log = node.map(|node| ResidencyLog::new(node, &self.digest)).transpose()?;
        self.source.reset_counters();
        let bars = output::bar_group();
        let status = bars.add(output::status_line());
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        let (jobs, residency) = thread::scope(|scope| {
            let jobs: Vec<_> = (0..self.jobs)
                .map(|index| {
                    let bar = self.bar(&bars, &status, index);
                    scope.spawn(move || self.job(index, node, began, &bar))
                })
                .collect();
            let polling = scope.spawn(|| self.poll(name, log, began, &status, &is_over));
            let jobs: Vec<anyhow::Result<FinishedJob>> = jobs
                .into_iter()
                .map(|job| job.join().expect("the thread of a job does not panic"))
                .collect();
            is_over.store(true, Ordering::Relaxed);
            (jobs, polling.join().expect("polling does not panic"))
        });
        let seconds = began.elapsed().as_secs_f64();
        let _ = bars.clear();
        let jobs = jobs.into_iter().collect::<anyhow::Result<Vec<_>>>().context(name)?;
        let items: u64 = jobs.iter().map(|job| job.progress.items).sum();
        ensure!(
            items == self.items_each() * self.jobs as u64,
            "{name}, the jobs read {items} items; please report this bug"
        );
        let by_jobs = jobs.iter().map(|job| job.progress.origin_bytes).sum();
        let counters = self.source.counters();
        Ok(Phase {
            name,
            seconds,
            origin_bytes: counters.map_or(by_jobs, |[bytes, ..]| bytes),
            origin: counters.map(|[_, requests, failures]| [requests, failures]),
            jobs,
            residency,
        })
    }

    /// Polls the node and the origin until the jobs have ended.
    fn poll(
        &self,
        name: &str,
        mut log: Option<ResidencyLog>,
        began: Instant,
        status: &ProgressBar,
        is_over: &AtomicBool,
    ) -> Option<Residency> {
        let total = self.digest.summary().bytes as f64;
        while !is_over.load(Ordering::Relaxed) {
            if let Some(log) = &mut log {
                log.sample(began);
            }
            if let Some([bytes, ..]) = self.source.counters() {
                let datasets = bytes as f64 / total;
                let origin =
                    format!("the origin sent {} ({datasets:.2} x the data)", ByteSize(bytes));
                status.set_message(format!("{name}: {origin}"));
            }
            thread::sleep(TICK);
        }
        log.map(ResidencyLog::finish)
    }

    fn bar(&self, bars: &MultiProgress, status: &ProgressBar, index: usize) -> ProgressBar {
        bars.insert_before(status, output::item_bar(&job_name(index), self.items_each()))
    }

    fn job(
        &self,
        index: usize,
        node: Option<&Path>,
        began: Instant,
        bar: &ProgressBar,
    ) -> anyhow::Result<FinishedJob> {
        let name = job_name(index);
        let compute = self.compute[index % job_kinds::KINDS.len()];
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
                Some(self.start_agent(&name, node, &socket).context("cannot start an agent")?)
            }
            None => None,
        };
        let (job, stdout) = self.processes.start(&mut command).context("cannot start a job")?;
        let (mut progress, mut timeline) = (Progress::default(), vec![(0.0, 0)]);
        for line in stdout.lines() {
            progress =
                serde_json::from_str(&line?).context("cannot parse the progress of a job")?;
            bar.set_position(progress.items);
            add_point(&mut timeline, began.elapsed().as_secs_f64(), progress.items);
        }
        let seconds = began.elapsed().as_secs_f64();
        let ended = self.processes.wait(job)?;
        if let Some(agent) = agent {
            self.processes.end(agent);
        }
        ensure!(ended.is_some_and(|ended| ended.success()), "the job {name} failed");
        Ok(FinishedJob { name, kind: job_kinds::of_job(index), seconds, progress, timeline })
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

/// Adds a point to a timeline.
fn add_point(timeline: &mut Vec<(f64, u64)>, seconds: f64, items: u64) {
    if timeline.len() >= POINTS_MAX {
        let mut is_kept = false;
        timeline.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
    }
    timeline.push((seconds, items));
}

fn job_name(index: usize) -> String {
    format!("{}-{}", job_kinds::of_job(index).key, index / job_kinds::KINDS.len() + 1)
}
