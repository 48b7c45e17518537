//! Rule `dependencies`: cargo-deny on banned crates, licences and sources, as `deny.toml` says, and
//! on advisories where their database can be fetched.

use std::{path::Path, process::Command};

use serde_json::Value;

use super::Violation;
use crate::{paths::root, tools::Tool};

pub const REMEDY: &str = "choose another dependency, or change deny.toml with a reason";

const DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

pub fn check(workspace: &Path) -> Result<Vec<Violation>, String> {
    let program = DENY.installed()?;
    let mut found = run(&program, workspace, &["bans", "licenses", "sources"])?;
    let database = Command::new(&program).args(["fetch", "db"]).output();
    if database.is_ok_and(|fetched| fetched.status.success()) {
        found.extend(run(&program, workspace, &["advisories"])?);
    } else {
        eprintln!("dependencies   advisories are not checked: their database cannot be fetched");
    }
    Ok(found)
}

/// Runs some checks on the `workspace`, with our `deny.toml`.
fn run(program: &Path, workspace: &Path, checks: &[&str]) -> Result<Vec<Violation>, String> {
    let mut deny = Command::new(program);
    deny.args(["--format", "json", "--config"]).arg(root().join("deny.toml"));
    deny.arg("check").args(checks).current_dir(workspace);
    let output = deny.output().map_err(|error| format!("cannot run cargo-deny: {error}"))?;
    let found = violations(&String::from_utf8_lossy(&output.stderr));
    if found.is_empty() && !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo-deny failed: {}", text.lines().last().unwrap_or_default()));
    }
    Ok(found)
}

/// The errors among the diagnostics, one JSON object per line.
fn violations(output: &str) -> Vec<Violation> {
    let diagnostics = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let errors = diagnostics
        .filter(|one| one["type"] == "diagnostic" && one["fields"]["severity"] == "error");
    let violation = |one: Value| {
        let fields = &one["fields"];
        let message = fields["message"].as_str().unwrap_or_default();
        let about = fields["labels"][0]["span"].as_str().unwrap_or_default();
        let about = about.lines().next().unwrap_or_default();
        Violation::of("Cargo.lock", format!("{message}: {about}"))
    };
    errors.map(violation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_violations() {
        let output = r#"{"type":"diagnostic","fields":{"severity":"note","message":"m"}}
{"type":"diagnostic","fields":{"severity":"error","message":"crate 'a = 1.0' is explicitly banned","labels":[{"span":"a"}]}}
{"type":"summary","fields":{}}"#;
        let message = "crate 'a = 1.0' is explicitly banned: a";
        assert_eq!(violations(output), [Violation::of("Cargo.lock", message)]);
    }

    /// Runs cargo-deny where it is installed; `cargo xtask tidy` installs it.
    #[test]
    fn a_banned_dependency_is_refused() {
        let program = DENY.path();
        if !program.is_file() {
            eprintln!("not run: cargo-deny is not installed; `cargo xtask tidy` installs it");
            return;
        }
        let fixture = root().join("xtask/fixtures/dependencies");
        let found = run(&program, &fixture, &["bans"]).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("openssl-sys"), "{found:?}");
    }
}
