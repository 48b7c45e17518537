//! What is wrong with a scenario, where, and what would be right: one line for whoever wrote it.

use std::ops::Range;

use super::file::EXAMPLES;

/// A scenario that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {problem}")]
pub struct ScenarioError {
    file: String,
    line: usize,
    problem: String,
}

/// A scenario's text, to say where in it something is.
pub(super) struct Source<'a> {
    pub file: &'a str,
    pub text: &'a str,
}

impl Source<'_> {
    /// Something is wrong here.
    pub fn refuse(&self, at: &Range<usize>, problem: impl Into<String>) -> ScenarioError {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        let line = before.split(|byte| *byte == b'\n').count();
        ScenarioError { file: self.file.to_owned(), line, problem: problem.into() }
    }

    /// What the format itself does not allow, in our words.
    pub fn unreadable(&self, error: &toml::de::Error) -> ScenarioError {
        let at = error.span().unwrap_or(0..0);
        let said = error.message();
        if let Some(key) = quoted(said, "missing field `") {
            let example = EXAMPLES.iter().find(|(name, _)| *name == key);
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
