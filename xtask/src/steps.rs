//! A sequence of commands: each is printed with its time, and the first that fails ends it.

use std::{
    env,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::Outcome;

/// Commands that were run, for a command whose steps all depend on each other. `cargo xtask test`
/// has [`crate::schedule`].
#[derive(Default)]
pub struct Steps {
    done: Vec<(String, Duration)>,
}

impl Steps {
    /// Runs a command; its output is not captured.
    pub fn run(&mut self, name: &str, command: &mut Command) -> Outcome {
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let program = command.get_program().to_string_lossy().into_owned();
        eprintln!("==> [{}] {name}: {program} {}", self.done.len() + 1, arguments.join(" "));
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

    /// Prints the time of every step.
    pub fn finish(self) {
        let total: Duration = self.done.iter().map(|(_, took)| *took).sum();
        for (name, took) in &self.done {
            eprintln!("{:>8.1} s  {name}", took.as_secs_f64());
        }
        eprintln!("{:>8.1} s  in all; every step passed", total.as_secs_f64());
    }
}

/// Removes the variables by which cargo describes this package to the programs it runs. Some build
/// scripts depend on them (`ring`'s), so half of the tree would be rebuilt whenever cargo is run
/// with and without `xtask` in turn.
pub fn forget_this_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

/// The cargo that runs this program.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Whether a program can be run.
pub fn is_installed(program: &str) -> bool {
    let probe =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}
