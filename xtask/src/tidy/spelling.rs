//! Rule `spelling`: the program `typos` on the whole repository, with the exceptions of
//! `typos.toml`.

use std::{path::Path, process::Command};

use serde::Deserialize;

use super::Violation;
use crate::environments;

pub const REMEDY: &str = "correct the word, or add it to typos.toml if it is right";

pub fn check(root: &Path) -> Result<Vec<Violation>, String> {
    let python = environments::TOOLS.ensure()?;
    run(&python.with_file_name("typos"), root)
}

fn run(program: &Path, root: &Path) -> Result<Vec<Violation>, String> {
    let mut typos = Command::new(program);
    typos.args(["--format", "json"]).current_dir(root);
    let output = typos.output().map_err(|error| format!("cannot run typos: {error}"))?;
    // 2 means that there are misspellings.
    if !matches!(output.status.code(), Some(0 | 2)) {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    violations(&String::from_utf8_lossy(&output.stdout))
}

/// A line of the output of typos. Other kinds of lines lack these fields.
#[derive(Deserialize)]
struct Typo {
    path: String,
    /// Absent if the name of the file is misspelled.
    line_num: Option<usize>,
    #[serde(rename = "typo")]
    word: String,
    corrections: Vec<String>,
}

fn violations(output: &str) -> Result<Vec<Violation>, String> {
    let mut found = Vec::new();
    for line in output.lines().filter(|line| line.contains("\"type\":\"typo\"")) {
        let typo: Typo = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let message = format!("`{}` should be `{}`", typo.word, typo.corrections.join("` or `"));
        let path = typo.path.trim_start_matches("./").to_owned();
        found.push(Violation { path, line: typo.line_num, message });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::root;

    #[test]
    fn misspellings_become_violations() {
        let output = "{\"type\":\"binary_file\",\"path\":\"./x.png\"}\n\
            {\"type\":\"typo\",\"path\":\"./a.md\",\"line_num\":3,\"byte_offset\":1,\
             \"typo\":\"teh\",\"corrections\":[\"the\"]}\n";
        assert_eq!(
            violations(output).unwrap(),
            [Violation::at("a.md", 3, "`teh` should be `the`")]
        );
    }

    /// Runs typos where it is installed; `cargo xtask tidy` installs it.
    #[test]
    fn a_misspelled_fixture_is_refused() {
        let Some(python) = environments::TOOLS.existing() else {
            eprintln!("not run: typos is not installed; `cargo xtask tidy spelling` installs it");
            return;
        };
        let fixture = root().join("xtask/fixtures/spelling");
        let found = run(&python.with_file_name("typos"), &fixture).unwrap();
        assert_eq!(found, [Violation::at("page.txt", 1, "`recieve` should be `receive`")]);
    }
}
