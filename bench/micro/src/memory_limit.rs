//! A memory limit for a child process that includes the page cache: a control group.

use std::{fs, path::PathBuf, process::Child};

use anyhow::Context as _;
use forebay_core::ByteSize;

/// A control group. Dropping it removes the group; its processes must have ended.
pub struct MemoryLimit {
    directory: PathBuf,
}

impl MemoryLimit {
    /// Limits all processes of the group together to `memory`, including the page cache.
    pub fn new(memory: ByteSize) -> anyhow::Result<Self> {
        let name = format!("forebay-bench-{}-{}", std::process::id(), fastrand::u32(..));
        // Version 1 of control groups has one tree per resource, version 2 one tree for all.
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

    /// Moves a process into the group.
    pub fn apply(&self, child: &Child) -> anyhow::Result<()> {
        let processes = self.directory.join("cgroup.procs");
        fs::write(processes, child.id().to_string()).context("move a process to a control group")
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // Pages that the group has read leave the page cache with it.
        let _ = fs::remove_dir(&self.directory);
    }
}
