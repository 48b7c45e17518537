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
    /// What to add when a key is missing.
    pub examples: &'a [(&'a str, &'a str)],
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

    /// A number lies within its limits.
    pub fn within(
        &self,
        name: &str,
        value: &Spanned<u32>,
        low: u32,
        high: u32,
    ) -> Result<u32, ScenarioError> {
        let number = *value.get_ref();
        if (low..=high).contains(&number) {
            return Ok(number);
        }
        let problem = format!("`{name}` is {number}; write {low} to {high}");
        Err(self.refuse(&value.span(), problem))
    }

    /// What the format itself does not allow, in our words.
    pub fn unreadable(&self, error: &toml::de::Error) -> ScenarioError {
        let at = error.span().unwrap_or(0..0);
        let said = error.message();
        if let Some(key) = quoted(said, "missing field `") {
            let example = self.examples.iter().find(|(name, _)| *name == key);
            let example = example.map_or(String::new(), |(key, text)| format!(" {key} = {text}"));
            return self.refuse(&at, format!("`{key}` is missing; add a line such as{example}"));
        }
        if let Some(key) = quoted(said, "unknown field `") {
            let allowed = said.split_once("expected ").map_or("", |(_, allowed)| allowed);
            let allowed = allowed.trim_start_matches("one of ").replace('`', "");
            return self.refuse(&at, format!("there is no key `{key}` here; there are {allowed}"));
        }
        // A value's own complaint says what it is, not which key it belongs to.
        let begun = self.text.as_bytes()[..at.start.min(self.text.len())].rsplit(|b| *b == b'\n');
        let begun = begun.into_iter().next().map(String::from_utf8_lossy).unwrap_or_default();
        match begun.split_once('=') {
            Some((key, _)) => self.refuse(&at, format!("`{}`: {said}", key.trim())),
            None => self.refuse(&at, said),
        }
    }
}

/// The name in backquotes after these words.
fn quoted<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    text.split_once(words)?.1.split('`').next()
}
