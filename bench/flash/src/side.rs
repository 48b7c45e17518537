//! A side of the comparison: a process that is told what to do, line by line, and stopped in between.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use forebay_core::ByteSize;
use forebay_measure::load::Sample;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::{foyer::Foyer, ours::Ours};

/// Whose engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ours,
    Psync,
    Uring,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Ours, Self::Psync, Self::Uring];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "forebay",
            Self::Psync => "foyer psync",
            Self::Uring => "foyer io_uring",
        }
    }

    pub fn parse(name: &str) -> anyhow::Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).context("no such engine")
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Order {
    /// Items that are there, for a while.
    Read { depth: usize, limit: Duration },
    /// New items for a while, until they are on the device.
    Write { depth: usize, limit: Duration },
    /// So many new items in place of the oldest.
    Turn { depth: usize, items: u64 },
}

/// What was done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub sample: Sample,
    /// Written to the device for it.
    pub device_bytes: u64,
}

/// What either engine does.
pub trait Store {
    async fn run(&mut self, order: Order) -> anyhow::Result<Sample>;
    /// Bytes written to the device so far.
    async fn device_bytes(&self) -> anyhow::Result<u64>;
}

/// The process, seen from outside.
pub struct Side {
    child: Child,
    orders: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Side {
    /// Starts it and waits until its device is full.
    pub fn start(
        kind: Kind,
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
        let orders = child.stdin.take().context("a pipe")?;
        let reports = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut side = Self { child, orders, reports };
        side.read_line()?;
        side.signal(Signal::STOP)?;
        Ok(side)
    }

    /// Does one thing, and stops again.
    pub fn run(&mut self, order: Order) -> anyhow::Result<Report> {
        self.signal(Signal::CONT)?;
        writeln!(self.orders, "{}", serde_json::to_string(&order)?)?;
        let report = self.read_line()?;
        self.signal(Signal::STOP)?;
        Ok(serde_json::from_str(&report)?)
    }

    fn read_line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.reports.read_line(&mut line)? == 0 {
            bail!("a side of the comparison ended by itself");
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

/// The process itself.
pub fn serve(kind: Kind, directory: &Path, size: ByteSize, item: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match kind {
            Kind::Ours => obey(Ours::fill(directory, size, item).await?).await,
            kind => obey(Foyer::fill(directory, size, item, kind).await?).await,
        }
    })
}

async fn obey(mut store: impl Store) -> anyhow::Result<()> {
    println!("ready");
    let mut orders = std::io::stdin().lines();
    while let Some(order) = orders.next().transpose()? {
        let before = store.device_bytes().await?;
        let sample = store.run(serde_json::from_str(&order)?).await?;
        let device_bytes = store.device_bytes().await? - before;
        println!("{}", serde_json::to_string(&Report { sample, device_bytes })?);
    }
    Ok(())
}
