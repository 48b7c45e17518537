//! What a job calls itself.

use std::{fmt, str::FromStr};

/// The name of one training or inference run. A restarted job keeps its name, so that it can be told
/// from its neighbours and fence its predecessor. It appears in logs and metrics, so it is short and
/// plain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(String);

/// Room for a scheduler's own ids, and still one line in a table.
const LEN_MAX: usize = 64;

/// Why a text cannot name a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` cannot name a job: use 1 to 64 letters, digits, `.`, `_` or `-`, and begin with a letter or digit",
    text.escape_debug()
)]
pub struct JobIdError {
    text: String,
}

impl JobId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins_well && text.len() <= LEN_MAX && text.chars().all(plain) {
            Ok(Self(text.to_owned()))
        } else {
            Err(JobIdError { text: text.chars().take(LEN_MAX + 1).collect() })
        }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_short() {
        for good in ["a", "resnet50-seed.7_b", "0", &"x".repeat(64)] {
            assert_eq!(good.parse::<JobId>().unwrap().as_str(), good);
        }
        for bad in ["", "-rf", ".", "a b", "a/b", "a\nb", "ü", &"x".repeat(65)] {
            assert!(bad.parse::<JobId>().is_err(), "{bad:?}");
        }
    }
}
