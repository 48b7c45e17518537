//! Scenarios as people write them: what all kinds of them have in common.
//!
//! A scenario is a TOML file. Whatever is wrong in one is refused with its line and the remedy.

mod error;
mod values;

pub use error::ScenarioError;
pub(crate) use error::{Source, Words};
pub(crate) use values::{Capacity, Share, Text, Written};

/// Which simulator a scenario is for: what its `kind` says, or training jobs. `file` is how errors call it.
pub fn kind(text: &str, file: &str) -> Result<Kind, ScenarioError> {
    #[derive(serde::Deserialize)]
    struct Head {
        kind: Option<toml::Spanned<String>>,
    }
    // Whatever else is wrong, the reader of training jobs says with its line.
    let Ok(Head { kind: Some(kind) }) = toml::from_str(text) else { return Ok(Kind::Train) };
    let source = Source { file, text, words: Words::default() };
    let problem = |said| source.refuse(&kind.span(), format!("`kind`: {said}"));
    Kind::read(kind.get_ref()).map_err(problem)
}

/// A kind of scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Training jobs that share datasets.
    Train,
    /// Jobs that read tables through a flash tier.
    Tier,
}

impl Kind {
    /// As it is written in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Tier => "tier",
        }
    }
}

impl Written for Kind {
    const EXPECTED: &'static str = "the kind of scenario, in quotes: \"train\" or \"tier\"";

    fn read(text: &str) -> Result<Self, String> {
        let kinds = [Self::Train, Self::Tier];
        let found = kinds.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("there is no kind `{text}`; there are train, tier"))
    }
}
