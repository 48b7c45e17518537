//! Virtual environments under `target/`: requirements pinned with hashes, created once, rebuilt
//! when the requirements change.
//!
//! PyTorch takes 5 GB, so what does not need it has an environment without it.

use std::{fs, path::PathBuf, process::Command};

use crate::paths::{PACKAGE, interop, root, target};

/// The requirements that are installed; written last, so that an environment without it is
/// incomplete.
const STAMP: &str = "installed.txt";

/// A virtual environment.
#[derive(Debug, Clone, Copy)]
pub struct Environment {
    /// As `cargo xtask environment NAME` calls it.
    pub name: &'static str,
    folder: &'static str,
    requirements: fn() -> PathBuf,
}

/// Clients and servers of other projects.
pub const INTEROP: Environment = Environment {
    name: "interop",
    folder: "venv",
    requirements: || interop().join("requirements.txt"),
};
/// PyTorch, and what the tests of the Python package need.
pub const TRAIN: Environment = Environment {
    name: "train",
    folder: "venv-train",
    requirements: || root().join(PACKAGE).join("requirements-test.txt"),
};
/// Arrow libraries, with which streams are tested.
pub const WITNESSES: Environment = Environment {
    name: "witnesses",
    folder: "venv-witnesses",
    requirements: || root().join(PACKAGE).join("requirements-witnesses.txt"),
};
/// libcachesim.
pub const LIBCACHESIM: Environment = Environment {
    name: "libcachesim",
    folder: "venv-libcachesim",
    requirements: || interop().join("requirements-libcachesim.txt"),
};
/// Tools that need nothing of ours.
pub const TOOLS: Environment = Environment {
    name: "tools",
    folder: "venv-tools",
    requirements: || root().join("xtask/requirements.txt"),
};

/// All of them.
pub const ALL: [Environment; 5] = [INTEROP, TRAIN, WITNESSES, LIBCACHESIM, TOOLS];

impl Environment {
    /// Creates the environment unless it is up to date, and returns its Python.
    pub fn ensure(&self) -> Result<PathBuf, String> {
        let requirements = (self.requirements)();
        let pinned = fs::read_to_string(&requirements)
            .map_err(|error| format!("cannot read {}: {error}", requirements.display()))?;
        let folder = self.folder();
        let stamp = folder.join(STAMP);
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pinned) {
            return Ok(self.python());
        }
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        let mut install = Command::new(self.python());
        run(install.args(pip).arg("--requirement").arg(&requirements))?;
        fs::write(&stamp, pinned)
            .map_err(|error| format!("cannot write {}: {error}", stamp.display()))?;
        Ok(self.python())
    }

    /// The Python of the environment, if it was created.
    #[cfg(test)]
    pub fn existing(&self) -> Option<PathBuf> {
        self.folder().join(STAMP).is_file().then(|| self.python())
    }

    fn folder(&self) -> PathBuf {
        target().join(self.folder)
    }

    /// The Python of the environment, whether or not it exists yet.
    pub fn python(&self) -> PathBuf {
        self.folder().join("bin/python")
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed: {}", errors.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// pip then refuses a package that was replaced, and one that is not listed.
    #[test]
    fn every_requirement_has_a_hash() {
        for environment in ALL {
            let text = fs::read_to_string((environment.requirements)()).unwrap();
            let pinned = text.lines().filter(|line| !line.starts_with(['#', ' ']));
            let without: Vec<&str> = pinned.filter(|line| !line.ends_with('\\')).collect();
            assert!(without.is_empty(), "{}: {without:?}", environment.name);
            assert!(text.contains("--hash=sha256:"), "{}", environment.name);
        }
    }
}
