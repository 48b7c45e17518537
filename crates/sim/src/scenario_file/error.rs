//! Errors in scenario files: the file, the line, the problem and the remedy, in one line.

use std::ops::Range;

use forebay_core::JobName;
use toml::Spanned;

/// A scenario that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {problem}")]
pub struct ScenarioError {
    file: String,
    line: usize,
    problem: String,
}

/// Text of a scenario, for errors that name a line.
pub(crate) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
    pub hints: Hints<'a>,
}

/// Remedies that depend on the kind of scenario.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hints<'a> {
    /// Examples of keys that may be missing, by key.
    pub examples: &'a [(&'a str, &'a str)],
    /// Examples of names, by the header of their table.
    pub names: &'a [(&'a str, &'a str)],
    /// Lowest and highest values of numbers, by key.
    pub ranges: &'a [(&'a str, u64, u64)],
    /// Tables that occur once.
    pub single: &'a [&'a str],
    /// Tables that may occur several times.
    pub several: &'a [&'a str],
}

impl Source<'_> {
    /// An error at a position.
    pub fn error_at(&self, at: &Range<usize>, problem: impl Into<String>) -> ScenarioError {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        let line = before.split(|byte| *byte == b'\n').count();
        ScenarioError { file: self.file.to_owned(), line, problem: problem.into() }
    }

    /// Checks that a name is valid and not used before.
    pub fn check_name<'b>(
        &self,
        what: &str,
        name: &Spanned<String>,
        mut earlier: impl Iterator<Item = &'b Spanned<String>>,
    ) -> Result<(), ScenarioError> {
        if let Err(error) = name.get_ref().parse::<JobName>() {
            let problem = error.to_string().replace("a job", &format!("a {what}"));
            return Err(self.error_at(&name.span(), problem));
        }
        if earlier.any(|other| other.get_ref() == name.get_ref()) {
            let problem =
                format!("there is a {what} `{}` already; use another name", name.get_ref());
            return Err(self.error_at(&name.span(), problem));
        }
        Ok(())
    }

    /// Checks that a number is within the range of its key.
    pub fn within<N: Copy + Into<u64>>(
        &self,
        name: &str,
        value: &Spanned<N>,
    ) -> Result<N, ScenarioError> {
        let range = self.hints.ranges.iter().find(|(known, ..)| *known == name);
        let (_, low, high) = *range.expect("the key has a range");
        self.between(name, value, low, high)
    }

    /// Checks that a number is between `low` and `high`.
    pub fn between<N: Copy + Into<u64>>(
        &self,
        name: &str,
        value: &Spanned<N>,
        low: impl Into<u64>,
        high: impl Into<u64>,
    ) -> Result<N, ScenarioError> {
        let (low, high) = (low.into(), high.into());
        let number: u64 = (*value.get_ref()).into();
        if (low..=high).contains(&number) {
            return Ok(*value.get_ref());
        }
        let problem = format!("`{name}` is {number}; write {low} to {high}");
        Err(self.error_at(&value.span(), problem))
    }

    /// An error of the TOML parser, with a remedy.
    pub fn syntax_error(&self, error: &toml::de::Error) -> ScenarioError {
        let at = error.span().unwrap_or(0..0);
        self.error_at(&at, self.explain(&at, error.message()))
    }

    fn explain(&self, at: &Range<usize>, message: &str) -> String {
        if self.text.trim().is_empty() {
            return "the file is empty; docs/reference/scenarios.md has an example".to_owned();
        }
        if let Some(key) = quoted(message, "missing field `") {
            return format!("`{key}` is missing; add {}", self.example(at, key));
        }
        if let Some(key) = quoted(message, "unknown field `") {
            let allowed = message.split_once("expected ").map_or("", |(_, allowed)| allowed);
            let allowed = allowed.trim_start_matches("one of ").replace('`', "");
            return format!("there is no key `{key}` here; there are {allowed}");
        }
        if let Some(remedy) = self.wrong_brackets(at) {
            return remedy;
        }
        if message.contains("duplicate key") {
            let key = self.line(at.start).split('=').next().unwrap_or_default().trim().to_owned();
            return format!("`{key}` is there twice; leave one out");
        }
        // The parser's message is about the value; add the key.
        let Some(key) = self.key_before(at.start) else { return message.to_owned() };
        let range = self.hints.ranges.iter().find(|(known, ..)| *known == key);
        if let Some((_, low, high)) = range.filter(|_| message.starts_with("invalid")) {
            return format!("`{key}`: write a whole number from {low} to {high}");
        }
        if message.contains("must be quoted") || message.contains("invalid basic string") {
            let example = self.example(at, key);
            return format!("`{key}`: write the text between two quotes, such as {example}");
        }
        format!("`{key}`: {message}")
    }

    /// An example of a valid line.
    fn example(&self, at: &Range<usize>, key: &str) -> String {
        let table = self.line(at.start).trim();
        let name = self.hints.names.iter().find(|(header, _)| key == "name" && *header == table);
        let example = name.or_else(|| self.hints.examples.iter().find(|(name, _)| *name == key));
        example.map_or_else(|| format!("{key} = \"…\""), |(_, text)| (*text).to_owned())
    }

    /// Remedy for single brackets where there must be double ones, or the reverse.
    fn wrong_brackets(&self, at: &Range<usize>) -> Option<String> {
        let line = self.line(at.start).trim();
        let is_single = |name: &&&str| line.starts_with(&format!("[[{name}]]"));
        if let Some(name) = self.hints.single.iter().find(is_single) {
            return Some(format!("there is one {name}; write [{name}] in single brackets"));
        }
        let headers = |name: &str| [format!("[{name}]"), format!("[[{name}]]")];
        let is_of = |name: &&&str| headers(name).iter().any(|header| line.starts_with(header));
        let name = self.hints.several.iter().find(is_of)?;
        Some(format!("there may be several; write [[{name}]] in double brackets, each time"))
    }

    /// The line at a position.
    fn line(&self, at: usize) -> &str {
        let at = at.min(self.text.len());
        let start = self.text.as_bytes()[..at].iter().rposition(|byte| *byte == b'\n');
        let start = start.map_or(0, |newline| newline + 1);
        self.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default()
    }

    /// The key whose value begins at a position, or else the first key of the line.
    fn key_before(&self, at: usize) -> Option<&str> {
        let at = at.min(self.text.len());
        let start = self.text.as_bytes()[..at].iter().rposition(|byte| *byte == b'\n');
        let begun = self.text.get(start.map_or(0, |newline| newline + 1)..at)?;
        let before = match begun.trim_end().strip_suffix('=') {
            Some(before) => before.trim_end(),
            None => begun.split_once('=')?.0.trim(),
        };
        before.rsplit(|c: char| !(c.is_alphanumeric() || "_-.\"".contains(c))).next()
    }
}

/// The name in backquotes after a prefix.
fn quoted<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    text.split_once(prefix)?.1.split('`').next()
}
