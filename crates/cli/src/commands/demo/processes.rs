//! The processes of the demo: started and ended here, also after an error.
//!
//! Child processes have their own process groups, so Ctrl-C reaches this process alone, which ends
//! the others. If this process is killed, the children notice and exit by themselves.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;

/// The running processes.
#[derive(Debug, Default)]
pub struct Processes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<u32, Child>,
    /// No more processes are started.
    is_over: bool,
}

/// A command that runs this program without `FOREBAY_*` variables.
pub fn this_program() -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.env("FOREBAY_LOG", "warn");
    Ok(command)
}

impl Processes {
    /// Starts a process. Returns its id and its standard output.
    pub fn start(&self, command: &mut Command) -> anyhow::Result<(u32, BufReader<ChildStdout>)> {
        let mut state = self.0.lock();
        ensure!(!state.is_over, "the demo has ended");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let stdout =
            BufReader::new(child.stdout.take().context("cannot open the pipe of a process")?);
        let id = child.id();
        state.running.insert(id, child);
        Ok((id, stdout))
    }

    /// Fails if the demo has ended.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.0.lock().is_over, "the demo has ended");
        Ok(())
    }

    /// Starts a server, and waits for the line that it prints when it is ready.
    pub fn start_server(&self, command: &mut Command) -> anyhow::Result<u32> {
        let (id, mut stdout) = self.start(command)?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the process ended before it was ready");
        Ok(id)
    }

    /// Waits for the end of a process; `None` if [`Self::end`] has ended it.
    pub fn wait(&self, id: u32) -> anyhow::Result<Option<ExitStatus>> {
        let child = self.0.lock().running.remove(&id);
        Ok(child.map(|mut child| child.wait()).transpose()?)
    }

    /// Ends a process.
    pub fn end(&self, id: u32) {
        if let Some(child) = self.0.lock().running.remove(&id) {
            end([child]);
        }
    }

    /// Ends all processes, and starts no more.
    pub fn end_all(&self) {
        let mut state = self.0.lock();
        state.is_over = true;
        end(std::mem::take(&mut state.running).into_values());
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Kills all processes before it waits for the first, so that they end in parallel.
fn end(children: impl IntoIterator<Item = Child>) {
    let mut children: Vec<Child> = children.into_iter().collect();
    for child in &mut children {
        let _ = child.kill();
    }
    for child in &mut children {
        let _ = child.wait();
    }
}
