//! `cargo xtask tidy`: rules that keep the tree, the names and the prose as they are meant to be.
//!
//! A rule is a function from the files of the repository to violations. Rules are line-based on
//! purpose: they run on every check, so the whole set has to take less than two seconds. The price
//! is that they do not parse Rust or Python and can be fooled; a review is still needed.
//!
//! Two rules run other programs: `spelling` (typos, from PyPI) and `dependencies` (cargo-deny).

mod columns;
mod dependencies;
mod heads;
mod links;
mod map;
mod profiles;
mod spelling;
mod tree;
mod type_names;
mod words;

use std::{io::Write as _, path::Path};

use crate::Outcome;
use tree::Tree;

/// One place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    path: String,
    /// Counted from 1; absent if the rule is about the file as a whole.
    line: Option<usize>,
    message: String,
}

impl Violation {
    fn at(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: Some(line), message: message.into() }
    }

    fn of(path: &str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line: None, message: message.into() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(out, "{}:{line}: {}", self.path, self.message),
            None => write!(out, "{}: {}", self.path, self.message),
        }
    }
}

/// What a rule looks at.
enum Check {
    /// The text of the files.
    Text(fn(&Tree) -> Vec<Violation>),
    /// The repository on disk, through another program. `Err` says why the rule could not run.
    Program(fn(&Path) -> Result<Vec<Violation>, String>),
}

struct Rule {
    name: &'static str,
    /// Printed once below the violations.
    remedy: &'static str,
    check: Check,
    /// Printed on every run.
    note: Option<fn() -> String>,
}

const RULES: [Rule; 9] = [
    text("columns", columns::REMEDY, columns::check),
    text("words", words::REMEDY, words::check),
    text("heads", heads::REMEDY, heads::check),
    text("map", map::REMEDY, map::check),
    Rule {
        note: Some(type_names::note),
        ..text("type-names", type_names::REMEDY, type_names::check)
    },
    text("links", links::REMEDY, links::check),
    text("profiles", profiles::REMEDY, profiles::check),
    program("spelling", spelling::REMEDY, spelling::check),
    program(DEPENDENCIES, dependencies::REMEDY, dependencies::check),
];

const fn text(
    name: &'static str,
    remedy: &'static str,
    check: fn(&Tree) -> Vec<Violation>,
) -> Rule {
    Rule { name, remedy, check: Check::Text(check), note: None }
}

const fn program(
    name: &'static str,
    remedy: &'static str,
    check: fn(&Path) -> Result<Vec<Violation>, String>,
) -> Rule {
    Rule { name, remedy, check: Check::Program(check), note: None }
}

/// The slow rule: the first run installs cargo-deny, which takes about a minute on two cores.
const DEPENDENCIES: &str = "dependencies";

/// The options of `cargo xtask tidy`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// Prints the number of violations per rule, instead of the violations.
    count: bool,
    /// Leaves out [`DEPENDENCIES`].
    quick: bool,
    /// Names of rules; all if there are none.
    rules: Vec<&'a str>,
    /// Only violations in paths that begin with one of these; everywhere if there are none.
    paths: Vec<&'a str>,
}

impl<'a> Options<'a> {
    /// Parses arguments: flags, names of rules, and paths (any other argument that exists).
    pub fn parse(arguments: &[&'a str]) -> Result<Self, String> {
        let mut options = Self::default();
        for argument in arguments {
            match *argument {
                "--count" => options.count = true,
                "--quick" => options.quick = true,
                name if RULES.iter().any(|rule| rule.name == name) => options.rules.push(name),
                path if Path::new(path).exists() => {
                    options.paths.push(path.trim_start_matches("./"));
                }
                other => {
                    let names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
                    let names = names.join(", ");
                    return Err(format!("`{other}` is neither a rule ({names}) nor a path"));
                }
            }
        }
        Ok(options)
    }

    fn includes(&self, rule: &str) -> bool {
        match self.rules.as_slice() {
            [] => !(self.quick && rule == DEPENDENCIES),
            rules => rules.contains(&rule),
        }
    }

    fn is_about(&self, violation: &Violation) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|path| violation.path.starts_with(path))
    }
}

/// Runs the rules on the repository in the current directory and prints what they find.
pub fn run(options: &Options) -> Outcome {
    let root = Path::new(".");
    let tree = Tree::read(root).map_err(|error| format!("cannot read the repository: {error}"))?;
    let mut total = 0;
    for rule in RULES.iter().filter(|rule| options.includes(rule.name)) {
        let found = match rule.check {
            Check::Text(check) => Ok(check(&tree)),
            Check::Program(check) => check(root),
        };
        match found {
            Ok(mut violations) => {
                violations.retain(|violation| options.is_about(violation));
                total += violations.len();
                print(&report(rule, &violations, options.count));
            }
            Err(reason) => print(&format!("{:<14} not checked: {reason}\n", rule.name)),
        }
    }
    if total == 0 { Ok(()) } else { Err(format!("tidy: {total} violations")) }
}

/// Prints to standard output, which may be closed already (`cargo xtask tidy | head`).
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// The violations of a rule with its remedy, or their number alone.
fn report(rule: &Rule, violations: &[Violation], only_count: bool) -> String {
    let mut text = match violations.len() {
        0 => format!("{:<14} ok\n", rule.name),
        1 => format!("{:<14} 1 violation\n", rule.name),
        count => format!("{:<14} {count} violations\n", rule.name),
    };
    if only_count {
        return text;
    }
    if let Some(note) = rule.note {
        text += &format!("  {}\n", note());
    }
    if violations.is_empty() {
        return text;
    }
    for violation in violations {
        text += &format!("  {violation}\n");
    }
    text += &format!("  remedy: {}\n", rule.remedy);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_place_and_remedy() {
        let violations = [Violation::at("a.rs", 3, "too long"), Violation::of("b.rs", "no head")];
        assert_eq!(
            report(&RULES[0], &violations, false),
            format!(
                "columns        2 violations\n  a.rs:3: too long\n  b.rs: no head\n  remedy: {}\n",
                columns::REMEDY
            )
        );
        assert_eq!(report(&RULES[0], &violations, true), "columns        2 violations\n");
        assert_eq!(report(&RULES[0], &[], false), "columns        ok\n");
    }

    #[test]
    fn options_select_rules_and_paths() {
        let options = Options::parse(&["--count", "words", "src"]).unwrap();
        assert!(options.count && options.includes("words") && !options.includes("columns"));
        assert!(options.is_about(&Violation::of("src/main.rs", "")));
        assert!(!options.is_about(&Violation::of("README.md", "")));
        assert!(Options::parse(&["wrods"]).unwrap_err().contains("words"));
        let quick = Options::parse(&["--quick"]).unwrap();
        assert!(quick.includes("spelling") && !quick.includes(DEPENDENCIES));
    }

    #[test]
    fn every_rule_has_a_name_of_its_own_and_a_remedy() {
        for (at, rule) in RULES.iter().enumerate() {
            assert!(!rule.remedy.is_empty(), "{}", rule.name);
            assert!(RULES[..at].iter().all(|other| other.name != rule.name), "{}", rule.name);
        }
    }
}
