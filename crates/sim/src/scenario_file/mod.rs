//! Scenario files: what all kinds of scenarios have in common.
//!
//! A scenario is a TOML file. An error in one names the line and the remedy.

mod error;
mod values;

pub use error::ScenarioError;
pub(crate) use error::{Hints, Source};
pub(crate) use values::{Capacity, FromText, Share, Text};

/// The kind of a scenario: its `kind`, or training jobs. `file` is its name in errors.
pub fn kind(text: &str, file: &str) -> Result<Kind, ScenarioError> {
    #[derive(serde::Deserialize)]
    struct Head {
        kind: Option<toml::Spanned<String>>,
    }
    // A file that does not parse is treated as `train`, whose reader reports the line.
    let Ok(Head { kind: Some(kind) }) = toml::from_str(text) else { return Ok(Kind::Train) };
    let source = Source { file, text, hints: Hints::default() };
    let error = |problem| source.error_at(&kind.span(), format!("`kind`: {problem}"));
    Kind::from_text(kind.get_ref()).map_err(error)
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
    /// Its name in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Tier => "tier",
        }
    }
}

impl FromText for Kind {
    const EXPECTED: &'static str = "the kind of scenario, in quotes: \"train\" or \"tier\"";

    fn from_text(text: &str) -> Result<Self, String> {
        let kinds = [Self::Train, Self::Tier];
        let found = kinds.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| format!("there is no kind `{text}`; there are train, tier"))
    }
}
