//! A control group: a memory limit for processes that includes the page cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use forebay_core::ByteSize;

/// A control group with a limit. Dropping it removes the group; its processes must have ended.
#[derive(Debug)]
pub struct ControlGroup {
    directory: PathBuf,
}

impl ControlGroup {
    /// Limits all processes of the group together to `memory`. Needs root.
    pub fn new(memory: ByteSize) -> anyhow::Result<Self> {
        // Version 1 of control groups has one tree per resource, version 2 one tree for all.
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "cgroup.controllers", "memory.max"),
        ];
        let kind = kinds.into_iter().find(|(root, known, _)| Path::new(root).join(known).exists());
        let (root, _, limit) = kind.context("this system has no control groups for memory")?;
        let name = format!("forebay-demo-{}-{}", std::process::id(), fastrand::u32(..));
        let group = Self { directory: Path::new(root).join(name) };
        fs::create_dir(&group.directory).context("only root can make a control group")?;
        fs::write(group.directory.join(limit), memory.0.to_string())
            .context("this process may not limit memory")?;
        Ok(group)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Moves this process into a group.
pub fn join(group: &Path) -> anyhow::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
        .context("cannot join the control group")
}
