//! The processes of the demonstration: all of them are started here, and ended here, whatever happens.
//!
//! A Ctrl-C reaches this process alone, which then ends the others; they are in groups of their own. Should
//! this one be killed outright, they notice that and leave by themselves.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;

/// All that run.
#[derive(Debug, Default)]
pub struct Processes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<u32, Child>,
    /// Nothing is started any more.
    is_over: bool,
}

/// This program, once more, with nothing in its environment that would make it another.
pub fn this_program() -> anyhow::Result<Command> {
    let mut command = Command::new(env::current_exe().context("find this program")?);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    command.env("FOREBAY_LOG", "warn");
    Ok(command)
}

impl Processes {
    /// Starts a process. Returns its number, and what it says.
    pub fn start(&self, command: &mut Command) -> anyhow::Result<(u32, BufReader<ChildStdout>)> {
        let mut state = self.0.lock();
        ensure!(!state.is_over, "the demonstration is over");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let said = BufReader::new(child.stdout.take().context("listen to a process")?);
        let id = child.id();
        state.running.insert(id, child);
        Ok((id, said))
    }

    /// The same for one that says a line when it is ready; it is waited for.
    pub fn start_server(&self, command: &mut Command) -> anyhow::Result<u32> {
        let (id, mut said) = self.start(command)?;
        let mut line = String::new();
        said.read_line(&mut line)?;
        ensure!(!line.is_empty(), "it did not start");
        Ok(id)
    }

    /// Waits for a process to end; says how it did, or nothing if it was ended here.
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

    /// Ends all, and starts none any more.
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

/// Kills first and then waits, so that nobody waits for one after the other.
fn end(children: impl IntoIterator<Item = Child>) {
    let mut children: Vec<Child> = children.into_iter().collect();
    for child in &mut children {
        let _ = child.kill();
    }
    for child in &mut children {
        let _ = child.wait();
    }
}
