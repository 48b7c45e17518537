//! Streams and the page cache under one memory limit: data of four times the memory.
//!
//! Each side is a process of its own in a control group. The limit includes the page cache and the
//! process itself, so a stream's buffers and a mapped file's pages count alike.

use std::{fs::File, io::BufWriter, path::Path, process::Command};

use anyhow::Context as _;
use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use forebay_bench_stats::{Row, Target, compare};
use forebay_core::ByteSize;

use crate::{limited_side::LimitedSide, memory_limit::MemoryLimit, note};

/// Size of the data, as a multiple of the memory.
const TIMES_MEMORY: u64 = 4;

/// The data of all sides.
pub struct Data<'a> {
    /// Directory of the store.
    pub store: &'a Path,
    /// A file of as many bytes as the stream.
    pub file: &'a Path,
    /// An Arrow file with the batches of the table's stream.
    pub table: &'a Path,
    pub bytes: u64,
    pub pairs: usize,
    /// A Python with pyarrow and forebay.
    pub python: Option<&'a Path>,
}

/// Writes an Arrow file that a reader can map.
pub fn write_table(path: &Path, batch: &RecordBatch, batches: u64) -> anyhow::Result<()> {
    let mut writer = FileWriter::try_new(BufWriter::new(File::create(path)?), batch.schema_ref())?;
    for _ in 0..batches {
        writer.write(batch)?;
    }
    writer.into_inner()?.into_inner()?.sync_all()?;
    Ok(())
}

pub fn rows(data: &Data<'_>) -> anyhow::Result<Vec<Row>> {
    if let Err(error) = MemoryLimit::new(data.memory()) {
        note(&format!("the page cache is not compared: {error:#}"));
        return Ok(Vec::new());
    }
    let mut rows = data.against_page_cache()?;
    match data.python {
        Some(python) => rows.push(data.against_pyarrow(python)?),
        None => note("pyarrow is not compared: name a Python that has it with --python"),
    }
    Ok(rows)
}

impl Data<'_> {
    fn memory(&self) -> ByteSize {
        ByteSize(self.bytes / TIMES_MEMORY)
    }

    fn side(&self, kind: &str, path: &Path) -> anyhow::Result<LimitedSide> {
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["stream-side", kind]).arg(path);
        LimitedSide::start(command, self.memory())
    }

    fn against_page_cache(&self) -> anyhow::Result<Vec<Row>> {
        note("read under a memory limit, against the page cache");
        let mut ours = self.side("stream", self.store)?;
        let mut buffered = self.side("buffered", self.file)?;
        let mut mapped = self.side("mapped", self.file)?;
        let mut rows = Vec::new();
        rows.push(compare(
            "processor time of reading, verified",
            "s/GB",
            "buffered read",
            Target::AtMost(0.35),
            self.pairs,
            || cpu(&mut ours, "read"),
            || cpu(&mut buffered, "read"),
        )?);
        // A mapped file costs less processor time than verification does, so it is shown.
        let targets = [("buffered read", Target::Open), ("mapped file", Target::AtLeast(1.25))];
        for ((against, target), theirs) in targets.into_iter().zip([&mut buffered, &mut mapped]) {
            rows.push(compare(
                "read and summed",
                "GB/s",
                against,
                target,
                self.pairs,
                || speed(&mut ours),
                || speed(theirs),
            )?);
        }
        rows.push(compare(
            "processor time of reading and summing",
            "s/GB",
            "mapped file",
            Target::Open,
            self.pairs,
            || cpu(&mut ours, "sum"),
            || cpu(&mut mapped, "sum"),
        )?);
        Ok(rows)
    }

    fn against_pyarrow(&self, python: &Path) -> anyhow::Result<Row> {
        note("record batches under a memory limit, against pyarrow");
        let side = |kind: &str, path: &Path| {
            let mut command = Command::new(python);
            command.args(["bench/stream/arrow_side.py", kind]).arg(path);
            LimitedSide::start(command, self.memory())
        };
        let (mut ours, mut theirs) = (side("forebay", self.store)?, side("pyarrow", self.table)?);
        compare(
            "record batches summed in Python, data 4 x memory",
            "GB/s",
            "pyarrow, mapped IPC",
            Target::AtLeast(1.25),
            self.pairs,
            || speed(&mut ours),
            || speed(&mut theirs),
        )
    }
}

/// Gigabytes per second of reading and summing.
fn speed(side: &mut LimitedSide) -> anyhow::Result<f64> {
    let [seconds, _, bytes] = side.ask("sum")?;
    Ok(bytes / seconds / 1e9)
}

/// Seconds of processor time per gigabyte.
fn cpu(side: &mut LimitedSide, request: &str) -> anyhow::Result<f64> {
    let [_, seconds, bytes] = side.ask(request)?;
    Ok(seconds * 1e9 / bytes)
}
