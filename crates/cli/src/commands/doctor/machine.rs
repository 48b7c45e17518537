//! Checks of the machine: kernel, `io_uring`, direct I/O, space, memory, open files and sockets.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use forebay_core::{ByteSize, agent::agent_cache::AGENT_CACHE_SIZE_MAX};
use forebay_flash::{io::Backend, size_of};
use forebay_node::{Config, MemoryLimit, memory_limit, memory_max};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
    process::{Resource, getrlimit},
};

use super::{Finding, failed, ok, warning};

/// The oldest kernel on which `io_uring` is known to work well.
const KERNEL_MIN: (u32, u32) = (5, 15);
/// Descriptors of a node besides its connections.
const OTHER_FILES: u64 = 64;
/// The longest path that a Unix socket can have.
const SOCKET_PATH_MAX: usize = 107;

/// Runs all checks, also on the sockets of the node. A running node has its space already.
pub fn check(config: &Config, sockets: &[PathBuf], is_running: bool) -> Vec<Finding> {
    let mut findings = vec![kernel(), uring(config.io), direct_io(config)];
    findings.extend(space(config, is_running));
    findings.extend([memory(config), agent_memory(), files(config)]);
    findings.extend(sockets.iter().map(|path| socket(path)));
    findings
}

fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim().to_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < KERNEL_MIN => {
            let (major, minor) = KERNEL_MIN;
            let remedy = format!("use {major}.{minor} or newer, or set `io = \"threads\"`");
            warning("kernel", release, remedy)
        }
        _ => ok("kernel", release),
    }
}

fn uring(backend: Backend) -> Finding {
    if backend == Backend::Threads {
        return ok("io_uring", "not used: `io` is \"threads\"");
    }
    match io_uring::IoUring::new(8) {
        Ok(_) => ok("io_uring", "allowed"),
        Err(error) => {
            let remedy = "allow it in the seccomp profile of the container, and check \
                          /proc/sys/kernel/io_uring_disabled";
            let found = format!("not allowed ({error})");
            match backend {
                Backend::Uring => failed("io_uring", found, remedy),
                _ => warning("io_uring", format!("{found}; threads are used instead"), remedy),
            }
        }
    }
}

fn direct_io(config: &Config) -> Finding {
    let directory = nearest(&config.directory);
    let shown = directory.display();
    let flags = OFlags::TMPFILE | OFlags::DIRECT | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(&directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) => ok("direct I/O", format!("works in `{shown}`")),
        Err(Errno::INVAL) => {
            let found = format!("not supported by the file system of `{shown}`");
            failed(
                "direct I/O",
                found,
                "put `directory` or `devices` on ext4, xfs or a block device",
            )
        }
        // The file system has no unnamed files, which says nothing about direct I/O.
        Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
            ok("direct I/O", format!("not tested in `{shown}`"))
        }
        Err(error) => {
            let found = format!("cannot write to `{shown}` ({error})");
            failed("direct I/O", found, "name another `directory`, or change its permissions")
        }
    }
}

/// Whether a node can use it as a device. Opening a pipe to read and write does not block.
fn is_device(file: &fs::File) -> bool {
    file.metadata().is_ok_and(|about| about.is_file() || about.file_type().is_block_device())
}

fn space(config: &Config, is_running: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &config.devices {
        let shown = device.display();
        // Block devices and files alike. The node makes a missing file.
        match fs::OpenOptions::new().read(true).write(true).open(device) {
            Ok(file) if !is_device(&file) => {
                let found = format!("`{shown}` is neither a file nor a block device");
                findings.push(failed("device", found, "name a file or a block device"));
            }
            Ok(_) => findings.push(ok("device", format!("`{shown}` is writable"))),
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && !shown.to_string().starts_with("/dev/") => {}
            Err(error) => {
                let remedy = "check its path and its permissions";
                findings.push(failed("device", format!("`{shown}`: {error}"), remedy));
            }
        }
    }
    if !config.devices.is_empty() {
        return findings;
    }
    let directory = nearest(&config.directory);
    let Ok(space) = rustix::fs::statvfs(&directory) else { return findings };
    let free = ByteSize(space.f_bavail.saturating_mul(space.f_frsize));
    let reserved = size_of(&config.directory.join("cache.flash")).ok().flatten();
    findings.push(match (config.capacity, reserved) {
        (None, Some(reserved)) => ok("space", format!("{reserved} reserved, {free} free")),
        (Some(wanted), reserved) if wanted.0 > free.0 + reserved.map_or(0, |size| size.0) => {
            let found = format!("`capacity` is {wanted}, but {free} are free");
            let remedy = "free some space, lower `capacity`, or put `directory` on another disk";
            if is_running {
                warning("space", found, remedy)
            } else {
                failed("space", found, remedy)
            }
        }
        _ => {
            let found = format!("would reserve {} of {free} free", config.capacity_of(free));
            ok("space", found)
        }
    });
    findings
}

/// The same number as in the log of the node, and in its metric `memory_max_bytes`.
fn memory(config: &Config) -> Finding {
    let needed = memory_max(config, capacity(config));
    let Some(MemoryLimit { size: limit, is_group }) = memory_limit() else {
        return ok("memory", format!("up to {needed}; no limit is known"));
    };
    let source = if is_group { "the control group" } else { "the machine" };
    if needed > limit {
        let found = format!("{source} has {limit}; a busy node uses up to {needed}");
        let remedy = "raise the limit, or lower `memory_cache`, `shared_memory`, \
                      `connection_memory`, `max_connections` or `capacity`";
        return warning("memory", found, remedy);
    }
    ok("memory", format!("up to {needed} of {limit} ({source})"))
}

/// The memory of each job's agent, which is not part of the node's.
fn agent_memory() -> Finding {
    let given = std::env::var("FOREBAY_AGENT_MEMORY").ok();
    match given.as_deref().map(str::parse::<ByteSize>) {
        None => {
            let each = AGENT_CACHE_SIZE_MAX;
            ok("agent memory", format!("{each} per job; FOREBAY_AGENT_MEMORY sets another size"))
        }
        Some(Ok(each)) => ok("agent memory", format!("{each} per job (FOREBAY_AGENT_MEMORY)")),
        Some(Err(problem)) => {
            let found = format!("FOREBAY_AGENT_MEMORY is no size: {problem}");
            failed("agent memory", found, "set a size such as 256MiB, or unset it")
        }
    }
}

/// The capacity that the node has, or will have.
fn capacity(config: &Config) -> ByteSize {
    let devices = match config.devices.as_slice() {
        [] => vec![config.directory.join("cache.flash")],
        named => named.to_vec(),
    };
    let size = |path: &PathBuf| size_of(path).ok().flatten();
    let existing: Vec<ByteSize> = devices.iter().filter_map(size).collect();
    if config.capacity.is_none() && existing.len() == devices.len() {
        return ByteSize(existing.iter().map(|size| size.0).sum());
    }
    let space = rustix::fs::statvfs(nearest(&config.directory));
    let free = space.map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize));
    config.capacity_of(ByteSize(free))
}

fn files(config: &Config) -> Finding {
    // The node raises its own limit to the maximum.
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let needed = config.max_connections as u64 + OTHER_FILES;
    if needed > limit {
        let found =
            format!("the limit is {limit}, but `max_connections` is {}", config.max_connections);
        return warning(
            "open files",
            found,
            format!("raise the limit (ulimit -Hn {needed}), or lower `max_connections`"),
        );
    }
    ok("open files", format!("needs {needed}, limit {limit}"))
}

fn socket(path: &Path) -> Finding {
    let shown = path.display();
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let found = format!("`{shown}` is longer than {SOCKET_PATH_MAX} bytes");
        return failed("socket", found, "name a shorter path with `socket` or $FOREBAY_SOCKET");
    }
    let directory = path.parent().map(Path::to_owned).unwrap_or_default();
    match fs::symlink_metadata(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            ok("socket", format!("`{shown}`; the node makes its directory"))
        }
        Err(error) => {
            let found = format!("`{}`: {error}", directory.display());
            failed("socket", found, "name a socket in a directory of your own")
        }
        Ok(metadata) => {
            let is_mine = metadata.uid() == rustix::process::geteuid().as_raw();
            if is_mine && metadata.is_dir() && metadata.mode() & 0o022 == 0 {
                return ok("socket", format!("`{shown}`"));
            }
            let found =
                format!("`{}` is a link, or other users can write to it", directory.display());
            let remedy = format!("chmod 700 `{}`, or name another `socket`", directory.display());
            failed("socket", found, remedy)
        }
    }
}

/// The directory, or its nearest ancestor that exists.
fn nearest(directory: &Path) -> PathBuf {
    let existing = directory.ancestors().find(|directory| directory.is_dir());
    match existing {
        Some(existing) if !existing.as_os_str().is_empty() => existing.to_owned(),
        _ => PathBuf::from("."),
    }
}
