//! Where things are: the root of the repository, what is built, and the folders of Python code.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The Python package.
pub const PACKAGE: &str = "python";

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Where everything is built: `$CARGO_TARGET_DIR`, or `target`.
pub fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The binary, as built with a profile.
pub fn binary(profile: &str) -> PathBuf {
    target().join(profile).join("forebay")
}

/// The tests with clients and servers of other projects.
pub fn interop() -> PathBuf {
    let folders = ["interop", "tests/interop"].map(|folder| root().join(folder));
    let [first, second] = folders;
    if first.is_dir() { first } else { second }
}

/// The folders whose Python code belongs to us and is linted together with the package.
pub fn linted() -> impl Iterator<Item = &'static str> {
    [PACKAGE, "bench", "evals", "examples"]
        .into_iter()
        .filter(|folder| root().join(folder).is_dir())
}
