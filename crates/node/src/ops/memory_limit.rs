//! Memory limit: the memory of the machine, or the limit of the process's control group if that is
//! lower.
//!
//! In a container the machine's memory says nothing: a process that uses a share of it may be
//! killed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use forebay_core::{ByteSize, node::memory_plan::MemoryPlan};

/// Mount point of control groups, of both versions.
const GROUPS: &str = "/sys/fs/cgroup";

/// The memory that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub size: ByteSize,
    /// Whether a control group sets the limit, and not the machine.
    pub is_group: bool,
}

/// The memory that this process may use, if the system reports it.
pub fn memory_limit() -> Option<MemoryLimit> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups, Path::new(GROUPS));
    let limits = limits.iter().filter_map(|file| {
        // A group without a limit has "max", or a number beyond any memory.
        fs::read_to_string(file).ok()?.trim().parse().ok().map(ByteSize)
    });
    let group = limits.min().filter(|group| machine.is_none_or(|machine| *group < machine));
    let group = group.map(|size| MemoryLimit { size, is_group: true });
    group.or(machine.map(|size| MemoryLimit { size, is_group: false }))
}

/// The sizes that are not configured. Computed once: a limit that changes later needs a restart.
pub(crate) fn plan() -> &'static MemoryPlan {
    static PLAN: LazyLock<MemoryPlan> =
        LazyLock::new(|| MemoryPlan::new(memory_limit().map(|limit| limit.size)));
    &PLAN
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<ByteSize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(ByteSize::kib)
}

/// Limit files of the groups in `/proc/self/cgroup` and of all their ancestors.
fn limit_files(own: &str, groups: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            (groups.to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (groups.join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|group| root.join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_files_of_both_versions_are_found() {
        let own = "5:cpu,cpuacct:/jobs\n4:memory:/jobs/one\n0::/user.slice/two\nnonsense\n";
        let found = limit_files(own, Path::new("/g"));
        let expected = [
            "/g/memory/jobs/one/memory.limit_in_bytes",
            "/g/memory/jobs/memory.limit_in_bytes",
            "/g/memory/memory.limit_in_bytes",
            "/g/user.slice/two/memory.max",
            "/g/user.slice/memory.max",
            "/g/memory.max",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    #[test]
    fn the_total_memory_is_parsed() {
        assert_eq!(total("MemTotal:       16 kB\nMemFree: 1 kB\n"), Some(ByteSize::kib(16)));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert!(
            memory_limit().is_some_and(|limit| limit.size > ByteSize::mib(64)),
            "this is Linux"
        );
    }
}
