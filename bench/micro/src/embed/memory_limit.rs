//! A limit on memory that the page cache counts against: a control group for a child process.

use std::{fs, path::PathBuf, process::Child};

use anyhow::Context as _;
use forebay_core::ByteSize;

/// A control group; it goes when the last process has left and this is dropped.
pub struct Limit {
    directory: PathBuf,
}

impl Limit {
    /// So much memory for all processes in it together, page cache and all.
    pub fn new(memory: ByteSize) -> anyhow::Result<Self> {
        let name = format!("forebay-bench-{}-{}", std::process::id(), fastrand::u32(..));
        // The older kind of control groups has a tree for each resource, the newer one tree for all.
        let kinds =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let (root, file) = kinds
            .into_iter()
            .find(|(root, file)| {
                *file != "memory.max" || PathBuf::from(root).join("cgroup.controllers").exists()
            })
            .filter(|(root, _)| PathBuf::from(root).is_dir())
            .context("find control groups")?;
        let limit = Self { directory: PathBuf::from(root).join(name) };
        fs::create_dir(&limit.directory).context("make a control group (as root)")?;
        fs::write(limit.directory.join(file), memory.0.to_string()).context("limit memory")?;
        Ok(limit)
    }

    /// Puts a process into it.
    pub fn hold(&self, child: &Child) -> anyhow::Result<()> {
        let processes = self.directory.join("cgroup.procs");
        fs::write(processes, child.id().to_string()).context("put a process into a control group")
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // Pages that were read on its account leave with it.
        let _ = fs::remove_dir(&self.directory);
    }
}
