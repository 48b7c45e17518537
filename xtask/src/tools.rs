//! Tools of cargo, built from source into `target/tools` when they are first needed.
//!
//! Versions are pinned, so that a new release cannot fail a build. They are built without
//! optimisation: that takes a minute instead of several, and each works for a second.

use std::{env, path::PathBuf, process::Command};

use crate::{paths::target, steps::cargo};

/// A tool.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
}

impl Tool {
    /// Where the program is, once it is installed.
    pub fn path(self) -> PathBuf {
        folder().join("bin").join(self.name)
    }

    /// The program, which is installed if it is missing.
    pub fn installed(self) -> Result<PathBuf, String> {
        let (Self { name, version }, path) = (self, self.path());
        if !path.is_file() {
            eprintln!("installing {name} {version} into target/tools, about a minute");
            let mut install = cargo(&["install", "--locked", "--debug", "--quiet", "--root"]);
            install.arg(folder()).args(["--version", version, name]);
            let output = install.output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                let reason = String::from_utf8_lossy(&output.stderr);
                let line = reason.lines().next().unwrap_or("it says no reason");
                return Err(format!("{name} cannot be installed: {line}"));
            }
        }
        Ok(path)
    }
}

/// Lets cargo find the installed tools as its subcommands.
pub fn add_to_path(command: &mut Command) {
    let others = env::var_os("PATH").unwrap_or_default();
    let all = [folder().join("bin")].into_iter().chain(env::split_paths(&others));
    if let Ok(path) = env::join_paths(all) {
        command.env("PATH", path);
    }
}

fn folder() -> PathBuf {
    target().join("tools")
}
