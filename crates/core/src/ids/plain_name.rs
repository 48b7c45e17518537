//! Syntax of user-chosen names: of jobs, nodes and zones.
//!
//! Names appear in logs, metrics and tables, so they are short and of few characters.

/// Longest name: enough for a scheduler's or a cloud's own ids, and still one line in a table.
pub(super) const LEN_MAX: usize = 64;

/// Whether a text is 1 to 64 letters, digits, `.`, `_` or `-`, and begins with a letter or digit.
pub(super) fn is_plain(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let has_first = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    has_first && text.len() <= LEN_MAX && text.chars().all(plain)
}

/// The first characters of a malformed name, for an error message.
pub(super) fn quoted(text: &str) -> String {
    text.chars().take(LEN_MAX + 1).collect()
}

/// A text that is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` cannot name {what}: use 1 to 64 letters, digits, `.`, `_` or `-`, \
     and begin with a letter or digit",
    text.escape_debug()
)]
pub struct PlainNameError {
    text: String,
    what: &'static str,
}

impl PlainNameError {
    pub(super) fn new(what: &'static str, text: &str) -> Self {
        Self { text: quoted(text), what }
    }
}

/// Defines the type of a user-chosen name.
macro_rules! plain_name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::ids::PlainNameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                if $crate::ids::plain_name::is_plain(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err($crate::ids::PlainNameError::new($what, text))
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}
pub(super) use plain_name;

#[cfg(test)]
mod tests {
    use crate::ids::{JobName, NodeName, Zone};

    #[test]
    fn names_are_plain_and_short() {
        for good in ["a", "resnet50-seed.7_b", "0", &"x".repeat(64)] {
            assert_eq!(good.parse::<JobName>().unwrap().as_str(), good);
            assert_eq!(good.parse::<NodeName>().unwrap().to_string(), good);
        }
        for bad in ["", "-rf", ".", "a b", "a/b", "a\nb", "ü", &"x".repeat(65)] {
            assert!(bad.parse::<JobName>().is_err(), "{bad:?}");
            assert!(bad.parse::<Zone>().is_err(), "{bad:?}");
        }
        let error = "a\nb".parse::<NodeName>().unwrap_err().to_string();
        assert!(error.starts_with("`a\\nb` cannot name a node: use"), "{error}");
    }
}
