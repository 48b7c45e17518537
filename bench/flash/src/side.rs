//! A side of the comparison: a child process that runs tasks, one per line of its input, and is
//! stopped in between.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use forebay_bench_stats::load::Sample;
use forebay_core::ByteSize;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::{forebay::Forebay, foyer::Foyer};

/// The engine of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Forebay,
    Psync,
    Uring,
}

impl EngineKind {
    const ALL: [Self; 3] = [Self::Forebay, Self::Psync, Self::Uring];

    pub fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Psync => "foyer psync",
            Self::Uring => "foyer io_uring",
        }
    }

    pub fn parse(name: &str) -> anyhow::Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).context("unknown engine")
    }
}

/// A task for a side.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Task {
    /// Reads resident items for `limit`.
    Read { depth: usize, limit: Duration },
    /// Writes new items for `limit`, until they are on the device.
    Write { depth: usize, limit: Duration },
    /// Writes `items` new items in place of the oldest.
    Rotate { depth: usize, items: u64 },
}

/// Result of a task.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub sample: Sample,
    /// Bytes written to the device for the task.
    pub device_bytes: u64,
}

/// An engine under test.
pub trait Store {
    async fn run(&mut self, task: Task) -> anyhow::Result<Sample>;
    /// Bytes written to the device so far.
    async fn device_bytes(&self) -> anyhow::Result<u64>;
}

/// Handle of a child process.
pub struct Side {
    child: Child,
    tasks: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Side {
    /// Starts the child and waits until its device is filled.
    pub fn start(
        kind: EngineKind,
        directory: &Path,
        size: ByteSize,
        item: usize,
    ) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["side", kind.name()])
            .arg(directory)
            .args([size.0.to_string(), item.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let tasks = child.stdin.take().context("a pipe")?;
        let reports = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut started = Self { child, tasks, reports };
        started.read_line()?;
        started.signal(Signal::STOP)?;
        Ok(started)
    }

    /// Runs one task, and stops the child again.
    pub fn run(&mut self, task: Task) -> anyhow::Result<Report> {
        self.signal(Signal::CONT)?;
        writeln!(self.tasks, "{}", serde_json::to_string(&task)?)?;
        let report = self.read_line()?;
        self.signal(Signal::STOP)?;
        Ok(serde_json::from_str(&report)?)
    }

    fn read_line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.reports.read_line(&mut line)? == 0 {
            bail!("a child process ended early");
        }
        Ok(line)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?).context("a process")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Main function of the child.
pub fn serve(
    kind: EngineKind,
    directory: &Path,
    size: ByteSize,
    item: usize,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match kind {
            EngineKind::Forebay => run_tasks(Forebay::fill(directory, size, item).await?).await,
            kind => run_tasks(Foyer::fill(directory, size, item, kind).await?).await,
        }
    })
}

async fn run_tasks(mut store: impl Store) -> anyhow::Result<()> {
    println!("ready");
    let mut tasks = std::io::stdin().lines();
    while let Some(task) = tasks.next().transpose()? {
        let before = store.device_bytes().await?;
        let sample = store.run(serde_json::from_str(&task)?).await?;
        let device_bytes = store.device_bytes().await? - before;
        println!("{}", serde_json::to_string(&Report { sample, device_bytes })?);
    }
    Ok(())
}
