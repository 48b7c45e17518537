//! Steps that say what they do and how long they took.

use std::{
    env,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::Outcome;

/// A run of named steps; the first that fails ends it.
pub struct Steps {
    count: usize,
    done: Vec<(String, Duration)>,
}

impl Steps {
    /// So many steps are to come.
    pub fn new(count: usize) -> Self {
        Self { count, done: Vec::new() }
    }

    /// Runs a command, with its output for all to see.
    pub fn run(&mut self, name: &str, command: &mut Command) -> Outcome {
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let program = command.get_program().to_string_lossy().into_owned();
        eprintln!(
            "==> [{}/{}] {name}: {program} {}",
            self.done.len() + 1,
            self.count,
            arguments.join(" ")
        );
        forget_this_package(command);
        let started = Instant::now();
        let status =
            command.status().map_err(|error| format!("{name}: cannot run {program}: {error}"))?;
        let took = started.elapsed();
        eprintln!("    {name} took {:.1} s", took.as_secs_f64());
        if !status.success() {
            return Err(format!("{name} failed"));
        }
        self.done.push((name.to_owned(), took));
        Ok(())
    }

    /// Says what was done.
    pub fn finish(self) {
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        for (name, took) in &self.done {
            eprintln!("{:>8.1} s  {name}", took.as_secs_f64());
        }
        eprintln!("{:>8.1} s  in all; every step passed", total.as_secs_f64());
    }
}

/// Cargo tells whom it runs what package that is. Build scripts that listen to it (`ring`'s) would take every
/// command for a change, and half of the tree would be built again whenever people call cargo by themselves.
fn forget_this_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_") || told.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// The cargo that runs this.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Whether a program is there.
pub fn installed(program: &str) -> bool {
    let probe =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}
