//! Core dumps: switched off for processes that hold secrets and other users' data.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Ends core dumps of this process, and reading of its memory by other processes of its user. The
/// resource limit alone would not do: the kernel ignores it where a program collects core dumps.
pub fn disable_core_dumps() -> io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
