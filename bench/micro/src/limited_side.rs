//! One side of a comparison under a memory limit: a process that answers requests, line by line.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use forebay_core::ByteSize;

use crate::memory_limit::MemoryLimit;

/// The process of one side. It prints `ready`, then a line for each line that it reads, and ends at
/// the end of its input.
pub struct LimitedSide {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Removed after the process has ended: fields drop after [`Drop::drop`].
    _limit: MemoryLimit,
}

impl LimitedSide {
    /// Starts the process with this limit on its memory, including the page cache.
    pub fn start(mut command: Command, memory: ByteSize) -> anyhow::Result<Self> {
        let limit = MemoryLimit::new(memory)?;
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start one side of the comparison")?;
        limit.apply(&process)?;
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut started = Self { process, stdin, stdout, _limit: limit };
        ensure!(started.answer()? == "ready", "one side of the comparison did not start");
        Ok(started)
    }

    /// Sends a request and returns the numbers of the answer.
    pub fn ask<const N: usize>(&mut self, request: &str) -> anyhow::Result<[f64; N]> {
        writeln!(self.stdin.as_mut().expect("stdin is open until drop"), "{request}")?;
        let answer = self.answer()?;
        let numbers = answer.split(' ').map(str::parse).collect::<Result<Vec<f64>, _>>();
        let numbers = numbers.with_context(|| format!("expected numbers, not {answer:?}"))?;
        numbers.try_into().map_err(|_| anyhow::anyhow!("expected {N} numbers, not {answer:?}"))
    }

    fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("one side of the comparison ended; its memory limit may be too small");
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for LimitedSide {
    fn drop(&mut self) {
        // The process ends at the end of its input.
        drop(self.stdin.take());
        let _ = self.process.wait();
    }
}
