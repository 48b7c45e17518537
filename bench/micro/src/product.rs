//! The product under test: the `forebay` binary, which benchmarks start as a user would.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

/// Which `forebay` binary to measure.
#[derive(Debug, clap::Args)]
pub struct ProductArg {
    /// Measure this `forebay` binary [default: the one beside this program].
    #[arg(long, value_name = "PROGRAM")]
    forebay: Option<PathBuf>,
}

impl ProductArg {
    /// A command that runs the binary. It logs warnings only.
    pub fn command(&self) -> anyhow::Result<Command> {
        let program = match &self.forebay {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("find this program")?.with_file_name("forebay"),
        };
        ensure!(
            program.is_file(),
            "there is no binary `{}`; build it with `cargo build --profile dist`, or name it with \
             --forebay",
            program.display()
        );
        let mut command = Command::new(program);
        command.env("FOREBAY_LOG", "warn").stdin(Stdio::null());
        Ok(command)
    }
}
