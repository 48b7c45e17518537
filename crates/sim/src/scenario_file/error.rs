//! What is wrong with a scenario, where, and what would be right: one line for whoever wrote it.

use std::ops::Range;

use forebay_core::JobId;
use toml::Spanned;

/// A scenario that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {problem}")]
pub struct ScenarioError {
    file: String,
    line: usize,
    problem: String,
}

/// A scenario's text, to say where in it something is.
pub(crate) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
    pub words: Words<'a>,
}

/// What a kind of scenario says when something is missing or wrong.
#[derive(Clone, Copy, Default)]
pub(crate) struct Words<'a> {
    /// What to add when a key is missing, by key.
    pub examples: &'a [(&'a str, &'a str)],
    /// The same for names, by the line that begins their table.
    pub names: &'a [(&'a str, &'a str)],
    /// From where to where numbers go.
    pub ranges: &'a [(&'a str, u64, u64)],
    /// Tables of which there is one, and tables of which there may be several.
    pub single: &'a [&'a str],
    pub several: &'a [&'a str],
}

impl Source<'_> {
    /// Something is wrong here.
    pub fn refuse(&self, at: &Range<usize>, problem: impl Into<String>) -> ScenarioError {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        let line = before.split(|byte| *byte == b'\n').count();
        ScenarioError { file: self.file.to_owned(), line, problem: problem.into() }
    }

    /// A name is a plain one, and new.
    pub fn name_is_new<'b>(
        &self,
        what: &str,
        name: &Spanned<String>,
        mut earlier: impl Iterator<Item = &'b Spanned<String>>,
    ) -> Result<(), ScenarioError> {
        if let Err(error) = name.get_ref().parse::<JobId>() {
            let problem = error.to_string().replace("a job", &format!("a {what}"));
            return Err(self.refuse(&name.span(), problem));
        }
        if earlier.any(|other| other.get_ref() == name.get_ref()) {
            let problem =
                format!("there is a {what} `{}` already; name it otherwise", name.get_ref());
            return Err(self.refuse(&name.span(), problem));
        }
        Ok(())
    }

    /// A number lies within its range.
    pub fn within<N: Copy + Into<u64>>(
        &self,
        name: &str,
        value: &Spanned<N>,
    ) -> Result<N, ScenarioError> {
        let range = self.words.ranges.iter().find(|(known, ..)| *known == name);
        let (_, low, high) = *range.expect("numbers have ranges");
        self.between(name, value, low, high)
    }

    /// A number lies between these two.
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
        Err(self.refuse(&value.span(), problem))
    }

    /// What the format itself does not allow, in our words.
    pub fn unreadable(&self, error: &toml::de::Error) -> ScenarioError {
        let at = error.span().unwrap_or(0..0);
        self.refuse(&at, self.in_our_words(&at, error.message()))
    }

    fn in_our_words(&self, at: &Range<usize>, said: &str) -> String {
        if self.text.trim().is_empty() {
            return "the file is empty; docs/scenarios.md has an example".to_owned();
        }
        if let Some(key) = quoted(said, "missing field `") {
            return format!("`{key}` is missing; add {}", self.example(at, key));
        }
        if let Some(key) = quoted(said, "unknown field `") {
            let allowed = said.split_once("expected ").map_or("", |(_, allowed)| allowed);
            let allowed = allowed.trim_start_matches("one of ").replace('`', "");
            return format!("there is no key `{key}` here; there are {allowed}");
        }
        if let Some(remedy) = self.wrong_brackets(at) {
            return remedy;
        }
        if said.contains("duplicate key") {
            let key = self.line(at.start).split('=').next().unwrap_or_default().trim().to_owned();
            return format!("`{key}` is there twice; leave one out");
        }
        // A value's own complaint says what it is, not which key it belongs to.
        let Some(key) = self.key_before(at.start) else { return said.to_owned() };
        let range = self.words.ranges.iter().find(|(known, ..)| *known == key);
        if let Some((_, low, high)) = range.filter(|_| said.starts_with("invalid")) {
            return format!("`{key}`: write a whole number from {low} to {high}");
        }
        if said.contains("must be quoted") || said.contains("invalid basic string") {
            let example = self.example(at, key);
            return format!("`{key}`: write the text between two quotes, such as {example}");
        }
        format!("`{key}`: {said}")
    }

    /// What could stand there instead.
    fn example(&self, at: &Range<usize>, key: &str) -> String {
        let table = self.line(at.start).trim();
        let name = self.words.names.iter().find(|(header, _)| key == "name" && *header == table);
        let example = name.or_else(|| self.words.examples.iter().find(|(name, _)| *name == key));
        example.map_or_else(|| format!("{key} = \"…\""), |(_, text)| (*text).to_owned())
    }

    /// A table that is written as one of several although there is one, or the other way round.
    fn wrong_brackets(&self, at: &Range<usize>) -> Option<String> {
        let line = self.line(at.start).trim();
        let is_single = |name: &&&str| line.starts_with(&format!("[[{name}]]"));
        if let Some(name) = self.words.single.iter().find(is_single) {
            return Some(format!("there is one {name}; write [{name}] in single brackets"));
        }
        let written = |name: &str| [format!("[{name}]"), format!("[[{name}]]")];
        let is_of = |name: &&&str| written(name).iter().any(|header| line.starts_with(header));
        let name = self.words.several.iter().find(is_of)?;
        Some(format!("there may be several; write [[{name}]] in double brackets, each time"))
    }

    /// The whole line around a place.
    fn line(&self, at: usize) -> &str {
        let at = at.min(self.text.len());
        let start = self.text.as_bytes()[..at].iter().rposition(|byte| *byte == b'\n');
        let start = start.map_or(0, |newline| newline + 1);
        self.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default()
    }

    /// The key whose value begins here, or else the one that begins the line.
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

/// The name in backquotes after these words.
fn quoted<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    text.split_once(words)?.1.split('`').next()
}
